"""Strided buffers whose positions do not fit an int32, outside 64-bit mode.

Elements are bytes, since a buffer takes 2 GiB.
"""

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import buffer_size, copy_of, elements, with_buffer

from dml_jax.directml import BufferTensorDesc, DataType, compile_operator

FAR = 2**31
SIZES = (2, 2, 3)
LAYOUTS = {"woven": (FAR, 3, 2), "nested": (FAR, 4, 1)}
ENDS = [*range(16), *range(-16, 0)]


def require_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Between its ends, the expected buffer has zeros."""
    assert_same_bits(found[ENDS], expected[ENDS])
    assert np.count_nonzero(found) == np.count_nonzero(expected[ENDS])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("name", LAYOUTS)
def test_reads_writes_and_sums_of_cotangents(name: str) -> None:
    """A buffer has a different number at each of the first and last positions."""
    tensor = BufferTensorDesc(DataType.UINT8, SIZES, LAYOUTS[name])
    packed = BufferTensorDesc(DataType.UINT8, SIZES)
    values = np.arange(1, 13, dtype=np.uint8).reshape(SIZES)
    x = np.zeros(buffer_size(tensor), np.uint8)
    x[:16], x[-16:] = np.arange(1, 17), np.arange(101, 117)
    read = compile_operator(copy_of(tensor, packed))
    assert_same_bits(read(x), elements(tensor, x))

    (sums,) = jax.linear_transpose(read, x)(values)
    expected = np.zeros(x.shape, np.uint8)
    for index, value in np.ndenumerate(values):
        expected[np.dot(index, LAYOUTS[name])] += value
    require_same(np.asarray(sums), expected)

    written = np.asarray(with_buffer(copy_of(packed, tensor))(values, x))
    elements(tensor, x)[...] = values
    require_same(written, x)
