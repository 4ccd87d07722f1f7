"""Fills that eight devices share: values, shardings, communication."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from devices import ALL, DATA, MODEL, collectives, compile_for, make_mesh, most_elements
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax

FILL_LAYOUTS = [
    ((8, 4000), P("data", "model")),
    ((64000,), P(ALL)),
]
FILL_DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.uint8]


def fill_sequence(sizes, dtype):
    return partial(dml_jax.fill_value_sequence, sizes, dtype)


def fill_constant(sizes, dtype):
    def fill(start, delta):
        return dml_jax.fill_value_constant(sizes, dtype, start)

    return fill


def tangent_of_sequence(sizes, dtype):
    def tangent(*values):
        return jax.jvp(fill_sequence(sizes, dtype), values, values)[1]

    return tangent


def values(dtype):
    """A start and a delta whose sums are rounded, overflow or wrap."""
    start, delta = (10, 3) if dtype == jnp.uint8 else (-3.2, 0.1)
    return np.asarray(start, dtype), np.asarray(delta, dtype)


FILLS = [
    *itertools.product([fill_sequence], FILL_LAYOUTS, FILL_DTYPES),
    *itertools.product([fill_constant], FILL_LAYOUTS[:1], FILL_DTYPES),
    *itertools.product([tangent_of_sequence], FILL_LAYOUTS[:1], FILL_DTYPES[:-1]),
]


def over_fills(fills):
    """Parametrizes with a fill, its sizes, how it is sharded and its dtype."""
    return pytest.mark.parametrize(
        ("fill", "sizes", "spec", "dtype"),
        [
            pytest.param(
                fill,
                sizes,
                spec,
                dtype,
                id=f"{fill.__name__}-{len(sizes)}d-{dtype.__name__}",
            )
            for fill, (sizes, spec), dtype in fills
        ],
    )


def assert_filled_in_shards(run, compiled, dtype):
    """Checks the values, and that no device computes more than its shard."""
    result = compiled(*values(dtype))
    assert_same_bits(result, np.asarray(jax.jit(run)(*values(dtype))))
    assert collectives(compiled) == []
    assert most_elements(compiled) == result.size // (DATA * MODEL)
    return result


@pytest.mark.usefixtures("nans_are_data")
@over_fills(FILLS)
def test_fill_under_an_output_sharding(fill, sizes, spec, dtype):
    run = fill(sizes, dtype)
    sharding = NamedSharding(make_mesh(AxisType.Auto), spec)
    compiled = compile_for(run, *values(dtype), out_shardings=sharding)
    result = assert_filled_in_shards(run, compiled, dtype)
    assert result.sharding.is_equivalent_to(sharding, result.ndim)


@over_fills([fill for fill in FILLS if fill[-1] == jnp.float32])
def test_fill_in_explicit_mode(fill, sizes, spec, dtype):
    run = fill(sizes, dtype)
    with jax.set_mesh(make_mesh(AxisType.Explicit)):
        sharded = jax.sharding.auto_axes(run, out_sharding=spec)
        compiled = compile_for(sharded, *values(dtype))
    result = assert_filled_in_shards(run, compiled, dtype)
    assert jax.typeof(result).sharding.spec == spec


@pytest.mark.parametrize("fill", [fill_sequence, fill_constant])
def test_a_fill_has_the_mesh_of_other_new_arrays(fill):
    """So that both can meet in one operation."""
    with jax.set_mesh(make_mesh(AxisType.Explicit)):

        def run(*scalars):
            y = fill((8,), jnp.float32)(*scalars)
            new = jnp.full((8,), 0, jnp.float32)
            assert jax.typeof(y).sharding == jax.typeof(new).sharding
            return jax.lax.dynamic_update_slice(new, y, (0,))

        scalars = values(jnp.float32)
        y = jax.jit(run)(*scalars)
    assert_same_bits(y, np.asarray(fill((8,), jnp.float32)(*scalars)))
