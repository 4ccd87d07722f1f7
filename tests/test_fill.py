"""Fills: correct rounding for every dtype, position and size; modular integers."""

import functools
import math
import re

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from test_dtypes import FLOATS, INTEGERS, dtype_of

from dml_jax import fill_value_constant, fill_value_sequence, reference

SEQUENCE_FLOATS = [name for name in FLOATS if name != "float8_e8m0fnu"]


def needs_x64(dtype):
    return dtype.itemsize == 8 and dtype != np.complex64


# Floats -------------------------------------------------------------------------------


def random_value(random, dtype):
    """A value of any magnitude that the dtype has, now and then a special one."""
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


def cancelling_start(random, dtype, delta, count):
    """A start for which the sequence passes zero, or nearly does."""
    middle = random.choice([count // 2, count // 2 + 0.5, count / 3, count - 1])
    with np.errstate(over="ignore", invalid="ignore"):
        return dtype.type(-float(delta) * middle)


@pytest.mark.parametrize("name", SEQUENCE_FLOATS)
@pytest.mark.parametrize("cancelling", [False, True], ids=["any", "cancelling"])
def test_random_sequences_are_correctly_rounded(name, cancelling):
    dtype = dtype_of(name)
    random = np.random.default_rng(len(name))
    count = 300
    with jax.enable_x64(needs_x64(dtype)):
        for _ in range(100):
            start, delta = (random_value(random, dtype) for _ in range(2))
            if cancelling:
                start = cancelling_start(random, dtype, delta, count)
            result = fill_value_sequence((count,), dtype, start, delta)
            expected = reference.fill_value_sequence((count,), dtype, start, delta)
            assert_same_floats(result, expected)


def exact_in_float64(count, dtype, start, delta):
    """The sequence for at most 32-bit floats, fast enough for millions of elements.

    k * delta has at most 49 bits and is exact in float64. The sum is rounded to odd
    there, which has more than enough bits for it to be rounded once more.
    """
    product = np.arange(count, dtype=np.float64) * np.float64(delta)
    start = np.float64(start)
    total = start + product
    part = total - start
    error = (start - (total - part)) + (product - part)
    total = to_odd(total, error)
    if dtype == jnp.bfloat16:  # ml_dtypes goes by way of float32
        single = total.astype(np.float32)
        total = to_odd(single, (total - single).astype(np.float32))
    with np.errstate(over="ignore"):
        return total.astype(dtype)


def to_odd(rounded, error):
    """What `rounded`, the float nearest to a sum, is when the sum is rounded to odd."""
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
@pytest.mark.parametrize("count", [10**4, 10**6, 2**24 + 2**12])
def test_long_sequences_are_correctly_rounded(name, count, case):
    dtype = dtype_of(name)
    start, delta = LONG_CASES[case]
    delta = dtype.type(delta)
    start = dtype.type(-(count // 2) * float(delta) if start is None else start)
    result = fill_value_sequence((count,), dtype, start, delta)
    assert_same_bits(result, exact_in_float64(count, dtype, start, delta))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_the_fast_oracle_equals_the_reference(name):
    dtype = dtype_of(name)
    for start, delta in [*LONG_CASES.values()][:4]:
        start, delta = dtype.type(start), dtype.type(delta)
        assert_same_bits(
            exact_in_float64(3000, dtype, start, delta),
            reference.fill_value_sequence((3000,), dtype, start, delta),
        )


@pytest.mark.parametrize("name", SEQUENCE_FLOATS)
def test_positions_beyond_one_word(name):
    """The positions of a tensor beyond 2^32 elements, without making the tensor."""
    from dml_jax import _rounding

    dtype = dtype_of(name)
    random = np.random.default_rng(7)
    with jax.enable_x64(needs_x64(dtype)):
        for limit in (2**24, 2**32, 2**40, 2**48):
            words, bits = _rounding.words_of_index(dtype, limit)
            index = [0, 1, limit - 1, limit // 3, *random.integers(0, limit, 40)]
            for delta in (0.37, -1.5e-5, 3.0):
                delta = dtype.type(delta)
                middle = index[random.integers(0, len(index))]
                with np.errstate(over="ignore"):
                    start = dtype.type(-float(delta) * int(middle))
                mask = 2**bits - 1
                split = [
                    jnp.array(
                        [(int(k) >> (bits * i)) & mask for k in index],
                        "uint64" if bits == 64 else "uint32",
                    )
                    for i in range(words)
                ]
                multiply_add = jax.jit(
                    functools.partial(
                        _rounding.multiply_add, index_bits=limit.bit_length()
                    )
                )
                expected = [
                    reference._multiply_add(int(k), delta, start) for k in index
                ]
                assert_same_floats(
                    multiply_add(split, delta, start), np.array(expected, dtype)
                )


# Float64 ------------------------------------------------------------------------------

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


def assert_elements_by_way_of_float64(dtype, flushes, cases):
    """Compares elements of sequences without making so long tensors."""
    from dml_jax import _double

    @jax.jit
    def elements(positions, start, delta):
        sequence = _double.prepare(start, delta, flushes)
        return _double.element(sequence, positions, dtype, flushes)

    for start, delta, positions in cases:
        actual = np.asarray(elements(np.asarray(positions, np.uint32), start, delta))
        expected = np.array(
            [reference._multiply_add(int(k), delta, start) for k in positions], dtype
        )
        if not flushes:  # but this CPU does
            is_normal = abs(expected.astype(np.float64)) >= 2.0**-126
            actual, expected = actual[is_normal], expected[is_normal]
        assert_same_floats(actual, expected)


BOTH_WAYS = pytest.mark.parametrize("flushes", [False, True], ids=["gpu", "cpu"])


@BOTH_WAYS
@pytest.mark.parametrize("name", DOUBLES)
def test_adversarial_sequences_by_way_of_float64(name, flushes):
    from dml_jax import _double

    dtype = dtype_of(name)
    limit = 2 ** double_positions(dtype)
    assert _double.suffices(dtype, limit)
    assert not _double.suffices(dtype, limit + 1)
    random = np.random.default_rng(11)
    pairs = [adversarial_pair(random, dtype) for _ in range(200)]
    cases = [(*p, adversarial_positions(random, *p, limit)) for p in pairs]
    assert_elements_by_way_of_float64(dtype, flushes, cases)


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


@BOTH_WAYS
@pytest.mark.parametrize(
    "edge",
    [ties_beside_a_tiny_start, sums_of_53_bits, cancellation_by_the_last_element],
)
def test_edges_of_what_float64_does(edge, flushes):
    cases = [
        (np.float32(sign * start), np.float32(sign * delta), positions)
        for start, delta, positions in edge()
        for sign in (1, -1)
        if positions
    ]
    assert len(cases) >= 8
    assert_elements_by_way_of_float64(np.dtype("float32"), flushes, cases)


WIDE = ["float32", "float64", "int32", "uint64", "complex64"]
NARROW = ["float16", "bfloat16", "float8_e4m3fn", "int8", "uint16"]
OTHERS = ["bool", "int4", "float4_e2m1fn"]


def gpu_fill(way, sizes, dtype):
    """What a GPU computes where nothing divides the program."""
    from dml_jax import _fill_primitive

    return jax.jit(_fill_primitive._formulation(way, sizes, dtype, "gpu", True))


@pytest.mark.parametrize(
    "sizes",
    [(8,), (64,), (8, 8), (3, 32, 5), (2, 3, 64), (5, 0)],
    ids=str,
)
@pytest.mark.parametrize("name", WIDE + NARROW + OTHERS)
def test_what_a_gpu_computes(name, sizes, monkeypatch):
    """In words of several elements, and in four parts where these divide the fill."""
    from dml_jax import _fill_formulations

    monkeypatch.setattr(_fill_formulations, "_WORTHWHILE", 0)
    dtype = dtype_of(name)
    with jax.enable_x64(needs_x64(dtype)):
        start, delta = (np.array(value).astype(dtype) for value in (3, 1))
        result = gpu_fill("constant", sizes, dtype)(start)
        assert_same_bits(result, np.full(sizes, start, dtype))
        if name in ("bool", "complex64"):
            return
        way = "floats" if name in FLOATS else "integers"
        result = gpu_fill(way, sizes, dtype)(start, delta)
        expected = reference.fill_value_sequence(sizes, dtype, start, delta)
        assert_same_bits(result, expected)


@pytest.mark.parametrize("name", NARROW)
def test_constants_in_words_keep_every_bit(name):
    dtype = dtype_of(name)
    code = np.dtype(f"uint{8 * dtype.itemsize}")
    random = np.random.default_rng(5)
    for bits in random.integers(0, np.iinfo(code).max, 50, endpoint=True, dtype=code):
        value = np.asarray(bits).view(dtype)
        result = gpu_fill("constant", (3, 8), dtype)(jnp.asarray(value))
        assert (np.asarray(result).view(code) == bits).all()


@pytest.mark.parametrize(
    ("name", "sizes", "stores"),
    [
        ("float32", (2**20,), (1, 0)),
        ("float32", (2**20 - 16,), (1, None)),
        ("float32", (2**20 + 8,), (1, None)),
        ("float32", (2**20 + 7,), (1, 0)),
        ("float32", (3, 2**19), (1, 1)),
        ("float32", (2,) * 20, (1, None)),
        ("complex64", (2**20,), (1, None)),
        ("int32", (1025, 1040), (1, 1)),
        ("float16", (2**20,), (2, 0)),
        ("float16", (1025, 1032), (2, None)),
        ("float16", (1025, 1056), (2, 1)),
        ("float16", (2**10, 1025), (1, None)),
        ("uint8", (3, 8, 2**17), (4, 1)),
        ("bool", (2**20,), (1, None)),
        ("int4", (2**20,), (1, None)),
    ],
    ids=str,
)
def test_how_a_gpu_stores(name, sizes, stores):
    """The elements of a word, and the dimension along which the quarters lie."""
    from dml_jax import _fill_formulations

    dtype = dtype_of(name)
    assert _fill_formulations.stores_of_gpu(sizes, dtype, True) == stores
    assert _fill_formulations.stores_of_gpu(sizes, dtype, False) == (1, None)


def cuda_text(function, *arguments, **options):
    traced = jax.jit(function, **options).trace(*arguments)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("name", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("fill", [fill_value_constant, fill_value_sequence])
def test_quarters_are_for_large_fills_that_nothing_divides(fill, name):
    def run(sizes, **options):
        values = [jax.ShapeDtypeStruct((), dtype_of(name))] * arity
        return cuda_text(functools.partial(fill, sizes, name), *values, **options)

    arity = 1 if fill is fill_value_constant else 2
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((8,), ("i",), axis_types=auto)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    assert run((2**21,)).count("stablehlo.concatenate") == 1
    assert run((2**19,)).count("stablehlo.concatenate") == 0
    divided = run((2**21,), out_shardings=sharding)
    assert divided.count("stablehlo.concatenate") == 0
    in_shard_map = jax.shard_map(
        functools.partial(fill, (2**21,), name),
        mesh=mesh,
        in_specs=(jax.sharding.PartitionSpec(),) * arity,
        out_specs=jax.sharding.PartitionSpec(),
    )
    values = [jax.ShapeDtypeStruct((), dtype_of(name))] * arity
    assert cuda_text(in_shard_map, *values).count("stablehlo.concatenate") == 1
    assert run((2**21,)).count("stablehlo.optimization_barrier") == int(
        arity == 1 or name != "uint8"
    )


def test_a_complex_sequence_is_computed_without_quarters():
    scalar = jax.ShapeDtypeStruct((), np.complex64)
    fill = functools.partial(fill_value_sequence, (2**21,), "complex64")
    assert "stablehlo.concatenate" not in cuda_text(fill, scalar, scalar)


@pytest.mark.parametrize("name", ["int32", "float32"])
def test_nested_vmaps_of_different_scalars(name):
    call = functools.partial(fill_value_sequence, (2, 8), name)
    starts, deltas = np.arange(3).astype(name), np.arange(12).reshape(4, 3).astype(name)
    expected = [[call(*v) for v in zip(starts, row, strict=True)] for row in deltas]
    mapped = jax.vmap(jax.vmap(call), (None, 0))
    assert_same_bits(mapped(starts, deltas), np.array(expected))
    mapped = jax.vmap(jax.vmap(call, (0, None)), (None, 0), out_axes=-1)
    expected = [[call(start, delta) for start in starts] for delta in deltas[0]]
    assert_same_bits(mapped(starts, deltas[0]), np.moveaxis(np.array(expected), 0, -1))


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


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_sequences(name):
    with jax.enable_x64(name == "complex128"):
        arguments = ((7, 3), name, 0.1 - 5j, -0.3 + 0.25j)
        expected = reference.fill_value_sequence(*arguments)
        assert_same_bits(fill_value_sequence(*arguments), expected)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("start", [0.0, -0.0, np.inf, np.nan, 1.0])
@pytest.mark.parametrize("delta", [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
def test_special_values_as_ieee_has_them(name, start, delta):
    dtype = dtype_of(name)
    result = np.asarray(fill_value_sequence((3,), dtype, start, delta))
    with np.errstate(invalid="ignore"):
        expected = (start + np.arange(3) * delta).astype(dtype)
    assert_same_floats(result, expected)


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (2, 0, 3), (5, 7), (3, 1, 4, 2)])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "uint8"])
def test_order_is_row_major(sizes, name):
    dtype = dtype_of(name)
    result = fill_value_sequence(sizes, dtype, 3, 1)
    expected = (3 + np.arange(math.prod(sizes))).reshape(sizes).astype(dtype)
    assert_same_bits(result, expected)


def test_eager_jit_and_vmap_agree_where_contraction_would_show():
    """start + k * delta at a zero crossing differs by millions of ulp under an FMA."""
    count, delta = 10**4, np.float32(0.1)
    starts = np.float32(-5000) * delta + np.arange(3, dtype=np.float32)
    call = functools.partial(fill_value_sequence, (count,), "float32")
    eager = np.stack([call(start, delta) for start in starts])
    assert_same_bits(jax.jit(jax.vmap(call, (0, None)))(starts, delta), eager)
    assert_same_bits(jax.vmap(call, (0, None))(starts, delta), eager)


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sign", [1, -1])
def test_overflow_is_infinite(name, sign):
    dtype = dtype_of(name)
    largest = sign * ml_dtypes.finfo(dtype).max
    with jax.enable_x64(name == "float64"):
        result = fill_value_sequence((3,), dtype, largest, largest)
        expected = reference.fill_value_sequence((3,), dtype, largest, largest)
    assert_same_bits(result, expected)
    assert np.isinf(expected[1:].astype(np.float64)).all()


# Values -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEQUENCE_FLOATS)
def test_python_numbers_are_rounded_once_to_the_nearest_value(name):
    dtype = dtype_of(name)
    random = np.random.default_rng(3)
    info = ml_dtypes.finfo(dtype)
    with jax.enable_x64(needs_x64(dtype)):
        for _ in range(200):
            value = float(random.uniform(-1, 1) * 2.0 ** random.integers(-3, 3))
            # Just off a tie: a second rounding, by way of float32, would show.
            near = float(reference.nearest(value, dtype))
            ulp = 2.0 ** (math.frexp(near or 1.0)[1] - 1 - int(info.nmant))
            for number in (value, near + ulp / 2 + ulp * 2**-40, near + ulp / 2):
                if abs(number) <= float(info.max):
                    result = fill_value_constant((), dtype, number)
                    assert_same_bits(result, np.array(reference.nearest(number, dtype)))


def test_large_python_ints_are_rounded_once():
    value = 2**80 + 2**56 + 1  # just above a tie of float32, but not in float64
    assert fill_value_constant((), "float32", value) == np.float32(2**80 + 2**57)


def test_weak_and_matching_scalars_are_taken_as_they_are():
    @jax.jit
    def fills(start, delta):
        return (
            fill_value_sequence((3,), "bfloat16", start, delta),
            fill_value_sequence((3,), "float32", start, jnp.float32(delta)),
        )

    low, single = fills(1.0, 0.5)
    assert low.tolist() == single.tolist() == [1.0, 1.5, 2.0]
    assert jax.jit(lambda d: fill_value_sequence((2, 2), "uint8", 10, d))(
        -2
    ).tolist() == [[10, 8], [6, 4]]


# Integers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_modulo_their_width(name):
    dtype = dtype_of(name)
    info = jnp.iinfo(dtype)
    with jax.enable_x64(dtype.itemsize == 8):
        unsigned = 2**info.bits - 1
        for start in (0, 1, info.min, info.max, unsigned):
            for delta in (0, 1, -1, info.min, info.max, unsigned):
                result = fill_value_sequence((3, 100), dtype, start, delta)
                expected = reference.fill_value_sequence((3, 100), dtype, start, delta)
                assert_same_bits(result, expected)


# Derivatives --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_derivatives_are_exact(name):
    dtype = dtype_of(name)
    one = jnp.ones((), dtype)
    call = functools.partial(fill_value_sequence, (50, 2), dtype)
    _, by_start = jax.jvp(lambda s: call(s, one), (one,), (one,))
    _, by_delta = jax.jvp(lambda d: call(one, d), (one,), (one,))
    assert_same_bits(by_start, jnp.ones((50, 2), dtype))
    assert_same_bits(by_delta, call(0, 1))
    cotangent = jnp.asarray(np.arange(100).reshape(50, 2) % 5, dtype)
    start, delta = jax.vjp(call, one, one)[1](cotangent)
    assert start == np.sum(np.arange(100) % 5).astype(dtype)
    assert delta == np.sum(np.arange(100) * (np.arange(100) % 5)).astype(dtype)


def test_derivative_by_delta_beyond_the_range_of_float16():
    """At k = 70000 the derivative overflows float16; a small tangent does not."""
    call = functools.partial(fill_value_sequence, (70001,), "float16")
    half = jnp.float16(0)
    _, tangent = jax.jvp(lambda d: call(half, d), (half,), (jnp.float16(2**-10),))
    assert tangent[-1] == np.float16(70000 * 2**-10)


def test_complex_derivatives():
    def loss(start, delta):
        return jnp.sum(fill_value_sequence((4,), "complex64", start, delta) ** 2)

    start, delta = jnp.complex64(1 + 2j), jnp.complex64(0.5 - 1j)
    k = jnp.arange(4, dtype=jnp.complex64)
    by_start, by_delta = jax.grad(loss, (0, 1), holomorphic=True)(start, delta)
    assert by_start == jnp.sum(2 * (start + k * delta))
    assert by_delta == jnp.sum(2 * k * (start + k * delta))


# Size ---------------------------------------------------------------------------------


def test_a_fill_compiles_to_one_loop_without_operands():
    def fill(start, delta):
        return fill_value_sequence((512, 1024), "float32", start, delta)

    text = jax.jit(fill).lower(jnp.float32(1), jnp.float32(2)).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert entry.count("f32[512,1024]") <= 3  # the signature, the root, its fusion


@pytest.mark.parametrize("sizes", [(2**16, 2**17), (2**33 + 5,)], ids=["2d", "1d"])
def test_beyond_2_to_the_32_elements_the_slice_is_right(sizes):
    """Only a few elements are computed: XLA fuses the slice into the fill."""
    total = math.prod(sizes)
    offset = total - 7

    @jax.jit
    def tail(start, delta):
        integers = fill_value_sequence(sizes, "uint32", 5, 3).reshape(-1)
        floats = fill_value_sequence(sizes, "float32", start, delta).reshape(-1)
        return integers[-7:], floats[-7:]

    integers, floats = tail(np.float32(-1e9), np.float32(0.1))
    expected = [(5 + 3 * k) % 2**32 for k in range(offset, total)]
    assert_same_bits(integers, np.array(expected, np.uint32))
    expected = [
        reference._multiply_add(k, np.float32(0.1), np.float32(-1e9))
        for k in range(offset, total)
    ]
    assert_same_bits(floats, np.array(expected))


def test_a_cpu_prepares_its_scalars_once():
    """Not in every turn of the loop, whose threads have unequal shares here."""
    size = 2**14 + 1
    fill = jax.jit(functools.partial(fill_value_sequence, (size,), "float32"))
    with jax.default_device(jax.devices("cpu")[0]):
        text = fill.lower(np.float32(1), np.float32(2)).compile().as_text()
    computations = re.split(r"\n(?=%|ENTRY)", text)
    (loop,) = [
        computation
        for computation in computations
        if re.search(rf"ROOT \S+ = f32\[{size}\]", computation)
        and not computation.startswith("ENTRY")
    ]
    assert "divide(" not in loop
    assert "divide(" in text
