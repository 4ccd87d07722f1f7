"""Formulations of the reversal for GPUs.

    split_stores          four gathers, concatenated, so that each thread stores more
    packed_u32            rows of bytes, gathered as 32-bit words
    shared_memory_tiles   one length per column: a kernel for Hopper GPUs
    packed_copy           rows and short steps: a kernel for Hopper GPUs
    transposed            one length per column: transposed to rows, and back

XLA fuses `split_stores` with surrounding operations, but not the others. Floats
narrower than 32 bits are passed to all of them as unsigned integers.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from dml_jax._reverse import shared_memory_kernel, xla
from dml_jax._shared import bitwise, lowering, packed_copy_kernel
from dml_jax._shared.gpu import (
    CACHE_BYTES,
    PARTS,
    PER_STORE,
    THREADS,
    divisible_dim,
    part_bounds,
)

_MIN_BYTES = 2**22  # below, the launches of kernels dominate
_SECTOR = 32  # bytes; the smallest read of memory


def split_stores(x: Array, lengths: Array, axis: int) -> Array | None:
    """Four gathers, one for each part of the result, concatenated in one kernel.

    A thread then stores 64 bytes of float32 elements instead of 16, or 16 bytes of
    uint8 elements instead of 4. Where lengths vary along the last dimension, reads
    dominate and this does not apply.
    """
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    total = math.prod(shape)
    if lengths.shape[-1] != 1 or total * x.dtype.itemsize < _MIN_BYTES:
        return None
    # Unless all threads get equal work, XLA emits scalar stores.
    is_byte = x.dtype.itemsize == 1
    if total % (PARTS * PER_STORE * (1 if is_byte else THREADS)):
        return None
    dimension = divisible_dim((*shape[:axis], 1, *shape[axis + 1 :]))
    if dimension is not None:
        operands = zip(_split(x, dimension), _split(lengths, dimension), strict=True)
        parts = [xla.gather(*operand, axis) for operand in operands]
    elif shape[axis] % PARTS == 0 and is_byte:
        dimension = axis
        sources = _split(xla.source_index(x.shape, lengths, axis), axis)
        parts = [xla.take_along_axis(x, source, axis) for source in sources]
    else:
        return None
    return lax.concatenate(parts, dimension)


def _split(x: Array, dimension: int) -> list[Array]:
    """Four parts of equal size, or four times `x` if it has size 1."""
    if x.shape[dimension] == 1:
        return [x] * PARTS
    bounds = part_bounds(x.shape[dimension])
    return [lax.slice_in_dim(x, *part, axis=dimension) for part in bounds]


def packed_u32(x: Array, lengths: Array, axis: int) -> Array | None:
    """For rows of bytes, which are loaded and stored as 32-bit words.

    The source of a word is not aligned. The two words that it overlaps are read as one
    of 64 bits and shifted; the first of them may precede the row. A word with both
    reversed and other bytes is blended.
    """
    if bitwise.width(x.dtype) != 8:
        return None
    if axis != x.ndim - 1 or x.shape[-1] % 4 or not 0 < x.shape[-1] < 2**31:
        return None
    with jax.enable_x64(True):
        words = bitwise.join(x, jnp.uint32)
        shape = (*[1] * (x.ndim - 1), words.shape[-1])
        first = 4 * lax.broadcasted_iota(jnp.int32, shape, x.ndim - 1)
        source = jnp.maximum(lengths - 4 - first, -4)
        padded = jnp.pad(words, [(0, 0)] * (x.ndim - 1) + [(1, 1)]).astype(jnp.uint64)
        pairs = padded[..., :-1] | (padded[..., 1:] << 32)
        pairs = xla.take_along_axis(pairs, (source >> 2) + 1, x.ndim - 1)
        # The gather is used once: XLA would materialize one with two uses.
        swapped = _swap_bytes(
            (pairs >> (8 * (source & 3)).astype(jnp.uint64)).astype(jnp.uint32)
        )
        bits = (8 * jnp.clip(lengths - first, 0, 4)).astype(jnp.uint64)
        is_reversed = ((jnp.uint64(1) << bits) - 1).astype(jnp.uint32)
        y = (swapped & is_reversed) | (words & ~is_reversed)
        return bitwise.split(y, x.dtype)


def _swap_bytes(word: Array) -> Array:
    """The four bytes of each word in reverse order."""
    word = ((word >> 8) & 0x00FF00FF) | ((word & 0x00FF00FF) << 8)
    return (word >> 16) | (word << 16)


def shared_memory_tiles(x: Array, lengths: Array, axis: int) -> Array | None:
    """For columns with lengths of their own: a kernel."""
    if x.shape != xla.broadcast_shape(x.shape, lengths.shape, axis):
        return None
    contiguous_bytes = xla.contiguous_bytes(x, lengths, axis)
    if contiguous_bytes >= _SECTOR // 2 or x.nbytes < _MIN_BYTES:
        return None
    shape = (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
    width = shared_memory_kernel.tile_width(*shape[1:], x.dtype)
    if width is None:
        return None
    lengths = jnp.broadcast_to(lengths, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    lengths = lengths.reshape(shape[0], shape[2]).astype(jnp.int32)
    y = shared_memory_kernel.reverse_tiles(x.reshape(shape), lengths, width)
    return y.reshape(x.shape)


def shared_memory_tiles_in_programs(
    x: Array, lengths: Array, axis: int
) -> Array | None:
    """`shared_memory_tiles` where it is faster although XLA cannot fuse it.

    A gather is faster if most of what it reads is in the cache.
    """
    if x.dtype.itemsize >= 4 and _read_bytes(x, axis) <= CACHE_BYTES:
        return None
    return shared_memory_tiles(x, lengths, axis)


def packed_copy(x: Array, lengths: Array, axis: int) -> Array | None:
    """For rows of elements of up to 32 bits, or of short steps: a kernel."""
    x = jnp.broadcast_to(x, xla.broadcast_shape(x.shape, lengths.shape, axis))
    if math.prod(lengths.shape[axis:]) != 1 or x.nbytes < _MIN_BYTES:
        return None
    time = x.shape[axis]
    lengths = jnp.broadcast_to(lengths, (*x.shape[:axis], *lengths.shape[axis:]))
    # XLA cannot fuse the clamp with the kernel; narrow lengths are stored and loaded
    # faster.
    lengths = lengths.reshape(-1).astype(jnp.uint8 if time < 2**8 else jnp.int32)
    shape = (lengths.size, time, math.prod(x.shape[axis + 1 :]))
    y = packed_copy_kernel.reverse(x.reshape(shape), lengths)
    return None if y is None else y.reshape(x.shape)


def transposed(x: Array, lengths: Array, axis: int) -> Array | None:
    """For columns with lengths of their own, in arrays larger than the cache.

    This does not apply to narrow elements, which XLA transposes more slowly than it
    gathers them.
    """
    is_narrow = x.dtype.itemsize < 4
    if is_narrow or lengths.shape[-1] == 1 or _read_bytes(x, axis) <= CACHE_BYTES:
        return None
    rows = lowering.materialize(jnp.moveaxis(x, axis, -1))
    lengths = jnp.moveaxis(lengths, axis, -1)
    y = split_stores(rows, lengths, x.ndim - 1)
    if y is None:
        y = xla.gather(rows, lengths, x.ndim - 1)
    return jnp.moveaxis(y, -1, axis)


def _read_bytes(x: Array, axis: int) -> int:
    """The bytes among which the sources of neighbouring elements may lie."""
    return math.prod(x.shape[axis:]) * x.dtype.itemsize
