"""What the tests of formulations share."""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from dtypes import dtype_of, needs_x64

from dml_jax import reference
from dml_jax._reverse import primitive
from dml_jax._shared import jax_versions, lowering
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


def lines(
    shape: tuple[int, ...], axis: int, lengths: tuple[int, ...], dtype: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """Data, lengths of this shape, those at the ends among them, and the axis."""
    time = shape[axis]
    found = np.random.default_rng(0).integers(0, time + 1, lengths).astype(np.int32)
    edges = [time, 1, time - 1, 0][: found.size]
    found.flat[: len(edges)] = edges
    return data(shape, dtype), found, axis


def as_lowered(reverse: Callable[..., Any], platform: str) -> Callable[..., Any]:
    """A formulation, called as by the lowering rule of a platform."""
    formulation = primitive._FORMULATIONS[platform]._replace(reverse=reverse)
    return functools.partial(
        primitive._compute,
        implementation=None,
        formulation=formulation,
        uses_rotations=False,
        program=lowering.Partitioning(is_whole=True),
    )


def require_reversed(
    reverse: Callable[..., Any],
    x: np.ndarray,
    lengths: np.ndarray,
    axis: int,
    compiled: Callable[..., Any] = jax.jit,
) -> None:
    """The formulation gives what the reference gives."""
    with jax.enable_x64(needs_x64(x.dtype)):
        arrays = jnp.asarray(x), jnp.asarray(lengths)
        y = compiled(functools.partial(reverse, axis=axis))(*arrays)
    whole = np.broadcast_to(x, np.broadcast_shapes(x.shape, lengths.shape))
    assert_same_bits(y, reference.reverse_subsequences(whole, lengths, axis))


def text_for(platform: str, function: Callable[..., Any], *operands: Any) -> Any:
    # A new function each time: JAX keeps what it lowered, and tests change limits.
    program = jax.jit(functools.partial(function))
    return program.trace(*operands).lower(lowering_platforms=(platform,))


def text_for_cuda(
    function: Callable[..., Any], *operands: Any, are_hoppers: bool = True
) -> str:
    """The program for GPUs that all take the kernel, or of which none does."""
    takes_kernel = are_hoppers and jax_versions._SUPPORTS_MOSAIC
    runs_mosaic = mock.patch.object(
        jax_versions, "runs_mosaic", return_value=takes_kernel
    )
    with runs_mosaic, jax.checking_leaks():
        return text_for("cuda", function, *operands).as_text()
