"""start + k * delta, correctly rounded, by way of float64: for floats up to float32.

Where float64 is fast, on CPU and on GPU, an element takes a few operations:

    x = (k * d + a) - m,    and x is rounded to the dtype.

d is delta. With P bits of precision and k below 2^(52 - P) the product k * d is exact,
whether the compiler contracts it with the sum or not. What a and m are is decided once
for all elements, so that the sum rounds nothing away that matters:

- Where no sum needs more than 53 bits, a is start and m is 0.
- What start has below the last bit of delta decides ties, by being there. From k = 2
  on, |x| >= |delta|, so that ties are multiples of 1/2 in units of that bit. What is
  closer to a whole number than 3/8 is moved to 3/8 from it, which no sum below 2^52
  rounds to a whole number. The elements 0 and 1 are done apart.
- Where start is so large that a sum would need more than 53 bits, all results lie in
  the two binades around a power of two b. Then m = b * 2^(53 - P) - b and a = start + m
  (both negative for a negative start), which are exact. There a float64 has just the
  bits that the dtype has, twice as coarse from b + m = b * 2^(53 - P) on as the dtype
  is from b on. So the sum is rounded to nearest as the dtype has it, and m is taken off
  exactly. Multiples of the dtype's smallest subnormal stay what they are.

bfloat16 is narrow enough for the first case to reach as far as k * delta matters;
beyond, d is 0. float16 and narrower need none of this: their values are multiples of
2^-24 or more, so that a sum of more than 53 bits is far beyond the largest of them.
Infinities, NaNs and the signs of zeros are what IEEE arithmetic makes of them.

CUDA rounds x to float16 or bfloat16 at once. Else x becomes a dtype below float32 by
way of a float32 that is rounded to odd, so that its own rounding does not show [1]. The
range of bfloat16 is that of float32: until then, x is in a unit that keeps the elements
far from the ends.

[1] Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums: Proved
    Algorithms Using Rounding to Odd, 2008.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._fill import rounding
from dml_jax._shared import bitwise


def suffices(dtype: np.dtype, count: int) -> bool:
    """Whether `sequence` has every position below `count`."""
    return jnp.finfo(dtype).bits <= 32 and count <= 2 ** _position_bits(dtype)


class Sequence(NamedTuple):
    """What the elements share: x = position * delta + start - offset, times `unit`."""

    start: jax.Array
    delta: jax.Array
    offset: jax.Array | None = None
    unit: jax.Array | None = None
    first: tuple[jax.Array, ...] = ()  # the bits of the elements that are done apart


def prepare(start: jax.Array, delta: jax.Array, platform: str) -> Sequence:
    """What the elements of a sequence share, from scalars of its dtype.

    Args:
      start: the element at position 0.
      delta: the difference.
      platform: "cpu", where subnormal float32 numbers may become zero, "cuda", where a
        float64 is rounded to 16 bits at once, or any other.
    """
    dtype = start.dtype
    with jax.enable_x64(True):
        start, delta = _widen(start), _widen(delta)
        if _is_short(dtype):
            sequence = Sequence(start, delta)
        else:
            sequence = _prepare(start, delta, dtype, platform)
        # Or each thread of a GPU would do it again.
        return lax.optimization_barrier(sequence)


def element(
    sequence: Sequence, position: jax.Array, dtype: np.dtype, platform: str
) -> jax.Array:
    """The elements at uint32 positions, as an array of `dtype`."""
    with jax.enable_x64(True):
        # A conversion takes a GPU as long as eight of these: 2^52 + k, from its bits.
        bits = position.astype(jnp.uint64) | np.uint64(0x433 << 52)
        k = lax.bitcast_convert_type(bits, jnp.float64) - 2.0**52
        x = k * sequence.delta + sequence.start
        if sequence.offset is not None:
            x = x - sequence.offset
        if _narrows(platform, dtype):
            rounded = _narrow(x, dtype)
        else:
            rounded = _round(x, sequence.unit, dtype, platform == "cpu")
        code = bitwise.to_bits(rounded)
        for i, value in enumerate(sequence.first):
            code = jnp.where(position == i, value, code)
        return bitwise.from_bits(code, dtype)


# Scalars ------------------------------------------------------------------------------


def _position_bits(dtype):
    return min(32, 51 - int(jnp.finfo(dtype).nmant))


def _is_short(dtype):
    """Whether float64 has all sums of the dtype's finite range."""
    info = jnp.finfo(dtype)
    return int(info.maxexp) - int(info.minexp) + int(info.nmant) < 50


def _prepare(start, delta, dtype, platform):
    sums = [rounding.add_to_odd(start, i * delta) for i in range(2)]
    first = tuple(_round_scalar(x, dtype, platform == "cpu") for x in sums)
    precision = int(jnp.finfo(dtype).nmant) + 1
    boundary = _power_of_two(start)
    boundary = jnp.where((start > 0) == (delta > 0), 2 * boundary, boundary)

    def dominates(bits):
        """Whether start does, but neither zero nor infinity."""
        reach = jnp.abs(delta) * 2.0 ** (_position_bits(dtype) + bits)
        return (boundary >= reach) & (boundary > 0) & (boundary < jnp.inf)

    nudged = _nudge(start, delta, dtype)
    if dtype == jnp.float32:
        is_large = dominates(1)
        offset = jnp.copysign(boundary * (2.0 ** (53 - precision) - 1), start)
        offset = jnp.where(is_large, offset, 0)
        start = jnp.where(is_large, start + offset, nudged)
        return Sequence(start, delta, offset, first=first)

    # Then no product reaches an eighth of start's last bit.
    is_alone = dominates(precision + 3)
    unit = _unit(jnp.where(is_alone, boundary, _power_of_two(delta)))
    delta = jnp.where(is_alone, 0, delta)
    if _narrows(platform, dtype):
        return Sequence(nudged, delta, first=first)
    return Sequence(nudged / unit, delta / unit, None, unit.astype(jnp.float32), first)


def _nudge(start, delta, dtype):
    """`start`, with no less than 3/8 for what is below delta's last bit."""
    last_bit = _power_of_two(delta) * float(jnp.finfo(dtype).eps)
    quotient = start / jnp.where(delta == 0, 1, last_bit)
    whole = lax.round(quotient, lax.RoundingMethod.TO_NEAREST_EVEN)
    rest = quotient - whole
    nudged = (whole + jnp.where(rest < 0, -0.375, 0.375)) * last_bit
    is_close = (delta != 0) & (rest != 0) & (jnp.abs(rest) < 0.375)
    return jnp.where(is_close, nudged, start)


def _widen(x):
    """A scalar as float64. XLA on CPU takes subnormal float32 numbers for zeros."""
    info = jnp.finfo(x.dtype)
    code = lax.bitcast_convert_type(x, bitwise.UNSIGNED.get(info.bits, jnp.uint32))
    code = code.astype(jnp.uint32)
    magnitude = code & (2 ** (info.bits - 1) - 1)
    is_subnormal = (magnitude > 0) & (magnitude < 2 ** int(info.nmant))
    subnormal = magnitude.astype(jnp.float64) * float(info.smallest_subnormal)
    subnormal = jnp.where(code != magnitude, -subnormal, subnormal)
    return jnp.where(is_subnormal, subnormal, x.astype(jnp.float64))


def _power_of_two(x):
    """The largest power of two that is not above |x|, for a float64 scalar."""
    field = lax.bitcast_convert_type(x, jnp.uint64) & np.uint64(0x7FF << 52)
    return lax.bitcast_convert_type(field, jnp.float64)


def _unit(power_of_two):
    """A unit for what is within 45 binades of a power of two."""
    return jnp.clip(power_of_two, 2.0**-80, 2.0**80)


# Rounding -----------------------------------------------------------------------------


def _narrows(platform, dtype):
    """Whether an instruction rounds a float64 to the dtype, as XLA does no constant."""
    return platform == "cuda" and dtype in (jnp.float16, jnp.bfloat16)


def _narrow(x, dtype):
    """x, from float64 to the dtype by that instruction."""
    return x.astype(dtype)


def _round(x, unit, dtype, flushes):
    """x * unit, from float64 to the dtype."""
    if dtype == jnp.float32:
        single = x.astype(jnp.float32)
        return _unflushed(single, x) if flushes else single
    single = _single_to_odd(x)
    if unit is not None:
        single = single * unit
        single = _unflushed(single, x * unit.astype(x.dtype)) if flushes else single
    if dtype in (jnp.bfloat16, jnp.float16):
        return single.astype(dtype)
    return rounding.from_single(single, dtype)


def _round_scalar(x, dtype, flushes):
    """The bits of x, rounded to the dtype."""
    unit = None
    if dtype == jnp.bfloat16:
        unit = _unit(_power_of_two(x))
        x = x / unit
        unit = unit.astype(jnp.float32)
    return bitwise.to_bits(_round(x, unit, dtype, flushes))


def _single_to_odd(x):
    """`x` as float32, its last bit 1 if it is not exact.

    For zeros, infinities, NaNs, and what is a normal number in float32: those exponents
    differ from 1023 by less than 128, so that three of their bits can be left out.
    """
    bits = lax.bitcast_convert_type(x, jnp.uint64)
    sign_and_first = (bits >> 32).astype(jnp.uint32) & np.uint32(0xC0000000)
    others = (bits >> 29).astype(jnp.uint32) & np.uint32(0x3FFFFFFF)
    inexact = (bits.astype(jnp.uint32) & np.uint32(0x1FFFFFFF)) != 0
    code = sign_and_first | others | inexact.astype(jnp.uint32)
    return lax.bitcast_convert_type(code, jnp.float32)


def _unflushed(single, x):
    """`single`, or if it is zero what x is as a subnormal float32.

    x is a multiple of 2^-149 then, counted by the last bits of 2^(52 - 149) + |x|.
    """
    shifted = jnp.abs(x) + 2.0 ** (52 - 149)
    count = lax.bitcast_convert_type(shifted, jnp.uint64).astype(jnp.uint32)
    code = lax.bitcast_convert_type(single, jnp.uint32)
    code = jnp.where(code << 1 == 0, code | count, code)
    return lax.bitcast_convert_type(code, jnp.float32)
