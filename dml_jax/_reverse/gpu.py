"""The reversal on a GPU.

    quarters    four gathers, so that a thread stores more
    words       bytes by the word
    strips      Hopper GPUs: neighbouring lines with lengths of their own, in a kernel
    runs        Hopper GPUs: rows, or short steps, in another
    transposed  the same lines, as rows

The gather has a thread store four elements, however narrow. These return None for
layouts that they are not made for. `split_stores` fuses with its neighbours, the
others do not.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from dml_jax._reverse import shared_memory_kernel, xla
from dml_jax._shared import bitwise, lowering, packed_copy_kernel

_WORTHWHILE = 2**22  # bytes; with fewer, launching the kernels takes the time
_THREADS = 128  # in a block of what XLA launches
_GPU_CACHE = 2**25  # bytes
_SECTOR = 32  # bytes; no read of memory is of fewer


@xla.of_bits
def split_stores(x, lengths, axis):
    """Four gathers of a quarter each, concatenated, in one kernel.

    A thread stores four elements of each instead of four in all: 64 bytes of float32
    and 16 of an 8-bit dtype, where 16 and 4 leave bandwidth unused. Not for lengths
    along the last dimension, whose reads are what takes the time.
    """
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    total = math.prod(shape)
    if lengths.shape[-1] != 1 or total * x.dtype.itemsize < _WORTHWHILE:
        return None
    # Where the last threads have less to do, none stores more than an element at once.
    is_byte = x.dtype.itemsize == 1
    if total % (4 * 4 * (1 if is_byte else _THREADS)):
        return None
    divisible = [d for d in range(x.ndim) if d != axis and shape[d] % 4 == 0]
    if divisible:
        dimension = divisible[0]
        x, lengths = _split(x, dimension), _split(lengths, dimension)
        parts = [xla.gather(*part, axis) for part in zip(x, lengths, strict=True)]
    elif shape[axis] % 4 == 0 and is_byte:
        dimension = axis
        sources = _split(xla.source_index(x.shape, lengths, axis), axis)
        parts = [xla.take_along(x, source, axis) for source in sources]
    else:
        return None
    return lax.concatenate(parts, dimension)


def _split(x, dimension):
    """Four parts of equal size, or four times what has size 1."""
    if x.shape[dimension] == 1:
        return [x] * 4
    size = x.shape[dimension] // 4
    return [
        lax.slice_in_dim(x, i * size, (i + 1) * size, axis=dimension) for i in range(4)
    ]


@xla.of_bits
def packed_u32(x, lengths, axis):
    """For rows of single bytes: whole words of four, fetched and stored as such."""
    if bitwise.width(x.dtype) != 8:
        return None
    if axis != x.ndim - 1 or x.shape[-1] % 4 or not 0 < x.shape[-1] < 2**31:
        return None
    with jax.enable_x64(True):
        y = _by_unaligned_words(bitwise.join(x, jnp.uint32), lengths)
        return bitwise.split(y, x.dtype)


def _by_unaligned_words(x, lengths):
    """Every word as one, read where its bytes stand and turned around.

    A read that is not aligned takes the two words it lies in, as one of 64 bits; the
    first may precede the row. The last reversed bytes share a word with the first of
    those that stay.
    """
    shape = (*[1] * (x.ndim - 1), x.shape[-1])
    first = 4 * lax.broadcasted_iota(jnp.int32, shape, x.ndim - 1)
    source = jnp.maximum(lengths - 4 - first, -4)
    both = [(0, 0)] * (x.ndim - 1) + [(1, 1)]
    padded = jnp.pad(x, both).astype(jnp.uint64)
    pairs = padded[..., :-1] | (padded[..., 1:] << 32)
    pairs = xla.take_along(pairs, (source >> 2) + 1, x.ndim - 1)
    # Shifted and cut in one chain: a gather that is used twice, XLA would store.
    turned = _turned(
        (pairs >> (8 * (source & 3)).astype(jnp.uint64)).astype(jnp.uint32)
    )

    bits = (8 * jnp.clip(lengths - first, 0, 4)).astype(jnp.uint64)
    is_reversed = ((jnp.uint64(1) << bits) - 1).astype(jnp.uint32)
    return (turned & is_reversed) | (x & ~is_reversed)


def _turned(word):
    """The four bytes of a word in the other order."""
    word = ((word >> 8) & 0x00FF00FF) | ((word & 0x00FF00FF) << 8)
    return (word >> 16) | (word << 16)


@xla.of_bits
def shared_memory_tiles(x, lengths, axis):
    """For lines side by side, with lengths of their own: a kernel."""
    varying = [d for d in range(axis + 1, x.ndim) if lengths.shape[d] != 1]
    if not varying or x.nbytes < _WORTHWHILE:
        return None
    if x.shape != xla.broadcast_shape(x.shape, lengths.shape, axis):
        return None
    block = math.prod(x.shape[varying[-1] + 1 :]) * x.dtype.itemsize
    if block >= _SECTOR // 2:
        return None
    shape = (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
    width = shared_memory_kernel.strip_width(*shape[1:], x.dtype)
    if width is None:
        return None
    lengths = jnp.broadcast_to(lengths, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    lengths = lengths.reshape(shape[0], shape[2]).astype(jnp.int32)
    return shared_memory_kernel.reverse_strips(
        x.reshape(shape), lengths, width
    ).reshape(x.shape)


@xla.of_bits
def fused_shared_memory_tiles(x, lengths, axis):
    """`shared_memory_tiles` where it is faster even though its neighbours do not fuse.

    Not where a gather finds most of what it reads in the cache.
    """
    if x.dtype.itemsize >= 4 and _table(x, axis) <= _GPU_CACHE:
        return None
    return shared_memory_tiles(x, lengths, axis)


@xla.of_bits
def packed_copy(x, lengths, axis):
    """For rows of elements of up to 32 bits, or of short steps: a kernel."""
    x = jnp.broadcast_to(x, xla.broadcast_shape(x.shape, lengths.shape, axis))
    if math.prod(lengths.shape[axis:]) != 1 or x.nbytes < _WORTHWHILE:
        return None
    time = x.shape[axis]
    lengths = jnp.broadcast_to(lengths, (*x.shape[:axis], *lengths.shape[axis:]))
    # As narrow as can be, since they are clamped, and so written, before the kernel.
    lengths = lengths.reshape(-1).astype(jnp.uint8 if time < 2**8 else jnp.int32)
    shape = (lengths.size, time, math.prod(x.shape[axis + 1 :]))
    y = packed_copy_kernel.reverse_rows(x.reshape(shape), lengths)
    return None if y is None else y.reshape(x.shape)


@xla.of_bits
def transposed(x, lengths, axis):
    """For lines side by side, with lengths of their own, where the cache is no help.

    Not for narrow elements, which XLA transposes more slowly than it gathers.
    """
    if x.dtype.itemsize < 4 or lengths.shape[-1] == 1 or _table(x, axis) <= _GPU_CACHE:
        return None
    rows = lowering.materialize(jnp.moveaxis(x, axis, -1))
    lengths = jnp.moveaxis(lengths, axis, -1)
    y = split_stores(rows, lengths, x.ndim - 1)
    if y is None:
        y = xla.gather(rows, lengths, x.ndim - 1)
    return jnp.moveaxis(y, -1, axis)


def _table(x, axis):
    """The bytes among which the elements of a line are looked up."""
    return math.prod(x.shape[axis:]) * x.dtype.itemsize
