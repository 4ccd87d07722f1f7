"""Arrays that 31 or 32 bits cannot count, on an accelerator that has the memory.

Compared on the device with what has no large index: slices of the array itself.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dml_jax import (
    fill_value_constant,
    fill_value_sequence,
    reverse_subsequences,
    slice1,
)

pytestmark = pytest.mark.skipif(
    jax.default_backend() == "cpu", reason="takes an accelerator with 32 GiB"
)

SIZE = 3 * 2**30


def ramp(shape: tuple[int, ...]) -> jax.Array:
    return fill_value_sequence(shape, "uint8", 1, 37)


def part(y: jax.Array, first: int) -> jax.Array:
    """Sixteen elements; between brackets, an index would have to be an int32."""
    with jax.disable_jit(False):  # or it would be an argument
        return jax.jit(lambda y: lax.slice(y, (first,), (first + 16,)))(y)


def expected(positions: Any) -> np.ndarray:
    return (1 + 37 * np.asarray(positions, np.uint64)) % 256


@pytest.mark.parametrize("implementation", ["gather", None])
def test_reversal_of_many_rows(implementation: str | None) -> None:
    x = ramp((49152, 65536))
    lengths = jnp.arange(49152)[:, None] % 65537
    y = jax.jit(
        reverse_subsequences, static_argnums=2, static_argnames="implementation"
    )(x, lengths, 1, implementation=implementation)
    for row in (0, 1, 40001, 49151):
        whole = reverse_subsequences(x[row : row + 1], lengths[row : row + 1], 1)
        assert (y[row : row + 1] == whole).all()


@pytest.mark.parametrize("batch", [3, 1])
def test_reversal_of_columns(batch: int) -> None:
    x = ramp((batch, 1024, 3 * 2**20 // batch))
    lengths = jnp.arange(batch * x.shape[2]).reshape(batch, 1, -1) % 1025
    y = reverse_subsequences(x, lengths, 1)
    for first in (0, 1000003, x.shape[2] - 16):
        part = slice(first, first + 16)
        x_part, lengths_part = x[-1:, :, part], lengths[-1:, :, part]
        assert (y[-1:, :, part] == reverse_subsequences(x_part, lengths_part, 1)).all()


@pytest.mark.parametrize("length", [SIZE, 2**31 + 5])
def test_reversal_of_one_row(length: int) -> None:
    y = reverse_subsequences(ramp((1, SIZE)), jnp.array([[length]], jnp.uint32), 1)
    for first in (0, 2**31 - 8, length - 16, SIZE - 16):
        k = np.arange(first, first + 16, dtype=np.int64)
        source = np.where(k < length, length - 1 - k, k)
        np.testing.assert_array_equal(part(y[0], first), expected(source))


@pytest.mark.parametrize("stride", [1, -3])
def test_slice(stride: int) -> None:
    size = SIZE - 9 if stride == 1 else (SIZE - 10) // 3 + 1
    y = slice1(ramp((SIZE,)), (5,), (SIZE - 9,), (stride,))
    assert y.shape == (size,)
    for first in (0, size // 2, size - 16):
        k = np.arange(first, first + 16, dtype=np.int64)
        source = 5 + k if stride == 1 else SIZE - 5 - 3 * k
        np.testing.assert_array_equal(part(y, first), expected(source))


@pytest.mark.parametrize("size", [2**32 + 24, 2**32 + 2**11])
def test_fill(size: int) -> None:
    y = ramp((size,))
    for first in (0, 2**31 - 8, 2**32 - 8, size - 16):
        k = np.arange(first, first + 16, dtype=np.uint64)
        np.testing.assert_array_equal(part(y, first), expected(k))
    assert (fill_value_constant((size,), "uint8", 7) == 7).all()


def test_fill_of_floats() -> None:
    size = 2**32 + 24
    y = fill_value_sequence((size,), "float16", -2.0, 2.0**-20)
    for first in (0, 2**21 - 8, 2**32 - 8):
        k = np.arange(first, first + 16, dtype=np.float64)
        wanted = np.float16(np.minimum(k * 2.0**-20 - 2, 65504))
        np.testing.assert_array_equal(part(y, first), wanted)
