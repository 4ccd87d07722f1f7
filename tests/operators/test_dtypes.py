"""Data that random calls do not have: all halves, and text on the host."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR
from dtypes import dtype_of

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


def test_strings_of_a_list_by_lengths_of_64_bits() -> None:
    with jax.enable_x64(True):
        lengths = jnp.asarray([2**32 + 1, -(2**32) + 2])
    result = dml_jax.reverse_sequence([["a", "b"], ["c", "d"]], lengths)
    assert result.tolist() == [["c", "b"], ["a", "d"]]
