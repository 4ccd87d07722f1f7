"""`start + k * delta`, correctly rounded, for float64.

Start and delta are the sums of two words each. The high words are multiples of a power
of two, the grid:

    high = start_high + k * delta_high
    low  = start_low  + k * delta_low
    x    = high + low

Positions have P bits. If the other operations are exact, only `high + low` is rounded.
They are exact under these conditions:

- `high`, if the grid is not less than (|start| + 2^P * |delta|) / 2^52.
- `low`, if the grid is not more than 2^(52 - P) times the largest power of two that
  divides start and delta.

For a million elements there is such a grid if start is a multiple of delta's last bit,
and |start| < 2^30 * |delta|. `sum_of_words` computes these sequences in five
operations.

If start is not a multiple of delta's last bit, |start| < |delta|. So |x| > |delta| from
k = 2 on, and all floats of that size are multiples of that bit. Then the distance of
start from the nearest multiple only decides ties. It is replaced by a quarter of the
bit, so that `low` has few bits. If start is halfway between two multiples, it is moved
towards the even one. At k = 2, where the sum may be a tie, 2 * delta is even, so the
tie is rounded to that side, too. The elements 0 and 1 are computed separately.

If there is no such grid, start and delta are in units of delta's last bit, and the grid
is 2^P. Then `high` is rounded. Its error is added to `low` with rounding to odd, and
then to `high`: the last steps of an emulated FMA [1]. The sum is encoded, as
`rounding.encode` describes.

With more than 2^26 elements, two words do not suffice for every sequence. Then delta is
split into digits, which are so short that their products with k are exact.

On a CPU, the scalar `case` says which elements `sum_of_words` computes. It does not
vary in the loop, so LLVM unswitches the loop: one copy of it computes only that sum. If
start is 0, or delta has so few bits that its products are exact, the usual product and
sum are rounded only once, too. The high words are then start and delta themselves, and
the low words are -0. A GPU would compute all cases, so it has no such scalar.

XLA may contract multiplication and addition: a product is rounded before it is added
only if start is 0, and then the rounded product is the element.

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
_SMALLEST_NUMBER = 2.0**-969  # sums of multiples, unless they are 0, are not subnormal
_LARGEST_GRID = 2.0**900  # far below the limit, so no word and no sum overflows
_GENERAL, _SUMS_FROM_THIRD, _SUMS = range(3)  # cases


class Words(NamedTuple):
    """Start and delta, each as the sum of a high word and a low one."""

    start_high: Array
    start_low: Array
    delta_high: Array
    delta_low: Array


class Sequence(NamedTuple):
    """The scalars of a sequence."""

    words: Words
    digits: tuple[Array, ...]  # start and the digits of delta; empty if words suffice
    encoding: rounding.Encoding
    first: Array  # the element at 0
    second: Array
    # On a CPU: 0 if `sum_of_words` computes no elements, 1 if those from the third one
    # on, 2 if all of them.
    case: Array | None


def prepare(start: Array, delta: Array, count: int, platform: str) -> Sequence:
    """The scalars of a sequence whose positions are below `count`."""
    position_bits = (count - 1).bit_length()
    scaled, constant = rounding.scaled(start, delta, position_bits)
    factor = scaled.factor.astype(jnp.float64) * scaled.sign
    encoding = rounding.encoding(scaled, constant)
    words = _words(scaled.start, factor, jnp.float64(2.0**position_bits))
    words = _with_short_fraction(words, jnp.float64(1))
    digits: tuple[Array, ...] = ()
    if position_bits > _MAX_BITS_FOR_WORDS:
        digits = scaled.start, *_digits(factor, position_bits)
    case = None
    if platform == "cpu":
        words, case = _with_sums(words, start, delta, position_bits)
    first = rounding.first_element(start, delta)
    second = rounding.encode(scaled.start + factor, encoding)
    return Sequence(words, digits, encoding, first, second, case)


def _with_sums(
    general_words: Words, start: Array, delta: Array, position_bits: int
) -> tuple[Words, Array]:
    """The words for `sum_of_words` if there are any, and the case."""
    exact = words_of_sums(start, delta, position_bits)
    last_bit = rounding.leading_power(delta) * 2.0**-52
    short = _with_short_fraction(exact, last_bit)
    # Adding -0 does not change a zero of either sign.
    simple = Words(start, jnp.float64(-0.0), delta, jnp.float64(-0.0))

    are_short = _are_exact_for_unit(start, delta, position_bits, last_bit)
    are_short = are_short & _are_large(start, delta)
    are_exact = words_are_exact(start, delta, position_bits)
    is_simple = rounds_once(start, delta, position_bits)
    words = _select(are_short, short, general_words)
    words = _select(is_simple, simple, _select(are_exact, exact, words))
    case = jnp.where(are_short, np.uint32(_SUMS_FROM_THIRD), np.uint32(_GENERAL))
    return words, jnp.where(is_simple | are_exact, np.uint32(_SUMS), case)


def _select(condition: Array, words: Words, others: Words) -> Words:
    return Words(*map(functools.partial(jnp.where, condition), words, others))


def words_of_sums(start: Array, delta: Array, position_bits: int) -> Words:
    """The words of a sequence for which `words_are_exact`."""
    return _words(start, delta, _grid(start, delta, position_bits))


def _grid(start: Any, delta: Any, position_bits: int) -> Any:
    """The smallest grid for which the sums of the high words are exact."""
    largest = abs(start) + abs(delta) * 2.0**position_bits
    return rounding.leading_power(largest) * 2.0**-51


def _words(start: Array, delta: Array, grid: Array) -> Words:
    return Words(*_split(start, grid), *_split(delta, grid))


def _with_short_fraction(words: Words, unit: Array) -> Words:
    """The words of a multiple of the unit, or of a quarter of it away from one."""
    multiple, rest = _split(words.start_low, unit)
    return words._replace(start_low=multiple + 0.25 * unit * jnp.sign(rest))


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
    start_bits, delta_bits = _magnitude(start), _magnitude(delta)
    has_few_bits = delta_bits & np.uint64(2**position_bits - 1) == 0
    # Otherwise a product may overflow where the sum does not.
    is_bounded = delta_bits < _magnitude(np.float64(2.0 ** (1023 - position_bits)))
    once = is_bounded & ((start_bits == 0) | has_few_bits)
    return once & _are_large(start, delta)


def words_are_exact(start: Any, delta: Any, position_bits: int) -> Any:
    """Whether only the last operation of `sum_of_words` rounds, at all positions.

    The arguments are float64: arrays, or NumPy scalars.
    """
    are_exact = _are_large(start, delta)
    for x in (start, delta):
        unit = rounding.largest_power_that_divides(x)
        fits = _are_exact_for_unit(start, delta, position_bits, unit)
        are_exact = are_exact & ((x == 0) | fits)
    return are_exact


def _are_exact_for_unit(start: Any, delta: Any, position_bits: int, unit: Any) -> Any:
    """Whether the sums of low words are exact, if these are multiples of the unit."""
    grid = _grid(start, delta, position_bits)
    return (grid <= unit * 2.0 ** (52 - position_bits)) & (grid < _LARGEST_GRID)


def _are_large(start: Any, delta: Any) -> Any:
    """Whether both are 0, or so large that no sum of their multiples is subnormal."""
    # XLA on CPU may flush subnormal numbers, so bit patterns are compared.
    least = _magnitude(np.float64(_SMALLEST_NUMBER))
    start, delta = _magnitude(start), _magnitude(delta)
    return ((start == 0) | (start >= least)) & ((delta == 0) | (delta >= least))


def _magnitude(x: Any) -> Any:
    """The bits of |x|."""
    return x.view(np.uint64) & np.uint64(2**63 - 1)


def element(sequence: Sequence, position: Array, platform: str) -> Array:
    """The elements at positions that are uint32, uint64 or, on a CPU, float64."""
    x = _general(sequence, position, platform)
    if sequence.case is not None:
        # With a third case, LLVM would not unswitch the loop.
        sums = sum_of_words(sequence.words, position, platform)
        x = jnp.where(sequence.case == _GENERAL, x, sums)
    return _with_first(sequence, position, x)


def general(sequence: Sequence, position: Array, platform: str) -> Array:
    """The elements, if `case` is 0."""
    return _with_first(sequence, position, _general(sequence, position, platform))


def sum_of_words(words: Words, position: Array, platform: str) -> Array:
    """The elements, if `rounds_once` or `words_are_exact`."""
    k = rounding.to_float64(position, platform)
    high = words.start_high + k * words.delta_high
    return high + (words.start_low + k * words.delta_low)


def sums_from_third(sequence: Sequence, position: Array, platform: str) -> Array:
    """The elements, if `case` is 1."""
    sums = sum_of_words(sequence.words, position, platform)
    return _with_first(sequence, position, sums)


def _general(sequence: Sequence, position: Array, platform: str) -> Array:
    k = rounding.to_float64(position, platform)
    words = sequence.words
    if sequence.digits:
        total = _sum_of_digits(*sequence.digits, k=k)
    else:
        high, error = rounding.fast_two_sum(words.start_high, k * words.delta_high)
        low = words.start_low + k * words.delta_low
        total = high + rounding.to_odd(*rounding.fast_two_sum(error, low))
    return rounding.encode(total, sequence.encoding)


def _with_first(sequence: Sequence, position: Array, x: Array) -> Array:
    """`x` with the first two elements of the sequence."""
    first = jnp.where(position == 0, sequence.first, sequence.second)
    return jnp.where(position < 2, first, x)


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
