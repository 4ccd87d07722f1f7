"""The kernel for columns: its results, on a GPU that takes it, and who gets it."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from formulations import on_a_hopper, text_for_cuda

from dml_jax import reference, reverse_subsequences
from dml_jax._reverse import gpu, shared_memory_kernel
from dml_jax._shared import jax_versions

# Shape, axis, and the shape of the lengths.
LINES = {
    "columns": ((9, 128), 0, (1, 128)),
    "columns-of-planes": ((2, 3, 7, 64), 2, (2, 3, 1, 64)),
    "shared-lengths": ((5, 7, 64), 1, (1, 1, 64)),
    "three-features": ((300, 64, 3), 0, (1, 64, 1)),
    "two-copies": ((257, 128), 0, (1, 128)),
    "two-copies-of-narrow-rows": ((257, 64), 0, (1, 64)),
    "odd-time": ((2001, 256), 0, (1, 256)),
    "tiles-that-overlap": ((31, 144), 0, (1, 144)),
    "narrow-tiles": ((5001, 64), 0, (1, 64)),
    "many-blocks": ((70000, 3, 16), 1, (70000, 1, 16)),
    "pairs-of-tiles": ((2001, 96), 0, (1, 96)),
    "one-step": ((1, 128), 0, (1, 128)),
}


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "_MIN_BYTES", 0)


def lines(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray, int]:
    shape, axis, lengths_shape = LINES[name]
    random = np.random.default_rng(0)
    x = random.integers(0, 256, shape).astype(dtype)
    lengths = random.integers(0, shape[axis] + 1, lengths_shape).astype(np.int32)
    lengths.flat[:2] = 0, shape[axis]
    return x, lengths, axis


@on_a_hopper
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "int64", "float64"])
@pytest.mark.parametrize("name", LINES)
def test_results(name: str, dtype: str):
    x, lengths, axis = lines(name, dtype)
    is_wide = x.itemsize == 8
    with jax.enable_x64(is_wide):
        y = jax.jit(functools.partial(gpu.shared_memory_tiles, axis=axis))(x, lengths)
    if is_wide and name in ("three-features", "narrow-tiles"):
        assert y is None  # too many bytes in a step, and in a tile
        return
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, axis))


@on_a_hopper
def test_transformations():
    x, lengths, axis = lines("columns", "float32")

    reverse = jax.jit(
        lambda x: reverse_subsequences(x, lengths, axis, implementation="standalone")
    )
    assert "mosaic_gpu" in reverse.lower(x).as_text()
    expected = reference.reverse_subsequences(x, lengths, axis)
    assert_same_bits(jax.vmap(reverse)(np.stack([x + 1, x]))[1], expected)
    _, tangent = jax.jvp(reverse, (x + 1,), (x,))
    assert_same_bits(tangent, expected)
    _, pullback = jax.vjp(reverse, x)
    assert_same_bits(pullback(expected)[0], x)


# Which programs get it ----------------------------------------------------------------


CHOSEN = {
    "alone": (((64, 128), "float32"), "standalone", True),
    "clusters": (((2000, 9600), "float32"), "standalone", True),
    "pairs": (((2000, 9600), "uint8"), None, True),
    "odd": (((2001, 9600), "float32"), "standalone", jax_versions.COPIES_ANY_ROWS),
    "odd-by-default": (((2001, 9600), "int16"), None, jax_versions.COPIES_ANY_ROWS),
    "what-the-cache-holds": (((64, 128), "float32"), None, False),
    "what-it-does-not-hold": (((64, 2**18), "float32"), None, True),
    "bytes": (((64, 128), "uint8"), None, True),
    "float64": (((64, 128), "float64"), "standalone", True),
    "rows-that-begin-anywhere": (((64, 130), "uint8"), None, False),
    "more-rows-than-fit": (((13000, 128), "uint8"), None, False),
    "booleans": (((64, 128), "bool"), None, False),
}


@pytest.mark.parametrize("are_hoppers", [True, False])
@pytest.mark.parametrize("name", CHOSEN)
def test_who_gets_the_kernel(name: str, are_hoppers: bool):
    (shape, dtype), implementation, is_chosen = CHOSEN[name]
    reverse = functools.partial(
        reverse_subsequences, axis=0, implementation=implementation
    )
    with jax.enable_x64(dtype == "float64"):
        x = jax.ShapeDtypeStruct(shape, dtype)
        lengths = jax.ShapeDtypeStruct((1, shape[1]), np.int32)
        text = text_for_cuda(reverse, x, lengths, are_hoppers=are_hoppers)
    is_chosen = is_chosen and are_hoppers and jax_versions._SUPPORTS_MOSAIC
    assert ("mosaic_gpu" in text) == is_chosen


@pytest.mark.parametrize("capabilities", ["9.0", "9.0 9.0", "8.0", "9.0 8.0"])
def test_which_gpus_take_it(capabilities: str, monkeypatch: pytest.MonkeyPatch):
    devices = [
        types.SimpleNamespace(compute_capability=text) for text in capabilities.split()
    ]
    monkeypatch.setattr(jax, "devices", lambda _: devices)
    are_hoppers = set(capabilities.split()) == {"9.0"}
    assert jax_versions.runs_mosaic() == (are_hoppers and jax_versions._SUPPORTS_MOSAIC)


def test_exported_programs_are_for_any_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: True)
    x, lengths = jnp.zeros((64, 128), jnp.uint8), jnp.zeros((1, 128), jnp.int32)
    reverse = jax.jit(functools.partial(reverse_subsequences, axis=0))
    exported = jax.export.export(reverse, platforms=["cuda"])(x, lengths)
    assert "mosaic_gpu" not in exported.mlir_module()


# Time, columns, dtype, whether copies of any rows are possible, and the width.
WIDTHS = [
    (1000, 256, "float32", True, 32),
    (1601, 256, "float32", True, 16),
    (5000, 256, "float32", True, 8),
    (7000, 256, "float32", True, None),
    (7000, 256, "uint8", True, 16),
    (13000, 256, "uint8", True, None),
    (1000, 12, "float32", True, 8),
    (1000, 4, "float32", True, None),
    (1000, 16, "uint8", True, 16),
    (1000, 24, "uint8", True, None),
    (1000, 256, "float64", True, 16),
    (0, 256, "uint8", True, None),
    (1600, 256, "float32", False, 32),
    (1601, 256, "float32", False, None),
    (1602, 256, "float32", False, 16),
    (5001, 256, "float32", False, None),
    (5004, 256, "float32", False, 8),
]


@pytest.mark.parametrize(("time", "columns", "dtype", "any_rows", "width"), WIDTHS)
def test_width_of_a_tile(
    time: int,
    columns: int,
    dtype: str,
    any_rows: bool,
    width: int | None,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(jax_versions, "COPIES_ANY_ROWS", any_rows)
    assert shared_memory_kernel.tile_width(time, columns, np.dtype(dtype)) == width
