"""ONNX nodes in terms of this package's functions.

A node's inputs are arrays, of NumPy where they are constants. Those that decide about
the shape of its output, such as the starts of a Slice, must be constants always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import onnx.helper
from jax.core import Tracer

import dml_jax
from dml_jax._shared import arguments
from dml_jax.onnx_backend._cast import cast

_FLOAT8 = {
    np.dtype(getattr(ml_dtypes, name))
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
}


class Node(NamedTuple):
    """A node of a graph.

    Attributes:
      kind: its operator's name.
      label: what it is called in messages.
      version: the version of the operator.
      attributes: their values, without defaults.
      inputs: the names of its inputs, empty where an optional one is left out.
      output: the name of its output.
      options: how ReverseSequence treats derivatives: `training` and `lda_coeff`.
    """

    kind: str
    label: str
    version: int
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    output: str
    options: Mapping[str, Any]


class Operator(NamedTuple):
    """How a node is evaluated.

    Attributes:
      evaluate: its output from the node and its inputs.
      versions: the versions of the operator that this holds for.
      static: the inputs on whose values the shape of the output depends.
    """

    evaluate: Callable[..., Any]
    versions: frozenset[int]
    static: tuple[int, ...] = ()


def _reverse_sequence(node, input, sequence_lens):
    """DirectML's and JAX's users may give any length; ONNX Runtime's may not."""
    axes = {
        "batch_axis": node.attributes.get("batch_axis", 1),
        "time_axis": node.attributes.get("time_axis", 0),
    }
    if (
        not isinstance(sequence_lens, Tracer)
        and np.ndim(input) > axes["time_axis"] >= 0
    ):
        _require_lengths(np.asarray(sequence_lens), np.shape(input)[axes["time_axis"]])
    return dml_jax.reverse_sequence(input, sequence_lens, **axes, **node.options)


def _require_lengths(lengths, time):
    outside = lengths[(lengths < 0) | (lengths > time)]
    if outside.size:
        raise ValueError(
            f"Invalid sequence length: {outside[0]}. Value must be in range [0,{time}]"
        )


def _slice(node, data, starts=None, ends=None, axes=None, steps=None):
    if node.version == 1:
        starts, ends = node.attributes["starts"], node.attributes["ends"]
        axes = node.attributes.get("axes")
    starts, ends = _integers("starts", starts), _integers("ends", ends)
    axes = list(range(len(starts))) if axes is None else _integers("axes", axes)
    steps = [1] * len(starts) if steps is None else _integers("steps", steps)
    counts = {len(starts), len(ends), len(axes), len(steps)}
    if len(counts) != 1:
        raise ValueError(
            "`starts`, `ends`, `axes` and `steps` must be equally long; got "
            f"{len(starts)}, {len(ends)}, {len(axes)} and {len(steps)}"
        )
    windows = [(0, size, 1) for size in np.shape(data)]
    seen = set()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = _axis(axis, len(windows))
        if axis in seen:
            raise ValueError(f"`axes` must name each axis once; got {axis} twice")
        seen.add(axis)
        windows[axis] = _window(windows[axis][1], start, end, step)
    return _cut(data, windows)


def _cut(data, windows):
    """The windows of an array; those of strings are NumPy's."""
    if not is_text(data.dtype):
        parts = [list(part) for part in zip(*windows, strict=True)] or [[], [], []]
        return dml_jax.slice1(data, *parts)
    return data[np.ix_(*(range(o, o + size)[::step] for o, size, step in windows))]


def _axis(axis, rank):
    if not -rank <= axis < rank:
        raise ValueError(f"`axes` must be in [{-rank}, {rank}); got {axis}")
    return axis % rank


def _window(size, start, end, step):
    """Offset, size and stride of the window that a start, an end and a step select."""
    if step == 0:
        raise ValueError("`steps` must not be 0; got 0")
    if size == 0:
        return 0, 0, 1
    start, end = (index + size if index < 0 else index for index in (start, end))
    backwards = step < 0
    start = min(max(start, 0), size - backwards)
    end = min(max(end, -backwards), size - backwards)
    count = max(0, -((start - end) // step))
    if not count:
        return 0, 0, 1
    reach = (count - 1) * step
    return min(start, start + reach), abs(reach) + 1, step


def _range(node, start, limit, delta):
    """ONNX counts in real numbers, so do we: with fractions."""
    stash_type = node.attributes.get("stash_type", onnx.TensorProto.FLOAT)
    if stash_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise ValueError(
            f"`stash_type` must be 1 (FLOAT) or 11 (DOUBLE); got {stash_type}"
        )
    dtype = np.asarray(start).dtype
    start, limit, delta = (
        _scalar(name, value)
        for name, value in (("start", start), ("limit", limit), ("delta", delta))
    )
    if delta == 0:
        raise ValueError("`delta` must not be 0; got 0")
    exact = (Fraction(number.item()) for number in (limit, start, delta))
    limit_, start_, delta_ = exact
    count = max(0, math.ceil((limit_ - start_) / delta_))
    return dml_jax.fill_value_sequence((count,), dtype, start, delta)


def _scalar(name, value):
    value = np.asarray(value)
    if value.shape not in ((), (1,)):
        raise ValueError(f"`{name}` must be a scalar; got shape {value.shape}")
    number = value.reshape(())[()]
    if not np.isfinite(number):
        raise ValueError(f"`{name}` must be finite; got {number}")
    return number


def _constant_of_shape(node, shape):
    value = np.zeros(1, np.float32)
    if "value" in node.attributes:
        value = node.attributes["value"]
    if value.size != 1:
        raise ValueError(f"`value` must have one element; got {value.size}")
    return dml_jax.fill_value_constant(
        tuple(_integers("input", shape)), value.dtype, value.reshape(())[()]
    )


def _constant(node):
    ((name, value),) = node.attributes.items()
    if name == "value":
        return value
    if name == "value_string":
        return np.array(value.decode(), object)
    if name == "value_strings":
        return np.array([text.decode() for text in value], object)
    return np.array(value, np.int64 if name.startswith("value_int") else np.float32)


def _identity(node, input):
    return input


def _cast(node, input):
    to = node.attributes["to"]
    if isinstance(to, bytes):  # version 1 has names
        to = onnx.TensorProto.DataType.Value(to.decode())
    dtype, given = dtype_of("to", to), np.dtype(input.dtype)
    if is_text(dtype) or is_text(given) or dtype == ml_dtypes.float8_e8m0fnu:
        raise NotImplementedError(
            f"Cast must not be from or to strings or float8_e8m0fnu; got {given} to "
            f"{dtype}"
        )
    if not arguments.is_known(dtype):
        raise TypeError(f"Cast: `to` must be a dtype that JAX knows; got {dtype}")
    arguments.require_width("Cast", "to", dtype)
    x = jnp.asarray(arguments.as_array("Cast", "input", input))
    saturate = dtype in _FLOAT8 and bool(node.attributes.get("saturate", 1))
    return cast(x, dtype, saturate)


def _integers(name: str, values: Any) -> list[int]:
    """The numbers of an input or an attribute."""
    numbers = np.asarray(values)
    if numbers.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension; got {numbers.ndim}")
    return [int(number) for number in numbers]


def dtype_of(name: str, number: int) -> np.dtype:
    """The dtype of an ONNX data type, by its number."""
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    except KeyError:
        raise ValueError(f"`{name}` must be a data type; got {number}") from None


def is_text(dtype: Any) -> bool:
    """Whether a dtype is one that NumPy has for strings."""
    return np.dtype(dtype).kind in "OSUT"


OPERATORS = {
    "ReverseSequence": Operator(_reverse_sequence, frozenset({10, 28})),
    "Slice": Operator(_slice, frozenset({1, 10, 11, 13}), static=(1, 2, 3, 4)),
    "Range": Operator(_range, frozenset({11, 27}), static=(0, 1, 2)),
    "ConstantOfShape": Operator(
        _constant_of_shape, frozenset({9, 20, 21, 23, 24, 25}), static=(0,)
    ),
    "Constant": Operator(_constant, frozenset({1, 9, 11, 12, 13, 19, 21, 23, 24, 25})),
    "Identity": Operator(_identity, frozenset({1, 13, 14, 16, 19, 21, 23, 24, 25})),
    "Cast": Operator(_cast, frozenset({1, 6, 9, 13, 19, 21, 23, 24, 25, 28})),
}


def evaluate(node: Node, inputs: Sequence[jax.Array | np.ndarray | None]) -> Any:
    """The output of a node; its errors say which node."""
    try:
        return OPERATORS[node.kind].evaluate(node, *inputs)
    except jax.errors.JAXTypeError:
        raise
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        kind = next(kind for kind in _KINDS if isinstance(error, kind))
        raise kind(f"{node.label}: {error}") from None


# Subclasses first; some of other libraries cannot be made from a message.
_KINDS = (NotImplementedError, OverflowError, TypeError, ValueError, RuntimeError)
