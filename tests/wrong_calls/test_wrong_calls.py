"""Every argument of every entrance, given wrongly: the error, and what it says."""

import pathlib
from collections.abc import Iterable

import jax
import numpy as np
import pytest
from command_line import succeed

from wrong_calls import (
    arrays,
    bindings,
    commands,
    fills,
    graphs,
    models,
    options,
    programs,
    rules,
    structures,
)
from wrong_calls.form import Wrong, require_error
from wrong_calls.functions import VALID, call


def every(rows: Iterable[Wrong]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", list(rows), ids=lambda row: row.name)


@pytest.mark.usefixtures("x32", "with_jit", "nans_are_data")
@every([*arrays.ROWS, *options.ROWS, *fills.ROWS, *programs.ROWS])
def test_functions(row: Wrong) -> None:
    require_error(row)


@pytest.mark.usefixtures("x32", "with_jit")
@every([*structures.ROWS, *rules.ROWS, *bindings.ROWS, *graphs.ROWS])
def test_directml(row: Wrong) -> None:
    require_error(row)


@every(models.ROWS)
def test_models(
    row: Wrong, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models.make_folder(tmp_path))
    pathlib.Path("model.json").write_text(models.TEXT)
    require_error(row)


@every(commands.ROWS)
def test_commands(
    row: Wrong, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    commands.make_files()
    require_error(row)


# What is changed is valid -------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("function", VALID)
def test_the_calls_of_functions(function: str) -> None:
    call(function)


@pytest.mark.parametrize("flag", [False, True])
def test_the_model(
    flag: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With NaNs as data."""
    monkeypatch.chdir(models.make_folder(tmp_path))
    pathlib.Path("model.json").write_text(models.TEXT)
    with jax.debug_nans(flag):
        succeed("dispatch", "model.json")
    expected = [[np.nan, 2, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(np.load("out.npy"), expected)
