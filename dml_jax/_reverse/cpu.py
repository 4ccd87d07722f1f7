"""Formulations of the reversal for CPUs.

    reversed_windows    one length per line: reversed windows of flat lines
    transposed_windows  one length per column: the same for the transposed array
    vectorized_gather   the gather, with vectorized copies

The median fraction of plain JAX's time, over the random shapes for which each is used,
alone and beside an elementwise operation (`benchmarks/results/sweep-cpu.json`, a CPU
with AVX-512):

                        float32       bfloat16      uint8
    reversed_windows    0.43, 0.44    0.34, 0.57    0.21, 0.31
    vectorized_gather   1             1             1

No array of that sweep is large enough to be transposed. With a transposition, smaller
ones took 1.8 and more times as long as plain JAX. On a CPU without AVX-512, the copies
of `vectorized_gather` took half of the time for bfloat16, with 64 features and more.

XLA's gather computes an index for every element, one element at a time. XLA fuses
`vectorized_gather` with surrounding operations. It fuses `reversed_windows` of 32 bits,
or of short rows, with those that follow. float16 and bfloat16 are moved as floats by
the first two, in which XLA does not widen them.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array, lax

from dml_jax._reverse import xla
from dml_jax._shared import bitwise, lowering

_MIN_BYTES = 2**15  # below, starting another loop takes longer than the loop
_MAX_STEP = {1: 5, 2: 2, 4: 1}  # elements, by itemsize; others are gathered
_MIN_MASKED_LINE = 32  # elements; shorter lines compare positions with lengths
_MIN_BYTES_OF_STEPS = 64  # of a line whose steps have several bytes
_MIN_STORED_LINE = 64  # elements of 8 or 16 bits
_MIN_WIDE_LINE = 9  # elements of 32 bits; below, there is no loop to speed up
_MIN_TRANSPOSED = 2**23  # elements of a table; a cache of 32 MiB holds a smaller one
_MIN_VECTORIZED = 60  # elements; LLVM unrolls shorter loops
_MIN_LINES = 8  # lines; one of them is gathered
_MIN_LINES_OF_STEPS = 32  # lines with steps of several elements; two are gathered
_MIN_ELEMENTS_PER_LENGTH = 64  # below, a loop over the lengths takes longer
_MIN_VECTORIZED_BYTES = 2**18  # below, XLA would divide too small a loop


def reversed_windows(x: Array, lengths: Array, axis: int) -> Array | None:
    """For lengths that vary only along dimensions before the axis.

    The array is flat, with lines of T elements. If line r has length n, its reversed
    part is read from the window of T elements that ends at r * T + n:

        y[r, k] = x[r * T + n - 1 - k]  for k < n

    The addresses are affine in k, so XLA vectorizes the loop. The window of the first
    line would start before the array, so that line is gathered. If a step has several
    elements, the result is blended from one window for each of them. Then the windows
    of the last line may end beyond the array, so it is gathered, too.
    """
    time = x.shape[axis]
    x = jnp.broadcast_to(x, xla.broadcast_shape(x.shape, lengths.shape, axis))
    if math.prod(lengths.shape[axis:]) != 1 or not _MIN_BYTES < x.nbytes < 2**31:
        return None
    lines, step = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    if step > _MAX_STEP.get(x.dtype.itemsize, 0):
        return None
    if lines < (_MIN_LINES if step == 1 else _MIN_LINES_OF_STEPS):
        return None
    is_narrow = x.dtype.itemsize < 4
    if time * step < _min_line(x.dtype.itemsize, step):
        return None
    lengths = jnp.broadcast_to(lengths, (*x.shape[:axis], *lengths.shape[axis:]))
    flat = lowering.materialize(x).reshape(lines, time * step)
    bits = _reverse_flat_lines(flat, lengths.reshape(lines, 1), step)
    y = bitwise.from_bits(bits, x.dtype)
    # Wide elements are fused with elementwise operations. Narrow ones are stored, as
    # flat lines: loops over steps would be too short, a fused transposition too slow.
    # Short lines of single elements are not stored. LLVM would unroll the loop that
    # reads them, and not vectorize it.
    if is_narrow and (step > 1 or time >= _MIN_STORED_LINE):
        y = lowering.materialize(y)
        if 1 in x.shape:  # XLA would give the reshape another layout, and copy it
            y = lowering.materialize(y.reshape(-1))
    return y.reshape(x.shape)


def _min_line(itemsize: int, step: int) -> int:
    """The elements of a line from which on its loop is faster than the gather."""
    if itemsize >= 4:
        return _MIN_WIDE_LINE
    return _MIN_BYTES_OF_STEPS if itemsize == 1 and step > 1 else _MIN_MASKED_LINE


def _reverse_flat_lines(x: Array, lengths: Array, step: int) -> Array:
    """The bits of the result, for flat lines and lengths in steps."""
    lines, size = x.shape
    line = lax.broadcasted_iota(jnp.int32, (lines, 1), 0)
    start = (line - 1) * size + lengths * step - (step - 1)
    y = _reversed_bits_from(x, start, size)
    in_step = lax.iota(jnp.int32, size) % step
    for k in range(1, step):
        is_kth = lowering.materialize((in_step == k).astype(jnp.uint8))[None] != 0
        y = jnp.where(is_kth, _reversed_bits_from(x, start + 2 * k, size), y)
    y = jnp.where(_is_below(lengths * step, size), y, bitwise.to_bits(x))
    for k in {0, lines - 1} if step > 1 else {0}:
        gathered = xla.gather(
            x[k : k + 1].reshape(1, size // step, step), lengths[k : k + 1, :, None], 1
        )
        gathered = bitwise.to_bits(gathered.reshape(1, size))
        y = jnp.where(line == k, lowering.materialize(gathered), y)
    return y


def _reversed_bits_from(x: Array, starts: Array, size: int) -> Array:
    """The bits of the windows of flat `x` from `starts` on, each window reversed."""
    starts = jnp.clip(starts, 0, x.size - size)
    return bitwise.to_bits(lax.rev(_windows(x.reshape(-1), starts, size), (1,)))


def _windows(x: Array, starts: Array, size: int) -> Array:
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,)
    )
    return lax.gather(x, starts, dimensions, (size,), mode="promise_in_bounds")


def _is_below(lengths: Array, size: int) -> Array:
    """Whether each of `size` positions is below the length of its line.

    A comparison needs 32 bits for each position, so that a vector has fewer narrow
    elements. From 32 elements on, the result is read from an array of ones followed by
    zeros. Its elements are bytes, since XLA does not vectorize loads of booleans.
    """
    if size < _MIN_MASKED_LINE:
        return lax.broadcasted_iota(jnp.int32, (1, size), 1) < lengths
    mask = lowering.materialize(
        (lax.iota(jnp.int32, 2 * size) < size).astype(jnp.uint8)
    )
    return _windows(mask, size - lengths, size) != 0


def transposed_windows(x: Array, lengths: Array, axis: int) -> Array | None:
    """For columns with lengths of their own, in arrays larger than the cache.

    Neighbouring elements of the result come from distant rows, and a cache line is
    evicted before its other elements are read. XLA transposes in tiles, except bytes.
    """
    x = jnp.broadcast_to(x, xla.broadcast_shape(x.shape, lengths.shape, axis))
    if xla.contiguous_bytes(x, lengths, axis) > x.dtype.itemsize:
        return None
    if x.dtype.itemsize not in (2, 4) or math.prod(x.shape[axis:]) < _MIN_TRANSPOSED:
        return None
    lines, lengths = (jnp.moveaxis(operand, axis, -1) for operand in (x, lengths))
    y = reversed_windows(lines, lengths, x.ndim - 1)
    return None if y is None else lowering.materialize(jnp.moveaxis(y, -1, axis))


def vectorized_gather(x: Array, lengths: Array, axis: int) -> Array:
    """The gather, with a loop that LLVM vectorizes.

    Lengths that are read at every step are stored, so that the loop does not compute
    them again.

    LLVM does not vectorize a loop that only loads and stores 16-bit floats. An OR with
    a zero that LLVM does not know to be zero makes the loop an ordinary one. Otherwise
    float16 is not moved as integers: XLA does not widen it, and counts the conversion
    as work to divide between threads.
    """
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    size = math.prod(shape)
    nbytes = size * x.dtype.itemsize
    is_read_at_every_step = math.prod(lengths.shape[axis:]) != 1
    is_worthwhile = size >= _MIN_ELEMENTS_PER_LENGTH * lengths.size
    if is_read_at_every_step and is_worthwhile and nbytes > _MIN_BYTES:
        lengths = lowering.materialize(lengths)
    if x.dtype not in (jnp.float16, jnp.bfloat16):
        return xla.gather(x, lengths, axis)
    block = xla.elements_with_one_length(x, lengths, axis)
    if nbytes >= _MIN_VECTORIZED_BYTES and block >= _MIN_VECTORIZED:
        bits = bitwise.to_bits(x)
        zero = bitwise.unknown_zeros(lengths[(0,) * lengths.ndim].astype(bits.dtype))
        return bitwise.from_bits(xla.gather(bits, lengths, axis) | zero, x.dtype)
    if x.dtype == jnp.float16:
        source = xla.source_index(x.shape, lengths, axis)
        return xla.take_along_axis(x, source, axis)
    return xla.gather(x, lengths, axis)
