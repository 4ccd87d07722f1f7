"""Programs lowered for more devices than this process has."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax

pytestmark = pytest.mark.usefixtures("with_jit")


def reverse(x: jax.Array) -> jax.Array:
    lengths = jnp.arange(8, dtype=jnp.int32).reshape(8, 1, 1)
    return dml_jax.reverse_subsequences(x, lengths, 1)


def slice_gradient(x: jax.Array) -> jax.Array:
    sizes = (8, 128, 16)
    return dml_jax.slice_grad(x, sizes, (0, 0, 0), sizes, (1, 2, 1))


def lowered(function: Callable[..., Any], *shape: int, platform: str) -> str:
    mesh = AbstractMesh((16,), ("time",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P(None, "time"))
    x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    program = jax.jit(function).trace(x).lower(lowering_platforms=(platform,))
    return program.as_text()


@pytest.mark.parametrize("function", [reverse, slice_gradient])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm", "tpu"])
def test_they_keep_their_partitioning(
    platform: str, function: Callable[..., Any]
) -> None:
    text = lowered(function, 8, 64, 16, platform=platform)
    assert ("CustomSPMDPartitioning" in text) == (platform != "tpu")
    assert "gather" not in text


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_they_may_be_empty(platform: str) -> None:
    def reverse_rows(x: jax.Array) -> jax.Array:
        return dml_jax.reverse_subsequences(x, jnp.zeros((1, 1), jnp.int32), 1)

    def gradient(x: jax.Array) -> jax.Array:
        return dml_jax.slice_grad(x, (0, 128), (0, 0), (0, 128), (1, 2))

    lowered(reverse_rows, 0, 64, platform=platform)
    lowered(reverse_rows, 4, 0, platform=platform)
    lowered(gradient, 0, 64, platform=platform)
