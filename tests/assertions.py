"""Comparisons that tolerate nothing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


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
