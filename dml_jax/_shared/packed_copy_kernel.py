"""A GPU kernel that copies elements from unaligned positions, in chunks of 16 bytes.

In XLA's kernels a thread loads elements one by one. It stores four elements if their
number is divisible by four, two if it is even, else one. For narrow elements, and for
odd sizes of 32-bit ones, that leaves most of the bandwidth unused. Here a thread stores
a chunk of 16 bytes at once. It loads the aligned words in which its elements lie,
shifts them to where the elements begin, and permutes the bytes.

    reverse                  y[r, k, l, c] = x[r, n - 1 - k if k < n else k, l, c]
                             with n = lengths[r, l]
    strided_slice            y[i] = x[start + stride * i]
    strided_slice_transpose  y[start + stride * i] = g[i], 0 everywhere else

A chunk that crosses the end of a row or of a length is blended from two chunks. A row
spans the last dimensions of the result, as many as are contiguous in both arrays.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from dml_jax._shared import chunk_kernel
from dml_jax._shared.chunk_kernel import CHUNK, WORD, Completion

_CHUNKS_OF_SLICE = 2  # that a thread stores
_CHUNKS_OF_REVERSAL = 4
_NARROW_CHUNKS_AT_ONCE = 2  # whose loads begin before one is completed
_MAX_ITEMSIZE_OF_TRANSPOSE = 2  # XLA pads wider elements as fast
_MAX_STRIDE = 8  # bytes; with longer strides too many bytes are loaded in vain


class Dim(NamedTuple):
    """A dimension, and the positions start + stride * i in it, for 0 <= i < size."""

    extent: int
    start: int
    size: int
    stride: int
    sign: int  # -1 if the dimension is reversed

    @property
    def is_consecutive(self) -> bool:
        return (self.stride, self.sign) == (1, 1)


def reverse(x: Array, lengths: Array) -> Array | None:
    """`x` [R, T, L, C], of 8 to 32 bits, reversed along T; or None.

    The lengths have the shape [R * L]. Unless L is 1, C elements must have 16 bytes or
    more.
    """
    rows, time, lines, step = x.shape
    moves_chunks = step * x.dtype.itemsize >= CHUNK
    row_size = step if moves_chunks else time * lines * step
    is_row = moves_chunks or lines == 1
    if not is_row or not _is_supported(x.dtype, WORD, row_size, x.size):
        return None
    if moves_chunks:
        load = functools.partial(_words_of_long_steps, shape=x.shape)
        chunk = functools.partial(_chunk_of_rows, load=load, row_size=row_size)
    else:
        chunk = functools.partial(
            _chunk_of_short_steps, rows=rows, row_size=row_size, step=step
        )
    return _launch(chunk, x.shape, _CHUNKS_OF_REVERSAL, x, lengths)


def strided_slice(x: Array, window: Any) -> Array | None:
    """The elements in a strided window of `x`, of 8 to 32 bits; or None."""
    dims = merged_dims(x.shape, window)
    size = max(x.size, math.prod(window.sizes))
    if not _is_dense(x.dtype, dims) or not _is_supported(
        x.dtype, WORD, dims[-1].size, size
    ):
        return None
    load = functools.partial(_sliced_words, dims=dims)
    chunk = functools.partial(_chunk_of_rows, load=load, row_size=dims[-1].size)
    return _launch(chunk, window.sizes, _CHUNKS_OF_SLICE, x)


def strided_slice_transpose(
    gradient: Array, shape: tuple[int, ...], window: Any
) -> Array | None:
    """Zeros of this shape, with `gradient` in a strided window of them; or None."""
    dims = merged_dims(shape, window)
    size = math.prod(shape) * min(gradient.size, 1)
    if not _is_dense(gradient.dtype, dims) or not _is_supported(
        gradient.dtype, _MAX_ITEMSIZE_OF_TRANSPOSE, dims[-1].extent, size
    ):
        return None
    load = functools.partial(_padded_words, dims=dims)
    chunk = functools.partial(_chunk_of_rows, load=load, row_size=dims[-1].extent)
    return _launch(chunk, shape, _CHUNKS_OF_SLICE, gradient)


def _is_dense(dtype: np.dtype, dims: Sequence[Dim]) -> bool:
    """Whether consecutive elements are close enough for one vector load."""
    return bool(dims) and dims[-1].stride * dtype.itemsize <= _MAX_STRIDE


def _is_supported(dtype: np.dtype, max_itemsize: int, row_size: int, size: int) -> bool:
    """Whether the kernel supports the dtype and the sizes of the row and the array.

    A chunk may lie in at most two rows, and positions in bytes must fit 32 bits.
    """
    if dtype.kind not in "iuf" or dtype.itemsize > max_itemsize:
        return False
    is_long = row_size * dtype.itemsize >= CHUNK
    return is_long and 0 < size * dtype.itemsize <= chunk_kernel.MAX_BYTES


def merged_dims(shape: Sequence[int], window: Any) -> list[Dim]:
    """The dimensions, merged where they are contiguous in both arrays."""
    dims = []
    for d, numbers in enumerate(
        zip(shape, window.starts, window.sizes, window.strides, strict=True)
    ):
        dim = Dim(*numbers, -1 if d in window.reversed_dims else 1)
        is_whole = dim == (dim.extent, 0, dim.extent, 1, 1)
        if is_whole and dims and dims[-1].is_consecutive:
            extent, start, size = (n * dim.extent for n in dims.pop()[:3])
            dim = Dim(extent, start, size, 1, 1)
        dims.append(dim)
    return dims


def _launch(
    chunk: Any, shape: Sequence[int], chunks: int, x: Array, *lengths: Array
) -> Array:
    result = jax.ShapeDtypeStruct(tuple(shape), x.dtype)
    at_once = _NARROW_CHUNKS_AT_ONCE if x.dtype.itemsize < WORD else 1
    return chunk_kernel.launch(
        chunk, result, x, *lengths, chunks=chunks, at_once=at_once
    )


# What a thread computes ---------------------------------------------------------------


def _chunk_of_rows(
    machine: Any, position: Any, *, load: Callable[..., Any], row_size: int
) -> Completion:
    """Loads the chunk that starts at `position`, from at most two rows."""
    row, column = position // row_size, position % row_size
    words, left = load(machine, row, column), row_size - column

    def complete():
        if row_size % machine.per_chunk == 0:
            return words
        return machine.cond(
            left < machine.per_chunk,
            lambda: _blend(machine, words, load(machine, row + 1, 0 - left), left),
            words,
        )

    return complete


def _words_of_long_steps(
    machine: Any, row: Any, column: Any, *, shape: Sequence[int]
) -> Sequence[Any]:
    """Words of one step, which is moved as a whole."""
    rows, time, lines, step = shape
    row = machine.minimum(row, rows * time * lines - 1)
    k, outer = row // lines % time, row // (time * lines)
    length = machine.load_length(outer * lines + row % lines)
    distance = machine.select(k < length, length - 1 - k - k, 0)
    first = (row + distance * lines) * step + column
    return _load(machine, first, machine.per_chunk, step * machine.itemsize)


def _chunk_of_short_steps(
    machine: Any, position: Any, *, rows: int, row_size: int, step: int
) -> Completion:
    """Loads the chunk that starts at `position`, in rows of steps to be reversed."""

    def load(row: Any, column: Any) -> tuple[list[Any], Any]:
        length = machine.load_length(machine.minimum(row, rows - 1))
        left = length * step - column
        return _reversed_steps(machine, row * row_size, column, left, step), left

    def blend_at_length(words: list[Any], left: Any) -> list[Any]:
        vector = machine.minimum(position // machine.per_chunk, machine.last_vector)
        copied = machine.load_vector(vector)
        return _blend(machine, words, copied, left)

    row, column = position // row_size, position % row_size
    words, left_in_length = load(row, column)
    left_in_row = row_size - column

    def add_next_row(words: list[Any]) -> list[Any]:
        next_row = blend_at_length(*load(row + 1, 0 - left_in_row))
        return _blend(machine, words, next_row, left_in_row)

    def complete():
        crosses_length = (left_in_length > 0) & (left_in_length < machine.per_chunk)
        chunk = machine.cond(
            crosses_length, lambda: blend_at_length(words, left_in_length), words
        )
        if row_size % machine.per_chunk == 0:
            return chunk
        crosses_row = left_in_row < machine.per_chunk
        return machine.cond(crosses_row, lambda: add_next_row(chunk), chunk)

    return complete


def _reversed_steps(
    machine: Any, begin: Any, column: Any, left: Any, step: int
) -> list[Any]:
    """The words at a column of the row that starts at `begin`.

    `left` counts the elements from the column to the end of the length. If it is
    positive, the steps are reversed.
    """
    is_reversed = left > 0
    if step == 1:
        first = machine.select(is_reversed, left - machine.per_chunk, column)
        return _load_in_either_order(machine, begin + first, is_reversed)
    steps, phase = _steps_of_chunk(machine, column, step)
    count = steps * step
    first = machine.select(is_reversed, left + phase - count, column)
    words = _load(machine, begin + first, count)
    order = [step * k + c for k in reversed(range(steps)) for c in range(step)]
    picked = _pick_elements(machine, words, order)
    picked = _drop_bytes(machine, picked, phase * machine.itemsize)
    pairs = zip(picked, words, strict=False)
    return [machine.select(is_reversed, *pair) for pair in pairs][: CHUNK // WORD]


def _steps_of_chunk(machine: Any, column: Any, step: int) -> tuple[int, Any]:
    """The number of steps a chunk may lie in, and its position in the first of them."""
    # An offset that keeps the dividend from being negative.
    offset = -(-machine.per_chunk // step) * step
    return -(-(machine.per_chunk + step - 1) // step), (column + offset) % step


def _sliced_words(machine: Any, row: Any, column: Any, *, dims: Sequence[Dim]) -> Any:
    *outer, dim = dims
    begin, pitch, count = dim.start, dim.extent, machine.per_chunk
    for outer_dim in reversed(outer):
        index, row = row % outer_dim.size, row // outer_dim.size
        if outer_dim.sign < 0:
            index = outer_dim.size - 1 - index
        begin = (index * outer_dim.stride + outer_dim.start) * pitch + begin
        pitch *= outer_dim.extent
    first = column if dim.sign > 0 else dim.size - count - column
    words = _load(machine, first * dim.stride + begin, (count - 1) * dim.stride + 1)
    order = [dim.stride * k for k in range(count)][:: dim.sign]
    return _pick_elements(machine, words, order)


def _padded_words(machine: Any, row: Any, column: Any, *, dims: Sequence[Dim]) -> Any:
    *outer, dim = dims
    begin, pitch, conditions = 0, dim.size, []
    for outer_dim in reversed(outer):
        index, row = row % outer_dim.extent, row // outer_dim.extent
        index, is_inside = _index_in_window(machine, index, outer_dim)
        begin = index * pitch + begin
        pitch *= outer_dim.size
        conditions.append(is_inside)
    words = _padded_words_of_row(machine, begin, column, dim)
    for is_inside in conditions:
        words = [machine.select(is_inside, word, machine.zero) for word in words]
    return words


def _padded_words_of_row(machine: Any, begin: Any, column: Any, dim: Dim) -> Any:
    stride, count = dim.stride, machine.per_chunk
    # An offset that keeps the dividend from being negative.
    offset = -(-(dim.start + count) // stride)
    distance = column + (offset * stride - dim.start)
    index, phase = distance // stride - offset, distance % stride
    loaded = (count + stride - 2) // stride + 1
    first = index if dim.sign > 0 else dim.size - loaded - index
    words = _load(machine, first + begin, loaded)
    words = _pick_elements(machine, words, range(loaded)[:: dim.sign], stride)
    words = _drop_bytes(machine, words, phase * machine.itemsize)[: CHUNK // WORD]
    zeros = [machine.zero] * len(words)
    words = _blend(machine, zeros, words, dim.start - column)
    end = dim.start + stride * (dim.size - 1) + 1
    return _blend(machine, words, zeros, end - column)


def _index_in_window(machine: Any, position: Any, dim: Dim) -> tuple[Any, Any]:
    """The index in the window of a position, and whether it is in the window."""
    distance = position - dim.start
    index = machine.maximum(distance, 0) // dim.stride
    is_inside = (
        (distance > -1) & (distance < index * dim.stride + 1) & (index < dim.size)
    )
    return (index if dim.sign > 0 else dim.size - 1 - index), is_inside


def _load(machine: Any, first: Any, count: int, alignment: int = 1) -> list[Any]:
    """The words of `count` elements from `first` on; undefined out of bounds.

    The address of the first one is a multiple of `alignment`.
    """
    alignment = max(math.gcd(alignment, CHUNK), machine.itemsize)
    span = count * machine.itemsize
    words, shift = _load_vectors(machine, first, span, alignment)
    return _drop_bytes(machine, words, shift, alignment)[: -(-span // WORD)]


def _load_in_either_order(machine: Any, first: Any, is_reversed: Any) -> list[Any]:
    """The words of the chunk from `first` on, in reverse order if `is_reversed`."""
    words, shift = _load_vectors(machine, first, CHUNK, machine.itemsize)
    words = _drop_words(machine, words, shift, machine.itemsize)
    if machine.itemsize == WORD:
        words = words[: CHUNK // WORD]
    else:
        # One permutation drops up to three leading bytes and reverses a word.
        order = {1: 0x0123, 2: 0x1032}[machine.itemsize]
        selector = (shift & 3) * 0x1111 + machine.select(is_reversed, order, 0x3210)
        pairs = itertools.pairwise(words[: CHUNK // WORD + 1])
        words = [machine.permute_bytes(*pair, selector) for pair in pairs]
    pairs = zip(reversed(words), words, strict=True)
    return [machine.select(is_reversed, *pair) for pair in pairs]


def _load_vectors(
    machine: Any, first: Any, span: int, alignment: int
) -> tuple[list[Any], Any]:
    """The words of aligned vectors with `span` bytes, and where the bytes begin."""
    first = first * machine.itemsize
    vector, words = first >> 4, []
    for i in range(-(-(span + CHUNK - alignment) // CHUNK)):
        in_bounds = machine.minimum(vector + i, machine.last_vector)
        words += machine.load_vector(machine.maximum(in_bounds, 0))
    return words, first & 15


def _drop_bytes(
    machine: Any, words: list[Any], count: Any, alignment: int = 1
) -> list[Any]:
    """The words without the first `count` bytes.

    The count is at most 15, and a multiple of `alignment`.
    """
    words = _drop_words(machine, words, count, alignment)
    if max(alignment, machine.itemsize) >= WORD:
        return words
    bits = (count & 3) * 8
    return [machine.funnel_shift(*pair, bits) for pair in itertools.pairwise(words)]


def _drop_words(
    machine: Any, words: list[Any], count: Any, alignment: int
) -> list[Any]:
    """Drops the whole words among the first `count` bytes."""
    words = [*words, *[machine.zero] * 4]
    for size in (8, 4):
        if alignment <= size:
            is_dropped = (count & size) > 0
            later = words[size // WORD :]
            words = [
                machine.select(is_dropped, *pair)
                for pair in zip(later, words, strict=False)
            ]
    return words


def _pick_elements(
    machine: Any, words: list[Any], elements: Sequence[int], stride: int = 1
) -> list[Any]:
    """The elements with these indices, `stride` elements apart, among zeros."""
    itemsize = machine.itemsize
    sources: list[Any] = [None] * -(-stride * itemsize * len(elements) // WORD * WORD)
    for k, element in enumerate(elements):
        for b in range(itemsize):
            sources[stride * itemsize * k + b] = divmod(itemsize * element + b, WORD)
    return [
        _pick_bytes(machine, words, sources[i : i + WORD])
        for i in range(0, len(sources), WORD)
    ]


def _pick_bytes(machine: Any, words: list[Any], sources: Sequence[Any]) -> Any:
    """A word of four bytes, each given by a word and a byte in it, or None for zero."""
    picked = machine.zero
    for number in sorted({source[0] for source in sources if source is not None}):
        bytes_of_pair = [
            WORD + source[1] if source is not None and source[0] == number else i
            for i, source in enumerate(sources)
        ]
        selector = sum(byte << 4 * i for i, byte in enumerate(bytes_of_pair))
        picked = machine.permute_bytes(picked, words[number], selector)
    return picked


def _blend(machine: Any, before: list[Any], after: list[Any], count: Any) -> list[Any]:
    """The first `count` elements of `before`, followed by those of `after`."""
    count = machine.maximum(machine.minimum(count, machine.per_chunk), 0)
    bits, blended = count * (8 * machine.itemsize), []
    for i, pair in enumerate(zip(before, after, strict=True)):
        kept = machine.maximum(machine.minimum(bits - 32 * i, 32), 0)
        blended.append(machine.blend_bits(*pair, kept))
    return blended
