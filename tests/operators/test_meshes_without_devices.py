"""Programs lowered for more devices than this process has."""

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


@pytest.mark.parametrize("function", [reverse, slice_gradient])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm", "tpu"])
def test_they_keep_their_partitioning(platform: str, function: object) -> None:
    mesh = AbstractMesh((16,), ("time",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P(None, "time"))
    x = jax.ShapeDtypeStruct((8, 64, 16), jnp.float32, sharding=sharding)
    program = jax.jit(function).trace(x).lower(lowering_platforms=(platform,))
    text = program.as_text()
    assert ("CustomSPMDPartitioning" in text) == (platform != "tpu")
    assert "gather" not in text
