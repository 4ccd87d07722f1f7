"""Formulations of a slice and its transpose for GPUs.

XLA's stores are short for narrow elements, and sizes that four does not divide take
more than twice as long as others. In these formulations a thread stores more at once:

    equal_split_stores, split_stores    four slices, concatenated
    contiguous                          XLA's slice of the dtype itself
    packed_u32                          contiguous narrow elements as 32-bit words
    packed_copy, packed_copy_with_zeros a kernel for up to 32 bits (Hopper GPUs)

XLA fuses the first three with surrounding operations, but not the others. `contiguous`
takes any dtype of 8 bits and more, and the others take integers or booleans. All return
None if they do not apply.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax import Array, lax

from dml_jax._shared import bitwise, packed_copy_kernel
from dml_jax._shared.chunk_kernel import WORD
from dml_jax._shared.gpu import MIN_ELEMENTS, PARTS, PER_STORE
from dml_jax._slice.window import StridedWindow

_THREADS = 128  # of a block
_CACHE_BYTES = 2**25  # a smaller result stays in the cache
_ALIGNMENT = 4  # bytes


def equal_split_stores(x: Array, window: StridedWindow) -> Array | None:
    """Four slices of equal size, if all threads then get equal work."""
    if _is_small(x, window.sizes) or not _fills_blocks(window.sizes):
        return None
    return _concatenate_parts(x, window, _divisible_dim(window.sizes))


def split_stores(x: Array, window: StridedWindow) -> Array | None:
    """Four slices of about equal size, where four does not divide the result's size.

    Threads of XLA then store one element each, or two if the size is even. Two are as
    fast as parts for 32 bits, and for 16 bits if the row has a stride.
    """
    size, itemsize = math.prod(window.sizes), x.dtype.itemsize
    if _is_small(x, window.sizes) or size % PER_STORE == 0:
        return None
    if size % 2 == 0:
        *_, row = packed_copy_kernel.merged_dims(x.shape, window)
        if itemsize == WORD or (itemsize == 2 and row.stride > 1):
            return None
    return _concatenate_parts(x, window, _large_dim(window.sizes))


def contiguous(x: Array, window: StridedWindow) -> Array | None:
    """For consecutive elements, which XLA copies as a memcpy if nothing is fused.

    It does not do so if they are converted to integers and back. A memcpy of 16-bit
    elements from an unaligned address is slower than a kernel, and so is a fused slice
    of a size that four does not divide.
    """
    if _is_small(x, window.sizes) or bitwise.width(x.dtype) < 8:
        return None
    dims = packed_copy_kernel.merged_dims(x.shape, window)
    if len(dims) != 1 or not dims[0].is_consecutive:
        return None
    if dims[0].start * x.dtype.itemsize % _ALIGNMENT or dims[0].size % PER_STORE:
        return None
    return lax.slice(x, window.starts, window.limits)


def _divisible_dim(sizes: tuple[int, ...]) -> int | None:
    """The first dimension that can be split into parts of equal size."""
    return next((d for d, size in enumerate(sizes) if size % PARTS == 0), None)


def _large_dim(sizes: tuple[int, ...]) -> int | None:
    """The first dimension that can be split into parts of at least one element."""
    return next((d for d, size in enumerate(sizes) if size >= PARTS), None)


def _fills_blocks(sizes: tuple[int, ...]) -> bool:
    """Whether all threads of four parts get equal work; else XLA stores scalars."""
    return math.prod(sizes) % (PARTS * PER_STORE * _THREADS) == 0


def _is_small(x: Array, result_shape: tuple[Any, ...]) -> bool:
    """Whether XLA's own slice is as fast, or a size is symbolic."""
    is_symbolic = any(map(jax.export.is_symbolic_dim, (*x.shape, *result_shape)))
    return is_symbolic or math.prod(result_shape) < MIN_ELEMENTS


def _concatenate_parts(x: Array, window: StridedWindow, d: int | None) -> Array | None:
    """The slice in parts along dimension `d`, or None if there is no such dimension."""
    if d is None:
        return None
    stride = window.strides[d]
    bounds = [window.sizes[d] * i // PARTS for i in range(PARTS + 1)]
    parts = []
    for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
        start = window.starts[d] + stride * begin
        part = window.with_dimension(d, start, end - begin, stride)
        # XLA merges neighbouring slices of one operand, but not of `x` and `~x`.
        y = lax.slice(~x if i % 2 else x, part.starts, part.limits, part.strides)
        parts.append(lax.rev(~y if i % 2 else y, window.reversed_dims))
    if d in window.reversed_dims:
        parts.reverse()
    return lax.concatenate(parts, d)


def packed_u32(x: Array, window: StridedWindow) -> Array | None:
    """For rows of consecutive narrow elements that are whole 32-bit words."""
    if _is_small(x, window.sizes) or bitwise.width(x.dtype) not in (8, 16):
        return None
    dims = packed_copy_kernel.merged_dims(x.shape, window)
    per_word = 4 // x.dtype.itemsize
    if not dims or not dims[-1].is_consecutive:
        return None
    if dims[-1].extent % per_word or dims[-1].size % per_word:
        return None
    shape, starts, sizes, strides, signs = zip(*dims, strict=True)
    reversed_dims = tuple(d for d, sign in enumerate(signs) if sign < 0)
    merged = StridedWindow(window.operator, starts, sizes, strides, reversed_dims)
    words = bitwise.join(x.reshape(shape), jnp.uint32)
    first, shift = divmod(merged.starts[-1], per_word)
    count = merged.sizes[-1] // per_word

    def words_from(first: int) -> Array:
        part = merged.with_dimension(len(shape) - 1, first, count, 1)
        return lax.slice(words, part.starts, part.limits, part.strides)

    y = words_from(first)
    if shift:
        bits = 8 * x.dtype.itemsize * shift
        y = (y >> bits) | (words_from(first + 1) << (32 - bits))
    y = lax.rev(y, merged.reversed_dims)
    return bitwise.split(y, x.dtype).reshape(window.sizes)


def packed_copy(x: Array, window: StridedWindow) -> Array | None:
    """A kernel, unless XLA is as fast.

    `equal_split_stores` is, if the result stays in the cache. Of 32-bit elements, XLA
    slices rows as fast if four divides their size, or if the row has a stride.
    """
    if _is_small(x, window.sizes):
        return None
    *_, row = packed_copy_kernel.merged_dims(x.shape, window)
    has_chunks = row.stride > 1 or row.size % PER_STORE == 0
    if x.dtype.itemsize == WORD and has_chunks:
        return None
    size = math.prod(window.sizes)
    if _fills_blocks(window.sizes) and size * x.dtype.itemsize <= _CACHE_BYTES:
        return None
    return packed_copy_kernel.strided_slice(x, window)


def packed_copy_with_zeros(
    x: Array, shape: tuple[int, ...], window: StridedWindow
) -> Array | None:
    """The same kernel for the transpose, which stores zeros between the elements."""
    if _is_small(x, shape):
        return None
    return packed_copy_kernel.strided_slice_transpose(x, shape, window)
