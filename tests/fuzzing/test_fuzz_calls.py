"""Any call of a public function gives what the reference gives, or is refused."""

from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_sequence
from calls import chooser, near_values, random_arguments
from cases import FUNCTIONS
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of
from sampling import default_of

import dml_jax
from dml_jax import reference

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("x64", default_of([False, True], False), ids=["x32", "x64"])
def test_calls(function: str, x64: bool, fuzz: Any) -> None:
    """One or two arguments are near to right."""
    is_sequence = function == "fill_value_sequence"
    compare = assert_same_sequence if is_sequence else assert_same_bits

    @fuzz
    def check(data: st.DataObject) -> None:
        seed = data.draw(SEEDS)
        arguments = random_arguments(function, seed, x64)
        random = np.random.default_rng([seed, 1])
        choose = chooser(random)
        for _ in range(random.integers(1, 3)):
            name = choose(list(arguments))
            arguments[name] = near_values(choose, name, arguments[name])
        call = getattr(dml_jax, function)
        with jax.enable_x64(x64):
            result = outcome_of(lambda: call(**arguments), f"{function}: ")
        if not isinstance(result, Refusal):
            expected = getattr(reference, function)(**arguments)
            compare(np.asarray(result), expected)
