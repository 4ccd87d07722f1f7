"""The parts in which a GPU computes a fill."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from dtypes import dtype_of, needs_x64
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

from dml_jax import fill_value_constant, fill_value_sequence, reference
from dml_jax._fill import gpu, primitive

WIDE = ["float32", "float64", "int32", "uint64", "complex64"]
NARROW = ["float16", "bfloat16", "float8_e4m3fn", "int8", "uint16"]
SIZES = [((3, 32, 5),), ((3, 3, 7),), ((64,),), ((5, 0),)]
OTHERS = ["bool", "int4", "float4_e2m1fn"]


def gpu_fill(kind: str, sizes: tuple[int, ...]):
    """What a GPU computes in a program that XLA does not partition."""
    params = {"platform": "cuda", "is_unpartitioned": True, "vmaps": ()}
    return jax.jit(
        functools.partial(primitive._compute, kind=kind, sizes=sizes, **params)
    )


@pytest.fixture
def always_divided(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "MIN_ELEMENTS", 0)
    monkeypatch.setattr(gpu, "_ALIGNMENT", 4)


@pytest.mark.usefixtures("always_divided")
def test_known_subnormal_constants():
    """XLA may take two constants for the same if they differ only as subnormals."""
    values = np.arange(3, dtype=np.uint32).view(np.float32)
    fills = jax.jit(lambda: [gpu_fill("constant", (64,))(value) for value in values])()
    for fill, value in zip(fills, values, strict=True):
        assert_same_bits(fill, np.full(64, value))


@pytest.mark.usefixtures("always_divided", "nans_are_data")  # NaNs by overflow
@pytest.mark.parametrize("sizes", default_of(SIZES, *SIZES[:2]), ids=str)
@pytest.mark.parametrize(
    "name",
    default_of(WIDE + NARROW + OTHERS, "float32", "complex64", "bfloat16", "int8"),
)
def test_gpu_formulations_equal_the_reference(name: str, sizes: tuple[int, ...]):
    dtype = dtype_of(name)
    with jax.enable_x64(needs_x64(dtype)):
        start, delta = (np.array(value).astype(dtype) for value in (3, 1))
        result = gpu_fill("constant", sizes)(start)
        assert_same_bits(result, np.full(sizes, start, dtype))
        if name == "bool":
            return
        result = gpu_fill("sequence", sizes)(start, delta)
        expected = reference.fill_value_sequence(sizes, dtype, start, delta)
        assert_same_bits(result, expected)


@pytest.mark.parametrize(
    ("name", "sizes", "bounds"),
    [
        ("float32", (2**20,), (0, 2**18, 2**19, 3 * 2**18, 2**20)),
        ("uint8", (3, 2**19), (0, 393216, 786432, 1179648, 1572864)),
        ("bfloat16", (1025, 1028), (0, 263168, 526336, 789504, 1053700)),
        ("int16", (1025, 1027), (0, 263168, 526336, 789504, 1052675)),
        ("float32", (2**20 - 1,), (0, 2**20 - 1)),
        ("float64", (2**20,), (0, 2**20)),
        ("int4", (2**20,), (0, 2**20)),
        ("float32", (5, 0), (0, 0)),
    ],
    ids=str,
)
def test_bounds_of_parts(name: str, sizes: tuple[int, ...], bounds: tuple[int, ...]):
    assert gpu.part_bounds(sizes, dtype_of(name)) == bounds


def cuda_text(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    traced = jax.jit(function, **options).trace(*arguments)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def parts_of_result(text: str, count: int) -> list[str]:
    """The concatenations to an array of `count` elements; scalars are joined, too."""
    return re.findall(rf"stablehlo.concatenate .* -> tensor<{count}x", text)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("fill", [fill_value_constant, fill_value_sequence])
def test_large_fills_are_split_unless_partitioned(fill: Callable[..., Any], name: str):
    arity = 1 if fill is fill_value_constant else 2
    values = [jax.ShapeDtypeStruct((), dtype_of(name))] * arity
    small, large = (functools.partial(fill, (n,), name) for n in (2**19, 2**21))
    mesh = AbstractMesh((8,), ("i",), axis_types=(AxisType.Auto,))
    of_shards = jax.shard_map(large, mesh=mesh, in_specs=(P(),) * arity, out_specs=P())
    options = {"out_shardings": NamedSharding(mesh, P("i"))}
    assert not parts_of_result(cuda_text(small, *values), 2**19)
    assert not parts_of_result(cuda_text(large, *values, **options), 2**21)
    for function in (large, of_shards):
        text = cuda_text(function, *values)
        assert len(parts_of_result(text, 2**21)) == 1
        # For parts that XLA would merge, and for scalars that threads would recompute.
        has_barrier = fill is fill_value_constant or name != "uint8"
        assert text.count("stablehlo.optimization_barrier") == has_barrier


def test_complex_sequences_are_not_split():
    scalar = jax.ShapeDtypeStruct((), np.complex64)
    fill = functools.partial(fill_value_sequence, (2**21,), "complex64")
    assert not parts_of_result(cuda_text(fill, scalar, scalar), 2**21)
