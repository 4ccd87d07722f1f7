"""Every formulation of a reversal gives what the reference gives.

A platform's lowering rule chooses among them. They are called here whatever the
platform, with the sizes from which they are worthwhile set to nothing.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from dtypes import dtype_of
from formulations import (
    DTYPES,
    as_lowered,
    data,
    lines,
    require_reversed,
    text_for,
    text_for_cuda,
)
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


class Formulation(NamedTuple):
    """A formulation, the platform and dtype that it is tested with, and its lines."""

    formulate: Callable[..., Any]
    platform: str
    dtype: str
    made_for: set[str]


FORMULATIONS = {
    "reversed_windows": Formulation(
        cpu.reversed_windows,
        *("cpu", "uint8"),
        {"rows", "odd-rows", "one-length", "rank-1"},
    ),
    "transposed_gather": Formulation(
        gpu.transposed_gather, "cuda", "float32", {*LINES}
    ),
    "gathered_parts": Formulation(
        gpu.gathered_parts,
        *("cuda", "uint8"),
        {"rows", "one-length", "rank-1", "features", "three-channels"}
        | {"wide-features", "shared-lengths", "more-lengths-than-lines"}
        | {"time-major-of-sectors", "few-columns"},
    ),
}


@pytest.fixture(autouse=True)
def _always_worthwhile(monkeypatch: pytest.MonkeyPatch):
    for name in ("BYTES", "ROWS", "WIDE_ROW", "NARROW_ROW", "MASKED_ROW"):
        monkeypatch.setattr(cpu, f"_MIN_{name}", 0)
    for name in ("_MIN_BYTES", "_FIRST_LEVEL", "_SECOND_LEVEL"):
        monkeypatch.setattr(gpu, name, 0)


def check(name: str, x: np.ndarray, lengths: np.ndarray, axis: int) -> None:
    formulation = FORMULATIONS[name]
    reverse = as_lowered(formulation.formulate, formulation.platform)
    require_reversed(reverse, x, lengths, axis)


def is_made_for(name: str, x: Any, lengths: Any, axis: int) -> bool:
    formulation = primitive._Formulation(FORMULATIONS[name].formulate)
    reverse = functools.partial(formulation.apply, axis=axis)
    return jax.eval_shape(reverse, x, lengths) is not None


@pytest.mark.parametrize(
    ("name", "line", "dtype"),
    default_of(
        [
            (name, line, dtype)
            for name, formulation in FORMULATIONS.items()
            for line in sorted(formulation.made_for)
            for dtype in DTYPES
        ],
        *[
            (name, line, formulation.dtype)
            for name, formulation in FORMULATIONS.items()
            for line in formulation.made_for
        ],
        # CPUs convert narrow floats, which may change their bits.
        *[(name, min(f.made_for), "bfloat16") for name, f in FORMULATIONS.items()],
    ),
)
def test_reversal(name: str, line: str, dtype: str):
    check(name, *lines(*LINES[line], dtype))


@pytest.mark.parametrize("name", ["rows", "odd-rows", "rank-1"])
def test_windows_of_lines_too_short_for_a_mask(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    x, lengths, axis = lines(*LINES[name], "float32")
    monkeypatch.setattr(cpu, "_MIN_MASKED_ROW", 64)
    assert is_made_for("reversed_windows", x, lengths, axis)
    check("reversed_windows", x, lengths, axis)


@pytest.mark.parametrize("name", FORMULATIONS)
def test_what_a_formulation_is_made_for(name: str):
    _, _, dtype, made_for = FORMULATIONS[name]
    assert {n for n in LINES if is_made_for(name, *lines(*LINES[n], dtype))} == made_for


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("implementation", ["gather", "scatter"])
def test_all_65536_patterns_of_16_bits(name: str, implementation: str):
    x = np.arange(65536, dtype=np.uint16).view(dtype_of(name)).reshape(2, -1)
    lengths = np.array([[30001], [32768]])
    y = reverse_subsequences(x, lengths, 1, implementation=implementation)
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))


@pytest.mark.parametrize(
    "formulation",
    [xla.gather, xla.scatter, functools.partial(xla.rotate_and_flip, max_shards=1)],
    ids=["gather", "scatter", "rotate_and_flip"],
)
def test_indices_beyond_int32(formulation: Callable[..., jax.Array]):
    """JAX warns where it cuts an index to an int32, and a warning is an error."""
    x = jax.ShapeDtypeStruct((1, 3 * 2**30), np.uint8)
    lengths = jax.ShapeDtypeStruct((1, 1), np.uint32)
    y: Any = jax.eval_shape(functools.partial(formulation, axis=1), x, lengths)
    assert y.shape == x.shape


# Which programs get them --------------------------------------------------------------

REVERSE = functools.partial(reverse_subsequences, axis=1)


def joins_parts(text: str) -> bool:
    """Whether a program concatenates four arrays of one dimension.

    XLA then stores several elements of each at once.
    """
    part = r"tensor<\d+x[a-z]\w+>"
    operands = ", ".join([part] * 4)
    return bool(re.search(rf"concatenate .*, dim = 0 : \({operands}\)", text))


# Shapes of the operand and the lengths, dtype, and whether it is divided.
IN_PARTS = {
    "rows": ((2**16, 2**10), (2**16, 1), "bfloat16", True),
    "odd-rows-of-words": ((2**15 + 1, 777), (2**15 + 1, 1), "float32", True),
    "rows-of-words": ((2**15, 777), (2**15, 1), "float32", False),
    "rows-of-64-bits": ((2**15, 777), (2**15, 1), "float64", False),
    "features": ((2**10, 777, 80), (2**10, 1, 1), "bool", True),
    "few-rows": ((37, 2**18), (37, 1), "uint8", True),
    "very-few-rows": ((13, 2**19), (13, 1), "uint8", False),
    "few-bytes": ((2**10, 2**10), (2**10, 1), "uint8", False),
    "columns-in-a-sector": ((2**13, 128, 32), (2**13, 1, 32), "uint8", True),
    "more-columns": ((2**13, 128, 33), (2**13, 1, 33), "uint8", False),
    "16-bits-in-a-sector": ((2**13, 128, 16), (2**13, 1, 16), "int16", True),
    "more-columns-of-16-bits": ((2**13, 128, 17), (2**13, 1, 17), "int16", False),
    "steps": ((16, 37, 2**12, 4), (16, 1, 2**12, 1), "uint8", True),
    "short-steps": ((16, 37, 2**12, 3), (16, 1, 2**12, 1), "uint8", False),
    "steps-of-words": ((16, 37, 2**12, 20), (16, 1, 2**12, 1), "float32", False),
    "an-odd-number-of-steps-of-words": (
        *((17, 37, 2**12 + 1, 21), (17, 1, 2**12 + 1, 1)),
        *("float32", True),
    ),
}


@pytest.mark.parametrize(
    ("name", "platform"), [*((name, "cuda") for name in IN_PARTS), ("rows", "rocm")]
)
def test_programs_for_gpus_in_parts(
    name: str, platform: str, monkeypatch: pytest.MonkeyPatch
):
    shape, lengths, dtype, is_divided = IN_PARTS[name]
    monkeypatch.undo()
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    with jax.enable_x64(dtype == "float64"):
        x = jax.ShapeDtypeStruct(shape, dtype)
        n = jax.ShapeDtypeStruct(lengths, "int32")
        text = text_for(platform, REVERSE, x, n).as_text()
    assert joins_parts(text) == is_divided
    assert "custom_call" not in text


def test_exported_programs_are_one_gather():
    x, lengths = data((8, 40), "uint8"), jnp.ones((8, 1), jnp.int32)
    exported = jax.export.export(jax.jit(REVERSE), platforms=["cuda", "cpu"])
    program = exported(x, lengths).mlir_module()
    assert "concatenate" not in program
    assert "custom_call" not in program


# Shapes of the operand and the lengths, and whether a step has 128 elements.
STEPS_ON_TPU = {
    "rows": ((8, 40), (8, 1), False),
    "features": ((8, 40, 128), (8, 1, 1), True),
    "few-features": ((8, 40, 127), (8, 1, 1), False),
    "heads": ((8, 40, 2, 64), (8, 1, 1, 1), True),
    "a-length-for-each-head": ((8, 40, 2, 64), (8, 1, 2, 1), False),
    "columns": ((8, 40, 128), (8, 1, 128), False),
}


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("name", STEPS_ON_TPU)
def test_tpus_gather_long_steps_only(name: str, exported: bool):
    """XLA reads a tile of 4 KiB for each element that it gathers there."""
    shape, lengths_shape, is_long = STEPS_ON_TPU[name]
    x = jax.ShapeDtypeStruct(shape, "uint8")
    lengths = jax.ShapeDtypeStruct(lengths_shape, "int32")
    if exported:
        export = jax.export.export(jax.jit(REVERSE), platforms=["tpu"])
        text = export(x, lengths).mlir_module()
    else:
        text = text_for("tpu", REVERSE, x, lengths).as_text()
    assert ('"stablehlo.gather"' in text) == is_long
    assert ("stablehlo.reverse" in text) == (not is_long)


def test_tpus_take_the_implementation_that_is_asked_for():
    x, lengths = data((8, 40), "float32"), jnp.ones((8, 1), jnp.int32)
    for implementation in ("gather", "scatter"):
        run = functools.partial(REVERSE, implementation=implementation)
        text = text_for("tpu", run, x, lengths).as_text()
        assert f'"stablehlo.{implementation}"' in text
        assert "stablehlo.reverse" not in text


@pytest.mark.parametrize(
    "dtype",
    default_of([*DTYPES, "int2", "int4", "int64"], "uint8"),  # of each width
)
@pytest.mark.parametrize("max_shards", [1, 4])
@pytest.mark.parametrize("line", LINES)
def test_rotations(line: str, max_shards: int, dtype: str):
    """As for one TPU, and for four devices among which XLA divides a program."""
    reverse = functools.partial(xla.rotate_and_flip, max_shards=max_shards)
    require_reversed(reverse, *lines(*LINES[line], dtype))


TRANSPOSED = {
    "columns": ((16000, 2000), "int32", True),
    "booleans": ((16000, 2000), "bool", False),
    "steps": ((16000, 2000, 3), "int32", False),
    "few-columns": ((2**20, 48), "int32", False),
    "what-the-cache-holds": ((16000, 300), "int32", False),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_programs_for_gpus_that_transpose(name: str, monkeypatch: pytest.MonkeyPatch):
    (time, columns, *steps), dtype, is_chosen = TRANSPOSED[name]
    monkeypatch.undo()
    x = jax.ShapeDtypeStruct((time, columns, *steps), dtype)
    lengths = jax.ShapeDtypeStruct((1, columns, *[1] * len(steps)), "int32")
    reverse = functools.partial(reverse_subsequences, axis=0)
    text = text_for_cuda(reverse, x, lengths)
    assert text.count('"stablehlo.gather"') == 1
    assert ("stablehlo.transpose" in text) == is_chosen
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
