"""The run command: every operator from files, what it writes, and how it fails."""

import inspect
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from assertions import assert_same_bits
from cases import EXAMPLES, Case

import dml_jax
import dml_jax.cli.info
from dml_jax import reference

Command = Callable[..., tuple[Any, str, str]]
X = np.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("n.npy", np.array([2, 4, 3]))
    pathlib.Path("x.txt").write_text("0 1 2")


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


@pytest.mark.parametrize("case", EXAMPLES, ids=str)
def test_gives_the_reference(case: Case, command: Command) -> None:
    words = [*words_of(case), "--device", "cpu", "--output", "y.npy"]
    status, out, err = command("run", case.operator, *words)
    expected = case.expected()
    shape = ",".join(map(str, expected.shape))
    assert (status, out, err) == (0, f"Output: {expected.dtype}[{shape}]\n", "")
    assert_same_bits(np.load("y.npy"), expected)


ERRORS = {
    "wrong value": ("x.npy n.npy 7", "reverse_padded: `axis` 7 is out of bounds"),
    "wrong type": ("x.npy n.npy true", "reverse_padded: `axis` must be a static"),
    "wrong shape": ("x.npy [1,2] 1", "reverse_padded: `lengths` must be a scalar or"),
    "word": ("some n.npy 1", "reverse_padded: `x` must be an array"),
    "no file": ("z.npy n.npy 1", "z.npy: No such file"),
    "another file": ("x.txt n.npy 1", "x.txt: must be an .npy file"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_errors_are_one_line(what: str, command: Command) -> None:
    values, message = ERRORS[what]
    x, lengths, axis = values.split()
    words = ["--x", x, "--lengths", lengths, "--axis", axis, "--output", "y.npy"]
    status, out, err = command("run", "reverse_padded", *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"dml_jax: {message}")
    assert err.count("\n") == 1
    assert not pathlib.Path("y.npy").exists()


@pytest.mark.parametrize("name", ["y.txt", "missing/y.npy"])
def test_the_output_is_checked_first(name: str, command: Command) -> None:
    words = ["--x", "x.npy", "--lengths", "n.npy", "--output", name]
    status, out, err = command("run", "reverse_padded", *words)
    assert (status, out) == (2, "")
    assert err.startswith("dml_jax: `--output` must be")


@pytest.mark.parametrize("lengths", ["2,4,3", "[2, 4, 3]", "n.npy"])
def test_a_list_needs_no_brackets(lengths: str, command: Command) -> None:
    words = ["--x", "x.npy", "--lengths", lengths, "--output", "y.npy"]
    assert command("run", "reverse_padded", *words)[0] == 0
    assert_same_bits(np.load("y.npy"), reference.reverse_padded(X, [2, 4, 3]))


@pytest.mark.parametrize("operator", dml_jax.cli.info.OPERATORS)
def test_the_help_describes_every_parameter(operator: str, command: Command) -> None:
    status, out, _ = command("run", operator, "--help")
    described = re.findall(r"^  --([\w-]+) VALUE\s+[^\s(]", out, re.MULTILINE)
    parameters = inspect.signature(getattr(dml_jax, operator)).parameters
    assert (status, described) == (0, [name.replace("_", "-") for name in parameters])


def test_a_missing_parameter_is_named(command: Command) -> None:
    status, _, err = command("run", "reverse_padded", "--x", "x.npy")
    assert status == 2
    assert err.endswith("the following arguments are required: --lengths\n")
