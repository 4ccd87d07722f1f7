"""Scans whose batch is sharded: results, types and collectives."""

import doctest
import functools
import itertools
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pages
import pytest
from assertions import assert_close
from devices import (
    AUTO,
    COLLECTIVE,
    EXPLICIT,
    collectives,
    compile_for,
    mesh_of,
    put,
)
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from onnx_models import parse
from sampling import default_of

from dml_jax import bidirectional_scan, onnx_backend, padded_scan

BATCH, TIME, STATE = 16, 5, 3
LENGTHS = np.arange(BATCH, dtype=np.int32) % (TIME + 1)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(BATCH, TIME, STATE)).astype(np.float32)
WEIGHTS = RANDOM.normal(size=(2, STATE, STATE)).astype(np.float32)

pytestmark = pytest.mark.usefixtures("x32")


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


# Training steps -----------------------------------------------------------------------


def mixed(weights: Any, carry: Any, x: jax.Array) -> Any:
    """A cell that multiplies its inputs, with biases."""
    h = jnp.tanh(x @ weights["w"] + carry @ weights["u"] + weights["b"][None])
    return h, h


def network(weights: Any, x: jax.Array, lengths: Any) -> jax.Array:
    zeros = jnp.zeros((x.shape[0], STATE))
    for layer in weights[:-1]:
        init = zeros, zeros
        _, ys = bidirectional_scan(mixed, (layer, layer), init, (x, x), lengths)
        x = ys[0] + ys[1]
    return padded_scan(mixed, weights[-1], zeros, x, lengths, reverse=True)[1]


def training_step(run: Any, weights: Any, *arrays: Any) -> Any:
    def loss(weights: Any) -> jax.Array:
        return jnp.sum(run(weights, *arrays) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients)


LAYER = dict(w=WEIGHTS[0], u=WEIGHTS[1], b=WEIGHTS[0, 0])
LAYERS = [LAYER, jax.tree.map(np.negative, LAYER), LAYER]


def exchanges(compiled: Any) -> list[bool]:
    """For each collective of a program, whether it is outside of all loops."""
    parts = re.split(r"\n(?=%|ENTRY)", compiled.as_text())
    pattern = rf"= .*? (?:{COLLECTIVE})(?:-start)?\("
    return [
        part.startswith("ENTRY") for part in parts for _ in re.findall(pattern, part)
    ]


def on_manual_axes(mesh: Any) -> Any:
    specs = P(), P("a"), P("a")
    return jax.shard_map(network, mesh=mesh, in_specs=specs, out_specs=P("a"))


LSTM = """float[time, 16, 3] x, int32[16] n => float[time, 2, 16, 2] y {
  y = LSTM<hidden_size = 2, direction = "bidirectional">(x, w, r, b, n)
}"""
ARRAYS = dict(w=(2, 8, 3), r=(2, 8, 2), b=(2, 16))
MODEL = parse(
    LSTM, **{k: RANDOM.normal(size=s).astype(np.float32) for k, s in ARRAYS.items()}
)


@functools.cache
def step_on_one_device() -> Any:
    return jax.jit(partial(training_step, network))(LAYERS, X, LENGTHS)


@pytest.mark.parametrize("kind", ["auto", "explicit", "manual", "onnx"])
def test_a_training_step_has_one_exchange(kind: str) -> None:
    """The gradients of all weights are exchanged once, after the loops."""
    mesh = mesh_of(EXPLICIT if kind == "explicit" else AUTO, a=8)
    weights, arrays, spec = LAYERS, (X, LENGTHS), P("a")
    run: Any = on_manual_axes(mesh) if kind == "manual" else network
    if kind == "onnx":
        model = onnx_backend.prepare(MODEL)
        weights, arrays, spec = model.params, (X.swapaxes(0, 1), LENGTHS), P(None, "a")
        run = lambda *arrays: model.apply(*arrays)[0]  # noqa: E731
    step = partial(training_step, run)
    expected = (
        jax.jit(step)(weights, *arrays) if kind == "onnx" else step_on_one_device()
    )
    with jax.set_mesh(mesh):
        placed = put(arrays[0], mesh, *spec), put(arrays[1], mesh, "a")
        weights = jax.tree.map(lambda w: put(w, mesh), weights)
        compiled = compile_for(step, weights, *placed)
        found = compiled(weights, *placed)
    assert exchanges(compiled) == [True]
    assert_close(found, expected, 1e-5)


# Placements ---------------------------------------------------------------------------

STEPS: dict[str, Any] = {
    "sum": (lambda w, c, x: (w * c + x, c), 0),
    "delay": (lambda w, c, x: ((w * x, c[0]), c[1]), 2),
    "shift": (lambda w, c, x: ((w * x, c[0], c[1]), c[2]), 3),
    "constant": (lambda w, c, x: (c + w * x, jnp.ones(c.shape)), 0),
}


def both_scans(name: str, weight: Any, x: Any, lengths: Any, init: Any = None) -> Any:
    step, count = STEPS[name]
    init = jnp.zeros(x.shape[0]) if init is None else init
    init = (init,) * count if count else init
    pairs = (weight, weight), (init, init), (x, x)
    one = padded_scan(step, weight, init, x, lengths, reverse=True)
    return jax.tree.leaves((bidirectional_scan(step, *pairs, lengths), one))


def gradient_of_both(name: str, *arrays: Any) -> Any:
    def loss(weight: Any, x: Any) -> jax.Array:
        found = both_scans(name, weight, x, *arrays[2:])
        return sum((jnp.sum(jnp.sin(y)) for y in found), jnp.zeros(()))

    return jax.value_and_grad(loss, (0, 1))(*arrays[:2])


@pytest.mark.parametrize("name", default_of(STEPS, "shift"))
@pytest.mark.parametrize(
    "of_lengths", default_of(["one", "replicated", "sharded"], "replicated")
)
def test_explicit_axes_of_any_carry(name: str, of_lengths: str) -> None:
    """One number for each sequence; `x` and `init` are sharded or not."""
    mesh, weight = mesh_of(EXPLICIT, a=8), np.float32(0.5)
    lengths = np.int32(3) if of_lengths == "one" else LENGTHS
    expected = jax.jit(partial(gradient_of_both, name))(
        weight, X[..., 0], lengths, X[:, 0, 0]
    )
    with jax.set_mesh(mesh):
        lengths = put(lengths, mesh, *(["a"] if of_lengths == "sharded" else []))
        for x, init in itertools.product((["a"], []), repeat=2):
            arrays = put(X[..., 0], mesh, *x), lengths, put(X[:, 0, 0], mesh, *init)
            run = jax.jit(partial(gradient_of_both, name))
            assert_close(run(weight, *arrays), expected, 1e-5)


@pytest.mark.parametrize("name", default_of(STEPS, "delay"))
@pytest.mark.parametrize("types", [(AUTO, AUTO), (EXPLICIT, AUTO), (AUTO, EXPLICIT)])
def test_a_shard_map_that_leaves_an_axis_to_xla(name: str, types: Any) -> None:
    mesh, weight = jax.make_mesh((4, 2), ("a", "b"), axis_types=types), np.float32(0.5)

    def run(weight: Any, x: Any) -> Any:
        return sum(y for y in both_scans(name, weight, x, 3) if y.ndim == 2)

    def loss(run: Any, weight: Any, x: Any) -> jax.Array:
        return jnp.sum(jnp.sin(run(weight, x)))

    specs: Any = dict(in_specs=(P(), P("a")), out_specs=P("a"), axis_names={"a"})
    mapped = jax.shard_map(run, mesh=mesh, **specs)
    expected = jax.jit(jax.grad(partial(loss, run)))(weight, X[..., 0])
    with jax.set_mesh(mesh):
        x = put(X[..., 0], mesh, "a")
        found = jax.jit(jax.grad(partial(loss, mapped)))(weight, x)
    assert_close(found, expected, 1e-5)


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
