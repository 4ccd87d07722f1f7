"""Sequences of floats are correctly rounded, for every dtype, position and size.

`operators/test_random_calls.py` has random ones, whose sums often cancel.
"""

import functools
import itertools
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

SOME_FLOATS = "float4_e2m1fn", "float8_e5m2", "bfloat16", "float32", "float64"


SPECIAL = [(s, d) for s in (0.0, -0.0, np.inf, np.nan, 1.0) for d in (0.0, -0.0, 1.0)]
SPECIAL += [(s, d) for s in (0.0, 1.0, np.inf) for d in (-1.0, np.inf, -np.inf, np.nan)]


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


def adversarial_pair(random: np.random.Generator, dtype: np.dtype) -> list:
    """A start and a delta far apart or close, with bits that make ties likely."""
    info = ml_dtypes.finfo(dtype)
    bits = int(info.nmant) + 1
    smallest = int(info.minexp) - int(info.nmant)
    largest = random.choice([smallest + 2 * bits, int(info.maxexp)], p=[0.1, 0.9])
    exponent = random.integers(smallest, largest)
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
        exact = Fraction(float(delta))
        middle = int(-Fraction(float(start)) / exact)
        positions += range(middle - 2, middle + 4)
        eps = float(ml_dtypes.finfo(start.dtype).eps)
        half_ulp = math.ldexp(eps, math.frexp(float(start))[1] - 2)
        for count in map(int, random.integers(1, 2 ** random.integers(1, 12), 24)):
            positions.append(round(count * Fraction(half_ulp) / abs(exact)))
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
@pytest.mark.parametrize(
    ("name", "bits"),
    default_of(
        itertools.product(SEQUENCE_FLOATS, [1, 2, 20, 24, 26, 29, 32, 48]),
        *itertools.product(SOME_FLOATS, [20, 48]),
        *[("float64", 1), ("float64", 26)],  # a single bit, and a full word
        ("float16", 24),  # summed in float64
    ),
)
def test_adversarial_sequences(name: str, bits: int):
    """Also with zeros, infinities and NaNs."""
    dtype, random = dtype_of(name), np.random.default_rng(bits)
    with jax.enable_x64(True):
        functions = [
            jax.jit(lambda start, delta, k, f=f: f(start, delta, bits)(k))
            for f in formulations(dtype, bits)
        ]
        pairs = [adversarial_pair(random, dtype) for _ in range(160)]
        for start, delta in [*pairs, *np.array(SPECIAL).astype(dtype)]:
            k = adversarial_positions(random, start, delta, 2**bits)
            expected = [reference._multiply_add(int(i), delta, start) for i in k]
            for elements in functions:
                y = elements(
                    start, delta, k.astype(np.uint32 if bits <= 32 else np.uint64)
                )
                assert_same_floats(y, np.array(expected, dtype))
