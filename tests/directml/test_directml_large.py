"""Strided buffers whose positions do not fit an int32, outside 64-bit mode.

Elements are bytes, since a buffer takes 2 GiB.
"""

from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import buffer_size, copy_of, elements, with_buffer

from dml_jax.directml import BufferTensorDesc, DataType, compile_operator

pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("x32")]

FAR = 2**31
SIZES = (2, 2, 3)
LAYOUTS = {"overlapping": (FAR, 1, 1), "woven": (FAR, 3, 2), "nested": (FAR, 4, 1)}


def of(strides: Any = None) -> BufferTensorDesc:
    return BufferTensorDesc(DataType.UINT8, SIZES, strides)


def values() -> np.ndarray:
    return np.arange(1, 13, dtype=np.uint8).reshape(SIZES)


def filled(tensor: BufferTensorDesc) -> np.ndarray:
    """A buffer with a different number at each of the first and last positions."""
    buffer = np.zeros(buffer_size(tensor), np.uint8)
    buffer[:16] = np.arange(1, 17)
    buffer[-16:] = np.arange(101, 117)
    return buffer


@pytest.mark.parametrize("name", LAYOUTS)
def test_reads(name: str) -> None:
    tensor = of(LAYOUTS[name])
    x = filled(tensor)
    found = compile_operator(copy_of(tensor, of()))(x)
    assert_same_bits(found, elements(tensor, x))


@pytest.mark.parametrize("name", ["woven", "nested"])
def test_writes(name: str) -> None:
    tensor = of(LAYOUTS[name])
    buffer = filled(tensor)
    found = np.asarray(with_buffer(copy_of(of(), tensor))(values(), buffer))
    elements(tensor, buffer)[...] = values()
    assert (found == buffer).all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_sums_of_cotangents(name: str) -> None:
    """The transpose of a read, which is what a backward pass computes."""
    tensor = of(LAYOUTS[name])
    read = compile_operator(copy_of(tensor, of()))
    x = jax.ShapeDtypeStruct((buffer_size(tensor),), np.uint8)
    (found,) = jax.linear_transpose(read, x)(values())
    expected = np.zeros(x.shape, np.uint8)
    for index, value in np.ndenumerate(values()):
        expected[np.dot(index, LAYOUTS[name])] += value
    assert (np.asarray(found) == expected).all()
