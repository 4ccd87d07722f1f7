"""Every formulation of a reversal and of a slice gives what the reference gives.

A platform's lowering rule chooses among them. They are called here whatever the
platform, with the sizes from which they are worthwhile set to nothing.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from dtypes import dtype_of

from dml_jax import _bits, _compat, reference, reverse_subsequences, slice1
from dml_jax import _reverse_formulations as reversals
from dml_jax import _slice_formulations as slices
from dml_jax._slice import _Lattice

# They are only for programs, and NaNs are among all bits.
pytestmark = pytest.mark.usefixtures("with_jit", "nans_are_data")

DTYPES = ["uint8", "bool", "bfloat16", "float32"]

# Shape, axis, and the shape of the lengths.
LINES = {
    "rows": ((8, 40), 1, (8, 1)),
    "odd-rows": ((12, 33), 1, (12, 1)),
    "one-length": ((8, 64), 1, (1, 1)),
    "rank-1": ((16,), 0, (1,)),
    "features": ((8, 9, 4), 1, (8, 1, 1)),
    "three-channels": ((4, 12, 3), 1, (4, 1, 1)),
    "six-features": ((4, 9, 6), 1, (4, 1, 1)),
    "time-major": ((9, 8, 4), 0, (1, 8, 1)),
    "planes": ((3, 5, 16, 2), 2, (3, 5, 1, 1)),
    "shared-lengths": ((4, 5, 16, 2), 2, (1, 5, 1, 1)),
    "columns": ((9, 128), 0, (1, 128)),
    "columns-of-planes": ((2, 7, 4, 64), 1, (2, 1, 4, 64)),
    "columns-of-features": ((6, 64, 2), 0, (1, 64, 1)),
    "step-of-1": ((4, 1, 2), 1, (4, 1, 1)),
    "more-lengths-than-lines": ((1, 8, 2), 1, (4, 1, 1)),
}

# Which of them each formulation is made for: some for bytes, the others for float32.
MADE_FOR = {
    "windows": {*LINES} - {"time-major"} - {n for n in LINES if "columns" in n},
    "tiles": {"columns", "columns-of-planes", "columns-of-features"},
    "prepared": {"time-major", "columns", "columns-of-planes", "columns-of-features"},
    "quarters": {*LINES}
    - {"odd-rows", "columns", "columns-of-planes", "step-of-1", "rank-1", "planes"}
    - {"six-features"},
    "words": {"rows", "one-length", "rank-1"},
    "transposed": {"columns", "columns-of-planes"},
}

BYTES = ("windows", "tiles", "words")

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
    for module, name in (
        (reversals, "_SMALL"),
        (reversals, "_FEW"),
        (reversals, "_VECTOR"),
        (reversals, "_CACHE"),
        (reversals, "_GPU_CACHE"),
        (reversals, "_WORTHWHILE"),
        (slices, "_WORTHWHILE"),
    ):
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(reversals, "_THREADS", 1)
    monkeypatch.setattr(slices, "_THREADS", 1)


def data(shape, dtype):
    random, dtype = np.random.default_rng(0), dtype_of(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    # Of all bits, signalling NaNs among them.
    return random.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[
        ..., 0
    ]


def lines(name, dtype):
    shape, axis, lengths_shape = LINES[name]
    random = np.random.default_rng(1)
    lengths = random.integers(0, shape[axis] + 1, lengths_shape).astype(np.int32)
    return data(shape, dtype), lengths, axis


def reverse(formulation, x, lengths, axis):
    formulate = functools.partial(getattr(reversals, formulation), axis=axis)
    return formulate, (jnp.asarray(x), lengths)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("formulation", "name"),
    [(f, name) for f in MADE_FOR for name in sorted(MADE_FOR[f])],
)
def test_reversal(formulation, name, dtype):
    x, lengths, axis = lines(name, dtype)
    formulate, operands = reverse(formulation, x, lengths, axis)
    y = jax.jit(formulate)(*operands)
    if y is None:
        assert dtype != ("uint8" if formulation in BYTES else "float32")
        return
    shape = reversals.broadcast_shape(x.shape, lengths.shape, axis)
    expected = reference.reverse_subsequences(np.broadcast_to(x, shape), lengths, axis)
    assert_same_bits(y, expected)


@pytest.mark.parametrize("name", ["rows", "odd-rows", "rank-1"])
def test_windows_of_lines_too_short_for_a_mask(name, monkeypatch):
    monkeypatch.setattr(reversals, "_VECTOR", 64)
    x, lengths, axis = lines(name, "float32")
    formulate, operands = reverse("windows", x, lengths, axis)
    expected = reference.reverse_subsequences(x, lengths, axis)
    assert_same_bits(jax.jit(formulate)(*operands), expected)


@pytest.mark.parametrize("formulation", MADE_FOR)
def test_what_a_formulation_is_made_for(formulation):
    taken = set()
    for name in LINES:
        dtype = "uint8" if formulation in BYTES else "float32"
        formulate, operands = reverse(formulation, *lines(name, dtype))
        if jax.eval_shape(formulate, *operands) is not None:
            taken.add(name)
    assert taken == MADE_FOR[formulation]


WIDEST_STEPS = {"bool": 6, "float8_e5m2": 6, "float16": 4, "bfloat16": 4, "float32": 2}


@pytest.mark.parametrize("dtype", WIDEST_STEPS)
def test_widest_steps_of_windows(dtype):
    windows, taken = jax.jit(functools.partial(reversals.windows, axis=1)), []
    for step in range(1, 9):
        x = data((5, 9, step), dtype)
        lengths = np.array([3, 0, 9, 1, 8], np.int32).reshape(5, 1, 1)
        y = windows(x, lengths)
        if y is not None:
            assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))
            taken.append(step)
    assert taken == [*range(1, WIDEST_STEPS[dtype] + 1)]


@pytest.mark.parametrize("formulation", ["gather", "scatter"])
def test_indices_beyond_int32(formulation):
    """JAX warns where it cuts an index to an int32, and a warning is an error."""
    x = jax.ShapeDtypeStruct((1, 3 * 2**30), np.uint8)
    lengths = jax.ShapeDtypeStruct((1, 1), np.uint32)
    formulate = functools.partial(getattr(reversals, formulation), axis=1)
    assert jax.eval_shape(formulate, x, lengths).shape == x.shape


def test_words_at_every_length():
    x, lengths = data((13, 12), "uint8"), np.arange(13, dtype=np.int32)[:, None]
    expected = reference.reverse_subsequences(x, lengths, 1)
    words = jax.jit(functools.partial(reversals.words, axis=1))
    assert_same_bits(words(x, lengths), expected)


SLICES = {
    "even_quarters": {"batch", "crop", "whole"},
    "quarters": {"odd", "odd-strided", "backwards-odd", "rank-1"},
    "words": {*WINDOWS}
    - {"odd", "odd-strided", "backwards-odd", "rank-1", "tiny", "rank-0"},
}


def take(formulation, name, dtype):
    shape, offsets, windows, strides = WINDOWS[name]
    lattice = _Lattice(
        "slice1",
        tuple(
            offset if stride > 0 else offset + (window - 1) % -stride
            for offset, window, stride in zip(offsets, windows, strides, strict=True)
        ),
        tuple((w - 1) // abs(s) + 1 for w, s in zip(windows, strides, strict=True)),
        tuple(map(abs, strides)),
        tuple(d for d, stride in enumerate(strides) if stride < 0),
    )
    formulate = functools.partial(getattr(slices, formulation), lattice=lattice)
    x = data(shape, dtype)
    return formulate, _bits.to_integers(jnp.asarray(x)), x


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
    assert_same_bits(_bits.from_bits(bits, x.dtype), expected)


@pytest.mark.parametrize("formulation", SLICES)
def test_what_a_slice_is_made_for(formulation):
    taken = set()
    for name in WINDOWS:
        formulate, integers, _ = take(formulation, name, "uint8")
        if jax.eval_shape(formulate, integers) is not None:
            taken.add(name)
    assert taken == SLICES[formulation]


def text_for(platform, function, *operands):
    return jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,))


REVERSE = functools.partial(reverse_subsequences, axis=1)
ALONE = functools.partial(REVERSE, implementation="standalone")
CROP = functools.partial(
    slice1,
    input_window_offsets=(5, 7),
    input_window_sizes=(27, 37),
    input_window_strides=(1, 1),
)


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpu_programs(platform, monkeypatch):
    monkeypatch.setattr(_compat, "runs_mosaic", lambda: False)
    x, lengths = data((8, 40), "uint8"), jnp.ones((8, 1), jnp.int32)
    text = text_for(platform, REVERSE, x, lengths).as_text()
    assert text.count("stablehlo.concatenate") == 1
    assert "ui64" not in text
    assert "ui64" in text_for(platform, ALONE, x, lengths).as_text()
    text = text_for(platform, CROP, data((33, 45), "float32")).as_text()
    assert text.count("stablehlo.concatenate") == 1


def test_what_other_programs_are_left():
    """On TPU, in small arrays and in exported programs: one gather, one slice."""
    x, lengths = data((8, 40), "uint8"), jnp.ones((8, 1), jnp.int32)
    for function, operands in (
        (ALONE, (x, lengths)),
        (CROP, (data((33, 45), "int8"),)),
    ):
        text = text_for("tpu", function, *operands).as_text()
        exported = jax.export.export(jax.jit(function), platforms=["cuda", "cpu"])
        for program in (text, exported(*operands).mlir_module()):
            assert "concatenate" not in program
            assert "custom_call" not in program


def test_small_arrays_are_one_gather(monkeypatch):
    monkeypatch.undo()
    x, lengths = data((8, 40), "float16"), jnp.ones((8, 1), jnp.int32)
    assert "concatenate" not in text_for("cuda", REVERSE, x, lengths).as_text()
    assert "concatenate" not in text_for("cuda", CROP, data((33, 45), "int8")).as_text()


def test_cpu_loops_stay_apart():
    """A window is one loop of its own: fused with more, it cannot use vectors."""

    def pipeline(x, lengths):
        return jnp.tanh(REVERSE(x * 2, lengths)) + 1

    x, lengths = data((8, 40), "float32"), np.ones((8, 1), np.int32)
    with jax.default_device(jax.devices("cpu")[0]):
        text = jax.jit(pipeline).lower(x, lengths).compile().as_text()
        alone = jax.jit(REVERSE).lower(x, lengths).compile().as_text()
    (window,) = [loop for loop in text.split("\n\n") if " reverse(" in loop]
    assert not re.search(r"f32\S* (multiply|tanh|add)\(", window)
    assert " copy(" not in alone[alone.index("ENTRY") :]
