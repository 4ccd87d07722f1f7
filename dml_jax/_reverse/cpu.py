"""The reversal on a CPU.

    windows     the reversed part of a line is one window of it, read backwards
    tiles       neighbouring lines with lengths of their own, in columns that fit the
                cache
    prepared    the same lines by the gather, their lengths clamped once before it

The gather computes an index for every element, one at a time. These return None for
layouts that they are not made for. `preclamped` fuses with its neighbours, the
others do not. `reversed_windows` and `cache_blocked` read floats of 16 bits as floats,
which XLA does not widen there: a separate bitcast would be another pass over memory.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from dml_jax._reverse import xla
from dml_jax._shared import bitwise, lowering

_SMALL = 2**14  # bytes, of which a loop takes no longer than to start another
_STEPS = {1: 6, 2: 4, 4: 2}  # elements of a step, by bytes: a gather moves more at once
_VECTOR = 32  # elements of a line, from which a mask that is read beats comparing
_FEW = 8  # elements of 32 bits, of which there is no loop to speak of
_CACHE_LINE = 64  # bytes
_CACHE = 2**22  # bytes, of which most stay in the second-level cache


@xla.of_narrowest_bits
def reversed_windows(x, lengths, axis):
    """For lines that lie next to their like: lengths only before the axis.

    With the lines one after the other, of T elements, the result within the length n of
    line r is the window of T elements that ends at r * T + n, read backwards:

        y[r, k] = x[r * T + n - 1 - k]  for k < n

    Its address is affine in k, so the loop becomes vector instructions. Of steps of b
    elements, the windows of all b elements are blended. The first line's window would
    start before the array, and the last one's could end beyond it: those are gathered.
    """
    time = x.shape[axis]
    x = jnp.broadcast_to(x, xla.broadcast_shape(x.shape, lengths.shape, axis))
    if math.prod(lengths.shape[axis:]) != 1 or not _SMALL < x.nbytes < 2**31:
        return None
    lines, step = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    if step > _STEPS.get(x.dtype.itemsize, 1):
        return None
    if time * step <= (_VECTOR - 1 if x.dtype.itemsize < 4 else _FEW):
        return None
    lengths = jnp.broadcast_to(lengths, (*x.shape[:axis], *lengths.shape[axis:]))
    x_lines = lowering.materialize(x).reshape(lines, time * step)
    y = _by_windows(x_lines, lengths.reshape(lines, 1), step)
    # Apart while it has lines: loops over steps would be too short.
    return lowering.materialize(bitwise.from_bits(y, x.dtype)).reshape(x.shape)


def _by_windows(x, lengths, step):
    """The bits of `reversed_windows`, for flat lines and lengths in steps."""
    lines, size = x.shape
    line = lax.broadcasted_iota(jnp.int32, (lines, 1), 0)
    start = (line - 1) * size + lengths * step - (step - 1)
    y = _backwards(x, start, size)
    within = lax.iota(jnp.int32, size) % step
    for k in range(1, step):
        is_kth = lowering.materialize((within == k).astype(jnp.uint8))[None] != 0
        y = jnp.where(is_kth, _backwards(x, start + 2 * k, size), y)
    y = jnp.where(_is_within(lengths * step, size), y, bitwise.to_bits(x))
    for k in {0, lines - 1} if step > 1 else {0}:
        gathered = xla.gather(
            x[k : k + 1].reshape(1, size // step, step), lengths[k : k + 1, :, None], 1
        )
        gathered = bitwise.to_bits(gathered.reshape(1, size))
        y = jnp.where(line == k, lowering.materialize(gathered), y)
    return y


def _backwards(x, starts, size):
    """The bits of the windows of `x` that begin at `starts`, from their ends."""
    starts = jnp.clip(starts, 0, x.size - size)
    return bitwise.to_bits(lax.rev(_windows(x.reshape(-1), starts, size), (1,)))


def _windows(x, starts, size):
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,)
    )
    return lax.gather(x, starts, dimensions, (size,), mode="promise_in_bounds")


def _is_within(lengths, size):
    """Whether positions are below the lengths.

    Comparing takes 32 bits for each, and vectors no longer than those. Where lines are
    long enough, the answers are a window of as many yes as no: in bytes, since booleans
    that are read become no vectors.
    """
    if size < _VECTOR:
        return lax.broadcasted_iota(jnp.int32, (1, size), 1) < lengths
    answers = lowering.materialize(
        (lax.iota(jnp.int32, 2 * size) < size).astype(jnp.uint8)
    )
    return _windows(answers, size - lengths, size) != 0


@xla.of_narrowest_bits
def cache_blocked(x, lengths, axis):
    """For lines side by side, with lengths of their own: too far apart for the cache.

    Neighbouring elements then come from distant rows, and a line of the cache is gone
    before its other elements are asked for. Columns of a cache line's width are copied
    out, reversed, and copied back.
    """
    x = jnp.broadcast_to(x, xla.broadcast_shape(x.shape, lengths.shape, axis))
    width = _CACHE_LINE // x.dtype.itemsize
    columns = math.prod(x.shape[axis + 1 :])
    varying = [d for d in range(axis + 1, x.ndim) if lengths.shape[d] != 1]
    if not varying or columns % width:
        return None
    block = math.prod(x.shape[varying[-1] + 1 :]) * x.dtype.itemsize
    table = x.shape[axis] * columns * x.dtype.itemsize
    if block >= _CACHE_LINE or table <= _CACHE:
        return None
    shape = (math.prod(x.shape[:axis]), x.shape[axis], columns // width, width)
    lengths = jnp.broadcast_to(
        lengths, (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    ).reshape(shape[0], shape[2], 1, width)
    y = xla.gather(lowering.materialize(x.reshape(shape).swapaxes(1, 2)), lengths, 2)
    return lowering.materialize(y).swapaxes(1, 2).reshape(x.shape)


@xla.of_bits
def preclamped(x, lengths, axis):
    """For lines side by side: their lengths, read at every step, come from a clamp."""
    if math.prod(lengths.shape[axis:]) == 1 or x.nbytes <= _SMALL:
        return None
    return xla.gather(x, lowering.materialize(lengths), axis)
