"""Published vectors, kinds of results and formulations, against the reference."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import (
    EXAMPLES,
    MOVES,
    PUBLISHED,
    array_of,
    linear,
    random_case,
    with_options,
)
from sampling import default_of

import dml_jax
from dml_jax import reference

VECTORS = [vector for vector in PUBLISHED if hasattr(dml_jax, vector["op"])]


@pytest.mark.parametrize("function", MOVES)
def test_no_result_is_weakly_typed(function: str) -> None:
    case = EXAMPLES[function]
    (name,) = linear(case)
    ones = jnp.broadcast_to(jnp.asarray(1.0), np.shape(case.arrays[name]))
    assert jax.typeof(ones).weak_type
    assert not case.run(**{name: ones}).aval.weak_type


@pytest.mark.parametrize("seed", default_of(range(20), 0, 1))
@pytest.mark.parametrize("implementation", ["gather", "scatter"])
@pytest.mark.parametrize("function", ["reverse_subsequences", "reverse_sequence"])
def test_implementations_give_the_same_bits(
    function: str, implementation: str, seed: int
) -> None:
    case = with_options(random_case(function, seed), implementation=implementation)
    assert_same_bits(case.run(), case.expected())


@pytest.mark.parametrize("module", [dml_jax, reference], ids=["dml_jax", "reference"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['op']}-{v['name']}")
def test_published_vectors(vector: dict[str, Any], module: ModuleType) -> None:
    arrays = {name: array_of(value) for name, value in vector["inputs"].items()}
    result = getattr(module, vector["op"])(**arrays, **vector["attributes"])
    assert_same_bits(result, array_of(vector["output"]))


def test_no_vector_of_an_operator_is_left_out() -> None:
    assert len(VECTORS) == 18
