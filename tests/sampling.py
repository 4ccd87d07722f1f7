"""Which parameters of a test the default run has."""

from collections.abc import Iterable
from typing import Any

import pytest


def default_of(values: Iterable[Any], *default: Any) -> list[Any]:
    """Parameters of a test, all but `default` marked exhaustive."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else [value]),
            marks=() if value in default else pytest.mark.exhaustive,
        )
        for value in values
    ]


# 64-bit mode off, and on in exhaustive runs: parameters for the fixture `x64`.
sampled_x64 = pytest.mark.parametrize(
    "x64", default_of([False, True], False), ids=["x32", "x64"], indirect=True
)
