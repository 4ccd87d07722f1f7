"""Formulations of the reversal for GPUs: two kernels for Hopper GPUs, and a transpose.

    copied_chunks      one length for each line, or for consecutive elements of a step
    strips             lengths of their own for neighbouring columns
    transposed_gather  the same, where columns are too long, or there is no kernel

XLA fuses its gather with surrounding operations, but not a kernel. A program that only
reverses is faster with a kernel. If an elementwise operation comes before or after, it
then becomes a separate loop, which reads and writes memory once more. By default a
kernel is chosen where it saves more in the first program than it costs in the second:

    gather - kernel > kernel + elementwise - gather

The constants below say where that is, as found over random shapes on an H200
(`python -m benchmarks sweep --device gpu`). With a memcpy as the unit of time, the
packed copy takes 1.0 to 1.9, and strips of up to 4096 steps take 1.0 to 2.6. The
transposed gather takes 2.0 to 5.2, alone or fused with elementwise operations.

Floats narrower than 32 bits are passed to the kernels as unsigned integers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._reverse import shared_memory_kernel, xla
from dml_jax._shared import lowering, packed_copy_kernel

_MAX_LENGTHS = 2**31 - 2**16  # their indices have 32 bits with a sign
_MIN_BYTES = 2**22  # below, the launches of kernels dominate
_CACHE_BYTES = 48 * 2**20  # XLA gathers smaller arrays from the cache
_CHUNK = 16  # bytes of a step that are loaded at once
_SECTOR = 32  # bytes; the smallest read of memory
_SHORT_STEP = 8  # bytes; XLA gathers longer ones faster than it transposes twice
_LONG_STEP = 64  # bytes; most of the sectors read for such a step lie within it
_LONG_TIME = 1500  # steps; with more, the rows of strips are narrow
_SHORT_ROW = 24  # columns; XLA's gather reads few sectors for neighbours in such a row
_SMALL_TABLE = 2**13  # bytes; such a table lies in the first-level cache
_TINY_TABLE = 2**8  # bytes; smaller tables are gathered faster


class _Lines(NamedTuple):
    """Lines of T steps of C elements: `x` [R, T, L, C] and lengths [R * L]."""

    x: Array
    lengths: Array
    shape: tuple[int, ...]  # of the result

    @property
    def step_bytes(self) -> int:
        return self.x.shape[3] * self.x.dtype.itemsize

    @property
    def fills_sectors(self) -> bool:
        """Whether reading a step uses most bytes of the sectors that are read."""
        _, time, count, _ = self.x.shape
        step = self.step_bytes
        is_long = step >= _LONG_STEP or (step >= _CHUNK and time > _LONG_TIME)
        return count == 1 or is_long or step == _SECTOR


def _lines(x: Array, lengths: Array, axis: int) -> _Lines | None:
    """The operands of the kernels, or None if they do not pay."""
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    if x.dtype.kind not in "iuf" or math.prod(shape) * x.dtype.itemsize < _MIN_BYTES:
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
    """For one length for each line, and for steps that fill most of their sectors."""
    lines = _lines(x, lengths, axis)
    if lines is None or not lines.fills_sectors:
        return None
    y = packed_copy_kernel.reverse(lines.x, lines.lengths)
    return None if y is None else y.reshape(lines.shape)


def strips(x: Array, lengths: Array, axis: int) -> Array | None:
    """For columns with lengths of their own."""
    lines = _lines(x, lengths, axis)
    if lines is None or lines.fills_sectors or lines.lengths.size > _MAX_LENGTHS:
        return None
    batch, time, count, step = lines.x.shape
    columns, itemsize = count * step, x.dtype.itemsize
    if time * columns * itemsize < _TINY_TABLE:
        return None
    layout = shared_memory_kernel.layout_for(time, columns, itemsize)
    if layout is None:
        return None
    tables = lines.x.reshape(batch, time, columns)
    y = shared_memory_kernel.reverse(tables, lines.lengths, step, layout)
    return y.reshape(lines.shape)


def copied_chunks_in_programs(x: Array, lengths: Array, axis: int) -> Array | None:
    """`copied_chunks`, where XLA's gather stores few bytes at once."""
    size = math.prod(xla.broadcast_shape(x.shape, lengths.shape, axis))
    is_slow = x.dtype.itemsize == 1 or size % 4 != 0
    if not is_slow or size * x.dtype.itemsize < _CACHE_BYTES:
        return None
    return copied_chunks(x, lengths, axis)


def strips_in_programs(x: Array, lengths: Array, axis: int) -> Array | None:
    """`strips`, where XLA's gather is slow: for bytes, and for many columns."""
    # XLA computes the address of every byte, so rows of any length are slow.
    short_row = 1 if x.dtype.itemsize == 1 else _SHORT_ROW
    is_slow = _reads_many_sectors(x, lengths, axis, short_row)
    return strips(x, lengths, axis) if is_slow else None


def transposed_gather(x: Array, lengths: Array, axis: int) -> Array | None:
    """For columns with lengths of their own, where XLA's gather reads many sectors.

    XLA stores the transposed array, and transposes the gather's result as it stores it.
    """
    lines = _lines(x, lengths, axis)
    is_slow = _reads_many_sectors(x, lengths, axis)
    if lines is None or not is_slow or lines.step_bytes > _SHORT_STEP:
        return None
    table = lowering.materialize(jnp.moveaxis(lines.x, 1, -1))
    # Without the barrier XLA fuses the transpose of narrow elements with the gather.
    table = lax.optimization_barrier(table)
    batch, _, count, _ = lines.x.shape
    y = xla.gather(table, lines.lengths.reshape(batch, count, 1, 1), 3)
    return jnp.moveaxis(y, -1, 1).reshape(lines.shape)


def _reads_many_sectors(
    x: Array, lengths: Array, axis: int, short_row: int = _SHORT_ROW
) -> bool:
    """Whether XLA's gather reads a sector for each of neighbouring elements."""
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    itemsize, columns = x.dtype.itemsize, math.prod(shape[axis + 1 :])
    is_fast = columns <= short_row or shape[axis] * columns * itemsize <= _SMALL_TABLE
    return not is_fast and math.prod(shape) * itemsize >= _CACHE_BYTES
