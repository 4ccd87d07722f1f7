"""Every formulation of a reversal gives what the reference gives.

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
from formulations import DTYPES, data, text_for

from dml_jax import reference, reverse_subsequences
from dml_jax._reverse import cpu, gpu, xla
from dml_jax._shared import jax_versions

# They are only for programs, and NaNs are among all bits.
pytestmark = pytest.mark.usefixtures("with_jit", "nans_are_data")

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
    "reversed_windows": {*LINES}
    - {"time-major", *(n for n in LINES if "columns" in n)},
    "cache_blocked": {"columns", "columns-of-planes", "columns-of-features"},
    "preclamped": {"time-major", "columns", "columns-of-planes", "columns-of-features"},
    "split_stores": {*LINES}
    - {"odd-rows", "columns", "columns-of-planes", "step-of-1", "rank-1", "planes"}
    - {"six-features"},
    "packed_u32": {"rows", "one-length", "rank-1"},
    "transposed": {"columns", "columns-of-planes"},
}

BYTES = ("reversed_windows", "cache_blocked", "packed_u32")


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch):
    for name in ("_SMALL", "_FEW", "_VECTOR", "_CACHE"):
        monkeypatch.setattr(cpu, name, 0)
    for name in ("_GPU_CACHE", "_WORTHWHILE"):
        monkeypatch.setattr(gpu, name, 0)
    monkeypatch.setattr(gpu, "_THREADS", 1)


def lines(name, dtype):
    shape, axis, lengths_shape = LINES[name]
    random = np.random.default_rng(1)
    lengths = random.integers(0, shape[axis] + 1, lengths_shape).astype(np.int32)
    return data(shape, dtype), lengths, axis


def reverse(formulation, x, lengths, axis):
    module = cpu if hasattr(cpu, formulation) else gpu
    formulate = functools.partial(getattr(module, formulation), axis=axis)
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
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    expected = reference.reverse_subsequences(np.broadcast_to(x, shape), lengths, axis)
    assert_same_bits(y, expected)


@pytest.mark.parametrize("name", ["rows", "odd-rows", "rank-1"])
def test_windows_of_lines_too_short_for_a_mask(name, monkeypatch):
    monkeypatch.setattr(cpu, "_VECTOR", 64)
    x, lengths, axis = lines(name, "float32")
    formulate, operands = reverse("reversed_windows", x, lengths, axis)
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
    windows, taken = jax.jit(functools.partial(cpu.reversed_windows, axis=1)), []
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
    formulate = functools.partial(getattr(xla, formulation), axis=1)
    assert jax.eval_shape(formulate, x, lengths).shape == x.shape


def test_words_at_every_length():
    x, lengths = data((13, 12), "uint8"), np.arange(13, dtype=np.int32)[:, None]
    expected = reference.reverse_subsequences(x, lengths, 1)
    words = jax.jit(functools.partial(gpu.packed_u32, axis=1))
    assert_same_bits(words(x, lengths), expected)


REVERSE = functools.partial(reverse_subsequences, axis=1)
ALONE = functools.partial(REVERSE, implementation="standalone")


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpu_programs(platform, monkeypatch):
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    x, lengths = data((8, 40), "uint8"), jnp.ones((8, 1), jnp.int32)
    text = text_for(platform, REVERSE, x, lengths).as_text()
    assert text.count("stablehlo.concatenate") == 1
    assert "ui64" not in text
    assert "ui64" in text_for(platform, ALONE, x, lengths).as_text()


def test_what_other_programs_are_left():
    """On TPU, in small arrays and in exported programs: one gather."""
    x, lengths = data((8, 40), "uint8"), jnp.ones((8, 1), jnp.int32)
    text = text_for("tpu", ALONE, x, lengths).as_text()
    exported = jax.export.export(jax.jit(ALONE), platforms=["cuda", "cpu"])
    for program in (text, exported(x, lengths).mlir_module()):
        assert "concatenate" not in program
        assert "custom_call" not in program


def test_small_arrays_are_one_gather(monkeypatch):
    monkeypatch.undo()
    x, lengths = data((8, 40), "float16"), jnp.ones((8, 1), jnp.int32)
    assert "concatenate" not in text_for("cuda", REVERSE, x, lengths).as_text()


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
