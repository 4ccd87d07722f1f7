"""Sequences of floats are correctly rounded, for every dtype, position and size."""

import functools
import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from dtypes import SEQUENCE_FLOATS, dtype_of, needs_x64
from sampling import default_of

from dml_jax import fill_value_sequence, reference
from dml_jax._fill import double_word, primitive, rounding

SOME_FLOATS = "float8_e5m2", "bfloat16", "float32", "float64"


def random_value(random: np.random.Generator, dtype: np.dtype):
    """A value of any magnitude that the dtype has, sometimes a special one."""
    info = ml_dtypes.finfo(dtype)
    kind = random.random()
    sign = random.choice([-1, 1])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if kind < 0.1:
            return dtype.type(random.choice([0.0, -0.0, np.inf, -np.inf, np.nan]))
        if kind < 0.2:
            smallest = float(info.smallest_subnormal)
            return dtype.type(sign * smallest * random.integers(1, 50))
        if kind < 0.4:
            return dtype.type(sign * random.integers(1, 10))
        least, most = int(info.minexp) - int(info.nmant), int(info.maxexp)
        return dtype.type(sign * 2.0 ** random.uniform(max(least, -1070), most))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("pairs", default_of([10, 100], 10))
@pytest.mark.parametrize("name", default_of(SEQUENCE_FLOATS, *SOME_FLOATS))
def test_random_sequences_are_correctly_rounded(name: str, pairs: int):
    """Half of them pass zero, or nearly do."""
    dtype = dtype_of(name)
    random = np.random.default_rng(len(name))
    count = 300
    with jax.enable_x64(needs_x64(dtype)):
        for i in range(pairs):
            start, delta = (random_value(random, dtype) for _ in range(2))
            if i % 2:
                zero = random.choice(
                    [count // 2, count // 2 + 0.5, count / 3, count - 1]
                )
                with np.errstate(over="ignore", invalid="ignore"):
                    start = dtype.type(-float(delta) * zero)
            result = fill_value_sequence((count,), dtype, start, delta)
            expected = reference.fill_value_sequence((count,), dtype, start, delta)
            assert_same_floats(result, expected)


def exact_in_float64(count: int, dtype: np.dtype, start: float, delta: float):
    """The sequence for at most 32-bit floats, fast enough for millions of elements.

    Block by block, so that the intermediate arrays fit a cache.
    """
    bounds = [*range(0, count, 2**15), count]
    blocks = (np.arange(*pair) for pair in itertools.pairwise(bounds))
    return np.concatenate([exact_at(k, dtype, start, delta) for k in blocks])


def exact_at(positions: np.ndarray, dtype: np.dtype, start: float, delta: float):
    """k * delta has at most 49 bits and is exact in float64. The sum is rounded to odd
    there, which has more than enough bits for it to be rounded once more.
    """
    product = positions * np.float64(delta)
    start = np.float64(start)
    total = start + product
    part = total - start
    error = (start - (total - part)) + (product - part)
    total = to_odd(total, error)
    if dtype == jnp.bfloat16:  # ml_dtypes converts by way of float32
        single = total.astype(np.float32)
        total = to_odd(single, (total - single).astype(np.float32))
    with np.errstate(over="ignore"):
        return total.astype(dtype)


def to_odd(rounded: np.ndarray, error: np.ndarray):
    """`rounded`, the float nearest to a sum, for the same sum rounded to odd."""
    integer = np.dtype(f"i{rounded.itemsize}")
    bits = rounded.view(integer)
    step = np.where(np.signbit(rounded) == np.signbit(error), 1, -1).astype(integer)
    inexact_and_even = (error != 0) & (bits & 1 == 0)
    return np.where(inexact_and_even, bits + step, bits).view(rounded.dtype)


LONG_CASES = {
    "tenths": (0, 0.1),
    "offset": (1000.3, 0.001),
    "counting": (0, 1),
    "fine": (0.1, 1e-4),
    "centred": (None, 2.0**-10 * 1.7),
    "descending": (7, -0.3),
}


@pytest.mark.parametrize("case", LONG_CASES)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("count", default_of([10**4, 2**24 + 2**12], 10**4))
def test_long_sequences_are_correctly_rounded(name: str, count: int, case: str):
    dtype = dtype_of(name)
    start, delta = LONG_CASES[case]
    delta = dtype.type(delta)
    start = dtype.type(-(count // 2) * float(delta) if start is None else start)
    result = fill_value_sequence((count,), dtype, start, delta)
    assert_same_bits(result, exact_in_float64(count, dtype, start, delta))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_the_fast_oracle_equals_the_reference(name: str):
    dtype = dtype_of(name)
    for case in ("tenths", "offset", "fine"):
        start, delta = map(dtype.type, LONG_CASES[case])
        expected = reference.fill_value_sequence((3000,), dtype, start, delta)
        assert_same_bits(exact_in_float64(3000, dtype, start, delta), expected)


def just_within_reach(dtype: np.dtype, limit: int):
    """Starts whose last bit is about as large as the largest product."""
    info = ml_dtypes.finfo(dtype)
    start = 2.0 ** (int(info.maxexp) - 1)
    last_bit = start * float(info.eps)
    deltas = [
        dtype.type((2 - float(info.eps)) * last_bit * 2.0**products / limit)
        for products in (-3, -2, -1, 0, 1)
    ]
    return [(dtype.type(start), delta) for delta in deltas if delta != 0]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("name", default_of(SEQUENCE_FLOATS, *SOME_FLOATS))
@pytest.mark.parametrize("bits", default_of([24, 32, 48], 48))
def test_positions_of_up_to_48_bits(name: str, bits: int):
    """The positions of large arrays, without making the arrays."""
    dtype, limit = dtype_of(name), 2**bits
    random = np.random.default_rng(7)
    index = [0, 1, limit - 1, limit // 3, *map(int, random.integers(0, limit, 40))]
    pairs = just_within_reach(dtype, limit)
    for delta in map(dtype.type, (0.37, -1.5e-5, 3.0)):
        with np.errstate(over="ignore"):
            pairs.append((dtype.type(-float(delta) * index[-1]), delta))
    pairs += random_pairs(random, dtype)
    platforms = ["cpu", "cuda"] if name == "float64" else ["any"]
    with jax.enable_x64(needs_x64(dtype)):
        functions = [elements_at(index, dtype, limit, name) for name in platforms]
        for start, delta in pairs:
            expected = [reference._multiply_add(k, delta, start) for k in index]
            for elements in functions:
                assert_same_floats(elements(start, delta), np.array(expected, dtype))


@pytest.mark.parametrize(
    ("start", "delta", "count", "kind"),
    [
        (0, 0.1, 1024, "float64_sums"),
        (-0.0, 0.1, 1024, "float64_sums"),
        (0.1, 0.1, 1024, "sums_of_words"),
        (0.1, 1 - 2**-43, 1024, "float64_sums"),
        (0.1, 1 - 2**-43, 1025, "sums_of_words"),
        (0.1, 1 - 2**-44, 1024, "sums_of_words"),
        (0.1, 0, 1024, "float64_sums"),
        (0, 2**-969, 1024, "float64_sums"),
        (0, 2**-970, 1024, "floats"),
        (2**-970, 1, 1024, "floats"),
        (2**-1074, 0.1, 1024, "floats"),
        (1, 2.0**1012, 1024, "float64_sums"),
        (1, 2.0**1013, 1024, "floats"),
        (-np.inf, 1, 1024, "float64_sums"),
        (1, np.inf, 1024, "floats"),
        (1, np.nan, 1024, "floats"),
        (0.1, 0.1, 1, "floats"),
        # The limits of the words.
        (2**-52, 1 + 2**-52, 2**25, "sums_of_words"),
        (2**-52, 1 + 2**-52, 2**25 + 1, "floats"),
        (2**-54, 1 + 2**-52, 2**24, "sums_of_words"),
        (2**-54, 1 + 2**-52, 2**24 + 1, "floats"),
        (2.0**40 + 2**-12, 1 + 2**-12, 2**24, "float64_sums"),
        (2.0**30, 1 + 2**-52, 2**20, "sums_of_words"),
        (2.0**32, 1 + 2**-52, 2**20, "floats"),
        (2.0**940, (1 + 2**-52) * 2.0**940, 2**10, "sums_of_words"),
        (2.0**940, (1 + 2**-52) * 2.0**940, 2**11, "floats"),
        (2**-917, (1 + 2**-52) * 2**-917, 1024, "sums_of_words"),
        (-0.1, -0.1, 2**32, "floats"),
        (-0.1, -0.1, 2**32 + 1, "floats"),
    ],
)
def test_float64_sequences_that_are_sums(
    start: float, delta: float, count: int, kind: str
):
    known = np.float64(start), np.float64(delta)
    assert primitive.kind_of_floats((count,), *known) == kind
    with jax.enable_x64(True):
        scalars = jnp.float64(start), jnp.float64(delta)
        case = double_word.prepare(*scalars, count, "cpu").case
        assert (case == 2) == (kind != "floats" or count == 1)
        k = np.array([i for i in (0, 1, 2, count // 3, count - 1) if i < count])
        if kind == "sums_of_words":
            words = double_word.words_of_sums(*scalars, (count - 1).bit_length())
            result = double_word.sum_of_words(words, jnp.asarray(k), "cpu")
            expected = [reference._multiply_add(int(i), *known[::-1]) for i in k]
            assert_same_floats(result, np.array(expected))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("bits", [1, 2, 10, 20, 25, 26, 27])
def test_float64_sums_of_words(bits: int, platform: str):
    """Starts of all sizes, relative to delta, and sums that are ties, or nearly."""
    index, pairs = cases_of_words(bits)
    with jax.enable_x64(True):
        elements = elements_at(index, np.dtype("float64"), 2**bits, platform)
        for start, delta in pairs:
            expected = [reference._multiply_add(k, delta, start) for k in index]
            assert_same_floats(elements(start, delta), np.array(expected))


@pytest.mark.parametrize("bits", [1, 2, 10, 20, 25, 26])
def test_float64_sums_of_exact_words(bits: int):
    """`sum_of_words` computes all elements, including the first two."""
    index, pairs = cases_of_words(bits)
    with jax.enable_x64(True):
        k = jnp.array(index, "float64")

        @jax.jit
        def elements(start: Any, delta: Any):
            sequence = double_word.prepare(start, delta, 2**bits, "cpu")
            sums = double_word.sum_of_words(sequence.words, k, "cpu")
            return sequence.case == 2, sums

        found = 0
        for start, delta in pairs:
            are_exact, sums = elements(start, delta)
            if are_exact:
                expected = [reference._multiply_add(k, delta, start) for k in index]
                assert_same_floats(sums, np.array(expected))
                found += 1
        assert found > 20


def cases_of_words(bits: int) -> tuple[list[int], np.ndarray]:
    """Positions of so many bits, and pairs of a start and a delta."""
    random = np.random.default_rng(bits)
    limit = 2**bits
    index = [0, 1, min(2, limit - 1), limit - 1]
    index += map(int, random.integers(0, limit, 16))
    pairs = [(-0.0, -0.0), (-0.0, 0.0)]
    for gap in range(-64, 120, 3):
        pairs += [(x * 2.0**gap, d) for x, d in random.uniform(-2, 2, (2, 2))]
    # The sum at 1 has more bits than delta.
    pairs += [(-d * random.uniform(0.3, 0.5), d) for d in random.uniform(1, 1.6, 10)]
    for k in {k | 1 for k in index}:
        # From a start of about 2^(104 - bits) on, the high word is rounded.
        for gap in (50 - bits, 51 - bits, 52 - bits, *random.integers(1, 64, 4)):
            pairs += near_ties(random, k, max(int(gap), 1))
        pairs += ties_of_fractions(random, k)
    pairs += [(x * 2.0**e, d * 2.0**e) for x, d in pairs[:60] for e in (-1040, -900)]
    return index, np.array(pairs)


def near_ties(random: np.random.Generator, k: int, gap: int) -> list[tuple]:
    """Numbers such that `start + k * delta` is n + 1/2, nearly, in units of 2^gap.

    n has 53 bits, and k is odd.
    """
    pairs = []
    for rest in (2 ** (gap - 1) + i for i in (-1, 0, 1)):
        quotient = -rest * pow(2**gap, -1, k) % k if k > 1 else 0
        steps = (2**52 * k - rest) // 2**gap // k, (2**53 * k - rest) // 2**gap // k
        quotient += k * int(random.integers(steps[0], max(steps) + 1))
        delta = (quotient * 2**gap + rest) // k
        n = int(random.integers(2**52, 2**53))
        if quotient.bit_length() == 53:
            n = quotient + int(random.integers(-(2**20), 2**20))
        pairs.append((float((n - quotient) * 2**gap), float(delta)))
    return pairs


def ties_of_fractions(random: np.random.Generator, k: int) -> list[tuple]:
    """Starts with a fraction, in units of delta's last bit, that decides a tie."""
    delta = int(random.integers(2**52, 2**52 + 2**48))
    unit = 2 ** max((k * delta).bit_length() - 53, 1)  # the last bit of the sum
    start = (unit // 2 - k * delta) % unit
    starts = [start + fraction for fraction in (-(2.0**-27), 0.0, 2.0**-27)]
    # The last bit of the element 2 is 1.
    starts += [fraction - 2.0**49 for fraction in (0.125, 0.375, 0.5, 0.625, 1.5)]
    return [(sign * start, sign * float(delta)) for start in starts for sign in (-1, 1)]


def test_a_product_beyond_float64():
    """Only the sum is in its range."""
    start, delta = -1.7e308, 2.0**1023
    with jax.enable_x64(True):
        y = fill_value_sequence((3,), "float64", start, delta)
    exact = [Fraction(start) + k * Fraction(delta) for k in range(3)]
    assert_same_floats(y, np.array([float(value) for value in exact]))


def random_pairs(random: np.random.Generator, dtype: np.dtype) -> list[tuple]:
    """Starts from a billionth of a delta to beyond all products, with few bits."""
    pairs = []
    with np.errstate(over="ignore", under="ignore"):
        for gap in random.integers(-30, 110, 12):
            start, delta = random.integers(-(2**6), 2**6, 2)
            pairs.append((dtype.type(np.ldexp(start, gap)), dtype.type(delta)))
    return pairs


def elements_at(
    index: list[int], dtype: np.dtype, limit: int, platform: str
) -> Callable[..., Any]:
    """The elements at these positions, below a limit, by start and delta."""
    if dtype == np.float64:
        k = jnp.array(index, "uint64")

        def elements(start: Any, delta: Any):
            sequence = double_word.prepare(start, delta, limit, platform)
            return double_word.element(sequence, k, platform)

        return jax.jit(elements)
    words, word_bits = rounding.words_of_index(dtype, limit)
    parts = [
        jnp.array([(k >> (word_bits * i)) % 2**word_bits for k in index], "uint32")
        for i in range(words)
    ]
    bits = limit.bit_length()
    return jax.jit(
        lambda start, delta: rounding.multiply_add(parts, delta, start, bits)
    )


def test_a_cpu_stores_the_scalars_of_float64_in_few_loops():
    """With a loop for each scalar, a small fill would take three times as long."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        fill = jax.jit(functools.partial(fill_value_sequence, (2**15,), "float64"))
        scalar = jax.ShapeDtypeStruct((), "float64")
        text = fill.lower(scalar, scalar).compile().as_text()
    assert text[text.index("ENTRY") :].count(" fusion(") == 3
