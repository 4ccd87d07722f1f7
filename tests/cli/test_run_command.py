"""The run command: every operator from files, and what it writes."""

import inspect
import json
import pathlib
import re

import numpy as np
import pytest
from assertions import assert_same_bits
from cases import EXAMPLES
from command_line import run as command

import dml_jax
from dml_jax import reference
from dml_jax.cli import info
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


@pytest.mark.parametrize("name", EXAMPLES)
def test_gives_the_reference(name: str) -> None:
    case = EXAMPLES[name]
    words = [*words_of(case), "--device", "cpu", "--output", "y.npy"]
    status, out, err = command("run", case.function, *words)
    expected = case.expected()
    shape = ",".join(map(str, expected.shape))
    assert (status, out, err) == (0, f"Output: {expected.dtype}[{shape}]\n", "")
    assert_same_bits(np.load("y.npy"), expected)


@pytest.mark.parametrize("lengths", ["2,4,3", "[2, 4, 3]"])
def test_a_list_needs_no_brackets(lengths: str) -> None:
    x = np.arange(12.0).reshape(3, 4)
    np.save("x.npy", x)
    words = ["--x", "x.npy", "--lengths", lengths, "--output", "y.npy"]
    assert command("run", "reverse_padded", *words)[0] == 0
    assert_same_bits(np.load("y.npy"), reference.reverse_padded(x, [2, 4, 3]))


@pytest.mark.parametrize("operator", info.OPERATORS)
def test_the_help_describes_every_parameter(operator: str) -> None:
    status, out, _ = command("run", operator, "--help")
    described = re.findall(r"^  --([\w-]+) VALUE\s+[^\s(]", out, re.MULTILINE)
    parameters = inspect.signature(getattr(dml_jax, operator)).parameters
    assert (status, described) == (0, [name.replace("_", "-") for name in parameters])
