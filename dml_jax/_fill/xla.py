"""Fills by XLA's operations.

    constant    the value everywhere
    sequence    of integers: start + k * delta modulo 2^bits
                of floats: start + k * delta in float64, converted once
"""

from __future__ import annotations

import functools
import math
from typing import Any, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared import bitwise
from dml_jax._shared.arguments import Size

Sizes: TypeAlias = tuple[Size, ...]


def constant(sizes: Sizes, value: Array) -> Array:
    """The value everywhere, with every bit."""
    if bitwise.is_narrow_float(value.dtype):
        return _narrow_constant(sizes, value)
    return lax.full(sizes, value)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _narrow_constant(sizes: Sizes, value: Array) -> Array:
    bits = bitwise.to_bits(value)
    if value.dtype == jnp.bfloat16:
        # LLVM broadcasts a bfloat16 by way of float32, which quiets NaNs and loses
        # subnormals. It broadcasts the result of an operation on integers as an
        # integer. Without the barrier, XLA computes the result for a known value.
        bits = lax.optimization_barrier(bits)
        bits = bits | bitwise.unknown_zeros(bits)
    return bitwise.from_bits(lax.full(sizes, bits), value.dtype)


@_narrow_constant.defjvp
def _narrow_constant_jvp(sizes: Sizes, primals: Any, tangents: Any) -> Any:
    (value,), (tangent,) = primals, tangents
    # So that the cotangent is a sum in float32.
    wide = lax.full(sizes, tangent.astype(np.float32))
    return _narrow_constant(sizes, value), wide.astype(value.dtype)


# Sequences ----------------------------------------------------------------------------


def sequence(sizes: Sizes, start: Array, delta: Array) -> Array:
    """`start + k * delta`, in the dtype of both; their dimensions lead."""
    dtype = start.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.complex(
            sequence(sizes, start.real, delta.real),
            sequence(sizes, start.imag, delta.imag),
        )
    word = np.dtype(np.uint64 if dtype.itemsize == 8 else np.uint32)
    if jnp.issubdtype(dtype, jnp.floating):
        word = np.dtype(np.float64)
    shape = (*np.broadcast_shapes(start.shape, delta.shape), *sizes)
    with bitwise.full_width(word):
        start, delta = (
            lax.expand_dims(x, range(x.ndim, x.ndim + len(sizes)))
            for x in (start, delta)
        )
        k, start, delta = (
            jnp.broadcast_to(x.astype(word), shape)
            for x in (position(sizes), start, delta)
        )
        # `jnp.add` would report NaNs under `jax_error_checking_behavior_nan`.
        return _converted(lax.add(start, lax.mul(k, delta)), dtype)


def _converted(x: Array, dtype: np.dtype) -> Array:
    """`x` in another dtype, rounded once to 16 bits."""
    if dtype in (jnp.bfloat16, jnp.float16):
        # XLA converts float64 to 16 bits by way of float32, which rounds, too. TPUs
        # have no `reduce_precision` of float64.
        bits = int(jnp.finfo(dtype).nmant)
        x = lax.platform_dependent(
            x, tpu=lambda x: x, default=lambda x: lax.reduce_precision(x, 11, bits)
        )
    return x.astype(dtype)


def position(sizes: Sizes) -> Array:
    """The row-major position of every element, in uint32 or, if it counts more, uint64.

    It is a sum over the dimensions instead of a reshaped iota, so that each device
    computes only the positions of its shard. Its dtype is an integer: XLA partitions an
    iota incorrectly if its dtype rounds the positions.
    """
    count = math.prod(sizes)
    is_long = jax.export.is_symbolic_dim(count) or count > 2**32
    counter = np.dtype(np.uint64 if is_long else np.uint32)
    with jax.enable_x64(True):
        total, stride = lax.full(sizes, 0, counter), jnp.ones((), counter)
        for d in reversed(range(len(sizes))):
            total = total + _iota(sizes, d, counter) * stride
            # By factors, since JAX multiplies symbolic sizes in 32 bits.
            stride = stride * jnp.asarray(sizes[d]).astype(counter)
    return total


def _iota(sizes: Sizes, d: int, counter: np.dtype) -> Array:
    """`lax.broadcasted_iota`, also for sizes of 2^31 and more.

    XLA multiplies the index of a shard by its size in 32 bits. So an iota of such a
    size is composed of two dimensions, of which XLA shards the first.
    """
    size = sizes[d]
    if jax.export.is_symbolic_dim(size) or size < 2**31 or counter == np.uint32:
        return lax.broadcasted_iota(counter, sizes, d)
    columns = 2 ** (size.bit_length() - 31)
    shape = (-(-size // columns), columns)
    row, column = (lax.broadcasted_iota(counter, shape, axis) for axis in (0, 1))
    index = (row * counter.type(columns) + column).reshape(-1)[:size]
    return lax.broadcast_in_dim(index, sizes, (d,))
