"""Sequences of floats up to float32, computed in float64 where that is exact enough."""

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from dtypes import SEQUENCE_FLOATS, dtype_of
from sampling import default_of

from dml_jax import fill_value_sequence, reference
from dml_jax._fill import float64, primitive

DTYPES = [name for name in SEQUENCE_FLOATS if name != "float64"]
PLATFORMS = pytest.mark.parametrize(
    "platform", default_of(["cpu", "cuda", "rocm"], "cpu", "cuda")
)


def position_bits(dtype: np.dtype) -> int:
    """The bits of the positions for which float64 suffices."""
    return min(32, 51 - int(ml_dtypes.finfo(dtype).nmant))


def adversarial_pair(random: np.random.Generator, dtype: np.dtype) -> list:
    """A start and a delta far apart or close, with bits that make ties likely."""
    info = ml_dtypes.finfo(dtype)
    bits = int(info.nmant) + 1
    exponent = random.integers(int(info.minexp) - int(info.nmant), int(info.maxexp))
    gap = random.integers(-40, 71)
    if random.random() < 0.5:  # so that delta only just reaches start's last bit
        gap = bits + position_bits(dtype) + random.integers(-12, 4)
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
        value = float(significand) * 2.0 ** float(exponent + shift - bits + 1)
        value = min(value, float(info.max)) * random.choice([-1, 1])
        values.append(reference.nearest(float(value), dtype))
    return values


def adversarial_positions(
    random: np.random.Generator, start: Any, delta: Any, limit: int
) -> np.ndarray:
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
        for bits in map(int, random.integers(1, limit.bit_length(), 20)):
            # Then the last bits of position * factor are 100... or next to it.
            last = 2 ** (bits - 1) + int(random.integers(-1, 2))
            position = last * pow(factor, -1, 2**bits) % 2**bits
            positions.append(position + 2**bits * random.integers(limit >> bits))
    positions = np.array([int(k) for k in positions if 0 <= k < limit])
    return np.resize(positions, 60).astype(np.uint32)


def assert_correctly_rounded(
    dtype: np.dtype,
    platform: str,
    cases: Iterable[tuple[Any, Any, Any]],
    in_blocks: bool = False,
):
    """Compares single elements, without making such long arrays."""

    @jax.jit
    def elements(positions: Any, start: Any, delta: Any):
        if in_blocks:
            blocks = float64.prepare_blocks(start, delta, 2**32, platform)
            return float64.element_of_blocks(blocks, positions, platform)
        count = positions.max().astype(np.float64) + 1
        sequence = float64.prepare(start, delta, count, platform)
        return float64.element(sequence, positions, dtype, platform)

    for start, delta, positions in cases:
        with jax.enable_x64(True):  # or a callback would be given float32
            y = elements(np.asarray(positions, np.uint32), start, delta)
        actual = np.asarray(y)
        expected = np.array(
            [reference._multiply_add(int(k), delta, start) for k in positions], dtype
        )
        if platform != "cpu":  # the CPU of this test flushes subnormals
            is_normal = abs(expected.astype(np.float64)) >= 2.0**-126
            actual, expected = actual[is_normal], expected[is_normal]
        assert_same_floats(actual, expected)


@pytest.fixture
def _cuda_rounding(monkeypatch: pytest.MonkeyPatch):
    """The one instruction of CUDA, as a callback where there is no such device."""

    def rounded_once(x: jax.Array, dtype: np.dtype):
        def nearest(x: Any):
            values = [reference.nearest(value, dtype) for value in x.tolist()]
            return np.array(values, dtype)

        return jax.pure_callback(nearest, jax.ShapeDtypeStruct(x.shape, dtype), x)

    try:
        jax.devices("cuda")
    except RuntimeError:
        monkeypatch.setattr(float64, "_round_directly", rounded_once)


@pytest.mark.usefixtures("nans_are_data", "_cuda_rounding")  # floats overflow to NaN
@PLATFORMS
@pytest.mark.parametrize("name", default_of(DTYPES, "float32", "bfloat16", "float16"))
def test_adversarial_sequences(name: str, platform: str):
    dtype = dtype_of(name)
    limit = 2 ** position_bits(dtype)
    assert float64.suffices(dtype, limit)
    assert not float64.suffices(dtype, limit + 1)
    random = np.random.default_rng(11)
    cases = []
    for _ in range(40):
        start, delta = adversarial_pair(random, dtype)
        positions = adversarial_positions(random, start, delta, limit)
        cases.append((start, delta, positions))
    assert_correctly_rounded(dtype, platform, cases)


@PLATFORMS
@pytest.mark.parametrize(
    "seed", [0, *[pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, 4)]]
)
def test_adversarial_sequences_in_blocks(seed: int, platform: str):
    dtype, limit = np.dtype("float32"), 2**32
    assert float64.has_blocks(dtype, limit)
    assert not float64.has_blocks(dtype, limit + 1)
    random = np.random.default_rng(seed)
    cases = []
    while len(cases) < 40:
        start, delta = adversarial_pair(random, dtype)
        if float64.fits_blocks(start, delta):
            positions = adversarial_positions(random, start, delta, limit)
            ends = (random.integers(1, 33, 20) << 27) + random.integers(-2, 2, 20)
            positions[-20:] = ends % limit
            cases.append((start, delta, positions))
    assert_correctly_rounded(dtype, platform, cases, in_blocks=True)


@pytest.mark.parametrize(
    ("start", "delta", "fits"),
    [
        (0, 1, True),
        (2**48, 1, True),
        (2**49, 1, False),
        (0, 0, False),
        (0, 2**-130, False),
        (0, np.inf, False),
        (0, np.nan, False),
        (np.nan, 1, False),
        (-np.inf, 1, False),
    ],
)
def test_sequences_that_fit_blocks(start: float, delta: float, fits: bool):
    """The others, whose start dominates or whose arithmetic is special."""
    assert float64.fits_blocks(np.float32(start), np.float32(delta)) == fits


@pytest.mark.parametrize(
    ("name", "start", "delta", "count", "bits"),
    [
        ("float32", 0.5, -1.5, 2**22, 32),
        ("float32", 0, 1, 2**24, 32),
        ("float32", 0, 1, 2**24 + 1, 64),
        ("float32", 2**23, 1, 2**23, 32),
        ("float32", 2**23, 1, 2**23 + 1, 64),
        ("float32", -1.5 * 2**127, 2**127, 3, 64),  # a product overflows in float32
        ("float32", 0, 0, 2**28, 32),
        ("float32", 0, 2**-20, 2**32, 64),
        ("float32", 0, 2**-20, 2**32 + 1, 0),
        ("float32", 0.3, -1.7, 2**20, 64),
        ("float32", 2**29, 1 + 2**-23, 2**28, 64),
        ("float32", 2**30, 1 + 2**-23, 2**28, 0),
        ("float32", 2**-25, 1 + 2**-23, 2**27, 64),
        ("float32", 2**-25, 1 + 2**-23, 2**28, 0),
        ("float32", 2**-126, 2**-126, 2**23, 32),
        ("float32", 2**-126, -3 * 2**-126, 2**28, 64),
        ("float32", 2**-127, 2**-127, 2**23, 0),
        ("float32", 2**-127, -3 * 2**-126, 2**28, 0),
        ("float32", 2**-126, -3 * 2**-127, 2**28, 0),
        ("float32", np.inf, 1, 2**23, 0),
        ("float32", 1, np.nan, 2**23, 0),
        ("float16", 65504, 8 + 2**-7, 2**24, 32),
        ("float16", 65504, 8 + 2**-7, 2**24 + 1, 0),
        ("float16", 65504, 4 + 2**-8, 2**24, 0),
        ("float16", -1, 2**-10, 2**11, 32),
        ("float16", -1, 2**-10 + 2**-20, 2**13, 32),
        ("float16", -1, 2**-10 + 2**-20, 2**14, 0),
        ("float16", 2**-24, 2**-24, 2**24 - 1, 32),
        ("float16", 2**-24, 2**-24, 2**24, 0),
    ],
)
def test_floats_that_hold_all_sums(
    name: str, start: float, delta: float, count: int, bits: int
):
    """And none is subnormal. Sums that overflow in float16 need not be exact."""
    scalars = jnp.asarray(start, name), jnp.asarray(delta, name)
    if float64.suffices(np.dtype(name), count):
        assert float64.prepare(*scalars, count, "cpu").is_exact == int(bits > 0)
        assert float64.prepare(*scalars, count, "cuda").is_exact is None
    known = np.asarray(start, name), np.asarray(delta, name)
    kind = primitive.kind_of_floats((count,), *known)
    assert kind == {32: "float32_sums", 64: "float64_sums", 0: "floats"}[bits]


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_elements_of_sequences_for_which_float32_suffices(name: str):
    """And of the last one, of which a product overflows and the first sums do not."""
    pairs = [(0, 1), (-3, 0.5), (1, -(2**-10)), (-0.0, -0.0), (-0.0, 0.0)]
    info = ml_dtypes.finfo(name)
    largest = 2.0 ** (int(info.maxexp) - 1)
    pairs += [(float(info.tiny), float(info.tiny)), (-1.5 * largest, largest)]
    for start, delta in pairs:
        result = jax.jit(functools.partial(fill_value_sequence, (3, 5), name))(
            jnp.asarray(start, name), jnp.asarray(delta, name)
        )
        expected = reference.fill_value_sequence((3, 5), name, start, delta)
        assert_same_bits(result, expected)


@pytest.mark.usefixtures("_cuda_rounding")
@PLATFORMS
def test_a_tiny_start_decides_ties_of_bfloat16(platform: str):
    """3 * 129 is between two of its values, and the sum in float64 is the same."""
    dtype = dtype_of("bfloat16")
    delta, positions = dtype.type(129), [3, 5, 6, 7]
    starts = [dtype.type(sign * 2.0**-60) for sign in (1, -1)]
    cases = [(start, delta, positions) for start in starts]
    assert_correctly_rounded(dtype, platform, cases)


Edges = Iterator[tuple[float, int, list[int]]]


def ties_beside_a_tiny_start() -> Edges:
    """The product is a tie and has all of 52 bits; the start decides it."""
    for factor in range(2**24 - 2, 2**24 - 42, -4):
        for start in (2.0**-30, -(2.0**-30), 0.0):
            yield start, factor, [3 * 2**26]


def sums_of_53_bits() -> Edges:
    """One bit from a tie, where the sum of equal signs is the largest possible."""
    for factor in range(2**24 - 1, 2**24 - 401, -2):
        for start, tie in ((2**53 - 2**29, 0), (2**53 - 2**30, 2**29)):
            inverse = pow(factor, -1, 2**30)
            positions = [(tie + one) * inverse % 2**30 for one in (1, -1)]
            yield start, factor, [k for k in positions if k < 2**28]


def cancellation_by_the_last_element() -> Edges:
    for start in (2**28, 2**28 + 32, 2**29, 2**29 + 64):
        yield start, -1, [2**28 - 1, 2**28 - 2]


@PLATFORMS
@pytest.mark.parametrize(
    "edge",
    [ties_beside_a_tiny_start, sums_of_53_bits, cancellation_by_the_last_element],
)
def test_edges_of_the_precision_of_float64(edge: Callable[[], Edges], platform: str):
    cases = [
        (np.float32(sign * start), np.float32(sign * delta), positions)
        for start, delta, positions in edge()
        for sign in (1, -1)
        if positions
    ]
    assert len(cases) >= 8
    assert_correctly_rounded(np.dtype("float32"), platform, cases)


@pytest.mark.parametrize("bits", [7, 8, 9])
def test_sums_of_float16_next_to_ties(bits: int):
    """float32 has all bits of the products if their last one is 2^-7 or more."""
    delta, last_bit = 2.0 ** (10 - bits) + 2.0**-bits, 2.0**-bits
    sums = {k: k * delta - 65504 for k in range(int(2**17 / delta))}
    positions = [
        k
        for k, x in sums.items()
        if 2**13 <= abs(x) < 65520
        # The last bit of a float16 near x is a power of two, and half of it decides.
        and abs(abs(x) % (ulp := 2.0 ** (math.frexp(x)[1] - 11)) - ulp / 2) == last_bit
    ]
    assert len(positions) >= 4
    positions += [0, 1, 2**24 - 1]
    cases = [
        (np.float16(sign * -65504), np.float16(sign * delta), positions)
        for sign in (1, -1)
    ]
    assert_correctly_rounded(np.dtype("float16"), "cpu", cases)


FORMULATIONS = [
    *[
        ("float32", (6,)),
        ("float16", (3, 6)),
        ("bfloat16", (6,)),
        ("float8_e5m2", (8,)),
    ],
    *[("float4_e2m1fn", (8,)), ("int8", (8,)), ("int4", (8,)), ("float32", (2**28,))],
]


@pytest.mark.parametrize(
    ("name", "sizes"), default_of(FORMULATIONS, FORMULATIONS[1], FORMULATIONS[5])
)
def test_formulation_of_each_platform(name: str, sizes: tuple[int, ...]):
    """CPUs and GPUs compute in float64, and TPUs do not."""
    scalar = jax.ShapeDtypeStruct((), dtype_of(name))
    fill = jax.jit(functools.partial(fill_value_sequence, sizes, dtype_of(name)))
    for platform in ("cpu", "cuda", "rocm", "tpu"):
        traced = fill.trace(scalar, scalar)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("f64" in text) == (name in DTYPES and platform != "tpu")
        # The barrier keeps threads from recomputing the scalars.
        barrier = re.search(r"optimization_barrier \S+ : tensor<\d+xui64>", text)
        assert (barrier is not None) == ("f64" in text)


@pytest.mark.parametrize("count", [2**28, 2**32 + 5])
def test_around_the_last_positions_of_float64(count: int):
    """Only a few elements are computed: XLA fuses the slice into the fill."""
    start, delta = np.float32(0.3), np.float32(-1.7)
    tail = jax.jit(lambda *v: fill_value_sequence((count,), "float32", *v)[-7:])
    assert ("f64" in tail.lower(start, delta).as_text()) == (count <= 2**32)
    positions = range(count - 7, count)
    expected = [reference._multiply_add(k, delta, start) for k in positions]
    assert_same_bits(tail(start, delta), np.array(expected))


@pytest.mark.exhaustive  # a GiB
@pytest.mark.parametrize("start", [0.3, 2.0**70], ids=["blocks", "integers"])
def test_blocks_in_a_whole_fill(start: float):
    first, delta, count = np.float32(start), np.float32(-1.7), 2**28 + 5
    y = fill_value_sequence((count,), "float32", first, delta)
    positions = [*range(7), 2**27 - 1, 2**27, 2**27 + 1, *range(count - 7, count)]
    expected = [reference._multiply_add(k, delta, first) for k in positions]
    assert_same_bits(y[np.array(positions)], np.array(expected))


def test_formulation_beyond_the_precision_of_float64():
    scalar = jax.ShapeDtypeStruct((), np.float32)
    for count, is_in_blocks in ((2**28 + 1, True), (2**32, True), (2**32 + 1, False)):
        fill = functools.partial(fill_value_sequence, (count,), "float32")
        text = jax.jit(fill).lower(scalar, scalar).as_text()
        assert ("stablehlo.case" in text) == is_in_blocks
        text = jax.jit(jax.vmap(fill)).lower(*[jnp.ones(2, "float32")] * 2).as_text()
        assert "stablehlo.case" not in text
