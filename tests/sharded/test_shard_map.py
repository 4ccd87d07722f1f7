"""Reversals of shards: inside of `shard_map`, and of sharded arrays without `jit`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, lengths_for, numbers, special_values
from devices import AUTO, EXHAUSTIVE, MODES, mesh_of, put
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax

DATA, MODEL, ALL = 4, 2, ("data", "model")
SIZES = {"data": DATA, "model": MODEL}
SHAPE = (8, 8, 4)
X = numbers(*SHAPE)
LINES = lengths_for(SHAPE, 1).astype(np.int32)
ENTRIES = LINES[:, 0, 0]
LINEWISE = partial(dml_jax.reverse_subsequences, axis=1)
TRAINING = partial(dml_jax.reverse_sequence, **BATCH_MAJOR, lda_coeff=0.5)
INFERENCE = partial(dml_jax.reverse_sequence, training=False)

Function = Callable[..., Any]

# The function, the lengths, and the dimensions of the batch and of the time.
REVERSALS: dict[str, tuple[Function, np.ndarray, int, int]] = {
    "reverse_subsequences": (LINEWISE, LINES, 0, 1),
    "reverse_padded": (dml_jax.reverse_padded, ENTRIES, 0, 1),
    "training": (TRAINING, ENTRIES, 0, 1),
    "inference": (INFERENCE, ENTRIES, 1, 0),
}


def forward(run: Function, x: Any, lengths: Any) -> Any:
    return run(x, lengths)


def vjp(run: Function, x: Any, lengths: Any) -> Any:
    y, pull_back = jax.vjp(lambda x: run(x, lengths), x)
    return pull_back(y * y)[0]


def jvp(run: Function, x: Any, lengths: Any) -> Any:
    return jax.jvp(lambda x: run(x, lengths), (x,), (x * x,))[1]


def vmap(run: Function, x: Any, lengths: Any) -> Any:
    return jax.vmap(run, (None, 0))(x, jnp.stack([lengths, lengths + 1]))[1]


def along(dimension: int, *axes: Any) -> P:
    """A spec that shards one dimension."""
    return P(*[None] * dimension, *axes)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", default_of(REVERSALS, "reverse_subsequences"))
def test_without_jit(name: str, mode: AxisType) -> None:
    """Along the sharded axis too, where XLA partitions a gather as a sum of floats."""
    run, lengths, batch, time = REVERSALS[name]
    x, mesh = special_values(SHAPE), mesh_of(mode, **SIZES)
    spec = along(time if mode == AUTO else batch, "data")
    of_lengths = P() if mode == AUTO else P("data")
    with jax.set_mesh(mesh), jax.disable_jit():
        result = run(put(x, mesh, *spec), put(lengths, mesh, *of_lengths))
    assert_same_bits(result, np.asarray(jax.jit(run)(x, lengths)))


def shard_map(function: Function, ins: tuple[P, ...], out: P) -> Function:
    return jax.shard_map(function, mesh=mesh_of(**SIZES), in_specs=ins, out_specs=out)


def test_coefficients_vary_where_the_input_is_replicated() -> None:
    """The cotangent of the input is the sum over the devices."""
    coefficients = np.arange(1, 1 + DATA, dtype=np.float32)

    def loss(x: jax.Array, coefficient: jax.Array) -> jax.Array:
        y = dml_jax.reverse_sequence(
            x, ENTRIES, lda_coeff=coefficient[0], **BATCH_MAJOR
        )
        return lax.psum(jnp.sum(y * y), "data")

    run = shard_map(jax.grad(loss), (P(), P("data")), P())
    assert_same_bits(jax.jit(run)(X, coefficients), 2 * X * coefficients.sum())


@EXHAUSTIVE
@pytest.mark.parametrize("transformed", ["inside", "outside"])
@pytest.mark.parametrize("shards", [1, DATA])
@pytest.mark.parametrize("transform", [forward, vjp, jvp, vmap])
@pytest.mark.parametrize("name", REVERSALS)
def test_lengths_vary(
    name: str, transform: Function, shards: int, transformed: str
) -> None:
    """Each device has its own length, and several devices have the same input.

    The cotangent of that input is the sum over those devices.
    """
    if (name, transform) == ("training", jvp):
        return
    run, lengths, batch, _ = REVERSALS[name]
    x = lax.slice_in_dim(X, 0, shards, axis=batch)

    def whole(x: jax.Array, lengths: jax.Array) -> jax.Array:
        return run(jnp.repeat(x, DATA * MODEL // shards, batch), lengths)

    expected = np.asarray(jax.jit(partial(transform, whole))(x, lengths))
    of_input = P() if shards == 1 else along(batch, "data")
    ins, out = (of_input, P(ALL)), along(batch, ALL)
    if transformed == "inside":
        out = of_input if transform is vjp else out
        function = shard_map(partial(transform, run), ins, out)
    else:
        function = partial(transform, shard_map(run, ins, out))
    assert_same_bits(jax.jit(function)(x, lengths), expected)


def test_the_sum_over_devices_is_rounded_once() -> None:
    """The cotangent of a replicated bfloat16: 256 and seven ones are 263, not 256."""
    x, lengths = jnp.ones(1, jnp.bfloat16), np.arange(8)
    reverse = shard_map(
        lambda x, n: dml_jax.reverse_subsequences(x, n, 0), (P(), P(ALL)), P(ALL)
    )
    _, pull_back = jax.vjp(jax.jit(lambda x: reverse(x, lengths)), x)
    cotangent = jnp.asarray([256] + [1] * 7, jnp.bfloat16)
    assert_same_bits(pull_back(cotangent)[0], np.asarray([263], jnp.bfloat16))
