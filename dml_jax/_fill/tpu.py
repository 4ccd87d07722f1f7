"""`start + k * delta`, correctly rounded, in few float32 operations: for TPU.

A TPU has no fast float64, and `rounding` takes several times as long as a TPU takes to
write the result. For usual scalars a TPU computes the elements as follows, where delta
is an integer, in units of its last bit:

1. k and delta are written as sums of digits, which are signed. They are so short that
   products of digits are exact in float32.
2. The products and the bits of the start are added to a few parts, exactly: each part
   has a range of bits of its own. The bits of the start below the lowest part only
   decide ties, and are rounded to odd.
3. The parts are added from the highest down. The rest is rounded to odd, and the sum
   once to nearest [1].
4. The sum is multiplied by the unit. That is exact, unless it overflows as it should.

The scalars are usual if they are finite, far from underflow, and if the start is so
small that the highest part is exact. A conditional takes `rounding` for the others.

This is what is assumed about float32 on a TPU:

- Sums are rounded to nearest, ties to even, as StableHLO specifies `add` [2]. XLA for
  TPU depends on that, too: it computes a float64 as two float32 numbers, with Knuth's
  TwoSum, as the optimized HLO of a float64 addition shows.
- Conversions to bfloat16 are rounded in the same way, as StableHLO specifies `convert`.
- Exact products are exact. All squares of a bfloat16 or float32 number were found to be
  within 0.5 units in the last place, on TPU v2 to 7x [3]. No other product is rounded,
  so a compiler may contract products and sums.
- Subnormal numbers may be flushed to zero [3]. None occur.

[1] Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums: Proved
    Algorithms Using Rounding to Odd, 2008.
[2] https://openxla.org/stablehlo/spec#add
[3] https://docs.jax.dev/en/latest/accuracy.html
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._fill import rounding, xla
from dml_jax._shared import bitwise

MIN_ELEMENTS = 2**16  # with fewer, a conditional is not worthwhile
_SINGLE_BITS = 24  # precision of float32
_LEAST_UNIT, _GREATEST_UNIT = -100, 127  # exponents
_DIGIT = 11  # bits of the low digit of a wide delta, and of the digits of its k
_WORD = 2 * _DIGIT  # bits of two digits of k


def suffices(dtype: np.dtype, count: int) -> bool:
    """Whether the parts hold the sums for all positions below `count`."""
    if jnp.finfo(dtype).bits > 32 or not MIN_ELEMENTS <= count <= 2**32:
        return False
    return _reach(dtype, count) < _largest_sum(dtype, count)


def rounded_by_parts(sizes: xla.Sizes, count: int, start: Array, delta: Array) -> Array:
    """`start + k * delta`, if `suffices` for the dtype and `count` elements."""
    sequence = prepare(start, delta, count)

    def usual() -> Array:
        return element(sequence, xla.position(sizes, np.uint32), start.dtype, count)

    def unusual() -> Array:
        return xla.rounded_by_integers(sizes, count, start, delta)

    return lax.cond(sequence.is_usual, usual, unusual)


# Scalars ------------------------------------------------------------------------------


class Sequence(NamedTuple):
    """The scalars of a sequence, in units of delta's last bit."""

    is_usual: Array
    delta: tuple[Array, ...]  # digits, the low one first
    start: tuple[Array, ...]  # its bits in each part, the low one first
    unit: Array
    one: Array  # one, which the compiler does not know
    first: tuple[Array, ...]  # elements computed separately


def prepare(start: Array, delta: Array, count: int) -> Sequence:
    """The scalars of a sequence whose positions are below `count`."""
    dtype = start.dtype
    scaled = rounding.scaled(start, delta, count.bit_length())
    unit = jnp.clip(scaled.unit, _LEAST_UNIT, _GREATEST_UNIT)
    one = rounding.power_of_two(scaled.unit - unit)
    factor = scaled.factor.astype(jnp.float32) * scaled.sign
    if _is_narrow(dtype):
        digits, first = (factor,), (start,)
    else:
        digits, first = _split(factor, _DIGIT, one), (start, start + delta)
    return Sequence(
        _is_usual(start, delta, scaled, count),
        digits,
        _split_start(scaled.start, _part_units(dtype, count)),
        rounding.power_of_two(unit),
        one,
        first,
    )


def _is_usual(start: Array, delta: Array, scaled: rounding.Scaled, count: int) -> Array:
    dtype = start.dtype
    start, delta = start.astype(jnp.float32), delta.astype(jnp.float32)
    is_zero = scaled.start == 0
    is_normal = jnp.abs(start) >= jnp.finfo(jnp.float32).smallest_normal
    largest_sum = jnp.abs(scaled.start) + _reach(dtype, count)
    return (
        jnp.isfinite(start)
        & jnp.isfinite(delta)
        & (scaled.unit >= _LEAST_UNIT)
        & jnp.where(is_zero, ~jnp.signbit(start), is_normal)
        & (largest_sum <= _largest_sum(dtype, count))
    )


def element(sequence: Sequence, position: Array, dtype: np.dtype, count: int) -> Array:
    """The elements at uint32 positions, if `sequence.is_usual`."""
    if _is_narrow(dtype):
        total = _narrow_sum(sequence, position, dtype, count) * sequence.unit
    else:
        total = _wide_sum(sequence, position, count) * sequence.unit
    if dtype not in (jnp.float32, jnp.bfloat16):
        total = rounding.from_single(total, dtype)
        code, first = bitwise.to_bits(total), bitwise.to_bits(sequence.first[0])
        return bitwise.from_bits(jnp.where(position == 0, first, code), dtype)
    for i, value in enumerate(sequence.first):
        total = jnp.where(position == i, value.astype(jnp.float32), total)
    return total.astype(dtype)


# Parts --------------------------------------------------------------------------------


def _is_narrow(dtype: np.dtype) -> bool:
    """Whether delta is a single digit."""
    return jnp.finfo(dtype).bits < 32


def _low_digit(dtype: np.dtype) -> int:
    """The bits of the low digit of k: its product with a digit has up to 21 bits."""
    return _WORD - 1 - int(jnp.finfo(dtype).nmant) if _is_narrow(dtype) else _DIGIT


def _part_units(dtype: np.dtype, count: int) -> tuple[float, ...]:
    """What the start's bits in each part are multiples of."""
    if _is_narrow(dtype):
        return 2.0**-3, 2.0 ** _low_digit(dtype)
    units = 2.0**-2, 2.0**_DIGIT, 2.0**_WORD, 2.0 ** (_WORD + _DIGIT)
    return units[:3] if count <= 2**_WORD else units


def _reach(dtype: np.dtype, count: int) -> float:
    """A bound of the product of delta and k."""
    return 2.0 ** (int(jnp.finfo(dtype).nmant) + 1) * count


def _largest_sum(dtype: np.dtype, count: int) -> float:
    """A bound of the sums for which the highest part is exact."""
    if not _is_narrow(dtype) and count <= 2**_WORD:
        return np.inf  # the highest part is the start's alone
    return 0.75 * 2.0**_SINGLE_BITS * _part_units(dtype, count)[-1]


def _split(x: Array, bits: int, one: Array) -> tuple[Array, Array]:
    """Float32 numbers as the sum of two, the second of them multiples of 2^`bits`."""
    shift = one * np.float32(1.5 * 2.0 ** (_SINGLE_BITS - 1 + bits))
    high = (x + shift) - shift
    return x - high, high


def _split_start(start: Array, units: tuple[float, ...]) -> tuple[Array, ...]:
    """The start as a sum of multiples of the units, rounded to odd."""
    parts = []
    for unit in reversed(units[1:]):
        part = lax.round(start / unit, lax.RoundingMethod.TO_NEAREST_EVEN) * unit
        parts.insert(0, part)
        start = start - part
    below = jnp.floor(start / units[0])
    is_even = jnp.floor(below / 2) * 2 == below
    odd = jnp.where((below * units[0] != start) & is_even, below + 1, below)
    return odd * units[0], *parts


# Sums ---------------------------------------------------------------------------------


def _digits(position: Array, bits: int, count: int, one: Array) -> tuple[Array, ...]:
    """Floats whose sum is k: a low digit, one above, and one for the bits from 2^22."""
    if count <= 2**_WORD:
        return _split(_to_float(position), bits, one)
    low, high = position & np.uint32(2**_WORD - 1), position >> _WORD
    return *_split(_to_float(low), bits, one), _to_float(high) * np.float32(2**_WORD)


def _to_float(x: Array) -> Array:
    return x.astype(jnp.int32).astype(jnp.float32)


def _narrow_sum(
    sequence: Sequence, position: Array, dtype: np.dtype, count: int
) -> Array:
    """The sum rounded to odd, to be rounded to a narrow dtype."""
    low, *others = _digits(position, _low_digit(dtype), count, sequence.one)
    high = sum(others[1:], others[0])
    (delta,), start = sequence.delta, sequence.start
    return _add_to_odd(high * delta + start[1], low * delta + start[0])


def _wide_sum(sequence: Sequence, position: Array, count: int) -> Array:
    """The sum rounded to float32."""
    k = _digits(position, _DIGIT, count, sequence.one)
    delta, start = sequence.delta, sequence.start
    middle = k[1] * delta[0] + k[0] * delta[1] + start[1]
    middle, carry = _split(middle, _WORD, sequence.one)
    low = k[0] * delta[0] + middle + start[0]
    high = k[1] * delta[1] + carry
    highest = start[2]
    if len(k) == 3:
        high = high + k[2] * delta[0] + start[2]
        highest = k[2] * delta[1] + start[3]
    total, error = _fast_two_sum(highest, high)
    return total + _add_to_odd(error, low)


def _add_to_odd(a: Array, b: Array) -> Array:
    return rounding.to_odd(*_fast_two_sum(a, b))


def _fast_two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """`a + b` and its exact error, if a is a multiple of the last bit of b."""
    total = a + b
    return total, b - (total - a)
