"""Converts errors of ONNX and protobuf to errors of this package."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import onnx.checker
import onnx.shape_inference
from google.protobuf.message import DecodeError

# ONNX raises RuntimeError for errors of the file system.
_ERRORS = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
)


@contextlib.contextmanager
def as_value_error(prefix: str, *more: type[Exception]) -> Iterator[None]:
    """Converts errors of ONNX, and those in `more`, to a ValueError of one line."""
    try:
        yield
    except DecodeError:
        raise ValueError(f"{prefix}: must be an ONNX model; got other bytes") from None
    except (*_ERRORS, *more) as error:
        raise ValueError(f"{prefix}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    """The message of an error, without the dump of the model that may follow.

    The checker has the name of a node in a line of its own.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    for line in lines[1:3]:
        text = f"{text} {line}" if text.endswith(":") else text
    node = re.search(r"Bad node spec for node\. Name: (.+) OpType: (\w+)", str(error))
    return f"{node[2]} '{node[1]}': {text}" if node else text
