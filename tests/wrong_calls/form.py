"""The form of every wrong call, whatever the entrance."""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Wrong(NamedTuple):
    """A call, and the error that it raises.

    `message` is the whole message of the error; each … in it stands for any words.
    """

    name: str
    call: Callable[[], object]
    error: type[Exception]
    message: str


def require_error(row: Wrong) -> None:
    with pytest.raises(row.error) as raised:
        row.call()
    error = raised.value
    assert type(error) is row.error
    pattern = ".*".join(map(re.escape, row.message.split("…")))
    assert re.fullmatch(pattern, str(error)), str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 1000
    assert error.__context__ is None or error.__suppress_context__
