"""Fills of sharded arrays: each device computes its own shard, and sends nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from devices import (
    AUTO,
    EXPLICIT,
    collectives,
    compile_for,
    mesh_of,
    most_elements,
)
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax

Fill = Callable[..., jax.Array]


def sequence(sizes: tuple[int, ...], dtype: Any) -> Fill:
    return partial(dml_jax.fill_value_sequence, sizes, dtype)


def constant(sizes: tuple[int, ...], dtype: Any) -> Fill:
    return lambda start, _: dml_jax.fill_value_constant(sizes, dtype, start)


def tangent(sizes: tuple[int, ...], dtype: Any) -> Fill:
    return lambda *values: jax.jvp(sequence(sizes, dtype), values, values)[1]


def values(dtype: Any) -> tuple[np.ndarray, ...]:
    """A start and a delta whose sums are rounded, overflow or wrap."""
    start, delta = (10, 3) if dtype == "uint8" else (-3.2, 0.1)
    return np.asarray(start, jnp.dtype(dtype)), np.asarray(delta, jnp.dtype(dtype))


LAYOUTS = {(8, 4000): P("data", "model"), (64000,): P(("data", "model"))}
FLOATS = ["float32", "bfloat16", "float16", "float8_e4m3fn", "complex64"]
DTYPES = [*FLOATS, "uint8", "int32"]
FILLS = [
    (fill, sizes, dtype, mode)
    for fill in (sequence, constant, tangent)
    for sizes in (LAYOUTS if fill is sequence else [(8, 4000)])
    for dtype in (FLOATS if fill is tangent else DTYPES)
    for mode in ("auto", "explicit", "auto-axes")
]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    ("fill", "sizes", "dtype", "mode"),
    default_of(FILLS, *[case for case in FILLS if case[2] == "float32"], *FILLS[::5]),
)
def test_fill(
    fill: Callable[..., Fill], sizes: tuple[int, ...], dtype: str, mode: str
) -> None:
    run, arguments, spec = fill(sizes, dtype), values(dtype), LAYOUTS[sizes]
    mesh = mesh_of(AUTO if mode == "auto" else EXPLICIT, data=4, model=2)
    sharding = NamedSharding(mesh, spec)
    if mode == "auto":
        compiled = compile_for(run, *arguments, out_shardings=sharding)
    else:
        with jax.set_mesh(mesh):
            if mode == "explicit":
                compiled = compile_for(run, *arguments, out_shardings=sharding)
            else:
                sharded = jax.sharding.auto_axes(run, out_sharding=spec)
                compiled = compile_for(sharded, *arguments)
    result = compiled(*arguments)
    assert_same_bits(result, np.asarray(jax.jit(run)(*arguments)))
    assert result.sharding.is_equivalent_to(sharding, result.ndim)
    assert collectives(compiled) == set()
    assert most_elements(compiled) == result.size // 8


@pytest.mark.parametrize("fill", [sequence, constant])
def test_a_fill_has_the_mesh_of_other_new_arrays(fill: Callable[..., Fill]) -> None:
    """So that one operation can have both as operands."""

    def run(*scalars: jax.Array) -> jax.Array:
        y, new = fill((8,), "float32")(*scalars), jnp.full((8,), 0, jnp.float32)
        assert jax.typeof(y).sharding == jax.typeof(new).sharding
        return jax.lax.dynamic_update_slice(new, y, (0,))

    scalars = values("float32")
    with jax.set_mesh(mesh_of(EXPLICIT, data=4, model=2)):
        y = jax.jit(run)(*scalars)
    assert_same_bits(y, np.asarray(fill((8,), "float32")(*scalars)))
