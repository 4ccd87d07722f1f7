"""A GPU kernel for columns with lengths of their own, in Pallas and MLIR.

Neighbouring elements of the result come from distant rows, and memory is read in
sectors of 32 bytes. So a block of threads copies a table, or a strip of it, which is
all rows of a few columns, to shared memory, and reads its elements there in any order.
It stores

    y[b, t, c] = table[n - 1 - t if t < n else t, c]    with n = lengths[b, c // step]

The kernel moves as many bytes as a copy, but a sector that two strips share is loaded
twice. XLA cannot fuse it with surrounding operations.

A thread loads and stores words of four bytes. Rows of narrow elements may begin in the
middle of a word, so a thread joins two words as it loads, and all rows begin alike in
shared memory. It stores words that are aligned in the result. Those of a whole table
are consecutive: a word may begin in one row and end in the next one. Those of a strip
begin, in each row, with the granule that contains its first column, and end before the
granule that contains the first column of the next strip. A granule is a word, or more
where stores are then faster.

A thread stores words whose elements have the same columns, some rows apart. So it loads
their lengths once, and addresses differ by multiples of a constant.

What a thread does is written for a `machine`, because Pallas cannot index shared memory
with an array. In a program its words are MLIR values; in the tests they are NumPy
integers. Pallas and MLIR are imported in functions, because that takes longer than
importing the whole package.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared import jax_versions

_MAX_COLUMNS = 2**31 - 2**16  # their offsets in a row have 32 bits with a sign
_MAX_BLOCK_BYTES = 216 * 2**10  # in shared memory
_GOOD_BLOCK_BYTES = 108 * 2**10  # so that two blocks run at once
_MULTIPROCESSOR_BYTES = 224 * 2**10
_SYSTEM_BYTES = 2**10  # of them that every block takes
_MAX_ROW_BYTES = 512  # in shared memory
_BANKS_BYTES = 128  # of shared memory; rows of multiples have no bank conflicts
_SECTOR = 32  # bytes; with narrower rows, a gather is faster
_SMALL_TABLE = (
    2**10
)  # bytes; finding the elements of a word takes longer than moving it
_WORD = 4  # bytes that a thread moves at once, or one element if it is wider
_LOADS = 8  # words that a thread loads before it stores them
_STORES = 4  # elements that a thread gathers before it stores them
_WARPGROUP = 128  # threads
_MULTIPROCESSOR_WARPGROUPS = 6  # more of them evict each other's sectors


class Layout(NamedTuple):
    """How strips are divided among blocks of threads. Sizes are in elements.

    A whole table is a strip, too.
    """

    word: int  # that a thread moves
    granule: int  # stores begin at multiples of it in the array
    margin: int  # columns before its own ones that a strip includes
    width: int  # of a row of a strip
    pitch: int  # of the rows in shared memory
    size: int  # of a strip in shared memory
    per_row: int  # strips
    per_block: int  # strips
    threads: int  # of a strip

    @property
    def has_tables(self) -> bool:
        return self.per_row == 1


def layout_for(time: int, columns: int, itemsize: int) -> Layout | None:
    """The layout, or None if a column or a row has too many elements."""
    if columns > _MAX_COLUMNS:
        return None
    return _tables(time, columns, itemsize) or _strips(time, columns, itemsize)


def _tables(time: int, columns: int, itemsize: int) -> Layout | None:
    """The layout for tables that fit in the shared memory of a block."""
    is_small = time * columns * itemsize < _SMALL_TABLE
    word = 1 if is_small else max(1, _WORD // itemsize)
    width = _round_up(columns, word)
    row_bytes = width * itemsize
    if row_bytes > _MAX_ROW_BYTES:
        return None
    # One block at a time is slow, but not slower than narrow strips.
    in_strips = _row_bytes_of_strips(time)
    is_narrow = in_strips < _BANKS_BYTES or row_bytes <= in_strips
    most = _MAX_BLOCK_BYTES if is_narrow else _GOOD_BLOCK_BYTES
    pitches = (_padded(row_bytes) // itemsize, width)
    # The last word may have elements of one more row, which are not stored.
    rows = time + 1
    pitch = next((p for p in pitches if rows * p * itemsize <= most), None)
    if pitch is None:
        return None
    size = rows * pitch
    period = _words_until_same_columns(columns, word)
    block = _threads_of_block(size * itemsize)
    least = max(period, -(-time * columns // (word * _LOADS)))
    powers = [2**n for n in range(11) if least <= 2**n <= block]
    # The threads after the last multiple of the period are left over.
    threads = max(powers, key=lambda n: n // period * period / n, default=0)
    if threads == 0:
        threads = block = _round_up(max(block // period, 1) * period, _WARPGROUP)
    return Layout(word, word, 0, width, pitch, size, 1, block // threads, threads)


def _strips(time: int, columns: int, itemsize: int) -> Layout | None:
    """The layout for tables of which a block moves some columns."""
    row_bytes = _row_bytes_of_strips(time)
    if row_bytes < _SECTOR:
        return None
    most, word = row_bytes // itemsize, max(1, _WORD // itemsize)
    granule = max(word, _granule_bytes(row_bytes, itemsize) // itemsize)
    margin = 0 if columns % granule == 0 else granule
    sector = _SECTOR // itemsize
    unit = sector if columns % sector == 0 else granule
    width = (most - margin) // unit * unit
    # Since rows may begin earlier, the strips must cover more columns.
    covered = columns + max(margin - 1, 0)
    width = _round_up(-(-covered // -(-covered // width)), unit)
    pitch = _padded((width + margin) * itemsize) // itemsize
    size = time * pitch
    least = width // word * _rows_until_same_phase(columns, granule)
    threads = max(_threads_of_block(size * itemsize), _round_up(least, _WARPGROUP))
    per_row = -(-covered // width)
    return Layout(word, granule, margin, width, pitch, size, per_row, 1, threads)


def _row_bytes_of_strips(time: int) -> int:
    """The most bytes that a row of a strip may take in shared memory."""
    good = _GOOD_BLOCK_BYTES // time // _BANKS_BYTES * _BANKS_BYTES
    most = _MAX_BLOCK_BYTES // time // _SECTOR * _SECTOR
    return min(good, _MAX_ROW_BYTES) or min(most, _BANKS_BYTES)


def _padded(size: int) -> int:
    """The bytes of a row in shared memory, with few bank conflicts."""
    if size <= _SECTOR:
        return size
    return _round_up(size, _BANKS_BYTES if size > _BANKS_BYTES else _SECTOR)


def _granule_bytes(row_bytes: int, itemsize: int) -> int:
    """The size of the granules of strips.

    Stores of whole sectors are the fastest, then of half ones. A larger granule leaves
    fewer columns for a strip. Narrow elements take more time for arithmetic than for
    stores, so their granules are words.
    """
    if itemsize < _WORD:
        return itemsize
    granules = _SECTOR, _SECTOR // 2
    return next((each for each in granules if row_bytes >= _SECTOR + each), itemsize)


def _threads_of_block(size: int) -> int:
    """The threads of a block with so many bytes of shared memory."""
    blocks = max(_MULTIPROCESSOR_BYTES // (size + _SYSTEM_BYTES), 1)
    return -(-_MULTIPROCESSOR_WARPGROUPS // blocks) * _WARPGROUP


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _words_until_same_columns(columns: int, word: int) -> int:
    """The number of words of a table after which one begins at the same column."""
    return columns // math.gcd(columns, word)


def _rows_until_same_phase(columns: int, granule: int) -> int:
    """The number of rows after which one begins at the same place in its granule."""
    return granule // math.gcd(columns, granule)


def reverse(x: Array, lengths: Array, step: int, layout: Layout) -> Array:
    """`x` [B, T, C], reversed along T by the `lengths` [B, C // step]."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    if x.dtype == np.float64:  # Mosaic has no float64
        bits = lax.bitcast_convert_type(x, jnp.uint64)
        y = reverse(bits, lengths, step, layout)
        return lax.bitcast_convert_type(y, x.dtype)
    shape, batch = x.shape, len(x)
    itemsize = x.dtype.itemsize
    move = functools.partial(reverse_strips, shape=shape, step=step, layout=layout)
    block_bytes = layout.per_block * layout.size * itemsize
    lengths_of_strip = layout.width + layout.margin

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

    table: Any
    first: Any  # column
    begin: Any  # offset of its first element in the array
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
    strip = _Strip(table, first, begin, slot)
    _load_lengths(machine, strip, columns, step, layout)
    _load_rows(machine, strip, time, columns, layout)
    machine.wait()
    _store_words(machine, strip, time, columns, layout)


def _load_lengths(
    machine: Any, strip: _Strip, columns: int, step: int, layout: Layout
) -> None:
    """Copies the lengths of the strip's columns to shared memory.

    The lengths for the first elements of all words come first, then those for the
    second ones, and so on. So threads with neighbouring words read different banks.
    """
    thread = machine.thread % layout.threads
    count = layout.width + layout.margin
    for first in range(0, count, layout.threads):
        v = machine.minimum(thread + first, count - 1)
        column = machine.maximum(strip.first + v - layout.margin, 0)
        column = machine.minimum(column, columns - 1)
        length = machine.load_length(strip.table * (columns // step) + column // step)
        machine.store_shared_length(_at_length(strip, v, layout), length)


def _at_length(strip: _Strip, v: Any, layout: Layout) -> Any:
    count, word = layout.width + layout.margin, layout.word
    return strip.slot * count + v % word * (count // word) + v // word


def _load_rows(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> None:
    """Copies the strip to shared memory, where all rows begin alike."""
    word, margin = layout.word, layout.margin
    words = (layout.width + margin) // word
    j = machine.thread % layout.threads % words
    # Columns that the table lacks are replaced by its nearest one.
    last_column = columns - 1 - strip.first
    column = machine.maximum(j * word - margin, 0 - strip.first)
    column = machine.minimum(column, last_column)
    first = machine.at(column, 1, strip.begin)
    last = machine.at(machine.minimum(column + (word - 1), last_column), 1, strip.begin)

    def load(k: Any) -> Any:
        at = machine.at(k, columns, first)
        value = machine.load_word(at, word)
        if columns % word == 0:
            return value
        following = machine.load_word(machine.at(k, columns, last), word)
        return machine.join_words(value, following, at)

    def move(rows: Sequence[Any]) -> None:
        loaded = [load(k) for k in rows]
        for k, value in zip(rows, loaded, strict=True):
            address = shared + k * (layout.pitch * machine.itemsize)
            machine.store_shared(address, value, word)

    shared = machine.shared_address(strip.slot * layout.size + j * word)
    thread, step = machine.thread % layout.threads, layout.threads // words
    # Threads that are left over have no rows.
    row = machine.select(thread < step * words, thread // words, time)
    machine.for_rows(row, time, step, _unroll(time, step, _LOADS), move)


def _unroll(time: int, step: int, most: int) -> int:
    """How many rows a thread moves at a time, of every `step`-th one."""
    rounds = -(-time // step)
    return -(-rounds // -(-rounds // most))


class _Words(NamedTuple):
    """The words of a thread, which are `step` rows apart."""

    rows: list[Any]  # of the elements of the first word
    columns: list[Any]  # of them, counted from the first column of the strip
    step: int
    are_stored: Callable[[Any], list[Any] | None]  # so many rows later; None: all are


def _words_of_table(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> _Words:
    """Words of a table. A word may begin in one row and end in the next one."""
    word = layout.word
    period = _words_until_same_columns(columns, word)
    thread, count = machine.thread % layout.threads, layout.threads // period * period
    phase = strip.table * (time * columns % word) % word
    # The dividend is not negative.
    position = thread * word + word * columns - phase
    row = position // columns - word
    column = position - (row + word) * columns
    rows, places = [row], [column]
    for _ in range(word - 1):
        column = column + 1
        if columns % word:  # otherwise a word never ends in the next row
            is_next = column > columns - 1
            row = machine.select(is_next, row + 1, row)
            column = machine.select(is_next, 0, column)
        rows.append(row)
        places.append(column)
    # Threads that are left over have no rows.
    rows[0] = machine.select(thread < count, rows[0], time)

    def are_stored(k: Any) -> list[Any] | None:
        if time * columns % word == 0:
            return None
        return [machine.is_between(0, row + k, time) for row in rows]

    return _Words(rows, places, count * word // columns, are_stored)


def _words_of_strip(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> _Words:
    """Words of columns that begin at a granule in the array."""
    granule, words = layout.granule, layout.width // layout.word
    thread, step = machine.thread % layout.threads, layout.threads // words
    step -= step % _rows_until_same_phase(columns, granule)
    row = machine.select(thread < step * words, thread // words, time)
    column = thread % words * layout.word
    if columns % granule:
        phase = strip.table * (time * columns % granule) + row * columns
        column = column - phase % granule
    places = [column + i for i in range(layout.word)]

    def are_stored(_: Any) -> list[Any] | None:
        if layout.margin == 0 and columns % layout.width == 0:
            return None
        low, high = 0 - strip.first, columns - strip.first
        return [machine.is_between(low, place, high) for place in places]

    return _Words([row] * layout.word, places, step, are_stored)


def _store_words(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> None:
    """Stores the words of the reversed strip."""
    words = _words_of_table if layout.has_tables else _words_of_strip
    rows, places, step, are_stored = words(machine, strip, time, columns, layout)
    pitch_bytes = layout.pitch * machine.itemsize
    begin = machine.at(rows[0], columns, machine.at(places[0], 1, strip.begin))
    same, last, left = [], [], []
    for i, (row, place) in enumerate(zip(rows, places, strict=True)):
        column = place + layout.margin
        length = machine.load_shared_length(_at_length(strip, column, layout))
        # The instruction that loads adds i, so the rows of a strip share `same`.
        column = strip.slot * layout.size + column - i
        same.append(machine.shared_address(column + row * layout.pitch))
        last.append(machine.shared_address(column + (length - 1 - row) * layout.pitch))
        left.append(length - row)

    def load(k: Any) -> list[Any]:
        distance = k * pitch_bytes
        return [
            machine.load_shared(machine.select(k < n, b - distance, a + distance), i)
            for i, (a, b, n) in enumerate(zip(same, last, left, strict=True))
        ]

    def move(distances: Sequence[Any]) -> None:
        loaded = [load(k) for k in distances]
        for k, elements in zip(distances, loaded, strict=True):
            machine.store(machine.at(k, columns, begin), elements, are_stored(k))

    unroll = _unroll(time, step, max(_STORES // layout.word, 1))
    machine.for_rows(machine.zero, time - rows[0], step, unroll, move)
