"""Any call of a public function gives what the reference gives, or is refused."""

import inspect
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_sequence
from calls import Call, chooser, near_values, random_call
from cases import FUNCTIONS
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of
from sampling import default_of

import dml_jax
from dml_jax import reference

SEEDS = st.integers(0, 2**32 - 1)


def require_reference(call: Call, result: Any) -> None:
    expected = getattr(reference, call.function)(**call.plain)
    if call.function == "fill_value_sequence":
        assert_same_sequence(result, expected)
    else:
        assert_same_bits(np.asarray(result), expected)


def run(call: Call, positional: int = 0) -> Any:
    """The call with its first arguments by position."""
    function, values = getattr(dml_jax, call.function), dict(call.values)
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = [name for name in names[:positional] if name in values]
    return function(*[values.pop(name) for name in names], **values)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("x64", default_of([False, True], False), ids=["x32", "x64"])
def test_calls(function: str, x64: bool, fuzz: Any) -> None:
    """One that is right, and one in which an argument or two are near to right."""

    @fuzz
    def check(data: st.DataObject) -> None:
        with jax.enable_x64(x64):
            seed = data.draw(SEEDS)
            call = random_call(function, seed, x64)
            require_reference(call, run(call, data.draw(st.integers(0, 6))))
            random = np.random.default_rng([seed, 1])
            choose = chooser(random)
            for _ in range(random.integers(1, 3)):
                name = choose(list(call.plain))
                call = call.replaced(name, near_values(choose, name, call.plain[name]))
            result = outcome_of(lambda: run(call), f"{function}: ")
            if not isinstance(result, Refusal):
                require_reference(call, result)
