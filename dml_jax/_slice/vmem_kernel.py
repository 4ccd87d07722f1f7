"""A TPU kernel for strided slices and their transposes, in Pallas.

It copies blocks to VMEM and back, as a copy would. In between it moves

    rows   by loads, or stores, with a stride between the rows of a register
    lanes  by gathers from one register after another

XLA cannot fuse it with surrounding operations. Pallas is imported in functions, because
its import takes longer than that of this package.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from dml_jax._shared import bitwise
from dml_jax._shared.tpu import LANES, SUBLANES, WORD, rows_per_register
from dml_jax._slice import registers
from dml_jax._slice.registers import Dim, divide

_BLOCK_BYTES = 2**20  # aimed at, for the larger one of operand and result
_BLOCK_ROWS = 1024  # long enough loops; then a block gets more lanes
_SCRATCH_BYTES = 6 * 2**20  # with four blocks, below the 16 MiB of a TPU v4
_MAX_STRIDE = 32  # of rows and lanes


def strided_slice(x: Array, dims: Sequence[Dim]) -> Array | None:
    """The elements in a strided window of `x`, of rank 3 or more; or None."""
    if not _is_supported(x, dims):
        return None
    shape, tiles = [dim.size for dim in dims], _tiles(x)
    blocks = _blocks(x, shape, tiles, [dim.stride for dim in dims])
    sources = [
        _source_of_slice(dim, tile, block)
        for dim, tile, block in zip(dims, tiles, blocks, strict=True)
    ]
    rows, lanes = sources[-2:]
    margin = _strided_rows(x, dims, 0, rows.block).margin
    words = rows.size * x.dtype.itemsize // WORD
    at_once = registers.at_once(words, _planes(sources))
    scratch = [(at_once, lanes.size // LANES, words + 2 * margin, LANES)]
    return _launch(_slice_kernel, x, dims, sources, shape, scratch)


def strided_slice_transpose(x: Array, dims: Sequence[Dim]) -> Array | None:
    """Zeros, with `x` in a strided window of them, of rank 3 or more; or None."""
    if not _is_supported(x, dims):
        return None
    shape, tiles = [dim.extent for dim in dims], _tiles(x)
    units = [
        tile * dim.stride if tile > 1 else 1
        for dim, tile in zip(dims, tiles, strict=True)
    ]
    blocks = _blocks(x, shape, units, [1] * len(dims))
    sources = [
        _source_of_transpose(dim, tile, block)
        for dim, tile, block in zip(dims, tiles, blocks, strict=True)
    ]
    rows, lanes = sources[-2:]
    margin = _strided_rows(x, dims, 0, rows.size).margin
    words = rows.block * x.dtype.itemsize // WORD
    columns = registers.at_once(words, lanes.block // LANES)
    at_once = registers.at_once(words * columns, _planes(sources))
    scratch = [(at_once, columns, words + 2 * margin, LANES)]
    if registers.rows_per_tile(dims[-2].size, x.dtype) < SUBLANES:
        words = rows.size * x.dtype.itemsize // WORD
        scratch.append((at_once, lanes.size // LANES, words, LANES))
    return _launch(_transpose_kernel, x, dims, sources, shape, scratch)


def _is_supported(x: Array, dims: Sequence[Dim]) -> bool:
    is_number = jnp.issubdtype(x.dtype, jnp.number)
    is_short = max(dim.extent for dim in dims) < 2**29
    is_dense = max(dim.stride for dim in dims[-2:]) <= _MAX_STRIDE
    is_word = is_number and bitwise.width(x.dtype) in (8, 16, 32)
    return is_word and x.dtype.itemsize <= WORD and is_short and is_dense


# Blocks -------------------------------------------------------------------------------


class _Division(NamedTuple):
    """The integers (first + step * i) // divisor, for i from 0 on."""

    first: int
    step: int
    divisor: int

    @property
    def of_first(self) -> int:
        return self.first // self.divisor


class _Source(NamedTuple):
    """The elements of the operand that blocks of the result are computed from.

    Along rows and lanes, they are whole registers.
    """

    block: int  # elements of the result
    blocks: int
    size: int  # elements of the operand
    padding: int  # after the operand, to a multiple of a register
    lowest: _Division  # of them, without bounds
    tile: int
    last: int  # where elements may begin

    @property
    def origin(self) -> int:
        """Where the elements for block 0 begin, if that is in the operand."""
        return self.lowest.of_first // self.tile * self.tile

    def begin(self, i: Any) -> Any:
        return jnp.clip(self._unbounded(i), 0, self.last)

    def moved(self, i: Any) -> Any:
        """How far the elements begin from where they would without bounds."""
        return self.begin(i) - self._unbounded(i)

    def _unbounded(self, i: Any) -> Any:
        lowest = self.lowest
        tiles, _ = divide(lowest.first + lowest.step * i, lowest.divisor * self.tile)
        return tiles * self.tile


def _tiles(x: Array) -> list[int]:
    """The elements in a register along each dimension."""
    return [1] * (x.ndim - 2) + [rows_per_register(x.dtype), LANES]


def _blocks(
    x: Array, shape: Sequence[int], units: Sequence[int], reads: Sequence[int]
) -> list[int]:
    """The sizes of a block of the result.

    They are multiples of `units`, or span a dimension. Along a dimension, an element of
    the result takes `reads` elements of the operand.
    """
    tiles = _tiles(x)
    spans = [-(-size // tile) * tile for size, tile in zip(shape, tiles, strict=True)]
    blocks = [1] * (x.ndim - 2) + [min(units[d], spans[d]) for d in (-2, -1)]
    # A block of a strided dimension is read with the elements in between.
    outer = sorted(range(x.ndim - 3, -1, -1), key=lambda d: reads[d])
    for d, limit in ((-2, _BLOCK_ROWS), *((d, math.inf) for d in (-1, -2, *outer))):
        products = map(int.__mul__, blocks, reads)
        room = _BLOCK_BYTES / x.dtype.itemsize / math.prod(products) * blocks[d]
        most = max(int(min(room, limit) // units[d] * units[d]), blocks[d])
        count = -(-spans[d] // most)
        blocks[d] = min(-(-spans[d] // (count * units[d])) * units[d], spans[d])
    return blocks


def _source_of_slice(dim: Dim, tile: int, block: int) -> _Source:
    span = dim.stride * (block - 1)
    lowest = dim.first - span * dim.is_reversed
    step = dim.sign * dim.stride * block
    extents = dim.extent, dim.size
    return _source(extents, tile, block, span, _Division(lowest, step, 1))


def _source_of_transpose(dim: Dim, tile: int, block: int) -> _Source:
    """Element i of the operand is element `first + sign * stride * i` of the result."""
    lowest = dim.first - (block - 1) if dim.is_reversed else -dim.first
    lowest += dim.stride - 1  # rounded up, when it is divided
    lowest = _Division(lowest, dim.sign * block, dim.stride)
    extents = dim.size, dim.extent
    return _source(extents, tile, block, (block - 1) // dim.stride, lowest)


def _source(
    extents: tuple[int, int], tile: int, block: int, span: int, lowest: _Division
) -> _Source:
    """The source of blocks that take `span` more elements after the lowest one."""
    operand, result = extents
    padded = -(-operand // tile) * tile
    taken = -(-(lowest.of_first % tile + span + 1) // tile) * tile
    taken = min(taken, padded)
    blocks, padding = -(-result // block), padded - operand
    return _Source(block, blocks, taken, padding, lowest, tile, padded - taken)


def _strided_rows(
    x: Any, dims: Sequence[Dim], first: int, rows: int
) -> registers.StridedRows:
    """The strided rows in VMEM, for this number of consecutive rows of a block."""
    count = rows // rows_per_register(x.dtype)
    return registers.StridedRows(dims[-2], first, x.dtype, count)


def _launch(
    kernel: Callable[..., None],
    x: Array,
    dims: Sequence[Dim],
    sources: Sequence[_Source],
    shape: Sequence[int],
    scratch: Sequence[tuple[int, ...]],
) -> Array | None:
    """The kernel's result, or None if its blocks are too large."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    sizes = (
        [source.block for source in sources],
        [source.size for source in sources],
    )
    block_bytes = x.dtype.itemsize * max(map(math.prod, sizes))
    is_large = block_bytes > 2 * _BLOCK_BYTES
    if is_large or WORD * sum(map(math.prod, scratch)) > _SCRATCH_BYTES:
        return None

    def begin(*indices: Any) -> tuple[Any, ...]:
        return tuple(
            pl.multiple_of(source.begin(i), source.tile)
            for source, i in zip(sources, indices, strict=True)
        )

    taken = [pl.Element(source.size, (0, source.padding)) for source in sources]
    semantics = ("parallel",) * len(sources)  # two cores share the grid
    return pl.pallas_call(
        functools.partial(kernel, dims=dims, sources=sources),
        grid=tuple(source.blocks for source in sources),
        in_specs=[pl.BlockSpec(tuple(taken), begin)],
        out_specs=pl.BlockSpec(tuple(sizes[0]), lambda *indices: indices),
        out_shape=jax.ShapeDtypeStruct(tuple(shape), x.dtype),
        scratch_shapes=[
            pltpu.VMEM(each, registers.word_dtype(x.dtype)) for each in scratch
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    )(x)


def _program_ids(count: int) -> list[Any]:
    from jax.experimental import pallas as pl

    return [pl.program_id(d) for d in range(count)]


def _planes(sources: Sequence[_Source]) -> int:
    """How many planes of rows and lanes a block of the result has."""
    return math.prod(source.block for source in sources[:-2])


def _plane(sources: Sequence[_Source], number: Any) -> tuple[Any, ...]:
    """The indices of a numbered plane in a block of the result."""
    sizes = [source.block for source in sources[:-2]]
    indices: list[Any] = []
    while math.prod(sizes[:-1]) > 1:
        number, index = divide(number, sizes.pop())
        indices.insert(0, index)
    return (*(0,) * (len(sizes) - 1), number, *indices)


def _views(
    block: Any,
    planes: Sequence[tuple[Any, ...]],
    numbers: Sequence[tuple[int, int]],
    first_column: Any,
    first: Any,
    count: int,
) -> list[Any]:
    """`registers.view` of the block for each pair of a plane and a column."""
    return [
        registers.view(block, planes[p], first, count, first_column + c)
        for p, c in numbers
    ]


# The slice ----------------------------------------------------------------------------


def _slice_kernel(
    x_block: Any,
    y_block: Any,
    words: Any,
    *,
    dims: Sequence[Dim],
    sources: Sequence[_Source],
) -> None:
    ids = _program_ids(len(dims))
    moved = [source.moved(i) for source, i in zip(sources, ids, strict=True)]
    firsts = [dim.first - s.origin for dim, s in zip(dims, sources, strict=True)]
    rows, lanes = sources[-2:]
    tile = rows_per_register(x_block.dtype)
    strided = _strided_rows(x_block, dims, firsts[-2], rows.block)
    gather = registers.LaneGather(dims[-1], firsts[-1])
    tile_rows = registers.rows_per_tile(dims[-2].extent, x_block.dtype)

    def load(taken: list[Any], first_column: Any, count_columns: int) -> None:
        numbers = list(itertools.product(range(len(taken)), range(count_columns)))

        def move(first: Any, count: int) -> None:
            x = _views(x_block, taken, numbers, first_column, first, count)
            to = [
                strided.view(words.at[p, first_column + c], first, count)
                for p, c in numbers
            ]
            registers.copy(x, to, count, tile_rows)

        registers.repeat_unrolled(rows.size // tile, move)

    def compute(of_y: list[Any], first_column: Any, count_columns: int) -> None:
        numbers = list(itertools.product(range(len(of_y)), range(count_columns)))
        last = lanes.size // LANES - 1
        columns = [
            [
                jnp.clip(each, 0, last)
                for each in gather.registers(first_column + c, -moved[-1])
            ]
            for c in range(count_columns)
        ]

        def move(first: Any, count: int) -> None:
            lowest = strided.lowest(first, count, words.shape[2], -moved[-2])

            def value(plane: int, column: int, k: int) -> Array:
                parts = [words.at[plane, each] for each in columns[column]]
                return gather([strided.load(each, lowest, k, count) for each in parts])

            values = [[value(p, c, k) for k in range(count)] for p, c in numbers]
            y = _views(y_block, of_y, numbers, first_column, first, count)
            registers.store_all(y, values)

        registers.repeat_unrolled(rows.block // tile, move, strided.unroll)

    def operand_plane(of_y: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            jnp.clip(first - by + dim.sign * dim.stride * i, 0, source.size - 1)
            for first, by, dim, source, i in zip(
                firsts, moved, dims, sources, of_y, strict=False
            )
        )

    def compute_planes(first: Any, count: int) -> None:
        of_y = [_plane(sources, first + p) for p in range(count)]
        of_x = [operand_plane(plane) for plane in of_y]
        for block, size, body in (
            (lanes.size, rows.size, functools.partial(load, of_x)),
            (lanes.block, rows.block, functools.partial(compute, of_y)),
        ):
            rows_of_column = words.shape[0] * size // tile * SUBLANES
            at_once = registers.at_once(rows_of_column, block // LANES)
            registers.repeat_unrolled(block // LANES, body, at_once)

    registers.repeat_unrolled(_planes(sources), compute_planes, words.shape[0])


# The transpose ------------------------------------------------------------------------


def _transpose_kernel(
    x_block: Any,
    y_block: Any,
    words: Any,
    staged: Any = None,  # for an operand in small tiles, which are loaded by copies
    *,
    dims: Sequence[Dim],
    sources: Sequence[_Source],
) -> None:
    ids = _program_ids(len(dims))
    moved = [source.moved(i) for source, i in zip(sources, ids, strict=True)]
    row, lane = (
        dims[d].size - sources[d].begin(ids[d]) for d in (-2, -1)
    )  # the first ones after the operand
    # The places of the elements that block 0 takes, if that is in the operand.
    firsts = [
        dim.first + dim.sign * dim.stride * source.origin
        for dim, source in zip(dims, sources, strict=True)
    ]
    rows, lanes = sources[-2:]
    tile = rows_per_register(x_block.dtype)
    strided = _strided_rows(x_block, dims, firsts[-2], rows.size)
    offset = dims[-2].sign * dims[-2].stride * moved[-2]
    zeros = jnp.zeros((SUBLANES, LANES), words.dtype)
    tile_rows = registers.rows_per_tile(dims[-2].extent, x_block.dtype)
    tile_rows_of_x = registers.rows_per_tile(dims[-2].size, x_block.dtype)

    def compute(
        of_y: list[Any],
        taken: list[Any],
        is_taken: list[Any],
        first_column: Any,
        count_columns: int,
    ) -> None:
        numbers = list(itertools.product(range(len(taken)), range(count_columns)))
        targets = [words.at[p, c] for p, c in numbers]
        last = lanes.size // LANES - 1
        spreads = [
            registers.LaneSpread(
                dims[-1], firsts[-1], first_column + c, moved[-1], lane
            )
            for c in range(count_columns)
        ]

        def operand(plane: int, first: Any, count: int, column: Any) -> Any:
            if staged is None:
                return registers.view(x_block, taken[plane], first, count, column)
            return registers.view(staged, (plane, column), first, count, 0)

        def clear(first: Any, count: int) -> None:
            views = [strided.view(each, first, count) for each in targets]
            registers.store_all(views, [[zeros] * count] * len(views))

        def value(plane: int, column: int, first: Any, k: int, count: int) -> Array:
            spread = spreads[column]
            columns = [jnp.clip(each, 0, last) for each in spread.registers]
            views = [operand(plane, first, count, each) for each in columns]
            result = spread([registers.load(view, k) for view in views])
            if rows.padding:
                result = registers.first_rows(result, row - (first + k) * tile, tile)
            return jnp.where(is_taken[plane], result, zeros)

        def move(first: Any, count: int) -> None:
            lowest = strided.lowest(first, count, words.shape[2], offset)
            values = [
                [value(p, c, first, k, count) for k in range(count)] for p, c in numbers
            ]
            for target, values_of_target in zip(targets, values, strict=True):
                for k, bits in enumerate(values_of_target):
                    strided.store(target, lowest, k, count, bits)

        def store(first: Any, count: int) -> None:
            views = [strided.view(each, first, count) for each in targets]
            y = _views(y_block, of_y, numbers, first_column, first, count)
            registers.copy(views, y, count, tile_rows)

        registers.repeat_unrolled(rows.block // tile, clear)
        registers.repeat_unrolled(rows.size // tile, move, strided.unroll)
        registers.repeat_unrolled(rows.block // tile, store)

    def stage(taken: list[Any], first_column: Any, count_columns: int) -> None:
        numbers = list(itertools.product(range(len(taken)), range(count_columns)))

        def move(first: Any, count: int) -> None:
            x = _views(x_block, taken, numbers, first_column, first, count)
            to = [
                registers.view(staged, (p, first_column + c), first, count, 0)
                for p, c in numbers
            ]
            registers.copy(x, to, count, tile_rows_of_x)

        registers.repeat_unrolled(rows.size // tile, move)

    def compute_planes(first: Any, count: int) -> None:
        of_y = [_plane(sources, first + p) for p in range(count)]
        found = [_operand_plane(dims, sources, ids, plane) for plane in of_y]
        taken, is_taken = map(list, zip(*found, strict=True))
        if staged is not None:
            rows_of_column = words.shape[0] * rows.size // tile * SUBLANES
            at_once = registers.at_once(rows_of_column, lanes.size // LANES)
            body = functools.partial(stage, taken)
            registers.repeat_unrolled(lanes.size // LANES, body, at_once)
        body = functools.partial(compute, of_y, taken, is_taken)
        registers.repeat_unrolled(lanes.block // LANES, body, words.shape[1])

    registers.repeat_unrolled(_planes(sources), compute_planes, words.shape[0])


def _operand_plane(
    dims: Sequence[Dim],
    sources: Sequence[_Source],
    ids: list[Any],
    of_y: tuple[Any, ...],
) -> tuple[tuple[Any, ...], Any]:
    """The operand's plane for one of the result, and whether there is one."""
    indices, is_plane = [], True
    for dim, source, i, index in zip(dims, sources, ids, of_y, strict=False):
        distance = dim.sign * (source.block * i + index - dim.first)
        element = lax.div(jnp.maximum(distance, 0), dim.stride)
        is_plane &= (element * dim.stride == distance) & (element < dim.size)
        indices.append(jnp.clip(element - source.begin(i), 0, source.size - 1))
    return tuple(indices), is_plane
