"""Gradients of large slices keep all bits of 16-bit floats."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits

from dml_jax import slice_grad


@pytest.mark.usefixtures("with_jit", "nans_are_data")
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_zeros_between_16_bit_floats_of_all_bits(dtype: Any, stride: int):
    """The arrays are so large that LLVM vectorizes the loops."""
    bits = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    shape, window = (256 * stride,) * 2, ((0, 0), (256 * stride,) * 2, (stride,) * 2)
    y = jax.jit(lambda x: slice_grad(x, shape, *window))(bits.view(dtype))
    expected = np.zeros(shape, np.uint16)
    expected[::stride, ::stride] = bits
    assert_same_bits(y, expected.view(dtype))
