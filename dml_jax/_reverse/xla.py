"""The reversal for any platform.

gather      one gather, whose indices have size 1 wherever the lengths do, so that
            whole blocks move; what XLA's partitioner can divide
scatter     the same seen from the source; for programs that are not partitioned
"""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import bitwise


def broadcast_shape(shape, lengths_shape, axis):
    """The shape of the result."""
    return tuple(
        size if dimension == axis or length_size == 1 else length_size
        for dimension, (size, length_size) in enumerate(
            zip(shape, lengths_shape, strict=True)
        )
    )


def of_bits(formulation, widest=16):
    """A way that moves the bits of floats up to a width, as one that takes floats."""

    @functools.wraps(formulation)
    def of_floats(x, lengths, axis):
        is_moved = bitwise.is_narrow_float(x.dtype) and bitwise.width(x.dtype) <= widest
        y = formulation(bitwise.to_bits(x) if is_moved else x, lengths, axis)
        return None if y is None else bitwise.from_bits(y, x.dtype)

    return of_floats


of_narrowest_bits = functools.partial(of_bits, widest=8)


@of_bits
def gather(x, lengths, axis):
    return take_along(x, source_index(x.shape, lengths, axis), axis)


def take_along(x, source, axis):
    with _wide_enough_for(source):
        return jnp.take_along_axis(x, source, axis, mode="promise_in_bounds")


def _wide_enough_for(index):
    """A context in which JAX can make signed indices of a uint32: with 64 bits."""
    return jax.enable_x64(True) if index.dtype == jnp.uint32 else nullcontext()


@of_bits
def scatter(x, lengths, axis):
    """With an index for each block that moves as a whole, in a single number."""
    target = source_index(x.shape, lengths, axis)
    shape = broadcast_shape(x.shape, target.shape, axis)
    if 0 in shape:
        return jnp.broadcast_to(x, shape)
    rank = 1 + max(d for d in range(x.ndim) if d == axis or target.shape[d] != 1)
    blocks = math.prod(shape[:rank])
    dtype = bitwise.index_dtype(blocks)
    with jax.enable_x64(True) if dtype == np.int64 else nullcontext():
        index = jnp.zeros(shape[:rank], dtype)
        for d in range(rank):
            stride = math.prod(shape[d + 1 : rank])
            place = lax.broadcasted_iota(dtype, shape[:rank], d)
            if d == axis:
                place = target.reshape(target.shape[:rank]).astype(dtype)
            index = index + place * dtype.type(stride)
        x = jnp.broadcast_to(x, shape).reshape(blocks, 1, math.prod(shape[rank:]))
        # In the form to which XLA would bring other ones, by a copy.
        dimensions = lax.ScatterDimensionNumbers(
            update_window_dims=(1, 2),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=(0,),
        )
        y = lax.scatter(
            jnp.zeros((blocks, x.shape[2]), x.dtype),
            index.reshape(blocks, 1),
            x,
            dimensions,
            unique_indices=True,
            mode="promise_in_bounds",
        )
    return y.reshape(shape)


def source_index(shape, lengths, axis):
    """Where along the axis each element comes from; by involution, also where it goes.

    Of size 1 wherever the lengths are, so that XLA moves whole blocks.
    """
    index_shape = (*lengths.shape[:axis], shape[axis], *lengths.shape[axis + 1 :])
    position = lax.broadcasted_iota(lengths.dtype, index_shape, axis)
    return _reflect(position, lengths)


def _reflect(position, lengths):
    return jnp.where(position < lengths, lengths - 1 - position, position)
