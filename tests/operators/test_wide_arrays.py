"""Arrays of JAX that were made in 64-bit mode, inside and outside of it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, numbers, sampled_x64
from sampling import default_of

import dml_jax
from dml_jax import reference

X = numbers(3, 4)
LENGTHS = {
    "int64": np.array([2**32 + 1, -(2**32) + 2, 3]),
    "int64-min-max": np.array([-(2**63), 2**63 - 1, 2]),
    "uint64": np.array([2**63 + 2, 2**32 + 1, 3], np.uint64),
    "int64-fine": np.array([0, 4, 2]),
}
KINDS = default_of(LENGTHS, "int64")
FAR_LENGTHS = LENGTHS["int64"]
reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR)


def wide(array: Any) -> jax.Array:
    with jax.enable_x64(True):
        return jnp.asarray(array)


def reversed_by(lengths: Any, x: np.ndarray = X) -> np.ndarray:
    return reference.reverse_sequence(x, lengths, **BATCH_MAJOR)


def single(x: jax.Array, length: jax.Array) -> jax.Array:
    # Indexing would narrow it.
    return reverse(x[None], jax.lax.expand_dims(length, [0]))[0]


TRANSFORMED = {
    "plain": reverse,
    "lines": lambda x, n: dml_jax.reverse_subsequences(x, n[:, None], 1),
    "gather": functools.partial(reverse, implementation="gather"),
    "jit": jax.jit(reverse),
    "vmap": jax.vmap(single),
    "jit-of-vmap": jax.jit(jax.vmap(single)),
    "vmap-of-jit": jax.vmap(jax.jit(single)),
    "scan": lambda x, n: jax.lax.scan(lambda y, _: (reverse(y, n), None), x, length=3)[
        0
    ],
    "remat": jax.checkpoint(reverse),
    "grad": jax.grad(lambda x, n: jnp.sum(reverse(x, n) * X)),
    "jvp": lambda x, n: jax.jvp(lambda x: reverse(x, n, training=False), (X,), (x,))[1],
    "cond": lambda x, n: jax.lax.cond(True, lambda: reverse(x, n), lambda: x),
    "export": lambda x, n: jax.export.export(jax.jit(reverse))(x, n).call(x, n),
}


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_lengths(name: str, kind: str) -> None:
    function, lengths = TRANSFORMED[name], LENGTHS[kind]
    expected = reversed_by([min(max(int(n), 0), 4) for n in lengths])
    assert_same_bits(function(X, wide(lengths)), expected)
    assert_same_bits(jax.jit(lambda x: function(x, wide(lengths)))(X), expected)


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["plain", "lines", "jit", "vmap", "jit-of-vmap", "scan", "grad", "cond"]
)
def test_checked_lengths(name: str, kind: str) -> None:
    function, lengths = TRANSFORMED[name], LENGTHS[kind]
    if kind == "int64-fine":
        checked = dml_jax.checked(function)(X, wide(lengths))
        assert_same_bits(checked, reversed_by(lengths))
        return
    extremes = rf"; got {lengths.min()} to {lengths.max()}$"
    with pytest.raises(ValueError, match=extremes):
        dml_jax.checked(function)(X, wide(lengths))
    with pytest.raises(ValueError, match=extremes):
        dml_jax.checked(lambda x: function(x, wide(lengths)))(X)


@pytest.mark.usefixtures("x64")
def test_lengths_of_strings_and_in_lists() -> None:
    text = np.array([["a", "b", "c", "d"]] * 3)
    result = reverse(text, wide(FAR_LENGTHS))
    np.testing.assert_array_equal(result, reversed_by([4, 0, 3], text))
    lengths = [wide(n) for n in FAR_LENGTHS]
    assert_same_bits(reverse(X, lengths), reversed_by([4, 0, 3]))


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


# Moves of 64-bit arrays ---------------------------------------------------------------

WIDE = {
    "float64": np.array([[-0.0, 1e300, 5e-324, np.pi], [np.inf, 1, 2, 3]]),
    "complex128": np.array([[1e300 - 0.0j, 2j, -1, 4], [5, 6, 7, 1e-300j]]),
    "int64": np.array([[2**40, -(2**50), 3, 4], [5, 6, 7, 2**63 - 1]]),
    "uint64": np.array([[2**63, 1, 2, 3], [4, 5, 6, 2**64 - 1]], np.uint64),
}
PARTS = np.array([[3], [2]], np.int32)
WINDOW = (0, 1), (2, 3), (1, -2)
REVERSAL = "reverse_subsequences", (PARTS, 1)
MOVES_OF_WIDE = {  # the function, the arguments after the first one, and options
    "reverse_subsequences": (*REVERSAL, {}),
    "gather": (*REVERSAL, {"implementation": "gather"}),
    "scatter": (*REVERSAL, {"implementation": "scatter"}),
    "reverse_sequence": ("reverse_sequence", (PARTS.ravel(),), BATCH_MAJOR),
    "slice": ("slice", ((0, 1), (2, 2), (1, 2)), {}),
    "slice1": ("slice1", WINDOW, {}),
    "slice_grad": ("slice_grad", ((2, 9), (0, 1), (2, 8), (1, -2)), {}),
}
CALLS = {
    "plain": lambda run, x: run(x),
    "jit": lambda run, x: jax.jit(run)(x),
    "vmap": lambda run, x: jax.vmap(run)(jax.lax.expand_dims(x, [0])),
    "scan": lambda run, x: jax.lax.map(run, jax.lax.expand_dims(x, [0])),
}


def move(name: str) -> tuple[Callable[..., jax.Array], Callable[..., np.ndarray]]:
    """A function of an array, by dml_jax and by its reference."""
    function, others, options = MOVES_OF_WIDE[name]
    axes = options if "batch_axis" in options else {}
    by_reference = getattr(reference, function)
    return (
        lambda x: getattr(dml_jax, function)(x, *others, **options),
        lambda x: by_reference(x, *others, **axes),
    )


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", default_of(WIDE, "float64"))
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", MOVES_OF_WIDE)
def test_moves_keep_their_width(name: str, call: str, dtype: str) -> None:
    run, by_reference = move(name)
    y = CALLS[call](run, wide(WIDE[dtype]))
    expected = by_reference(WIDE[dtype])
    assert_same_bits(y, expected if call in ("plain", "jit") else expected[None])


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", default_of(["float64", "complex128"], "float64"))
@pytest.mark.parametrize("name", MOVES_OF_WIDE)
def test_derivatives_keep_their_width(name: str, dtype: str) -> None:
    """Also where a derivative is taken in one mode and applied in the other."""
    run, by_reference = move(name)
    x = wide(WIDE[dtype])
    assert_same_bits(jax.jvp(run, (x,), (x,))[1], by_reference(WIDE[dtype]))
    y, pullback = jax.vjp(run, x)
    (here,) = pullback(y)
    with jax.enable_x64(not jax.config.jax_enable_x64):
        _, pullback = jax.vjp(run, x)
        (there,) = pullback(y)
    assert_same_bits(pullback(y)[0], here)
    assert_same_bits(there, here)
    # The adjoint of the result is what was moved, moved back.
    is_kept = np.asarray(pullback(wide(np.ones(y.shape, dtype)))[0]) != 0
    assert_same_bits(here, np.where(is_kept, WIDE[dtype], 0))


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
