"""Sequences of floats are correctly rounded, for every dtype, position and size.

`operators/test_random_calls.py` has random ones, whose sums often cancel.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from assertions import assert_same_floats
from dtypes import SEQUENCE_FLOATS, dtype_of
from sampling import default_of

from dml_jax import fill_value_sequence, reference
from dml_jax._fill import arithmetic, float64_sums

SOME_FLOATS = "float8_e5m2", "bfloat16", "float32", "float64"


SPECIAL = [(s, d) for s in (0.0, -0.0, np.inf, np.nan, 1.0) for d in (0.0, -0.0, 1.0)]
SPECIAL += [(s, d) for s in (0.0, 1.0, np.inf) for d in (-1.0, np.inf, -np.inf, np.nan)]


@pytest.mark.parametrize("bits", default_of([1, 2, 20, 26, 48], 1, 26, 48))
def test_float64_ties(bits: int):
    """Starts of all sizes, relative to delta, and sums that are ties, or nearly."""
    index, pairs = cases_of_words(bits)
    with jax.enable_x64(True):
        elements = elements_at(
            index, bits, functools.partial(arithmetic.sequence, word_bits=64)
        )
        for start, delta in pairs:
            expected = [reference._multiply_add(k, delta, start) for k in index]
            assert_same_floats(elements(start, delta), np.array(expected))


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


def formulations(dtype: np.dtype, bits: int) -> list[Callable[..., Any]]:
    """Those for positions of so many bits, which a CPU computes as others do."""
    found = [functools.partial(arithmetic.sequence, word_bits=64)]
    if dtype != np.float64:
        found.append(functools.partial(arithmetic.sequence, word_bits=32))
    if float64_sums.suffice(dtype, bits):
        found.append(functools.partial(float64_sums.sequence, platform="cpu"))
    return found


def elements_at(
    index: Any, bits: int, formulation: Callable[..., Any]
) -> Callable[..., Any]:
    """The elements at these positions, of so many bits, by start and delta."""
    positions = np.array(index, np.uint32 if bits <= 32 else np.uint64)
    return jax.jit(lambda start, delta: formulation(start, delta, bits)(positions))


def adversarial_pair(random: np.random.Generator, dtype: np.dtype) -> list:
    """A start and a delta far apart or close, with bits that make ties likely."""
    info = ml_dtypes.finfo(dtype)
    bits = int(info.nmant) + 1
    exponent = random.integers(int(info.minexp) - int(info.nmant), int(info.maxexp))
    gap = random.integers(-60, 110)
    if random.random() < 0.5:  # so that delta only just reaches start's last bit
        gap = bits + random.integers(8, 48) + random.integers(-12, 4)
    values = []
    for shift in (gap, 0):
        low, high = 2 ** (bits - 1), 2**bits
        near, sparse = (
            low + random.integers(high // 4),
            low | 2 ** random.integers(bits),
        )
        significand = random.choice(
            [high - 1, low, near, sparse, random.integers(low, high)]
        )
        power = min(int(exponent + shift) - bits + 1, 1023 - bits)
        value = math.ldexp(float(significand), power)
        value = min(value, float(info.max)) * random.choice([-1, 1])
        values.append(reference.nearest(float(value), dtype))
    return values


def adversarial_positions(
    random: np.random.Generator, start: Any, delta: Any, limit: int
) -> np.ndarray:
    """Sixty positions: the ends, a zero crossing, and products close to ties."""
    positions = [0, 1, 2, 3, limit - 1, *random.integers(0, limit, 5)]
    if delta != 0 and np.isfinite([float(start), float(delta)]).all():
        middle = int(-float(start) / float(delta))
        positions += range(middle - 2, middle + 4)
        eps = float(ml_dtypes.finfo(start.dtype).eps)
        half_ulp = math.ldexp(eps, math.frexp(float(start))[1] - 2)
        for count in random.integers(1, 2 ** random.integers(1, 12), 24):
            positions.append(round(count * half_ulp / abs(float(delta))))
        factor = float(delta).as_integer_ratio()[0]
        factor //= factor & -factor  # odd
        for bits in map(int, random.integers(1, limit.bit_length(), 20)):
            # Then the last bits of position * factor are 100... or next to it.
            last = 2 ** (bits - 1) + int(random.integers(-1, 2))
            position = last * pow(factor, -1, 2**bits) % 2**bits
            positions.append(position + 2**bits * random.integers(limit >> bits))
    positions = np.array([int(k) for k in positions if 0 <= k < limit])
    return np.resize(positions, 60)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("bits", default_of([1, 20, 24, 29, 32, 48], 20, 48))
@pytest.mark.parametrize(
    "name", default_of(SEQUENCE_FLOATS, "float4_e2m1fn", *SOME_FLOATS)
)
def test_adversarial_sequences(name: str, bits: int):
    """Also with zeros, infinities and NaNs."""
    dtype, random = dtype_of(name), np.random.default_rng(bits)
    with jax.enable_x64(True):
        functions = [
            jax.jit(lambda start, delta, k, f=f: f(start, delta, bits)(k))
            for f in formulations(dtype, bits)
        ]
        pairs = [adversarial_pair(random, dtype) for _ in range(40)]
        for start, delta in [*pairs, *np.array(SPECIAL).astype(dtype)]:
            k = adversarial_positions(random, start, delta, 2**bits)
            expected = [reference._multiply_add(int(i), delta, start) for i in k]
            for elements in functions:
                y = elements(
                    start, delta, k.astype(np.uint32 if bits <= 32 else np.uint64)
                )
                assert_same_floats(y, np.array(expected, dtype))
