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
