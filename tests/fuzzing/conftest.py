"""How many random examples a test of this folder draws."""

from collections.abc import Callable, Iterator

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Check = Callable[[st.DataObject], None]


@pytest.fixture(autouse=True)
def any_bits_are_drawn(nans_are_data: None) -> None:
    """Among them are those of NaNs."""


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.exhaustive)],
    ids=["sample", "exhaustive"],
)
def fuzz(request: pytest.FixtureRequest) -> Iterator[Callable[[Check], None]]:
    """Calls a check on random data: three times, or as often as the profile says."""

    def run(check: Check) -> None:
        count = settings.default.max_examples if request.param else 3
        settings(max_examples=count)(given(st.data())(check))()

    yield run
    if request.param:
        jax.clear_caches()  # the programs of a long run take gigabytes
