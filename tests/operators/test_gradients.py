"""Sums of cotangents, the coefficient of the training mode, and compiled text.

`test_random_calls.py` has the derivatives of what moves data, of both orders.
"""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, EXAMPLES, MOVES, linear, numbers, with_dtype
from dtypes import dtype_of
from sampling import default_of

import dml_jax
from dml_jax import reference

# Sums: a running one in a narrow dtype stops growing long before ----------------------

NARROW = [(jnp.bfloat16, 50_000), (jnp.float16, 4097), (jnp.float8_e5m2, 1000)]
OPTIONS = [{}, {"training": False}]  # JAX sums those of a `custom_vjp`


def rounded(number: Any, dtype: Any) -> np.ndarray:
    return np.asarray(number, np.float32).astype(dtype)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("dtype", "count"), default_of(NARROW, NARROW[0]))
def test_cotangent_of_an_input_that_many_lengths_share(
    dtype: Any, count: int, options: dict[str, Any]
) -> None:
    reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR, **options)
    lengths = np.arange(count).reshape(count, 1) % 4
    mapped = jax.vmap(reverse, (None, 0))
    _, pullback = jax.vjp(lambda x: mapped(x, lengths), jnp.ones((1, 3), dtype))
    row = np.array([[1, 2, 4]], np.float32)
    (cotangent,) = pullback(jnp.asarray(np.tile(row, (count, 1, 1)), dtype))
    rows = [reference.reverse_sequence(row, [n], 0, 1) for n in range(4)]
    total = np.tensordot(np.bincount(lengths.ravel()), rows, 1)
    assert_same_bits(cotangent, rounded(total, dtype))


def wide(array: Any) -> jax.Array:
    """An array that is made in 64-bit mode."""
    with jax.enable_x64(True):
        return jnp.asarray(array)


@pytest.mark.usefixtures("x64")
def test_sums_keep_their_width() -> None:
    """The cotangent of an input that mapped lengths share."""
    x = wide(np.array([[1e-30, 1.0, 2.0]]))
    lengths = np.array([[1], [3], [2]])
    mapped = jax.vmap(
        functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR), (None, 0)
    )
    _, pullback = jax.vjp(lambda x: mapped(x, lengths), x)
    (cotangent,) = pullback(wide(np.full((3, 1, 3), 1 + 2.0**-40)))
    assert_same_bits(cotangent, np.full((1, 3), 3 * (1 + 2.0**-40)))


# The coefficient ----------------------------------------------------------------------

X = numbers(3, 4)
LENGTHS = np.array([4, 2, 3])
REVERSED = reference.reverse_sequence(X, LENGTHS, **BATCH_MAJOR)


def reverse(x: Any, coefficient: Any = 1.0, **options: Any) -> jax.Array:
    return dml_jax.reverse_sequence(
        x, LENGTHS, lda_coeff=coefficient, **BATCH_MAJOR, **options
    )


def cotangent_by(coefficient: Any, x: Any = X, **options: Any) -> jax.Array:
    return jax.vjp(lambda x: reverse(x, coefficient, **options), x)[1](x)[0]


COEFFICIENTS = [
    *[(0, "float32"), (0.5, "complex64"), (-2, "float32"), (np.int8(3), "float32")],
    # The coefficient is rounded to float32, and only the product to bfloat16.
    *[
        (0.3, "bfloat16"),
        (jnp.bfloat16(0.5), "float16"),
        (jnp.float16(3.5), "bfloat16"),
    ],
    *[(jnp.float16(0.5), "float8_e4m3fn"), (jnp.int32(3), "float32")],
]


@pytest.mark.parametrize(("coefficient", "dtype"), COEFFICIENTS)
def test_coefficient_scales_the_cotangent(coefficient: Any, dtype: str) -> None:
    x = jnp.asarray(X, dtype)
    wide = np.complex64 if dtype == "complex64" else np.float32
    scaled = np.float32(coefficient) * np.asarray(x).astype(wide)
    expected = reference.reverse_sequence(scaled, LENGTHS, **BATCH_MAJOR)
    for is_off in (False, True):
        with jax.disable_jit(is_off):
            found = cotangent_by(coefficient, x)
        assert_same_bits(found, expected.astype(dtype_of(dtype)))
    assert_same_bits(cotangent_by(coefficient, X, training=False), REVERSED)


@pytest.mark.parametrize("coefficient", [0.5, 3.0, np.nan, np.inf])
def test_coefficient_never_touches_the_result(coefficient: float) -> None:
    assert_same_bits(jax.jit(reverse)(X, jnp.float32(coefficient)), REVERSED)


def test_mapped_coefficients_scale_each_its_own_result() -> None:
    coefficients = jnp.array([0.5, 2.0])
    _, pullback = jax.vjp(lambda x: jax.vmap(reverse, (None, 0))(x, coefficients), X)
    assert_same_bits(pullback(jnp.stack([X, X]))[0], 2.5 * REVERSED)


def test_nothing_flows_to_the_coefficient() -> None:
    def total(c: Any) -> jax.Array:
        return jnp.sum(jax.grad(lambda x: jnp.sum(reverse(x, c) ** 2))(X))

    assert jax.grad(lambda c: jnp.sum(reverse(X, c)))(0.5) == 0
    assert jax.grad(total)(0.5) == 0


def test_each_backward_pass_multiplies_by_the_coefficient() -> None:
    def squares(x: jax.Array) -> jax.Array:
        return jnp.sum(reverse(x, 0.5) ** 2)

    def directional(x: jax.Array) -> jax.Array:
        return jnp.vdot(jax.grad(squares)(x), X)

    assert_same_bits(jax.grad(directional)(X), 2 * 0.5 * 0.5 * X)


# What is saved and compiled -----------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_only_the_lengths_are_saved(
    training: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    jax.ad_checkpoint.print_saved_residuals(
        lambda x, lengths: dml_jax.reverse_sequence(
            jnp.exp(x), lengths, training=training, **BATCH_MAJOR
        ),
        X,
        LENGTHS.astype(np.int32),
    )
    saved = capsys.readouterr().out.splitlines()
    (large,) = [line for line in saved if "[3,4]" in line]
    assert "exp" in large  # the result of exp, which exp itself keeps


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MOVES)
def test_compiled_backward_pass_has_no_scatter(name: str, dtype: str) -> None:
    case = with_dtype(EXAMPLES[name], dtype_of(dtype))
    (data,) = linear(case)

    def backward(x: jax.Array, cotangent: jax.Array) -> Any:
        return jax.vjp(lambda x: case.run(**{data: x}), x)[1](cotangent)

    arrays = case.arrays[data], case.expected()
    compiled = jax.jit(backward).lower(*arrays).compile().as_text()
    assert not re.search(r"\bscatter\(", compiled)


def test_the_scatter_formulation_does_scatter() -> None:
    """The test above can fail: the text does say scatter where there is one."""
    function = functools.partial(reverse, implementation="scatter", training=False)
    compiled = jax.jit(function).lower(X).compile().as_text()
    assert re.search(r"\bscatter\(", compiled)


@pytest.mark.parametrize("training", [True, False])
def test_forward_pass_is_one_fusion(training: bool) -> None:
    """No copy, no transpose, no second pass over the data."""

    def pipeline(x: jax.Array, lengths: jax.Array) -> jax.Array:
        y = dml_jax.reverse_sequence(2 * x, lengths, training=training, **BATCH_MAJOR)
        return jnp.tanh(y) + 1

    arrays = jnp.zeros((8, 128, 16)), jnp.arange(8)
    text = jax.jit(pipeline).lower(*arrays).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert len(re.findall(r"\bfusion\(", entry)) == 1, entry
    assert not re.search(r"\b(copy|transpose|gather|while)\(", entry), entry
