"""Comparisons: of bits, of sequences of floats, and of results of products."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.cli.verify import within_a_unit


def bits(array: Any) -> np.ndarray:
    """The bytes of every element, as integers of the dtype's storage."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.ascontiguousarray(array)
    return array.view(np.dtype((np.uint8, array.dtype.itemsize)))


def assert_same_bits(actual: Any, expected: Any) -> None:
    """Same dtype, shape and bytes."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(bits(actual), bits(expected))


def assert_same_floats(actual: Any, expected: Any) -> None:
    """Same bits, but for NaNs, whose payload arithmetic does not define."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    with np.errstate(invalid="ignore"):  # by a signalling one
        are_nan = expected != expected
        np.testing.assert_array_equal(actual != actual, are_nan)
    np.testing.assert_array_equal(bits(actual)[~are_nan], bits(expected)[~are_nan])


def assert_same_sequence(actual: Any, expected: Any) -> None:
    """Same integers, and floats that differ by at most one unit in the last place."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        return assert_same_bits(actual, expected)
    if expected.dtype.kind == "c":
        assert_same_sequence(actual.real, expected.real)
        return assert_same_sequence(actual.imag, expected.imag)
    is_right = within_a_unit(actual, expected)
    wrong = np.argwhere(~is_right).tolist()
    assert not wrong, (
        f"at {wrong[0]}: {actual[~is_right][0]}, not {expected[~is_right][0]}"
    )


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Trees of arrays, whose differences are parts of the largest element, or of 1."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        x, y = (np.asarray(array, np.float64) for array in (x, y))
        largest = max(1.0, np.abs(y).max(initial=0))
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * largest)
