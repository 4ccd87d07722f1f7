"""Every TPU formulation of a slice and its transpose equals the reference.

The kernel runs in Pallas' interpreter.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from formulations import data, text_for
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from sampling import default_of

from dml_jax import reference, slice1, slice_grad
from dml_jax._shared import jax_versions
from dml_jax._shared.tpu import orders_of_dimensions
from dml_jax._slice import registers, tpu, vmem_kernel
from dml_jax._slice.api import _window_of_slice1

# The formulations are compiled, and move NaNs among all bit patterns.
pytestmark = pytest.mark.usefixtures("with_jit", "nans_are_data")

# Without bfloat16, of which CPUs quiet the signalling NaNs.
DTYPES = ["uint8", "bool", "int16", "float8_e4m3fn", "float32", "int32"]

# Shape, offsets, sizes and strides of the input window.
WINDOWS = {
    "lanes": ((16, 300), (0, 0), (16, 300), (1, 2)),
    "both": ((70, 300), (5, 7), (61, 281), (2, 3)),
    "reversed-lanes": ((70, 300), (5, 7), (61, 281), (2, -3)),
    "reversed-rows": ((70, 300), (5, 7), (61, 281), (-3, 2)),
    "reversed-both": ((130, 257), (1, 0), (129, 257), (-4, -5)),
    "whole-reversed": ((70, 130), (0, 0), (70, 130), (-1, -2)),
    "long-strides": ((130, 300), (3, 1), (127, 299), (7, 6)),
    "columns-as-lanes": ((300, 33), (2, 1), (290, 32), (-2, 3)),
    "planes": ((5, 40, 130), (0, 0, 0), (5, 40, 130), (2, 1, 2)),
    "reversed-planes": ((7, 40, 130), (1, 3, 2), (6, 37, 128), (-3, -2, 2)),
    "outer": ((5, 3, 33, 130), (1, 0, 2, 1), (4, 3, 31, 129), (-2, 1, 3, 4)),
    "small-dims": ((40, 8, 5, 3), (0, 1, 0, 1), (37, 7, 5, 2), (5, 2, -4, 1)),
    "one-element": ((40, 140), (17, 130), (1, 1), (3, 3)),
    "one-row": ((1, 1000), (0, 1), (1, 999), (1, -3)),
    "one-lane": ((1000, 1), (1, 0), (999, 1), (4, 1)),
    "late-window": ((300, 520), (250, 500), (50, 20), (2, 2)),
    "early-window": ((300, 520), (0, 0), (30, 20), (-2, -3)),
}
DEFAULT = ["both"]


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch):
    """The interpreter lacks bitcasts of references: registers are cast instead."""

    def view(block: Any, outer: Any, first: Any, count: int, column: Any):
        rows = registers.rows_per_register(block.dtype)
        at = pl.ds(first * rows, count * rows), pl.ds(column * 128, 128)
        return block.at[(*outer, *at)]

    def load(view: Any, k: int):
        rows = registers.rows_per_register(view.dtype)
        value = view[rows * k : rows * (k + 1), :]
        return value if rows == 8 else pltpu.bitcast(value, jnp.uint32)

    def store(view: Any, k: int, words: Any):
        rows = registers.rows_per_register(view.dtype)
        value = words if rows == 8 else pltpu.bitcast(words, view.dtype)
        view[rows * k : rows * (k + 1), :] = value

    def copy(sources: Any, targets: Any, count: int, _: int):
        values = [[load(each, k) for k in range(count)] for each in sources]
        registers.store_all(targets, values)

    for function in (view, load, store, copy):
        monkeypatch.setattr(registers, function.__name__, function)
    interpreted = functools.partial(pl.pallas_call, interpret=True)
    monkeypatch.setattr(pl, "pallas_call", interpreted)


@pytest.fixture(params=default_of(["one-block", "many-blocks"], "many-blocks"))
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Blocks and loops as they are in programs, or small ones."""
    if request.param == "many-blocks":
        monkeypatch.setattr(vmem_kernel, "_BLOCK_BYTES", 2**16)
        monkeypatch.setattr(registers, "_UNROLL_ROWS", 64)


def in_stored_order(kernel: Callable[..., Any], x: Any, shape: Any, window: Any):
    """The kernel's result, whether or not a formulation would use it."""
    order = orders_of_dimensions(shape, x.dtype)[0]
    dims = tpu._dims(shape, window, order)
    return jax.jit(lambda x: tpu._in_order(kernel, x, dims, order))(jnp.asarray(x))


def check_slice(shape: Any, window: Any, dtype: str) -> None:
    x = data(shape, dtype)
    expected = reference.slice1(x, *window)
    parsed = _window_of_slice1("slice1", shape, *window)
    y = in_stored_order(vmem_kernel.strided_slice, x, shape, parsed)
    assert_same_bits(y, expected)


def check_transpose(shape: Any, window: Any, dtype: str) -> None:
    sizes = reference.slice1(np.zeros(shape, bool), *window).shape
    x = data(sizes, dtype)
    expected = reference.slice_grad(x, shape, *window)
    parsed = _window_of_slice1("slice_grad", shape, *window, sizes=sizes)
    y = in_stored_order(vmem_kernel.strided_slice_transpose, x, shape, parsed)
    assert_same_bits(y, expected)


@pytest.mark.usefixtures("_interpreted", "_blocks")
@pytest.mark.parametrize("dtype", default_of(DTYPES, "uint8"))
@pytest.mark.parametrize("name", default_of(WINDOWS, *DEFAULT))
@pytest.mark.parametrize("check", [check_slice, check_transpose])
def test_kernel_equals_the_reference(check: Callable[..., None], name: str, dtype: str):
    shape, *window = WINDOWS[name]
    check(shape, window, dtype)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.exhaustive
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
@pytest.mark.parametrize("check", [check_slice, check_transpose])
def test_words_of_narrow_elements(check: Callable[..., None], dtype: str, stride: int):
    """Rows of all strides begin at all elements of a word, in both directions."""
    for offset in range(4):
        for sign in (1, -1):
            window = (offset, 0), (28, 130), (sign * stride, 2)
            check((33, 130), window, dtype)


def both(x: Any):
    return slice1(x, (5, 7), (61, 281), (2, 3))


def rows(x: Any):
    return slice1(x, (5, 0), (61, 512), (-2, 1))


def adjoint(x: Any):
    return slice_grad(x, (70, 300), (5, 7), (61, 281), (2, 3))


@pytest.mark.parametrize(
    ("function", "shape", "dtype", "has_kernel"),
    [
        (both, (70, 300), "float32", True),
        (both, (70, 300), "bfloat16", True),
        (both, (70, 300), "complex64", False),
        (rows, (70, 512), "float32", False),
        (rows, (70, 512), "uint8", True),
        (adjoint, (31, 94), "float32", True),
        (adjoint, (31, 94), "complex64", False),
    ],
)
def test_programs_that_take_the_kernel(
    function: Callable[..., Any],
    shape: tuple[int, ...],
    dtype: str,
    has_kernel: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(jax_versions, "LOWERS_TPU_KERNELS", True)
    x = jnp.zeros(shape, dtype)
    text = text_for("tpu", function, x).as_text()
    assert ("tpu_custom_call" in text) == has_kernel
    assert "bitcast_convert" not in text or not has_kernel
    exported = jax.export.export(jax.jit(function), platforms=["tpu"])(x)
    assert "custom_call" not in exported.mlir_module()


def test_transposes_without_the_kernel_have_no_interior_padding(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(jax_versions, "LOWERS_TPU_KERNELS", False)
    x = data((31, 94), "float32")
    assert "stablehlo.pad" not in text_for("tpu", adjoint, x).as_text()
    expected = reference.slice_grad(x, (70, 300), (5, 7), (61, 281), (2, 3))
    window = _window_of_slice1(
        "slice_grad", (70, 300), (5, 7), (61, 281), (2, 3), sizes=x.shape
    )
    y = tpu.gather_and_select(jnp.asarray(x), (70, 300), window)
    assert_same_bits(y, expected)


def test_what_the_kernel_leaves_to_xla():
    x = jnp.zeros((70, 300), jnp.uint8)
    for window in (((0, 0), (70, 300), (1, 1)), ((5, 300), (61, 0), (2, 2))):
        assert tpu.vmem_slice(x, _window_of_slice1("slice1", x.shape, *window)) is None
    window = _window_of_slice1("slice1", (8, 9000), (0, 0), (8, 9000), (1, 90))
    assert tpu.vmem_slice(jnp.zeros((8, 9000)), window) is None


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((4096, 4096), (0, 1)),
        ((4096, 1366), (1, 0)),
        ((4, 8, 256, 64), (0, 1, 3, 2)),
        ((32, 512, 64), (0, 2, 1)),
        ((64, 33, 17), (2, 1, 0)),
        ((1024, 64, 8, 16), (1, 2, 3, 0)),
        ((8, 224, 224, 3), (0, 3, 1, 2)),
        ((300, 5, 700), (1, 0, 2)),
        ((4, 3, 128, 10922), (1, 3, 0, 2)),
        ((2, 3, 128, 10922), (0, 1, 3, 2)),  # XLA has rows of 2 elements
    ],
)
def test_order_of_dimensions(shape: tuple[int, ...], order: tuple[int, ...]):
    """TPU's compiler stored all but the last in these orders."""
    assert orders_of_dimensions(shape, np.dtype(np.float32))[0] == order
