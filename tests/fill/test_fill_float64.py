"""Sequences of narrower floats by way of float64, where that is exact enough."""

import functools
import math
import re

import jax
import jax.export
import ml_dtypes
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from dtypes import SEQUENCE_FLOATS, dtype_of

from dml_jax import fill_value_sequence, reference

DOUBLES = [name for name in SEQUENCE_FLOATS if name != "float64"]


def double_positions(dtype):
    """The bits of the positions that float64 does for."""
    return min(32, 51 - int(ml_dtypes.finfo(dtype).nmant))


def adversarial_pair(random, dtype):
    """A start and a delta far apart or close, with bits that make ties likely."""
    info = ml_dtypes.finfo(dtype)
    bits = int(info.nmant) + 1
    exponent = random.integers(int(info.minexp) - int(info.nmant), int(info.maxexp))
    gap = random.integers(-40, 71)
    if random.random() < 0.5:  # so that delta only just reaches start's last bit
        gap = bits + double_positions(dtype) + random.integers(-12, 4)
    values = []
    for shift in (gap, 0):
        significand = random.choice(
            [
                2**bits - 1,
                2 ** (bits - 1),
                2 ** (bits - 1) + random.integers(2**bits // 4),
                2 ** (bits - 1) | 2 ** random.integers(bits),
                random.integers(2 ** (bits - 1), 2**bits),
            ]
        )
        value = float(significand) * 2.0 ** float(exponent + shift - bits + 1)
        value = min(value, float(info.max)) * random.choice([-1, 1])
        values.append(reference.nearest(float(value), dtype))
    return values


def adversarial_positions(random, start, delta, limit):
    """Sixty positions: the ends, a zero crossing, and products close to ties."""
    positions = [0, 1, 2, 3, limit - 1, *random.integers(0, limit, 5)]
    if delta != 0:
        middle = int(-float(start) / float(delta))
        positions += range(middle - 2, middle + 4)
        eps = float(ml_dtypes.finfo(start.dtype).eps)
        half_ulp = 2.0 ** math.frexp(float(start))[1] * eps / 4
        for count in random.integers(1, 2 ** random.integers(1, 12), 24):
            positions.append(round(count * half_ulp / abs(float(delta))))
        factor = float(delta).as_integer_ratio()[0]
        factor //= factor & -factor  # odd
        for bits in random.integers(1, limit.bit_length(), 20):
            # Then the last bits of position * factor are 100... or next to it.
            last = 2 ** (int(bits) - 1) + int(random.integers(-1, 2))
            position = last * pow(factor, -1, 2 ** int(bits)) % 2 ** int(bits)
            positions.append(position + 2 ** int(bits) * random.integers(limit >> bits))
    positions = np.array([int(k) for k in positions if 0 <= k < limit])
    return np.resize(positions, 60).astype(np.uint32)


def assert_elements_by_way_of_float64(dtype, platform, cases):
    """Compares elements of sequences without making so long tensors."""
    from dml_jax._fill import float64

    @jax.jit
    def elements(positions, start, delta):
        sequence = float64.prepare(start, delta, platform)
        return float64.element(sequence, positions, dtype, platform)

    for start, delta, positions in cases:
        with jax.enable_x64(True):  # or a callback would be given float32
            y = elements(np.asarray(positions, np.uint32), start, delta)
        actual = np.asarray(y)
        expected = np.array(
            [reference._multiply_add(int(k), delta, start) for k in positions], dtype
        )
        if platform != "cpu":  # which flushes
            is_normal = abs(expected.astype(np.float64)) >= 2.0**-126
            actual, expected = actual[is_normal], expected[is_normal]
        assert_same_floats(actual, expected)


PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm"])


def rounded_once(x, dtype):
    """What one instruction of CUDA does, and two of a CPU do not."""

    def nearest(x):
        values = [reference.nearest(value, dtype) for value in x.tolist()]
        return np.array(values, dtype)

    return jax.pure_callback(nearest, jax.ShapeDtypeStruct(x.shape, dtype), x)


@pytest.fixture
def cuda_rounding(monkeypatch):
    from dml_jax._fill import float64

    if not has_cuda():
        monkeypatch.setattr(float64, "_narrow", rounded_once)


def has_cuda():
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


@pytest.mark.usefixtures("nans_are_data", "cuda_rounding")  # floats overflow to NaN
@PLATFORMS
@pytest.mark.parametrize("name", DOUBLES)
def test_adversarial_sequences_by_way_of_float64(name, platform):
    from dml_jax._fill import float64

    dtype = dtype_of(name)
    limit = 2 ** double_positions(dtype)
    assert float64.suffices(dtype, limit)
    assert not float64.suffices(dtype, limit + 1)
    random = np.random.default_rng(11)
    pairs = [adversarial_pair(random, dtype) for _ in range(200)]
    cases = [(*p, adversarial_positions(random, *p, limit)) for p in pairs]
    assert_elements_by_way_of_float64(dtype, platform, cases)


@pytest.mark.usefixtures("cuda_rounding")
@PLATFORMS
def test_a_tiny_start_decides_ties_of_bfloat16(platform):
    """3 * 129 is between two of its values, and the sum in float64 is the same."""
    dtype = dtype_of("bfloat16")
    delta, positions = dtype.type(129), [3, 5, 6, 7]
    starts = [dtype.type(sign * 2.0**-60) for sign in (1, -1)]
    cases = [(start, delta, positions) for start in starts]
    assert_elements_by_way_of_float64(dtype, platform, cases)


def ties_beside_a_tiny_start():
    """The product is a tie and needs all of 52 bits; the start says which way."""
    for factor in range(2**24 - 2, 2**24 - 42, -4):
        for start in (2.0**-30, -(2.0**-30), 0.0):
            yield start, factor, [3 * 2**26]


def sums_of_53_bits():
    """One bit beside a tie, where the sum of equal signs is the largest possible."""
    for factor in range(2**24 - 1, 2**24 - 401, -2):
        for start, tie in ((2**53 - 2**29, 0), (2**53 - 2**30, 2**29)):
            inverse = pow(factor, -1, 2**30)
            positions = [(tie + one) * inverse % 2**30 for one in (1, -1)]
            yield start, factor, [k for k in positions if k < 2**28]


def cancellation_by_the_last_element():
    for start in (2**28, 2**28 + 32, 2**29, 2**29 + 64):
        yield start, -1, [2**28 - 1, 2**28 - 2]


@PLATFORMS
@pytest.mark.parametrize(
    "edge",
    [ties_beside_a_tiny_start, sums_of_53_bits, cancellation_by_the_last_element],
)
def test_edges_of_what_float64_does(edge, platform):
    cases = [
        (np.float32(sign * start), np.float32(sign * delta), positions)
        for start, delta, positions in edge()
        for sign in (1, -1)
        if positions
    ]
    assert len(cases) >= 8
    assert_elements_by_way_of_float64(np.dtype("float32"), platform, cases)


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("float32", (6,), None),
        ("float16", (3, 6), "3x3x2xui16"),
        ("float16", (6, 3), None),
        ("bfloat16", (6,), "3x2xui16"),
        ("float8_e5m2", (8,), "2x4xui8"),
        ("float4_e2m1fn", (8,), None),
        ("int8", (8,), "2x4xui8"),
        ("int8", (6,), None),
        ("uint16", (6,), "3x2xui16"),
        ("int32", (6,), None),
        ("int4", (8,), None),
        ("float32", (2**28,), None),
    ],
)
def test_what_each_platform_computes_in(name, sizes, words):
    """CPUs compute in float64, GPUs too and in words, and TPUs in neither."""
    scalar = jax.ShapeDtypeStruct((), dtype_of(name))
    fill = jax.jit(functools.partial(fill_value_sequence, sizes, dtype_of(name)))
    for platform in ("cpu", "cuda", "rocm", "tpu"):
        traced = fill.trace(scalar, scalar)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("f64" in text) == (name in DOUBLES and platform != "tpu")
        # What the scalars take is not done again for every element.
        assert ("optimization_barrier" in text) == ("f64" in text)
        pattern = r"bitcast_convert \S+ : \(tensor<\w*ui32>\) -> tensor<(\w+xui\d+)>"
        in_words = [words] if words and platform in ("cuda", "rocm") else []
        assert re.findall(pattern, text) == in_words
        exported = jax.export.export(fill, platforms=[platform])(scalar, scalar)
        assert not re.findall(pattern, exported.mlir_module())


def test_more_elements_than_float64_has_positions_for():
    scalar = jax.ShapeDtypeStruct((), np.float32)
    fill = jax.jit(functools.partial(fill_value_sequence, (2**28 + 1,), "float32"))
    assert "f64" not in fill.lower(scalar, scalar).as_text()


@pytest.mark.parametrize("sizes", [(2**28,), (2**28 + 5,)], ids=["in", "beyond"])
def test_around_the_last_position_of_float64(sizes):
    """Only a few elements are computed: XLA fuses the slice into the fill."""
    start, delta = np.float32(0.3), np.float32(-1.7)
    call = functools.partial(fill_value_sequence, sizes, "float32")
    result = jax.jit(lambda *values: call(*values)[-7:])(start, delta)
    positions = range(sizes[0] - 7, sizes[0])
    expected = [reference._multiply_add(k, delta, start) for k in positions]
    assert_same_bits(result, np.array(expected))
