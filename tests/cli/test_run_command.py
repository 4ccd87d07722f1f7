"""The run command: every operator from files, and what it writes."""

import inspect
import json
import os
import pathlib
import re

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import EXAMPLES
from command_line import run as command
from command_line import succeed

import dml_jax
from dml_jax import reference
from dml_jax.cli import info, npy_files
from dml_jax.cli.verify_cases import Case


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def words_of(case: Case) -> list[str]:
    words = []
    for name, array in case.arrays.items():
        np.save(f"{name}.npy", array)
        words += [f"--{name.replace('_', '-')}", f"{name}.npy"]
    for name, value in case.options.items():
        is_dtype = isinstance(value, np.dtype)
        text = value.name if is_dtype else json.dumps(value)
        words += [f"--{name.replace('_', '-')}", text]
    return words


def test_an_array_does_not_change_with_its_file() -> None:
    """Windows does not replace a file that is mapped."""
    path, x = pathlib.Path("x.npy"), np.arange(3)
    np.save(path, x)
    array = npy_files.read(path)
    with path.open("r+b") as file:
        file.seek(-x.nbytes, os.SEEK_END)
        file.write(bytes(x.nbytes))
    assert_same_bits(array, x)


BEYOND = EXAMPLES["inference"]  # which has lengths of -1 and beyond the axis


@pytest.mark.parametrize("name", [n for n in EXAMPLES if EXAMPLES[n] is not BEYOND])
def test_gives_the_reference(name: str) -> None:
    case = EXAMPLES[name]
    words = [*words_of(case), "--device", "cpu", "--output", "y.npy"]
    status, out, err = command("run", case.function, *words)
    expected = case.expected()
    shape = ",".join(map(str, expected.shape))
    assert (status, out, err) == (0, f"Output: {expected.dtype}[{shape}]\n", "")
    assert_same_bits(np.load("y.npy"), expected)


def test_lengths_beyond_the_axis_are_an_error() -> None:
    status, _, err = command("run", BEYOND.function, *words_of(BEYOND))
    message = "reverse_sequence: `sequence_lens` must be in [0, 4]; got -1 to 9"
    assert (status, err) == (2, f"dml_jax: {message}\n")


VALUES = {
    "slice1 --input x.npy --input-window-offsets 0,0 --input-window-sizes 3,4 "
    "--input-window-strides -1,1": np.arange(12.0).reshape(3, 4)[::-1],
    "fill_value_constant --value-data-type float32 --sizes 6 --value -1e3": np.full(
        6, np.float32(-1000)
    ),
    "fill_value_constant --sizes 2 --value -Infinity --value-data-type float32": (
        np.full(2, np.float32(-np.inf))
    ),
    "fill_value_constant --sizes n.npy --value 7 --value-data-type int32": np.full(
        (2, 3), np.int32(7)
    ),
    "reverse_padded --x x.npy --lengths 3 --axis -2": reference.reverse_padded(
        np.arange(12.0).reshape(3, 4), 3, axis=0
    ),
    **{
        f"reverse_padded --x x.npy --lengths {lengths}": reference.reverse_padded(
            np.arange(12.0).reshape(3, 4), [2, 4, 3]
        )
        for lengths in ("2,4,3", "[2,4,3]")
    },
}


@pytest.mark.parametrize("words", VALUES)
def test_values(words: str) -> None:
    """Some begin with a minus sign; a file's name may be a word; JAX's checks are off.

    A single integer is a list where the function takes a list only.
    """
    np.save("x.npy", np.arange(12.0).reshape(3, 4))
    np.save("n.npy", np.array([2, 3]))
    pathlib.Path("float32").touch()
    with jax.debug_nans(True), jax.debug_infs(True), jax.transfer_guard("disallow"):
        succeed("run", *words.split(), "--output", "y.npy")
    assert_same_bits(np.load("y.npy"), VALUES[words])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_dtypes_that_files_do_not_name_are_refused(name: str) -> None:
    reason = (
        "An .npy file stores bfloat16, float8 and int4 as bytes without their dtype"
    )
    words = f"--sizes 3 --value-data-type {name} --value 1 --output y.npy".split()
    status, _, err = command("run", "fill_value_constant", *words)
    assert (status, err) == (2, f"dml_jax: `--output` must not hold {name}. {reason}\n")
    assert not pathlib.Path("y.npy").exists()
    np.save("x.npy", np.ones((2, 3), name))
    status, _, err = command("run", "reverse_padded", "--x", "x.npy", "--lengths", "3")
    got = np.load("x.npy").dtype
    message = f"x.npy: must hold numbers of a dtype of JAX; got {got}. {reason}"
    assert (status, err) == (2, f"dml_jax: {message}\n")


@pytest.mark.parametrize("operator", info.OPERATORS)
def test_the_help_describes_every_parameter(operator: str) -> None:
    status, out, _ = command("run", operator, "--help")
    described = re.findall(r"^  --([\w-]+) VALUE\s+[^\s(]", out, re.MULTILINE)
    parameters = inspect.signature(getattr(dml_jax, operator)).parameters
    assert (status, described) == (0, [name.replace("_", "-") for name in parameters])
