"""`start + k * delta`, correctly rounded, for float64.

Start and delta are the sums of two words each, in units of delta's last bit. The high
words are multiples of a power of two, the grid:

    high = start_high + k * delta_high
    low  = start_low  + k * delta_low
    x    = high + low

For positions of P bits, `high` is exact if the grid is not less than
(|start| + 2^P * |delta|) / 2^52, and `low` if it is not more than 2^(52 - P). If a grid
satisfies both conditions, only `high + low` is rounded. For a million elements there is
such a grid if |start| < 2^30 * |delta|.

Otherwise the grid is 2^P, and `high` is rounded. Its error is added to `low` with
rounding to odd, and then to `high`: the last steps of an emulated FMA [1]. The sum is
encoded, as `rounding.encode` describes.

If start is not an integer, |start| < |delta|. So |x| > |delta| from k = 2 on, and all
floats of that size are integers. Then the distance of start from the nearest integer
only decides ties. It is replaced by a quarter, so that `low` has few bits. If start is
halfway between two integers, it is moved towards the even one. At k = 2, where the sum
may be a tie, 2 * delta is even, so the tie is rounded to that side, too. The elements 0
and 1 are computed separately.

With more than 2^26 elements, two words do not suffice. Then delta is split into digits,
which are so short that their products with k are exact.

No product is rounded before it is added, so XLA may contract multiplication and
addition.

On a CPU, a scalar says whether `high + low` is rounded only once. It does not vary in
the loop, so LLVM unswitches the loop: one copy of it computes only that sum. The words
are then not scaled. If start is 0, or delta has so few bits that its products are
exact, the usual product and sum are rounded only once, too. The high words are then
start and delta themselves, and the low words are -0. A GPU would compute all sums, so
it has no such scalar.

[1] Boldo and Melquiond, Emulation of a FMA and Correctly Rounded Sums: Proved
    Algorithms Using Rounding to Odd, 2008.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._fill import rounding

_PRECISION = 53
_MAX_BITS_FOR_WORDS = 26  # of a position
_SMALLEST = 2.0**-969  # sums of such numbers, unless they are 0, are not subnormal


class Words(NamedTuple):
    """Start and delta, each as the sum of a high word and a low one."""

    start_high: Array
    start_low: Array
    delta_high: Array
    delta_low: Array


class Sequence(NamedTuple):
    """The scalars of a sequence, in units of delta's last bit."""

    words: Words
    digits: tuple[Array, ...]  # start and the digits of delta; empty if words suffice
    encoding: rounding.Encoding
    first: Array  # the element at 0
    second: Array
    # On a CPU: 1 if `high + low` is the element, and the words are not scaled; else 0.
    is_sum_of_words: Array | None


def prepare(start: Array, delta: Array, count: int, platform: str) -> Sequence:
    """The scalars of a sequence whose positions are below `count`."""
    position_bits = (count - 1).bit_length()
    scaled, constant = rounding.scaled(start, delta, position_bits)
    factor = scaled.factor.astype(jnp.float64) * scaled.sign
    encoding = rounding.encoding(scaled, constant)
    largest = jnp.abs(scaled.start) + jnp.abs(factor) * 2.0**position_bits
    grid = rounding.leading_power(largest) * 2.0**-51
    are_exact = grid <= 2.0 ** (52 - position_bits)
    grid = jnp.where(are_exact, grid, 2.0**position_bits)
    words = _words(scaled.start, factor, grid)
    digits: tuple[Array, ...] = ()
    if position_bits > _MAX_BITS_FOR_WORDS:
        digits = scaled.start, *_digits(factor, position_bits)

    is_sum_of_words = None
    if platform == "cpu":
        # The threshold is not 0 if sums may be subnormal.
        unit = jnp.where(encoding.threshold == 0, 2 * encoding.scale, jnp.nan)
        is_unscaled = are_exact & ~constant.holds & (largest * unit < 2.0**1000)
        is_simple = rounds_once(start, delta, position_bits)
        words = Words(*(word * jnp.where(is_unscaled, unit, 1) for word in words))
        # Adding -0 does not change a zero of either sign.
        of_simple = Words(start, jnp.float64(-0.0), delta, jnp.float64(-0.0))
        words = Words(*map(functools.partial(jnp.where, is_simple), of_simple, words))
        is_sum_of_words = (is_simple | is_unscaled).astype(jnp.uint32)
    first = rounding.first_element(start, delta)
    second = rounding.encode(scaled.start + factor, encoding)
    return Sequence(words, digits, encoding, first, second, is_sum_of_words)


def _words(start: Array, delta: Array, grid: Array) -> Words:
    start_high, start_low = _split(start, grid)
    whole, rest = _split(start_low, jnp.float64(1))
    start_low = whole + 0.25 * jnp.sign(rest)
    return Words(start_high, start_low, *_split(delta, grid))


def _split(x: Array, unit: Array) -> tuple[Array, Array]:
    """The nearest multiple of a power of two, and the rest."""
    multiple = lax.round(x / unit, lax.RoundingMethod.TO_NEAREST_EVEN) * unit
    return multiple, x - multiple


def _digits(delta: Array, position_bits: int) -> list[Array]:
    """Floats whose sum is delta, the largest first. Their products with k are exact."""
    digit_bits = _PRECISION - position_bits
    # Delta is 0 or an integer of 53 bits. So the low bits of its code are its own.
    code = lax.bitcast_convert_type(delta, jnp.uint64)
    shifts = reversed(range(digit_bits, _PRECISION, digit_bits))
    heads = [lax.bitcast_convert_type(code >> n << n, jnp.float64) for n in shifts]
    ends = [jnp.zeros_like(delta), *heads, delta]
    return [end - begin for begin, end in itertools.pairwise(ends)]


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
    words = sequence.words
    high, error = rounding.fast_two_sum(words.start_high, k * words.delta_high)
    low = words.start_low + k * words.delta_low
    if sequence.digits:
        total = _sum_of_digits(*sequence.digits, k=k)
    else:
        total = high + rounding.to_odd(*rounding.fast_two_sum(error, low))
    result = rounding.encode(total, sequence.encoding)
    if sequence.is_sum_of_words is not None:
        result = jnp.where(sequence.is_sum_of_words == 1, high + low, result)
    return jnp.where(k < 2, jnp.where(k < 1, sequence.first, sequence.second), result)


def _sum_of_digits(start: Array, *delta: Array, k: Array) -> Array:
    """The rounded sum, by the last steps of an emulated FMA."""
    high, *others = [k * digit for digit in delta]
    low = jnp.float64(0)
    for product in others:
        high, error = rounding.fast_two_sum(high, product)
        low = low + error
    if len(others) > 1:
        high, low = rounding.fast_two_sum(high, low)

    tail, last = rounding.two_sum(start, low)
    total, error = rounding.two_sum(high, tail)
    return total + rounding.to_odd(*rounding.two_sum(error, last))
