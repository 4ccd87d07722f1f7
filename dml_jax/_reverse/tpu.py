"""The formulation of the reversal for TPUs.

    barrel_shift    a kernel for each arrangement of the steps in memory

XLA on TPU gathers single elements by reading a tile of 4 KiB for each. The kernel reads
and writes each element once. XLA cannot fuse it with surrounding operations.

A TPU stores the last two dimensions in tiles of 8 by 128 elements. XLA orders the
dimensions of a program's operands so that the padding to whole tiles is least. Here the
kernel gets the dimensions mostly in the same order, so that the transposition moves
nothing.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._reverse import barrel_shift_kernel, window_kernel, xla
from dml_jax._reverse.registers import REGISTER_BYTES, Tpu
from dml_jax._shared import bitwise, jax_versions
from dml_jax._shared.tpu import (
    LANES,
    SUBLANES,
    WORD,
    orders_of_dimensions,
    rows_per_register,
    stored_rows_and_lanes,
)

_MIN_BYTES = REGISTER_BYTES


def barrel_shift(x: Array, lengths: Array, axis: int) -> Array | None:
    """For all dtypes but float64 and complex128, which a TPU stores as pairs of floats.

    This does not apply where the generation of the TPU is not known, nor to arrays of
    no more than one register.
    """
    info = jax_versions.tpu_info()
    if info is None:
        return None
    vmem_bytes = info.vmem_capacity_bytes * 3 // 4
    return barrel_shift_on(Tpu(vmem_bytes, info.generation), x, lengths, axis)


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
    """Tries the arrangements of `x`, the fastest first."""
    if _has_few_lines(x, axis):
        return _reverse_separate_lines(tpu, x, lengths, axis)
    y = _reverse_rows_of_all_arrays(tpu, x, lengths, axis)
    if y is not None:
        return y
    for *_, rows, lanes in orders_of_dimensions(x.shape, x.dtype):
        last_two = (rows, lanes)
        others = [d for d in range(x.ndim) if d not in (axis, *last_two)]
        steps = [] if axis in last_two else [axis]
        order = (*others, *steps, *last_two)
        y = _reverse_arranged(
            tpu, x.transpose(order), lengths.transpose(order), order.index(axis)
        )
        if y is not None:
            return y.transpose(np.argsort(order))
    return _reverse_separate_lines(tpu, x, lengths, axis)


def _has_few_lines(x: Array, axis: int) -> bool:
    """Whether separate lines take at most a quarter of the registers of rows."""
    lines, per_register = x.size // x.shape[axis], rows_per_register(x.dtype)
    of_rows = -(-lines // per_register) * -(-x.shape[axis] // LANES)
    of_lines = lines * -(-x.shape[axis] // (LANES * per_register))
    return x.ndim == 1 or 4 * of_lines <= of_rows


def _reverse_rows_of_all_arrays(
    tpu: Tpu, x: Array, lengths: Array, axis: int
) -> Array | None:
    """The reversal, with the rows of all arrays as the rows of a single array.

    It applies if XLA stores time as lanes, and the single array has at most a quarter
    of the registers. XLA copies the rows.
    """
    rows, lanes = stored_rows_and_lanes(x.shape, x.dtype)
    lines, per_register = x.size // x.shape[axis], rows_per_register(x.dtype)
    of_arrays = lines // x.shape[rows] * -(-x.shape[rows] // per_register)
    if lanes != axis or 4 * -(-lines // per_register) > of_arrays:
        return None
    order = (*(d for d in range(x.ndim) if d not in (rows, axis)), rows, axis)
    arranged = x.transpose(order)
    rows_per_length = x.shape[rows] if lengths.shape[rows] == 1 else 1
    lengths = jnp.broadcast_to(lengths.transpose(order), (*arranged.shape[:-1], 1))
    y = barrel_shift_kernel.reverse_rows(
        arranged.reshape(1, lines, -1),
        lengths.reshape(1, lines),
        tpu,
        rows_per_length,
    )
    return None if y is None else y.reshape(arranged.shape).transpose(np.argsort(order))


def _reverse_arranged(tpu: Tpu, x: Array, lengths: Array, axis: int) -> Array | None:
    """The reversal along one of the last three dimensions."""
    shape, (second, last) = x.shape, x.shape[-2:]
    outer = shape[: min(axis, x.ndim - 2)]
    arrays = math.prod(outer)
    if axis == x.ndim - 1:
        lengths = jnp.broadcast_to(lengths, (*outer, *lengths.shape[-2:]))
        x, lengths = x.reshape(arrays, second, last), lengths.reshape(arrays, -1)
        y = barrel_shift_kernel.reverse_rows(x, lengths, tpu)
        if y is None and x.dtype.itemsize == WORD and 2 * second >= SUBLANES:
            lengths = jnp.broadcast_to(lengths, (arrays, second))
            y = window_kernel.reverse_windows_of_rows(x, lengths, tpu)
    elif axis == x.ndim - 2:
        x = x.reshape(arrays, second, last)
        lengths = jnp.broadcast_to(lengths, (*outer, 1, lengths.shape[-1]))
        lengths = lengths.reshape(arrays, 1, -1)
        y = barrel_shift_kernel.reverse_columns(x, lengths, tpu)
        # Registers that are mostly empty take longer than transposing long lines.
        if y is None and lengths.shape[-1] == 1 and 2 * last >= LANES:
            y = window_kernel.reverse_windows(x, lengths[:, 0, 0], tpu)
    else:
        across = lengths.shape[-2:]
        across = across if across == (1, 1) else (second, last)
        lengths = jnp.broadcast_to(lengths, (*outer, 1, *across))
        x = x.reshape(arrays, shape[axis], second, last)
        y = barrel_shift_kernel.reverse_planes(x, lengths.reshape(arrays, *across), tpu)
    return None if y is None else y.reshape(shape)


def _reverse_separate_lines(tpu: Tpu, x: Array, lengths: Array, axis: int) -> Array:
    """The reversal of lines, each of which is stored as whole registers."""
    bits = x if x.dtype.itemsize == WORD else bitwise.to_bits(x)
    lines = x.size // x.shape[axis]
    # XLA is slow to rearrange words that are not full.
    is_widened = x.ndim > 1 and lines < WORD // x.dtype.itemsize
    arranged = jnp.moveaxis(bits.astype(jnp.uint32) if is_widened else x, axis, -1)
    outer, time = arranged.shape[:-1], arranged.shape[-1]
    lengths = jnp.broadcast_to(jnp.moveaxis(lengths, axis, -1), (*outer, 1))
    # XLA compiles the reshapes for minutes if the lines are not whole registers.
    padding = -time % (LANES * rows_per_register(arranged.dtype))
    padded = jnp.pad(arranged, [*[(0, 0)] * len(outer), (0, padding)])
    y = window_kernel.reverse_windows(
        padded.reshape(lines, -1, LANES), lengths.reshape(-1), tpu, True
    )
    y = y.reshape(padded.shape)
    if is_widened:
        # Otherwise XLA would narrow the words before the reshape.
        y = bitwise.from_bits(lax.optimization_barrier(y).astype(bits.dtype), x.dtype)
    return jnp.moveaxis(y[..., :time], -1, axis)
