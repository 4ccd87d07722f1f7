"""Fills of sharded arrays: each device computes its own shard, and sends nothing.

Random programs show that of the values; these are derivatives and explicit meshes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from devices import EXPLICIT, MODES, collectives, compile_for, mesh_of, most_elements
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax

SIZES, SPEC = (8, 4000), P("data", "model")
START, DELTA = -3.2, 0.1  # whose sums are rounded
Fill = Callable[..., jax.Array]


def sequence(sizes: tuple[int, ...], dtype: Any) -> Fill:
    return partial(dml_jax.fill_value_sequence, sizes, dtype)


def constant(sizes: tuple[int, ...], dtype: Any) -> Fill:
    return lambda start, _: dml_jax.fill_value_constant(sizes, dtype, start)


def tangent(sizes: tuple[int, ...], dtype: Any) -> Fill:
    return lambda *values: jax.jvp(sequence(sizes, dtype), values, values)[1]


def require_own_shards(compiled: Any, expected: Fill, *values: Any) -> None:
    result = compiled(*values)
    assert_same_bits(result, np.asarray(jax.jit(expected)(*values)))
    assert collectives(compiled) == set()
    assert most_elements(compiled) == result.size // 8


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", default_of(["float32", "float16"], "float32"))
def test_tangents(dtype: str, mode: AxisType) -> None:
    mesh, run = mesh_of(mode, data=4, model=2), tangent(SIZES, dtype)
    values = [np.asarray(value, jnp.dtype(dtype)) for value in (START, DELTA)]
    with jax.set_mesh(mesh):
        compiled = compile_for(run, *values, out_shardings=NamedSharding(mesh, SPEC))
    require_own_shards(compiled, run, *values)


@pytest.mark.parametrize("fill", [sequence, constant, tangent])
def test_automatic_axes_within_an_explicit_program(fill: Callable[..., Fill]) -> None:
    values, run = [np.float32(START), np.float32(DELTA)], fill(SIZES, "float32")
    with jax.set_mesh(mesh_of(EXPLICIT, data=4, model=2)):
        compiled = compile_for(jax.sharding.auto_axes(run, out_sharding=SPEC), *values)
    require_own_shards(compiled, run, *values)


@pytest.mark.parametrize("fill", [sequence, constant])
def test_a_fill_has_the_mesh_of_other_new_arrays(fill: Callable[..., Fill]) -> None:
    """So that one operation can have both as operands."""

    def run(*scalars: jax.Array) -> jax.Array:
        y, new = fill((8,), "float32")(*scalars), jnp.full((8,), 0, jnp.float32)
        assert jax.typeof(y).sharding == jax.typeof(new).sharding
        return jax.lax.dynamic_update_slice(new, y, (0,))

    scalars = np.float32(START), np.float32(DELTA)
    with jax.set_mesh(mesh_of(EXPLICIT, data=4, model=2)):
        y = jax.jit(run)(*scalars)
    assert_same_bits(y, np.asarray(fill((8,), "float32")(*scalars)))
