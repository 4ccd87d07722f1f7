"""`start + k * delta`, correctly rounded, in few float32 operations: for TPU.

A TPU has no fast float64, and `rounding` takes several times as long as a TPU takes to
write the result. Here delta is an integer, in units of its last bit, and an element is
computed as follows:

1. k and delta are sums of digits, so short that products of digits are exact.
2. The products and the bits of start are added to a few parts, exactly: each part has a
   range of bits of its own. The bits of start below the lowest part only decide ties,
   and are rounded to odd.
3. The parts are added. All but the highest are added with rounding to odd, so that the
   sum is rounded to nearest once [1]. For a dtype below 32 bits the sum is rounded to
   odd as well, and then to the dtype.
4. The sum is scaled. If the unit is so small that there may be subnormal numbers, its
   bits are computed without scaling.

This is assumed about the arithmetic of a TPU:

- Sums of float32 numbers are rounded to nearest, ties to even, as StableHLO specifies
  [2]. XLA for TPU depends on it, too: it computes a float64 as two float32 numbers,
  with Knuth's TwoSum, as the optimized HLO of a float64 addition shows.
- Conversions from float32 to bfloat16 are rounded in the same way, as StableHLO
  specifies. They keep the bits of exact numbers, also of subnormal ones: they are the
  instructions with which XLA for TPU stores any bfloat16, whatever its bits.
- Products that fit float32 are exact. JAX documents an error of at most 0.5 units in
  the last place for all squares of bfloat16 and float32 numbers, on TPU v2 to 7x [3].
  No other products are added, so a compiler may contract products and sums.
- Arithmetic may flush subnormal numbers to zero [3]. Their bits are moved only.

[1] Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums: Proved
    Algorithms Using Rounding to Odd, 2008.
[2] https://openxla.org/stablehlo/spec
[3] https://docs.jax.dev/en/latest/accuracy.html
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._fill import rounding, xla
from dml_jax._shared import bitwise

_SINGLE_BITS = 24  # precision of float32
_DIGIT = 11  # bits of the low digit of a wide delta, and of the digits of its k
_WORD = 2 * _DIGIT  # bits of two digits of k
_FAR = 2.0**56  # at least 8 times as large as any product of k and a wide delta


def suffices(dtype: np.dtype, count: int) -> bool:
    """Whether the parts hold the products for all positions below `count`."""
    if jnp.finfo(dtype).bits > 32:
        return False
    return count <= 2**29 or _is_narrow(dtype, count)


def rounded_by_parts(sizes: xla.Sizes, count: int, start: Array, delta: Array) -> Array:
    """`start + k * delta`, if `suffices` for the dtype and `count` elements."""
    sequence = prepare(start, delta, count)
    return element(sequence, xla.position(sizes, np.uint32), start.dtype, count)


# Scalars ------------------------------------------------------------------------------


class Sequence(NamedTuple):
    """The scalars of a sequence, in units of delta's last bit."""

    delta: tuple[Array, ...]  # digits, the low one first
    start: tuple[Array, ...]  # its bits in each part, the low one first
    digit: Array  # bits of the low digit of k, if delta is a single digit
    one: Array  # one, which the compiler does not know
    encoding: rounding.Encoding
    first: Array  # the element at 0
    second: Array  # the sum at 1


def prepare(start: Array, delta: Array, count: int) -> Sequence:
    """The scalars of a sequence whose positions are below `count`."""
    dtype = start.dtype
    scaled, constant = rounding.scaled(start, delta, (count - 1).bit_length())
    total, unit = scaled.start, scaled.unit
    factor = scaled.factor.astype(jnp.float32) * scaled.sign
    if _has_range_of_single(dtype):
        encoding = rounding.encoding(scaled, constant)
    else:
        scale = jnp.where(constant.holds, constant.value, rounding.power_of_two(unit))
        encoding = rounding.Encoding(scale, jnp.float32(0), jnp.int32(0))  # scale only

    one = rounding.power_of_two(unit - jnp.clip(unit, -200, 200))
    if _is_narrow(dtype, count):
        digit = _low_digit(total, dtype)
        digits = (factor,)
        parts = _split_start(total, 2.0**-3, rounding.power_of_two(digit))
    else:
        digit = jnp.int32(_DIGIT)
        digits = _split(factor, _DIGIT, one)
        parts = _wide_parts(total, count)
    first = rounding.first_element(start, delta)
    # For narrow floats, rounding this to the dtype gives what a single rounding would.
    second = factor + total
    return Sequence(digits, parts, digit, one, encoding, first, second)


def _is_narrow(dtype: np.dtype, count: int) -> bool:
    """Whether delta has a single digit, and k has two."""
    bits = 2 * (_SINGLE_BITS - _precision(dtype)) - 4  # of both digits
    return bitwise.is_narrow_float(dtype) and count <= 2 ** min(bits, 32)


def _has_range_of_single(dtype: np.dtype) -> bool:
    """Whether there may be sums that are subnormal in float32."""
    return dtype in (jnp.float32, jnp.bfloat16)


def _precision(dtype: np.dtype) -> int:
    return int(jnp.finfo(dtype).nmant) + 1


# Parts --------------------------------------------------------------------------------


def _low_digit(start: Array, dtype: np.dtype) -> Array:
    """The most bits of k whose product with delta leaves room for start's bits."""
    bits = _SINGLE_BITS - _precision(dtype)
    is_multiple = _round(start, 2.0**bits) == start
    is_integer = _round(start, 1.0) == start
    return jnp.where(is_multiple, bits, jnp.where(is_integer, bits - 1, bits - 4))


def _wide_parts(start: Array, count: int) -> tuple[Array, ...]:
    units = 2.0**_DIGIT, 2.0**_WORD
    if count <= 2**_WORD:
        return _split_start(start, 2.0**-2, *units)
    is_far = jnp.abs(start) >= _FAR
    near, far = jnp.where(is_far, 0, start), jnp.where(is_far, start, 0)
    return *_split_start(near, 2.0**-2, *units, 2.0 ** (_WORD + _DIGIT)), far


def _split_start(start: Array, *units: float | Array) -> tuple[Array, ...]:
    """The start as a sum of multiples of the units, the lowest one rounded to odd."""
    parts = []
    for unit in reversed(units[1:]):
        part = _round(start, unit)
        parts.insert(0, part)
        start = start - part
    below = jnp.floor(start / units[0])
    is_even = jnp.floor(below / 2) * 2 == below
    odd = jnp.where((below * units[0] != start) & is_even, below + 1, below)
    return odd * units[0], *parts


def _round(x: Array, unit: float | Array) -> Array:
    """The nearest multiple of a power of two."""
    return lax.round(x / unit, lax.RoundingMethod.TO_NEAREST_EVEN) * unit


def _split(x: Array, bits: int, one: Array) -> tuple[Array, Array]:
    """Float32 numbers as the sum of two, the second of them multiples of 2^`bits`."""
    # The compiler would simplify x + shift - shift if it knew the shift.
    shift = one * np.float32(1.5 * 2.0 ** (_SINGLE_BITS - 1 + bits))
    high = (x + shift) - shift
    return x - high, high


# Elements -----------------------------------------------------------------------------


def element(sequence: Sequence, position: Array, dtype: np.dtype, count: int) -> Array:
    """The elements at uint32 positions."""
    if _is_narrow(dtype, count):
        total = _narrow_sum(sequence, position, dtype, count)
    else:
        total = _wide_sum(sequence, position, dtype, count)
        total = jnp.where(position == 1, sequence.second, total)
    if _has_range_of_single(dtype):
        result = rounding.encode(total, sequence.encoding)
        first = sequence.first.astype(jnp.float32)
        return jnp.where(position == 0, first, result).astype(dtype)
    result = total * sequence.encoding.scale
    if dtype == jnp.float16:
        code = _float16_code(result)
    else:
        code = bitwise.to_bits(rounding.from_single(result, dtype)).astype(jnp.int32)
    first = bitwise.to_bits(sequence.first).astype(jnp.int32)
    code = jnp.where(position == 0, first, code)
    code = code.astype(bitwise.UNSIGNED[jnp.finfo(dtype).bits])
    return bitwise.from_bits(code, dtype)


def _float16_code(x: Array) -> Array:
    """The bits of the nearest float16 numbers to float32 ones.

    The addition of 2^13 times the power of two in x rounds x to a multiple of the last
    bit of float16. So the last bits of the sum are those of the result.
    """
    field = np.int32(0x7F800000)  # of the exponent
    last_bit = 13  # of a float16 in a float32
    bits = _bits(x)
    magnitude = bits & np.int32(2**31 - 1)
    finite = jnp.minimum(magnitude, _bits(jnp.float32(2.0**16)))
    exponent = jnp.maximum(finite & field, _bits(jnp.float32(2.0**-14)))
    shift = exponent + np.int32(last_bit << 23)
    significand = _bits(_from_bits(finite) + _from_bits(shift)) - shift
    code = significand + ((exponent >> last_bit) - np.int32((127 - 14) << 10))
    code = jnp.where(magnitude > field, np.int32(0x7E00), code)
    return code | ((bits >> 16) & np.int32(0x8000))


def _bits(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.int32)


def _from_bits(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _to_float(x: Array) -> Array:
    return x.astype(jnp.int32).astype(jnp.float32)


def _narrow_sum(
    sequence: Sequence, position: Array, dtype: np.dtype, count: int
) -> Array:
    """The sum rounded to odd, to be rounded to a narrow dtype."""
    mask = (np.uint32(1) << sequence.digit.astype(jnp.uint32)) - 1
    (delta,) = sequence.delta
    low = _to_float(position & mask) * delta + sequence.start[0]
    high = _to_float(position & ~mask) * delta
    if dtype == jnp.bfloat16 and count <= 2**24:
        # This sum is exact, or start is so large that no product is close to a tie.
        return _add_to_odd(sequence.start[1] + high, low)
    total, error = rounding.fast_two_sum(sequence.start[1], high)
    return _add_to_odd(total, error + low)


def _wide_sum(
    sequence: Sequence, position: Array, dtype: np.dtype, count: int
) -> Array:
    """The sum rounded to float32, or to odd if it is then rounded to a narrow dtype."""
    add = _add_to_odd if bitwise.is_narrow_float(dtype) else jnp.add
    delta, start, one = sequence.delta, sequence.start, sequence.one
    word = position & np.uint32(2**_WORD - 1) if count > 2**_WORD else position
    k = _split(_to_float(word), _DIGIT, one)
    middle = k[1] * delta[0] + k[0] * delta[1] + start[1]
    middle, carry = _split(middle, _WORD, one)
    low = k[0] * delta[0] + middle + start[0]
    high = k[1] * delta[1] + carry
    if count <= 2**_WORD:
        total, error = rounding.fast_two_sum(start[2], high)
        return add(total, _add_to_odd(error, low))

    top = _to_float(position >> _WORD) * np.float32(2.0**_WORD)
    high = high + top * delta[0] + start[2]
    near, rest = rounding.fast_two_sum(top * delta[1] + start[3], high)
    far = start[4]
    total, error = rounding.fast_two_sum(far, near)
    # Far from start, the sign of the remainder suffices.
    tail = jnp.where(far == 0, rest, error), jnp.where(far == 0, low, rest + low)
    return add(total, _add_to_odd(*tail))


def _add_to_odd(a: Array, b: Array) -> Array:
    return rounding.to_odd(*rounding.fast_two_sum(a, b))
