"""Every argument of every entrance, given wrongly: the error, and what it says."""

from collections.abc import Iterable

import pytest

from wrong_calls import (
    arrays,
    bindings,
    fills,
    graphs,
    options,
    rules,
    structures,
    windows,
)
from wrong_calls.form import Wrong, require_error
from wrong_calls.functions import VALID, call


def every(rows: Iterable[Wrong]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", list(rows), ids=lambda row: row.name)


@pytest.mark.usefixtures("x32", "with_jit")
@every([*arrays.ROWS, *options.ROWS, *windows.ROWS, *fills.ROWS])
def test_functions(row: Wrong) -> None:
    require_error(row)


@pytest.mark.usefixtures("x32", "with_jit")
@every([*structures.ROWS, *rules.ROWS, *bindings.ROWS, *graphs.ROWS])
def test_directml(row: Wrong) -> None:
    require_error(row)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("function", VALID)
def test_the_call_of_a_function_that_is_changed_is_valid(function: str) -> None:
    call(function)
