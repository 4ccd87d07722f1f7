"""The operators in plain NumPy loops, as an executable specification.

This module is easy to compare with the specifications rather than fast. It moves one
line or one element at a time. It does not use JAX, and the operators do not use it. The
tests compare the two bit for bit, but for sequences of floats, which may differ by one
unit in the last place.

Arguments are not checked. Lengths outside [0, axis size] are clamped.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "fill_value_constant",
    "fill_value_sequence",
    "nearest",
    "reverse_padded",
    "reverse_sequence",
    "reverse_subsequences",
    "slice",
    "slice1",
    "slice_grad",
]


def reverse_subsequences(
    input: np.ndarray, sequence_lengths: np.ndarray, axis: int
) -> np.ndarray:
    """Reverses the first n elements of every line along `axis`; n is its length."""
    axis %= input.ndim
    lengths = np.broadcast_to(
        sequence_lengths, (*input.shape[:axis], 1, *input.shape[axis + 1 :])
    )
    lines = np.moveaxis(input, axis, -1)
    output = lines.copy()
    for line in np.ndindex(lines.shape[:-1]):
        n = min(max(int(np.moveaxis(lengths, axis, -1)[line][0]), 0), input.shape[axis])
        output[line][:n] = lines[line][:n][::-1]
    return np.moveaxis(output, -1, axis)


def reverse_padded(x: np.ndarray, lengths: np.ndarray, axis: int = 1) -> np.ndarray:
    """Reverses the first n elements along `axis` for each index before the axis."""
    axis %= x.ndim
    batch = x.shape[:axis] or x.shape[1:2]  # time-major data: the batch is dimension 1
    output = x.copy()
    sequences = np.moveaxis(output, axis, len(batch))  # a view
    for index in np.ndindex(batch):
        n = min(max(int(np.broadcast_to(lengths, batch)[index]), 0), x.shape[axis])
        sequences[index][:n] = sequences[index][:n][::-1].copy()
    return output


def reverse_sequence(
    input: np.ndarray,
    sequence_lens: np.ndarray,
    batch_axis: int = 1,
    time_axis: int = 0,
) -> np.ndarray:
    """Reverses the first n time steps of every batch entry; n is its length."""
    output = np.moveaxis(input, (batch_axis, time_axis), (0, 1)).copy()
    for entry, length in zip(output, sequence_lens, strict=True):
        n = min(max(int(length), 0), input.shape[time_axis])
        entry[:n] = entry[:n][::-1].copy()
    return np.moveaxis(output, (0, 1), (batch_axis, time_axis))


def slice(
    input: np.ndarray,
    offsets: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
) -> np.ndarray:
    """y[c] = x[offset + stride * c]."""
    output = np.empty(tuple(sizes), input.dtype)
    for c in np.ndindex(output.shape):
        output[c] = input[_positions(offsets, strides or [1] * input.ndim, c)]
    return output


def slice1(
    input: np.ndarray,
    input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int],
    input_window_strides: Sequence[int],
    output_sizes: Sequence[int] | None = None,
) -> np.ndarray:
    """y[c] = x[first + stride * c], from the window's end if the stride is negative."""
    if output_sizes is None:
        steps = zip(input_window_sizes, input_window_strides, strict=True)
        output_sizes = [1 + (window - 1) // abs(stride) for window, stride in steps]
    first = _first(input_window_offsets, input_window_sizes, input_window_strides)
    return slice(input, first, output_sizes, input_window_strides)


def slice_grad(
    input_gradient: np.ndarray,
    output_gradient_sizes: Sequence[int],
    input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int],
    input_window_strides: Sequence[int],
) -> np.ndarray:
    """y[first + stride * c] = g[c], and 0 everywhere else."""
    output = np.zeros(tuple(output_gradient_sizes), input_gradient.dtype)
    first = _first(input_window_offsets, input_window_sizes, input_window_strides)
    for c in np.ndindex(input_gradient.shape):
        output[_positions(first, input_window_strides, c)] = input_gradient[c]
    return output


def fill_value_constant(
    sizes: Sequence[int], value_data_type: np.dtype, value: Any
) -> np.ndarray:
    """y[k] = value."""
    dtype = np.dtype(value_data_type)
    if _is_integer(dtype):
        value = fill_value_sequence([1], dtype, value, 0)[0]
    elif dtype.kind not in "bc" and getattr(value, "dtype", None) != dtype:
        value = nearest(value, dtype)
    return np.full(tuple(sizes), value, dtype)


def fill_value_sequence(
    sizes: Sequence[int],
    value_data_type: np.dtype,
    value_start: Any,
    value_delta: Any,
) -> np.ndarray:
    """y[k] = start + k * delta for the row-major position k.

    Integers are taken modulo 2^bits. Floats are computed in float64 and rounded to the
    nearest value of the dtype. Those that overflow become an infinity, a NaN or the
    largest value, depending on the dtype. The real and the imaginary parts of complex
    numbers are two sequences.
    """
    dtype = np.dtype(value_data_type)
    count = math.prod(sizes)
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        start, delta = dtype.type(value_start), dtype.type(value_delta)
        output = np.empty(count, dtype)
        output.real = fill_value_sequence([count], part, start.real, delta.real)
        output.imag = fill_value_sequence([count], part, start.imag, delta.imag)
    elif _is_integer(dtype):
        info, start, delta = ml_dtypes.iinfo(dtype), int(value_start), int(value_delta)
        terms = (start + k * delta - info.min for k in range(count))
        values = [term % 2**info.bits + info.min for term in terms]
        output = np.array(values, np.dtype(object)).astype(dtype)
    else:
        start, delta = (float(nearest(x, dtype)) for x in (value_start, value_delta))
        values = [nearest(start + k * delta, dtype) for k in range(count)]
        output = np.array(values, dtype)
    return output.reshape(tuple(sizes))


def nearest(value: float | Fraction, dtype: np.dtype) -> np.generic:
    """The value of a float dtype that is nearest to `value`, ties to even."""
    if not isinstance(value, Fraction):
        if not math.isfinite(value) or value == 0:
            return dtype.type(value)
        value = Fraction(value if isinstance(value, int) else float(value))
    if value == 0:
        return dtype.type(0)
    info = ml_dtypes.finfo(dtype)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    ulp = Fraction(2) ** (max(exponent, int(info.minexp)) - int(info.nmant))
    rounded = round(value / ulp) * ulp  # Python rounds a Fraction's ties to even
    if rounded == 0:  # or -0, or the smallest value of a dtype that has no zero
        return dtype.type(float(value))
    if abs(rounded) > Fraction(float(info.max)):
        return dtype.type(-math.inf if value < 0 else math.inf)
    return dtype.type(float(rounded))


def _is_integer(dtype: np.dtype) -> bool:
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


def _first(
    offsets: Sequence[int], windows: Sequence[int], strides: Sequence[int]
) -> list[int]:
    """The first index that is read; for a negative stride, the window's last one."""
    return [
        offset if stride > 0 else offset + window - 1
        for offset, window, stride in zip(offsets, windows, strides, strict=True)
    ]


def _positions(
    offsets: Sequence[int], strides: Sequence[int], coordinates: Sequence[int]
) -> tuple[int, ...]:
    return tuple(
        offset + stride * c
        for offset, stride, c in zip(offsets, strides, coordinates, strict=True)
    )
