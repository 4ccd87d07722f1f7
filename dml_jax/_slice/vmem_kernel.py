"""A TPU kernel for strided slices and their transposes, in Pallas.

It copies blocks to VMEM and back, as a copy would. In between it moves

    rows   by loads, or stores, with a stride between the rows of a register
    lanes  by gathers from one register after another

XLA cannot fuse it with surrounding operations. Pallas is imported in functions, because
that takes longer than importing the whole package.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from dml_jax._shared import bitwise
from dml_jax._slice import registers
from dml_jax._slice.registers import LANES, SUBLANES, WORD, Dim, divide

_BLOCK_BYTES = 2**20  # of the operand or the result, whichever is larger
_BLOCK_ROWS = 1024  # for long loops; lanes beyond them are only longer copies
_SCRATCH_BYTES = 6 * 2**20  # with four blocks, below the 16 MiB of a TPU v4
_MAX_STRIDE = 32  # of rows and lanes


def strided_slice(x: Array, dims: Sequence[Dim]) -> Array | None:
    """The elements in a strided window of `x`, of rank 3 or more; or None."""
    shape, tiles = [dim.size for dim in dims], _tiles(x)
    blocks = _blocks(x, shape, tiles, [dim.stride for dim in dims])
    sources = [
        _source_of_slice(dim, tile, block)
        for dim, tile, block in zip(dims, tiles, blocks, strict=True)
    ]
    rows, lanes = sources[-2:]
    scratch = (lanes.size // LANES, *_scratch(x, dims, rows.size))
    return _launch(_slice_kernel, x, dims, sources, shape, scratch)


def strided_slice_transpose(x: Array, dims: Sequence[Dim]) -> Array | None:
    """Zeros, with `x` in a strided window of them, of rank 3 or more; or None."""
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
    scratch = _scratch(x, dims, blocks[-2])
    return _launch(_transpose_kernel, x, dims, sources, shape, scratch)


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

    Along rows and lanes, they are a multiple of a register and begin at one.
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
    return [1] * (x.ndim - 2) + [registers.rows_per_register(x.dtype), LANES]


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
    for d, limit in ((-2, _BLOCK_ROWS), (-1, math.inf), (-2, math.inf), (-3, math.inf)):
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


def _scratch(x: Array, dims: Sequence[Dim], rows: int) -> tuple[int, int]:
    """A column of registers with this number of rows, and their margins."""
    margin = registers.StridedRows(dims[-2], 0, x.dtype).margin
    return rows * x.dtype.itemsize // WORD + 2 * margin, LANES


def _launch(
    kernel: Callable[..., None],
    x: Array,
    dims: Sequence[Dim],
    sources: Sequence[_Source],
    shape: Sequence[int],
    scratch: tuple[int, ...],
) -> Array | None:
    """The kernel's result, or None if it does not apply."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    is_number = jnp.issubdtype(x.dtype, jnp.number)
    if not is_number or bitwise.width(x.dtype) not in (8, 16, 32):
        return None
    sizes = (
        [source.block for source in sources],
        [source.size for source in sources],
    )
    block_bytes = x.dtype.itemsize * max(map(math.prod, sizes))
    is_large = block_bytes > 2 * _BLOCK_BYTES
    if is_large or WORD * math.prod(scratch) > _SCRATCH_BYTES:
        return None
    is_long = max(dim.extent for dim in dims) >= 2**29
    if is_long or max(dim.stride for dim in dims[-2:]) > _MAX_STRIDE:
        return None

    def begin(*indices: Any) -> tuple[Any, ...]:
        return tuple(
            pl.multiple_of(source.begin(i), tile)
            for source, i, tile in zip(sources, indices, _tiles(x), strict=True)
        )

    taken = [pl.Element(source.size, (0, source.padding)) for source in sources]
    return pl.pallas_call(
        functools.partial(kernel, dims=dims, sources=sources),
        grid=tuple(source.blocks for source in sources),
        in_specs=[pl.BlockSpec(tuple(taken), begin)],
        out_specs=pl.BlockSpec(tuple(sizes[0]), lambda *indices: indices),
        out_shape=jax.ShapeDtypeStruct(tuple(shape), x.dtype),
        scratch_shapes=[pltpu.VMEM(scratch, registers.word_dtype(x.dtype))],
    )(x)


def _program_ids(count: int) -> list[Any]:
    from jax.experimental import pallas as pl

    return [pl.program_id(d) for d in range(count)]


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
    strided = registers.StridedRows(dims[-2], firsts[-2], x_block.dtype)
    gather = registers.LaneGather(dims[-1], firsts[-1])
    outer = (0,) * (len(dims) - 3)
    planes, rows, lanes = sources[-3:]
    tile = registers.rows_per_register(x_block.dtype)

    def load(plane: Any, column: Any) -> None:
        def move(first: Any, count: int) -> None:
            x = registers.view(x_block, (*outer, plane), first, count, column)
            registers.copy(x, strided.view(words.at[column], first, count), count)

        registers.repeat_unrolled(rows.size // tile, move)

    def compute(plane: Any, column: Any) -> None:
        last = lanes.size // LANES - 1
        columns = gather.registers(column, -moved[-1])
        columns = [words.at[jnp.clip(each, 0, last)] for each in columns]

        def move(first: Any, count: int) -> None:
            lowest = strided.lowest(first, count, words.shape[1], -moved[-2])
            values = [
                gather([strided.load(each, lowest, k, count) for each in columns])
                for k in range(count)
            ]
            y = registers.view(y_block, (*outer, plane), first, count, column)
            registers.store_all(y, values)

        registers.repeat_unrolled(rows.block // tile, move, strided.unroll)

    def compute_plane(plane: Any) -> None:
        dim = dims[-3]
        taken = firsts[-3] - moved[-3] + dim.sign * dim.stride * plane
        taken = jnp.clip(taken, 0, planes.size - 1)
        registers.repeat(lanes.size // LANES, functools.partial(load, taken))
        registers.repeat(lanes.block // LANES, functools.partial(compute, plane))

    registers.repeat(planes.block, compute_plane)


# The transpose ------------------------------------------------------------------------


def _transpose_kernel(
    x_block: Any,
    y_block: Any,
    words: Any,
    *,
    dims: Sequence[Dim],
    sources: Sequence[_Source],
) -> None:
    ids = _program_ids(len(dims))
    moved = [source.moved(i) for source, i in zip(sources, ids, strict=True)]
    lefts = [
        dim.size - source.begin(i)
        for dim, source, i in zip(dims, sources, ids, strict=True)
    ]
    # The places of the elements that block 0 takes, if that is in the operand.
    firsts = [
        dim.first + dim.sign * dim.stride * source.origin
        for dim, source in zip(dims, sources, strict=True)
    ]
    strided = registers.StridedRows(dims[-2], firsts[-2], x_block.dtype)
    offset = dims[-2].sign * dims[-2].stride * moved[-2]
    outer = (0,) * (len(dims) - 3)
    planes, rows, lanes = sources[-3:]
    tile = registers.rows_per_register(x_block.dtype)

    def clear(first: Any, count: int) -> None:
        zeros = jnp.zeros((SUBLANES, LANES), words.dtype)
        registers.store_all(strided.view(words, first, count), [zeros] * count)

    def compute(plane: Any, taken: tuple[Any, ...], size: Any, column: Any) -> None:
        registers.repeat_unrolled(rows.block // tile, clear)
        spread = registers.LaneSpread(dims[-1], firsts[-1], column, moved[-1], size)
        last = lanes.size // LANES - 1
        columns = [jnp.clip(each, 0, last) for each in spread.registers]

        def move(first: Any, count: int) -> None:
            x = [registers.view(x_block, taken, first, count, c) for c in columns]
            lowest = strided.lowest(first, count, words.shape[0], offset)
            values = [
                spread([registers.load(each, k) for each in x]) for k in range(count)
            ]
            if rows.padding:
                values = [
                    registers.first_rows(value, lefts[-2] - (first + k) * tile, tile)
                    for k, value in enumerate(values)
                ]
            for k, value in enumerate(values):
                strided.store(words, lowest, k, count, value)

        def store(first: Any, count: int) -> None:
            y = registers.view(y_block, (*outer, plane), first, count, column)
            registers.copy(strided.view(words, first, count), y, count)

        registers.repeat_unrolled(rows.size // tile, move, strided.unroll)
        registers.repeat_unrolled(rows.block // tile, store)

    def compute_plane(plane: Any) -> None:
        places = [*ids[:-3], planes.block * ids[-3] + plane]
        found = [
            _operand_index(dim, source, i, place)
            for dim, source, i, place in zip(dims, sources, ids, places, strict=False)
        ]
        taken = tuple(index for index, _ in found)
        is_taken = functools.reduce(jnp.logical_and, [each for _, each in found])
        size = jnp.where(is_taken, lefts[-1], 0)
        registers.repeat(
            lanes.block // LANES, functools.partial(compute, plane, taken, size)
        )

    registers.repeat(planes.block, compute_plane)


def _operand_index(dim: Dim, source: _Source, i: Any, place: Any) -> tuple[Any, Any]:
    """The index in block `i` of the element at a place, and whether there is one."""
    distance = dim.sign * (place - dim.first)
    element = lax.div(jnp.maximum(distance, 0), dim.stride)
    is_element = (element * dim.stride == distance) & (element < dim.size)
    return jnp.clip(element - source.begin(i), 0, source.size - 1), is_element
