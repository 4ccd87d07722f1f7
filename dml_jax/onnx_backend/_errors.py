"""Errors of ONNX, protobuf and nodes as errors of this package; parts of messages."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx.checker
import onnx.defs
import onnx.shape_inference
from google.protobuf.message import DecodeError
from jax.extend.core import InconclusiveDimensionOperation

from dml_jax._shared import arguments
from dml_jax.onnx_backend._nodes import Node
from dml_jax.onnx_backend._values import Value

# ONNX raises RuntimeError for errors of the file system.
_ERRORS = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
)
# Subclasses first. Errors of other types cannot always be made from a message.
_KINDS = (NotImplementedError, OverflowError, TypeError, ValueError, RuntimeError)
# What nodes may raise.
OF_NODES = (*_KINDS, LookupError, ArithmeticError, InconclusiveDimensionOperation)


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


def of_node(error: Exception, node: Node, inputs: Sequence[Value]) -> Exception:
    """The error with the name of its node in front, and with names of inputs.

    Messages of this package have their own, in backquotes; to those of JAX and NumPy
    the shapes of all inputs are added.
    """
    kind = next((k for k in _KINDS if isinstance(error, k)), ValueError)
    text = (str(error).splitlines() or [type(error).__name__])[0]
    text = text.removeprefix(f"{node.kind}: ")  # which the label begins with
    if node.scope.is_expanded:
        if kind is ValueError:  # the model does not have these names
            text = text.replace("`", "")
    elif kind in (TypeError, ValueError) and not (
        "`" in text or node.graphs() or node.operator.is_custom
    ):
        kind = ValueError
        got = _shapes(node, inputs)
        text = f"the inputs must fit {node.kind}; got {got}: {text}"
    return kind(f"{node.label}: {text}")


def _shapes(node: Node, inputs: Sequence[Value]) -> str:
    """The shapes of a node's inputs, by ONNX's names."""
    try:
        schema = onnx.defs.get_schema(node.kind, node.version)
        names = [parameter.name for parameter in schema.inputs]
    except onnx.defs.SchemaError:
        names = [*node.inputs]
    names += names[-1:] * (len(inputs) - len(names))  # of an input that is repeated
    shapes = (
        f"`{name}` {[*map(np.shape, x)] if isinstance(x, tuple) else np.shape(x)}"
        for name, x in zip(names, inputs, strict=False)
        if x is not None
    )
    return ", ".join(shapes)


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
