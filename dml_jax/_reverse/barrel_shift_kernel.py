"""A TPU kernel for reversals, in Pallas.

A grid step reverses a block of whole lines in VMEM, with the barrel shifter of
`registers.py`. The kernel has three arrangements of an array:

    rows       [A, L, T]       a register has 128 steps, one in each lane
    columns    [A, T, C]       a register has 8 steps, one in each sublane
    planes     [A, T, L, C]    a register has one step

A 32-bit word has two or four elements of 16 or 8 bits, which are neighbours along the
last dimension but one. In rows and planes, they belong to several lines. In columns,
they are steps of one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dml_jax._reverse.registers import (
    GROUP,
    Line,
    for_each_group,
    iota,
    permute_register,
    reverse_lines,
    scratch_shapes,
)
from dml_jax._reverse.tpu_layout import LANES, REGISTER_BYTES, SUBLANES, WORD, Tpu

_BLOCK_BYTES = 2**20  # of a grid step, unless a line is longer
_SPILLED_BYTES = 2**21  # more than the compiler needs for registers that it spills
_TILES_AT_ONCE = 8  # at most, with no more than `GROUP` registers together


# Arrangements -------------------------------------------------------------------------


def reverse_rows(x: Array, lengths: Array, tpu: Tpu) -> Array | None:
    """`x` [A, L, T], reversed along T by the int32 `lengths` [A, L] or [A, 1].

    The elements of `x` have 8, 16 or 32 bits. The result is None if a line does not fit
    in VMEM, as for the other arrangements.
    """
    arrays, rows, time = x.shape
    packing = WORD // x.dtype.itemsize
    by_offset = lengths.shape[1] == 1
    per_word = 1 if by_offset else packing
    line = Line(tpu, pl.cdiv(time, LANES), LANES, 1, per_word, by_offset=by_offset)
    tile = SUBLANES * packing
    tiles = _tiles_in_block((arrays, pl.cdiv(rows, tile)), line)
    if tiles is None:
        return None
    of_arrays, of_rows = tiles
    blocks = pl.cdiv(rows, of_rows * tile)

    def kernel(lengths: Any, x: Any, y: Any, *scratch: Any) -> None:
        def reverse_tile(a: Any, i: Any) -> None:
            def index(first: Any, count: int) -> Any:
                return a, pl.ds(i * tile, tile), pl.ds(first * LANES, count * LANES)

            if by_offset:
                of_parts = [lengths[0, 0, a]]
            else:
                of_parts = _lengths_of_rows(lengths.at[a, 0], i * tile, packing)
            reverse_lines(line, x, y, index, scratch, of_parts)

        _for_each_tile(tiles, line, reverse_tile)

    count = of_rows * tile
    if by_offset:
        lengths, of_lengths = _scalars(lengths, of_arrays)
    else:
        lengths = jnp.pad(lengths, ((0, 0), (0, blocks * count - rows)))
        lengths = lengths.reshape(arrays, blocks, 1, count)
        lengths = jnp.pad(lengths, [(0, 0)] * 3 + [(0, -count % LANES)])
        shape = (of_arrays, 1, 1, lengths.shape[-1])
        of_lengths = pl.BlockSpec(shape, lambda a, i: (a, i, 0, 0))
    spec = pl.BlockSpec((of_arrays, count, line.size), lambda a, i: (a, i, 0))
    grid = (pl.cdiv(arrays, of_arrays), blocks)
    return _call(kernel, grid, of_lengths, spec, line, lengths, x)


def _lengths_of_rows(lengths: Any, first: Any, packing: int) -> list[Array]:
    """The lengths of the rows in each part of a register's words.

    `lengths` is a reference of [1, N]. Sublane s of part p has row
    `first + packing * s + p`.
    """
    register = lengths[:, _lanes_of(lax.div(first, LANES))]
    register = jnp.broadcast_to(register, (SUBLANES, LANES))
    row = lax.rem(first, LANES) + packing * iota(0)
    return [permute_register(register, row + part, 1) for part in range(packing)]


def reverse_columns(x: Array, lengths: Array, tpu: Tpu) -> Array | None:
    """`x` [A, T, C], reversed along T by the int32 `lengths` [A, 1, C] or [A, 1, 1]."""
    arrays, time, columns = x.shape
    packing = WORD // x.dtype.itemsize
    steps = SUBLANES * packing
    by_offset = lengths.shape[2] == 1
    registers = pl.cdiv(time, steps)
    line = Line(
        tpu, registers, steps, axis=0, steps_per_word=packing, by_offset=by_offset
    )
    tiles = _tiles_in_block((pl.cdiv(columns, LANES), arrays), line)
    if tiles is None:
        return None
    of_columns, of_arrays = tiles

    def kernel(lengths: Any, x: Any, y: Any, *scratch: Any) -> None:
        def reverse_tile(c: Any, a: Any) -> None:
            def index(first: Any, count: int) -> Any:
                return a, pl.ds(first * line.steps, count * line.steps), _lanes_of(c)

            if by_offset:
                length = lengths[0, 0, a]
            else:
                length = lengths[a, :, _lanes_of(c)]
                length = jnp.broadcast_to(length, (SUBLANES, LANES))
            reverse_lines(line, x, y, index, scratch, [length])

        _for_each_tile(tiles, line, reverse_tile)

    width = of_columns * LANES
    if by_offset:
        lengths, of_lengths = _scalars(lengths, of_arrays)
    else:
        of_lengths = pl.BlockSpec((of_arrays, 1, width), lambda a, c: (a, 0, c))
    spec = pl.BlockSpec((of_arrays, line.size, width), lambda a, c: (a, 0, c))
    grid = (pl.cdiv(arrays, of_arrays), pl.cdiv(columns, width))
    return _call(kernel, grid, of_lengths, spec, line, lengths, x)


def reverse_planes(x: Array, lengths: Array, tpu: Tpu) -> Array | None:
    """`x` [A, T, L, C], reversed along T by int32 `lengths` [A, L, C] or [A, 1, 1]."""
    arrays, time, rows, columns = x.shape
    packing = WORD // x.dtype.itemsize
    by_offset = lengths.shape[1:] == (1, 1)
    per_word = 1 if by_offset else packing
    line = Line(tpu, time, 1, None, lengths_per_word=per_word, by_offset=by_offset)
    tile = SUBLANES * packing
    counts = (pl.cdiv(columns, LANES), pl.cdiv(rows, tile), arrays)
    tiles = _tiles_in_block(counts, line)
    if tiles is None:
        return None
    of_columns, of_rows, of_arrays = tiles

    def kernel(lengths: Any, x: Any, y: Any, *scratch: Any) -> None:
        def reverse_tile(c: Any, i: Any, a: Any) -> None:
            def index(first: Any, count: int) -> Any:
                return a, pl.ds(first, count), pl.ds(i * tile, tile), _lanes_of(c)

            if by_offset:
                of_parts = [lengths[0, 0, a]]
            else:
                words = pl.ds(i * SUBLANES, SUBLANES)
                of_parts = [lengths[a, p, words, _lanes_of(c)] for p in range(packing)]
            reverse_lines(line, x, y, index, scratch, of_parts)

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
    return _call(kernel, grid, of_lengths, spec, line, lengths, x)


def _scalars(lengths: Array, count: int) -> tuple[Array, Any]:
    """The lengths as scalars, `count` for each index of the first grid dimension."""
    padded = jnp.pad(lengths.reshape(-1), (0, -lengths.size % count))
    spec = pl.BlockSpec((1, 1, count), lambda a, *_: (a, 0, 0), memory_space=pltpu.SMEM)
    return padded.reshape(-1, 1, count), spec


def _lanes_of(i: Any) -> Any:
    """The lanes of register i."""
    return pl.ds(i * LANES, LANES)


# Blocks -------------------------------------------------------------------------------


def _tiles_in_block(counts: Sequence[int], line: Line) -> tuple[int, ...] | None:
    """How many tiles a grid step has along each dimension.

    A tile has the lines that are shifted together. There are as many as fit along the
    last dimension, then along the one before. The result is None if not even one fits
    in VMEM.
    """
    tile_bytes = line.registers * REGISTER_BYTES
    scratch_bytes = sum(WORD * math.prod(shape) for shape in scratch_shapes(line))
    # Blocks of the operand and of the result are both double-buffered.
    fits = (line.tpu.vmem_bytes - scratch_bytes) // (4 * tile_bytes)
    limit = min(fits, max(1, _BLOCK_BYTES // tile_bytes))
    if limit <= 0:
        return None
    tiles = []
    for count in reversed(counts):
        blocks = -(-count // limit)
        tiles.insert(0, -(-count // blocks))
        limit //= tiles[0]
    return tuple(tiles)


def _for_each_tile(tiles: Sequence[int], line: Line, body: Callable[..., None]) -> None:
    """Calls `body` with the indices of each tile."""

    def group(first: Any, count: int) -> None:
        for i in range(count):
            rest, indices = first + i, []
            for size in reversed(tiles):
                indices.insert(0, lax.rem(rest, size) if size > 1 else 0)
                rest = lax.div(rest, size)
            body(*indices)

    # The operations of several short lines overlap.
    at_once = max(1, min(_TILES_AT_ONCE, GROUP // line.registers))
    for_each_group(0, math.prod(tiles), group, at_once)


def _call(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    spec_of_lengths: Any,
    spec: Any,
    line: Line,
    lengths: Array,
    x: Array,
) -> Array:
    call = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[spec_of_lengths, spec],
        out_specs=spec,
        out_shape=x,
        scratch_shapes=[pltpu.VMEM(shape, jnp.int32) for shape in scratch_shapes(line)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * len(grid),
            vmem_limit_bytes=line.tpu.vmem_bytes + _SPILLED_BYTES,
        ),
        name="reverse_subsequences",
    )
    # In 64-bit mode, Pallas would index with 64 bits, which TPUs do not have.
    with jax.enable_x64(False):
        return call(lengths, x)
