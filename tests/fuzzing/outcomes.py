"""What any call may do: give a result, or raise one of our errors."""

import contextlib
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hypothesis import currently_in_test_context, event

ERRORS = {TypeError, ValueError, OverflowError, NotImplementedError}
SECONDS = 120  # after which a call counts as hanging


class Refusal(NamedTuple):
    kind: type[Exception]
    message: str


def outcome_of(call: Callable[[], Any], *heads: str) -> Any:
    """The result, or the refusal, whose message is one line that begins with a head.

    All other exceptions, and warnings, go through.
    """
    try:
        with time_limit(), warnings.catch_warnings():
            warnings.simplefilter("error")
            result = call()
    except Exception as error:
        if type(error) not in ERRORS:
            raise
        message = str(error)
        assert message.startswith(heads), message
        assert message.isprintable(), message
        assert len(message) > max(map(len, filter(message.startswith, heads))) + 5
        result = Refusal(type(error), message)
    if currently_in_test_context():  # for --hypothesis-show-statistics
        event(result.kind.__name__ if isinstance(result, Refusal) else "result")
    return result


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    def fail(*_: object) -> None:
        raise AssertionError(f"took more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
