"""Formulations of the reversal for GPUs.

    copied_chunks      one length for each line or for each long step: a kernel for
                       Hopper GPUs
    strips             lengths of their own for neighbouring columns or short steps:
                       another kernel
    transposed_gather  the same, where columns are too long, or there is no kernel
    gathered_parts     four gathers of up to 32 bits, where stores limit a single one

XLA fuses the gathers with surrounding operations, but not a kernel. A program that only
reverses is faster with a kernel. If an elementwise operation comes before or after, it
then becomes a separate loop, which reads and writes memory once more. By default a
kernel is chosen where it saves more in the first program than it costs in the second:

    gather - kernel > kernel + elementwise - gather

That holds for most strips, and not for the packed copy. With a memcpy as the unit of
time, for large random shapes on an H100 (`benchmarks/results/sweep-gpu.json`), the
packed copy alone takes 1.0 to 1.2. The gathered parts take 1.0 to 2.2, alone and beside
an elementwise operation. Strips alone take 1.0 to 2.0 where plain JAX's gather takes
1.9 to 23. `benchmarks/results/tables-gpu.json` has measurements for the sizes below.

Floats narrower than 32 bits are passed to the kernels as unsigned integers.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._reverse import shared_memory_kernel, xla
from dml_jax._shared import bitwise, lowering, packed_copy_kernel
from dml_jax._shared.chunk_kernel import CHUNK, WORD
from dml_jax._shared.gpu import PARTS, PER_STORE

_MAX_LENGTHS = 2**31 - 2**16  # their indices have 32 bits with a sign
_MIN_BYTES = 2**22  # below, the launches of kernels dominate
_SECTOR = 32  # bytes; the smallest read of memory
_SHORT_STEP = 8  # bytes; XLA gathers longer ones faster than it transposes twice
# The bytes from which on the packed copy is faster than strips, by time. The first
# limit applies if the rows of a table are whole sectors, the second one if not. Up to
# these times the rows of strips have at least 128, 96, 64 and 32 bytes.
_LONG_STEPS = {1536: (256, 128), 2048: (128, 64), 3456: (128, 32), 6912: (64, 16)}
_LONG_STEP_WITHIN_WORDS = 64  # if rows begin within words
_LOCAL_TABLE = 2**18  # bytes; a cache holds its sectors until all have been read
# Steps; with more, strips are slow if rows of the table share sectors. The second limit
# is that of calls, which need not pay for an elementwise operation.
_LONG_TIME, _LONG_TIME_OF_CALLS = 2048, 3456
# In bytes, by the size of an element. Programs gather from arrays below the first size
# and from tables of up to the second one, since their sectors stay in a cache.
_CACHED_ARRAY = {1: 24 * 2**20, 2: 24 * 2**20, 4: 48 * 2**20, 8: 48 * 2**20}
_SMALL_TABLE = {1: 2**13, 2: 2**13, 4: 2**15, 8: 2**23}
_CACHED_TABLE = 2**25  # bytes; words are gathered from it faster than transposed twice
_TINY_TABLE = 2**8  # bytes; smaller tables are gathered faster than by strips
_FEW_COLUMNS = 24  # XLA's gather reads few sectors for neighbours among so many
_FEW_COLUMNS_OF_16_BITS = 8  # with more, one gather is faster than four parts
_SHORT_ROW = 56  # elements; in shorter rows, one gather is faster than four parts
_MAX_RATIO = 1.25  # of the last part to the others


class _Lines(NamedTuple):
    """Lines of T steps of C elements: `x` [R, T, L, C] and lengths [R * L]."""

    x: Array
    lengths: Array
    shape: tuple[int, ...]  # of the result

    @property
    def step_bytes(self) -> int:
        return self.x.shape[3] * self.x.dtype.itemsize

    @property
    def are_copied(self) -> bool:
        """Whether the packed copy is faster than strips.

        It reads all sectors that contain parts of a step. Strips read all sectors that
        contain parts of their rows.
        """
        _, time, count, _ = self.x.shape
        step = self.step_bytes
        if count == 1 or step % _SECTOR == 0:
            return True
        if time * count * step <= _LOCAL_TABLE:
            return step >= _SECTOR
        limits = (limit for most, limit in _LONG_STEPS.items() if time <= most)
        of_sectors, of_others = next(limits, (CHUNK, CHUNK))
        common = math.gcd(count * step, _SECTOR)
        if common == _SECTOR:
            return step >= of_sectors
        if common < WORD:
            of_others = min(of_others, _LONG_STEP_WITHIN_WORDS)
        return step >= of_others


def _lines(x: Array, lengths: Array, axis: int) -> _Lines | None:
    """The operands of the kernels, or None if they do not pay."""
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    if x.dtype.kind not in "iuf" or math.prod(shape) * x.dtype.itemsize < _MIN_BYTES:
        return None
    if shape[axis] >= 2**31:  # lengths of 32 bits would have no sign
        return None
    varying = [d for d in range(axis + 1, x.ndim) if lengths.shape[d] != 1]
    end = max(varying, default=axis) + 1
    outer, inner, step = shape[:axis], shape[axis + 1 : end], shape[end:]
    lengths = jnp.broadcast_to(lengths, (*outer, 1, *inner, *[1] * len(step)))
    x = jnp.broadcast_to(x, shape).reshape(
        math.prod(outer), shape[axis], math.prod(inner), math.prod(step)
    )
    # XLA stores the clamped lengths for a kernel, which is faster if they are narrow.
    fits = (n for n in (np.uint8, np.uint16) if shape[axis] <= np.iinfo(n).max)
    lengths = lengths.reshape(-1).astype(next(fits, np.int32))
    return _Lines(x, lengths, shape)


def copied_chunks(x: Array, lengths: Array, axis: int) -> Array | None:
    """For one length for each line, and for long steps."""
    lines = _lines(x, lengths, axis)
    if lines is None or not lines.are_copied:
        return None
    y = packed_copy_kernel.reverse(lines.x, lines.lengths)
    return None if y is None else y.reshape(lines.shape)


def strips(x: Array, lengths: Array, axis: int) -> Array | None:
    """For columns or short steps with lengths of their own."""
    lines = _lines(x, lengths, axis)
    if lines is None or lines.are_copied or lines.lengths.size > _MAX_LENGTHS:
        return None
    batch, time, count, step = lines.x.shape
    columns, itemsize = count * step, x.dtype.itemsize
    if time * columns * itemsize < _TINY_TABLE:
        return None
    layout = shared_memory_kernel.layout_for(time, columns, itemsize)
    if layout is None:
        return None
    if not layout.is_table and _is_faster_gathered(time, columns, itemsize):
        return None
    tables = lines.x.reshape(batch, time, columns)
    y = shared_memory_kernel.reverse(tables, lines.lengths, step, layout)
    return y.reshape(lines.shape)


def strips_in_programs(x: Array, lengths: Array, axis: int) -> Array | None:
    """`strips`, where XLA's gather is slow."""
    is_slow = _reads_many_sectors(x, lengths, axis)
    return strips(x, lengths, axis) if is_slow else None


def transposed_gather(x: Array, lengths: Array, axis: int) -> Array | None:
    """For columns with lengths of their own, where XLA's gather reads many sectors.

    XLA stores the transposed array, and transposes the gather's result as it stores it.
    """
    lines = _lines(x, lengths, axis)
    is_slow = _reads_many_sectors(x, lengths, axis)
    if lines is None or not is_slow or lines.step_bytes > _SHORT_STEP:
        return None
    is_cached = math.prod(lines.x.shape[1:]) * x.dtype.itemsize <= _CACHED_TABLE
    if is_cached and x.dtype.itemsize >= WORD:
        return None
    table = lowering.materialize(jnp.moveaxis(lines.x, 1, -1))
    # Without the barrier XLA fuses the transpose of narrow elements with the gather.
    table = lax.optimization_barrier(table)
    batch, _, count, _ = lines.x.shape
    y = xla.gather(table, lines.lengths.reshape(batch, count, 1, 1), 3)
    return jnp.moveaxis(y, -1, 1).reshape(lines.shape)


def gathered_parts(x: Array, lengths: Array, axis: int) -> Array | None:
    """Four gathers in one kernel, which stores four parts.

    They divide the lines, or the steps of a single line.
    """
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    itemsize = x.dtype.itemsize
    if itemsize > WORD or math.prod(shape) * itemsize < _MIN_BYTES:
        return None
    if x.dtype != bool and bitwise.width(x.dtype) < 8:  # XLA packs them in bytes
        return None
    if _is_faster_in_one_part(x, lengths, axis):
        return None
    count = math.prod(shape[:axis])
    lengths = jnp.broadcast_to(lengths, (*shape[:axis], *lengths.shape[axis:]))
    lengths = lengths.reshape(count, *lengths.shape[axis:])
    x = jnp.broadcast_to(x, shape).reshape(count, *shape[axis:])
    divided = 0 if count > 1 else 1
    bounds = _bounds_of_parts(x.shape, divided)
    if bounds is None:
        return None
    source = xla.source_index(x.shape, lengths, 1)

    def part(begin: int, end: int) -> Array:
        lines = lax.slice_in_dim(x, begin, end) if divided == 0 else x
        index = lax.slice_in_dim(source, begin, end, axis=divided)
        # XLA stores several elements at once if the parts have one dimension.
        return xla.take_along_axis(lines, index, 1).reshape(-1)

    parts = itertools.starmap(part, itertools.pairwise(bounds))
    return lax.concatenate(list(parts), 0).reshape(shape)


def _is_faster_gathered(time: int, columns: int, itemsize: int) -> bool:
    """Whether a gather is faster than strips that share sectors.

    The gather reads these sectors again from a cache. If there are few columns, the
    first-level cache holds them.
    """
    row_bytes = columns * itemsize
    if itemsize != WORD or row_bytes % _SECTOR == 0:
        return False
    is_long = time > _LONG_TIME_OF_CALLS and time * row_bytes <= _CACHED_TABLE
    return is_long or columns <= _FEW_COLUMNS


def _is_faster_in_one_part(x: Array, lengths: Array, axis: int) -> bool:
    """Whether one gather is faster than four, since loads limit it, and not stores."""
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    itemsize, columns = x.dtype.itemsize, math.prod(shape[axis + 1 :])
    if xla.contiguous_bytes(x, lengths, axis) < _SECTOR:
        if itemsize == 1:
            return not _is_gathered_fast(x, lengths, axis)
        return itemsize == WORD or columns > _FEW_COLUMNS_OF_16_BITS
    if math.prod(shape) % PER_STORE != 0:
        return False
    if itemsize == WORD and math.prod(lengths.shape[axis + 1 :]) > 1:
        return True
    return itemsize > 1 and columns == 1 and shape[axis] < _SHORT_ROW


def _bounds_of_parts(shape: tuple[int, ...], d: int) -> list[int] | None:
    """Where the parts along a dimension begin and end, if they are of similar size."""
    # A part begins where XLA can store several elements at once.
    unit = PER_STORE // math.gcd(math.prod(shape[d + 1 :]), PER_STORE)
    size = shape[d] // (PARTS * unit) * unit
    *_, last = bounds = [*(i * size for i in range(PARTS)), shape[d]]
    is_similar = last - bounds[-2] <= _MAX_RATIO * size
    return bounds if is_similar else None


def _reads_many_sectors(x: Array, lengths: Array, axis: int) -> bool:
    """Whether XLA's gather reads many more sectors than strips do, from memory."""
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    itemsize = x.dtype.itemsize
    if math.prod(shape) * itemsize < _CACHED_ARRAY[min(itemsize, 8)]:
        return False
    row_bytes = math.prod(shape[axis + 1 :]) * itemsize
    if shape[axis] > _LONG_TIME and row_bytes % _SECTOR != 0:
        is_cached = itemsize == WORD and shape[axis] * row_bytes <= _CACHED_TABLE
        if is_cached or xla.contiguous_bytes(x, lengths, axis) >= CHUNK:
            return False
    return not _is_gathered_fast(x, lengths, axis)


def _is_gathered_fast(x: Array, lengths: Array, axis: int) -> bool:
    """Whether XLA's gather reads few sectors, or reads them again from a cache."""
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    itemsize, columns = x.dtype.itemsize, math.prod(shape[axis + 1 :])
    return (
        xla.contiguous_bytes(x, lengths, axis) >= _SECTOR
        or columns <= _FEW_COLUMNS
        or shape[axis] * columns * itemsize <= _SMALL_TABLE[min(itemsize, 8)]
    )
