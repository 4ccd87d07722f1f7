"""Sequences of floats, against exact fractions.

`start + k * delta` is computed in float64 and converted once. Results below the normal
numbers are not compared, since XLA flushes them to zero on some platforms.
"""

import math
from fractions import Fraction

import jax
import ml_dtypes
import numpy as np
import pytest
from dtypes import SEQUENCE_FLOATS, dtype_of, needs_x64
from sampling import default_of

from dml_jax import fill_value_sequence

pytestmark = pytest.mark.usefixtures("optimized")

COUNT = 1500
HALF = Fraction(1, 2)
# Sequences with an element that float32 rounds to a tie of 16 bits.
NEAR_TIES = {"float16": (32, 565 * 2.0**-20), "bfloat16": (1, 185 * 2.0**-26)}
ACCURATE = dict.fromkeys(["float32", "bfloat16", "float16"], HALF + Fraction(1, 10**6))


def unit(value: Fraction, dtype: np.dtype) -> Fraction:
    """The distance of the normal numbers around a value that is not zero."""
    exponent = math.frexp(float(value))[1] - 1
    if abs(value) < Fraction(2) ** exponent:  # the float was rounded up
        exponent -= 1
    return Fraction(2) ** (exponent - int(ml_dtypes.finfo(dtype).nmant))


def bound(start: Fraction, product: Fraction, dtype: np.dtype) -> Fraction:
    """The largest error of an element."""
    total = start + product
    if dtype != np.float64:
        return unit(total, dtype) * ACCURATE.get(dtype.name, Fraction("0.51"))
    of_product = HALF * unit(product, dtype) if product else Fraction(0)
    # The sum that is rounded has the error of the product.
    return of_product + HALF * unit(abs(total) + of_product, dtype)


def random_pairs(dtype: np.dtype, random: np.random.Generator) -> np.ndarray:
    """Starts and deltas: alike, far apart, and such that elements cancel."""
    info = ml_dtypes.finfo(dtype)
    smallest = float(info.smallest_normal)
    delta = random.choice([-1, 1], 24) * random.uniform(1, 2, 24)
    delta *= 2.0 ** random.integers(max(-20, int(info.minexp)), 1, 24)
    start = random.uniform(-1, 1, 24)
    start[8:16] = -delta[8:16] * random.integers(0, COUNT, 8)
    delta[16:] = np.copysign(np.maximum(np.abs(delta[16:]) / COUNT, smallest), -1)
    largest = float(info.max)
    pairs = np.clip(np.stack([start, delta], 1), -largest, largest)
    return np.vstack([pairs, NEAR_TIES.get(dtype.name, (1, 0.5))]).astype(dtype)


@pytest.mark.parametrize(
    "name",
    default_of(
        SEQUENCE_FLOATS,
        *["float4_e2m1fn", "float8_e4m3fn", "bfloat16", "float16"],
        *["float32", "float64"],
    ),
)
def test_errors_of_normal_results(name: str) -> None:
    dtype, random = dtype_of(name), np.random.default_rng(5)
    info = ml_dtypes.finfo(dtype)
    smallest, largest = (Fraction(float(x)) for x in (info.smallest_normal, info.max))
    compared = 0
    for start, delta in random_pairs(dtype, random):
        with jax.enable_x64(needs_x64(dtype)):
            y = np.asarray(fill_value_sequence((COUNT,), dtype, start, delta))
        first, step = Fraction(float(start)), Fraction(float(delta))
        for k, element in enumerate(y.astype(np.float64).tolist()):
            exact = first + k * step
            if smallest <= abs(exact) <= largest:
                error = abs(Fraction(element) - exact)
                assert error <= bound(first, k * step, dtype), (start, delta, k)
                compared += 1
    assert compared > 100
