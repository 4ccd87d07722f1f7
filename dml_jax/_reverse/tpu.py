"""The formulation of the reversal for TPUs.

    barrel_shift    a kernel for rows, columns or planes of steps; where a line does not
                    fit in VMEM, a flip and a slice for each line

XLA on TPU gathers single elements by reading a tile of 4 KiB for each. The kernel reads
and writes each element once. XLA cannot fuse it with surrounding operations.

The kernel reverses along one of the last three dimensions. It takes the order in which
XLA stores the dimensions where it can, so the transposes around it move no data.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._reverse import xla
from dml_jax._reverse.tpu_layout import REGISTER_BYTES, Tpu, orders_of_dimensions
from dml_jax._shared import bitwise, jax_versions

_MIN_BYTES = REGISTER_BYTES


def barrel_shift(x: Array, lengths: Array, axis: int) -> Array | None:
    """For all dtypes but float64 and complex128, which a TPU stores as pairs of floats.

    This does not apply where the generation of the TPU is not known, nor to arrays of
    no more than one register.
    """
    info = jax_versions.tpu_info()
    if info is None:
        return None
    tpu = Tpu(info.vmem_capacity_bytes * 3 // 4, info.generation)
    reverse = functools.partial(barrel_shift_on, tpu)
    return jax_versions.attempted(reverse, "tpu")(x, lengths, axis)


def barrel_shift_on(tpu: Tpu, x: Array, lengths: Array, axis: int) -> Array | None:
    """`barrel_shift` for this TPU."""
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    if math.prod(shape) * x.dtype.itemsize <= _MIN_BYTES or shape[axis] >= 2**31:
        return None
    with bitwise.full_width(x):
        parts = _parts(jnp.broadcast_to(x, shape))
        lengths = lengths.astype(jnp.int32)
        if not parts:
            return None
        return _whole([_reverse(tpu, part, lengths, axis) for part in parts], x.dtype)


def _parts(x: Array) -> list[Array]:
    """Arrays of 8 to 32 bits that have the bits of `x`; none for float64."""
    if x.dtype == jnp.complex64:
        return [lax.real(x), lax.imag(x)]
    if x.dtype == jnp.float16:  # which Pallas does not have
        return [bitwise.to_bits(x)]
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return [x] if x.dtype.itemsize <= 4 else []
    if x.dtype.itemsize == 8:
        x = lax.bitcast_convert_type(x, jnp.uint64)
        return [x.astype(jnp.uint32), (x >> 32).astype(jnp.uint32)]
    return [x.astype(jnp.uint8) if bitwise.width(x.dtype) < 8 else x]


def _whole(parts: Any, dtype: np.dtype) -> Array:
    """The inverse of `_parts`."""
    if dtype == jnp.complex64:
        return lax.complex(*parts)
    if dtype.itemsize == 8:
        low, high = (part.astype(jnp.uint64) for part in parts)
        return lax.bitcast_convert_type(low | high << 32, dtype)
    if bitwise.width(dtype) < 8:
        return parts[0].astype(dtype)
    return bitwise.from_bits(parts[0], dtype)


def _reverse(tpu: Tpu, x: Array, lengths: Array, axis: int) -> Array:
    """The reversal by the kernel, in the fastest order in which a line fits in VMEM."""
    if x.ndim == 1:
        return _reverse(tpu, x[None], lengths[None], 1)[0]
    for *_, rows, lanes in orders_of_dimensions(x.shape, x.dtype):
        last_two = (rows, lanes)
        others = [d for d in range(x.ndim) if d not in (axis, *last_two)]
        steps = [] if axis in last_two else [axis]
        order = (*others, *steps, *last_two)
        y = _reverse_in_order(
            tpu, x.transpose(order), lengths.transpose(order), order.index(axis)
        )
        if y is not None:
            return y.transpose(np.argsort(order))
    return _flip_and_slice(x, lengths, axis)


def _reverse_in_order(tpu: Tpu, x: Array, lengths: Array, axis: int) -> Array | None:
    """The reversal along one of the last three dimensions; None for too long lines."""
    # The import takes several times as long as that of the package, and since jax 0.12
    # it changes the key of jit.
    from dml_jax._reverse import barrel_shift_kernel as kernel

    shape, (second, last) = x.shape, x.shape[-2:]
    outer = shape[: min(axis, x.ndim - 2)]
    arrays = math.prod(outer)
    if axis == x.ndim - 1:
        lengths = jnp.broadcast_to(lengths, (*outer, *lengths.shape[-2:]))
        x, lengths = x.reshape(arrays, second, last), lengths.reshape(arrays, -1)
        y = kernel.reverse_rows(x, lengths, tpu)
    elif axis == x.ndim - 2:
        x = x.reshape(arrays, second, last)
        lengths = jnp.broadcast_to(lengths, (*outer, 1, lengths.shape[-1]))
        y = kernel.reverse_columns(x, lengths.reshape(arrays, 1, -1), tpu)
    else:
        across = lengths.shape[-2:]
        across = across if across == (1, 1) else (second, last)
        lengths = jnp.broadcast_to(lengths, (*outer, 1, *across))
        x = x.reshape(arrays, shape[axis], second, last)
        y = kernel.reverse_planes(x, lengths.reshape(arrays, *across), tpu)
    return None if y is None else y.reshape(shape)


def _flip_and_slice(x: Array, lengths: Array, axis: int) -> Array:
    """The reversal as a flip, and a slice for each line.

    XLA copies a slice as a whole. The rotations of `xla.rotate_and_flip` read the array
    for each bit of the size, and take XLA tens of seconds to compile.
    """
    size, bits = x.shape[axis], bitwise.to_bits(x)

    def reverse_line(line: Array, length: Array) -> Array:
        padded = jnp.pad(line[::-1], ((0, size), (0, 0)))
        return lax.dynamic_slice_in_dim(padded, size - length, size)

    lines = [d for d in range(x.ndim) if lengths.shape[d] > 1]
    order = (*lines, axis, *(d for d in range(x.ndim) if d not in (axis, *lines)))
    arranged = bits.transpose(order)
    y = jax.vmap(reverse_line)(
        arranged.reshape(lengths.size, size, -1), lengths.reshape(-1)
    )
    y = y.reshape(arranged.shape).transpose(np.argsort(order))
    position = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return bitwise.from_bits(jnp.where(position < lengths, y, bits), x.dtype)
