"""Errors of ONNX and protobuf as errors of this package, and parts of messages."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import onnx.checker
import onnx.shape_inference
from google.protobuf.message import DecodeError

from dml_jax._shared import arguments

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


def with_nearest(name: Any, known: Iterable[str]) -> str:
    """A wrong name, and the known names that are most like it."""
    nearest = difflib.get_close_matches(str(name), known, 3, 0)
    hint = f"The nearest are {', '.join(nearest)}" if nearest else "There are none"
    return f"{arguments.describe(name)}. {hint}"


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
