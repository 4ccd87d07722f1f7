"""A TPU kernel for reversals, in Pallas.

A vector register of a TPU has 8 sublanes of 128 lanes of 32 bits. Let the T steps of a
line be stored in registers with room for N steps. In the order

    reversed[k] = x[N - 1 - k],

the reversal is a shift:

    y[k] = reversed[k + shift] if k < n else x[k]    with shift = N - n

Every sublane and every lane of a register may belong to a line with a shift of its own.
So the kernel is a barrel shifter. For each bit b of the shift in registers, from high
to low, it selects in each lane between register i and register i + 2^b. The rest of the
shift is smaller than a register: one gather within each register, which also reverses
its steps, and one select between neighbouring registers complete it.

The kernel has three arrangements of an array:

    rows       [A, L, T]       a register has 128 steps, one in each lane
    columns    [A, T, C]       a register has 8 steps, one in each sublane
    planes     [A, T, L, C]    a register has one step

A 32-bit word has two or four elements of 16 or 8 bits, which are neighbours along the
last dimension but one. In rows and planes, they belong to several lines, and a select
chooses bits by a mask. In columns, they are steps of one line, and a shift by less than
a word is a shift of its bits.

Two cases need no selects between registers, but only an offset into VMEM. One is that
all lines have the same shift. The other is that a line does not fit in VMEM. It is then
reversed in blocks, each of which is read from a window of the line.

Steps from T to N are undefined. No result depends on them.

Pallas is imported in functions, because that takes longer than importing the package.
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

from dml_jax._shared.tpu import LANES, SUBLANES

_REGISTER_BYTES = 4 * SUBLANES * LANES
_GROUP = 32  # registers that are shifted together, a power of two
_LINES_AT_ONCE = 8  # if they have less than a group of registers together
_DISTANCES_OF_A_PASS = 2  # by which a pass over the registers shifts
_BLOCK_BYTES = 2**20  # of a grid step, unless a line is longer


class Tpu(NamedTuple):
    """What the kernel depends on."""

    vmem_bytes: int  # that it may use
    gathers_sublanes: bool


# Arrangements -------------------------------------------------------------------------


def reverse_rows(x: Array, lengths: Array, tpu: Tpu) -> Array | None:
    """`x` [A, L, T], reversed along T by the int32 `lengths` [A, L] or [A, 1].

    The elements of `x` have 8, 16 or 32 bits. The result is None if a line does not fit
    in VMEM, as for the other arrangements.
    """
    from jax.experimental import pallas as pl

    arrays, rows, time = x.shape
    packing = 4 // x.dtype.itemsize
    varies = lengths.shape[1] > 1
    line = _Line(
        pl.cdiv(time, LANES),
        LANES,
        axis=1,
        lines_per_word=packing if varies else 1,
        by_offset=not varies,
    )
    tile = SUBLANES * packing
    tiles = _tiles_in_block((arrays, pl.cdiv(rows, tile)), line, tpu)
    if tiles is None:
        return None
    of_arrays, of_rows = tiles
    blocks = pl.cdiv(rows, of_rows * tile)

    def kernel(lengths: Any, x: Any, y: Any, *scratch: Any) -> None:
        def reverse_tile(a: Any, i: Any) -> None:
            def index(first: Any, count: int) -> Any:
                return a, pl.ds(i * tile, tile), pl.ds(first * LANES, count * LANES)

            if varies:
                of_parts = _lengths_of_rows(lengths.at[a, 0], i * tile, packing)
            else:
                of_parts = [lengths[0, 0, a]]
            _reverse(line, x, y, index, scratch, of_parts, tpu)

        _for_each_tile(tiles, line, reverse_tile)

    if varies:
        count = of_rows * tile
        lengths = jnp.pad(lengths, ((0, 0), (0, blocks * count - rows)))
        lengths = lengths.reshape(arrays, blocks, 1, count)
        lengths = jnp.pad(lengths, [(0, 0)] * 3 + [(0, -count % LANES)])
        shape = (of_arrays, 1, 1, lengths.shape[-1])
        of_lengths = pl.BlockSpec(shape, lambda a, i: (a, i, 0, 0))
    else:
        lengths, of_lengths = _scalars(lengths, of_arrays)
    spec = pl.BlockSpec((of_arrays, of_rows * tile, line.size), lambda a, i: (a, i, 0))
    grid = (pl.cdiv(arrays, of_arrays), blocks)
    return _call(kernel, grid, of_lengths, spec, line, tpu, lengths, x)


def _lengths_of_rows(lengths: Any, first: Any, packing: int) -> list[Array]:
    """The lengths of the rows in each part of a register's words.

    `lengths` is a reference of [1, N]. Sublane s of part p has row
    `first + packing * s + p`.
    """
    skipped = lax.rem(first, LANES)
    register = jnp.broadcast_to(
        lengths[:, _lanes(lax.div(first, LANES))], (SUBLANES, LANES)
    )
    row = skipped + packing * _iota(0)
    return [_gather(register, row + part, 1) for part in range(packing)]


def reverse_columns(x: Array, lengths: Array, tpu: Tpu) -> Array | None:
    """`x` [A, T, C], reversed along T by the int32 `lengths` [A, 1, C] or [A, 1, 1]."""
    from jax.experimental import pallas as pl

    arrays, time, columns = x.shape
    line = _line_in_columns(time, x.dtype)
    line = line._replace(by_offset=lengths.shape[2] == 1)
    tiles = _tiles_in_block((pl.cdiv(columns, LANES), arrays), line, tpu)
    if tiles is None:
        return None
    of_columns, of_arrays = tiles

    def kernel(lengths: Any, x: Any, y: Any, *scratch: Any) -> None:
        def reverse_tile(c: Any, a: Any) -> None:
            def index(first: Any, count: int) -> Any:
                return a, pl.ds(first * line.steps, count * line.steps), _lanes(c)

            if line.by_offset:
                length = lengths[0, 0, a]
            else:
                length = jnp.broadcast_to(lengths[a, :, _lanes(c)], (SUBLANES, LANES))
            _reverse(line, x, y, index, scratch, [length], tpu)

        _for_each_tile(tiles, line, reverse_tile)

    width = of_columns * LANES
    if line.by_offset:
        lengths, of_lengths = _scalars(lengths, of_arrays)
    else:
        of_lengths = pl.BlockSpec((of_arrays, 1, width), lambda a, c: (a, 0, c))
    spec = pl.BlockSpec((of_arrays, line.size, width), lambda a, c: (a, 0, c))
    grid = (pl.cdiv(arrays, of_arrays), pl.cdiv(columns, width))
    return _call(kernel, grid, of_lengths, spec, line, tpu, lengths, x)


def _line_in_columns(time: int, dtype: np.dtype) -> _Line:
    packing = 4 // dtype.itemsize
    steps = SUBLANES * packing
    return _Line(-(-time // steps), steps, axis=0, steps_per_word=packing)


def reverse_planes(x: Array, lengths: Array, tpu: Tpu) -> Array | None:
    """`x` [A, T, L, C], reversed along T by int32 `lengths` [A, L, C] or [A, 1, 1]."""
    from jax.experimental import pallas as pl

    arrays, time, rows, columns = x.shape
    packing = 4 // x.dtype.itemsize
    by_offset = lengths.shape[1:] == (1, 1)
    per_word = 1 if by_offset else packing
    line = _Line(time, 1, None, lines_per_word=per_word, by_offset=by_offset)
    tile = SUBLANES * packing
    counts = (pl.cdiv(columns, LANES), pl.cdiv(rows, tile), arrays)
    tiles = _tiles_in_block(counts, line, tpu)
    if tiles is None:
        return None
    of_columns, of_rows, of_arrays = tiles

    def kernel(lengths: Any, x: Any, y: Any, *scratch: Any) -> None:
        def reverse_tile(c: Any, i: Any, a: Any) -> None:
            def index(first: Any, count: int) -> Any:
                return a, pl.ds(first, count), pl.ds(i * tile, tile), _lanes(c)

            if by_offset:
                of_parts = [lengths[0, 0, a]]
            else:
                words = pl.ds(i * SUBLANES, SUBLANES)
                of_parts = [lengths[a, p, words, _lanes(c)] for p in range(packing)]
            _reverse(line, x, y, index, scratch, of_parts, tpu)

        _for_each_tile(tiles, line, reverse_tile)

    width = of_columns * LANES
    if by_offset:
        lengths, of_lengths = _scalars(lengths, of_arrays)
    else:
        lengths = jnp.pad(lengths, ((0, 0), (0, -rows % tile), (0, 0)))
        lengths = lengths.reshape(arrays, -1, packing, columns).swapaxes(1, 2)
        shape = (of_arrays, packing, of_rows * SUBLANES, width)
        of_lengths = pl.BlockSpec(shape, lambda a, i, c: (a, 0, i, c))
    shape = (of_arrays, time, of_rows * tile, width)
    spec = pl.BlockSpec(shape, lambda a, i, c: (a, 0, i, c))
    blocks = (pl.cdiv(rows, of_rows * tile), pl.cdiv(columns, width))
    grid = (pl.cdiv(arrays, of_arrays), *blocks)
    return _call(kernel, grid, of_lengths, spec, line, tpu, lengths, x)


def _scalars(lengths: Array, count: int) -> tuple[Array, Any]:
    """The lengths as scalars, `count` for each index of the first grid dimension."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    padded = jnp.pad(lengths.reshape(-1), (0, -lengths.size % count))
    spec = pl.BlockSpec((1, 1, count), lambda a, *_: (a, 0, 0), memory_space=pltpu.SMEM)
    return padded.reshape(-1, 1, count), spec


def _lanes(i: Any) -> Any:
    """The lanes of register i."""
    from jax.experimental import pallas as pl

    return pl.ds(i * LANES, LANES)


def _tiles_in_block(
    counts: Sequence[int], line: _Line, tpu: Tpu
) -> tuple[int, ...] | None:
    """How many tiles a grid step has along each dimension.

    A tile has the lines that are shifted together. There are as many as fit along the
    last dimension, then along the one before. The result is None if not even one fits
    in VMEM.
    """
    tile_bytes = line.registers * _REGISTER_BYTES
    # Blocks of the operand and of the result are both double-buffered.
    scratch_bytes = sum(4 * math.prod(shape) for shape in _scratch_shapes(line))
    fits = (tpu.vmem_bytes - scratch_bytes) // (4 * tile_bytes)
    limit = min(fits, max(1, _BLOCK_BYTES // tile_bytes))
    if limit <= 0:
        return None
    tiles = []
    for count in reversed(counts):
        blocks = -(-count // limit)
        tiles.insert(0, -(-count // blocks))
        limit //= tiles[0]
    return tuple(tiles)


def _for_each_tile(
    tiles: Sequence[int], line: _Line, body: Callable[..., None]
) -> None:
    """Calls `body` with the indices of each tile."""

    def group(first: Any, count: int) -> None:
        for i in range(count):
            rest, indices = first + i, []
            for size in reversed(tiles):
                indices.insert(0, lax.rem(rest, size) if size > 1 else 0)
                rest = lax.div(rest, size)
            body(*indices)

    # The operations of several short lines overlap.
    at_once = max(1, min(_LINES_AT_ONCE, _GROUP // line.registers))
    _for_each_group(0, math.prod(tiles), group, at_once)


def _scratch_shapes(line: _Line) -> list[tuple[int, ...]]:
    if line.by_offset or line.registers <= _GROUP:
        return []
    # Shifts read registers beyond the line.
    further = max(2 * _GROUP, line.registers // 2 + _GROUP)
    return [(line.registers + further, SUBLANES, LANES)]


def _call(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    spec_of_lengths: Any,
    spec: Any,
    line: _Line,
    tpu: Tpu,
    lengths: Array,
    x: Array,
) -> Array:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    call = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[spec_of_lengths, spec],
        out_specs=spec,
        out_shape=x,
        scratch_shapes=[
            pltpu.VMEM(shape, jnp.int32) for shape in _scratch_shapes(line)
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * len(grid),
            vmem_limit_bytes=tpu.vmem_bytes,
        ),
        name="reverse_subsequences",
    )
    # In 64-bit mode, Pallas would index with 64 bits, which TPUs do not have.
    with jax.enable_x64(False):
        return call(lengths, x)


# Windows ------------------------------------------------------------------------------


def reverse_windows(x: Array, lengths: Array, tpu: Tpu, is_line: bool = False) -> Array:
    """`x` [A, T, C], reversed along T by int32 `lengths` [A], one for each array.

    If `is_line`, each array [T, 128] is one line of T * 128 steps.

    A grid step computes a block of the result from a window of `x`. The window begins
    at a whole register and has one register more than the block. What remains of the
    shift is less than a register.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    arrays, time, columns = x.shape
    line = _line_in_columns(time, x.dtype)
    # Blocks of the two operands and of the result are double-buffered.
    block_bytes = min(_BLOCK_BYTES, tpu.vmem_bytes // 8)
    registers = min(line.registers, block_bytes // _REGISTER_BYTES)
    block = line._replace(registers=registers)
    window = line._replace(registers=min(line.registers, registers + 1))
    blocks = pl.cdiv(time, block.size)

    def end(i: Any, length: Any) -> Any:
        """The number of whole rows that are reversed in block i and after it."""
        rows = lax.div(length, LANES) if is_line else length
        return rows - i * block.size

    def start(i: Any, length: Any) -> Any:
        first = lax.div(lax.max(end(i, length) - block.size, 0), line.steps)
        return lax.min(first, line.registers - window.registers) * line.steps

    def block_to_keep(i: Any, length: Any) -> Any:
        # Nothing is kept of the blocks before this one. A block is copied only once.
        first = lax.div(end(0, length), block.size)
        return lax.clamp(i, first, blocks - 1)

    def kernel(lengths: Any, source: Any, kept: Any, y: Any) -> None:
        i, length = pl.program_id(2), lengths[pl.program_id(0)]
        ends = last_end = end(i, length)
        lanes = None
        if is_line:
            rest = lax.rem(length, LANES)  # lanes of the row that is partly reversed
            ends = ends + (_iota(1) < rest).astype(jnp.int32)
            last_end = last_end + lax.min(rest, 1)
            lanes = (length - 1 - _iota(1)) & (LANES - 1)
        first_step = start(i, length)
        skipped = lax.div(window.size - (last_end - first_step), line.steps)
        ends = jnp.broadcast_to(ends, (SUBLANES, LANES))
        shift = window.size - (ends - first_step) - skipped * line.steps

        def load(register: Any) -> Array:
            rows = pl.ds(register * line.steps, line.steps)
            words = pltpu.bitcast(source[0, rows], jnp.int32)
            if lanes is not None:
                words = _gather(words, lanes, 1)
            return _reverse_steps_in_words(words, line)

        def group(first: Any, count: int) -> None:
            last_source = window.registers - 1 - skipped - first
            words = [load(lax.max(last_source - i, 0)) for i in range(count + 1)]
            words = _shift_within_registers(line, words, [shift], tpu)
            rows = pl.ds(first * line.steps, count * line.steps)
            kept_words = jnp.split(pltpu.bitcast(kept[0, rows], jnp.int32), count)
            for i in range(count):
                is_reversed = line.reversed_part(first + i, [ends])
                result = _select(is_reversed, words[i], kept_words[i])
                rows = pl.ds((first + i) * line.steps, line.steps)
                y[0, rows] = pltpu.bitcast(result, y.dtype)

        _for_each_group(0, block.registers, group)

    of_window = pl.BlockSpec(
        (
            pl.Element(1),
            pl.Element(window.size, (0, line.size - time)),
            pl.Element(LANES, (0, -columns % LANES)),
        ),
        lambda a, c, i, lengths: (a, start(i, lengths[a]), c * LANES),
    )
    shape = (1, block.size, LANES)
    call = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(arrays, pl.cdiv(columns, LANES), blocks),
            in_specs=[
                of_window,
                pl.BlockSpec(
                    shape, lambda a, c, i, lengths: (a, block_to_keep(i, lengths[a]), c)
                ),
            ],
            out_specs=pl.BlockSpec(shape, lambda a, c, i, _: (a, i, c)),
        ),
        out_shape=x,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * 3,
            vmem_limit_bytes=tpu.vmem_bytes,
        ),
        name="reverse_subsequences",
    )
    with jax.enable_x64(False):
        return call(lengths, x, x)


def reverse_windows_of_rows(x: Array, lengths: Array, tpu: Tpu) -> Array:
    """`x` [A, L, T] of 32 bits, reversed along T by the int32 `lengths` [A, L].

    A grid step computes a block of the result from windows of `x`, one for each row.
    A window ends at a whole register.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    arrays, rows, time = x.shape
    line = _Line(pl.cdiv(time, LANES), LANES, axis=1)
    tiles = pl.cdiv(rows, SUBLANES)
    # The steps to keep, the windows and the result are double-buffered. The windows
    # have room for steps before the line.
    block_bytes = min(_BLOCK_BYTES, tpu.vmem_bytes // 12)
    registers = min(line.registers - 1, block_bytes // _REGISTER_BYTES)
    block = line._replace(registers=registers)
    window = line._replace(registers=registers + 1)

    def kernel(
        lengths: Any, source: Any, kept: Any, y: Any, windows: Any, semaphores: Any
    ) -> None:
        a, tile, i = (pl.program_id(d) for d in range(3))

        def end(i: Any, sublane: int) -> Any:
            """The number of steps that are reversed in block i and after it."""
            row = (a * tiles + tile) * SUBLANES + sublane
            return lengths[row] - i * block.size

        def copy(i: Any, sublane: int) -> Any:
            stop = lax.div(end(i, sublane) + LANES - 1, LANES)
            before = lax.max(window.registers - stop, 0)
            first = lax.max(stop - window.registers, 0)
            slot = lax.rem(i, 2)
            steps = pl.ds(first * LANES, window.size)
            target = pl.ds(before * LANES, window.size)
            return pltpu.make_async_copy(
                source.at[a, pl.ds(tile * SUBLANES + sublane, 1), steps],
                windows.at[slot, pl.ds(sublane, 1), target],
                semaphores.at[slot],
            )

        def for_each_copy(i: Any, act: Callable[[Any], None]) -> None:
            for sublane in range(SUBLANES):
                # Nothing of the other rows is reversed.
                pl.when(end(i, sublane) > 0)(lambda s=sublane: act(copy(i, s)))

        @pl.when(i == 0)
        def _() -> None:
            for_each_copy(i, lambda copy: copy.start())

        @pl.when(i + 1 < pl.num_programs(2))
        def _() -> None:
            for_each_copy(i + 1, lambda copy: copy.start())

        for_each_copy(i, lambda copy: copy.wait())
        ends = _as_column([end(i, sublane) for sublane in range(SUBLANES)])

        def group(first: Any, count: int) -> None:
            def lanes(register: Any) -> Any:
                return pl.ds(register * LANES, LANES)

            last_source = window.registers - 1 - first
            words = [
                windows[lax.rem(i, 2), :, lanes(last_source - k)]
                for k in range(count + 1)
            ]
            words = _shift_words(words, -ends & LANES - 1, line.axis, tpu)
            for k in range(count):
                is_reversed = line.reversed_part(first + k, [ends])
                y[0, :, lanes(first + k)] = _select(
                    is_reversed, words[k], kept[0, :, lanes(first + k)]
                )

        _for_each_group(0, block.registers, group)

    lengths = jnp.pad(lengths, ((0, 0), (0, tiles * SUBLANES - rows))).reshape(-1)
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, line.size - time)))
    spec = pl.BlockSpec((1, SUBLANES, block.size), lambda a, t, i, _: (a, t, i))
    call = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(arrays, tiles, pl.cdiv(time, block.size)),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY), spec],
            out_specs=spec,
            scratch_shapes=[
                pltpu.VMEM((2, SUBLANES, 2 * window.size), x.dtype),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=x,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=tpu.vmem_bytes,
        ),
        name="reverse_subsequences",
    )
    with jax.enable_x64(False):
        return call(lengths, padded, x)


def _as_column(scalars: list[Array]) -> Array:
    """A register whose sublane i has scalar i in all lanes."""
    register = jnp.broadcast_to(scalars[0], (SUBLANES, LANES))
    for i, scalar in enumerate(scalars[1:], 1):
        register = jnp.where(_iota(0) == i, scalar, register)
    return register


# The barrel shifter -------------------------------------------------------------------


class _Line(NamedTuple):
    """The registers of the lines that are shifted together.

    Each register has `steps` of every line, along `axis` unless it is one step. A word
    has the elements of several lines, or several steps of one line.
    """

    registers: int
    steps: int
    axis: int | None
    lines_per_word: int = 1
    steps_per_word: int = 1
    by_offset: bool = False  # shifts whole registers, for lines of the same length

    @property
    def size(self) -> int:
        return self.registers * self.steps

    @property
    def distances(self) -> list[int]:
        """Powers of two, the highest first, whose sums are the shifts in registers."""
        return [2**bit for bit in reversed(range((self.registers - 1).bit_length()))]

    @property
    def part_bits(self) -> int:
        return 32 // (self.lines_per_word * self.steps_per_word)

    def mask(self, conditions: list[Array]) -> Array:
        """For `_select`: the parts of each word whose line fulfils its condition."""
        if len(conditions) == 1:
            return conditions[0]
        masks = [
            jnp.where(condition, _ones(self.part_bits, part), 0)
            for part, condition in enumerate(conditions)
        ]
        return _union(masks)

    def is_shifted(self, shifts: list[Array], distance: int) -> Array:
        """For `_select`: the lines whose shift has this distance as a summand."""
        return self.mask([shift & distance * self.steps != 0 for shift in shifts])

    def reversed_part(self, register: Any, lengths: list[Array]) -> Array:
        """For `_select`: the parts of the words of a register that are reversed."""
        first = register * self.steps
        if self.axis is not None:
            first = first + self.steps_per_word * _iota(self.axis)
        if self.steps_per_word == 1:
            return self.mask([first < length for length in lengths])
        bits = jnp.clip(lengths[0] - first, 0, self.steps_per_word) * self.part_bits
        return jnp.where(bits == 32, -1, (1 << bits) - 1)


def _gather(register: Array, index: Array, axis: int) -> Array:
    return jnp.take_along_axis(register, index, axis, mode="promise_in_bounds")


def _iota(axis: int) -> Array:
    return lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), axis)


def _ones(bits: int, part: int) -> np.int32:
    """A word with ones in one of its parts."""
    return np.uint32((2**bits - 1) << bits * part).astype(np.int32)


def _union(words: list[Array]) -> Array:
    union = words[0]
    for word in words[1:]:
        union = union | word
    return union


def _select(mask: Array, x: Array, y: Array) -> Array:
    """`x` where the mask is true or has ones, else `y`."""
    if mask.dtype == jnp.bool_:
        return jnp.where(mask, x, y)
    return y ^ ((x ^ y) & mask)


def _reverse(
    line: _Line,
    x: Any,
    y: Any,
    index: Callable[[Any, int], Any],
    scratch: Sequence[Any],
    lengths: list[Array],
    tpu: Tpu,
) -> None:
    """Reverses lines of the reference `x` into `y`.

    `index(first, count)` gives the index of successive registers. `lengths` has those
    of each part of a word.
    """
    from jax.experimental.pallas import tpu as pltpu

    shifts = [line.size - length for length in lengths]

    def load(first: Any, count: int) -> list[Array]:
        words = pltpu.bitcast(x[index(first, count)], jnp.int32)
        if line.axis is None:
            return [words[i] for i in range(count)]
        return jnp.split(words, count, line.axis)

    def store(first: Any, reversed_words: list[Array]) -> None:
        kept = load(first, len(reversed_words))
        for i, words in enumerate(reversed_words):
            is_reversed = line.reversed_part(first + i, lengths)
            result = pltpu.bitcast(_select(is_reversed, words, kept[i]), y.dtype)
            y[index(first + i, 1)] = result[None] if line.axis is None else result

    if line.by_offset:
        _reverse_with_offset(line, load, shifts[0], store, tpu)
    elif line.registers <= _GROUP:
        registers = reversed(load(0, line.registers))
        registers = [_reverse_steps_in_words(each, line) for each in registers]
        store(0, _shift(line, registers, line.registers, shifts, line.distances, tpu))
    else:
        _reverse_registers(line, load, scratch[0], shifts)
        _shift_within_groups(line, scratch[0], shifts, store, tpu)


def _for_each_group(
    start: int, stop: int, body: Callable[[Any, int], None], size: int = _GROUP
) -> None:
    """Calls `body(first, count)` for groups of this size, in ascending order."""
    from jax.experimental import pallas as pl

    groups, rest = divmod(stop - start, size)

    @pl.loop(0, groups)
    def _(group: Any) -> None:
        body(start + group * size, size)

    if rest:
        body(stop - rest, rest)


def _reverse_registers(
    line: _Line, load: Callable[..., list[Array]], scratch: Any, shifts: list[Array]
) -> None:
    """Stores the registers in reverse order, shifted by `_GROUP` registers and more."""
    distances = [each for each in line.distances if each >= _GROUP]

    def reverse(first: Any, count: int, distance: int = 0) -> None:
        source = line.registers - count - first
        registers = load(source, count)
        if distance:
            further = load(source - distance, count)
            mask = line.is_shifted(shifts, distance)
            registers = [
                _select(mask, *pair) for pair in zip(further, registers, strict=True)
            ]
        for i, register in enumerate(reversed(registers)):
            scratch[first + i] = _reverse_steps_in_words(register, line)

    def shifted(register: Any, distances: tuple[int, ...]) -> Array:
        if not distances:
            return scratch[register]
        distance, rest = distances[0], distances[1:]
        further = shifted(register + distance, rest)
        mask = line.is_shifted(shifts, distance)
        return _select(mask, further, shifted(register, rest))

    def shift(first: Any, count: int, distances: tuple[int, ...]) -> None:
        for i in range(count):
            scratch[first + i] = shifted(first + i, distances)

    if distances:
        distance = distances.pop(0)
        stop = line.registers - distance
        _for_each_group(0, stop, functools.partial(reverse, distance=distance))
        _for_each_group(stop, line.registers, reverse)
    else:
        _for_each_group(0, line.registers, reverse)
    for i in range(0, len(distances), _DISTANCES_OF_A_PASS):
        of_pass = tuple(distances[i : i + _DISTANCES_OF_A_PASS])
        stop = line.registers - of_pass[-1]
        _for_each_group(0, stop, functools.partial(shift, distances=of_pass))


def _reverse_steps_in_words(words: Array, line: _Line) -> Array:
    if line.steps_per_word == 4:
        even = lax.shift_right_logical(words, 8) & 0x00FF00FF
        words = even | (words & 0x00FF00FF) << 8
    if line.steps_per_word > 1:
        words = lax.shift_right_logical(words, 16) | words << 16
    return words


def _reverse_with_offset(
    line: _Line,
    load: Callable[..., list[Array]],
    shift: Array,
    store: Callable[[Any, list[Array]], None],
    tpu: Tpu,
) -> None:
    """Shifts all lines by the same scalar, whole registers by an offset."""
    last_source = line.registers - 1 - lax.div(shift, line.steps)
    rest = lax.rem(shift, line.steps)

    def group(first: Any, count: int) -> None:
        # A register of the result may begin in one register and end in the next.
        sources = [
            last_source - first - i for i in range(count + (line.axis is not None))
        ]
        registers = [
            _reverse_steps_in_words(load(lax.max(source, 0), 1)[0], line)
            for source in sources
        ]
        if line.axis is not None:
            registers = _shift_within_registers(line, registers, [rest], tpu)
        store(first, registers[:count])

    _for_each_group(0, line.registers, group)


def _shift_within_groups(
    line: _Line,
    scratch: Any,
    shifts: list[Array],
    store: Callable[[Any, list[Array]], None],
    tpu: Tpu,
) -> None:
    """Shifts by less than `_GROUP` registers, and stores the result."""
    distances = [each for each in line.distances if each < _GROUP]
    # A register of the result may begin in one register and end in the next.
    halo = sum(distances) + (line.axis is not None)

    def group(first: Any, count: int) -> None:
        registers = [scratch[first + i] for i in range(count + halo)]
        store(first, _shift(line, registers, count, shifts, distances, tpu))

    _for_each_group(0, line.registers, group)


def _shift(
    line: _Line,
    registers: list[Array],
    count: int,
    shifts: list[Array],
    distances: Sequence[int],
    tpu: Tpu,
) -> list[Array]:
    """The first `count` registers, shifted by these distances and within registers.

    Where the shift reaches beyond the last one of `registers`, they are undefined.
    """
    for distance in distances:
        mask = line.is_shifted(shifts, distance)
        pairs = zip(registers[distance:], registers, strict=False)
        shifted = [_select(mask, *pair) for pair in pairs]
        registers = [*shifted, *registers[len(shifted) :]]
    if line.axis is not None:
        rests = [shift & line.steps - 1 for shift in shifts]
        # A register of the result may end in the next one.
        registers = _shift_within_registers(line, registers[: count + 1], rests, tpu)
    return registers[:count]


def _shift_within_registers(
    line: _Line, registers: list[Array], shifts: list[Array], tpu: Tpu
) -> list[Array]:
    """Shifts by up to a register, and reverses the words of each register.

    The last register of the result is undefined where its steps are beyond the line.
    """
    of_words = [shift // line.steps_per_word for shift in shifts]
    parts = [_shift_words(registers, shift, line.axis, tpu) for shift in of_words]
    if line.lines_per_word > 1:
        ones = [_ones(line.part_bits, part) for part in range(line.lines_per_word)]
        return [
            _union([word & mask for word, mask in zip(words, ones, strict=True)])
            for words in zip(*parts, strict=True)
        ]
    if line.steps_per_word == 1:
        return parts[0]
    following = _next_words(parts[0], line.axis)
    bits = (shifts[0] & line.steps_per_word - 1) * line.part_bits
    # A shift by 32 bits is undefined, so `high` is shifted twice.
    return [
        lax.shift_right_logical(low, bits) | high << 1 << (31 - bits)
        for low, high in zip(parts[0], following, strict=True)
    ]


def _shift_words(
    registers: list[Array], shift: Array, axis: Any, tpu: Tpu
) -> list[Array]:
    permuted = [_permute(register, shift, axis, tpu) for register in registers]
    is_same = _iota(axis) + shift < registers[0].shape[axis]
    return _continued(is_same, permuted)


def _next_words(registers: list[Array], axis: Any) -> list[Array]:
    """The successor of each word."""
    from jax.experimental.pallas import tpu as pltpu

    size = registers[0].shape[axis]
    rolled = [pltpu.roll(register, size - 1, axis) for register in registers]
    return _continued(_iota(axis) < size - 1, rolled)


def _continued(is_same: Array, registers: list[Array]) -> list[Array]:
    """Each register where the mask is true, else the next one."""
    following = [*registers[1:], registers[-1]]
    return [
        jnp.where(is_same, *pair) for pair in zip(registers, following, strict=True)
    ]


def _permute(register: Array, shift: Array, axis: int, tpu: Tpu) -> Array:
    """Element i of the result is element -1 - (i + shift), modulo the size."""
    size = register.shape[axis]
    position = _iota(axis)
    if axis == 1 or tpu.gathers_sublanes:
        index = size - 1 - (position + shift & size - 1)
        return _gather(register, index, axis)
    from jax.experimental.pallas import tpu as pltpu

    for bit in (1, 2, 4):
        before = pltpu.roll(register, bit, axis)
        after = pltpu.roll(register, size - bit, axis)
        register = jnp.where(position & bit != 0, before, after)
    for bit in (1, 2, 4):
        after = pltpu.roll(register, size - bit, axis)
        register = jnp.where(shift & bit != 0, after, register)
    return register
