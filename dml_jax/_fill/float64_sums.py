"""`start + k * delta` for floats whose sums float64 rounds at most once.

    x = (k * delta + start) - offset

These are float32, float16 and bfloat16, where the platform has float64. Let P be the
precision of the dtype, and k < 2^B with P + B <= 52. Then the product is exact. Start
is chosen so that the sum is exact, too, or is rounded to P bits at once. Hardware then
converts the sum, with one rounding. In units of delta's last bit, there are three
cases:

- Start has a fraction. Then |start| < 2^(P-1) <= |delta|. From k = 2 on, the sum is at
  least 2^(P-1), and ties are multiples of 1/2. So the distance of start from the
  nearest integer only decides ties. It is increased to 3/8 if it is less: no sum, below
  2^52, is then rounded to an integer.
- Start is so large that all results are in the two binades around a power of two b.
  With the offset b * 2^(53-P) - b, the last bit of the sum before the subtraction has
  the place of the last bit of the result. So that sum is rounded to P bits, and the
  subtraction is exact.
- In all other cases, the sum is an integer of at most 53 bits.

In 16 bits, the second case needs no offset. Products are less than 2^(P+32). A sum is
exact, or else the gap between the last bits of start and delta is so large that no
product reaches a tie.

The elements at 0 and 1 are those of `arithmetic`. XLA may contract the product and the
sum, since the product is exact. Infinities, NaNs and zeros follow IEEE arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._fill import arithmetic

_PRECISION = 53
_MINIMUM_EXPONENT = -126  # of a normal float32


class Scalars(NamedTuple):
    """What does not depend on the position."""

    start: Array
    delta: Array
    offset: Array
    first: Array  # code of the element at 0
    second: Array
    is_special: Array  # 0 if all elements, first and second too, are normal sums


def suffice(dtype: np.dtype, position_bits: int) -> bool:
    """Whether such sums suffice for this dtype and positions of so many bits."""
    if dtype not in (jnp.float32, jnp.float16, jnp.bfloat16):
        return False
    precision = int(jnp.finfo(dtype).nmant) + 1
    return position_bits <= min(32, 52 - precision)


def sequence(
    start: Array, delta: Array, position_bits: int, platform: str
) -> Callable[[Array], Array]:
    """The function from positions, unsigned integers of so many bits, to elements."""
    form = arithmetic.format_of(start.dtype, 64)
    of = arithmetic.shared(_scalars(start, delta, position_bits, form), form)

    def element(k: Array) -> Array:
        x = _float64(k) * of.delta + of.start
        if form.dtype == jnp.float32:
            x = x - of.offset
        normal = code = lax.bitcast_convert_type(_round(x, form.dtype), form.code)
        if platform == "cpu" and form.dtype != jnp.float16:
            code = jnp.where(code << 1 == 0, code | _subnormal(x, form), code)
        ends = jnp.where(k == 0, of.first, of.second).astype(form.code)
        code = jnp.where(k < 2, ends, code)
        if platform == "cpu":
            # The condition does not vary in the loop, so LLVM unswitches the loop: one
            # copy of it computes only normal sums.
            code = jnp.where(of.is_special != 0, code, normal)
        return lax.bitcast_convert_type(code, form.dtype)

    return element


def _scalars(
    start: Array, delta: Array, position_bits: int, form: arithmetic.Format
) -> Scalars:
    a, b = (arithmetic.decode(x, form) for x in (start, delta))
    s, d = _value(a), _value(b)
    last_bit = _power_of_two(b.exponent)
    whole = lax.round(s / last_bit, lax.RoundingMethod.TO_NEAREST_EVEN) * last_bit
    has_fraction = s != whole
    distance = jnp.maximum(jnp.abs(s - whole), 0.375 * last_bit)
    with_fraction = whole + jnp.copysign(distance, s - whole)

    leading = lax.bitcast_convert_type(s, jnp.uint64) & np.uint64(0x7FF << 52)
    leading = lax.bitcast_convert_type(leading, jnp.float64)
    boundary = jnp.where(a.negative == b.negative, 2 * leading, leading)
    is_large = boundary > 2.0 ** (position_bits + 1) * jnp.abs(d)
    offset = boundary * (2.0 ** (_PRECISION - form.precision) - 1)
    offset = jnp.where(is_large, jnp.copysign(offset, s), 0)
    if form.dtype == jnp.float32:
        s = jnp.where(is_large, s + offset, s)  # s + 0 would not be -0

    # If this sum is not finite, it is the element at 1 and all elements after it.
    special = (start.astype(jnp.float32) + delta.astype(jnp.float32)).astype(s.dtype)
    is_finite = jnp.isfinite(special)
    are_small = jnp.minimum(a.exponent, b.exponent) < _MINIMUM_EXPONENT
    exact = arithmetic.scalars(start, delta, 1, form)
    return Scalars(
        jnp.where(is_finite, jnp.where(has_fraction, with_fraction, s), special),
        jnp.where(is_finite, d, 0),
        jnp.where(is_finite, offset, 0),
        exact.first,
        arithmetic.code_at(jnp.uint32(1), exact, 1, form),
        (are_small | has_fraction | ~is_finite).astype(form.word),
    )


def _float64(k: Array) -> Array:
    """Integers below 2^52 as float64, faster than GPUs convert them."""
    bits = k.astype(jnp.uint64) | np.uint64(0x433 << 52)
    return lax.bitcast_convert_type(bits, jnp.float64) - 2.0**52


def _value(x: arithmetic.Parts) -> Array:
    size = x.significand.astype(jnp.float64) * _power_of_two(x.exponent)
    return jnp.where(x.negative, -size, size)


def _power_of_two(exponent: Array) -> Array:
    field = (exponent + 1023).astype(jnp.uint64)
    return lax.bitcast_convert_type(field << 52, jnp.float64)


def _round(x: Array, dtype: np.dtype) -> Array:
    """Converts float64, with one rounding."""
    if dtype != jnp.float32:
        # Hardware converts float32 to 16 bits. Before that, the float64 is rounded to
        # odd: the bits that float32 lacks are replaced by a sticky bit.
        rest = np.uint64(2**29 - 1)
        bits = lax.bitcast_convert_type(x, jnp.uint64)
        bits = (bits | ((bits & rest) + rest)) & ~rest
        x = lax.bitcast_convert_type(bits, jnp.float64)
    return x.astype(jnp.float32).astype(dtype)


def _subnormal(x: Array, form: arithmetic.Format) -> Array:
    """The code of |x| if it is subnormal, which XLA on CPU flushes to zero.

    It is the number of units of the last place. A float64 at `base` has the same last
    place, so this number is added to the bits of `base`.
    """
    base = 2.0 ** (form.minimum_exponent - form.precision + _PRECISION)
    bits = lax.bitcast_convert_type(jnp.abs(x) + base, jnp.uint64)
    return bits.astype(form.code)
