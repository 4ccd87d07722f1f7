"""A GPU kernel that reverses columns by lengths of their own, in Pallas and MLIR.

Neighbouring elements of the result come from distant rows, and memory is read in
sectors of 32 bytes. So a block of threads copies a table, or a strip of it, to shared
memory, and reads its elements there in any order. A strip has all rows of some columns.
The block stores

    y[b, t, c] = table[n - 1 - t if t < n else t, c]    with n = lengths[b, c // step]

The kernel moves as many bytes as a copy, but each strip loads the sectors that it
shares with others. XLA cannot fuse the kernel with surrounding operations.

Rows of aligned chunks of 16 bytes are copied to shared memory asynchronously; rows of
narrow elements only if they are whole sectors. Otherwise a thread loads and stores
words of 32 bits, or single elements if they are wider. Rows of narrow elements may
begin in the middle of a word. So a thread joins two words as it loads, and every row
begins with a word in shared memory.

A thread stores words that are aligned in the result:

    tables    The words are consecutive. One may begin in a row and end in the next one.
    strips    In each row, the words begin with the granule that contains the first
              column of the strip, and end before the granule that contains the first
              column of the next strip. A granule is a word, a quarter or a half of a
              sector, or a whole sector.

The words of a thread have the same columns in different rows. So the thread loads the
lengths of their elements once, and addresses advance by a constant.

What a thread does is written for a `machine`, because Pallas cannot index shared memory
with an array. The machine emits MLIR in a program, and computes in NumPy in the tests.
Its integers have 32 bits: sums and products wrap, and divisions are unsigned.

Pallas and MLIR are imported in functions, because that takes longer than importing the
whole package.
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

_MAX_COLUMNS = 2**31 - 2**16  # signed 32-bit integers count them, and a strip more
_MAX_BLOCK_BYTES = 216 * 2**10  # in shared memory
_GOOD_BLOCK_BYTES = 108 * 2**10  # so that two blocks run at once
_MULTIPROCESSOR_BYTES = 224 * 2**10  # of 228 KiB; lengths take the others
_SYSTEM_BYTES = 2**10  # that CUDA adds to each block
_ALL_BYTES = 228 * 2**10  # of a multiprocessor
_OTHER_BYTES = 2 * 2**10  # of a block, at most: lengths, and what CUDA adds
# Blocks that take up to so many bytes leave 60 KiB to the first-level cache. More leave
# 28 KiB, and sectors are evicted before a second warp reads them.
_BYTES_BESIDE_CACHE = 192 * 2**10
_MAX_ROW_BYTES = 512  # of a table, in shared memory
# Bytes of the rows of strips. Others have more bank conflicts, or were not faster.
_ROW_BYTES = (384, 256, 192, 128, 96, 80, 64, 48, 40, 32)
_GOOD_ROW_BYTES = 256  # wider rows are not faster where two blocks run at once
_MIN_CACHED_ROW_BYTES = 96  # narrower rows are slower, although the cache is larger
_MAX_PHASES = 8  # of short rows: the places in a sector where rows begin
_MIN_ROWS_PER_ELEMENT = 3  # of a thread that stores short rows, for each one of a word
# All banks of shared memory, once. If rows are a multiple of it apart, threads that
# read different columns have no bank conflicts.
_BANKS_BYTES = 128
_SECTOR = 32  # bytes; with narrower rows, a gather is faster
_CHUNK = 16  # bytes; the most that one cp.async copies
_WORD = 4  # bytes
_LOADS = 8  # words that a thread loads before it stores them
_STORES = 8  # elements that a thread gathers before it stores them
_MAX_WORDS = 16  # of a thread, unless a block has a single table
_MIN_THREADS = 8  # of a table
_WARPGROUP = 128  # threads
_MAX_THREADS = 1024  # of a block
_WARPGROUPS_AT_ONCE = 6  # on a multiprocessor; with 8 to 16 the kernel was slower


class Layout(NamedTuple):
    """How strips are divided among blocks of threads. Sizes are in elements."""

    is_table: bool  # whether a strip is a whole table
    word: int
    granule: int  # stores begin at multiples of it in the array
    margin: int  # columns before its own ones that a strip includes
    width: int  # columns of a strip, without the margin
    pitch: int  # from one row to the next in shared memory
    size: int  # of a strip in shared memory
    per_row: int  # strips of a table
    per_block: int  # strips
    threads: int  # of a strip
    block_bytes: int  # of shared memory; more than needed if fewer blocks should run


def layout_for(time: int, columns: int, itemsize: int) -> Layout | None:
    """The layout, or None if a table has too many rows or columns."""
    if columns > _MAX_COLUMNS:
        return None
    return _tables(time, columns, itemsize) or _strips(time, columns, itemsize)


def _tables(time: int, columns: int, itemsize: int) -> Layout | None:
    """The layout for tables that fit in the shared memory of a block."""
    word = max(1, _WORD // itemsize)
    width = _round_up(columns, word)
    row_bytes = width * itemsize
    if row_bytes > _MAX_ROW_BYTES:
        return None
    # A block that fills shared memory runs alone. That is slow, but not slower than
    # narrow strips.
    of_strips = _max_row_bytes_of_strips(time, _MAX_BLOCK_BYTES)
    may_run_alone = of_strips < _BANKS_BYTES or row_bytes <= of_strips
    most = _MAX_BLOCK_BYTES if may_run_alone else _GOOD_BLOCK_BYTES
    # The first and the last word may have elements of the neighbouring tables. In their
    # places a thread reads elements of these additional rows, and does not store them.
    rows = time + -(-(word - 1) // columns)
    pitches = (_padded(row_bytes) // itemsize, width)
    pitch = next((p for p in pitches if rows * p * itemsize <= most), None)
    if pitch is None:
        return None
    size = rows * pitch
    period = _words_until_same_columns(columns, word)
    words = -(-time * columns // word)
    threads, per_block = _threads_of_table(words, period, size * itemsize)
    nbytes = per_block * size * itemsize
    return Layout(
        True, word, word, 0, width, pitch, size, 1, per_block, threads, nbytes
    )


def _threads_of_table(words: int, period: int, size: int) -> tuple[int, int]:
    """The threads of a table that takes `size` bytes, and the tables of a block.

    Threads beyond a multiple of the period are idle.
    """
    block_threads, threads = _threads_of_block(size), _MIN_THREADS
    while threads <= block_threads:
        active = threads // period * period
        if 4 * active >= 3 * threads and words <= _MAX_WORDS * active:
            return threads, block_threads // threads
        threads *= 2
    periods = max(block_threads // period, 1)
    return _round_up(periods * period, _WARPGROUP), 1


def _strips(time: int, columns: int, itemsize: int) -> Layout | None:
    """The layout for tables of which a block moves some columns."""
    max_bytes, granule_bytes = _rows_of_strips(time, columns, itemsize)
    if max_bytes == 0:
        return None
    most, word = max_bytes // itemsize, max(1, _WORD // itemsize)
    granule = granule_bytes // itemsize
    margin = 0 if columns % granule == 0 else granule
    sector = _SECTOR // itemsize
    unit = sector if columns % sector == 0 else granule
    # A row of a strip begins up to `margin - 1` columns before the strip, so the strips
    # must cover as many columns more.
    covered = columns + max(margin - 1, 0)
    count = -(-covered // ((most - margin) // unit * unit))
    width = _round_up(-(-covered // count), unit)
    row_bytes = (width + margin) * itemsize
    pitch = min(size for size in _ROW_BYTES if size >= row_bytes) // itemsize
    size = time * pitch
    min_threads = width // word * _rows_until_same_phase(columns, granule)
    threads = _round_up(min_threads, _WARPGROUP)
    nbytes = size * itemsize
    if _has_rows_of_chunks(columns, itemsize):
        threads = max(threads, _threads_of_block(nbytes))
    else:
        blocks = _blocks_beside_cache(nbytes)
        threads = max(threads, _threads(blocks))
        nbytes = _padded_block_bytes(nbytes, width + margin, blocks)
    per_row = -(-covered // width)
    return Layout(
        False, word, granule, margin, width, pitch, size, per_row, 1, threads, nbytes
    )


def _rows_of_strips(time: int, columns: int, itemsize: int) -> tuple[int, int]:
    """The most bytes of a row, or 0 if no sector fits, and the bytes of a granule."""
    if _has_short_rows(time, columns, itemsize):
        return _BANKS_BYTES, _SECTOR
    row_bytes = _max_row_bytes_of_strips(time, _MAX_BLOCK_BYTES)
    if not _has_rows_of_chunks(columns, itemsize):
        cached = _max_row_bytes_of_strips(time, _BYTES_BESIDE_CACHE)
        row_bytes = cached if cached >= _MIN_CACHED_ROW_BYTES else row_bytes
    return row_bytes, _granule_bytes(time, columns, row_bytes, itemsize)


def _max_row_bytes_of_strips(time: int, most: int) -> int:
    """The most bytes of a row if strips take up to `most` bytes of shared memory."""
    if 2 * (time * _GOOD_ROW_BYTES + _OTHER_BYTES) <= most:
        return _GOOD_ROW_BYTES
    return next((size for size in _ROW_BYTES if time * size <= most), 0)


def _has_short_rows(time: int, columns: int, itemsize: int) -> bool:
    """Whether narrow elements are faster in rows of 128 bytes and whole sectors.

    A thread computes the addresses of its first word, which pays only if it has several
    words. The rows of its words are a multiple of the phases apart.
    """
    phases = _rows_until_same_phase(columns, _SECTOR // itemsize)
    return (
        itemsize < _WORD
        and 1 < phases <= _MAX_PHASES
        and time >= _MIN_ROWS_PER_ELEMENT * (_WORD // itemsize) * phases
        and time * _BANKS_BYTES <= _BYTES_BESIDE_CACHE // 2
    )


def _has_rows_of_chunks(columns: int, itemsize: int) -> bool:
    """Whether the rows of a table are whole chunks.

    Its strips are copied past the first-level cache, unless their own rows are not.
    """
    return columns * itemsize % _chunk_bytes(itemsize) == 0


def _chunk_bytes(itemsize: int) -> int:
    """The bytes of which rows consist if they are copied in chunks.

    Narrow elements are faster in chunks only if rows are whole sectors.
    """
    return _SECTOR if itemsize < _WORD else _CHUNK


def _padded(row_bytes: int) -> int:
    """The bytes from one row to the next, with few bank conflicts."""
    if row_bytes <= _SECTOR:
        return row_bytes
    return _round_up(row_bytes, _BANKS_BYTES if row_bytes > _BANKS_BYTES else _SECTOR)


def _granule_bytes(time: int, columns: int, row_bytes: int, itemsize: int) -> int:
    """The size of the granules of strips.

    Stores of whole sectors are the fastest, but such granules leave fewer columns for a
    strip. Narrow elements are not faster with them where two blocks run at once. A
    table of two strips with words as granules would have four or more.
    """
    word = max(_WORD, itemsize)
    may_run_alone = time * row_bytes > _GOOD_BLOCK_BYTES
    if row_bytes == _SECTOR or (itemsize < _WORD and not may_run_alone):
        return word
    if row_bytes == 2 * _SECTOR and columns * itemsize <= 2 * row_bytes:
        return word
    if row_bytes % _SECTOR:  # half or a quarter of a sector, so that they fill the row
        return math.gcd(row_bytes, _SECTOR)
    # The words of a thread are this many rows apart, at the same place in a granule.
    words = (row_bytes - _SECTOR) // word
    rows = _rows_until_same_phase(columns, _SECTOR // itemsize)
    return _SECTOR if words * rows <= _MAX_THREADS else word


def _blocks_beside_cache(size: int) -> int:
    """How many blocks of `size` bytes leave 60 KiB to the first-level cache."""
    return max(_BYTES_BESIDE_CACHE // (size + _OTHER_BYTES), 1)


def _padded_block_bytes(size: int, lengths: int, blocks: int) -> int:
    """`size`, or more where more than these blocks would run at once."""
    if blocks > 6:  # they were not faster with padding
        return size
    too_much = _ALL_BYTES // (blocks + 1) + 1
    return max(size, too_much - _SYSTEM_BYTES - lengths * np.dtype(np.int32).itemsize)


def _threads_of_block(size: int) -> int:
    """The threads of a block that takes so many bytes of shared memory."""
    return _threads(max(_MULTIPROCESSOR_BYTES // (size + _SYSTEM_BYTES), 1))


def _threads(blocks: int) -> int:
    """The threads of each of the blocks that run at once."""
    return -(-_WARPGROUPS_AT_ONCE // blocks) * _WARPGROUP


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _words_until_same_columns(columns: int, word: int) -> int:
    """The number of words of a table from one to the next with the same columns."""
    return columns // math.gcd(columns, word)


def _rows_until_same_phase(columns: int, granule: int) -> int:
    """The number of rows from one to the next with the same place in its granule."""
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
    lengths_per_strip = layout.width + layout.margin

    def body(*refs: Any):
        plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * len(refs))(thread)(*refs)

    def thread(_: Any, *references: Any):
        from dml_jax._shared.gpu_machines import StripMachine

        move(StripMachine(itemsize, *references))

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((x.size,), x.dtype),
        scratch_types=[
            plgpu.SMEM((_round_up(layout.block_bytes, _WORD),), jnp.int8),
            plgpu.SMEM((layout.per_block * lengths_per_strip,), jnp.int32),
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
    """Reverses the strips of a block. A thread works on one of them."""
    batch, time, columns = shape
    slot = machine.thread // layout.threads
    # Threads beyond the last strip store it once more, with the same values.
    index = machine.block * layout.per_block + slot
    index = machine.minimum(index, batch * layout.per_row - 1)
    table = index // layout.per_row
    first = index % layout.per_row * layout.width
    begin = machine.offset(first, table, time * columns)
    strip = _Strip(table, first, begin, slot)
    if _is_in_chunks(columns, layout, machine.itemsize):
        _copy_rows(machine, strip, time, columns, layout)
    else:
        _load_rows(machine, strip, time, columns, layout)
    _load_lengths(machine, strip, columns, step, layout)
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
    for start in range(0, count, layout.threads):
        i = machine.minimum(thread + start, count - 1)
        column = machine.maximum(strip.first + i - layout.margin, 0)
        column = machine.minimum(column, columns - 1)
        length = machine.load_length(strip.table * (columns // step) + column // step)
        machine.store_shared_length(_at_length(strip, i, layout), length)


def _at_length(strip: _Strip, i: Any, layout: Layout) -> Any:
    """Where the length for a column is; columns are counted with the margin."""
    count, word = layout.width + layout.margin, layout.word
    return strip.slot * count + i % word * (count // word) + i // word


def _is_in_chunks(columns: int, layout: Layout, itemsize: int) -> bool:
    """Whether strips are copied in chunks, of which all their rows consist."""
    unit = _chunk_bytes(itemsize) // itemsize
    sizes = (columns, layout.width, layout.margin, layout.pitch)
    return not any(size % unit for size in sizes)


def _copy_rows(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> None:
    """Begins to copy the strip to shared memory, in chunks."""
    per_chunk = _CHUNK // machine.itemsize
    chunks = (layout.width + layout.margin) // per_chunk
    thread, row_step = machine.thread % layout.threads, layout.threads // chunks
    place = thread % chunks * per_chunk
    # Columns outside of the table are replaced by its nearest ones.
    column = machine.maximum(place - layout.margin, 0 - strip.first)
    column = machine.minimum(column, columns - per_chunk - strip.first)
    first = machine.offset(strip.begin, column, 1)
    pitch_bytes = layout.pitch * machine.itemsize
    shared = machine.shared_address(strip.slot * layout.size + place)

    def copy(rows: Sequence[Any]) -> None:
        for row in rows:
            at = machine.offset(first, row, columns)
            machine.copy_to_shared(shared + row * pitch_bytes, at)

    # Idle threads begin after the last row.
    row = machine.select(thread < row_step * chunks, thread // chunks, time)
    machine.for_rows(row, time, row_step, _unroll(time, row_step, _LOADS), copy)


def _load_rows(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> None:
    """Copies the strip to shared memory, where every row begins with a word."""
    word, margin = layout.word, layout.margin
    words = (layout.width + margin) // word
    thread, row_step = machine.thread % layout.threads, layout.threads // words
    # Columns outside of the table are replaced by its nearest one.
    last_column = columns - 1 - strip.first
    column = thread % words * word - margin
    column = machine.maximum(column, 0 - strip.first)
    column = machine.minimum(column, last_column)
    first = machine.offset(strip.begin, column, 1)
    last = machine.minimum(column + (word - 1), last_column)
    last = machine.offset(strip.begin, last, 1)
    pitch_bytes = layout.pitch * machine.itemsize
    shared = machine.shared_address(strip.slot * layout.size + thread % words * word)

    def load(row: Any) -> Any:
        at = machine.offset(first, row, columns)
        value = machine.load_word(at, word)
        if columns % word == 0:
            return value
        following = machine.load_word(machine.offset(last, row, columns), word)
        return machine.join_words(value, following, at)

    def move(rows: Sequence[Any]) -> None:
        values = [load(row) for row in rows]
        for row, value in zip(rows, values, strict=True):
            machine.store_shared(shared + row * pitch_bytes, value, word)

    # Idle threads begin after the last row.
    row = machine.select(thread < row_step * words, thread // words, time)
    machine.for_rows(row, time, row_step, _unroll(time, row_step, _LOADS), move)


def _unroll(time: int, row_step: int, most: int) -> int:
    """How many rows a thread moves at a time, at most `most`."""
    rounds = -(-time // row_step)
    return -(-rounds // -(-rounds // most))


class _Words(NamedTuple):
    """The words of a thread. The elements of the first word have these places."""

    rows: list[Any]
    columns: list[Any]  # counted from the first column of the strip
    row_step: int  # from one word to the next
    are_stored: Callable[[Any], list[Any] | None]  # so many rows later; None: all are


def _words_of_table(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> _Words:
    """Consecutive words of a table, from the one with its first element on."""
    word, thread = layout.word, machine.thread % layout.threads
    period = _words_until_same_columns(columns, word)
    active = layout.threads // period * period
    phase = strip.table * (time * columns % word) % word
    # The first word may begin before row 0. The dividend must not be negative.
    position = thread * word - phase + word * columns
    row = position // columns - word
    column = position - (row + word) * columns
    rows, places = [row], [column]
    for _ in range(word - 1):
        column = column + 1
        if columns % word:  # otherwise a word never ends in another row
            is_in_next_row = column > columns - 1
            row = machine.select(is_in_next_row, row + 1, row)
            column = machine.select(is_in_next_row, 0, column)
        rows.append(row)
        places.append(column)
    # Idle threads begin after the last row.
    rows[0] = machine.select(thread < active, rows[0], time)

    def are_stored(rows_later: Any) -> list[Any] | None:
        if time * columns % word == 0:
            return None
        return [machine.is_between(0, row + rows_later, time) for row in rows]

    return _Words(rows, places, active * word // columns, are_stored)


def _words_of_strip(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> _Words:
    """Words of a strip, of which each row begins with a granule of the array."""
    granule, words = layout.granule, layout.width // layout.word
    thread, row_step = machine.thread % layout.threads, layout.threads // words
    row_step -= row_step % _rows_until_same_phase(columns, granule)
    # Idle threads begin after the last row.
    row = machine.select(thread < row_step * words, thread // words, time)
    column = thread % words * layout.word
    if columns % granule:
        # This may wrap. A granule is a power of two.
        phase = strip.table * (time * columns % granule) + row * columns
        column = column - phase % granule
    places = [column + i for i in range(layout.word)]

    def are_stored(_: Any) -> list[Any] | None:
        if layout.margin == 0 and columns % layout.width == 0:
            return None
        low, high = 0 - strip.first, columns - strip.first
        return [machine.is_between(low, place, high) for place in places]

    return _Words([row] * layout.word, places, row_step, are_stored)


def _store_words(
    machine: Any, strip: _Strip, time: int, columns: int, layout: Layout
) -> None:
    """Stores the words of the reversed strip."""
    find_words = _words_of_table if layout.is_table else _words_of_strip
    words = find_words(machine, strip, time, columns, layout)
    pitch_bytes = layout.pitch * machine.itemsize
    row, place = words.rows[0], words.columns[0]
    begin = machine.offset(machine.offset(strip.begin, place, 1), row, columns)
    same, last, remaining = [], [], []
    for i, (row, place) in enumerate(zip(words.rows, words.columns, strict=True)):
        length = machine.load_shared_length(
            _at_length(strip, place + layout.margin, layout)
        )
        # The loads add i. So the elements of a word in one row share `same`.
        at = strip.slot * layout.size + place + layout.margin - i
        same.append(machine.shared_address(at + row * layout.pitch))
        last.append(machine.shared_address(at + (length - 1 - row) * layout.pitch))
        remaining.append(length - row)

    def load(rows_later: Any) -> list[Any]:
        distance, elements = rows_later * pitch_bytes, []
        for i, (a, b, n) in enumerate(zip(same, last, remaining, strict=True)):
            address = machine.select(rows_later < n, b - distance, a + distance)
            elements.append(machine.load_shared(address, i))
        return elements

    def move(rows: Sequence[Any]) -> None:
        loaded = [load(rows_later) for rows_later in rows]
        for rows_later, elements in zip(rows, loaded, strict=True):
            at = machine.offset(begin, rows_later, columns)
            machine.store(at, elements, words.are_stored(rows_later))

    unroll = _unroll(time, words.row_step, max(_STORES // layout.word, 1))
    rest = time - words.rows[0]
    machine.for_rows(machine.zero, rest, words.row_step, unroll, move)
