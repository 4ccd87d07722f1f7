"""What a TPU computes for sequences of floats, run on the device at hand."""

import functools
import math
from collections.abc import Callable
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
    delta = math.ldexp(delta, int(random.integers(max(-70, info.minexp), info.maxexp)))
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
    """The results of both methods for usual scalars, and the number of the others."""
    random = np.random.default_rng(bits)
    count = 2**bits
    words, word_bits = rounding.words_of_index(dtype, count)

    @jax.jit
    def by_parts(start: Any, delta: Any, k: Any):
        sequence = tpu.prepare(start, delta, count)
        return sequence.is_usual, tpu.element(sequence, k, dtype, count)

    @jax.jit
    def by_integers(start: Any, delta: Any, k: Any):
        index = [k] if words == 1 else [k & (2**word_bits - 1), k >> word_bits]
        return rounding.multiply_add(index, delta, start, count.bit_length())

    results, unusual = [], 0
    for _ in range(pairs):
        with np.errstate(over="ignore"):
            start, delta = random_scalars(random, dtype, bits)
        k = random_positions(random, bits, start, delta)
        is_usual, result = by_parts(start, delta, k)
        if is_usual:
            results.append(
                (np.asarray(result), np.asarray(by_integers(start, delta, k)))
            )
        unusual += not is_usual
    return results, unusual


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *(("float32", bits) for bits in (20, 22, 24, 32)),
        *(("bfloat16", bits) for bits in (22, 28)),
        *((name, 20) for name in ("float16", "float8_e5m2")),
    ],
)
@pytest.mark.parametrize("pairs", default_of([300, 3000], 300))
def test_parts_equal_integers(name: str, bits: int, pairs: int):
    assert tpu.suffices(dtype_of(name), 2**bits)
    results, unusual = by_parts_and_by_integers(dtype_of(name), bits, pairs)
    assert unusual < pairs / 2
    for result, expected in results:
        assert_same_floats(result, expected)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_parts_need_rounding_to_odd(name: str, monkeypatch: pytest.MonkeyPatch):
    """So the positions and the scalars above do contain ties."""
    monkeypatch.setattr(tpu, "_add_to_odd", jnp.add)
    results, _ = by_parts_and_by_integers(dtype_of(name), 22, 300)
    assert any((result != expected).any() for result, expected in results)


@pytest.mark.parametrize("name", SHORT_FLOATS)
def test_parts_hold_no_more_than_they_can(name: str):
    dtype = dtype_of(name)
    assert tpu.suffices(dtype, tpu.MIN_ELEMENTS)
    assert not tpu.suffices(dtype, tpu.MIN_ELEMENTS - 1)
    assert not tpu.suffices(dtype, 2**32 + 1)
    assert tpu.suffices(dtype, 2**28) == (name != "float16")


# Whole arrays -------------------------------------------------------------------------

# Some of them are usual, some are not.
SCALARS = [(0.0, 1.0), (-1.5, 0.25), (3.0, -0.5), (2.0, 0.0), (-0.0, -1.0), (0.0, -0.0)]
SPECIAL = [(np.inf, 1.0), (1.0, -np.inf), (np.nan, 1.0), (np.inf, -np.inf)]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("sizes", [(300,), (3, 7, 5)], ids=str)
@pytest.mark.parametrize("name", SEQUENCE_FLOATS)
def test_tpu_formulations_equal_the_reference(
    name: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tpu, "MIN_ELEMENTS", 0)
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


def tpu_text(function: Callable[..., Any], *arguments: Any) -> str:
    traced = jax.jit(function).trace(*arguments)
    return traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_large_fills_are_conditional_unless_mapped(name: str):
    scalar = jax.ShapeDtypeStruct((), dtype_of(name))
    scalars = jax.ShapeDtypeStruct((4,), dtype_of(name))
    small, large = (
        functools.partial(fill_value_sequence, (n,), name) for n in (2**15, 2**20)
    )
    assert tpu_text(large, scalar, scalar).count("stablehlo.case") == 1
    assert "stablehlo.case" not in tpu_text(small, scalar, scalar)
    assert "stablehlo.case" not in tpu_text(jax.vmap(large), scalars, scalars)


def test_large_fill_equals_the_oracle_of_positions():
    """A fill of three digits, at sizes where it takes a moment."""
    count, start, delta = 2**22 + 2**12, np.float32(-1.5e6), np.float32(0.7153)
    result = tpu_fill((count,), np.dtype("float32"))(start, delta)
    exact = np.float64(start) + np.arange(count) * np.float64(delta)  # has < 53 bits
    assert_same_bits(result, exact.astype(np.float32))
