"""What a TPU computes for sequences of floats, run on the device at hand."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from dtypes import SEQUENCE_FLOATS, dtype_of, needs_x64
from sampling import default_of

from dml_jax import reference
from dml_jax._fill import primitive, rounding, tpu

SHORT_FLOATS = [name for name in SEQUENCE_FLOATS if name != "float64"]


def tpu_fill(sizes: tuple[int, ...], dtype: np.dtype):
    return jax.jit(primitive._formulation("floats", sizes, dtype, "tpu", True))


# Elements anywhere in large arrays ----------------------------------------------------


def random_scalars(random: np.random.Generator, dtype: np.dtype, bits: int):
    """A start and a delta, such that their bits overlap, or nearly do."""
    info = ml_dtypes.finfo(dtype)
    precision = int(info.nmant) + 1
    delta = random.choice([-1, 1]) * random.uniform(1, 2)
    smallest = int(info.minexp) - int(info.nmant)
    delta = math.ldexp(delta, int(random.integers(smallest, info.maxexp)))
    delta = float(dtype.type(delta))
    if random.random() < 0.3:  # the sum passes zero, or nearly does
        start = -delta * random.integers(2**bits) * random.choice([0.5, 1, 1 - 2**-10])
    else:
        gap = int(random.integers(-precision - 8, precision + bits + 6))
        start = math.ldexp(delta, gap) * random.uniform(-2, 2)
    return dtype.type(start), dtype.type(delta)


def random_positions(random: np.random.Generator, bits: int, start: Any, delta: Any):
    """Positions of any magnitude, around a sum of zero, and around ties near start."""
    powers = random.integers(0, bits, 100)
    positions = [*range(8), 2**bits - 1, *random.integers(2**powers, 2 ** (powers + 1))]
    if start != 0 and delta != 0:
        precision = int(ml_dtypes.finfo(start.dtype).nmant) + 1
        last_bit = math.ldexp(1, math.frexp(float(start))[1] - precision)
        ties = (np.arange(100) + 0.5) * last_bit / abs(float(delta))
        around = np.append(ties, -float(start) / float(delta))
        positions += [int(k) + i for k in around if abs(k) < 2**bits for i in range(2)]
    return np.resize(np.clip(positions, 0, 2**bits - 1), 400).astype(np.uint32)


def by_parts_and_by_integers(dtype: np.dtype, bits: int, pairs: int):
    """The results of both methods."""
    random = np.random.default_rng(bits)
    count = 2**bits
    words, word_bits = rounding.words_of_index(dtype, count)

    @jax.jit
    def by_parts(start: Any, delta: Any, k: Any):
        return tpu.element(tpu.prepare(start, delta, count), k, dtype, count)

    @jax.jit
    def by_integers(start: Any, delta: Any, k: Any):
        index = [k] if words == 1 else [k & (2**word_bits - 1), k >> word_bits]
        return rounding.multiply_add(index, delta, start, count.bit_length())

    for _ in range(pairs):
        with np.errstate(over="ignore"):
            start, delta = random_scalars(random, dtype, bits)
        k = random_positions(random, bits, start, delta)
        yield by_parts(start, delta, k), np.asarray(by_integers(start, delta, k))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    ("name", "bits"),
    default_of(
        [
            *(("float32", bits) for bits in (20, 22, 24, 29)),
            *(("bfloat16", bits) for bits in (22, 24, 28, 29)),
            *(("float16", bits) for bits in (22, 24, 29)),
            ("float8_e5m2", 28),
        ],
        *(("float32", 22), ("bfloat16", 24), ("float16", 29)),
    ),
)
def test_parts_equal_integers(name: str, bits: int):
    assert tpu.suffices(dtype_of(name), 2**bits)
    for result, expected in by_parts_and_by_integers(dtype_of(name), bits, 300):
        assert_same_floats(result, expected)


@pytest.mark.parametrize(
    ("name", "bits"), [("float32", 22), ("bfloat16", 22), ("float16", 24)]
)
def test_parts_need_rounding_to_odd(
    name: str, bits: int, monkeypatch: pytest.MonkeyPatch
):
    """So the positions and the scalars above do contain ties."""
    monkeypatch.setattr(tpu, "_add_to_odd", jnp.add)
    results = by_parts_and_by_integers(dtype_of(name), bits, 300)
    assert any((result != expected).any() for result, expected in results)


@pytest.mark.parametrize(
    ("name", "bits"), [("float32", 29), ("float16", 29), ("float8_e5m2", 32)]
)
def test_parts_hold_so_many_positions(name: str, bits: int):
    assert tpu.suffices(dtype_of(name), 2**bits)
    assert not tpu.suffices(dtype_of(name), 2**bits + 1)


@pytest.mark.usefixtures("nans_are_data")
def test_conversion_to_float16():
    """At all numbers of float16, at all ties, and beside them."""
    magnitudes = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    magnitudes[-1] = 2.0**16  # what an infinity is the next number of
    ties = (magnitudes[:-1] + magnitudes[1:]) / 2
    x = np.concatenate([magnitudes, ties, [1e30, np.inf, np.nan]]).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, 0)])
    x = x[(x == 0) | ~(np.abs(x) < np.finfo(np.float32).tiny)]
    x = np.concatenate([x, -x])
    codes = np.asarray(jax.jit(tpu._float16_code)(x)).astype(np.uint16)
    with np.errstate(over="ignore"):
        assert_same_floats(codes.view(np.float16), x.astype(np.float16))


# Whole arrays -------------------------------------------------------------------------

SCALARS = [(0.0, 1.0), (-1.5, 0.25), (3.0, -0.5), (2.0, 0.0), (-0.0, -1.0), (0.0, -0.0)]
SPECIAL = [(np.inf, 1.0), (1.0, -np.inf), (np.nan, 1.0), (np.inf, -np.inf)]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("sizes", [(300,), (3, 7, 5)], ids=str)
@pytest.mark.parametrize(
    "name", default_of(SEQUENCE_FLOATS, "float32", "bfloat16", "float8_e4m3fn")
)
def test_tpu_formulations_equal_the_reference(name: str, sizes: tuple[int, ...]):
    dtype = dtype_of(name)
    tiny, largest = (
        float(getattr(ml_dtypes.finfo(dtype), field)) for field in ("tiny", "max")
    )
    extreme = [
        (tiny, -tiny / 4),
        (-8 * tiny, tiny / 8),
        (tiny, 1.0),
        (largest, largest),
    ]
    with jax.enable_x64(needs_x64(dtype)):
        fill = tpu_fill(sizes, dtype)
        for pair in SCALARS + SPECIAL + extreme:
            start, delta = (np.array(value).astype(dtype) for value in pair)
            expected = reference.fill_value_sequence(sizes, dtype, start, delta)
            assert_same_floats(fill(start, delta), expected)


def test_large_fill_equals_the_oracle_of_positions():
    """A fill of three digits, at sizes where it takes a moment."""
    count, start, delta = 2**22 + 2**12, np.float32(-1.5e6), np.float32(0.7153)
    result = tpu_fill((count,), np.dtype("float32"))(start, delta)
    exact = np.float64(start) + np.arange(count) * np.float64(delta)  # has < 53 bits
    assert_same_bits(result, exact.astype(np.float32))
