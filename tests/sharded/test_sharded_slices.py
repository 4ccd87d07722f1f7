"""Gradients of slices of sharded arrays, and operators that XLA partitions unasked.

XLA's partitioner partitions `lax.pad` wrongly (docs/xla.md): without the package's own
partitioning, these windows have wrong gradients or end the process.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from devices import (
    collectives,
    compile_for,
    mesh_of,
    most_elements,
)
from devices import put as put_on
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax
from dml_jax import reference
from dml_jax._shared import partitioner as package_partitioner

Operator = Callable[..., Any]


# What is sent and held ----------------------------------------------------------------

STEPS, FEATURES = 64, 16


def gradient_of(offset: int, window: int, stride: int) -> tuple[Any, int]:
    """The program of a gradient over 8 devices, and the size of a shard."""
    arguments = (0, offset, 0), (4, window, FEATURES), (1, stride, 1)
    x = jnp.ones((4, STEPS, FEATURES), jnp.float32)
    loss = jax.grad(lambda x: jnp.sum(dml_jax.slice1(x, *arguments) ** 2))
    return compile_for(loss, put_on(x, mesh_of(a=8), None, "a")), x.size // 8


@pytest.mark.parametrize(
    ("offset", "stride", "sent"), [(1, 1, 1), (3, 1, 3), (0, 1, 0), (0, 2, 0)]
)
def test_only_what_a_neighbour_lacks_is_sent(
    offset: int, stride: int, sent: int
) -> None:
    compiled, shard = gradient_of(offset, STEPS - offset, stride)
    permuted = r"= f32\[4,(\d+),16\]\S* collective-permute\("
    steps = {int(steps) for steps in re.findall(permuted, compiled.as_text())}
    assert steps == ({sent} if sent else set())
    assert collectives(compiled) == ({"collective-permute"} if sent else set())
    assert compiled.output_shardings.shard_shape((4, STEPS, FEATURES)) == (4, 8, 16)
    # The pieces and their destination; XLA's slice pads its shard.
    assert most_elements(compiled) <= 2 * shard


# Where XLA does not ask how to partition ----------------------------------------------

SPECIAL = np.array([-0.0, np.nan, 1.0, -2.5, 1e-45, np.inf, -0.0, 7.0], np.float32)
SPECIAL.view(np.uint32)[1] = 0x7FA12345  # a signalling NaN


def reverse(x: Any, module: Any = dml_jax) -> Any:
    return module.reverse_subsequences(x, np.full((len(x), 1), 5), 1)


def put(x: Any, module: Any = dml_jax) -> Any:
    return module.slice_grad(x, (len(x), 24), (0, 2), (len(x), 22), (1, -3))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    "dtype",
    default_of(
        ["float32", "complex64", "bfloat16", "uint8", "bool", "int4"], "float32"
    ),
)
@pytest.mark.parametrize("run", [reverse, put])
def test_exported(run: Operator, dtype: str) -> None:
    x = np.tile(SPECIAL, (4, 1))
    if dtype not in ("float32", "complex64"):
        x = np.nan_to_num(x).clip(-3, 7)
    with np.errstate(invalid="ignore"):
        x = x.astype(jnp.dtype(dtype))
    sharding = NamedSharding(mesh_of(a=4), P(None, "a"))
    program = jax.jit(run, in_shardings=sharding, out_shardings=sharding)
    exported = jax.export.export(program)(x)
    y = jax.jit(exported.call)(jax.device_put(x, sharding))
    assert_same_bits(y, run(x, reference))


@pytest.mark.parametrize("run", [reverse, put])
def test_exported_with_its_derivative(run: Operator) -> None:
    sharding = NamedSharding(mesh_of(a=4), P(None, "a"))
    program = jax.jit(run, in_shardings=sharding, out_shardings=sharding)
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    exported = jax.export.export(program)(x)
    exported = jax.export.deserialize(exported.serialize(vjp_order=1))
    loss = jax.grad(lambda x: jnp.sum(exported.call(x) ** 2))
    assert_same_bits(jax.jit(loss)(jax.device_put(x, sharding)), 2 * x)


# Partitioners -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "spec"),
    [
        (dict(a=8), P("a", None)),
        (dict(a=2, b=4), P("b", "a")),
        (dict(a=4, b=2), P(("b", "a"), None)),
        (dict(a=2, b=4), P(("a", "b"))),
        (dict(a=2, b=3), P("b", "a")),
        (dict(a=3, b=2), P(None, ("b", "a"))),
        (dict(a=2, b=2, c=2), P("b", ("c", "a"))),
        (dict(a=2, b=2, c=2), P(None, "b")),
        (dict(a=2, b=4), P()),
    ],
)
def test_shardings_without_their_mesh(sizes: dict[str, int], spec: P) -> None:
    """The mesh that the package finds has the same tiles, device by device."""
    mesh, devices, shape = mesh_of(**sizes), math.prod(sizes.values()), (48, 48)
    sharding = NamedSharding(mesh, spec)
    found, (of_result,) = package_partitioner._decode([sharding], [2], devices)
    assert found.size == devices
    found = Mesh(mesh.devices.reshape(found.axis_sizes), found.axis_names)
    actual = NamedSharding(found, of_result).devices_indices_map(shape)
    assert actual == sharding.devices_indices_map(shape)
