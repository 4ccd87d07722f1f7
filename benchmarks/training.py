"""A training step of a bidirectional network: what a reversal costs end to end.

Speech of 80 mel bands in bfloat16, a batch of 37 padded to 777 frames, and a label for
each frame. The weights are float32. There are two layers of bidirectional LSTMs. Both
directions of a layer run in one scan. A step computes the loss, its gradient and new
weights.

The baseline is the network without reversals, whose two directions read forward. The
candidates differ in the reversal alone. A profile of the steps gives the share of the
time that is spent in it, for the kernels whose operators are in the scope `reversal`.
"""

from __future__ import annotations

import functools
import importlib
import math
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dml_jax
from benchmarks import candidates, measure
from benchmarks.measure import Candidate
from benchmarks.workloads import Device

Record = dict[str, Any]
Params = list[dict[str, jax.Array]]
Reversal = Callable[[jax.Array, jax.Array], jax.Array]

TIME, BATCH, FEATURES, STATE, LABELS, LAYERS = 777, 37, 80, 256, 48, 2
QUICK_TIME, QUICK_STATE = 20, 16
LEARNING_RATE = 0.01
PROFILED_STEPS = 5
_SCOPE = "reversal"


def records(device: Device, quick: bool) -> Iterator[Record]:
    """One record: a step with each reversal."""
    settings = measure.QUICK if quick else measure.SETTINGS[device]
    jax.config.update("jax_enable_compilation_cache", False)
    with jax.default_device(jax.devices(device)[0]):
        params = _params(QUICK_STATE if quick else STATE)
        data = _data(QUICK_TIME if quick else TIME)
        steps = {
            candidate: functools.partial(_step, reverse)
            for candidate, reverse in _reversals().items()
        }
        found = candidates.all_compiled(steps, (params, *data))
        figures = measure.summaries(measure.samples(found, settings), "unreversed")
        for candidate in found:
            seconds = figures[candidate.name]["seconds"]["median"]
            figures[candidate.name]["reversal"] = _reversal_seconds(candidate) / seconds
        x = data[0]
        yield dict(
            name=f"training/{LAYERS}-layer-lstm",
            group="training",
            baseline="unreversed",
            dtype=x.dtype.name,
            shape=list(x.shape),
            bytes_read=x.nbytes,
            bytes_written=sum(array.nbytes for array in jax.tree.leaves(params)),
            candidates=figures,
        )


# Reversals ----------------------------------------------------------------------------


def _reversals() -> dict[str, Reversal]:
    """Functions of batches [batch, time, features] and lengths [batch]."""
    found = {
        "unreversed": lambda x, _: x,
        "jnp": _plain_reversal,
        "dml_jax": functools.partial(
            dml_jax.reverse_sequence, batch_axis=0, time_axis=1
        ),
    }
    try:
        flax: Any = importlib.import_module("flax.nnx.nn.recurrent")
    except ImportError:
        return found
    options = dict(num_batch_dims=1, time_major=False)
    return found | {"flax": functools.partial(flax.flip_sequences, **options)}


def _plain_reversal(x: jax.Array, lengths: jax.Array) -> jax.Array:
    k, n = jnp.arange(x.shape[1])[None], lengths[:, None]
    index = jnp.where(k < n, n - 1 - k, k)
    return jnp.take_along_axis(x, index[:, :, None], axis=1)


# A training step ----------------------------------------------------------------------


def _step(reverse: Reversal, params: Params, *data: jax.Array) -> Any:
    """The loss of a batch, and the weights after one step of gradient descent."""
    loss, gradient = jax.value_and_grad(functools.partial(_loss, reverse))(
        params, *data
    )
    return loss, jax.tree.map(lambda w, g: w - LEARNING_RATE * g, params, gradient)


def _loss(
    reverse: Reversal,
    params: Params,
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
    return jnp.sum(jnp.where(is_valid, entropy, 0)) / jnp.sum(
        is_valid, dtype=jnp.float32
    )


def _bidirectional(
    reverse: Reversal,
    layer: dict[str, jax.Array],
    x: jax.Array,
    lengths: jax.Array,
) -> jax.Array:
    """[batch, time, features] to [batch, time, 2 * state]."""
    with jax.named_scope(_SCOPE):
        reversed_x = reverse(x, lengths)
    inputs = jnp.stack([x, reversed_x])
    w, u, b = (layer[name].astype(x.dtype) for name in "wub")
    inputs = jnp.einsum("dbtf,dfg->tdbg", inputs, w) + b
    zeros = jnp.zeros((2, x.shape[0], u.shape[1]), x.dtype)
    _, states = lax.scan(functools.partial(_lstm, u), (zeros, zeros), inputs)
    forward, backward = jnp.moveaxis(states, 0, 2)
    with jax.named_scope(_SCOPE):
        backward = reverse(backward, lengths)
    return jnp.concatenate([forward, backward], axis=2)


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


# A profile ----------------------------------------------------------------------------

_COMPUTATION = re.compile(r"^(?:ENTRY )?%([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^ +(?:ROOT )?%([\w.-]+) = ")
_CALLED = re.compile(r"calls=%([\w.-]+)")
_OPERATION = re.compile(r'op_name="([^"]*)"')


def _reversal_seconds(candidate: Candidate) -> float:
    """Seconds of a step in kernels with operations of the scope `reversal`."""
    step: Any = candidate.call
    names = _reversal_kernels(step.func.as_text())
    if not names:
        return 0.0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            candidate.wait([candidate.call() for _ in range(PROFILED_STEPS)])
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(path))
    spent = sum(
        event.duration_ns
        for plane in profile.planes
        for line in plane.lines
        for event in line.events
        # In a command buffer of a GPU, only the name of the kernel is that of the
        # instruction. jax 0.12 aborts if it reads the statistics of a CPU.
        if event.name in names
        or ("GPU" in plane.name and dict(event.stats).get("hlo_op") in names)
    )
    return spent / 1e9 / PROFILED_STEPS


def _reversal_kernels(hlo: str) -> set[str]:
    """The instructions and kernels that reverse, alone or fused with others."""
    computation, found = "", set()
    for line in hlo.splitlines():  # a computation comes before those that call it
        if match := _COMPUTATION.match(line):
            computation = match[1]
        elif match := _INSTRUCTION.match(line):
            called, operation = _CALLED.search(line), _OPERATION.search(line)
            is_in_scope = operation and _SCOPE in operation[1]
            if is_in_scope or (called and called[1] in found):
                found |= {computation, match[1]}
    return found | {re.sub(r"\W", "_", name) for name in found}
