"""Data that random calls do not have: all halves, keys, and text on the host."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits, bits
from cases import BATCH_MAJOR
from dtypes import dtype_of
from sampling import default_of

import dml_jax
from dml_jax import reference


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("implementation", ["gather", "scatter"])
def test_all_65536_patterns_of_16_bits(name: str, implementation: str) -> None:
    array = np.arange(65536, dtype=np.uint16).view(dtype_of(name)).reshape(2, -1)
    lengths = np.array([[30001], [32768]])
    result = dml_jax.reverse_subsequences(
        array, lengths, 1, implementation=implementation
    )
    assert_same_bits(result, reference.reverse_subsequences(array, lengths, 1))


@pytest.mark.parametrize("implementation", ["gather", "scatter"])
@pytest.mark.parametrize("impl", default_of(["threefry2x32", "rbg"], "rbg"))
def test_prng_keys(impl: str, implementation: str) -> None:
    keys = jax.random.split(jax.random.key(0, impl=impl), (3, 4))
    lengths = jnp.array([4, 2, 3])
    result = dml_jax.reverse_sequence(
        keys, lengths, **BATCH_MAJOR, implementation=implementation
    )
    position = reference.reverse_sequence(
        np.arange(12).reshape(3, 4), lengths, **BATCH_MAJOR
    )
    assert result.dtype == keys.dtype
    np.testing.assert_array_equal(bits(result), bits(keys.reshape(12)[position]))
    sliced = dml_jax.slice1(keys, (0, 1), (3, 3), (1, -2))
    np.testing.assert_array_equal(bits(sliced), bits(keys[:, 3::-2]))
    constant = dml_jax.slice(keys, (1, 0), (2, 2))
    np.testing.assert_array_equal(bits(constant), bits(keys[1:, :2]))


# NumPy data that only exists on the host ----------------------------------------------

TEXT = [
    np.array([["a", "bc", ""], ["d", "e", "fgh"]]),
    np.array([[b"a", b"bc", b""], [b"d", b"e", b"f"]]),
    np.array([["a", None, 3], [(1,), "e", 2.5]], object),
    np.array([["a", "bc", ""], ["d", "e", "fgh"]], np.dtypes.StringDType()),
]


@pytest.mark.parametrize("array", TEXT, ids=lambda a: a.dtype.kind)
@pytest.mark.parametrize("lens", [[2, 3], [7, -1], np.array([0, 2], np.uint8)])
def test_strings_and_objects_stay_on_the_host(array: np.ndarray, lens: Any) -> None:
    result = dml_jax.reverse_sequence(array, lens, **BATCH_MAJOR)
    assert isinstance(result, np.ndarray)
    assert result.dtype == array.dtype
    expected = reference.reverse_sequence(array, lens, **BATCH_MAJOR)
    assert result.tolist() == expected.tolist()


def test_strings_along_an_axis_longer_than_the_lengths_dtype() -> None:
    array = np.arange(600).reshape(300, 2).astype(str)
    lengths = np.array([3, 4]).astype(dtype_of("int4"))
    expected = reference.reverse_sequence(array, [3, 4])
    assert dml_jax.reverse_sequence(array, lengths).tolist() == expected.tolist()


def test_strings_time_major_from_a_list() -> None:
    result = dml_jax.reverse_sequence([["a", "b"], ["c", "d"]], jnp.array([2, 1]))
    assert result.tolist() == [["c", "b"], ["a", "d"]]
