"""The kernel for lines side by side, on a GPU that takes it; who gets it, anywhere."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits

from dml_jax import reference, reverse_subsequences
from dml_jax._reverse import gpu, shared_memory_kernel
from dml_jax._shared import jax_versions

on_a_gpu = pytest.mark.skipif(
    jax.default_backend() == "cpu", reason="takes a GPU with compute capability 9"
)

# Shape, axis, and the shape of the lengths.
LINES = {
    "columns": ((9, 128), 0, (1, 128)),
    "columns-of-planes": ((2, 3, 7, 64), 2, (2, 3, 1, 64)),
    "shared-lengths": ((5, 7, 64), 1, (1, 1, 64)),
    "three-features": ((300, 64, 3), 0, (1, 64, 1)),
    "two-copies": ((257, 128), 0, (1, 128)),
    "two-copies-of-narrow-rows": ((257, 64), 0, (1, 64)),
    "odd-time": ((2001, 256), 0, (1, 256)),
    "strips-that-overlap": ((31, 144), 0, (1, 144)),
    "narrow-strips": ((5001, 64), 0, (1, 64)),
    "many-blocks": ((70000, 3, 16), 1, (70000, 1, 16)),
    "pairs-of-strips": ((2001, 96), 0, (1, 96)),
    "one-step": ((1, 128), 0, (1, 128)),
}


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch):
    monkeypatch.setattr(gpu, "_WORTHWHILE", 0)


def lines(name, dtype):
    shape, axis, lengths_shape = LINES[name]
    random = np.random.default_rng(0)
    x = random.integers(0, 256, shape).astype(dtype)
    lengths = random.integers(0, shape[axis] + 1, lengths_shape).astype(np.int32)
    lengths.flat[:2] = 0, shape[axis]
    return x, lengths, axis


@on_a_gpu
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "int64"])
@pytest.mark.parametrize("name", LINES)
def test_the_kernel_gives_what_the_reference_gives(name, dtype):
    x, lengths, axis = lines(name, dtype)
    with jax.enable_x64(dtype == "int64"):
        y = jax.jit(functools.partial(gpu.shared_memory_tiles, axis=axis))(x, lengths)
    if dtype == "int64" and name in ("three-features", "narrow-strips"):
        assert y is None  # too many bytes in a step, and in a strip
        return
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, axis))


def text_for_cuda(x, lengths, **options):
    function = functools.partial(reverse_subsequences, **options)
    with jax.checking_leaks():
        traced = jax.jit(function).trace(x, lengths)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.fixture
def _a_gpu_for_it(monkeypatch):
    monkeypatch.setattr(
        jax_versions, "runs_mosaic", lambda: jax_versions._SPEAKS_MOSAIC
    )


CHOSEN = {
    "alone": (((64, 128), "float32"), "standalone", True),
    "clusters": (((2000, 9600), "float32"), "standalone", True),
    "pairs": (((2000, 9600), "uint8"), None, True),
    "odd": (((2001, 9600), "float32"), "standalone", jax_versions.COPIES_ANY_ROWS),
    "odd-by-default": (((2001, 9600), "int16"), None, jax_versions.COPIES_ANY_ROWS),
    "what-the-cache-holds": (((64, 128), "float32"), None, False),
    "what-it-does-not-hold": (((64, 2**18), "float32"), None, True),
    "bytes": (((64, 128), "uint8"), None, True),
    "rows-that-begin-anywhere": (((64, 130), "uint8"), None, False),
    "more-rows-than-fit": (((13000, 128), "uint8"), None, False),
    "booleans": (((64, 128), "bool"), None, False),
}


@pytest.mark.usefixtures("_a_gpu_for_it")
@pytest.mark.parametrize("name", CHOSEN)
def test_who_gets_the_kernel(name):
    x, implementation, is_chosen = CHOSEN[name]
    x = jax.ShapeDtypeStruct(*x)
    lengths = jax.ShapeDtypeStruct((1, x.shape[1]), np.int32)
    text = text_for_cuda(x, lengths, axis=0, implementation=implementation)
    assert ("mosaic_gpu" in text) == (is_chosen and jax_versions._SPEAKS_MOSAIC)


@pytest.mark.parametrize("capabilities", ["9.0", "9.0 9.0", "8.0", "9.0 8.0"])
def test_which_gpus_run_it(capabilities, monkeypatch):
    capabilities = capabilities.split()
    devices = [types.SimpleNamespace(compute_capability=text) for text in capabilities]
    monkeypatch.setattr(jax, "devices", lambda platform: devices)
    are_hoppers = set(capabilities) == {"9.0"}
    assert jax_versions.runs_mosaic() == (are_hoppers and jax_versions._SPEAKS_MOSAIC)


def test_other_gpus_get_what_xla_makes(monkeypatch):
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    x, lengths = np.zeros((64, 128), np.uint8), np.zeros((1, 128), np.int32)
    assert "custom_call" not in text_for_cuda(x, lengths, axis=0)


@pytest.mark.usefixtures("_a_gpu_for_it")
def test_exported_programs_are_for_any_gpu():
    x, lengths = jnp.zeros((64, 128), jnp.uint8), jnp.zeros((1, 128), jnp.int32)
    reverse = jax.jit(functools.partial(reverse_subsequences, axis=0))
    exported = jax.export.export(reverse, platforms=["cuda"])(x, lengths)
    assert "mosaic_gpu" not in exported.mlir_module()


@on_a_gpu
def test_the_kernel_under_transformations():
    x, lengths, axis = lines("columns", "float32")

    @jax.jit
    def reverse(x):
        return reverse_subsequences(x, lengths, axis, implementation="standalone")

    assert "mosaic_gpu" in reverse.lower(x).as_text()
    expected = reference.reverse_subsequences(x, lengths, axis)
    assert_same_bits(jax.vmap(reverse)(np.stack([x + 1, x]))[1], expected)
    _, tangent = jax.jvp(reverse, (x + 1,), (x,))
    assert_same_bits(tangent, expected)
    _, pullback = jax.vjp(reverse, x)
    assert_same_bits(pullback(expected)[0], x)


WIDTHS = {
    (1000, 256, "float32"): 32,
    (1601, 256, "float32"): 16,
    (5000, 256, "float32"): 8,
    (7000, 256, "float32"): None,
    (7000, 256, "uint8"): 16,
    (13000, 256, "uint8"): None,
    (1000, 12, "float32"): 8,
    (1000, 4, "float32"): None,
    (1000, 16, "uint8"): 16,
    (1000, 24, "uint8"): None,
    (1000, 256, "float64"): 16,
    (0, 256, "uint8"): None,
}


@pytest.mark.parametrize("case", WIDTHS, ids=str)
def test_the_width_of_a_strip(case, monkeypatch):
    monkeypatch.setattr(jax_versions, "COPIES_ANY_ROWS", True)
    time, columns, dtype = case
    assert (
        shared_memory_kernel.strip_width(time, columns, np.dtype(dtype)) == WIDTHS[case]
    )


def test_copies_of_128_bytes_alone(monkeypatch):
    monkeypatch.setattr(jax_versions, "COPIES_ANY_ROWS", False)
    widths = [
        shared_memory_kernel.strip_width(time, 256, np.dtype("float32"))
        for time in (1600, 1601, 1602, 5001, 5004)
    ]
    assert widths == [32, None, 16, None, 8]
