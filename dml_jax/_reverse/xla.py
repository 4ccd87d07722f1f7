"""The reversal in operations that XLA has on every platform.

    gather            defines what the operator computes; XLA partitions it well
                      where the reversed axis is not sharded
    rotate_and_flip   for TPUs, which gather single elements slowly, and for programs
                      that XLA partitions by itself along any axis
    scatter           one scatter of blocks, for programs that are not partitioned

Where the lengths have size 1 along a dimension, so have the indices. XLA then moves
whole blocks.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from dml_jax._shared import bitwise


def start_of_step(lengths_shape: tuple[int, ...], axis: int) -> int:
    """The first dimension of a step, a run of neighbours with one length."""
    varying = (d for d, size in enumerate(lengths_shape) if d == axis or size != 1)
    return 1 + max(varying)


def has_long_steps(
    shape: tuple[int, ...], lengths_shape: tuple[int, ...], axis: int
) -> bool:
    """Whether a TPU gathers steps fast: they fill the 128 lanes of a register."""
    start = start_of_step(lengths_shape, axis)
    return math.prod(jnp.broadcast_shapes(shape, lengths_shape)[start:]) >= 128


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


def rotate_and_flip(x: Array, lengths: Array, axis: int, max_shards: int) -> Array:
    """The reversal as a rotation by the lengths, and a flip.

    XLA partitions a gather along a sharded axis as an all-gather. These operations it
    partitions into exchanges of whole blocks; single elements move only within a block.
    The number of shards divides the number of blocks. Wide floats are not moved as
    integers, which would take more memory: exchanges keep their bits.
    """
    size = x.shape[axis]
    dtype, x = x.dtype, bitwise.to_bits(x)
    x = jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, lengths.shape))
    if size < 2:
        return bitwise.from_bits(x, dtype)
    # A short axis has blocks of one step: padding it to a multiple of the shards could
    # enlarge it several times.
    is_short = size % max_shards != 0 and size < 4 * max_shards
    blocks = size if is_short else max_shards
    padding = [(0, -size % blocks if d == axis else 0, 0) for d in range(x.ndim)]
    padded = lax.pad(x, jnp.zeros((), x.dtype), padding)
    steps = padded.shape[axis] // blocks
    divided = (*x.shape[:axis], blocks, steps, *x.shape[axis + 1 :])
    y = _rotate_and_flip_blocks(padded.reshape(divided), lengths, axis)
    y = lax.slice_in_dim(y.reshape(padded.shape), 0, size, axis=axis)
    y = jnp.where(_position(x, axis, lengths.dtype) < lengths, y, x)
    return bitwise.from_bits(y, dtype)


def _rotate_and_flip_blocks(x: Array, lengths: Array, axis: int) -> Array:
    """The reversal of a time axis that is split in two.

    `x` has blocks along `axis`, and the steps of a block along `axis + 1`. Elements
    move first by whole blocks, then within a block.
    """
    within, size = axis + 1, lengths.dtype.type(x.shape[axis + 1])
    lengths = lax.expand_dims(lengths, (axis,))
    block, rest = lengths // size, lengths % size
    position = _position(x, within, lengths.dtype)
    x = _rotate(x, jnp.where(position < rest, block + 1, block), axis)
    if has_long_steps(x.shape, lengths.shape, within):
        source = rest - 1 - position
        source = jnp.where(position < rest, source, source + size)
        return take_along_axis(lax.rev(x, (axis,)), source, within)
    x = _rotate(x, rest, within)
    # Without the barrier XLA flips before it rotates, and does not find the rotations.
    return lax.rev(lax.optimization_barrier(x), (axis, within))


def _rotate(x: Array, distance: Array, axis: int) -> Array:
    """y[k] = x[(k + distance) % size], as a rotation for each bit of the distance."""
    for bit in range((x.shape[axis] - 1).bit_length()):
        x = jnp.where(distance >> bit & 1, jnp.roll(x, -(2**bit), axis), x)
    return x


def _position(x: Array, axis: int, dtype: DTypeLike) -> Array:
    shape = [size if d == axis else 1 for d, size in enumerate(x.shape)]
    return lax.broadcasted_iota(dtype, shape, axis)


def scatter(x: Array, lengths: Array, axis: int) -> Array:
    """The reversal as one scatter of blocks, each with one row-major index.

    If the indices need more than three times the memory of the result, the gather runs
    instead: XLA stores the indices of a scatter, and may copy the elements as well.
    """
    target = source_index(x.shape, lengths, axis)
    shape = jnp.broadcast_shapes(x.shape, target.shape)
    rank = start_of_step(lengths.shape, axis)
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
