"""`start + k * delta`, correctly rounded, for float64.

An element is computed as follows, in units of the last bit of delta:

1. delta is split into digits, which are so short that their products with k are exact.
2. The sum of these products has at most 106 bits. It is the exact sum of two floats, a
   double word: `high` has the first 53 bits, rounded, and `low` has the rest.
3. `start + high + low` is rounded once, by the last steps of an emulated FMA [1]: all
   but the leading part are added with rounding to odd.
4. The sum is encoded, as `rounding.encode` describes.

No product is rounded before it is added, so XLA may contract multiplication and
addition.

If start is 0, or delta has so few bits that its products are exact, the usual product
and sum round only once. A scalar selects between their sum and that of the steps above.
It does not vary in the loop, so LLVM on CPU unswitches the loop: one copy only
multiplies and adds. A GPU would compute both sums, so it has no such scalar.

[1] Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums: Proved
    Algorithms Using Rounding to Odd, 2008.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from dml_jax._fill import rounding

_PRECISION = 53
_SMALLEST = 2.0**-969  # sums of such numbers, unless they are 0, are not subnormal


class Sequence(NamedTuple):
    """The scalars of a sequence, in units of delta's last bit."""

    start: Array
    delta: tuple[Array, ...]  # digits, the high one first
    encoding: rounding.Encoding
    first: Array  # the element at 0
    # Delta, or NaN if `first + k * delta` would round twice. With more than eight
    # scalars, XLA on CPU stores each of them in a loop of its own.
    simple_delta: Array | None


def prepare(start: Array, delta: Array, count: int, platform: str) -> Sequence:
    """The scalars of a sequence whose positions are below `count`."""
    position_bits = (count - 1).bit_length()
    scaled, constant = rounding.scaled(start, delta, position_bits)
    digit_bits = _PRECISION - position_bits
    factor, digits = scaled.factor, []
    for shift in reversed(range(0, _PRECISION, digit_bits)):
        digit = (factor >> shift) & np.uint64(2**digit_bits - 1)
        digits.append(digit.astype(jnp.float64) * scaled.sign * 2.0**shift)
    encoding = rounding.encoding(scaled, constant)
    first = rounding.first_element(start, delta)
    simple_delta = None
    if platform == "cpu":
        is_simple = rounds_once(start, delta, position_bits)
        simple_delta = jnp.where(is_simple, delta, jnp.nan)
    return Sequence(scaled.start, tuple(digits), encoding, first, simple_delta)


def rounds_once(start: Any, delta: Any, position_bits: int) -> Any:
    """Whether a product and a sum in float64 round only once, at all positions.

    The arguments are float64: arrays, or NumPy scalars.
    """
    # XLA on CPU may flush subnormal numbers, so bit patterns are compared.
    start, delta = (x.view(np.uint64) & np.uint64(2**63 - 1) for x in (start, delta))
    has_few_bits = delta & np.uint64(2**position_bits - 1) == 0
    # Otherwise a product may overflow where the sum does not.
    is_bounded = delta < _bits(2.0 ** (1023 - position_bits))
    once = is_bounded & ((start == 0) | has_few_bits)
    for magnitude in (start, delta):
        is_large = magnitude >= _bits(_SMALLEST)
        once = once & ((magnitude == 0) | is_large)
    return once


def _bits(x: float) -> np.uint64:
    return np.float64(x).view(np.uint64)


def element(sequence: Sequence, position: Array, platform: str) -> Array:
    """The elements at uint32 or uint64 positions."""
    k = rounding.to_float64(position, platform)
    high, *others = [k * digit for digit in sequence.delta]
    low = jnp.float64(0)
    for product in others:
        high, error = rounding.fast_two_sum(high, product)
        low = low + error
    if len(others) > 1:
        high, low = rounding.fast_two_sum(high, low)

    tail, last = rounding.two_sum(sequence.start, low)
    total, error = rounding.two_sum(high, tail)
    total = total + rounding.to_odd(*rounding.two_sum(error, last))
    result = rounding.encode(total, sequence.encoding)
    result = jnp.where(position == 0, sequence.first, result)
    if sequence.simple_delta is None:
        return result
    simple = k * sequence.simple_delta + sequence.first
    return jnp.where(jnp.isnan(sequence.simple_delta), result, simple)
