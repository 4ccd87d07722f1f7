"""64-bit arrays outside of 64-bit mode, where JAX narrows what it makes."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import numpy as np


def is_wide(dtype: Any) -> bool:
    """Whether JAX has arrays of a dtype only in 64-bit mode."""
    return np.dtype(dtype).itemsize == 8


def in_width_of(*arrays: Any) -> contextlib.AbstractContextManager[Any]:
    """64-bit mode where an array needs it, or else the mode that there is."""
    if any(is_wide(array.dtype) for array in arrays):
        return jax.enable_x64(True)
    return contextlib.nullcontext()
