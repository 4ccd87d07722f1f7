"""Formulations of a slice and its transpose for TPUs.

XLA copies every s-th lane of a register by many small operations. A float32 slice of
[4096, 4096] with strides (2, 3) takes 3.7 times as long on a TPU v5e as reading and
writing the arrays. One with stride 3 along lanes takes 6 times as long, or 23 times for
uint8. XLA takes minutes to compile a pad with zeros between elements.

    vmem_slice, vmem_slice_transpose    a kernel
    gather_and_select                   the transpose without the kernel

All figures are predicted by TPU's compiler. XLA's own slice is as fast where lanes have
stride 1 and neither rows nor lanes are reversed, unless elements are narrow. XLA fuses
such a slice with surrounding operations. It reverses lanes in three passes over memory.

XLA converts float16 and bfloat16 to float32 and back, which may change NaNs. So XLA
moves them as integers. The kernel takes bfloat16 itself. It takes float16 as integers,
and each conversion of an array costs a pass over memory.

The last two dimensions of the kernel are rows and lanes. `x` is transposed to the order
of dimensions that is fastest for the longer array. This is mostly the order in which
XLA stores the array, so that nothing is moved. XLA copies an array that it stores in
another order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared import bitwise, jax_versions
from dml_jax._shared.tpu import WORD, orders_of_dimensions, stored_rows_and_lanes
from dml_jax._slice import vmem_kernel, xla
from dml_jax._slice.registers import Dim
from dml_jax._slice.window import StridedWindow


def vmem_slice(x: Array, window: StridedWindow) -> Array | None:
    """The kernel, if XLA's own slice is slow."""
    if not _is_supported(x, window.sizes):
        return None
    order = orders_of_dimensions(x.shape, x.dtype)[0]
    if not _is_slow(_dims(x.shape, window, order), x.dtype):
        return None
    stored = stored_rows_and_lanes(x.shape, x.dtype)
    if order[-2:] != stored and not bitwise.is_narrow_float(x.dtype):
        # XLA copies x to this order. First x is cut along the dimensions that are in no
        # tile in either order. Narrow floats would have to be converted for that.
        x, window = _cut(x, window, set(order[:-2]).difference(stored))
    dims = _dims(x.shape, window, order)
    return _in_order(vmem_kernel.strided_slice, x, dims, order)


def vmem_slice_transpose(
    x: Array, shape: tuple[int, ...], window: StridedWindow
) -> Array | None:
    """The kernel, for zeros between elements, or to reverse narrow elements."""
    if not _is_supported(x, shape):
        return None
    is_narrow = x.dtype.itemsize < WORD
    if max(window.strides) == 1 and not (is_narrow and window.reversed_dims):
        return None
    order = orders_of_dimensions(shape, x.dtype)[0]
    dims = _dims(shape, window, order)
    return _in_order(vmem_kernel.strided_slice_transpose, x, dims, order)


def gather_and_select(
    x: Array, shape: tuple[int, ...], window: StridedWindow
) -> Array | None:
    """For zeros between elements, with a gather for each dimension that gets zeros."""
    if max(window.strides, default=1) == 1:
        return None
    return xla.gather_and_select(x, shape, window)


def _cut(
    x: Array, window: StridedWindow, dims: Collection[int]
) -> tuple[Array, StridedWindow]:
    """`x`, cut to the window along these dimensions, and the window in what is left."""
    starts = [window.starts[d] if d in dims else 0 for d in range(x.ndim)]
    limits = [window.limits[d] if d in dims else x.shape[d] for d in range(x.ndim)]
    for d in dims:
        window = window.with_dimension(d, 0, window.sizes[d], window.strides[d])
    return lax.slice(x, starts, limits), window


def _is_slow(dims: list[Dim], dtype: np.dtype) -> bool:
    """Whether XLA's own slice is slow."""
    *_, rows, lanes = dims
    if dtype.itemsize < WORD:
        return any(dim.stride > 1 or dim.is_reversed for dim in dims)
    return lanes.stride > 1 or rows.is_reversed or lanes.is_reversed


def _is_supported(x: Array, shape: tuple[int, ...]) -> bool:
    if any(map(jax.export.is_symbolic_dim, (*x.shape, *shape))):
        return False
    is_empty = 0 in x.shape or 0 in shape
    return jax_versions.LOWERS_TPU_KERNELS and x.ndim > 1 and not is_empty


def _dims(
    shape: tuple[int, ...], window: StridedWindow, order: tuple[int, ...]
) -> list[Dim]:
    numbers = list(zip(shape, window.starts, window.sizes, window.strides, strict=True))
    return [Dim(*numbers[d], d in window.reversed_dims) for d in order]


def _in_order(
    kernel: Callable[[Array, list[Dim]], Array | None],
    x: Array,
    dims: list[Dim],
    order: tuple[int, ...],
) -> Array | None:
    """The kernel's result for `x`, converted and transposed as the kernel needs it."""
    if x.dtype == bool:
        y = _in_order(kernel, x.astype(jnp.uint8), dims, order)
        return None if y is None else y.astype(bool)
    if bitwise.is_narrow_float(x.dtype) and x.dtype != jnp.bfloat16:
        # Pallas has no float16, nor all floats of 8 bits.
        y = _in_order(kernel, bitwise.to_bits(x), dims, order)
        return None if y is None else bitwise.from_bits(y, x.dtype)
    x = x.transpose(order)
    if x.ndim == 2:
        x, dims = x[None], [Dim(1, 0, 1, 1, False), *dims]
    y = kernel(x, dims)
    if y is None:
        return None
    y = y.reshape(y.shape[-len(order) :])
    return y.transpose([order.index(d) for d in range(len(order))])
