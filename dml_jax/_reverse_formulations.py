"""Ways to compute a reversal: the same result, each the fastest somewhere.

    gather      one gather, whose indices have size 1 wherever the lengths do, so that
                whole blocks move; what XLA's partitioner can divide
    scatter     the same seen from the source; for programs that are not partitioned
    windows     CPU: the reversed part of a line is one window of it, read backwards
    tiles       CPU: neighbouring lines with lengths of their own, in columns that fit
                the cache
    prepared    CPU: the same lines by the gather, their lengths clamped once before it
    quarters    GPU: four gathers, so that a thread stores more
    words       GPU: bytes by the word
    strips      Hopper GPUs: neighbouring lines with lengths of their own, in a kernel
    runs        Hopper GPUs: rows, or short steps, in another
    transposed  GPU: the same lines, as rows

`gather` computes an index for every element, which a CPU does one at a time, and has a
thread of a GPU store four elements, however narrow. The others return None for layouts
that they are not made for. `gather`, `prepared` and `quarters` fuse with what is around
them, the rest does not. `_primitive` chooses.

All of them take operands of one rank that broadcast as the primitive's do, and an axis.
They move the bits of narrow floats, but `windows` and `tiles` read those of 16 bits as
floats, for which XLA does not widen them: a change of type before is a pass of its own.
"""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from dml_jax import _bits, _reverse_kernel, _runs_kernel


def broadcast_shape(shape, lengths_shape, axis):
    """The shape of the result."""
    return tuple(
        size if dimension == axis or length_size == 1 else length_size
        for dimension, (size, length_size) in enumerate(
            zip(shape, lengths_shape, strict=True)
        )
    )


def _of_bits(way, widest=16):
    """A way that moves the bits of floats up to a width, as one that takes floats."""

    @functools.wraps(way)
    def of_floats(x, lengths, axis):
        is_moved = _bits.is_narrow_float(x.dtype) and _bits.width(x.dtype) <= widest
        y = way(_bits.to_bits(x) if is_moved else x, lengths, axis)
        return None if y is None else _bits.from_bits(y, x.dtype)

    return of_floats


_of_narrowest_bits = functools.partial(_of_bits, widest=8)


@_of_bits
def gather(x, lengths, axis):
    return _take(x, _source(x.shape, lengths, axis), axis)


def _take(x, source, axis):
    with _wide_enough_for(source):
        return jnp.take_along_axis(x, source, axis, mode="promise_in_bounds")


def _wide_enough_for(index):
    """A context in which JAX can make signed indices of a uint32: with 64 bits."""
    return jax.enable_x64(True) if index.dtype == jnp.uint32 else nullcontext()


@_of_bits
def scatter(x, lengths, axis):
    """With an index for each block that moves as a whole, in a single number."""
    target = _source(x.shape, lengths, axis)
    shape = broadcast_shape(x.shape, target.shape, axis)
    if 0 in shape:
        return jnp.broadcast_to(x, shape)
    rank = 1 + max(d for d in range(x.ndim) if d == axis or target.shape[d] != 1)
    blocks = math.prod(shape[:rank])
    dtype = _bits.index_dtype(blocks)
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


def _source(shape, lengths, axis):
    """Where along the axis each element comes from; by involution, also where it goes.

    Of size 1 wherever the lengths are, so that XLA moves whole blocks.
    """
    index_shape = (*lengths.shape[:axis], shape[axis], *lengths.shape[axis + 1 :])
    position = lax.broadcasted_iota(lengths.dtype, index_shape, axis)
    return _reflect(position, lengths)


def _reflect(position, lengths):
    return jnp.where(position < lengths, lengths - 1 - position, position)


# CPU ----------------------------------------------------------------------------------

_SMALL = 2**14  # bytes, of which a loop takes no longer than to start another
_STEPS = {1: 6, 2: 4, 4: 2}  # elements of a step, by bytes: a gather moves more at once
_VECTOR = 32  # elements of a line, from which a mask that is read beats comparing
_FEW = 8  # elements of 32 bits, of which there is no loop to speak of
_CACHE_LINE = 64  # bytes
_CACHE = 2**22  # bytes, of which most stay in the second-level cache


@_of_narrowest_bits
def windows(x, lengths, axis):
    """For lines that lie next to their like: lengths only before the axis.

    With the lines one after the other, of T elements, the result within the length n of
    line r is the window of T elements that ends at r * T + n, read backwards:

        y[r, k] = x[r * T + n - 1 - k]  for k < n

    Its address is affine in k, so the loop becomes vector instructions. Of steps of b
    elements, the windows of all b elements are blended. The first line's window would
    start before the array, and the last one's could end beyond it: those are gathered.
    """
    time = x.shape[axis]
    x = jnp.broadcast_to(x, broadcast_shape(x.shape, lengths.shape, axis))
    if math.prod(lengths.shape[axis:]) != 1 or not _SMALL < x.nbytes < 2**31:
        return None
    lines, step = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    if step > _STEPS.get(x.dtype.itemsize, 1):
        return None
    if time * step <= (_VECTOR - 1 if x.dtype.itemsize < 4 else _FEW):
        return None
    lengths = jnp.broadcast_to(lengths, (*x.shape[:axis], *lengths.shape[axis:]))
    x_lines = apart(x).reshape(lines, time * step)
    y = _by_windows(x_lines, lengths.reshape(lines, 1), step)
    # Apart while it has lines: loops over steps would be too short.
    return apart(_bits.from_bits(y, x.dtype)).reshape(x.shape)


def _by_windows(x, lengths, step):
    """The bits of `windows`, for lines of one dimension and lengths in steps."""
    lines, size = x.shape
    line = lax.broadcasted_iota(jnp.int32, (lines, 1), 0)
    start = (line - 1) * size + lengths * step - (step - 1)
    y = _backwards(x, start, size)
    within = lax.iota(jnp.int32, size) % step
    for k in range(1, step):
        is_kth = apart((within == k).astype(jnp.uint8))[None] != 0
        y = jnp.where(is_kth, _backwards(x, start + 2 * k, size), y)
    y = jnp.where(_is_within(lengths * step, size), y, _bits.to_bits(x))
    for k in {0, lines - 1} if step > 1 else {0}:
        gathered = gather(
            x[k : k + 1].reshape(1, size // step, step), lengths[k : k + 1, :, None], 1
        )
        gathered = _bits.to_bits(gathered.reshape(1, size))
        y = jnp.where(line == k, apart(gathered), y)
    return y


def _backwards(x, starts, size):
    """The bits of the windows of `x` that begin at `starts`, from their ends."""
    starts = jnp.clip(starts, 0, x.size - size)
    return _bits.to_bits(lax.rev(_windows(x.reshape(-1), starts, size), (1,)))


def _windows(x, starts, size):
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,)
    )
    return lax.gather(x, starts, dimensions, (size,), mode="promise_in_bounds")


def _is_within(lengths, size):
    """Whether positions are below the lengths.

    Comparing takes 32 bits for each, and vectors no longer than those. Where lines are
    long enough, the answers are a window of as many yes as no: in bytes, since booleans
    that are read become no vectors.
    """
    if size < _VECTOR:
        return lax.broadcasted_iota(jnp.int32, (1, size), 1) < lengths
    answers = apart((lax.iota(jnp.int32, 2 * size) < size).astype(jnp.uint8))
    return _windows(answers, size - lengths, size) != 0


@_of_narrowest_bits
def tiles(x, lengths, axis):
    """For lines side by side, with lengths of their own: too far apart for the cache.

    Neighbouring elements then come from distant rows, and a line of the cache is gone
    before its other elements are asked for. Columns of a cache line's width are copied
    out, reversed, and copied back.
    """
    x = jnp.broadcast_to(x, broadcast_shape(x.shape, lengths.shape, axis))
    width = _CACHE_LINE // x.dtype.itemsize
    columns = math.prod(x.shape[axis + 1 :])
    varying = [d for d in range(axis + 1, x.ndim) if lengths.shape[d] != 1]
    if not varying or columns % width:
        return None
    block = math.prod(x.shape[varying[-1] + 1 :]) * x.dtype.itemsize
    table = x.shape[axis] * columns * x.dtype.itemsize
    if block >= _CACHE_LINE or table <= _CACHE:
        return None
    shape = (math.prod(x.shape[:axis]), x.shape[axis], columns // width, width)
    lengths = jnp.broadcast_to(
        lengths, (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    ).reshape(shape[0], shape[2], 1, width)
    y = gather(apart(x.reshape(shape).swapaxes(1, 2)), lengths, 2)
    return apart(y).swapaxes(1, 2).reshape(x.shape)


@_of_bits
def prepared(x, lengths, axis):
    """For lines side by side: their lengths, read at every step, come from a clamp."""
    if math.prod(lengths.shape[axis:]) == 1 or x.nbytes <= _SMALL:
        return None
    return gather(x, apart(lengths), axis)


def apart(x):
    """`x`, computed apart: fused with more, these loops cannot be made of vectors.

    What is in memory already is not copied.
    """
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


# GPU ----------------------------------------------------------------------------------

_WORTHWHILE = 2**22  # bytes; with fewer, launching the kernels takes the time
_THREADS = 128  # in a block of what XLA launches
_GPU_CACHE = 2**25  # bytes
_SECTOR = 32  # bytes; no read of memory is of fewer


@_of_bits
def quarters(x, lengths, axis):
    """Four gathers of a quarter each, concatenated, in one kernel.

    A thread stores four elements of each instead of four in all: 64 bytes of float32
    and 16 of an 8-bit dtype, where 16 and 4 leave bandwidth unused. Not for lengths
    along the last dimension, whose reads are what takes the time.
    """
    shape = broadcast_shape(x.shape, lengths.shape, axis)
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
        parts = [gather(*part, axis) for part in zip(x, lengths, strict=True)]
    elif shape[axis] % 4 == 0 and is_byte:
        dimension = axis
        sources = _split(_source(x.shape, lengths, axis), axis)
        parts = [_take(x, source, axis) for source in sources]
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


@_of_bits
def words(x, lengths, axis):
    """For rows of single bytes: whole words of four, fetched and stored as such."""
    if _bits.width(x.dtype) != 8:
        return None
    if axis != x.ndim - 1 or x.shape[-1] % 4 or not 0 < x.shape[-1] < 2**31:
        return None
    with jax.enable_x64(True):
        y = _by_unaligned_words(_bits.join(x, jnp.uint32), lengths)
        return _bits.split(y, x.dtype)


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
    pairs = _take(pairs, (source >> 2) + 1, x.ndim - 1)
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


@_of_bits
def strips(x, lengths, axis):
    """For lines side by side, with lengths of their own: a kernel."""
    varying = [d for d in range(axis + 1, x.ndim) if lengths.shape[d] != 1]
    if not varying or x.nbytes < _WORTHWHILE:
        return None
    if x.shape != broadcast_shape(x.shape, lengths.shape, axis):
        return None
    block = math.prod(x.shape[varying[-1] + 1 :]) * x.dtype.itemsize
    if block >= _SECTOR // 2:
        return None
    shape = (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
    width = _reverse_kernel.strip_width(*shape[1:], x.dtype)
    if width is None:
        return None
    lengths = jnp.broadcast_to(lengths, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    lengths = lengths.reshape(shape[0], shape[2]).astype(jnp.int32)
    return _reverse_kernel.reverse_strips(x.reshape(shape), lengths, width).reshape(
        x.shape
    )


@_of_bits
def fused_strips(x, lengths, axis):
    """`strips` where it is faster even if what is around it becomes loops of their own.

    Not where a gather finds most of what it reads in the cache.
    """
    if x.dtype.itemsize >= 4 and _table(x, axis) <= _GPU_CACHE:
        return None
    return strips(x, lengths, axis)


@_of_bits
def runs(x, lengths, axis):
    """For rows of elements of up to 32 bits, or of short steps: a kernel."""
    x = jnp.broadcast_to(x, broadcast_shape(x.shape, lengths.shape, axis))
    if math.prod(lengths.shape[axis:]) != 1 or x.nbytes < _WORTHWHILE:
        return None
    time = x.shape[axis]
    lengths = jnp.broadcast_to(lengths, (*x.shape[:axis], *lengths.shape[axis:]))
    # As narrow as can be, since they are clamped, and so written, before the kernel.
    lengths = lengths.reshape(-1).astype(jnp.uint8 if time < 2**8 else jnp.int32)
    shape = (lengths.size, time, math.prod(x.shape[axis + 1 :]))
    y = _runs_kernel.reverse_rows(x.reshape(shape), lengths)
    return None if y is None else y.reshape(x.shape)


@_of_bits
def transposed(x, lengths, axis):
    """For lines side by side, with lengths of their own, where the cache is no help.

    Not for narrow elements, which XLA transposes more slowly than it gathers.
    """
    if x.dtype.itemsize < 4 or lengths.shape[-1] == 1 or _table(x, axis) <= _GPU_CACHE:
        return None
    rows = apart(jnp.moveaxis(x, axis, -1))
    lengths = jnp.moveaxis(lengths, axis, -1)
    y = quarters(rows, lengths, x.ndim - 1)
    if y is None:
        y = gather(rows, lengths, x.ndim - 1)
    return jnp.moveaxis(y, -1, axis)


def _table(x, axis):
    """The bytes among which the elements of a line are looked up."""
    return math.prod(x.shape[axis:]) * x.dtype.itemsize
