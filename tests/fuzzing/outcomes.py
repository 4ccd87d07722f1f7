"""What any call may do, and how often it did: a result, or an error of our own."""

import collections
import contextlib
import signal
import warnings
from typing import NamedTuple

REFUSALS = {TypeError, ValueError, OverflowError, NotImplementedError}
SECONDS = 120  # after which a call hangs
COUNTS = collections.Counter()  # of the test that runs; `conftest` takes them


class Refusal(NamedTuple):
    kind: type[Exception]
    message: str


def outcome_of(call, *heads):
    """The result, or how the call was refused: in a line that begins with a head.

    All other exceptions, and warnings, go through.
    """
    try:
        with limited_time(), warnings.catch_warnings():
            warnings.simplefilter("error")
            result = call()
    except Exception as error:
        if type(error) not in REFUSALS:
            raise
        message = str(error)
        require_form(message, heads)
        COUNTS[type(error).__name__] += 1
        return Refusal(type(error), message)
    COUNTS["result"] += 1
    return result


def require_form(message, heads):
    assert message.startswith(heads), message
    assert message.isprintable(), message
    assert len(message) > max(len(h) for h in heads if message.startswith(h)) + 5


@contextlib.contextmanager
def limited_time():
    def fail(*_):
        raise AssertionError(f"took more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
