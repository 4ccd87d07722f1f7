"""A kernel for Hopper GPUs that reverses columns by lengths of their own.

    y[r, t, c] = table_r[n - 1 - t if t < n else t, c]    with n = lengths[r, c // step]

Neighbouring elements of the result come from distant rows, and memory is read in
sectors of 32 bytes. A block of threads therefore copies a strip of a table, that is all
rows of some columns, to shared memory, and reads its elements there in any order. The
kernel moves as many bytes as a copy. XLA cannot fuse it with surrounding operations.

A thread loads and stores aligned words of 32 bits, or single elements if they are
wider. Rows of the table may begin in the middle of a word:

    loads     If all rows of a strip are aligned, they are copied asynchronously, up to
              16 bytes at once. Otherwise a thread joins parts of two words to one word
              for shared memory, where every row begins with a word.
    stores    In each row, the words of a strip begin with the granule of the array that
              contains its first column, and end before the granule that contains the
              first column of the next strip. A granule is a sector, or part of one.

The words of a thread have the same columns in different rows, so it loads their lengths
once.

What a thread does is written for a `ThreadBuilder`, because Pallas cannot index shared
memory with an array. The builder emits MLIR in a program, and computes in NumPy in the
tests. Its integers have 32 bits: sums and products wrap, and divisions are unsigned.

Pallas and MLIR are imported in functions, because that takes longer than importing the
whole package.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

_MAX_COUNT = 2**31 - 2**16  # signed 32-bit integers count columns, and a strip more
# Bytes of the strips that a multiprocessor holds at once. Its first-level cache keeps
# the other 60 KiB, for the sectors that neighbouring strips and warps share.
_STRIP_BYTES = 192 * 2**10
# Bytes of a row of a strip. Other sizes cause more conflicts between banks.
_ROW_BYTES = (512, 384, 256, 192, 128, 96, 64, 48, 40, 32)
_MAX_ROW_BYTES = 256  # if a table has several strips; wider rows are not faster
_SECTOR = 32  # bytes
_CHUNK = 16  # bytes; the most that a thread copies at once
_WORD = 4  # bytes
_WARPGROUP = 128  # threads
_MAX_THREADS = 1024  # of a block
_THREADS_AT_ONCE = 1536  # of a multiprocessor
_THREADS_FOR_SECTORS = 512  # which any block may have, if it then stores sectors
_ROWS_AT_ONCE = 8  # that a thread loads before it stores the first one


class Layout(NamedTuple):
    """How tables are divided into strips, and strips among threads.

    Sizes are in elements.
    """

    word: int
    granule: int  # stores begin at multiples of it in the array
    margin: int  # columns before its own ones that a strip includes
    width: int  # columns of a strip, without the margin
    pitch: int  # from one row to the next in shared memory
    strips: int  # of a table
    threads: int  # of a block, which moves one strip


def layout_for(time: int, columns: int, itemsize: int) -> Layout | None:
    """The layout, or None if a strip with all rows does not fit in shared memory."""
    row_bytes = _max_row_bytes(time, columns * itemsize)
    if row_bytes == 0:
        return None
    row = row_bytes // itemsize
    word, sector = max(1, _WORD // itemsize), max(1, _SECTOR // itemsize)
    granule = _granule(columns, row, word, sector, _threads(time * row_bytes))
    margin = 0 if columns % granule == 0 else granule
    # A row of a strip begins up to `margin - 1` columns before the strip, so the strips
    # must cover that many more columns.
    covered = columns + max(margin - 1, 0)
    unit = sector if columns % sector == 0 else granule
    strips = _ceil(covered, (row - margin) // unit * unit)
    width = _round_up(_ceil(covered, strips), unit)
    row_bytes = min(n for n in _ROW_BYTES if n >= (width + margin) * itemsize)
    pitch, strips = row_bytes // itemsize, _ceil(covered, width)
    needed = width // word * _rows_until_aligned(columns, granule)
    threads = _round_up(max(needed, _threads(time * row_bytes)), _WARPGROUP)
    return Layout(word, granule, margin, width, pitch, strips, threads)


def _max_row_bytes(time: int, table_row_bytes: int) -> int:
    """The most bytes of a row of a strip, or 0 if the axis is too long."""
    whole = table_row_bytes + 2 * _WORD  # which may have parts of words at both ends
    sizes = (n for n in _ROW_BYTES if n <= _MAX_ROW_BYTES or n >= whole)
    return next((n for n in sizes if time * n <= _STRIP_BYTES), 0)


def _threads(strip_bytes: int) -> int:
    """The threads of a block, in proportion to the shared memory that it takes."""
    return min(_THREADS_AT_ONCE * strip_bytes // _STRIP_BYTES, _MAX_THREADS)


def _granule(columns: int, row: int, word: int, sector: int, threads: int) -> int:
    """The elements of a granule, of strips whose rows have up to `row` elements.

    Stores of whole sectors are the fastest. Parts of sectors fill rows that are not a
    multiple of them. The words of a thread are some rows apart, so that they begin at
    the same place in a granule. If that takes too many threads, granules are words. In
    narrow tables they are words, too, since a margin would be a large part of a row.
    """
    granule = math.gcd(row, sector)
    needed = (row - granule) // word * _rows_until_aligned(columns, granule)
    if row == granule or columns <= 2 * row:
        return word
    return granule if needed <= max(threads, _THREADS_FOR_SECTORS) else word


def _rows_until_aligned(columns: int, granule: int) -> int:
    """The number of rows from one to the next with the same place in its granule."""
    return granule // math.gcd(columns, granule)


def _ceil(size: int, unit: int) -> int:
    return -(-size // unit)


def _round_up(size: int, unit: int) -> int:
    return _ceil(size, unit) * unit


def reverse(x: Array, lengths: Array) -> Array | None:
    """`x` [R, T, L, C], reversed along T by the `lengths` [R, 1, L, 1].

    The result is None if the axis is too long for shared memory, or if there are too
    many columns for 32 bits. Elements are integers or floats of 8 to 64 bits.
    """
    rows, time, lines, step = x.shape
    layout = layout_for(time, lines * step, x.dtype.itemsize)
    if layout is None or max(lines * step, rows * lines) > _MAX_COUNT:
        return None
    tables = x.reshape(rows, time, lines * step)
    if x.dtype == jnp.float64:  # which Mosaic does not have
        tables = lax.bitcast_convert_type(tables, jnp.uint64)
    y = _launch(tables, lengths.reshape(-1).astype(jnp.int32), step, layout)
    return lax.bitcast_convert_type(y, x.dtype).reshape(x.shape)


def _launch(x: Array, lengths: Array, step: int, layout: Layout) -> Array:
    """`x` [R, T, C], reversed along T by the flat `lengths` [R * C // step]."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    rows, time, _ = x.shape
    itemsize = x.dtype.itemsize
    move = functools.partial(reverse_strip, shape=x.shape, step=step, layout=layout)

    def body(*references: Any):
        types = (plgpu.RefType(),) * len(references)
        plgpu.inline_mgpu(arg_types=types)(thread)(*references)

    def thread(_: Any, *references: Any):
        from dml_jax._reverse.thread_builder import ThreadBuilder

        move(ThreadBuilder(itemsize, *references))

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((x.size,), x.dtype),
        scratch_types=[plgpu.SMEM((time * layout.pitch * itemsize,), jnp.int8)],
        grid=(rows * layout.strips,),
        grid_names=("block",),
        num_threads=layout.threads // _WARPGROUP,
        thread_name="warpgroup",
    )
    # Since jax 0.11 the jaxpr of a kernel holds Pallas references, which
    # `jax_check_tracer_leaks` reports as leaks.
    with jax.check_tracer_leaks(False):
        return kernel(x.reshape(-1), lengths).reshape(x.shape)


# What a thread does -------------------------------------------------------------------


class _Strip(NamedTuple):
    """The strip of a block. Its columns are counted from the first one."""

    shape: Sequence[int]  # of all tables
    layout: Layout
    table: Any
    first: Any  # column
    begin: Any  # offset of the first element in the array

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The first column of the table, and the end of its columns."""
        return 0 - self.first, self.shape[2] - self.first


def reverse_strip(
    builder: Any, *, shape: Sequence[int], step: int, layout: Layout
) -> None:
    """Reverses the strip of a block."""
    _, time, columns = shape
    table = builder.block // layout.strips
    first = builder.block % layout.strips * layout.width
    begin = builder.offset(first, table, time * columns)
    strip = _Strip(shape, layout, table, first, begin)
    _load(builder, strip)
    words = _words(builder, strip)
    lengths = _lengths(builder, strip, words, step)
    builder.wait()
    _store(builder, strip, words, lengths)


def _load(builder: Any, strip: _Strip) -> None:
    """Copies the strip to shared memory."""
    (_, time, columns), layout = strip.shape, strip.layout
    copied = _copied_at_once(columns, layout, builder.itemsize)
    count = copied or layout.word
    per_row = (layout.width + layout.margin) // count
    thread, row_step = builder.thread, layout.threads // per_row
    # Columns outside the table are replaced by its nearest ones.
    low, high = strip.bounds
    place = thread % per_row * count
    column = builder.maximum(place - layout.margin, low)
    column = builder.minimum(column, high - max(copied, 1))
    last_column = builder.minimum(column + (layout.word - 1), high - 1)
    begin = builder.offset(strip.begin, column, 1)
    last = builder.offset(strip.begin, last_column, 1)
    shared = builder.shared_address(place)
    pitch_bytes = layout.pitch * builder.itemsize

    def load(row: Any) -> Any:
        at = builder.offset(begin, row, columns)
        word = builder.load_word(at, count)
        next_word = builder.load_word(builder.offset(last, row, columns), count)
        return builder.join_words(word, next_word, at)

    def move(rows: Sequence[Any]) -> None:
        if copied:
            for row in rows:
                at = builder.offset(begin, row, columns)
                builder.copy_to_shared(shared + row * pitch_bytes, at, count)
        else:
            for row, word in zip(rows, [load(row) for row in rows], strict=True):
                builder.store_shared(shared + row * pitch_bytes, word, count)

    # Idle threads begin after the last row.
    row = builder.select(thread < row_step * per_row, thread // per_row, time)
    builder.for_rows(row, time, row_step, _unroll(time, row_step, _ROWS_AT_ONCE), move)


def _copied_at_once(columns: int, layout: Layout, itemsize: int) -> int:
    """The elements that a thread copies at once, or 0 if rows begin within words."""
    sizes = (columns, layout.width, layout.margin, layout.pitch)
    nbytes = math.gcd(*(size * itemsize for size in sizes), _CHUNK)
    return nbytes // itemsize if nbytes >= _WORD else 0


def _unroll(time: int, row_step: int, most: int) -> int:
    """How many rows a thread moves at a time, at most `most`."""
    rounds = _ceil(time, row_step)
    return _ceil(rounds, _ceil(rounds, most))


class _Words(NamedTuple):
    """The words that a thread stores."""

    row: Any  # of the first word
    row_step: int  # from one word to the next
    columns: list[Any]  # of the elements of each word
    are_stored: list[Any] | None  # whether they are in the table; None if all are


def _words(builder: Any, strip: _Strip) -> _Words:
    (_, time, columns), layout = strip.shape, strip.layout
    thread, per_row = builder.thread, layout.width // layout.word
    row, column = thread // per_row, thread % per_row * layout.word
    row_step = layout.threads // per_row
    row_step -= row_step % _rows_until_aligned(columns, layout.granule)
    if columns % layout.granule:
        # This may wrap. A granule is a power of two.
        phase = strip.table * (time * columns % layout.granule) + row * columns
        column = column - phase % layout.granule
    in_word = [column + i for i in range(layout.word)]
    low, high = strip.bounds
    is_in_table = (in_word[-1] > low - 1) & (in_word[0] < high)
    # Idle threads begin after the last row.
    row = builder.select((thread < row_step * per_row) & is_in_table, row, time)
    if columns % layout.word == 0:
        return _Words(row, row_step, in_word, None)
    are_stored = [(i > low - 1) & (i < high) for i in in_word]
    return _Words(row, row_step, in_word, are_stored)


def _lengths(builder: Any, strip: _Strip, words: _Words, step: int) -> list[Any]:
    """The lengths for the elements of a word."""
    columns = strip.shape[2]
    line = strip.table * (columns // step)
    lengths = []
    for column in words.columns:
        column = builder.maximum(strip.first + column, 0)
        column = builder.minimum(column, columns - 1)
        lengths.append(builder.load_length(line + column // step))
    return lengths


def _store(builder: Any, strip: _Strip, words: _Words, lengths: list[Any]) -> None:
    """Stores the words of the reversed strip."""
    (_, time, columns), layout = strip.shape, strip.layout
    pitch_bytes = layout.pitch * builder.itemsize
    place = words.columns[0]
    begin = builder.offset(strip.begin, place, 1)
    shared = builder.shared_address(place + layout.margin)

    def load(row: Any) -> list[Any]:
        sources = (builder.select(row < n, n - 1 - row, row) for n in lengths)
        return [
            builder.load_shared(shared + source * pitch_bytes, i)
            for i, source in enumerate(sources)
        ]

    def move(rows: Sequence[Any]) -> None:
        for row, word in zip(rows, [load(row) for row in rows], strict=True):
            at = builder.offset(begin, row, columns)
            builder.store(at, word, words.are_stored)

    unroll = _unroll(time, words.row_step, _ROWS_AT_ONCE // layout.word)
    builder.for_rows(words.row, time, words.row_step, unroll, move)
