"""What the tests of formulations share."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from dtypes import dtype_of

DTYPES = ["uint8", "bool", "bfloat16", "float32"]


def data(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Elements of all bits, signalling NaNs among them."""
    random, numpy_dtype = np.random.default_rng(0), dtype_of(dtype)
    if numpy_dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    bytes_of = random.integers(0, 256, (*shape, numpy_dtype.itemsize), np.uint8)
    return bytes_of.view(numpy_dtype)[..., 0]


def text_for(platform: str, function: Callable[..., Any], *operands: Any) -> Any:
    return jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,))
