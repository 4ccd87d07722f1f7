"""Every formulation of a reversal gives what the reference gives.

A platform's lowering rule chooses among them. They are called here whatever the
platform, with the sizes from which they are worthwhile set to nothing.
"""

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from formulations import DTYPES, data, text_for
from sampling import default_of

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
    "reversed_windows": {*LINES}
    - {"six-features", "wide-features"}
    - {name for name in LINES if "columns" in name or "time-major" in name},
    "transposed_windows": {"columns", "columns-of-planes", "few-columns"},
    "vectorized_gather": {*LINES},
    "transposed_gather": {"columns", "columns-of-planes", "columns-of-features"},
    "gathered_parts": {"rows", "one-length", "rank-1", "features", "three-channels"}
    | {"wide-features", "shared-lengths", "more-lengths-than-lines"}
    | {"time-major-of-sectors", "few-columns"},
}


FORMULATIONS: dict[str, tuple[str, xla.Formulation]] = {
    "reversed_windows": ("cpu", cpu.reversed_windows),
    "transposed_windows": ("cpu", cpu.transposed_windows),
    "vectorized_gather": ("cpu", cpu.vectorized_gather),
    "transposed_gather": ("cuda", gpu.transposed_gather),
    "gathered_parts": ("cuda", gpu.gathered_parts),
}


def main_dtype(formulation: str) -> str:
    if formulation == "vectorized_gather":
        return "bfloat16"
    of_bytes = ("reversed_windows", "gathered_parts")
    return "uint8" if formulation in of_bytes else "float32"


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch: pytest.MonkeyPatch):
    for name in (
        *("_MIN_BYTES", "_MIN_LINES", "_MIN_WIDE_LINE", "_MIN_MASKED_LINE"),
        "_MIN_BYTES_OF_STEPS",
        *("_MIN_LINES_OF_STEPS", "_MIN_TRANSPOSED", "_MIN_VECTORIZED_BYTES"),
        "_MIN_ELEMENTS_PER_LENGTH",
    ):
        monkeypatch.setattr(cpu, name, 0)
    for name in ("_MIN_BYTES", "_CACHED_TABLE", "_SHORT_ROW"):
        monkeypatch.setattr(gpu, name, 0)
    for name in ("_CACHED_ARRAY", "_SMALL_TABLE"):
        monkeypatch.setattr(gpu, name, dict.fromkeys((1, 2, 4, 8), 0))


def lines(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray, int]:
    shape, axis, lengths_shape = LINES[name]
    random = np.random.default_rng(1)
    lengths = random.integers(0, shape[axis] + 1, lengths_shape).astype(np.int32)
    return data(shape, dtype), lengths, axis


def check(formulation: str, x: np.ndarray, lengths: np.ndarray, axis: int) -> None:
    """Compares a formulation with the reference, called as by a lowering rule."""
    platform, formulate = FORMULATIONS[formulation]
    compute = functools.partial(
        primitive._compute,
        axis=axis,
        implementation=None,
        formulations=(formulate,),
        max_bits_as_uint=primitive._PLATFORMS[platform].max_bits_as_uint,
        sees_full_arrays=True,
    )
    y = jax.jit(compute)(jnp.asarray(x), lengths)
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
    expected = reference.reverse_subsequences(np.broadcast_to(x, shape), lengths, axis)
    assert_same_bits(y, expected)


def is_made_for(formulation: str, x: Any, lengths: Any, axis: int) -> bool:
    _, formulate = FORMULATIONS[formulation]
    formulate = functools.partial(formulate, axis=axis)
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
    monkeypatch.setattr(cpu, "_MIN_MASKED_LINE", 64)
    assert is_made_for("reversed_windows", x, lengths, axis)
    check("reversed_windows", x, lengths, axis)


@pytest.mark.parametrize("formulation", MADE_FOR)
def test_what_a_formulation_is_made_for(formulation: str):
    dtype = main_dtype(formulation)
    taken = {name for name in LINES if is_made_for(formulation, *lines(name, dtype))}
    assert taken == MADE_FOR[formulation]


WIDEST_STEPS = {"bool": 5, "uint8": 5, "float16": 2, "bfloat16": 2, "float32": 1}


@pytest.mark.parametrize("dtype", default_of(WIDEST_STEPS, "uint8", "float16"))
def test_widest_steps_of_windows(dtype: str):
    lengths = np.array([3, 0, 9, 1, 8], np.int32).reshape(5, 1, 1)
    for step in range(1, 9):
        is_taken = is_made_for(
            "reversed_windows", data((5, 9, step), dtype), lengths, 1
        )
        assert is_taken == (step <= WIDEST_STEPS[dtype])
    check("reversed_windows", data((5, 9, WIDEST_STEPS[dtype]), dtype), lengths, 1)


def test_small_float16_is_not_moved_as_integers(monkeypatch: pytest.MonkeyPatch):
    x, lengths, axis = lines("wide-features", "float16")
    for least, is_converted in ((0, True), (x.nbytes + 1, False)):
        monkeypatch.setattr(cpu, "_MIN_VECTORIZED_BYTES", least)
        gather = functools.partial(cpu.vectorized_gather, axis=axis)
        program = str(jax.make_jaxpr(gather)(jnp.asarray(x), lengths))
        assert ("bitcast_convert_type" in program) == is_converted
        check("vectorized_gather", x, lengths, axis)


@pytest.mark.parametrize("formulation", [xla.gather, xla.scatter])
def test_indices_beyond_int32(formulation: xla.Formulation):
    """JAX warns where it cuts an index to an int32, and a warning is an error."""
    x = jax.ShapeDtypeStruct((1, 3 * 2**30), np.uint8)
    lengths = jax.ShapeDtypeStruct((1, 1), np.uint32)
    y: Any = jax.eval_shape(functools.partial(formulation, axis=1), x, lengths)
    assert y.shape == x.shape


# Which programs get them --------------------------------------------------------------

REVERSE = functools.partial(reverse_subsequences, axis=1)
STANDALONE = functools.partial(REVERSE, implementation="standalone")


@pytest.mark.parametrize(
    "reverse", [REVERSE, STANDALONE], ids=["default", "standalone"]
)
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpus_without_the_kernels_gather_parts(
    platform: str, reverse: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    x = jax.ShapeDtypeStruct((2**16, 2**10), "uint8")
    lengths = jax.ShapeDtypeStruct((2**16, 1), "int32")
    text = text_for(platform, reverse, x, lengths).as_text()
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
        ((2**10, 777, 80), (2**10, 1, 1), "bool", True),
        ((37, 2**18), (37, 1), "uint8", True),
        ((2**15, 777), (2**15, 1), "float64", False),
        ((13, 2**19), (13, 1), "uint8", False),
        ((2**10, 2**10), (2**10, 1), "uint8", False),
        ((2**20, 55), (2**20, 1), "float16", False),
        ((2**20, 56), (2**20, 1), "float16", True),
        ((2**20 + 1, 55), (2**20 + 1, 1), "float16", True),
        ((2**20, 55), (2**20, 1), "float32", False),
        ((2**20, 55), (2**20, 1), "uint8", True),
        ((2**20, 20, 2), (2**20, 1, 1), "float16", True),
        ((2**13, 128, 64), (2**13, 1, 64), "uint8", True),
        ((2**13, 128, 65), (2**13, 1, 65), "uint8", False),
        ((2**13, 2**10, 24), (2**13, 1, 24), "uint8", True),
        ((2**13, 2**10, 8), (2**13, 1, 8), "int16", True),
        ((2**13, 2**10, 9), (2**13, 1, 9), "int16", False),
        ((2**13, 2**10, 8), (2**13, 1, 8), "int32", False),
        ((2**13, 2**9, 25, 5), (2**13, 1, 25, 1), "uint8", False),
        ((16, 37, 2**12, 20), (16, 1, 2**12, 1), "float32", False),
        ((17, 37, 2**12 + 1, 21), (17, 1, 2**12 + 1, 1), "float32", True),
        ((16, 37, 2**12, 40), (16, 1, 2**12, 1), "float16", True),
        ((16, 37, 2**12, 20), (16, 1, 1, 1), "float32", True),
    ],
    ids=[
        *("rows", "odd-rows", "features", "few-rows", "wide", "very-few-rows"),
        *("few-bytes", "short-rows", "longer-rows", "an-odd-number-of-short-rows"),
        *("short-rows-of-words", "short-rows-of-bytes", "short-lines-of-features"),
        *("small-tables-of-bytes", "larger-tables-of-bytes"),
        *("few-columns-of-bytes", "few-columns", "more-columns", "wide-columns"),
        "columns-of-many-sectors",
        *("steps-of-words", "an-odd-number-of-steps-of-words", "steps-of-16-bits"),
        "lines-of-words",
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
    tpu = text_for("tpu", STANDALONE, x, lengths).as_text()
    exported = jax.export.export(jax.jit(STANDALONE), platforms=["cuda", "cpu"])
    exported = exported(x, lengths).mlir_module()
    monkeypatch.undo()
    small = text_for("cuda", REVERSE, x, lengths).as_text()
    for program in (tpu, exported, small):
        assert "concatenate" not in program
        assert "custom_call" not in program


@pytest.mark.parametrize(
    ("shape", "lengths", "is_chosen"),
    [
        ((16000, 2000), (1, 2000), True),
        ((16000, 200, 5), (1, 200, 1), False),
        ((2**20, 24), (1, 24), False),
        ((16000, 700), (1, 700), False),
    ],
    ids=["long-columns", "long-steps", "few-columns", "what-the-cache-holds"],
)
@pytest.mark.parametrize("implementation", [None, "standalone"])
def test_programs_for_gpus_that_transpose(
    shape: tuple[int, ...],
    lengths: tuple[int, ...],
    is_chosen: bool,
    implementation: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.undo()
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    reverse = functools.partial(
        reverse_subsequences, axis=0, implementation=implementation
    )
    operands = (jax.ShapeDtypeStruct(n, "int32") for n in (shape, lengths))
    text = text_for("cuda", reverse, *operands).as_text()
    assert text.count('"stablehlo.gather"') == 1
    assert ("stablehlo.transpose" in text) == is_chosen


@pytest.mark.parametrize(
    ("columns", "dtype", "is_chosen"),
    [
        *((2**9, "int32", False), (2**9 + 1, "int32", True), (2**9, "int16", True)),
        *(
            (2**8, "int64", False),
            (2**8 + 1, "int64", True),
            (2**9, "complex128", False),
        ),
    ],
)
def test_programs_gather_words_from_tables_in_the_cache(
    columns: int, dtype: str, is_chosen: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((4, 2**14, columns), dtype)
        lengths = jax.ShapeDtypeStruct((4, 1, columns), np.int32)
        text = text_for("cuda", REVERSE, x, lengths).as_text()
    assert ("stablehlo.transpose" in text) == is_chosen


def test_programs_for_amd_gpus_do_not_transpose(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    x, lengths = (jax.ShapeDtypeStruct((n, 2000), "int32") for n in (16000, 1))
    for implementation in (None, "standalone"):
        reverse = functools.partial(
            reverse_subsequences, axis=0, implementation=implementation
        )
        assert "transpose" not in text_for("rocm", reverse, x, lengths).as_text()


@pytest.mark.parametrize(("least", "is_stored"), [(1200, True), (1201, False)])
def test_a_cpu_stores_clamped_lengths_that_are_read_often(
    monkeypatch: pytest.MonkeyPatch, least: int, is_stored: bool
):
    monkeypatch.setattr(cpu, "_MIN_ELEMENTS_PER_LENGTH", least)
    x, lengths = data((400, 60, 3), "float32"), np.ones((1, 60, 1), np.int32)
    reverse = functools.partial(reverse_subsequences, axis=0)
    with jax.default_device(jax.devices("cpu")[0]):
        text = str(jax.jit(reverse).lower(x, lengths).compile().as_text())
    (loop,) = [loop for loop in text.split("\n\n") if " gather(" in loop]
    assert " clamp(" in text
    assert (" clamp(" not in loop) == is_stored


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
