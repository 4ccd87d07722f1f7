"""ReverseSequence, Slice, Range and ConstantOfShape, by this package's operators."""

import builtins
import math
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx

import dml_jax
import dml_jax.reference
from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    axes_of,
    clamped,
    has_symbols,
    integers,
    require_scalar,
)
from dml_jax.onnx_backend._values import Array, is_text


def _reverse_sequence(node: Node, input: Array, sequence_lens: Array) -> Array:
    time_axis = node.attributes["time_axis"]
    # An error as in ONNX Runtime; `reverse_sequence` would clamp the lengths.
    if 0 <= time_axis < np.ndim(input):
        time = np.shape(input)[time_axis]
        sequence_lens = clamped("sequence_lens", sequence_lens, time)
    axes = {"batch_axis": node.attributes["batch_axis"], "time_axis": time_axis}
    if is_text(input):  # which JAX has not
        arrays = np.asarray(input), np.asarray(sequence_lens)
        return dml_jax.reference.reverse_sequence(*arrays, **axes)
    return dml_jax.reverse_sequence(input, sequence_lens, **axes, **node.scope.options)


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
    starts, ends = integers("starts", starts), integers("ends", ends)
    axes = node.attributes.get("axes", range(len(starts))) if axes is None else axes
    axes = axes_of(node, np.ndim(data), axes) or []
    steps = [1] * len(starts) if steps is None else integers("steps", steps)
    counts = len(starts), len(ends), len(axes), len(steps)
    if len(set(counts)) != 1:
        raise ValueError(
            "`starts`, `ends`, `axes` and `steps` must have the same length; got "
            f"lengths {counts}"
        )
    if 0 in steps:
        raise ValueError(f"`steps` must be nonzero; got {steps}")
    windows: list[tuple[Any, ...]] = [(0, size, 1) for size in np.shape(data)]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = windows[axis][1]
        if has_symbols((size, start, end)):  # which JAX compares
            places = _places(size, start, end, step)
            data = jnp.asarray(data)[(builtins.slice(None),) * axis + (places,)]
            windows[axis] = 0, np.shape(data)[axis], 1
        else:
            windows[axis] = _window(size, start, end, step)
    if isinstance(data, np.ndarray):
        part = data[tuple(builtins.slice(o, o + size) for o, size, _ in windows)]
        return part[tuple(builtins.slice(None, None, step) for *_, step in windows)]
    offsets, sizes, strides = zip(*windows, strict=True) if windows else ((), (), ())
    return dml_jax.slice1(data, offsets, sizes, strides)


def _places(size: Any, start: Any, end: Any, step: int) -> builtins.slice:
    """The index of a slice by symbolic sizes, of which far limits are the ends."""
    far, forward = 2**31 - 1, 1 if step > 0 else -1
    if isinstance(start, int) and start * forward <= -far:
        start = None
    elif isinstance(start, int) and start < 0 > step:
        start = start + size  # NumPy selects nothing from a start before the axis
    is_last = isinstance(end, int) and end * forward >= far
    return builtins.slice(start, None if is_last else end, step)


def _window(size: int, start: int, end: int, step: int) -> tuple[int, int, int]:
    """Offset, size and stride of the window that a start, an end and a step select."""
    places = range(size)[max(start, -size) : end : step]
    if not places:
        return 0, 0, 1
    return min(places[0], places[-1]), abs(places[-1] - places[0]) + 1, step


def _range(node: Node, start: Array, limit: Array, delta: Array) -> Array:
    stash_type = node.attributes["stash_type"]
    if stash_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise ValueError(
            f"`stash_type` must be 1 (FLOAT) or 11 (DOUBLE); got {stash_type}"
        )
    first = _finite_scalar("start", start)
    last = _finite_scalar("limit", limit)
    step = _finite_scalar("delta", delta)
    if step == 0:
        raise ValueError("`delta` must be nonzero; got 0")
    if has_symbols((first, last, step)):
        sizes = max(0, -((first - last) // step))
        numbers = jnp.asarray(first, jnp.int64), jnp.asarray(step, jnp.int64)
        return dml_jax.fill_value_sequence((sizes,), np.int64, *numbers)
    # ONNX defines the count in real numbers.
    span = Fraction(last.item()) - Fraction(first.item())
    count = max(0, math.ceil(span / Fraction(step.item())))
    return dml_jax.fill_value_sequence((count,), first.dtype, first, step)


def _constant_of_shape(node: Node, shape: Array) -> Array:
    value = node.attributes.get("value", np.zeros(1, np.float32))
    if value.size != 1:
        raise ValueError(f"`value` must have one element; got {value.size}")
    sizes = integers("input", shape)
    return dml_jax.fill_value_constant(sizes, value.dtype, value.reshape(())[()])


def _finite_scalar(name: str, value: Array) -> Any:
    """The only element of an input, as a scalar of NumPy."""
    require_scalar(name, value)
    number = np.asarray(value).reshape(())[()]
    if not (has_symbols([number]) or np.isfinite(number)):
        raise ValueError(f"`{name}` must be finite; got {number}")
    return number


OPERATORS = {
    "ReverseSequence": Operator(_reverse_sequence, 10),
    "Slice": Operator(_slice, 1, static=(1, 2, 3, 4), of_floats=True),
    "Range": Operator(_range, 11, static=(0, 1, 2)),
    "ConstantOfShape": Operator(_constant_of_shape, 9, static=(0,)),
}
