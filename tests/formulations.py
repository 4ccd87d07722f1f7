"""What the tests of formulations share."""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from dtypes import dtype_of

from dml_jax._shared import jax_versions
from dml_jax.cli.verify_cases import random_bits

# Asks JAX itself: the package's own answer is under test.
on_a_hopper = pytest.mark.skipif(
    getattr(jax.devices()[0], "compute_capability", None) != "9.0",
    reason="takes a GPU with compute capability 9.0",
)

DTYPES = ["uint8", "bool", "bfloat16", "float32"]


def data(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Elements of all bits, signalling NaNs among them."""
    return random_bits(np.random.default_rng(seed), dtype_of(dtype), shape)


def text_for(platform: str, function: Callable[..., Any], *operands: Any) -> Any:
    # A new function each time: JAX keeps what it lowered, and tests change limits.
    program = jax.jit(functools.partial(function))
    return program.trace(*operands).lower(lowering_platforms=(platform,))


def text_for_cuda(
    function: Callable[..., Any], *operands: Any, are_hoppers: bool = True
) -> str:
    """The program for GPUs that all take the Mosaic kernels, or of which none does."""
    takes_kernels = are_hoppers and jax_versions._SUPPORTS_MOSAIC
    runs_mosaic = mock.patch.object(
        jax_versions, "runs_mosaic", return_value=takes_kernels
    )
    with runs_mosaic, jax.checking_leaks():
        return text_for("cuda", function, *operands).as_text()
