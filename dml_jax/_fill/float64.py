"""`start + k * delta`, correctly rounded, in float64: for floats up to float32.

Where float64 is fast, on CPU and on GPU, an element takes a few operations:

    x = (k * delta + a) - m,    and x is rounded to the dtype.

If the dtype has a precision of P bits and k is below 2^(52 - P), the product is exact,
whether or not the compiler contracts it with the sum. a and m are chosen once for all
elements, so that the sum has all bits that matter:

- If no sum has more than 53 bits, a is start and m is 0.
- The bits of start below the last bit of delta only decide ties. In units of that last
  bit, ties are multiples of 1/2 from k = 2 on, where |x| >= |delta|. So a start within
  3/8 of an integer, but not equal to it, is moved to a distance of 3/8: no sum below
  2^52 then rounds to an integer. The elements 0 and 1 are computed separately.
- If start is so large that a sum has more than 53 bits, all results are in the two
  binades around a power of two b. Then m = b * 2^(53 - P) - b and a = start + m are
  exact (and negative for a negative start). With M = 2^(53 - P), a float64 in
  [b * M / 2, b * M) has the last bit of the dtype in [b / 2, b). From b * M on, both
  last bits double. So the sum is rounded to nearest as in the dtype, and m is
  subtracted exactly. Multiples of the dtype's smallest subnormal stay exact.

bfloat16 is so narrow that the first case holds as long as k * delta matters. Beyond
that, all sums are rounded to start. float16 and narrower dtypes need none of this:
their values are multiples of 2^-24 or more, so a sum of more than 53 bits overflows by
far. Infinities, NaNs and the signs of zeros follow IEEE arithmetic.

A float32 sequence with more positions is divided into blocks of 2^27. The sum at the
beginning of a block, S = start + j * 2^27 * delta, is computed exactly, as a float64
and a rest. An element k places after the beginning is

    x = ((k * delta + low) + a) - m,    where a + low = S + m.

Each block has its own low, a, m and b. If b is below twice 2^27 * |delta|, m is 0, and
no sum has more than 52 bits. Otherwise a is rounded to the last bit that float32 has
near b, and low is what is left. If |start| is less than 2^49 * |delta|, k * delta + low
has no more than 52 bits. If start has a fraction, in units of delta's last bit, then
|start| < |delta|. So from the second block on |x| is 2^50 units and more, ties are
integers, and neither of the two sums rounds a fraction across an integer. Other
sequences, and those whose delta is subnormal or not finite, are computed by integers.

If float64 holds all sums exactly, and none is subnormal, they need only be rounded. For
float16, float32 must hold them. On a CPU, `is_exact` says so for float32 and float16,
and selects between the results with and without the other operations. It does not vary
in the loop, so LLVM unswitches the loop: each of its copies computes one of the
results. A GPU would compute both of them, so it has only the general one.

CUDA rounds x to float16 or bfloat16 directly. Elsewhere bfloat16 is encoded from the
sum of |x| and a power of two, p. The last bit of p has the value of the last bit of the
result, so the last bits of the sum are the result's significand. Other dtypes of up to
16 bits are rounded to odd in float32 first, to avoid double rounding [1].

[1] Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums: Proved
    Algorithms Using Rounding to Odd, 2008.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._fill import rounding
from dml_jax._shared import bitwise


def suffices(dtype: np.dtype, count: int) -> bool:
    """Whether float64 has the precision for all positions below `count`."""
    return jnp.finfo(dtype).bits <= 32 and count <= 2 ** _position_bits(dtype)


class Sequence(NamedTuple):
    """The scalars of `x = position * delta + start - offset`."""

    start: Array
    delta: Array
    offset: Array | None = None
    first: tuple[Array, ...] = ()  # codes of elements computed separately
    overflow_code: Array | None = None  # the largest code, for bfloat16
    is_exact: Array | None = (
        None  # on a CPU: 1 if `exact_sums` has the elements, else 0
    )


def prepare(start: Array, delta: Array, count: int, platform: str) -> Sequence:
    """The scalars of a sequence.

    Args:
      start: the element at position 0, in the dtype of the sequence.
      delta: the difference of consecutive elements, in that dtype.
      count: a number above all positions.
      platform: "cpu", which may flush subnormal float32 numbers, "cuda", which rounds a
        float64 to 16 bits directly, or any other.
    """
    dtype = start.dtype
    with jax.enable_x64(True):
        start, delta = _widen(start), _widen(delta)
        if _is_exact(dtype):
            sequence = Sequence(start, delta)
        else:
            sequence = _prepare(start, delta, dtype, platform)
        if platform == "cpu" and dtype in (jnp.float16, jnp.float32):
            sequence = _with_sums(sequence, start, delta, dtype, count)
        return sequence


def element(
    sequence: Sequence, position: Array, dtype: np.dtype, platform: str
) -> Array:
    """The elements at positions that are uint32 or, on a CPU, float64."""
    x = general(sequence, position, dtype, platform)
    if sequence.is_exact is None:
        return x
    sums = exact_sums(sequence, position, dtype, platform)
    return jnp.where(sequence.is_exact == 1, sums, x)


def exact_sums(
    sequence: Sequence, position: Array, dtype: np.dtype, platform: str
) -> Array:
    """The elements, if float64 holds all sums, or float32 for float16."""
    bits = 32 if dtype == jnp.float16 else 64
    return exact(sequence.start, sequence.delta, position, bits, dtype, platform)


def general(
    sequence: Sequence, position: Array, dtype: np.dtype, platform: str
) -> Array:
    """The elements, whatever bits the sums have."""
    with jax.enable_x64(True):
        k = rounding.to_float64(position, platform)
        x = k * sequence.delta + sequence.start
        x = x if sequence.offset is None else x - sequence.offset
        if _rounds_directly(platform, dtype):
            rounded = _round_directly(x, dtype)
        else:
            rounded = _round(x, sequence.overflow_code, dtype, platform)
        return _with_first(rounded, sequence.first, position)


def exact(
    start: Array, delta: Array, k: Array, bits: int, dtype: np.dtype, platform: str
) -> Array:
    """`start + k * delta`, if floats of so many bits hold all sums."""
    with jax.enable_x64(True):
        wide = np.dtype(f"float{bits}")
        k = rounding.to_float64(k, platform) if bits == 64 else k.astype(wide)
        return (k * delta.astype(wide) + start.astype(wide)).astype(dtype)


def _with_first(x: Array, first: tuple[Array, ...], position: Array) -> Array:
    """`x` with other bits at the first positions."""
    code = bitwise.to_bits(x)
    for i, bits in enumerate(first):
        code = jnp.where(position == i, bits, code)
    return bitwise.from_bits(code, x.dtype)


# Blocks of float32 --------------------------------------------------------------------

_BLOCK_BITS = 27


class Blocks(NamedTuple):
    """The scalars of `x = ((k * delta + low) + base) - offset`, for each block."""

    delta: Array
    low: Array
    base: Array
    offset: Array
    first: tuple[Array, ...]


def has_blocks(dtype: np.dtype, count: int) -> bool:
    """Whether blocks have the precision for all positions below `count`."""
    return dtype == jnp.float32 and count <= 2**32


def fits_blocks(start: Array, delta: Array) -> Array:
    """Whether a sequence of float32 can be computed in blocks."""
    size = jnp.abs(delta)
    is_normal = (size >= jnp.finfo(delta).tiny) & (size < jnp.inf)
    # A CPU may flush the product to zero, which does not change the result.
    return is_normal & (jnp.abs(start) * 2.0**-49 < size)


def prepare_blocks(start: Array, delta: Array, count: int, platform: str) -> Blocks:
    """The scalars of the blocks of a sequence with positions below `count`."""
    dtype = start.dtype
    with jax.enable_x64(True):
        start, delta = _widen(start), _widen(delta)
        first = _first_elements(start, delta, dtype, platform)
        nudged = _nudge(start, delta, dtype)
        step = delta * 2.0**_BLOCK_BITS
        block = lax.iota(jnp.float64, -(-count // 2**_BLOCK_BITS))
        total, rest = rounding.two_sum(nudged, block * step)
        boundary = _boundary(total, delta)
        is_large = boundary >= 2 * jnp.abs(step)
        offset = jnp.where(is_large, _offset(boundary, total), 0)
        base = total + offset
        low = (total - (base - offset)) + rest
        return Blocks(delta, low, base, offset, first)


def element_of_blocks(blocks: Blocks, position: Array, platform: str) -> Array:
    """The float32 elements at uint32 positions."""
    with jax.enable_x64(True):
        block = position >> _BLOCK_BITS
        in_block = position & np.uint32(2**_BLOCK_BITS - 1)
        k = rounding.to_float64(in_block, platform)
        low, base, offset = (
            scalars.at[block].get(mode="promise_in_bounds")
            for scalars in (blocks.low, blocks.base, blocks.offset)
        )
        x = ((k * blocks.delta + low) + base) - offset
        rounded = _round(x, None, np.dtype(np.float32), platform)
        return _with_first(rounded, blocks.first, position)


# Scalars ------------------------------------------------------------------------------


def _position_bits(dtype: np.dtype) -> int:
    return min(32, 51 - int(jnp.finfo(dtype).nmant))


def _is_exact(dtype: np.dtype) -> bool:
    """Whether float64 is exact for all sums in the finite range of the dtype."""
    info = jnp.finfo(dtype)
    return int(info.maxexp) - int(info.minexp) + int(info.nmant) < 50


def _prepare(start: Array, delta: Array, dtype: np.dtype, platform: str) -> Sequence:
    first = _first_elements(start, delta, dtype, platform)
    nudged = _nudge(start, delta, dtype)
    if dtype == jnp.float32:
        boundary = _boundary(start, delta)
        product = jnp.abs(delta) * 2.0 ** _position_bits(dtype)
        is_large = (boundary >= 2 * product) & (boundary > 0) & (boundary < jnp.inf)
        offset = jnp.where(is_large, _offset(boundary, start), 0)
        return Sequence(
            jnp.where(is_large, start + offset, nudged), delta, offset, first
        )
    sequence = Sequence(nudged, delta, first=first)
    if _rounds_directly(platform, dtype):
        return sequence
    return sequence._replace(overflow_code=_overflow_code(start + delta))


def _with_sums(
    sequence: Sequence, start: Array, delta: Array, dtype: np.dtype, count: int
) -> Sequence:
    in_float32, in_float64 = exactness(start, delta, dtype, count)
    is_exact = in_float32 if dtype == jnp.float16 else in_float64
    # The other elements may need another start.
    start = jnp.where(is_exact, start, sequence.start)
    return sequence._replace(start=start, is_exact=is_exact.astype(jnp.uint32))


def exactness(start: Any, delta: Any, dtype: np.dtype, count: int) -> tuple[Any, Any]:
    """Whether float32, and whether float64, holds all sums, and none is subnormal.

    Sums that overflow in float16 need not be exact.

    Args:
      start: float64, an array or a NumPy scalar.
      delta: likewise.
      dtype: the dtype of the sequence, of up to 32 bits.
      count: a number above all positions.
    """
    largest = abs(start) + abs(delta) * (count - 1)

    def last_bits_are(condition: Callable[[Any], Any]) -> Any:
        of_start, of_delta = (
            (x == 0) | condition(rounding.largest_power_that_divides(x))
            for x in (start, delta)
        )
        return of_start & of_delta

    is_normal = last_bits_are(lambda bit: bit >= 2.0**-126)
    in_float32 = is_normal & last_bits_are(lambda bit: largest < bit * 2.0**24)
    in_float32 = in_float32 & (largest < 2.0**128)
    in_float64 = is_normal & last_bits_are(lambda bit: largest < bit * 2.0**53)
    if dtype == jnp.float16:
        # Products below 2^17 are then exact, and sums with larger ones overflow.
        has_few_bits = last_bits_are(lambda bit: bit >= 2.0**-7)
        in_float32 = in_float32 | (has_few_bits & (count <= 2**24))
    return in_float32, in_float64


def _first_elements(
    start: Array, delta: Array, dtype: np.dtype, platform: str
) -> tuple[Array, ...]:
    """The bits of the elements at positions 0 and 1."""
    sums = [rounding.add_to_odd(start, i * delta) for i in range(2)]
    return tuple(
        bitwise.to_bits(_round(x, _overflow_code(x), dtype, platform)) for x in sums
    )


def _boundary(start: Array, delta: Array) -> Array:
    """The power of two between the binades of the sums, if start is large."""
    boundary = rounding.leading_power(start)
    return jnp.where((start > 0) == (delta > 0), 2 * boundary, boundary)


def _offset(boundary: Array, start: Array) -> Array:
    """The m of the module docstring, for float32."""
    return jnp.copysign(boundary * (2.0 ** (53 - 24) - 1), start)


def _nudge(start: Array, delta: Array, dtype: np.dtype) -> Array:
    """Moves a start that is close to an integer, but not equal, to 3/8 from it.

    The unit is delta's last bit.
    """
    last_bit = rounding.leading_power(delta) * float(jnp.finfo(dtype).eps)
    quotient = start / jnp.where(delta == 0, 1, last_bit)
    whole = lax.round(quotient, lax.RoundingMethod.TO_NEAREST_EVEN)
    rest = quotient - whole
    nudged = (whole + jnp.where(rest < 0, -0.375, 0.375)) * last_bit
    is_close = (delta != 0) & (rest != 0) & (jnp.abs(rest) < 0.375)
    return jnp.where(is_close, nudged, start)


def _widen(x: Array) -> Array:
    """A scalar as float64; if subnormal, from its bits, since XLA on CPU flushes it."""
    info = jnp.finfo(x.dtype)
    code = lax.bitcast_convert_type(x, bitwise.UNSIGNED.get(info.bits, jnp.uint32))
    code = code.astype(jnp.uint32)
    magnitude = code & (2 ** (info.bits - 1) - 1)
    is_subnormal = (magnitude > 0) & (magnitude < 2 ** int(info.nmant))
    subnormal = magnitude.astype(jnp.float64) * float(info.smallest_subnormal)
    subnormal = jnp.where(code != magnitude, -subnormal, subnormal)
    return jnp.where(is_subnormal, subnormal, x.astype(jnp.float64))


# Rounding -----------------------------------------------------------------------------


def _rounds_directly(platform: str, dtype: np.dtype) -> bool:
    """Whether one instruction rounds a computed float64 to the dtype."""
    return platform == "cuda" and dtype in (jnp.float16, jnp.bfloat16)


def _round_directly(x: Array, dtype: np.dtype) -> Array:
    """`x` rounded to the dtype by one instruction; the tests emulate it."""
    return x.astype(dtype)


def _round(x: Array, overflow_code: Any, dtype: np.dtype, platform: str) -> Array:
    """`x`, rounded from float64 to the dtype in several operations."""
    if dtype == jnp.bfloat16:
        return _round_to_bfloat16(x, overflow_code)
    if dtype == jnp.float32:
        single = x.astype(jnp.float32)
        return _unflushed(single, x) if platform == "cpu" else single
    single = _single_to_odd(x)
    if dtype == jnp.float16:
        return single.astype(dtype)
    return rounding.from_single(single, dtype)


def _round_to_bfloat16(x: Array, overflow_code: Array) -> Array:
    """`x` as bfloat16, encoded by integers since a CPU may flush a subnormal number.

    p is 2^(52 - 7) times the leading power of two of |x|. For a subnormal x, it is that
    many times the smallest normal number.
    """
    smallest_exponent = 1023 - 126
    bits = lax.bitcast_convert_type(x, jnp.uint64)
    exponent = jnp.maximum(
        bits & rounding.EXPONENT_BITS, np.uint64(smallest_exponent << 52)
    )
    p = lax.bitcast_convert_type(exponent, jnp.float64) * 2.0 ** (52 - 7)
    significand = lax.bitcast_convert_type(jnp.abs(x) + p, jnp.uint64)
    code = (significand + (exponent >> (52 - 7))).astype(jnp.uint32)
    code = jnp.minimum(code - np.uint32(smallest_exponent << 7), overflow_code)
    sign = (bits >> 48).astype(jnp.uint32) & np.uint32(2**15)
    return bitwise.from_bits((code | sign).astype(jnp.uint16), np.dtype(jnp.bfloat16))


def _overflow_code(x: Array) -> Array:
    """The code of infinity in bfloat16 or, if x is NaN, of NaN.

    For a sequence, x is the second element. From it on, all elements are NaN, or none.
    """
    return jnp.where(jnp.isnan(x), np.uint32(0x7FC0), np.uint32(0x7F80))


def _single_to_odd(x: Array) -> Array:
    """`x` as float32, with the last bit 1 if it is not exact.

    `x` must not be subnormal in float32. The bits of its significand beyond those of
    float32 are then the last 29.
    """
    others = np.uint64(2**29 - 1)
    bits = lax.bitcast_convert_type(x, jnp.uint64)
    carry = (bits & others) + others  # the bit before the others, unless they are 0
    rounded = (bits | carry) & ~others
    return lax.bitcast_convert_type(rounded, jnp.float64).astype(jnp.float32)


def _unflushed(single: Array, x: Array) -> Array:
    """`single`, or if that is zero, `x` as a subnormal float32.

    A subnormal is a multiple n of 2^-149, and n is the last bits of 2^(52 - 149) + |x|.
    """
    shifted = jnp.abs(x) + 2.0 ** (52 - 149)
    count = lax.bitcast_convert_type(shifted, jnp.uint64).astype(jnp.uint32)
    code = lax.bitcast_convert_type(single, jnp.uint32)
    code = jnp.where(code << 1 == 0, code | count, code)
    return lax.bitcast_convert_type(code, jnp.float32)
