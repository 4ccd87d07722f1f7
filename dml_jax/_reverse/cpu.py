"""The reversal on CPUs: windows of flat rows, where each row has one length.

XLA's gather computes an index for every element, one element at a time. On random rows,
`reversed_windows` takes 0.21 to 0.43 of plain JAX's time, and 0.31 to 0.57 beside an
elementwise operation (`benchmarks/results/random-cpu.json`). XLA fuses it with the
operations that follow if elements have 32 bits, or rows are short. float16 and bfloat16
are moved as floats, in which XLA does not widen them.
"""

import jax.numpy as jnp
from jax import Array, lax

from dml_jax._reverse import xla
from dml_jax._shared import bitwise, lowering

_MIN_BYTES = 2**15  # below, starting another loop takes longer than the loop
_MIN_ROWS = 8  # one of them is gathered
_MIN_WIDE_ROW = 9  # elements of 32 bits; below, there is no loop to speed up
_MIN_NARROW_ROW = 32  # elements of 8 or 16 bits
_MIN_MASKED_ROW = 32  # elements; shorter rows compare positions with lengths
_MIN_MATERIALIZED_ROW = 64  # elements of 8 or 16 bits


def reversed_windows(x: Array, lengths: Array) -> Array | None:
    """For arrays [rows, time, 1, 1] and lengths [rows, 1, 1, 1].

    If row r has T elements and length n, its reversed part is read from the window of T
    elements of the flat array that ends at r * T + n:

        y[r, k] = x[r * T + n - 1 - k]  for k < n

    The addresses are affine in k, so XLA vectorizes the loop. The window of the first
    row would start before the array, so that row is gathered.
    """
    rows, time, lines, step = x.shape
    is_narrow = x.dtype.itemsize < 4
    if lines * step != 1 or x.dtype.itemsize > 4 or rows < _MIN_ROWS:
        return None
    if not _MIN_BYTES < x.size * x.dtype.itemsize < 2**31:
        return None
    if time < (_MIN_NARROW_ROW if is_narrow else _MIN_WIDE_ROW):
        return None
    flat = lowering.materialize(x.reshape(rows, time))
    bits = _reverse_rows(flat, lengths.reshape(rows, 1))
    y = bitwise.from_bits(bits, x.dtype)
    # Wide elements are fused with elementwise operations. Narrow ones are materialized,
    # since a fused transposition would be too slow. Short rows are not materialized:
    # LLVM would unroll the loop that reads them, instead of vectorizing it. The
    # materialized array is flat, so that XLA does not copy it to another layout.
    if is_narrow and time >= _MIN_MATERIALIZED_ROW:
        y = lowering.materialize(lowering.materialize(y).reshape(-1))
    return y.reshape(x.shape)


def _reverse_rows(x: Array, lengths: Array) -> Array:
    """The bits of `x` [R, T], reversed by the lengths [R, 1]."""
    rows, time = x.shape
    row = lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
    starts = jnp.maximum((row - 1) * time + lengths, 0)
    y = bitwise.to_bits(lax.rev(_windows(x.reshape(-1), starts, time), (1,)))
    y = jnp.where(_is_below(lengths, time), y, bitwise.to_bits(x))
    first = bitwise.to_bits(xla.gather(x[:1], lengths[:1], 1))
    return jnp.where(row == 0, lowering.materialize(first), y)


def _windows(x: Array, starts: Array, size: int) -> Array:
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,)
    )
    return lax.gather(x, starts, dimensions, (size,), mode="promise_in_bounds")


def _is_below(lengths: Array, size: int) -> Array:
    """Whether each of `size` positions is below the length of its row.

    A comparison takes 32 bits for each position, also where elements are narrower. From
    32 elements on, the result is read from an array of ones followed by zeros. Its
    elements are bytes, since XLA does not vectorize loads of booleans.
    """
    if size < _MIN_MASKED_ROW:
        return lax.broadcasted_iota(jnp.int32, (1, size), 1) < lengths
    mask = lowering.materialize(
        (lax.iota(jnp.int32, 2 * size) < size).astype(jnp.uint8)
    )
    return _windows(mask, size - lengths, size) != 0
