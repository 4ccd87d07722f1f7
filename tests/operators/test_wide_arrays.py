"""Coefficients, scalars and sums of 64 bits, inside and outside of 64-bit mode."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR

import dml_jax

reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR)


def wide(array: Any) -> jax.Array:
    with jax.enable_x64(True):
        return jnp.asarray(array)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("coefficient", "seed"),
    [(np.float64(1e-50), 1e30), (np.float64(1e50), 1e-30), (np.int64(2**40), 3.0)],
    ids=["small", "large", "int"],
)
@pytest.mark.parametrize("of", ["closed-over", "argument", "vmap"])
def test_coefficients_are_not_narrowed(of: str, coefficient: Any, seed: float) -> None:
    x = np.full((1, 3), 1, np.float32)

    def gradient(coefficient: jax.Array) -> jax.Array:
        _, pullback = jax.vjp(lambda x: reverse(x, [2], lda_coeff=coefficient), x)
        return pullback(np.full((1, 3), seed, np.float32))[0]

    run = {
        "closed-over": lambda: jax.jit(lambda: gradient(wide(coefficient)))(),
        "argument": lambda: jax.jit(gradient)(wide(coefficient)),
        "vmap": lambda: jax.vmap(gradient)(wide(coefficient[None]))[0],
    }[of]
    expected = np.float32(np.float64(np.float32(seed)) * np.float64(coefficient))
    assert_same_bits(run(), np.full((1, 3), expected, np.float32))


@pytest.mark.usefixtures("x32")
def test_fills_of_python_numbers_that_jax_holds() -> None:
    with jax.enable_x64(True):  # weakly typed: they stand for the numbers
        small = jnp.asarray(1.5)
    filled = dml_jax.fill_value_constant((1,), "float32", small)
    assert_same_bits(filled, np.array([1.5], np.float32))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("options", [{}, {"lda_coeff": 0.5}, {"training": False}])
def test_sums_keep_their_width(options: dict[str, Any]) -> None:
    """The cotangent of an input that mapped lengths share."""
    x = wide(np.array([[1e-30, 1.0, 2.0]]))
    lengths = np.array([[1], [3], [2]])
    mapped = jax.vmap(functools.partial(reverse, **options), (None, 0))
    _, pullback = jax.vjp(lambda x: mapped(x, lengths), x)
    (cotangent,) = pullback(wide(np.full((3, 1, 3), 1 + 2.0**-40)))
    scale = options.get("lda_coeff", 1)
    assert_same_bits(cotangent, np.full((1, 3), 3 * scale * (1 + 2.0**-40)))
