"""Formulations of a fill.

    constant    the value everywhere
    sequence    of integers: start + k * delta modulo 2^bits
                of floats: correctly rounded, by `float64_sums` or by `arithmetic`
    tangent     start + k * delta

On a GPU, stores take most of the time of a fill. XLA's kernels store the most bytes at
once if the fill is computed as one-dimensional parts, which are then concatenated
(`_shared/gpu.py`) and reshaped. The parameter `bounds` has the positions at which the
parts begin and end. It is None where a fill keeps its dimensions, and wherever XLA may
partition the program: with parts, every device would compute the whole fill.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._fill import arithmetic, float64_sums
from dml_jax._shared import bitwise
from dml_jax._shared.arguments import Size

Sizes: TypeAlias = tuple[Size, ...]
Bounds: TypeAlias = tuple[int, ...] | None


# Formulations -------------------------------------------------------------------------


def constant(sizes: Sizes, bounds: Bounds, platform: str, value: Array) -> Array:
    """The value everywhere, with every bit."""
    if bounds is not None:
        return bitwise.by_integers(functools.partial(_in_parts, sizes, bounds), value)
    bits = bitwise.to_bits(value)
    if platform == "cpu" and value.dtype == jnp.bfloat16:
        # LLVM broadcasts a bfloat16 by way of float32, which quiets NaNs and loses
        # subnormals. It broadcasts the result of an operation on integers as an
        # integer. Without the barrier, XLA computes the result for a known value.
        bits = lax.optimization_barrier(bits)
        bits = bits | bitwise.unknown_zeros(bits)
    return bitwise.from_bits(lax.broadcast(bits, sizes), value.dtype)


def _in_parts(sizes: Sizes, bounds: tuple[int, ...], value: Array) -> Array:
    # XLA would merge neighbouring parts that are equal. It compares barriers of floats
    # with subnormals flushed, so the value is an integer.
    values = [value, lax.optimization_barrier(value)]
    parts = [
        lax.broadcast(values[i % 2], (end - begin,))
        for i, (begin, end) in enumerate(itertools.pairwise(bounds))
    ]
    return _joined(parts, sizes)


def sequence(
    sizes: Sizes, bounds: Bounds, platform: str, start: Array, delta: Array
) -> Array:
    """`start + k * delta`: integers modulo 2^bits, and floats correctly rounded."""
    if jnp.issubdtype(start.dtype, jnp.integer):
        return _integers(sizes, bounds, start, delta)
    if jnp.issubdtype(start.dtype, jnp.floating):
        return _floats(sizes, bounds, platform, start, delta)
    return lax.complex(
        _floats(sizes, None, platform, start.real, delta.real),
        _floats(sizes, None, platform, start.imag, delta.imag),
    )


def _integers(sizes: Sizes, bounds: Bounds, start: Array, delta: Array) -> Array:
    """They are computed in uint32 or uint64 and truncated."""
    dtype = start.dtype
    word = np.dtype(np.uint64 if dtype.itemsize == 8 else np.uint32)
    start, delta = start.astype(word), delta.astype(word)

    return _by_position(
        sizes, bounds, word.type, lambda k: (k * delta + start).astype(dtype)
    )


def _floats(
    sizes: Sizes, bounds: Bounds, platform: str, start: Array, delta: Array
) -> Array:
    bits = (position_bound(sizes) - 1).bit_length()
    has_64_bits = platform in ("cpu", "cuda", "rocm") or start.dtype == jnp.float64
    with jax.enable_x64(True):
        if has_64_bits and float64_sums.suffice(start.dtype, bits):
            element = float64_sums.sequence(start, delta, bits, platform)
        else:
            word_bits = 64 if has_64_bits else 32
            element = arithmetic.sequence(start, delta, bits, word_bits)
        counter = np.uint32 if bits <= 32 else np.uint64
        return _by_position(sizes, bounds, counter, element)


def tangent(sizes: Sizes, start: Array, delta: Array) -> Array:
    """The tangent of a sequence, `start + k * delta`, in at least float32."""
    if jnp.issubdtype(start.dtype, jnp.complexfloating):
        # By components, since a TPU does not convert to complex128.
        return lax.complex(
            tangent(sizes, start.real, delta.real),
            tangent(sizes, start.imag, delta.imag),
        )
    wide = np.promote_types(start.dtype, np.float32)
    counter = np.uint32 if position_bound(sizes) <= 2**32 else np.uint64
    with jax.enable_x64(True):
        k = position(sizes, counter).astype(wide)
    return (start.astype(wide) + k * delta.astype(wide)).astype(start.dtype)


# Positions ----------------------------------------------------------------------------


def _by_position(
    sizes: Sizes, bounds: Bounds, counter: Any, element: Callable[[Array], Array]
) -> Array:
    """The array of `element(position)`, with positions of dtype `counter`."""
    if bounds is None:
        return element(position(sizes, counter))
    parts = [
        element(_iota((end - begin,), 0, counter) + _modulo(begin, counter))
        for begin, end in itertools.pairwise(bounds)
    ]
    return _joined(parts, sizes)


def _joined(parts: list[Array], sizes: Sizes) -> Array:
    """One-dimensional parts as an array of these sizes."""
    return lax.concatenate(parts, 0).reshape(sizes)


def position(sizes: Sizes, counter: Any) -> Array:
    """The row-major position of every element, modulo the range of `counter`.

    It is a sum over the dimensions instead of a reshaped iota, so that each device
    computes only the positions of its shard. Its dtype is an integer: XLA partitions an
    iota incorrectly if its dtype rounds the positions.
    """
    total = jnp.zeros(sizes, counter)
    for d in reversed(range(len(sizes))):
        stride = _modulo(math.prod(sizes[d + 1 :]), counter)
        total = total + _iota(sizes, d, counter) * stride
    return total


def _iota(sizes: Sizes, d: int, counter: Any) -> Array:
    """`lax.broadcasted_iota`, also for sizes of 2^31 and more.

    XLA multiplies the index of a shard by its size in 32 bits. So an iota of such a
    size is composed of two dimensions, of which XLA shards the first.
    """
    size = sizes[d]
    is_narrow = np.dtype(counter).itemsize < 8
    if jax.export.is_symbolic_dim(size) or size < 2**31 or is_narrow:
        return lax.broadcasted_iota(counter, sizes, d)
    columns = 2 ** (size.bit_length() - 31)
    shape = (-(-size // columns), columns)
    row, column = (lax.broadcasted_iota(counter, shape, axis) for axis in (0, 1))
    index = (row * counter(columns) + column).reshape(-1)
    index = index if index.size == size else index[:size]
    return lax.broadcast_in_dim(index, sizes, (d,))


def _modulo(size: Size, counter: Any) -> Any:
    """A size, which may be symbolic, modulo the range of `counter`, in that dtype."""
    if jax.export.is_symbolic_dim(size):
        return jnp.asarray(size).astype(counter)
    return np.uint64(size).astype(counter)


def position_bound(sizes: Sizes) -> int:
    """A number above all positions; 2^32 for symbolic sizes."""
    total = math.prod(sizes)
    return 2**32 if jax.export.is_symbolic_dim(total) else total
