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
    params=[5, pytest.param(None, marks=pytest.mark.exhaustive)],
    ids=["sample", "exhaustive"],
)
def fuzz(request: pytest.FixtureRequest) -> Iterator[Callable[[Check], None]]:
    """Calls a check with random data: five times, or as often as the profile says."""

    def run(check: Check) -> None:
        count = request.param or settings.default.max_examples
        settings(max_examples=count)(given(st.data())(check))()

    yield run
    if not request.param:
        jax.clear_caches()  # the programs of a long run take gigabytes
