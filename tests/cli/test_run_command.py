"""The run command: every operator from files, and what it writes."""

import json
import pathlib

import numpy as np
import pytest
from assertions import assert_same_bits
from cases import EXAMPLES
from command_line import run as command

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
