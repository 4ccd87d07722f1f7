"""The formulation of a slice for GPUs.

In the kernels that XLA generates, a thread stores four elements if four divides the
size of the result, two if two does, else one. Single bytes, and 16-bit elements at odd
sizes, are stored at a third of the speed of words. A concatenation of four slices lets
each thread store as many elements of each of them, and XLA fuses it with surrounding
operations.
"""

from __future__ import annotations

import itertools
import math

import jax.export
import jax.numpy as jnp
from jax import Array, lax

from dml_jax._shared import bitwise
from dml_jax._shared.gpu import MIN_ELEMENTS, PARTS, PER_STORE
from dml_jax._slice import xla
from dml_jax._slice.window import StridedWindow


def strided_slice(x: Array, window: StridedWindow) -> Array:
    """Four slices, concatenated, where XLA's stores of a single one are short."""
    bits = _to_integers(x)
    if bits is not None and _has_short_stores(bits, window):
        for d, size in enumerate(window.sizes):
            if size >= PARTS:
                return bitwise.from_bits(_concatenate_parts(bits, window, d), x.dtype)
    return xla.strided_slice(x, window)


def _to_integers(x: Array) -> Array | None:
    """The bits of `x` as integers or booleans; None if elements exceed 32 bits."""
    if x.dtype == jnp.float32:
        return lax.bitcast_convert_type(x, jnp.uint32)
    bits = bitwise.to_bits(x)
    is_integer = jnp.issubdtype(bits.dtype, jnp.integer) or bits.dtype == bool
    return bits if is_integer and bits.dtype.itemsize <= 4 else None


def _has_short_stores(bits: Array, window: StridedWindow) -> bool:
    """Whether four parts are faster; stores of two 32-bit elements are wide enough."""
    if any(map(jax.export.is_symbolic_dim, (*bits.shape, *window.sizes))):
        return False
    size = math.prod(window.sizes)
    per_store = 2 if bits.dtype.itemsize == 4 else PER_STORE
    return size >= MIN_ELEMENTS and size % per_store != 0


def _concatenate_parts(bits: Array, window: StridedWindow, d: int) -> Array:
    """The slice in four parts of about equal size along dimension `d`."""
    stride = window.strides[d]
    bounds = [window.sizes[d] * i // PARTS for i in range(PARTS + 1)]
    parts = []
    for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
        start = window.starts[d] + stride * begin
        part = window.with_dimension(d, start, end - begin, stride)
        # XLA merges neighbouring slices of one operand, but not of `x` and `~x`.
        y = lax.slice(~bits if i % 2 else bits, part.starts, part.limits, part.strides)
        parts.append(lax.rev(~y if i % 2 else y, window.reversed_dims))
    if d in window.reversed_dims:
        parts.reverse()
    return lax.concatenate(parts, d)
