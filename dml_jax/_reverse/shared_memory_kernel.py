"""A GPU kernel for columns with lengths of their own, in Pallas and MLIR.

Neighbouring elements of the result come from distant rows, and memory is read in
sectors of 32 bytes. So a block of threads copies a strip, which is all rows of a few
columns, to shared memory, and reads its elements there in any order. It stores

    y[b, t, c] = strip[n - 1 - t if t < n else t, c]    with n = lengths[b, c // step]

The kernel moves as many bytes as a copy, but a sector that two strips share is loaded
twice. XLA cannot fuse it with surrounding operations.

A thread stores a word of four bytes at once, but a row of narrow elements may begin in
the middle of a word. Strips of wide elements store whole sectors, or half ones, where
that is faster. The unit of stores is a granule. In each row, the stores of a strip
begin with the granule that contains its first column, and end before the granule that
contains the first column of the next strip. The phase of a row is the position of its
first element in a granule or, for loads, in a word.

What a thread does is written for a `machine`, because Pallas cannot index shared memory
with an array. In a program its words are MLIR values; in the tests they are NumPy
integers. Pallas and MLIR are imported in functions, because that takes longer than
importing the whole package.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared import jax_versions

_MAX_TABLE = 2**31 - 2**16  # elements; offsets in a table have 32 bits with a sign
_MAX_BLOCK_BYTES = 216 * 2**10  # of strips
_GOOD_BLOCK_BYTES = 72 * 2**10  # so that three blocks run at once
_MULTIPROCESSOR_BYTES = 224 * 2**10
_SYSTEM_BYTES = 2**10  # of them that every block takes
_MAX_ROW_BYTES = 512  # of a strip
_BANKS_BYTES = 128  # of shared memory; rows of multiples have no bank conflicts
_SECTOR = 32  # bytes; with narrower rows, a gather is faster
_WORD = 4  # bytes that a thread moves at once, or one element if it is wider
_UNROLL = 8  # words that a thread loads before it stores them
_WARPGROUP = 128  # threads
_MAX_WARPGROUPS = 8  # of a block
_MULTIPROCESSOR_WARPGROUPS = 16


class Layout(NamedTuple):
    """How strips are divided among blocks of threads. Sizes are in elements."""

    word: int  # that a thread moves
    granule: int  # stores begin at multiples of it in the array
    width: int  # of a row of a strip
    pitch: int  # of the rows in shared memory
    per_row: int  # strips
    per_block: int  # strips
    threads: int  # of a strip


def layout_for(time: int, columns: int, itemsize: int) -> Layout | None:
    """The layout, or None if a column or a table has too many elements."""
    if time * columns > _MAX_TABLE:
        return None
    row_bytes = _row_bytes(time)
    if row_bytes < min(_SECTOR, columns * itemsize):
        return None
    most = row_bytes // itemsize
    word, sector = max(1, _WORD // itemsize), max(1, _SECTOR // itemsize)
    if columns % word and min(columns, most) < 8 * word:
        word = 1  # too many words would be shared by two rows or two strips
    granule, width = word, _round_up(columns + _overhang(columns, word), word)
    if width + _slack(columns, word, word) > most:
        granule = max(word, _granule_bytes(row_bytes, itemsize) // itemsize)
        unit = sector if columns % sector == 0 and most >= sector else granule
        width = (most - _slack(columns, word, granule)) // unit * unit
        if width <= 0:
            return None
        covered = columns + _overhang(columns, granule)
        width = _round_up(-(-covered // -(-covered // width)), unit)
    per_row = -(-(columns + _overhang(columns, granule)) // width)
    pitch = width + _slack(columns, word, granule)
    words = pitch // word
    blocks = _MULTIPROCESSOR_BYTES // (time * pitch * itemsize + _SYSTEM_BYTES)
    warpgroups = max(_MULTIPROCESSOR_WARPGROUPS // blocks, -(-words // _WARPGROUP), 1)
    block = threads = min(warpgroups, _MAX_WARPGROUPS) * _WARPGROUP
    if per_row == 1:
        needed = max(words, -(-time * words // _UNROLL))
        threads = min(2 ** (needed - 1).bit_length(), block)
    return Layout(word, granule, width, pitch, per_row, block // threads, threads)


def _row_bytes(time: int) -> int:
    """The most bytes that a row of a strip may take in shared memory."""
    good = _GOOD_BLOCK_BYTES // time // _BANKS_BYTES * _BANKS_BYTES
    most = _MAX_BLOCK_BYTES // time
    return min(good, _MAX_ROW_BYTES) or min(most, _BANKS_BYTES)


def _granule_bytes(row_bytes: int, itemsize: int) -> int:
    """The size of a granule, where a strip has only some of the columns.

    Stores of whole sectors are the fastest, then of half ones. A larger granule leaves
    fewer columns for a strip. Narrow elements take more time for arithmetic than for
    stores, so their granules are words.
    """
    if itemsize < _WORD:
        return itemsize
    granules = _SECTOR, _SECTOR // 2
    return next((each for each in granules if row_bytes >= _SECTOR + each), itemsize)


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _margin(columns: int, granule: int) -> int:
    """How many columns before its first one the rows of a strip may include."""
    return 0 if columns % granule == 0 else granule


def _overhang(columns: int, granule: int) -> int:
    """How many more columns the strips must cover, since rows may begin earlier."""
    return max(_margin(columns, granule) - 1, 0)


def _slack(columns: int, word: int, granule: int) -> int:
    """The elements by which a row in shared memory is longer than that of a strip."""
    return _margin(columns, granule) + _margin(columns, word)


def reverse(x: Array, lengths: Array, step: int, layout: Layout) -> Array:
    """`x` [B, T, C], reversed along T by the `lengths` [B, C // step]."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    if x.dtype == np.float64:  # Mosaic has no float64
        bits = lax.bitcast_convert_type(x, jnp.uint64)
        y = reverse(bits, lengths, step, layout)
        return lax.bitcast_convert_type(y, x.dtype)
    batch, time, columns = shape = x.shape
    itemsize = x.dtype.itemsize
    move = functools.partial(reverse_strips, shape=shape, step=step, layout=layout)
    block_bytes = layout.per_block * time * layout.pitch * itemsize
    lengths_of_strip = layout.width + _margin(columns, layout.granule)

    def body(*refs: Any):
        plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * len(refs))(thread)(*refs)

    def thread(_: Any, *references: Any):
        from dml_jax._shared.gpu_machines import StripMachine

        move(StripMachine(itemsize, *references))

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((x.size,), x.dtype),
        scratch_types=[
            plgpu.SMEM((_round_up(block_bytes, _WORD),), jnp.int8),
            plgpu.SMEM((layout.per_block * lengths_of_strip,), jnp.int32),
        ],
        grid=(-(-batch * layout.per_row // layout.per_block),),
        grid_names=("block",),
        num_threads=layout.per_block * layout.threads // _WARPGROUP,
        thread_name="warpgroup",
    )
    y = jax_versions.launch(kernel, x.reshape(-1), lengths.reshape(-1))
    return y.reshape(shape)


# What a thread does -------------------------------------------------------------------


class _Strip(NamedTuple):
    """The strip of a thread."""

    begin: Any  # offset of its first row in the array
    phase: Any  # of the first element of its table, not reduced to a granule
    first: Any  # column
    slot: Any  # among the strips of the block


def reverse_strips(
    machine: Any, *, shape: Sequence[int], step: int, layout: Layout
) -> None:
    """Reverses the strips of a block, of which a thread moves words of one."""
    batch, time, columns = shape
    slot = machine.thread // layout.threads
    # Threads without a strip of their own move the last one again.
    index = machine.block * layout.per_block + slot
    index = machine.minimum(index, batch * layout.per_row - 1)
    table = index // layout.per_row
    first = index % layout.per_row * layout.width
    begin = machine.at(table, time * columns, first)
    phase = table * (time * columns % layout.granule)
    strip = _Strip(begin, phase, first, slot)
    _load_lengths(machine, table, strip, columns, step, layout)
    _load_rows(machine, strip, time, columns, layout)
    machine.wait()
    _store_rows(machine, strip, time, columns, layout)


def _phase(strip: _Strip, row: Any, columns: int, unit: int) -> Any:
    """The position of a row's first element in its word or granule."""
    return (strip.phase + row * columns) % unit if columns % unit else 0


def _load_lengths(
    machine: Any, table: Any, strip: _Strip, columns: int, step: int, layout: Layout
) -> None:
    """Copies the lengths of the strip's columns, and of its margin, to shared memory.

    The lengths for the first elements of all words come first, then those for the
    second ones, and so on. So threads with neighbouring words read different banks.
    """
    thread = machine.thread % layout.threads
    margin = _margin(columns, layout.granule)
    count = layout.width + margin
    for first in range(0, count, layout.threads):
        v = machine.minimum(thread + first, count - 1)
        column = machine.maximum(strip.first + v - margin, 0)
        column = machine.minimum(column, columns - 1)
        length = machine.load_length(table * (columns // step) + column // step)
        machine.store_shared_length(_at_length(strip, v, count, layout.word), length)


def _at_length(strip: _Strip, v: Any, count: int, word: int) -> Any:
    return strip.slot * count + v % word * (count // word) + v // word


def _load_rows(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> None:
    """Copies the strip and its margin to shared memory, from a word of each row on."""
    word, margin = layout.word, _margin(columns, layout.granule)
    words = layout.pitch // word
    j = machine.thread % layout.threads % words
    # Words without columns of the strip are replaced by the nearest one that has some.
    least = machine.select(strip.first > 0, 0, margin // word)
    last = machine.minimum(columns - strip.first, layout.width) + (margin - 1)

    def move(rows: Sequence[Any]) -> None:
        loaded = []
        for k in rows:
            phase = _phase(strip, k, columns, word)
            most = (last + phase) // word
            at = machine.minimum(machine.maximum(j, least), most)
            offset = at * word + (k * columns - margin) - phase
            loaded.append(machine.load(strip.begin, offset, word))
        for k, value in zip(rows, loaded, strict=True):
            at = (strip.slot * time + k) * layout.pitch + j * word
            machine.store_shared(at, value, word)

    rows = _rows_of_thread(machine, time, words, 1, layout)
    machine.for_rows(*rows, move)


def _store_rows(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> None:
    """Stores the words of the reversed strip."""
    word, granule, width, *_ = layout
    margin = _margin(columns, granule)
    words, count = width // word, width + margin
    u = machine.thread % layout.threads % words * word

    def lengths_from(v: Any) -> list[Any]:
        return [
            machine.load_shared_length(_at_length(strip, v + i, count, word))
            for i in range(word)
        ]

    rows = _rows_of_thread(
        machine, time, words, granule // math.gcd(columns, granule), layout
    )
    # If all rows of the thread begin alike, it always stores the same columns.
    fixed = None
    if rows.step * columns % granule == 0:
        column = u - _phase(strip, rows.first, columns, granule)
        fixed = column, lengths_from(column + margin)
    # The columns of the table, counted from the first one of the strip.
    is_whole = margin == 0 and columns % width == 0
    limits = None if is_whole else (0 - strip.first, columns - strip.first)

    def load(k: Any) -> tuple[Any, list[Any]]:
        if fixed is None:
            column = u - _phase(strip, k, columns, granule)
            lengths = lengths_from(column + margin)
        else:
            column, lengths = fixed
        elements = []
        for i, length in enumerate(lengths):
            source = machine.select(k < length, length - 1 - k, k)
            at = (strip.slot * time + source) * layout.pitch + (column + (margin + i))
            at = at + _phase(strip, source, columns, word)
            elements.append(machine.load_shared(at))
        return column, elements

    def move(rows: Sequence[Any]) -> None:
        loaded = [load(k) for k in rows]
        for k, (column, elements) in zip(rows, loaded, strict=True):
            machine.store(strip.begin, k * columns, column, elements, limits)

    machine.for_rows(*rows, move)


class _Rows(NamedTuple):
    """The rows in which a thread moves a word, `unroll` of them at a time."""

    first: Any
    end: int
    step: int
    unroll: int


def _rows_of_thread(
    machine: Any, time: int, words: int, period: int, layout: Layout
) -> _Rows:
    """The rows that a thread moves, where each row has `words` words.

    Rows that are `period` apart begin at the same place in their granules.
    """
    thread, step = machine.thread % layout.threads, layout.threads // words
    if step > period:
        step -= step % period
    # Threads that are left over have no rows.
    first = machine.select(thread < step * words, thread // words, time)
    rounds = -(-time // step)
    return _Rows(first, time, step, -(-rounds // -(-rounds // _UNROLL)))
