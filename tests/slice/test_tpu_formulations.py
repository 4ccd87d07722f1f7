"""Every TPU formulation of a slice and its transpose equals the reference.

The kernel runs in Pallas' interpreter.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from formulations import data, text_for
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from sampling import default_of

from dml_jax import reference, slice1, slice_grad
from dml_jax._shared import jax_versions
from dml_jax._shared.tpu import orders_of_dimensions, stored_rows_and_lanes
from dml_jax._slice import registers, tpu, vmem_kernel
from dml_jax._slice.api import _window_of_slice1

# The formulations are compiled, and move NaNs among all bit patterns.
pytestmark = pytest.mark.usefixtures("with_jit", "nans_are_data")

# Dtype, shape, offsets, sizes and strides of the input window. Without bfloat16, of
# which CPUs quiet the signalling NaNs.
WINDOWS = {
    "both": ("uint8", (70, 300), (5, 7), (61, 281), (2, 3)),
    "lanes": ("int16", (16, 300), (0, 0), (16, 300), (1, 2)),
    "reversed-lanes": ("float32", (70, 300), (5, 7), (61, 281), (2, -3)),
    "reversed-rows": ("int16", (70, 300), (5, 7), (61, 281), (-3, 2)),
    "reversed-both": ("uint8", (130, 257), (1, 0), (129, 257), (-4, -5)),
    "whole-reversed": ("bool", (70, 130), (0, 0), (70, 130), (-1, -2)),
    "unaligned": ("float8_e4m3fn", (70, 400), (5, 7), (61, 390), (1, 1)),
    "long-strides": ("int32", (130, 300), (3, 1), (127, 299), (7, 6)),
    "columns-as-lanes": ("float16", (300, 33), (2, 1), (290, 32), (-2, 3)),
    "few-rows": ("float32", (1000, 3), (2, 1), (990, 2), (3, -1)),
    "planes": ("int32", (5, 40, 130), (0, 0, 0), (5, 40, 130), (2, 1, 2)),
    "reversed-planes": ("uint8", (7, 40, 130), (1, 3, 2), (6, 37, 128), (-3, -2, 2)),
    "outer": ("int16", (5, 3, 33, 130), (1, 0, 2, 1), (4, 3, 31, 129), (-2, 1, 3, 4)),
    "many-planes": (
        *("uint8", (7, 6, 5, 31, 130), (1, 0, 1, 2, 1)),
        *((6, 6, 4, 28, 128), (2, -1, -3, 2, -2)),
    ),
    "small-dims": ("bool", (40, 8, 5, 3), (0, 1, 0, 1), (37, 7, 5, 2), (5, 2, -4, 1)),
    "one-element": ("uint8", (40, 140), (17, 130), (1, 1), (3, 3)),
    "one-row": ("float32", (1, 1000), (0, 1), (1, 999), (1, -3)),
    "one-lane": ("int16", (1000, 1), (1, 0), (999, 1), (4, 1)),
    "late-window": ("uint8", (300, 520), (250, 500), (50, 20), (2, 2)),
    "early-window": ("float32", (300, 520), (0, 0), (30, 20), (-2, -3)),
}


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


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch):
    """Many blocks, and loops of several steps with a rest."""
    monkeypatch.setattr(vmem_kernel, "_BLOCK_BYTES", 2**16)
    monkeypatch.setattr(registers, "_UNROLL", 3)
    monkeypatch.setattr(registers, "_UNROLL_SPAN", 8)


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


@pytest.mark.usefixtures("_interpreted", "_small_blocks")
@pytest.mark.parametrize("name", default_of(WINDOWS, "both"))
@pytest.mark.parametrize("check", [check_slice, check_transpose])
def test_kernel_equals_the_reference(check: Callable[..., None], name: str):
    dtype, shape, *window = WINDOWS[name]
    check(shape, window, dtype)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.exhaustive
@pytest.mark.parametrize("check", [check_slice, check_transpose])
def test_blocks_of_programs(check: Callable[..., None]):
    check((70, 300), ((3, 5), (66, 290), (-2, 3)), "int16")


@pytest.mark.usefixtures("_interpreted")
def test_only_planes_of_the_window_are_copied_to_another_order(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(jax_versions, "LOWERS_TPU_KERNELS", True)
    shape = (9, 8, 17, 130)
    window = (2, 1, 0, 5), (6, 7, 17, 120), (-2, 3, -1, 2)
    x = data(shape, "uint8")
    assert orders_of_dimensions(shape, x.dtype)[0] == (0, 1, 2, 3)
    assert stored_rows_and_lanes(shape, x.dtype) == (1, 3)
    parsed = _window_of_slice1("slice1", shape, *window)
    compute = jax.jit(lambda x: tpu.vmem_slice(x, parsed))
    assert_same_bits(compute(x), reference.slice1(x, *window))
    (inner,) = jax.make_jaxpr(compute)(x).eqns
    (kernel,) = (
        equation
        for equation in inner.params["jaxpr"].eqns
        if equation.primitive.name == "pallas_call"
    )
    assert kernel.invars[0].aval.shape == (5, 8, 17, 130)


class Rows:
    """What the kernel has as a reference to words in VMEM."""

    def __init__(self, words: np.ndarray):
        self.words = words

    def __getitem__(self, at: Any):
        return jnp.asarray(self.words[self._rows(at)])

    def __setitem__(self, at: Any, value: Any):
        self.words[self._rows(at)] = value

    def _rows(self, at: Any):
        rows, _ = at
        start = int(rows.start)
        return slice(start, start + rows.size * rows.stride, rows.stride)


@pytest.mark.parametrize("stride", default_of([1, 2, 3, 4, 5, 6, 7], 3))
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_rows_begin_at_all_elements_of_a_word(
    dtype: Any, stride: int, monkeypatch: pytest.MonkeyPatch
):
    """Loads and stores of two registers, in both directions."""
    monkeypatch.setattr(pltpu, "roll", jnp.roll)  # which is for kernels only
    count, per_word = 2, 4 // np.dtype(dtype).itemsize
    size = count * registers.rows_per_register(np.dtype(dtype))
    for start, is_reversed in itertools.product(range(per_word), (False, True)):
        dim = registers.Dim(8 * size, start, size, stride, is_reversed)
        strided = registers.StridedRows(dim, dim.first, np.dtype(dtype), count)
        memory = np.zeros((2 * strided.margin * per_word + dim.extent, 128), dtype)
        within = memory[strided.margin * per_word :][: dim.extent]
        rows = dim.first + dim.sign * stride * np.arange(size)

        words = _words(memory)
        lowest = strided.lowest(0, count, len(words), 0)
        values = data((size, 128), np.dtype(dtype).name)
        for k, value in enumerate(np.split(_words(values), count)):
            strided.store(Rows(words), lowest, k, count, jnp.asarray(value))
        memory[:] = _elements(words, dtype)
        expected = np.zeros_like(within)
        expected[rows] = values
        assert_same_bits(within, expected)
        loaded = [strided.load(Rows(words), lowest, k, count) for k in range(count)]
        assert_same_bits(_elements(np.concatenate(loaded), dtype), values)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_rows_after_the_operand_are_zeros(dtype: Any):
    rows = registers.rows_per_register(np.dtype(dtype))
    x = data((rows, 128), np.dtype(dtype).name)
    for count in range(-3, rows + 4):
        y = registers.first_rows(jnp.asarray(_words(x)), count, rows)
        is_first = np.arange(rows)[:, None] < count
        assert_same_bits(_elements(np.asarray(y), dtype), np.where(is_first, x, 0))


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("stride", default_of([1, 2, 5], 2))
def test_lanes_after_the_operand_are_zeros(stride: int, is_reversed: bool):
    size, start = 150, 40
    extent = start + stride * size + 200
    dim = registers.Dim(extent, start, size, stride, is_reversed)
    x = data((8, 256), "uint32")  # more than the operand
    expected = np.zeros((8, extent), np.uint32)
    expected[:, dim.first + dim.sign * stride * np.arange(size)] = x[:, :size]
    for column in range(extent // 128):
        spread = registers.LaneSpread(dim, dim.first, column, 0, size)
        columns = [jnp.clip(each, 0, 1) for each in spread.registers]
        y = spread([lax.dynamic_slice(x, (0, 128 * c), (8, 128)) for c in columns])
        assert_same_bits(np.asarray(y), expected[:, 128 * column :][:, :128])


def _words(elements: np.ndarray) -> np.ndarray:
    """The words of 32 bits of which each holds elements of consecutive rows."""
    rows, lanes = elements.shape
    per_word = 4 // elements.itemsize
    parts = elements.reshape(rows // per_word, per_word, lanes).swapaxes(1, 2)
    return np.ascontiguousarray(parts).view(np.uint32)[..., 0]


def _elements(words: np.ndarray, dtype: Any) -> np.ndarray:
    parts = np.ascontiguousarray(words)[..., None].view(dtype).swapaxes(1, 2)
    return parts.reshape(-1, words.shape[1])


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
        (rows, (70, 512), "float32", True),
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
