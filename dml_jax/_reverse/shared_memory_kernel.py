"""A GPU kernel for columns with lengths of their own, in Pallas and MLIR.

Neighbouring elements of the result come from distant rows, and memory is read in
sectors of 32 bytes. So a block of threads copies a tile, which is all rows of a few
columns, to shared memory, and reads its elements there in any order. It stores

    y[b, t, c] = tile[n - 1 - t if t < n else t, c]    with n = lengths[b, c]

The kernel moves as many bytes as a copy. XLA cannot fuse it with surrounding
operations. If the rows of a tile are shorter than a cache line, neighbouring tiles are
launched together, as a cluster of blocks.

The kernel is written in MLIR because Pallas cannot index shared memory with an array.
Pallas and MLIR are imported in functions, because that takes longer than importing the
whole package.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared import bitwise, jax_versions

_CACHE_LINE = 128  # bytes
_ROW_BYTES = (_CACHE_LINE, 64, 32, 16)  # of a tile, the best first
_ROW_ALIGNMENT = 16  # bytes, of asynchronous copies
_SHARED_BYTES = 200 * 2**10  # for tiles; a block may have 227 KiB
_MAX_ROWS = 256  # of one asynchronous copy
_STORE_BYTES = 4  # that a thread stores at once; or one element, if it is wider
_UNROLL = 8  # rows that a thread loads before it stores them
_MAX_WARPGROUPS = 8  # of a block with rows of a cache line, alone on a multiprocessor
_MULTIPROCESSOR_WARPGROUPS = 16
_MAX_CLUSTER = 4  # tiles; half as many of bytes, which take a thread longer


def tile_width(time: int, columns: int, dtype: np.dtype) -> int | None:
    """The number of columns of a tile, or None if the kernel does not apply."""
    if dtype.kind not in "iuf" or bitwise.width(dtype) < 8:
        return None
    if columns * dtype.itemsize % _ROW_ALIGNMENT:
        return None
    # With fewer than 8 elements a row, a gather reads no more than the kernel.
    row_bytes = [size for size in _ROW_BYTES if size >= 8 * dtype.itemsize]
    for size in row_bytes:
        fits = size <= columns * dtype.itemsize and 0 < time * size <= _SHARED_BYTES
        if fits and (jax_versions.COPIES_ANY_ROWS or time * size % _CACHE_LINE == 0):
            return size // dtype.itemsize
    return None


def reverse_tiles(x: Array, lengths: Array, width: int) -> Array:
    """`x` [B, T, C], reversed along T by the int32 `lengths` [B, C]."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    if x.dtype == np.float64:  # Mosaic has no asynchronous copies of float64
        bits = lax.bitcast_convert_type(x, jnp.uint64)
        return lax.bitcast_convert_type(reverse_tiles(bits, lengths, width), x.dtype)
    batch, time, columns = x.shape
    tiles = -(-columns // width)
    tile_bytes = time * width * x.dtype.itemsize
    has_full_lines = width * x.dtype.itemsize == _CACHE_LINE
    clustered = 1 if has_full_lines else _tiles_per_cluster(batch * tiles, x.dtype)
    copies = [
        pl.ds(row, min(_MAX_ROWS, time - row)) for row in range(0, time, _MAX_ROWS)
    ]

    def body(x_ref: Any, lengths_ref: Any, y_ref: Any, tile_ref: Any, barrier: Any):
        tile = lax.axis_index("cluster")
        if clustered > 1:
            tile = tile * clustered + lax.axis_index("tile")
        b = tile // tiles
        # The last tile may overlap the one before; both store the same values there.
        start = jnp.minimum(tile % tiles * width, columns - width)
        tile_columns = pl.ds(start, width)

        @pl.when(lax.axis_index("warpgroup") == 0)
        def _():
            for rows in copies:
                plgpu.copy_gmem_to_smem(
                    x_ref.at[b, rows, tile_columns], tile_ref.at[rows], barrier
                )

        plgpu.barrier_wait(barrier)
        store = plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * 3)(_store_reversed)
        store(tile_ref, lengths_ref.at[b, tile_columns], y_ref.at[b, :, tile_columns])

    # A cluster of one block would be launched as a cluster, which takes longer.
    cluster: Any = {"cluster": (clustered,), "cluster_names": ("tile",)}
    kernel = plgpu.kernel(
        body,
        out_type=jax.typeof(x),
        scratch_types=[
            plgpu.SMEM((time, width), x.dtype),
            plgpu.Barrier(num_arrivals=len(copies)),
        ],
        grid=(batch * tiles // clustered,),
        grid_names=("cluster",),
        **(cluster if clustered > 1 else {}),
        num_threads=_warpgroups(tile_bytes, has_full_lines),
        thread_name="warpgroup",
    )
    return jax_versions.launch(kernel, x, lengths)


def _warpgroups(tile_bytes: int, has_full_lines: bool) -> int:
    """The warpgroups of a block, so that those of all resident blocks run at once."""
    blocks = _SHARED_BYTES // tile_bytes
    if blocks == 1 and has_full_lines:
        return _MAX_WARPGROUPS
    return min(max(_MULTIPROCESSOR_WARPGROUPS // blocks, 1), _MAX_WARPGROUPS // 2)


def _tiles_per_cluster(tiles: int, dtype: np.dtype) -> int:
    """The largest allowed power of two that divides the number of tiles."""
    return math.gcd(tiles, _MAX_CLUSTER if dtype.itemsize > 1 else _MAX_CLUSTER // 2)


def _store_reversed(_: Any, tile: Any, lengths: Any, y: Any) -> None:
    """Stores a reversed tile. A thread stores the same columns of several rows."""
    from jax.experimental.mosaic import gpu as mgpu
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import arith, gpu, memref, scf, vector

    index, element = ir.IndexType.get(), tile.type.element_type
    time, width = tile.type.shape
    per_store = max(1, _STORE_BYTES * 8 // element.width)
    vector_type = ir.VectorType.get((per_store,), element)

    def constant(value: int) -> Any:
        return arith.constant(index, value)

    thread = arith.index_cast(index, mgpu.thread_idx())
    stores_per_row = constant(width // per_store)
    first_row = arith.divui(thread, stores_per_row)
    column = arith.muli(arith.remui(thread, stores_per_row), constant(per_store))
    row_step = arith.divui(gpu.block_dim(gpu.Dimension.x), stores_per_row)
    columns = [arith.addi(column, constant(k)) for k in range(per_store)]
    column_lengths = [
        arith.index_cast(index, memref.load(lengths, [c])) for c in columns
    ]

    def load(row: Any) -> Any:
        elements = []
        for length, c in zip(column_lengths, columns, strict=True):
            mirrored = arith.subi(arith.subi(length, constant(1)), row)
            is_reversed = arith.cmpi(arith.CmpIPredicate.slt, row, length)
            source = arith.select(is_reversed, mirrored, row)
            elements.append(memref.load(tile, [source, c]))
        return vector.from_elements(vector_type, elements)

    stride = arith.muli(row_step, constant(_UNROLL))
    loop = scf.ForOp(first_row, constant(time), stride)
    with ir.InsertionPoint(loop.body):
        rows = [
            arith.addi(loop.induction_variable, arith.muli(row_step, constant(k)))
            for k in range(_UNROLL)
        ]
        # Instead of rows beyond the last one, the last one is stored again.
        rows = [arith.minui(row, constant(time - 1)) for row in rows]
        loaded = [load(row) for row in rows]
        for row, elements in zip(rows, loaded, strict=True):
            vector.store(elements, y, [row, column])
        scf.yield_([])
