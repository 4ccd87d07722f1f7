"""Every formulation of a reversal gives what the reference gives.

A platform's lowering rule chooses among them. They are called here whatever the
platform, with the sizes from which they are worthwhile set to nothing.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from dtypes import dtype_of
from formulations import DTYPES, data, text_for, text_for_cuda

from dml_jax import reference, reverse_subsequences
from dml_jax._reverse import cpu, gpu, primitive, xla
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
    "time-major-of-sectors": ((16, 8, 32), 0, (1, 8, 1)),
    "wide-features": ((8, 3, 64), 1, (8, 1, 1)),
    "planes": ((3, 5, 16, 2), 2, (3, 5, 1, 1)),
    "shared-lengths": ((4, 5, 16, 2), 2, (1, 5, 1, 1)),
    "columns": ((9, 128), 0, (1, 128)),
    "few-columns": ((8, 6, 12), 1, (8, 1, 12)),
    "columns-of-planes": ((2, 7, 4, 64), 1, (2, 1, 4, 64)),
    "columns-of-features": ((6, 64, 2), 0, (1, 64, 1)),
    "step-of-1": ((4, 1, 2), 1, (4, 1, 1)),
    "more-lengths-than-lines": ((1, 8, 2), 1, (4, 1, 1)),
}

# Which of them each formulation is made for, in its main dtype.
MADE_FOR = {
    "reversed_windows": {"rows", "odd-rows", "one-length", "rank-1"},
    "transposed_gather": {*LINES},
    "gathered_parts": {"rows", "one-length", "rank-1", "features", "three-channels"}
    | {"wide-features", "shared-lengths", "more-lengths-than-lines"}
    | {"time-major-of-sectors", "few-columns"},
}


FORMULATIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "reversed_windows": ("cpu", cpu.reversed_windows),
    "transposed_gather": ("cuda", gpu.transposed_gather),
    "gathered_parts": ("cuda", gpu.gathered_parts),
}


def main_dtype(formulation: str) -> str:
    return "float32" if formulation == "transposed_gather" else "uint8"


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch: pytest.MonkeyPatch):
    for name in ("BYTES", "ROWS", "WIDE_ROW", "NARROW_ROW", "MASKED_ROW"):
        monkeypatch.setattr(cpu, f"_MIN_{name}", 0)
    for name in ("_MIN_BYTES", "_FIRST_LEVEL", "_SECOND_LEVEL"):
        monkeypatch.setattr(gpu, name, 0)


def lines(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray, int]:
    shape, axis, lengths_shape = LINES[name]
    random = np.random.default_rng(1)
    lengths = random.integers(0, shape[axis] + 1, lengths_shape).astype(np.int32)
    return data(shape, dtype), lengths, axis


def check(formulation: str, x: np.ndarray, lengths: np.ndarray, axis: int) -> None:
    """Compares a formulation with the reference, called as by a lowering rule."""
    platform, formulate = FORMULATIONS[formulation]
    of_platform = primitive._PLATFORMS[platform]
    compute = functools.partial(
        primitive._compute,
        axis=axis,
        implementation=None,
        formulation=of_platform._replace(reverse=primitive._in_lines(formulate)),
        is_unpartitioned=True,
    )
    y = jax.jit(compute)(jnp.asarray(x), lengths)
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    expected = reference.reverse_subsequences(np.broadcast_to(x, shape), lengths, axis)
    assert_same_bits(y, expected)


def is_made_for(formulation: str, x: Any, lengths: Any, axis: int) -> bool:
    _, formulate = FORMULATIONS[formulation]
    formulate = functools.partial(primitive._in_lines(formulate), axis=axis)
    return jax.eval_shape(formulate, x, lengths) is not None


@pytest.mark.parametrize(
    ("formulation", "name", "dtype"),
    [
        pytest.param(
            formulation,
            name,
            dtype,
            marks=() if dtype == main_dtype(formulation) else pytest.mark.exhaustive,
        )
        for formulation in MADE_FOR
        for name in sorted(MADE_FOR[formulation])
        for dtype in DTYPES
    ],
)
def test_reversal(formulation: str, name: str, dtype: str):
    check(formulation, *lines(name, dtype))


@pytest.mark.parametrize("formulation", MADE_FOR)
def test_bits_of_narrow_floats(formulation: str):
    check(formulation, *lines(min(MADE_FOR[formulation]), "bfloat16"))


@pytest.mark.parametrize("name", ["rows", "odd-rows", "rank-1"])
def test_windows_of_lines_too_short_for_a_mask(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    x, lengths, axis = lines(name, "float32")
    monkeypatch.setattr(cpu, "_MIN_MASKED_ROW", 64)
    assert is_made_for("reversed_windows", x, lengths, axis)
    check("reversed_windows", x, lengths, axis)


@pytest.mark.parametrize("formulation", MADE_FOR)
def test_what_a_formulation_is_made_for(formulation: str):
    dtype = main_dtype(formulation)
    taken = {name for name in LINES if is_made_for(formulation, *lines(name, dtype))}
    assert taken == MADE_FOR[formulation]


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("implementation", ["gather", "scatter"])
def test_all_65536_patterns_of_16_bits(name: str, implementation: str):
    x = np.arange(65536, dtype=np.uint16).view(dtype_of(name)).reshape(2, -1)
    lengths = np.array([[30001], [32768]])
    y = reverse_subsequences(x, lengths, 1, implementation=implementation)
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))


@pytest.mark.parametrize("formulation", [xla.gather, xla.scatter])
def test_indices_beyond_int32(formulation: Callable[..., jax.Array]):
    """JAX warns where it cuts an index to an int32, and a warning is an error."""
    x = jax.ShapeDtypeStruct((1, 3 * 2**30), np.uint8)
    lengths = jax.ShapeDtypeStruct((1, 1), np.uint32)
    y: Any = jax.eval_shape(functools.partial(formulation, axis=1), x, lengths)
    assert y.shape == x.shape


# Which programs get them --------------------------------------------------------------

REVERSE = functools.partial(reverse_subsequences, axis=1)


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpus_without_the_kernel_gather_parts(
    platform: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    x = jax.ShapeDtypeStruct((2**16, 2**10), "uint8")
    lengths = jax.ShapeDtypeStruct((2**16, 1), "int32")
    text = text_for(platform, REVERSE, x, lengths).as_text()
    assert joins_parts(text)
    assert "custom_call" not in text


def joins_parts(text: str) -> bool:
    """Whether a program concatenates four arrays of one dimension.

    XLA then stores several elements of each at once.
    """
    part = r"tensor<\d+x[a-z]\w+>"
    operands = ", ".join([part] * 4)
    return bool(re.search(rf"concatenate .*, dim = 0 : \({operands}\)", text))


@pytest.mark.parametrize(
    ("shape", "lengths", "dtype", "is_divided"),
    [
        ((2**16, 2**10), (2**16, 1), "bfloat16", True),
        ((2**15 + 1, 777), (2**15 + 1, 1), "float32", True),
        ((2**15, 777), (2**15, 1), "float32", False),
        ((2**15, 777), (2**15, 1), "float64", False),
        ((2**10, 777, 80), (2**10, 1, 1), "bool", True),
        ((37, 2**18), (37, 1), "uint8", True),
        ((13, 2**19), (13, 1), "uint8", False),
        ((2**10, 2**10), (2**10, 1), "uint8", False),
        ((2**13, 128, 32), (2**13, 1, 32), "uint8", True),
        ((2**13, 128, 33), (2**13, 1, 33), "uint8", False),
        ((2**13, 128, 16), (2**13, 1, 16), "int16", True),
        ((2**13, 128, 17), (2**13, 1, 17), "int16", False),
        ((16, 37, 2**12, 4), (16, 1, 2**12, 1), "uint8", True),
        ((16, 37, 2**12, 3), (16, 1, 2**12, 1), "uint8", False),
        ((16, 37, 2**12, 20), (16, 1, 2**12, 1), "float32", False),
        ((17, 37, 2**12 + 1, 21), (17, 1, 2**12 + 1, 1), "float32", True),
    ],
    ids=[
        *("rows", "odd-rows-of-words", "rows-of-words", "rows-of-64-bits"),
        *("features", "few-rows", "very-few-rows", "few-bytes"),
        *("columns-in-a-sector", "more-columns"),
        *("columns-of-16-bits-in-a-sector", "more-columns-of-16-bits"),
        *("steps", "short-steps", "steps-of-words", "an-odd-number-of-steps-of-words"),
    ],
)
def test_programs_for_gpus_in_parts(
    shape: tuple[int, ...],
    lengths: tuple[int, ...],
    dtype: str,
    is_divided: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.undo()
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    with jax.enable_x64(dtype == "float64"):
        operands = (
            jax.ShapeDtypeStruct(shape, dtype),
            jax.ShapeDtypeStruct(lengths, "int32"),
        )
        text = text_for("cuda", REVERSE, *operands).as_text()
    assert joins_parts(text) == is_divided


def test_tpu_exported_and_small_programs_are_one_gather(
    monkeypatch: pytest.MonkeyPatch,
):
    x, lengths = data((8, 40), "uint8"), jnp.ones((8, 1), jnp.int32)
    tpu = text_for("tpu", REVERSE, x, lengths).as_text()
    exported = jax.export.export(jax.jit(REVERSE), platforms=["cuda", "cpu"])
    exported = exported(x, lengths).mlir_module()
    monkeypatch.undo()
    small = text_for("cuda", REVERSE, x, lengths).as_text()
    for program in (tpu, exported, small):
        assert "concatenate" not in program
        assert "custom_call" not in program


@pytest.mark.parametrize(
    ("shape", "lengths", "dtype", "is_chosen"),
    [
        ((16000, 2000), (1, 2000), "int32", True),
        ((16000, 2000), (1, 2000), "bool", False),
        ((16000, 2000, 3), (1, 2000, 1), "int32", False),
        ((2**20, 48), (1, 48), "int32", False),
        ((16000, 300), (1, 300), "int32", False),
    ],
    ids=["columns", "booleans", "steps", "few-columns", "what-the-cache-holds"],
)
def test_programs_for_gpus_that_transpose(
    shape: tuple[int, ...],
    lengths: tuple[int, ...],
    dtype: str,
    is_chosen: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.undo()
    reverse = functools.partial(reverse_subsequences, axis=0)
    x, n = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(lengths, "int32")
    text = text_for_cuda(reverse, x, n)
    assert text.count('"stablehlo.gather"') == 1
    assert ("stablehlo.transpose" in text) == is_chosen


def test_programs_for_amd_gpus_do_not_transpose(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    x, lengths = (jax.ShapeDtypeStruct((n, 2000), "int32") for n in (16000, 1))
    reverse = functools.partial(reverse_subsequences, axis=0)
    assert "transpose" not in text_for("rocm", reverse, x, lengths).as_text()


@pytest.mark.parametrize(
    ("dtype", "time", "is_fused"),
    [("float32", 64, True), ("uint8", 63, True), ("uint8", 64, False)],
)
def test_elementwise_operations_after_cpu_windows(
    dtype: str, time: int, is_fused: bool
):
    def pipeline(x: Any, lengths: Any) -> jax.Array:
        return REVERSE(x * 2, lengths) + 1

    x, lengths = data((8, time), dtype), np.ones((8, 1), np.int32)
    with jax.default_device(jax.devices("cpu")[0]):
        text = str(jax.jit(pipeline).lower(x, lengths).compile().as_text())
        alone = str(jax.jit(REVERSE).lower(x, lengths).compile().as_text())
    (window,) = [loop for loop in text.split("\n\n") if " reverse(" in loop]
    code = {"float32": "f32", "uint8": "u8"}[dtype]
    assert not re.search(rf" {code}\S* multiply\(", window)
    assert bool(re.search(rf" {code}\S* add\(", window)) == is_fused
    assert " copy(" not in alone[alone.index("ENTRY") :]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("shape", [(40, 900, 1), (40, 1, 900), (1, 40, 900, 1, 1)])
def test_cpu_windows_of_dimensions_of_one_element_are_not_copied(
    shape: Any, dtype: str
):
    axis = shape.index(900)
    x = jax.ShapeDtypeStruct(shape, dtype)
    lengths = jax.ShapeDtypeStruct((*shape[:axis], *[1] * (len(shape) - axis)), "int32")
    reverse = functools.partial(reverse_subsequences, axis=axis)
    with jax.default_device(jax.devices("cpu")[0]):
        text = str(jax.jit(reverse).lower(x, lengths).compile().as_text())
    assert " reverse(" in text
    loops = re.findall(
        r"\w+\[([\d,]+)\]\S* (?:fusion|copy)\(", text[text.index("ENTRY") :]
    )
    sizes = [math.prod(map(int, loop.split(","))) for loop in loops]
    assert sizes.count(40 * 900) == 1
