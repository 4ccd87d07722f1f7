"""The reversal in operations that XLA has on every platform.

    gather    defines what the operator computes; XLA partitions it well
    scatter   the same as a scatter, for programs that are not partitioned

Where the lengths have size 1 along a dimension, so have the indices. XLA then moves
whole blocks.
"""

from __future__ import annotations

import math
from typing import Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared import bitwise


class Formulation(Protocol):
    """Computes the reversal, or returns None if it does not apply to the operands."""

    def __call__(self, x: Array, lengths: Array, axis: int) -> Array | None: ...


def broadcast_shape(
    shape: tuple[int, ...], lengths_shape: tuple[int, ...], axis: int
) -> tuple[int, ...]:
    """The shape of the result: `lengths` broadcasts with `x` except along `axis`."""
    return tuple(
        size if dimension == axis or length_size == 1 else length_size
        for dimension, (size, length_size) in enumerate(
            zip(shape, lengths_shape, strict=True)
        )
    )


def contiguous_bytes(x: Array, lengths: Array, axis: int) -> float:
    """The bytes of consecutive elements with one length, in one step or all of them."""
    varying = [d for d in range(axis + 1, x.ndim) if lengths.shape[d] != 1]
    if not varying:
        return math.inf
    return math.prod(x.shape[varying[-1] + 1 :]) * x.dtype.itemsize


def gather(x: Array, lengths: Array, axis: int) -> Array:
    """The reversal as one gather."""
    bits = bitwise.to_bits(x)
    y = take_along_axis(bits, source_index(x.shape, lengths, axis), axis)
    return bitwise.from_bits(y, x.dtype)


def take_along_axis(x: Array, source: Array, axis: int) -> Array:
    """`jnp.take_along_axis` for indices that are in bounds and may be uint32."""
    # JAX makes the indices signed, and uint32 then needs 64-bit mode.
    with bitwise.full_width(np.promote_types(source.dtype, np.int32)):
        return jnp.take_along_axis(x, source, axis, mode="promise_in_bounds")


def source_index(shape: tuple[int, ...], lengths: Array, axis: int) -> Array:
    """The index along `axis` of each element's source.

    The reversal is an involution, so it is also the index of each element's target.
    """
    index_shape = (*lengths.shape[:axis], shape[axis], *lengths.shape[axis + 1 :])
    position = lax.broadcasted_iota(lengths.dtype, index_shape, axis)
    return jnp.where(position < lengths, lengths - 1 - position, position)


def scatter(x: Array, lengths: Array, axis: int) -> Array:
    """The reversal as one scatter of blocks, each with one row-major index.

    Where the indices need more than three times the memory of the result, it is the
    gather: XLA stores the indices of a scatter, and may copy the elements besides.
    """
    target = source_index(x.shape, lengths, axis)
    shape = broadcast_shape(x.shape, target.shape, axis)
    rank = 1 + max(d for d in range(x.ndim) if d == axis or target.shape[d] != 1)
    blocks = math.prod(shape[:rank])
    index_dtype = bitwise.index_dtype(blocks)
    bytes_of_result = math.prod(shape) * x.dtype.itemsize
    if blocks * index_dtype.itemsize > 3 * bytes_of_result or 0 in shape:
        return gather(x, lengths, axis)
    dtype, x = x.dtype, bitwise.to_bits(x)
    with bitwise.full_width(index_dtype):
        index = jnp.zeros(shape[:rank], index_dtype)
        for d in range(rank):
            stride = math.prod(shape[d + 1 : rank])
            position = lax.broadcasted_iota(index_dtype, shape[:rank], d)
            if d == axis:
                position = target.reshape(target.shape[:rank]).astype(index_dtype)
            index = index + position * index_dtype.type(stride)
        x = jnp.broadcast_to(x, shape).reshape(blocks, 1, math.prod(shape[rank:]))
        # XLA converts other dimension numbers to these, with a copy.
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
    return bitwise.from_bits(y.reshape(shape), dtype)
