"""Rows and lanes of the vector registers of a TPU, in Pallas kernels.

A register has 8 rows, the sublanes, of 128 words, the lanes. A word has 32 bits. A word
holds narrow elements of consecutive rows: bytes of 4 rows, for example.

Indices are divided by `lax.div`. The lowering of `//` asks for the kind of the default
device, but a program may be lowered for another one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared.tpu import (
    LANES,
    SUBLANES,
    WORD,
    gather,
    iota,
    rows_per_register,
)

_UNROLL = 128  # registers that a loop moves at once
_UNROLL_SPAN = 64  # registers in which their rows may lie, if there is a stride


class Dim(NamedTuple):
    """A dimension with a window: the indices start + stride * i for 0 <= i < size."""

    extent: int
    start: int
    size: int
    stride: int
    is_reversed: bool

    @property
    def sign(self) -> int:
        return -1 if self.is_reversed else 1

    @property
    def first(self) -> int:
        """The index of the first element of the slice."""
        last = self.start + self.stride * (self.size - 1)
        return last if self.is_reversed else self.start


def word_dtype(dtype: np.dtype) -> Any:
    return dtype if dtype.itemsize == WORD else jnp.uint32


def divide(x: Any, divisor: int) -> tuple[Any, Any]:
    """`divmod` for an integer between -2^30 and 2^30."""
    multiple = 2**30 // divisor
    quotient = lax.div(x + multiple * divisor, divisor)
    return quotient - multiple, x + multiple * divisor - quotient * divisor


# Loads and stores ---------------------------------------------------------------------


def view(
    block: Any, outer: tuple[Any, ...], first: Any, count: int, column: Any
) -> Any:
    """The part of a block with `count` registers in a column, from `first` on.

    Its elements are words.
    """
    from jax.experimental import pallas as pl

    if block.dtype.itemsize < WORD:
        block = block.bitcast(jnp.uint32)
    row = pl.multiple_of(first * SUBLANES, SUBLANES)
    lane = pl.multiple_of(column * LANES, LANES)
    return block.at[(*outer, pl.ds(row, count * SUBLANES), pl.ds(lane, LANES))]


def load(view: Any, k: int) -> Array:
    """Register k of a view."""
    return view[SUBLANES * k : SUBLANES * (k + 1), :]


def store(view: Any, k: int, words: Array) -> None:
    view[SUBLANES * k : SUBLANES * (k + 1), :] = words


def rows_per_tile(size: int, dtype: np.dtype) -> int:
    """The rows of words that are adjacent in memory, for a dimension of this size.

    A dimension of narrow elements that is no multiple of a register is stored in tiles
    of eight rows of elements.
    """
    is_whole = size % rows_per_register(dtype) == 0
    return SUBLANES if is_whole else SUBLANES * dtype.itemsize // WORD


def copy(sources: list[Any], targets: list[Any], count: int, tile: int) -> None:
    """Copies registers by tiles.

    All loads come first, since the compiler moves no load before a store.
    """
    at = [slice(tile * k, tile * (k + 1)) for k in range(count * SUBLANES // tile)]
    values = [[view[rows, :] for rows in at] for view in sources]
    for view, values_of_view in zip(targets, values, strict=True):
        for rows, value in zip(at, values_of_view, strict=True):
            view[rows, :] = value


def store_all(views: list[Any], values: list[list[Array]]) -> None:
    for view, values_of_view in zip(views, values, strict=True):
        for k, value in enumerate(values_of_view):
            store(view, k, value)


def at_once(rows: int, count: int) -> int:
    """How many of `count` columns or planes of `rows` rows of words a loop moves."""
    return max(1, min(count, _UNROLL * SUBLANES // rows))


def repeat_unrolled(
    count: int, body: Callable[[Any, int], None], unroll: int = _UNROLL
) -> None:
    """Calls `body(first, n)` for all numbers below `count`, n of them at a time."""
    whole, rest = divmod(count, unroll)
    if whole:
        lax.fori_loop(0, whole, lambda i, _: body(i * unroll, unroll), None)
    if rest:
        body(whole * unroll, rest)


# Rows ---------------------------------------------------------------------------------


class _Part(NamedTuple):
    """The elements of a word that come from one row of strided words, by one shift."""

    row: int  # of words, from the first strided row on
    shift: int  # bits to the right, from strided to consecutive words
    consecutive: int  # mask
    strided: int  # mask


class StridedRows:
    """Some registers whose rows are a stride apart in VMEM, with lanes in one column.

    Row i of elements, for i from 0 on, is `first + stride * i`, or `first - stride * i`
    if the dimension is reversed. In VMEM there is a margin before row 0, and another
    one after the last row. Loads and stores of rows that do not exist go there.
    """

    def __init__(self, dim: Dim, first: int, dtype: np.dtype, count: int) -> None:
        self._stride, self._sign = dim.stride, dim.sign
        self._per_word = WORD // dtype.itemsize
        self._row, self._parts = self._parts_from(first)
        most = min(count, _UNROLL, _UNROLL_SPAN // dim.stride)
        self.unroll = max(1, most)
        rows = (SUBLANES * self.unroll + 1) * dim.stride
        self.margin = -(-rows // SUBLANES) * SUBLANES

    def _parts_from(self, first: int) -> tuple[int, list[_Part]]:
        """The first row of words, and the parts of which the words consist."""
        bits = 32 // self._per_word
        steps = [self._sign * self._stride * k for k in range(self._per_word)]
        places = [divmod(first + step, self._per_word) for step in steps]
        lowest = min(row for row, _ in places)
        masks: dict[tuple[int, int], tuple[int, int]] = {}
        for k, (row, element) in enumerate(places):
            key = row - lowest, bits * (element - k)
            consecutive, strided = masks.get(key, (0, 0))
            masks[key] = (
                consecutive | _ones(bits) << bits * k,
                strided | _ones(bits) << bits * element,
            )
        return lowest, [_Part(*key, *mask) for key, mask in masks.items()]

    def view(self, words: Any, first: Any, count: int) -> Any:
        """Consecutive rows of words in VMEM."""
        from jax.experimental import pallas as pl

        row = pl.multiple_of(self.margin + first * SUBLANES, SUBLANES)
        return words.at[pl.ds(row, count * SUBLANES), :]

    def lowest(self, first: Any, count: int, rows: int, offset: Any) -> Any:
        """The lowest row of words of `count` registers, moved by rows of elements."""
        group = SUBLANES * self._stride
        row = self._row + self._sign * group * first
        if self._sign < 0:
            row -= group * count - self._stride
        row += self.margin + lax.div(offset, self._per_word)
        return jnp.clip(row, 0, rows - self.margin)

    def load(self, words: Any, lowest: Any, k: int, count: int) -> Array:
        """Register k of `count`."""
        rows = dict.fromkeys(part.row for part in self._parts)
        strided = {row: words[self._rows(lowest, k, count, row), :] for row in rows}
        parts = (
            _masked(_shift_right(strided[part.row], part.shift), part.consecutive)
            for part in self._parts
        )
        value = functools.reduce(lambda one, other: one | other, parts)
        return reverse_sublanes(value) if self._sign < 0 else value

    def store(self, words: Any, lowest: Any, k: int, count: int, value: Array) -> None:
        """Puts register k of `count` into rows that are zero."""
        value = reverse_sublanes(value) if self._sign < 0 else value
        strided: dict[int, Array] = {}
        for part in self._parts:
            bits = _masked(_shift_right(value, -part.shift), part.strided)
            others = strided.get(part.row)
            strided[part.row] = bits if others is None else others | bits
        # Stores whose first rows differ by a multiple of the stride overlap.
        is_shared = len({row % self._stride for row in strided}) < len(strided)
        for row, bits in strided.items():
            at = self._rows(lowest, k, count, row)
            words[at, :] = words[at, :] | bits if is_shared else bits

    def _rows(self, lowest: Any, k: int, count: int, row: int) -> Any:
        from jax.experimental import pallas as pl

        k = count - 1 - k if self._sign < 0 else k
        first = lowest + (SUBLANES * self._stride * k + row)
        return pl.ds(first, SUBLANES, self._stride)


def first_rows(words: Array, count: Any, rows: int) -> Array:
    """The first `count` of the `rows` rows of elements of a register, and zeros."""
    zeros = jnp.zeros_like(words)
    unused = 32 * (iota(0) + 1) - 32 * SUBLANES // rows * count  # bits of a word
    if rows == SUBLANES:
        return jnp.where(unused <= 0, words, zeros)
    ones = jnp.full_like(words, _ones(32))
    shift = jnp.clip(unused, 0, 31).astype(words.dtype)
    mask = lax.shift_right_logical(ones, shift)
    return jnp.where(unused < 32, words & mask, zeros)


def reverse_sublanes(words: Array) -> Array:
    """The rows in the opposite order: row i comes from row 7 - i, by a roll."""
    from jax.experimental.pallas import tpu as pltpu

    row = iota(0) % 4  # rows i and i + 4 are rolled by the same number
    value = pltpu.roll(words, 1, 0)
    for i in (1, 2, 3):
        value = jnp.where(row == i, pltpu.roll(words, 2 * i + 1, 0), value)
    return value


# Lanes --------------------------------------------------------------------------------


class LaneGather:
    """Collects strided lanes of consecutive registers in one register.

    Lane i, for i from 0 on, is `first + stride * i`, or `first - stride * i` if the
    dimension is reversed.
    """

    def __init__(self, dim: Dim, first: int) -> None:
        self._dim = dim
        span = dim.stride * (LANES - 1)
        self._register, self._lane = divmod(first - span * dim.is_reversed, LANES)
        self.count = (self._lane + span) // LANES + 1

    def registers(self, column: Any, offset: Any) -> list[Any]:
        """The registers of a column of the result, the lowest first."""
        lowest = self._register + self._dim.sign * self._dim.stride * column
        lowest += lax.div(offset, LANES)
        return [lowest + k for k in range(self.count)]

    def __call__(self, registers: list[Array]) -> Array:
        dim = self._dim
        if dim.stride == 1 and not dim.is_reversed and self._lane == 0:
            return registers[0]
        lane = LANES - 1 - iota(1) if dim.is_reversed else iota(1)
        index = self._lane + dim.stride * lane
        first, *others = registers
        if len(others) == dim.stride:
            first = _with_low_lanes(first, self._lane, others.pop())
        value = _gather_lanes(first, index)
        for k, register in enumerate(others, 1):
            is_taken = (index >= k * LANES) & (index < (k + 1) * LANES)
            value = jnp.where(is_taken, _gather_lanes(register, index), value)
        return value


class LaneSpread:
    """Spreads the lanes of two registers over one register, with zeros in between.

    Lane i, for i from 0 on, gets the place `first + stride * i`, or
    `first - stride * i` if the dimension is reversed. Lanes from `size` on are dropped.
    """

    def __init__(
        self, dim: Dim, first: int, column: Any, moved: Any, size: Any
    ) -> None:
        lane, distance = iota(1), column * LANES - first
        if dim.is_reversed:
            lane, distance = LANES - 1 - lane, -distance - (LANES - 1)
        quotient, remainder = divide(distance, dim.stride)
        step = lax.div(remainder + lane, jnp.full_like(lane, dim.stride))
        element = quotient - moved + step
        is_element = step * dim.stride == remainder + lane
        self._is_element = is_element & (element >= 0) & (element < size)
        register = (quotient - moved) >> 7
        self._lane = quotient - moved - register * LANES  # the lowest one
        self._index = element - register * LANES
        self.registers = [register, register + 1]

    def __call__(self, registers: list[Array]) -> Array:
        low, high = registers
        lanes = _gather_lanes(_with_low_lanes(low, self._lane, high), self._index)
        return jnp.where(self._is_element, lanes, jnp.zeros_like(lanes))


def _with_low_lanes(words: Array, lane: Any, others: Array) -> Array:
    """The words, but with the lanes below `lane` of other ones.

    A stride takes different lanes of the first and of the last register, so one gather
    is enough for both.
    """
    return jnp.where(iota(1) >= lane, words, others)


def _gather_lanes(words: Array, index: Array) -> Array:
    return gather(words, index & (LANES - 1), 1)


# Words --------------------------------------------------------------------------------


def _ones(bits: int) -> int:
    return (1 << bits) - 1


def _masked(words: Array, mask: int) -> Array:
    return words if mask == _ones(32) else words & np.uint32(mask)


def _shift_right(words: Array, bits: int) -> Array:
    """Shifted to the left if `bits` is negative."""
    if bits == 0:
        return words
    shift = lax.shift_right_logical if bits > 0 else lax.shift_left
    return shift(words, jnp.full_like(words, abs(bits)))
