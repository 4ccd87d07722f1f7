"""Slices in parts, for GPUs, equal the reference, and large ones keep all bits.

The formulation is called directly, on any platform, with the size from which it is used
set to 0. `operators/test_random_calls.py` has what CPUs give.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from formulations import DTYPES, data, text_for
from sampling import default_of

from dml_jax import reference, slice1, slice_grad
from dml_jax._slice import gpu
from dml_jax._slice.api import _window_of_slice1

# The formulations are compiled, and move NaNs among all bit patterns.
pytestmark = pytest.mark.usefixtures("with_jit", "nans_are_data")

# Shape, offsets, sizes and strides of the input window.
WINDOWS = {
    "odd": ((33, 45), (5, 7), (27, 37), (1, 1)),
    "odd-strided": ((33, 45), (5, 7), (27, 37), (1, 2)),
    "aligned": ((34, 44), (4, 8), (27, 36), (1, 1)),
    "unaligned": ((33, 44), (5, 7), (27, 36), (2, 1)),
    "reversed-rows": ((33, 44), (5, 7), (27, 36), (-2, 1)),
    "reversed-odd": ((33, 45), (5, 7), (25, 37), (-2, -1)),
    "reversed-columns": ((33, 44), (5, 7), (27, 36), (1, -1)),
    "crop": ((9, 16, 12, 3), (1, 2, 3, 0), (5, 8, 8, 3), (2, 1, 1, 1)),
    "rank-1": ((33,), (5,), (27,), (1,)),
    "reversed-rank-1": ((48,), (16,), (24,), (-1,)),
    "rows": ((34, 44), (3, 0), (27, 44), (1, 1)),
    "unaligned-rows": ((34, 42), (3, 0), (26, 42), (1, 1)),
    "odd-rows": ((34, 45), (3, 0), (27, 45), (1, 1)),
    "batch": ((16, 9, 12), (0, 2, 3), (16, 5, 8), (1, 2, -1)),
    "whole": ((4, 8), (0, 0), (4, 8), (1, 1)),
    "tiny": ((5, 7), (0, 2), (3, 3), (1, -1)),
    "rank-0": ((), (), (), ()),
}
ODD = {"odd", "odd-strided", "odd-rows", "reversed-odd", "rank-1"}  # with uint8


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "MIN_ELEMENTS", 0)


def sliced(x: Any, *window: Any) -> Any:
    window = _window_of_slice1("slice1", x.shape, *window)
    return jax.jit(functools.partial(gpu.strided_slice, window=window))(x)


def parts_of(x: Any, *window: Any) -> int:
    """The number of slices in the program."""
    run = functools.partial(
        gpu.strided_slice, window=_window_of_slice1("slice1", x.shape, *window)
    )
    return str(jax.make_jaxpr(run)(x)).count(" slice[")


@pytest.mark.parametrize("dtype", default_of(DTYPES, "uint8"))
@pytest.mark.parametrize("name", WINDOWS)
def test_parts_equal_the_reference(name: str, dtype: str):
    shape, *window = WINDOWS[name]
    x = data(shape, dtype)
    assert_same_bits(sliced(x, *window), reference.slice1(x, *window))


def test_windows_that_are_sliced_in_parts():
    x = {name: data(WINDOWS[name][0], "uint8") for name in WINDOWS}
    parts = {name: parts_of(x[name], *WINDOWS[name][1:]) for name in WINDOWS}
    assert parts == {name: 4 if name in ODD else 1 for name in WINDOWS}


@pytest.mark.parametrize(
    ("dtype", "parts"), [("uint8", 4), ("uint16", 4), ("uint32", 1)]
)
def test_stores_of_two_words_are_not_split(dtype: str, parts: int):
    """Those of an even size that four does not divide. Odd sizes are always split."""
    x = data((33, 45), dtype)
    for rows, expected in ((26, parts), (27, 4)):
        assert parts_of(x, (5, 3), (rows, 37), (1, 1)) == expected


def crop(x: Any):
    return slice1(x, (5, 7), (27, 37), (1, 1))


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpu_programs_split_their_stores(platform: str):
    text = text_for(platform, crop, data((33, 45), "float32")).as_text()
    assert text.count("stablehlo.concatenate") == 1


def test_tpu_and_exported_programs_are_one_slice():
    x = data((33, 45), "int8")
    exported = jax.export.export(jax.jit(crop), platforms=["cuda", "cpu"])
    for text in (text_for("tpu", crop, x).as_text(), exported(x).mlir_module()):
        assert "concatenate" not in text
        assert "custom_call" not in text


def test_small_arrays_are_one_slice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert "concatenate" not in text_for("cuda", crop, data((33, 45), "int8")).as_text()


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_zeros_between_16_bit_floats_of_all_bits(dtype: Any, stride: int):
    """The arrays are so large that LLVM vectorizes the loops."""
    bits = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    shape, window = (256 * stride,) * 2, ((0, 0), (256 * stride,) * 2, (stride,) * 2)
    y = jax.jit(lambda x: slice_grad(x, shape, *window))(bits.view(dtype))
    expected = np.zeros(shape, np.uint16)
    expected[::stride, ::stride] = bits
    assert_same_bits(y, expected.view(dtype))
