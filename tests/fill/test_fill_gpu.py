"""What a GPU computes for a fill: words of several elements, and quarters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from dtypes import FLOATS, dtype_of, needs_x64

from dml_jax import fill_value_constant, fill_value_sequence, reference

WIDE = ["float32", "float64", "int32", "uint64", "complex64"]
NARROW = ["float16", "bfloat16", "float8_e4m3fn", "int8", "uint16"]
OTHERS = ["bool", "int4", "float4_e2m1fn"]


def gpu_fill(way, sizes, dtype):
    """What a GPU computes where nothing divides the program."""
    from dml_jax._fill import primitive

    # Of the two kinds of GPU, that whose rounding a CPU has, too.
    return jax.jit(primitive._formulation(way, sizes, dtype, "rocm", True))


@pytest.mark.parametrize(
    "sizes",
    [(8,), (64,), (8, 8), (3, 32, 5), (2, 3, 64), (5, 0)],
    ids=str,
)
@pytest.mark.usefixtures("nans_are_data")  # which float8_e4m3fn overflows to
@pytest.mark.parametrize("name", WIDE + NARROW + OTHERS)
def test_what_a_gpu_computes(name, sizes, monkeypatch):
    """In words of several elements, and in four parts where these divide the fill."""
    from dml_jax._fill import gpu

    monkeypatch.setattr(gpu, "_WORTHWHILE", 0)
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


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("name", NARROW)
def test_constants_in_words_keep_every_bit(name):
    dtype = dtype_of(name)
    code = np.dtype(f"uint{8 * dtype.itemsize}")
    random, fill = np.random.default_rng(5), gpu_fill("constant", (3, 8), dtype)
    for bits in random.integers(0, np.iinfo(code).max, 50, endpoint=True, dtype=code):
        value = np.asarray(bits).view(dtype)
        result = fill(jnp.asarray(value))
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
    from dml_jax._fill import gpu

    dtype = dtype_of(name)
    assert gpu.stores_of_gpu(sizes, dtype, True) == stores
    assert gpu.stores_of_gpu(sizes, dtype, False) == (1, None)


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
