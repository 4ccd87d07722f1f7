"""Every case, and every published vector, against the reference, bit for bit."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import (
    CASES,
    MOVES,
    PUBLISHED,
    REVERSALS,
    Case,
    array_of,
    sampled,
    sampled_x64,
)

import dml_jax
from dml_jax import reference

WITH_IMPLEMENTATIONS = [case for case in REVERSALS if case.operator != "reverse_padded"]
VECTORS = [vector for vector in PUBLISHED if hasattr(dml_jax, vector["op"])]


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_reference(case: Case) -> None:
    result = case.run()
    assert isinstance(result, jax.Array)
    assert not result.aval.weak_type
    assert_same_bits(result, case.expected())


@pytest.mark.parametrize("case", sampled(MOVES), ids=str)
def test_no_result_is_weakly_typed(case: Case) -> None:
    arrays = {
        name: jnp.broadcast_to(jnp.asarray(1.0), np.shape(array))
        if name in case.linear
        else array
        for name, array in case.arrays.items()
    }
    assert any(jax.typeof(jnp.asarray(x)).weak_type for x in arrays.values())
    assert not case.run(**arrays).aval.weak_type


@pytest.mark.parametrize("implementation", ["gather", "scatter"])
@pytest.mark.parametrize("case", sampled(WITH_IMPLEMENTATIONS), ids=str)
def test_implementations_give_the_same_bits(case: Case, implementation: str) -> None:
    function = getattr(dml_jax, case.operator)
    result = function(**case.arrays, **case.options, implementation=implementation)
    assert_same_bits(result, case.expected())


@pytest.mark.parametrize("module", [dml_jax, reference], ids=["dml_jax", "reference"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['op']}-{v['name']}")
def test_published_vectors(vector: dict[str, Any], module: ModuleType) -> None:
    arrays = {name: array_of(value) for name, value in vector["inputs"].items()}
    result = getattr(module, vector["op"])(**arrays, **vector["attributes"])
    assert_same_bits(result, array_of(vector["output"]))


def test_no_vector_of_an_operator_is_left_out() -> None:
    assert len(VECTORS) == 18
