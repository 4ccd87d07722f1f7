"""The operators of ONNX, as functions of a node and its inputs.

To support another operator, write its function and add it to the table `OPERATORS`. A
function has one parameter for each input. Constant inputs, which include those in
`Operator.static`, are NumPy arrays. `evaluate` prefixes its errors with the node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

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

Array: TypeAlias = jax.Array | np.ndarray


class Node(NamedTuple):
    """A node of a graph."""

    kind: str  # the name of its operator
    label: str  # its name in messages
    version: int  # of the operator
    attributes: Mapping[str, Any]  # those that are set
    inputs: tuple[str, ...]  # names, "" for an optional input that is omitted
    output: str
    options: Mapping[str, Any]  # `training` and `lda_coeff` of ReverseSequence


class Operator(NamedTuple):
    """An operator of ONNX."""

    evaluate: Callable[..., Array]  # the output from a node and its inputs
    versions: frozenset[int]  # those that `evaluate` implements
    static: tuple[int, ...] = ()  # inputs whose values determine the output's shape


def _reverse_sequence(node: Node, input: Array, sequence_lens: Array) -> Array:
    batch_axis = node.attributes.get("batch_axis", 1)
    time_axis = node.attributes.get("time_axis", 0)
    # An error as in ONNX Runtime; `reverse_sequence` would clamp the lengths.
    if not isinstance(sequence_lens, Tracer) and 0 <= time_axis < np.ndim(input):
        lengths, time = np.asarray(sequence_lens), np.shape(input)[time_axis]
        outside = lengths[(lengths < 0) | (lengths > time)]
        if outside.size:
            raise ValueError(
                f"Invalid sequence length: {outside[0]}. Value must be in range "
                f"[0,{time}]"
            )
    return dml_jax.reverse_sequence(
        input,
        sequence_lens,
        batch_axis=batch_axis,
        time_axis=time_axis,
        **node.options,
    )


def _slice(
    node: Node,
    data: Array,
    starts: Any = None,
    ends: Any = None,
    axes: Any = None,
    steps: Any = None,
) -> Array:
    if node.version == 1:
        starts, ends = node.attributes["starts"], node.attributes["ends"]
        axes = node.attributes.get("axes")
    starts, ends = _integers("starts", starts), _integers("ends", ends)
    axes = list(range(len(starts))) if axes is None else _integers("axes", axes)
    steps = [1] * len(starts) if steps is None else _integers("steps", steps)
    counts = len(starts), len(ends), len(axes), len(steps)
    if len(set(counts)) != 1:
        raise ValueError(
            "`starts`, `ends`, `axes` and `steps` must have the same length; got "
            f"lengths {counts}"
        )
    if 0 in steps:
        raise ValueError(f"`steps` must be nonzero; got {steps}")
    rank = np.ndim(data)
    windows: list[tuple[Any, ...]] = [(0, size, 1) for size in np.shape(data)]
    seen = set()
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -rank <= axis < rank:
            raise ValueError(f"`axes` must be in [{-rank}, {rank}); got {axis}")
        axis %= rank
        if axis in seen:
            raise ValueError(f"`axes` must be unique; got {axis} twice")
        seen.add(axis)
        windows[axis] = _window(windows[axis][1], start, end, step)
    if is_text(data.dtype):
        return data[np.ix_(*(range(o, o + size)[::step] for o, size, step in windows))]
    offsets, sizes, strides = zip(*windows, strict=True) if windows else ((), (), ())
    return dml_jax.slice1(data, offsets, sizes, strides)


def _window(size: Any, start: int, end: int, step: int) -> tuple[Any, Any, int]:
    """Offset, size and stride of the window that a start, an end and a step select."""
    if size == 0:
        return 0, 0, 1
    start, end = (index + size if index < 0 else index for index in (start, end))
    is_reversed = step < 0
    start = min(max(start, 0), size - is_reversed)
    end = min(max(end, -is_reversed), size - is_reversed)
    count = max(0, -((start - end) // step))
    if not count:
        return 0, 0, 1
    reach = (count - 1) * step
    return min(start, start + reach), abs(reach) + 1, step


def _range(node: Node, start: Array, limit: Array, delta: Array) -> Array:
    stash_type = node.attributes.get("stash_type", onnx.TensorProto.FLOAT)
    if stash_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise ValueError(
            f"`stash_type` must be 1 (FLOAT) or 11 (DOUBLE); got {stash_type}"
        )
    first, last, step = (
        _finite_scalar(name, value)
        for name, value in (("start", start), ("limit", limit), ("delta", delta))
    )
    if step == 0:
        raise ValueError("`delta` must be nonzero; got 0")
    # ONNX defines the count in real numbers.
    span = Fraction(last.item()) - Fraction(first.item())
    count = max(0, math.ceil(span / Fraction(step.item())))
    return dml_jax.fill_value_sequence((count,), first.dtype, first, step)


def _constant_of_shape(node: Node, shape: Array) -> Array:
    value = node.attributes.get("value", np.zeros(1, np.float32))
    if value.size != 1:
        raise ValueError(f"`value` must have one element; got {value.size}")
    sizes = _integers("input", shape)
    return dml_jax.fill_value_constant(sizes, value.dtype, value.reshape(())[()])


def _constant(node: Node) -> Array:
    ((name, value),) = node.attributes.items()
    if name == "value":
        return value
    if name == "value_string":
        return np.array(value.decode(), object)
    if name == "value_strings":
        return np.array([text.decode() for text in value], object)
    return np.array(value, np.int64 if name.startswith("value_int") else np.float32)


def _identity(_: Node, input: Array) -> Array:
    return input


def _cast(node: Node, input: Array) -> Array:
    to = node.attributes["to"]
    if isinstance(to, bytes):  # version 1 has names
        to = onnx.TensorProto.DataType.Value(to.decode())
    dtype, given = dtype_of("`to`", to), np.dtype(input.dtype)
    if is_text(dtype) or is_text(given) or dtype == ml_dtypes.float8_e8m0fnu:
        raise NotImplementedError(
            f"Cast must not be from or to strings or float8_e8m0fnu; got {given} to "
            f"{dtype}"
        )
    if not arguments.is_known(dtype):
        raise TypeError(f"Cast: `to` must be a dtype that JAX knows; got {dtype}")
    arguments.require_width("Cast", "to", dtype)
    x = jnp.asarray(arguments.as_array("Cast", "input", input))
    is_float8 = dtype.name.startswith("float8")
    return cast(x, dtype, is_float8 and bool(node.attributes.get("saturate", 1)))


def _integers(name: str, values: Any) -> list[int]:
    """The elements of an input or an attribute that must be one-dimensional."""
    numbers = np.asarray(values)
    if numbers.ndim != 1:
        raise ValueError(f"`{name}` must have one dimension; got {numbers.ndim}")
    return [int(number) for number in numbers]


def _finite_scalar(name: str, value: Array) -> Any:
    """The only element of an input, as a scalar of NumPy."""
    if np.shape(value) not in ((), (1,)):
        raise ValueError(f"`{name}` must be a scalar; got shape {np.shape(value)}")
    number = np.asarray(value).reshape(())[()]
    if not np.isfinite(number):
        raise ValueError(f"`{name}` must be finite; got {number}")
    return number


def dtype_of(name: str, number: int) -> np.dtype:
    """The dtype of a data type of ONNX."""
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
    except KeyError:
        raise ValueError(f"{name} must be a data type; got {number}") from None


def is_text(dtype: np.dtype) -> bool:
    """Whether a dtype is one of NumPy's for strings."""
    return dtype.kind in "OSUT"


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

# Subclasses first. Errors of other types cannot always be made from a message.
_KINDS = (NotImplementedError, OverflowError, TypeError, ValueError, RuntimeError)


def evaluate(node: Node, inputs: Sequence[Array | None]) -> Array:
    """The output of a node; its errors name the node."""
    try:
        return OPERATORS[node.kind].evaluate(node, *inputs)
    except jax.errors.JAXTypeError:
        raise
    except _KINDS as error:
        kind = next(kind for kind in _KINDS if isinstance(error, kind))
        raise kind(f"{node.label}: {error}") from None
