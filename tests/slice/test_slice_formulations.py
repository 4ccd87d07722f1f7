"""Every formulation of a slice gives what the reference gives.

A platform's lowering rule chooses among them. They are called here whatever the
platform, with the sizes from which they are worthwhile set to nothing.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from assertions import assert_same_bits
from formulations import DTYPES, data, text_for

from dml_jax import reference, slice1
from dml_jax._shared import bitwise, jax_versions
from dml_jax._slice import gpu
from dml_jax._slice.window import StridedWindow

# They are only for programs, and NaNs are among all bits.
pytestmark = pytest.mark.usefixtures("with_jit", "nans_are_data")

# Shape, offsets, windows, strides.
WINDOWS = {
    "odd": ((33, 45), (5, 7), (27, 37), (1, 1)),
    "odd-strided": ((33, 45), (5, 7), (27, 37), (1, 2)),
    "aligned": ((34, 44), (4, 8), (27, 36), (1, 1)),
    "unaligned": ((33, 44), (5, 7), (27, 36), (2, 1)),
    "backwards": ((33, 44), (5, 7), (27, 36), (-2, 1)),
    "backwards-odd": ((33, 45), (5, 7), (27, 37), (-2, -1)),
    "backwards-columns": ((33, 44), (5, 7), (27, 36), (1, -1)),
    "crop": ((9, 16, 12, 3), (1, 2, 3, 0), (5, 8, 8, 3), (2, 1, 1, 1)),
    "rank-1": ((33,), (5,), (27,), (1,)),
    "batch": ((16, 9, 12), (0, 2, 3), (16, 5, 8), (1, 2, -1)),
    "whole": ((4, 8), (0, 0), (4, 8), (1, 1)),
    "tiny": ((5, 7), (0, 2), (3, 3), (1, -1)),
    "rank-0": ((), (), (), ()),
}


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch):
    monkeypatch.setattr(gpu, "_WORTHWHILE", 0)
    monkeypatch.setattr(gpu, "_THREADS", 1)


SLICES = {
    "even_split_stores": {"batch", "crop", "whole"},
    "split_stores": {"odd", "odd-strided", "backwards-odd", "rank-1"},
    "packed_u32": {*WINDOWS}
    - {"odd", "odd-strided", "backwards-odd", "rank-1", "tiny", "rank-0"},
}


def take(formulation, name, dtype):
    shape, offsets, windows, strides = WINDOWS[name]
    lattice = StridedWindow(
        "slice1",
        tuple(
            offset if stride > 0 else offset + (window - 1) % -stride
            for offset, window, stride in zip(offsets, windows, strides, strict=True)
        ),
        tuple((w - 1) // abs(s) + 1 for w, s in zip(windows, strides, strict=True)),
        tuple(map(abs, strides)),
        tuple(d for d, stride in enumerate(strides) if stride < 0),
    )
    formulate = functools.partial(getattr(gpu, formulation), lattice=lattice)
    x = data(shape, dtype)
    return formulate, bitwise.to_integers(jnp.asarray(x)), x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("formulation", "name"),
    [(f, name) for f, names in SLICES.items() for name in sorted(names)],
)
def test_slice(formulation, name, dtype):
    formulate, integers, x = take(formulation, name, dtype)
    bits = jax.jit(formulate)(integers)
    if bits is None:
        assert dtype in ("bool", "float32")
        return
    expected = reference.slice1(x, *WINDOWS[name][1:])
    assert_same_bits(bitwise.from_bits(bits, x.dtype), expected)


@pytest.mark.parametrize("formulation", SLICES)
def test_what_a_slice_is_made_for(formulation):
    taken = set()
    for name in WINDOWS:
        formulate, integers, _ = take(formulation, name, "uint8")
        if jax.eval_shape(formulate, integers) is not None:
            taken.add(name)
    assert taken == SLICES[formulation]


CROP = functools.partial(
    slice1,
    input_window_offsets=(5, 7),
    input_window_sizes=(27, 37),
    input_window_strides=(1, 1),
)


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpu_programs(platform, monkeypatch):
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    text = text_for(platform, CROP, data((33, 45), "float32")).as_text()
    assert text.count("stablehlo.concatenate") == 1


def test_what_other_programs_are_left():
    """On TPU, in small arrays and in exported programs: one slice."""
    x = data((33, 45), "int8")
    text = text_for("tpu", CROP, x).as_text()
    exported = jax.export.export(jax.jit(CROP), platforms=["cuda", "cpu"])
    for program in (text, exported(x).mlir_module()):
        assert "concatenate" not in program
        assert "custom_call" not in program


def test_small_arrays_are_one_slice(monkeypatch):
    monkeypatch.undo()
    assert "concatenate" not in text_for("cuda", CROP, data((33, 45), "int8")).as_text()
