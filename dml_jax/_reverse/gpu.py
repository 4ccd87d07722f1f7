"""The reversal on GPUs.

A GPU reads memory in sectors of 32 bytes, through two caches. XLA's gather, a thread
for each element, is as fast as a copy where the threads of a warp read the same
sectors, or find theirs in a cache. It fuses with surrounding operations. The kernel
does not: between elementwise operations it adds two passes over memory.

    gathered_parts     several neighbours have the same length, or rows are so short
                       that neighbours share a sector
    gather             a cache holds a sector until its last element has been read
    strip_kernel       otherwise, where a gather would read a sector for each element
    transposed_gather  instead of the kernel, if an axis is too long for it or the GPU
                       does not run it

Arrays are [rows, time, lines, step], and lengths [rows, 1, lines, 1]. One of the rows
is a table of [time, lines * step].
"""

import itertools
import math

import jax.numpy as jnp
from jax import Array, lax

from dml_jax._reverse import strip_kernel, xla
from dml_jax._shared import bitwise, jax_versions, lowering

_SECTOR = 32  # bytes; the smallest read of memory
_FIRST_LEVEL = 32 * 2**10  # bytes of a table; the cache of 256 KiB holds several
_SECOND_LEVEL = 24 * 2**20  # bytes; half of an H100's cache
_FEW_COLUMNS = 48  # neighbouring rows are then read at about the same time
_PARTS = 4  # of a result; with more, XLA generates slower kernels
_PER_STORE = 4  # elements that a thread stores if their number is divisible by it
_MIN_BYTES = 2**22  # of an array in parts; below, the launch of a kernel dominates
_MAX_RATIO = 1.25  # of the last part to the others


def reverse(x: Array, lengths: Array) -> Array | None:
    """The fastest formulation on an NVIDIA GPU; None if that is a single gather."""
    if _shares_sectors(x):
        return gathered_parts(x, lengths)
    if x.dtype.kind not in "iuf" or _reads_from_cache(x):
        return None
    y = None
    if jax_versions.runs_mosaic():
        y = jax_versions.attempted(strip_kernel.reverse, x, lengths)
    return transposed_gather(x, lengths) if y is None else y


def _shares_sectors(x: Array) -> bool:
    """Whether a gather reads a sector for several elements.

    If it uses more than a quarter of each, it is faster than the three passes of a
    kernel between elementwise operations. With steps of four elements or more, it is,
    too.
    """
    _, _, lines, step = x.shape
    step_bytes = step * x.dtype.itemsize
    is_long_step = step >= 4 or step_bytes > _SECTOR // 4
    return is_long_step or lines * step_bytes <= _SECTOR


def _reads_from_cache(x: Array) -> bool:
    """Whether a gather finds most of its sectors in a cache.

    More threads read a sector of narrow elements, and the second-level cache is too
    slow for so many reads.
    """
    _, time, lines, step = x.shape
    columns, itemsize = lines * step, x.dtype.itemsize
    table_bytes, array_bytes = time * columns * itemsize, x.size * itemsize
    of_table = _SECOND_LEVEL if itemsize >= 4 else _FIRST_LEVEL
    return (
        columns <= _FEW_COLUMNS
        or table_bytes <= of_table
        or array_bytes <= _SECOND_LEVEL
    )


def transposed_gather(x: Array, lengths: Array) -> Array:
    """A gather from the transposed array, where the steps of a line are neighbours.

    XLA stores the transposed array, and transposes the gather's result as it stores it.
    """
    table = lowering.materialize(jnp.moveaxis(x, 1, 3))
    # Without the barrier XLA fuses the transpose of narrow elements with the gather.
    table = lax.optimization_barrier(table)
    y = xla.gather(table, jnp.moveaxis(lengths, 1, 3), 3)
    return jnp.moveaxis(y, 3, 1)


def gathered_parts(x: Array, lengths: Array) -> Array | None:
    """Four gathers in one kernel, of parts of the rows, or of the time of a single row.

    A thread stores four neighbours at once if the number of elements is divisible by
    four, and one if it is odd. With four parts, it stores up to four of each part.
    """
    itemsize = x.dtype.itemsize
    if not _shares_sectors(x) or itemsize > 4 or x.size * itemsize < _MIN_BYTES:
        return None
    if itemsize == 4 and x.size % _PER_STORE == 0:  # a single gather does, too
        return None
    if x.dtype != bool and bitwise.width(x.dtype) < 8:  # XLA packs them in bytes
        return None
    divided = 0 if len(x) > 1 else 1
    bounds = _bounds_of_parts(x.shape, divided)
    if bounds is None:
        return None
    source = xla.source_index(x.shape, lengths, 1)

    def part(begin: int, end: int) -> Array:
        rows = lax.slice_in_dim(x, begin, end) if divided == 0 else x
        index = lax.slice_in_dim(source, begin, end, axis=divided)
        # XLA stores several elements at once if the parts have one dimension.
        return xla.take_along_axis(rows, index, 1).reshape(-1)

    parts = itertools.starmap(part, itertools.pairwise(bounds))
    return lax.concatenate(list(parts), 0).reshape(x.shape)


def _bounds_of_parts(shape: tuple[int, ...], d: int) -> list[int] | None:
    """Where the parts along a dimension begin and end, if they are of similar size."""
    # A part begins where XLA can store several elements at once.
    unit = _PER_STORE // math.gcd(math.prod(shape[d + 1 :]), _PER_STORE)
    size = shape[d] // (_PARTS * unit) * unit
    *_, last = bounds = [*(i * size for i in range(_PARTS)), shape[d]]
    is_similar = last - bounds[-2] <= _MAX_RATIO * size
    return bounds if is_similar else None
