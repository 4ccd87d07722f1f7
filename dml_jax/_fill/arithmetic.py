"""`start + k * delta`, correctly rounded, for every float dtype and platform.

The method is that of a fused multiply-add unit, in integers:

1. *Align.* Start and delta are integers times powers of two. Both are expressed in
   units of the last bit of delta, with three more bits below it.
2. *Multiply and add.* The product with k and the sum are exact.
3. *Round.* The sum is normalized, rounded to nearest, ties to even, and encoded.

Digits are dropped only if they cannot change the result, and the number is rounded to
odd [1]: the last bit that is kept becomes 1 if any bit below it is 1. In hardware, this
is the sticky bit. Rounding to odd keeps a number on the same side of every even
multiple of the last bit. So a sum is rounded to the same result if all ties, and all
other operands, are even multiples of that bit. Let P be the precision of the dtype,
k < 2^B, and gap the exponent of start's last bit minus that of delta's:

- gap < -3. Digits of start below 1/8 are dropped. Then delta is normal, at least
  2^(P-1), and |start| < 2^(P-4). From k = 1 on, the sum is at least 2^(P-2). Its last
  bit is at least 1/2, and ties are multiples of 1/4.
- gap > B + 3. Digits of products below 2^(gap-B-6) are dropped. Then start is normal,
  at least 2^(P+gap-1), and products are less than 2^(P+gap-4). The sum is at least
  2^(P+gap-2). Its last bit is at least 2^(gap-1), and ties are multiples of 2^(gap-2).
- gap > P + B + 3. Products are less than 2^(gap-3), so they only decide ties. The gap
  is reduced to P + B + 3, for which the same holds.

In all other cases, every digit is kept. So a sum has at most P + B + 7 bits: one word,
or two or three. A subnormal sum is a multiple of the smallest number of the dtype, so
it is not rounded at all. The element at 0, which is start itself, is selected, and so
are infinities and NaNs, which follow IEEE arithmetic.

Floats are avoided, because XLA on CPU flushes subnormal numbers to zero, and because
XLA contracts products and sums on some platforms.

[1] Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums: Proved
    Algorithms Using Rounding to Odd, 2008.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._shared import bitwise

_GUARD_BITS = 3  # below delta's last bit

# An integer of several words, the lowest first, negative ones in two's complement.
Words: TypeAlias = list[Array]
T = TypeVar("T")


class Format(NamedTuple):
    """The encoding of a float dtype, and the words in which it is computed."""

    dtype: np.dtype
    bits: int
    code: np.dtype  # the unsigned integer of so many bits
    precision: int
    minimum_exponent: int  # of a normal number
    word: np.dtype
    word_bits: int


def format_of(dtype: np.dtype, word_bits: int) -> Format:
    info = jnp.finfo(dtype)
    code, word = (jnp.dtype(f"uint{bits}") for bits in (info.bits, word_bits))
    precision, minimum_exponent = int(info.nmant) + 1, int(info.minexp)
    return Format(dtype, info.bits, code, precision, minimum_exponent, word, word_bits)


# Scalars ------------------------------------------------------------------------------


class Parts(NamedTuple):
    """(-1)^negative * significand * 2^exponent, for a finite number."""

    negative: Array
    significand: Array
    exponent: Array

    @property
    def is_zero(self) -> Array:
        return self.significand == 0


def decode(x: Array, form: Format) -> Parts:
    """The parts of a number. Subnormal ones are not normalized."""
    code, fraction_bits = code_of(x, form), form.precision - 1
    field = (code >> fraction_bits) & form.word.type(
        2 ** (form.bits - form.precision) - 1
    )
    fraction = code & form.word.type(2**fraction_bits - 1)
    hidden = (field != 0).astype(form.word) << fraction_bits
    exponent = jnp.maximum(field.astype(jnp.int32), 1) - 1
    return Parts(
        code >> (form.bits - 1) != 0,
        fraction | hidden,
        exponent + (form.minimum_exponent - fraction_bits),
    )


def code_of(x: Array, form: Format) -> Array:
    code = lax.bitcast_convert_type(x, form.code).astype(form.word)
    # Otherwise, LLVM selects between codes of bfloat16 as floats, and flushes them.
    return code | bitwise.unknown_zeros(code)


class Scalars(NamedTuple):
    """What does not depend on the position, in words.

    Delta is not negative here. If it was, start and all results have the other sign.
    """

    start: Words
    delta: Array
    dropped_bits: Array  # of products
    largest_shift: Array  # to the left, for a sum with the smallest normal exponent
    sign: Array  # the sign bit of delta
    first: Array  # code of the element at 0
    constant: Array  # code of all elements from 1 on if they are zeros or not finite
    is_constant: Array  # 0 or 1


def scalars(start: Array, delta: Array, position_bits: int, form: Format) -> Scalars:
    """The scalars of a sequence whose positions have so many bits."""
    precision = form.precision
    a, b = decode(start, form), decode(delta, form)
    exponent = jnp.where(b.is_zero, a.exponent, b.exponent)
    gap = jnp.where(a.is_zero, 0, a.exponent - exponent)
    largest_gap = precision + position_bits + 3
    exponent = exponent + jnp.maximum(gap - largest_gap, 0)
    gap = jnp.minimum(gap, largest_gap)
    dropped_bits = jnp.maximum(gap - (position_bits + 3), 0)

    # Start, in units of the last bit that sums have.
    size = _number_of_words(position_bits, form)
    shift = gap + _GUARD_BITS - dropped_bits
    right = jnp.clip(-shift, 0, form.word_bits - 1).astype(form.word)
    significand = _shift_right_to_odd([a.significand], right, form)[0]
    aligned = _shift_left(significand, jnp.maximum(shift, 0), size, form)
    negative = (a.negative ^ b.negative).astype(form.word)

    unit = exponent - _GUARD_BITS + dropped_bits
    leading = size * form.word_bits - 2  # the bit that leads a normalized sum

    first, constant, is_constant = _special_codes(start, delta, form)
    return Scalars(
        _negate_if(negative, aligned, form),
        b.significand << _GUARD_BITS,
        dropped_bits.astype(form.word),
        (unit + leading - form.minimum_exponent).astype(form.word),
        b.negative.astype(form.word) << (form.bits - 1),
        *(first, constant, is_constant.astype(form.word)),
    )


def _special_codes(
    start: Array, delta: Array, form: Format
) -> tuple[Array, Array, Array]:
    """Two codes, and whether the second is used.

    The first is that of the element at 0. The second is that of all others, if they are
    zeros or not finite.
    """
    a, b = decode(start, form), decode(delta, form)
    # Subnormal numbers may be flushed here. Then these values are not used.
    wide = np.promote_types(form.dtype, np.float32)
    x, y = start.astype(wide), delta.astype(wide)
    is_finite = jnp.isfinite(x) & jnp.isfinite(y)
    at_zero, beyond = (code_of(z.astype(form.dtype), form) for z in (x + 0 * y, x + y))
    is_negative = (a.negative & b.negative).astype(form.word)
    zero = is_negative << (form.bits - 1)
    first = jnp.where(a.is_zero, zero, code_of(start, form))
    return (
        jnp.where(is_finite, first, at_zero),
        jnp.where(is_finite, zero, beyond),
        ~is_finite | (a.is_zero & b.is_zero),
    )


def shared(scalars: T, form: Format) -> T:
    """The same scalars, read from one array.

    A GPU computes the array once, instead of the scalars in each thread. The elements
    of the array are integers, since XLA may regard constants as equal if they differ
    only as subnormal numbers.
    """
    leaves, tree = jax.tree.flatten(scalars)
    words = jnp.stack([lax.bitcast_convert_type(x, form.word) for x in leaves])
    words = lax.optimization_barrier(words)
    leaves = [lax.bitcast_convert_type(words[i], x.dtype) for i, x in enumerate(leaves)]
    return jax.tree.unflatten(tree, leaves)


# Elements -----------------------------------------------------------------------------


def sequence(
    start: Array, delta: Array, position_bits: int, word_bits: int
) -> Callable[[Array], Array]:
    """The function from positions, unsigned integers of so many bits, to elements."""
    form = format_of(start.dtype, word_bits)
    of = shared(scalars(start, delta, position_bits, form), form)

    def element(k: Array) -> Array:
        code = code_at(k, of, position_bits, form)
        return lax.bitcast_convert_type(code.astype(form.code), form.dtype)

    return element


def code_at(k: Array, of: Scalars, position_bits: int, form: Format) -> Array:
    """The codes of the elements at positions, in words."""
    product = _multiply(k, of.delta, position_bits, form)
    product = _shift_right_to_odd(product, of.dropped_bits, form)
    code = _encode(_add(of.start, product, form), of, form)
    code = jnp.where(of.is_constant != 0, of.constant, code)
    return jnp.where(k == 0, of.first, code)


def _encode(total: Words, of: Scalars, form: Format) -> Array:
    """The codes of the floats nearest to sums."""
    negative = total[-1] >> (form.word_bits - 1)
    top, shift = _normalize(_negate_if(negative, total, form), of.largest_shift, form)
    # The leading bit of a normalized number increases the exponent by one.
    exponent = (of.largest_shift - shift) << (form.precision - 1)
    code = exponent + _round(top, form.word_bits - 1 - form.precision, form)
    sign = of.sign ^ (negative << (form.bits - 1))
    largest, overflow, negative_overflow = _limits(form)
    beyond = jnp.where(sign != 0, negative_overflow, overflow)
    code = jnp.where(code > largest, beyond, code | sign)
    return jnp.where(top == 0, form.word.type(0), code)


def _round(x: Array, bits: int, form: Format) -> Array:
    """Divides by 2^bits, rounding to the nearest integer, ties to even."""
    is_odd = (x >> bits) & form.word.type(1)
    return (x + form.word.type(2 ** (bits - 1) - 1) + is_odd) >> bits


def _limits(form: Format) -> np.ndarray:
    """The codes of the largest value, and of overflows above and below."""
    beyond = np.array([np.inf, -np.inf]).astype(form.dtype)
    codes = np.append(jnp.finfo(form.dtype).max, beyond).astype(form.dtype)
    return codes.view(f"u{form.dtype.itemsize}").astype(form.word)


# Integers of several words ------------------------------------------------------------


def _number_of_words(position_bits: int, form: Format) -> int:
    """The words of a sum, which has a sign."""
    return -(-(form.precision + position_bits + 8) // form.word_bits)


def _multiply(k: Array, factor: Array, k_bits: int, form: Format) -> Words:
    """The product, by long multiplication of digits of half a word."""
    size = _number_of_words(k_bits, form)
    half = form.word_bits // 2
    factor_bits = form.precision + _GUARD_BITS
    digits = [_digit(k, i, form) for i in range(-(-k_bits // half))]
    factors = [_digit(factor, i, form) for i in range(-(-factor_bits // half))]
    zero = jnp.zeros(k.shape, form.word)
    result = [zero] * (2 * size)
    for i, digit in enumerate(digits):
        carry = zero
        for j, other in enumerate(factors):
            # At most (2^h - 1) + (2^h - 1)^2 + (2^h - 1), which is 2^2h - 1.
            partial = result[i + j] + digit * other + carry
            result[i + j], carry = _digit(partial, 0, form), partial >> half
        if i + len(factors) < len(result):
            result[i + len(factors)] = carry
    pairs = zip(result[::2], result[1::2], strict=True)
    return [low | (high << half) for low, high in pairs]


def _digit(x: Array, i: int, form: Format) -> Array:
    half = form.word_bits // 2
    mask = x.dtype.type(2**half - 1)
    return ((x >> x.dtype.type(i * half)) & mask).astype(form.word)


def _add(a: Words, b: Words, form: Format) -> Words:
    result, carry = [], form.word.type(0)
    for x, y in zip(a, b, strict=True):
        partial = x + y
        total = partial + carry
        carry = ((partial < x) | (total < partial)).astype(form.word)
        result.append(total)
    return result


def _negate_if(condition: Array, x: Words, form: Format) -> Words:
    """The negative of x if the condition is 1, and x if it is 0."""
    zero = form.word.type(0)
    ones = zero - condition
    addend = [condition] + [zero] * (len(x) - 1)
    return _add([word ^ ones for word in x], addend, form)


def _shift_right_to_odd(x: Words, shift: Array, form: Format) -> Words:
    """Shifts to the right by less than a word, rounding to odd."""
    is_inexact = x[0] & ((form.word.type(1) << shift) - 1) != 0
    result = []
    for i, word in enumerate(x):
        word = word >> shift
        if i + 1 < len(x):
            word = word | (x[i + 1] << 1) << (form.word_bits - 1 - shift)
        result.append(word)
    return [result[0] | is_inexact.astype(form.word), *result[1:]]


def _shift_left(x: Array, shift: Array, size: int, form: Format) -> Words:
    """Shifts a scalar word to the left. The result has so many words."""
    result = []
    for i in range(size):
        left = shift - i * form.word_bits
        low = x << jnp.clip(left, 0, form.word_bits - 1).astype(form.word)
        high = x >> jnp.clip(-left, 0, form.word_bits - 1).astype(form.word)
        is_inside = (left < form.word_bits) & (left > -form.word_bits)
        result.append(jnp.where(is_inside, jnp.where(left < 0, high, low), 0))
    return result


def _normalize(x: Words, largest: Array, form: Format) -> tuple[Array, Array]:
    """Shifts to the left, so that one zero is left before the leading bit.

    Returns the highest word, rounded to odd, and the shift, which is limited.
    """
    bits = form.word_bits
    zeros = lax.clz(x[-1])
    for i, word in enumerate(reversed(x[:-1]), 1):
        zeros = jnp.where(zeros == bits * i, zeros + lax.clz(word), zeros)
    total = jnp.minimum(zeros - 1, largest)
    shift = total
    for _ in x[1:]:
        is_word = shift >= bits
        below = [jnp.zeros_like(x[0]), *x[:-1]]
        x = [jnp.where(is_word, low, word) for low, word in zip(below, x, strict=True)]
        shift = jnp.where(is_word, shift - bits, shift)
    top = x[-1] << shift
    if len(x) > 1:
        top = top | (x[-2] >> 1) >> (bits - 1 - shift)
        rest = functools.reduce(jnp.bitwise_or, x[:-2], x[-2] << shift)
        top = top | (rest != 0).astype(form.word)
    return top, total
