"""What the tests of formulations share."""

import jax
import numpy as np
from dtypes import dtype_of

DTYPES = ["uint8", "bool", "bfloat16", "float32"]


def data(shape, dtype):
    random, dtype = np.random.default_rng(0), dtype_of(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    # Of all bits, signalling NaNs among them.
    return random.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[
        ..., 0
    ]


def text_for(platform, function, *operands):
    return jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,))
