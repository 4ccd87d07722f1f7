"""Every GPU formulation of a slice equals the reference, and CPUs keep all bits.

The formulations are called directly, on any platform, with the size from which they
are used set to 0.
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
from dml_jax._shared import bitwise, jax_versions
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
ODD = {"odd", "odd-strided", "odd-rows", "reversed-odd", "rank-1"}
REVERSED = {"reversed-columns", "reversed-rank-1", "batch"}  # along the last dimension
# The windows that each formulation is made for, of uint8.
MADE_FOR = {
    "contiguous": {"rows", "whole"},
    "equal_split_stores": {"batch", "crop", "whole"},
    "split_stores": ODD,
    "packed_u32": {*WINDOWS} - ODD - REVERSED - {"tiny", "rank-0"},
}

REFUSED = {
    "contiguous": ("bool",),
    "packed_u32": ("bool", "float32"),
}


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "MIN_ELEMENTS", 0)
    monkeypatch.setattr(gpu, "_THREADS", 1)


def formulation_of(formulation: str, name: str):
    window = _window_of_slice1("slice1", *WINDOWS[name])
    return functools.partial(getattr(gpu, formulation), window=window)


@pytest.mark.parametrize("dtype", default_of(DTYPES, "uint8"))
@pytest.mark.parametrize(
    ("formulation", "name"),
    [(f, name) for f, names in MADE_FOR.items() for name in sorted(names)],
)
def test_formulation_equals_the_reference(formulation: str, name: str, dtype: str):
    shape, *window = WINDOWS[name]
    x = data(shape, dtype)
    takes_bits = formulation != "contiguous"
    operand = bitwise.to_integers(jnp.asarray(x)) if takes_bits else x
    y = jax.jit(formulation_of(formulation, name))(operand)
    if dtype in REFUSED.get(formulation, ()):
        assert y is None
        return
    expected = reference.slice1(x, *window)
    assert_same_bits(bitwise.from_bits(y, x.dtype) if takes_bits else y, expected)


@pytest.mark.parametrize("formulation", MADE_FOR)
def test_windows_that_a_formulation_is_made_for(formulation: str):
    x = {name: jnp.asarray(data(WINDOWS[name][0], "uint8")) for name in WINDOWS}
    accepted = {
        name
        for name in WINDOWS
        if jax.eval_shape(formulation_of(formulation, name), x[name]) is not None
    }
    assert accepted == MADE_FOR[formulation]


@pytest.mark.parametrize(
    ("dtype", "stride", "is_split"),
    [
        ("uint8", 1, True),
        ("uint8", 2, True),
        ("uint16", 1, True),
        ("uint16", 2, False),
        ("uint32", 1, False),
        ("uint32", 2, False),
    ],
)
def test_stores_of_two_elements_are_not_split_in_vain(
    dtype: str, stride: int, is_split: bool
):
    """Those of an even size that four does not divide. Odd sizes are always split."""
    x = jnp.asarray(data((33, 45), dtype))
    for rows in (26, 27):
        window = (5, 3), (rows, 37), (1, stride)  # of 37 or 19 columns
        split = functools.partial(
            gpu.split_stores, window=_window_of_slice1("slice1", x.shape, *window)
        )
        y = jax.jit(split)(x)
        assert (y is not None) == (is_split or rows == 27)
        if y is not None:
            assert_same_bits(y, reference.slice1(np.asarray(x), *window))


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(
    ("dtype", "is_converted"), [("float16", False), ("bfloat16", True)]
)
def test_16_bit_floats_on_cpu(name: str, dtype: str, is_converted: bool):
    shape, *window = WINDOWS[name]
    x = data(shape, dtype)
    function = jax.jit(lambda x: slice1(x, *window))
    with jax.default_device(jax.devices("cpu")[0]):
        y, text = function(x), function.lower(x).as_text()
    assert ("bitcast_convert" in text) == is_converted
    assert_same_bits(y, reference.slice1(x, *window))


def crop(x: Any):
    return slice1(x, (5, 7), (27, 37), (1, 1))


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpu_programs_split_their_stores(
    platform: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    text = text_for(platform, crop, data((33, 45), "float32")).as_text()
    assert text.count("stablehlo.concatenate") == 1


@pytest.mark.parametrize(("rows", "parts"), [(32, 4), (27, 1)])
def test_gpu_programs_divide_consecutive_elements_if_the_parts_are_equal(
    rows: int, parts: int
):
    def last_rows(x: Any):
        return slice1(x, (1, 0), (rows, 36), (1, 1))

    text = text_for("cuda", last_rows, data((33, 36), "uint8")).as_text()
    assert text.count("stablehlo.slice") == parts


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
