"""Formulations of a slice and its transpose for GPUs.

In the code that XLA generates for a slice, a thread stores four elements if their
number is divisible by four, else one. So a store is short for narrow elements, and odd
sizes take more than twice as long as even ones. These formulations store more at once:

    split_stores   four slices, concatenated: a thread stores as much of each
    packed_u32     contiguous narrow elements as 32-bit words
    packed_copy    a kernel for narrow elements at any alignment (Hopper GPUs)

XLA fuses `split_stores` with surrounding operations, but not the others. All take
integers or booleans, and return None for what they are not made for.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax import Array, lax

from dml_jax._shared import bitwise, packed_copy_kernel
from dml_jax._slice.window import StridedWindow

_WORTHWHILE = 2**20  # elements; the time for fewer is that of launching the kernel
_THREADS = 128  # in a block of the kernels that XLA generates
_GPU_CACHE = 2**25  # bytes


def even_split_stores(x: Array, window: StridedWindow) -> Array | None:
    """In four parts of equal size, each a multiple of what a thread stores."""
    if _is_small(x, window.sizes) or not _is_even(window.sizes):
        return None
    divisible = [d for d in range(x.ndim) if window.sizes[d] % 4 == 0]
    return _in_four_parts(x, window, divisible[0]) if divisible else None


def split_stores(x: Array, window: StridedWindow) -> Array | None:
    """In four parts of about equal size, where a thread would store one element."""
    if _is_small(x, window.sizes) or math.prod(window.sizes) % 4 == 0:
        return None
    large = [d for d in range(x.ndim) if window.sizes[d] >= 4]
    return _in_four_parts(x, window, large[0]) if large else None


def _is_even(sizes: tuple[int, ...]) -> bool:
    """Whether all threads get equal work; if not, XLA generates scalar stores."""
    return math.prod(sizes) % (4 * 4 * _THREADS) == 0


def _is_small(x: Array, result_shape: tuple[Any, ...]) -> bool:
    """Whether XLA's own slice is as fast, or a size is not known."""
    is_symbolic = any(map(jax.export.is_symbolic_dim, (*x.shape, *result_shape)))
    return is_symbolic or math.prod(result_shape) < _WORTHWHILE


def _in_four_parts(x: Array, window: StridedWindow, d: int) -> Array:
    size, stride = window.sizes[d], window.strides[d]
    parts = []
    for i in range(4):
        begin, end = size * i // 4, size * (i + 1) // 4
        start = window.starts[d] + stride * begin
        part = window.with_dimension(d, start, end - begin, stride)
        # XLA merges neighbouring slices of one operand, but not of `x` and `~x`.
        y = lax.slice(~x if i % 2 else x, part.starts, part.limits, part.strides)
        parts.append(lax.rev(~y if i % 2 else y, window.reversed_dims))
    if d in window.reversed_dims:
        parts.reverse()
    return lax.concatenate(parts, d)


def packed_u32(x: Array, window: StridedWindow) -> Array | None:
    """As 32-bit words, for narrow elements with stride 1 along the last dimension."""
    if _is_small(x, window.sizes) or bitwise.width(x.dtype) not in (8, 16):
        return None
    shape, merged = _merge_contiguous(x.shape, window)
    per_word = 4 // x.dtype.itemsize
    if not shape or merged.strides[-1] != 1:
        return None
    if shape[-1] % per_word or merged.sizes[-1] % per_word:
        return None
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
    y = bitwise.split(y, x.dtype).reshape(window.sizes)
    return lax.rev(y, window.reversed_dims)


def packed_copy(x: Array, window: StridedWindow) -> Array | None:
    """A kernel, unless `even_split_stores` in the cache is as fast."""
    if _is_small(x, window.sizes):
        return None
    size = math.prod(window.sizes)
    if _is_even(window.sizes) and size * x.dtype.itemsize <= _GPU_CACHE:
        return None
    return packed_copy_kernel.strided_slice(x, window)


def packed_copy_with_zeros(
    x: Array, shape: tuple[int, ...], window: StridedWindow
) -> Array | None:
    """The same kernel for the transpose, with zeros between the elements."""
    if _is_small(x, shape):
        return None
    return packed_copy_kernel.strided_slice_transpose(x, shape, window)


def _merge_contiguous(
    shape: tuple[int, ...], window: StridedWindow
) -> tuple[tuple[int, ...], StridedWindow]:
    """The shape and the window, with dimensions merged where the reads are contiguous.

    Reversed dimensions are left to the caller.
    """
    merged: list[tuple[int, int, int, int]] = []
    for extent, start, size, stride in zip(
        shape, window.starts, window.sizes, window.strides, strict=True
    ):
        if merged and (start, size, stride) == (0, extent, 1) and merged[-1][3] == 1:
            extent, start, size = (number * extent for number in merged.pop()[:3])
        merged.append((extent, start, size, stride))
    extents, starts, sizes, strides = zip(*merged, strict=True) if merged else [()] * 4
    return extents, StridedWindow(window.operator, starts, sizes, strides, ())
