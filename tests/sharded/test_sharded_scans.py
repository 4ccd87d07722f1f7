"""A scan in both directions whose batch is sharded: results, types and collectives."""

import doctest
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pages
import pytest
from assertions import assert_close
from devices import AUTO, EXPLICIT, collectives, compile_for, mesh_of, put
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax import bidirectional_scan

BATCH, TIME, STATE = 16, 5, 3
LENGTHS = np.arange(BATCH, dtype=np.int32) % (TIME + 1)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(BATCH, TIME, STATE)).astype(np.float32)
WEIGHTS = RANDOM.normal(size=(2, STATE, STATE)).astype(np.float32)


def step(weights: Any, carry: Any, x: jax.Array) -> Any:
    h = jnp.tanh(carry["h"] @ weights + x)
    return dict(h=h, sum=carry["sum"] + h), h


def layer(weights: Any, x: jax.Array, lengths: Any) -> Any:
    """The initial states are zeros, which are not sharded."""
    zeros = jnp.zeros((x.shape[0], STATE))
    init = dict(h=zeros, sum=zeros)
    return bidirectional_scan(step, weights, (init, init), (x, x), lengths)


def gradient(weights: Any, x: jax.Array, lengths: Any) -> Any:
    """That of the input, which needs no sum over the batch."""
    found, pull_back = jax.vjp(lambda x: layer(weights, x, lengths), x)
    return pull_back(found)


@pytest.mark.parametrize("mode", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("of_lengths", [P("a"), P()], ids=str)
@pytest.mark.parametrize("run", [layer, gradient])
def test_batch(run: Any, of_lengths: P, mode: AxisType) -> None:
    mesh = mesh_of(mode, a=8)
    arrays = WEIGHTS, put(X, mesh, "a"), put(LENGTHS, mesh, *of_lengths)
    with jax.set_mesh(mesh):
        compiled = compile_for(run, *arrays)
        found = compiled(*arrays)
    assert collectives(compiled) == set()
    assert_close(found, jax.jit(run)(WEIGHTS, X, LENGTHS))
    for y in jax.tree.leaves(found):
        assert y.sharding.is_equivalent_to(NamedSharding(mesh, P("a")), y.ndim)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("x32")
def test_the_page_about_scaling() -> None:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        page = pages.session(pages.DOCS / "scaling.md")
        results = doctest.DocTestRunner().run(page)
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize("run", [layer, gradient])
def test_batch_in_a_shard_map(run: Any) -> None:
    mapped = jax.shard_map(
        partial(run, WEIGHTS), mesh=mesh_of(a=8), in_specs=P("a"), out_specs=P("a")
    )
    assert_close(jax.jit(mapped)(X, LENGTHS), jax.jit(run)(WEIGHTS, X, LENGTHS))
