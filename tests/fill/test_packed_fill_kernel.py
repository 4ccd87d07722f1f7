"""The kernel that stores a fill in chunks: its results, and who gets it."""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.extend.core
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from chunks import WAYS, Compile, compiler
from dtypes import dtype_of, needs_x64
from formulations import text_for, text_for_cuda
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax import fill_value_constant, fill_value_sequence, reference
from dml_jax._fill import api, primitive
from dml_jax._fill import packed_fill_kernel as kernel
from dml_jax._shared import jax_versions

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32"]
FLOATS = ["bfloat16", "float16", "float32"]
SIZES = [(1,), (7,), (5, 37), (4, 4096), (8193,)]
EDGES = [
    (3, 1.5),
    (-7.25, 1e-3),
    (0.1, 0.3),
    (0.0, -0.0),
    (-0.0, -0.0),
    (1e30, 1.0),
    (np.inf, -1.0),
    (1.0, np.inf),
    (np.nan, 1.0),
    (65504, 0.5),
]
SUBNORMAL = (1e-39, 3e-40)


@pytest.fixture(params=WAYS)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    return compiler(request.param, monkeypatch)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, sizes: tuple[int, ...], compiled: Compile):
    dtype = dtype_of(name)
    info = np.iinfo(dtype)
    for pair in ((3, 7), (info.max, 1), (info.min, info.max), (5, 0)):
        start, delta = (np.array(value, dtype) for value in pair)
        y = compiled(functools.partial(kernel.fill, "integers", sizes))(start, delta)
        expected = reference.fill_value_sequence(sizes, dtype, start, delta)
        assert_same_bits(y, expected)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str, sizes: tuple[int, ...], compiled: Compile):
    dtype = dtype_of(name)
    # XLA computes the first elements, and flushes them on a CPU.
    for pair in [*EDGES, SUBNORMAL] if compiled is jax.jit else EDGES:
        with np.errstate(over="ignore"):
            start, delta = (np.array(value, dtype) for value in pair)
        y = compiled(functools.partial(kernel.fill, "floats", sizes))(start, delta)
        expected = reference.fill_value_sequence(sizes, dtype, start, delta)
        assert_same_floats(y, expected)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("bits", [0, 1, 0x7FA1FFA1, 0xFFC1FF81], ids=hex)
@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS])
def test_constants_keep_every_bit(name: str, bits: int, compiled: Compile):
    dtype = dtype_of(name)
    value = np.array([bits], "<u4").view(dtype)[0]
    y = compiled(functools.partial(kernel.fill, "constant", (5, 37)))(value)
    assert_same_bits(y, np.full((5, 37), value, dtype))


# Which programs get it ----------------------------------------------------------------


MANY = 2**20
CHOSEN = {
    "bytes": ("integers", (MANY,), "uint8", True),
    "bytes-everywhere": ("constant", (MANY,), "int8", True),
    "odd-bytes": ("integers", (MANY + 1,), "int8", True),
    "few-bytes": ("integers", (MANY - 1,), "uint8", False),
    "halves": ("floats", (MANY,), "bfloat16", False),
    "odd-halves": ("floats", (5, 300001), "bfloat16", True),
    "even-halves": ("floats", (MANY + 2,), "float16", True),
    "odd-halves-everywhere": ("constant", (MANY + 1,), "float16", True),
    "constant-halves": ("constant", (MANY,), "bfloat16", True),
    "words": ("floats", (MANY,), "float32", True),
    "few-words": ("constant", (MANY - 4,), "float32", False),
    "odd-words": ("floats", (MANY + 1,), "float32", True),
    "odd-words-beyond-float64": ("floats", (2**28 + 1,), "float32", False),
    "odd-integers": ("integers", (MANY + 1,), "uint32", True),
    "odd-integers-beyond-2-gigabytes": ("integers", (2**29 + 1,), "int32", False),
    "odd-doubles": ("floats", (MANY + 1,), "float64", False),
    "odd-booleans": ("constant", (MANY + 1,), "bool", False),
    "odd-float8": ("floats", (MANY + 1,), "float8_e4m3fn", False),
    "components": ("components", (MANY + 1,), "float32", False),
    "tangents": ("tangent", (MANY + 1,), "float32", False),
}


def takes_kernel(fill: Callable[..., Any], *scalars: Any, **options: Any) -> bool:
    return "mosaic_gpu" in text_for_cuda(fill, *scalars, **options)


@pytest.mark.parametrize("are_hoppers", [True, False])
@pytest.mark.parametrize("name", CHOSEN)
def test_who_gets_the_kernel(name: str, are_hoppers: bool):
    kind, sizes, dtype, is_chosen = CHOSEN[name]
    scalars = [np.ones((), dtype_of(dtype))] * (1 if kind == "constant" else 2)
    is_chosen = is_chosen and are_hoppers and jax_versions._SUPPORTS_MOSAIC
    with jax.enable_x64(needs_x64(dtype_of(dtype))):
        for standalone in (False, True):
            fill = functools.partial(primitive.fill, kind, sizes, standalone)
            chosen = takes_kernel(fill, *scalars, are_hoppers=are_hoppers)
            assert chosen == (is_chosen and standalone)


def test_mapped_fills_do_not_get_the_kernel():
    fill = functools.partial(primitive.fill, "integers", (MANY,), True)
    scalars = np.arange(3, dtype=np.uint8)
    assert not takes_kernel(jax.vmap(fill), scalars, scalars)


STANDALONE = functools.partial(primitive.fill, "integers", (MANY,), True)


@pytest.mark.skipif(not jax_versions._SUPPORTS_MOSAIC, reason="it has no kernels")
def test_programs_that_xla_partitions_do_not_get_the_kernel():
    scalars = [np.ones((), np.uint8)] * 2
    with mock.patch.object(jax_versions, "runs_mosaic", return_value=True):
        exported = jax.export.export(jax.jit(STANDALONE), platforms=["cuda"])
        assert "mosaic_gpu" not in exported(*scalars).mlir_module()
        mesh = jax.sharding.AbstractMesh((2,), ("i",))
        replicated = jax.ShapeDtypeStruct(
            (), np.uint8, sharding=NamedSharding(mesh, PartitionSpec())
        )
        for platform, operands, is_chosen in (
            ("cuda", scalars, True),
            ("cuda", [replicated] * 2, False),
            ("rocm", scalars, False),
        ):
            text = text_for(platform, STANDALONE, *operands).as_text()
            assert ("mosaic_gpu" in text) == is_chosen


def test_calls():
    y = fill_value_constant((MANY + 1,), "uint8", 7)
    assert_same_bits(y, np.full(MANY + 1, 7, np.uint8))
    integers = 3 + 5 * np.arange(MANY + 1)
    floats = integers.astype(np.float32)  # exact
    for name, values in (("int8", integers), ("float32", floats), ("bfloat16", floats)):
        y = fill_value_sequence((MANY + 1,), name, 3, 5)
        assert_same_bits(y, values.astype(dtype_of(name)))


@pytest.fixture
def standalone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each fill that is called or traced, whether it is standalone."""
    seen = []

    def recorded(core: Callable[..., jax.Array], *scalars: Any, **options: Any):
        seen.append(options["standalone"])
        return core(*scalars, **options)

    for name in ("_constant", "_sequence"):
        core = getattr(api, name)
        monkeypatch.setattr(api, name, functools.partial(recorded, core))
    return seen


@pytest.mark.parametrize("is_first", [True, False], ids=["at-first", "after-a-trace"])
def test_calls_are_standalone(is_first: bool, standalone: list[bool]):
    jax_versions._trace_states.cache_clear()
    if not is_first:
        jax.make_jaxpr(lambda: fill_value_constant((2, 3), "uint8", 7))()
        assert not standalone.pop()
    fill_value_constant((2, 3), "uint8", 7)
    fill_value_sequence((2, 3), "float32", 1, 2)
    assert standalone == [hasattr(jax.extend.core, "get_opaque_trace_state")] * 2


def test_fills_in_transformations_are_not_standalone(standalone: list[bool]):
    def sequence(start: Any) -> jax.Array:
        return fill_value_sequence((2, 4), "float32", start, 2)

    def of_numbers(x: Any) -> jax.Array:
        return x + fill_value_sequence((2, 5), "float32", 1, 2)

    jax.jit(sequence)(1.0)
    jax.vmap(sequence)(np.ones(3, np.float32))
    jax.jvp(sequence, (1.0,), (1.0,))
    jax.jit(of_numbers)(1.0)
    assert standalone == [False] * 4
