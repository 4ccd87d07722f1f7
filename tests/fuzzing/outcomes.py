"""What any call may do: give a result, or raise one of our errors."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import currently_in_test_context, event

ERRORS = {TypeError, ValueError, OverflowError, NotImplementedError}


class Refusal(NamedTuple):
    kind: type[Exception]
    message: str


def outcome_of(call: Callable[[], Any], *heads: str) -> Any:
    """The result, or the refusal, whose message is one line that begins with a head.

    All other exceptions, and warnings, go through.
    """
    try:
        with warnings.catch_warnings(action="error"):
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
