"""A training step of a bidirectional network, with one reversal or another.

Speech of 80 mel bands in bfloat16, a batch of 37 padded to 777 frames, and a label for
each frame. The weights are float32. There are two layers of bidirectional LSTMs. Both
directions of a layer run in one scan. A step computes the loss, its gradient and new
weights.

The baseline is the network without reversals, whose two directions read forward. The
candidates differ in the reversal alone: that of dml_jax, of flax and of plain JAX.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dml_jax
from benchmarks import measure
from benchmarks.workloads import Device

Params = list[dict[str, jax.Array]]
Reversal = Callable[[jax.Array, jax.Array], jax.Array]

TIME, BATCH, FEATURES, STATE, LABELS, LAYERS = 777, 37, 80, 256, 48, 2
QUICK_TIME, QUICK_STATE = 20, 16
LEARNING_RATE = 0.01


def records(device: Device, quick: bool) -> Iterator[dict[str, Any]]:
    """One record: a step with each reversal."""
    params = _params(QUICK_STATE if quick else STATE)
    x, *others = _data(QUICK_TIME if quick else TIME)
    steps = {n: functools.partial(_step, f) for n, f in _reversals().items()}
    found = measure.compiled(steps, (params, x, *others))
    settings = measure.QUICK if quick else measure.SETTINGS[device]
    samples = measure.samples(found, settings)
    yield dict(
        name=f"training/{LAYERS}-layer-lstm",
        group="training",
        baseline="unreversed",
        dtype=x.dtype.name,
        shape=list(x.shape),
        bytes_read=x.nbytes,
        bytes_written=sum(array.nbytes for array in jax.tree.leaves(params)),
        candidates=measure.summaries(samples, "unreversed"),
    )


# Reversals ----------------------------------------------------------------------------


def _reversals() -> dict[str, Reversal]:
    """Functions of batches [batch, time, features] and lengths [batch]."""
    found = dict(
        unreversed=lambda x, _: x, jnp=_plain_reversal, dml_jax=dml_jax.reverse_padded
    )
    if importlib.util.find_spec("flax"):
        flax: Any = importlib.import_module("flax.nnx.nn.recurrent")
        options = dict(num_batch_dims=1, time_major=False)
        found["flax"] = functools.partial(flax.flip_sequences, **options)
    return found


def _plain_reversal(x: jax.Array, lengths: jax.Array) -> jax.Array:
    k, n = jnp.arange(x.shape[1])[None], lengths[:, None]
    index = jnp.where(k < n, n - 1 - k, k)
    return jnp.take_along_axis(x, index[:, :, None], axis=1)


# A training step ----------------------------------------------------------------------


def _step(reverse: Reversal, params: Params, *data: jax.Array) -> Any:
    """The loss of a batch, and the weights after one step of gradient descent."""
    loss, gradient = jax.value_and_grad(_loss)(params, reverse, *data)
    return loss, jax.tree.map(lambda w, g: w - LEARNING_RATE * g, params, gradient)


def _loss(
    params: Params,
    reverse: Reversal,
    x: jax.Array,
    lengths: jax.Array,
    labels: jax.Array,
) -> jax.Array:
    """The mean cross entropy of the valid frames."""
    *layers, readout = params
    for layer in layers:
        x = _bidirectional(reverse, layer, x, lengths)
    scores = jnp.einsum("btf,fl->btl", x, readout["w"].astype(x.dtype))
    logits = jax.nn.log_softmax(scores.astype(jnp.float32))
    entropy = -jnp.take_along_axis(logits, labels[:, :, None], 2)[:, :, 0]
    is_valid = jnp.arange(x.shape[1])[None] < lengths[:, None]
    return jnp.mean(entropy, where=is_valid)


def _bidirectional(
    reverse: Reversal, layer: dict[str, jax.Array], x: jax.Array, lengths: jax.Array
) -> jax.Array:
    """[batch, time, features] to [batch, time, 2 * state]."""
    inputs = jnp.stack([x, reverse(x, lengths)])
    w, u, b = (layer[name].astype(x.dtype) for name in "wub")
    inputs = jnp.einsum("dbtf,dfg->tdbg", inputs, w) + b
    zeros = jnp.zeros((2, x.shape[0], u.shape[1]), x.dtype)
    _, states = lax.scan(functools.partial(_lstm, u), (zeros, zeros), inputs)
    forward, backward = jnp.moveaxis(states, 0, 2)
    return jnp.concatenate([forward, reverse(backward, lengths)], axis=2)


def _lstm(u: jax.Array, carry: Any, inputs: jax.Array) -> Any:
    state, memory = carry
    gates = inputs + jnp.einsum("dbs,dsg->dbg", state, u)
    keep, write, read, new = jnp.split(gates, 4, axis=-1)
    memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(write) * jnp.tanh(new)
    state = jax.nn.sigmoid(read) * jnp.tanh(memory)
    return (state, memory), state


def _params(state: int) -> Params:
    """Random weights in float32, of two directions and of the output layer."""
    random = np.random.default_rng(0)

    def uniform(*shape: int) -> jax.Array:
        scale = 1 / math.sqrt(state)
        return jnp.asarray(random.uniform(-scale, scale, shape), jnp.float32)

    gates, params, width = 4 * state, [], FEATURES
    for _ in range(LAYERS):
        w, u = uniform(2, width, gates), uniform(2, state, gates)
        params.append(dict(w=w, u=u, b=uniform(1, 2, 1, gates)))
        width = 2 * state
    return [*params, dict(w=uniform(width, LABELS))]


def _data(time: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Frames, lengths from half of the time to all of it, and labels."""
    random = np.random.default_rng(1)
    x = jnp.asarray(random.standard_normal((BATCH, time, FEATURES)), jnp.bfloat16)
    lengths = random.integers(time // 2, time + 1, BATCH, np.int32)
    lengths[0] = time
    labels = random.integers(LABELS, size=(BATCH, time))
    return x, jnp.asarray(lengths), jnp.asarray(labels, jnp.int32)
