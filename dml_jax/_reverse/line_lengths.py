"""The lengths and the axis of a reversal, from arguments to integers in range."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import arguments, bitwise, lists


def from_argument(
    function: str, name: str, value: Any
) -> tuple[jax.Array | np.ndarray, tuple[int, int] | None]:
    """`value` as an array of integers, clipped to 32 bits outside of 64-bit mode.

    JAX would take NumPy's 64-bit integers modulo 2^32, and 2^32 + 1 would become 1.
    Clipping changes no result, because the size of every axis fits 32 bits. The second
    result is the minimum and the maximum of `value` if clipping changed a length.
    """
    if isinstance(value, jax.Array):
        _require_integer(function, name, value)
        return value, None
    if lists.is_list(value):
        types = lists.types(value)
        if types.of_jax and types.are_integers:
            return _stack_in_64_bits(function, name, value), None
    array, is_typed = arguments.to_array(function, name, value)
    if not is_typed and array.size == 0:  # an empty list has no dtype
        return array.astype(np.int32), None
    if not is_typed and array.dtype == object:
        _require_64_bits(function, name, array)
        return _clip_to_32_bits(array)
    _require_integer(function, name, array)
    if isinstance(array, jax.Array):
        return array, None
    arguments.require_known(function, name, array.dtype)
    if bitwise.is_narrowed(array.dtype):
        return _clip_to_32_bits(array)
    return array, None


def _require_integer(function: str, name: str, array: Any) -> None:
    dtype = array.dtype
    if getattr(dtype, "kind", None) in ("i", "u"):  # ten times as fast as issubdtype
        return
    if jnp.issubdtype(dtype, jnp.integer) and arguments.is_known(dtype):
        return
    got = str(dtype)
    if jnp.issubdtype(dtype, jnp.bool_):
        got += ". The lengths of a mask [batch, time] are mask.sum(axis=1)"
    elif array.ndim > 1 and 1 not in array.shape:
        got += ". The array comes first, then the lengths"
    elif jnp.issubdtype(dtype, jnp.floating):
        got += f". Pass `jnp.asarray({name}, 'int32')`"
    raise arguments.error(TypeError, function, name, "have an integer dtype", got)


def _stack_in_64_bits(function: str, name: str, value: Any) -> jax.Array:
    """A list of integers and JAX arrays as int64, clipped to its range."""
    largest = np.iinfo(np.int64).max

    def stack(value: Any) -> jax.Array:
        if lists.is_list(value):
            return jnp.stack([stack(element) for element in value])
        if not isinstance(value, jax.Array):
            numbers = np.asarray(value, object)
            _require_64_bits(function, name, numbers)
            return jnp.asarray(np.asarray(np.minimum(numbers, largest), np.int64))
        if value.dtype == np.uint64:
            value = jnp.minimum(value, np.uint64(largest))
        return value.astype(np.int64)

    try:
        with jax.enable_x64(True):
            return stack(value)
    except (TypeError, ValueError):
        raise arguments.not_an_array(function, name, value) from None


def _require_64_bits(function: str, name: str, array: np.ndarray) -> None:
    """Refuses integers in a list that no dtype can hold."""
    for number in (array.min(), array.max()) if array.size else ():
        if not -(2**63) <= number < 2**64:
            rule = "fit int64 or uint64"
            raise arguments.error(
                OverflowError, function, name, rule, arguments.show(number)
            )


def _clip_to_32_bits(array: np.ndarray) -> tuple[np.ndarray, tuple[int, int] | None]:
    """`array` clipped to 32 bits, and its extremes if that changed an integer."""
    smallest, largest = int(array.min(initial=0)), int(array.max(initial=0))
    # uint32 holds the size of the longest axis, int32 negative lengths.
    dtype = np.int32 if largest < 2**31 else np.uint32
    info = np.iinfo(dtype)
    if info.min <= smallest and largest <= info.max:
        return array.astype(dtype), None
    extremes = int(array.min()), int(array.max())
    clipped = np.clip(array, max(smallest, info.min), min(largest, info.max))
    return clipped.astype(dtype), extremes


def canonicalize_axis(function: str, name: str, ndim: int, axis: Any) -> int:
    """`axis` in [0, ndim), for the array `name`."""
    if ndim == 0:
        raise ValueError(f"{function}: `{name}` must have rank 1 or more; got rank 0")
    axis = arguments.integer(function, "axis", axis)
    if not -ndim <= axis < ndim:
        hint = ". Pass axis=0" if ndim == 1 else ""
        raise ValueError(
            f"{function}: `axis` {arguments.show(axis)} is out of bounds for array of "
            f"dimension {ndim}{hint}"
        )
    return axis % ndim


def require_lines(shape: Any, lengths_shape: Any, axis: int) -> None:
    """Refuses lengths of another shape than `reverse_subsequences` takes."""
    full = (*shape[:axis], 1, *shape[axis + 1 :])
    fits = len(lengths_shape) == len(full) and all(
        size in (1, wanted) for size, wanted in zip(lengths_shape, full, strict=True)
    )
    if fits:
        return
    advice = ""
    missing = missing_dimensions(lengths_shape, full)
    if not lengths_shape:
        advice = f". For one length, pass shape {(1,) * len(shape)}"
    elif missing:
        dims = missing[0] if len(missing) == 1 else missing
        advice = f". Pass `jnp.expand_dims(sequence_lengths, {dims})`"
    raise ValueError(
        f"reverse_subsequences: `sequence_lengths` must have shape {full}, 1 along "
        f"{axis=} and the size of `input` or 1 along every other dimension; got "
        f"{lengths_shape}{advice}"
    )


def missing_dimensions(lengths_shape: Any, full: Any) -> tuple[int, ...]:
    """The dimensions of size 1 with which lengths would fit, if there are any."""
    missing, sizes = [], list(lengths_shape)
    for d, wanted in enumerate(full):
        if sizes and sizes[0] in (1, wanted):
            sizes.pop(0)
        else:
            missing.append(d)
    return () if sizes else tuple(missing)


def require_batch(shape: Any, lengths_shape: Any, batch_axis: int) -> None:
    """Refuses lengths of another shape than `reverse_sequence` takes."""
    if lengths_shape == (shape[batch_axis],):
        return
    time_axis, advice = 1 - batch_axis, ""
    if not lengths_shape:
        advice = (
            ". To reverse all lines by one length, call `reverse_subsequences` with "
            f"lengths of shape {(1,) * len(shape)}"
        )
    elif lengths_shape == (shape[time_axis],):
        advice = f". If the batch is dimension {time_axis}, pass batch_axis={time_axis}"
    elif (
        shape[batch_axis] in lengths_shape
        and lengths_shape.count(1) >= len(lengths_shape) - 1
    ):
        advice = ". Pass `jnp.ravel(sequence_lens)`"
    raise ValueError(
        f"reverse_sequence: `sequence_lens` must have shape ({shape[batch_axis]},), "
        f"the size of `input` along {batch_axis=}; got {lengths_shape}{advice}"
    )


def require_countable(function: str, axis: str, size: Any, name: str = "input") -> None:
    """Refuses lines whose size does not fit 32 bits, as DirectML's sizes do."""
    if not jax.export.is_symbolic_dim(size) and size >= 2**32:
        raise ValueError(
            f"{function}: `{name}` must have fewer than 2^32 elements along {axis}; "
            f"got {size}"
        )


def clamp(lengths: jax.Array, size: Any) -> jax.Array:
    """The lengths in [0, size], as int32, or as uint32 if the size is 2^31 or more."""
    # 64-bit lengths may be used outside of the 64-bit mode in which they were made.
    with bitwise.full_width(lengths.dtype):
        if lengths.dtype.itemsize < 4:
            lengths = lengths.astype(jnp.int32)
        # One operation, since XLA on CPU divides a loop by the number of operations.
        is_small = not jax.export.is_symbolic_dim(size) and size < 2**31
        if is_small and lengths.dtype == jnp.int32:
            return lax.clamp(np.int32(0), lengths, np.int32(size))
        lengths = jnp.maximum(lengths, 0)
        if lengths.dtype == jnp.int32:
            lengths = lengths.astype(jnp.uint32)
        # Compared as unsigned or 64-bit: a uint32 of 2^31 must not turn negative.
        if jax.export.is_symbolic_dim(size):
            limit, position = jnp.asarray(size).astype(lengths.dtype), jnp.int32
        else:
            limit = lengths.dtype.type(size)
            position = jnp.int32 if size < 2**31 else jnp.uint32
        return jnp.minimum(lengths, limit).astype(position)
