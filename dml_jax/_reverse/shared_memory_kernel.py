"""A GPU kernel for lines side by side with lengths of their own, in Mosaic.

Neighbouring elements of the result come from distant rows, of which memory gives no
less than 32 bytes. So a block of threads copies a strip of columns to the memory they
share, where every element is as near as any other, and stores the strip's rows:

    y[b, t, c] = strip[n - 1 - t if t < n else t, c]    with n = lengths[b, c]

It reads and writes what a copy does, and does not fuse with what is around it. Where a
strip's rows are less than a line of the cache, neighbouring strips begin together, as a
cluster of blocks.

Pallas cannot index shared memory by an array, hence the MLIR. All that is imported
where a program is lowered for such a GPU: it takes longer than the rest of the package.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dml_jax._shared import bitwise, jax_versions

_ROW_BYTES = (128, 64, 32, 16)  # of a strip: the more, the fewer rows fit
_LEAST_BYTES = 16  # that are copied from one row, and what rows are a multiple of
_SHARED_BYTES = 200 * 2**10  # of 227 KiB that a block may have
_MOST_ROWS = 256  # of one asynchronous copy
_WORD_BYTES = 4  # that a thread stores, or a wider element
_WORDS = 8  # that a thread loads before it stores them
_MOST_WARPGROUPS = 8  # of a block that has its multiprocessor, and whole lines to read
_MULTIPROCESSOR = 16  # warpgroups
_MOST_TOGETHER = 4  # strips; of bytes, whose threads take longer, half as many


def strip_width(time, columns, dtype):
    """How many of the columns make a strip; None if the kernel cannot be had."""
    if dtype.kind not in "iuf" or bitwise.width(dtype) < 8:
        return None
    if columns * dtype.itemsize % _LEAST_BYTES:
        return None
    # Of few wide elements a row, a gather reads no more than the kernel would.
    row_bytes = [size for size in _ROW_BYTES if size >= 8 * dtype.itemsize]
    for size in row_bytes:
        fits = size <= columns * dtype.itemsize and 0 < time * size <= _SHARED_BYTES
        if fits and (jax_versions.COPIES_ANY_ROWS or time * size % _ROW_BYTES[0] == 0):
            return size // dtype.itemsize
    return None


def reverse_strips(x, lengths, width):
    """`x` [B, T, C], reversed along T by `lengths` [B, C], of int32."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    batch, time, columns = x.shape
    strips = -(-columns // width)
    strip_bytes = time * width * x.dtype.itemsize
    has_lines = width * x.dtype.itemsize == _ROW_BYTES[0]
    together = 1 if has_lines else _strips_together(batch * strips, x.dtype)
    copies = [
        pl.ds(row, min(_MOST_ROWS, time - row)) for row in range(0, time, _MOST_ROWS)
    ]

    def body(x_ref, lengths_ref, y_ref, strip_ref, barrier):
        block = lax.axis_index("cluster")
        if together > 1:
            block = block * together + lax.axis_index("strip")
        b = block // strips
        # The last strip may overlap the one before it, and stores the same there.
        first = jnp.minimum(block % strips * width, columns - width)
        of_strip = pl.ds(first, width)

        @pl.when(lax.axis_index("warpgroup") == 0)
        def _():
            for rows in copies:
                plgpu.copy_gmem_to_smem(
                    x_ref.at[b, rows, of_strip], strip_ref.at[rows], barrier
                )

        plgpu.barrier_wait(barrier)
        reflect = plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * 3)(_reflect)
        reflect(strip_ref, lengths_ref.at[b, of_strip], y_ref.at[b, :, of_strip])

    # A cluster of one block is launched as such, and slower than the block.
    cluster: Any = dict(cluster=(together,), cluster_names=("strip",))
    kernel = plgpu.kernel(
        body,
        out_type=jax.typeof(x),
        scratch_types=[
            plgpu.SMEM((time, width), x.dtype),
            plgpu.Barrier(num_arrivals=len(copies)),
        ],
        grid=(batch * strips // together,),
        grid_names=("cluster",),
        **(cluster if together > 1 else {}),
        num_threads=_warpgroups(strip_bytes, has_lines),
        thread_name="warpgroup",
    )
    return jax_versions.launch(kernel, x, lengths)


def _warpgroups(strip_bytes, has_lines):
    """As many as run at the same time, of all the blocks whose strips have room."""
    blocks = _SHARED_BYTES // strip_bytes
    if blocks == 1 and has_lines:
        return _MOST_WARPGROUPS
    return min(max(_MULTIPROCESSOR // blocks, 1), _MOST_WARPGROUPS // 2)


def _strips_together(strips, dtype):
    """As many as divide their number, up to a limit."""
    most = _MOST_TOGETHER if dtype.itemsize > 1 else _MOST_TOGETHER // 2
    return math.gcd(strips, most)


def _reflect(_, strip, lengths, y):
    """What a thread does: the words of its columns, every so many rows."""
    from jax.experimental.mosaic import gpu as mgpu
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import arith, gpu, memref, scf, vector

    index, element = ir.IndexType.get(), strip.type.element_type
    time, width = strip.type.shape
    per_word = max(1, _WORD_BYTES * 8 // element.width)
    word_type = ir.VectorType.get((per_word,), element)

    def constant(value):
        return arith.constant(index, value)

    thread = arith.index_cast(index, mgpu.thread_idx())
    words_of_row = constant(width // per_word)
    first_row = arith.divui(thread, words_of_row)
    column = arith.muli(arith.remui(thread, words_of_row), constant(per_word))
    step = arith.divui(gpu.block_dim(gpu.Dimension.x), words_of_row)
    columns = [arith.addi(column, constant(k)) for k in range(per_word)]
    of_columns = [arith.index_cast(index, memref.load(lengths, [c])) for c in columns]

    def word(position):
        elements = []
        for length, c in zip(of_columns, columns, strict=True):
            mirrored = arith.subi(arith.subi(length, constant(1)), position)
            is_reversed = arith.cmpi(arith.CmpIPredicate.slt, position, length)
            source = arith.select(is_reversed, mirrored, position)
            elements.append(memref.load(strip, [source, c]))
        return vector.from_elements(word_type, elements)

    stride = arith.muli(step, constant(_WORDS))
    loop = scf.ForOp(first_row, constant(time), stride)
    with ir.InsertionPoint(loop.body):
        rows = [
            arith.addi(loop.induction_variable, arith.muli(step, constant(k)))
            for k in range(_WORDS)
        ]
        # Instead of a row beyond the last, the last once more.
        rows = [arith.minui(row, constant(time - 1)) for row in rows]
        words = [word(row) for row in rows]
        for row, elements in zip(rows, words, strict=True):
            vector.store(elements, y, [row, column])
        scf.yield_([])
