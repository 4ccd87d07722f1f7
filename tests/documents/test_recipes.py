"""The layers that the guides build are right at the edges of a padded batch.

In a batch whose padding is NaN, each row must have the results that it has alone.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pages
import pytest

Recipe = tuple[
    Any, Callable[..., Any]
]  # weights; (weights, frames, lengths) -> results

FEATURES = 4
EDGES: dict[str, tuple[int, list[int], Any]] = {  # steps, lengths, dtype
    "an empty row": (5, [3, 5, 0], jnp.float32),
    "only empty rows": (5, [0, 0], jnp.float32),
    "one full row": (5, [5], jnp.float32),
    "one step": (1, [1, 0], jnp.float32),
    "bfloat16": (5, [3, 5, 0], jnp.bfloat16),
}
# Products of another batch size may be rounded otherwise.
TOLERANCE = {"float32": 1e-6, "bfloat16": 2**-7}

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.usefixtures("x32", "with_jit", "nans_are_data"),
    pytest.mark.skipif(
        not importlib.util.find_spec("flax"), reason="needs what .ci/run has"
    ),
]


def page(name: str, until: str) -> dict[str, Any]:
    return pages.names_of(pages.DOCS / f"{name}.md", until)


def nnx_recipe(module: Any) -> Recipe:
    nnx = importlib.import_module("flax.nnx")
    graph, weights, others = nnx.split(module, nnx.Param, ...)

    def apply(weights: Any, *arrays: Any, **options: Any) -> Any:
        return nnx.merge(graph, weights, others, copy=True)(*arrays, **options)

    return weights, apply


def rngs() -> Any:
    return importlib.import_module("flax.nnx").Rngs(0)


def tutorial() -> Recipe:
    names = page("tutorial", until="class Recogniser")
    return nnx_recipe(names["Recogniser"](FEATURES, 8, classes=2, rngs=rngs()))


def linen_model(layer: Any, cell: str, is_compact: bool = True) -> Any:
    """A model with the layer, made in `@nn.compact` or in `setup`."""
    nn = importlib.import_module("flax.linen")

    def make() -> Any:
        return layer(*(nn.RNN(getattr(nn, cell)(8)) for _ in range(2)))

    class Compact(nn.Module):
        @nn.compact
        def __call__(self, frames: jax.Array, lengths: jax.Array) -> jax.Array:
            return make()(frames, seq_lengths=lengths)

    class Setup(nn.Module):
        def setup(self) -> None:
            self.layer = make()

        def __call__(self, frames: jax.Array, lengths: jax.Array) -> jax.Array:
            return self.layer(frames, seq_lengths=lengths)

    return Compact() if is_compact else Setup()


def nnx_rnns(make: Callable[..., Any], cell: str = "GRUCell") -> list[Any]:
    nnx = importlib.import_module("flax.nnx")
    keys = nnx.Rngs(0)
    return [
        make(getattr(nnx, cell)(FEATURES, 8, rngs=keys), return_carry=True)
        for _ in range(2)
    ]


def subclass() -> Recipe:
    names = page("from-flax", until="class Bidirectional")
    rnns = nnx_rnns(names["RNN"])
    weights, apply = nnx_recipe(names["Bidirectional"](*rnns, return_carry=True))
    return weights, lambda w, x, n: apply(w, x, seq_lengths=n)


def two_reversals() -> Recipe:
    names = page("from-flax", until="class TwoReversals")
    return nnx_recipe(names["TwoReversals"](*nnx_rnns(names["nnx"].RNN)))


def linen() -> Recipe:
    names = page("from-flax", until="class LinenBidirectional")
    layer = linen_model(names["LinenBidirectional"], "GRUCell")
    frames = jnp.zeros((2, 3, FEATURES))
    weights = layer.init(jax.random.key(0), frames, jnp.array([3, 2]))
    return weights, layer.apply


def equinox() -> Recipe:
    names = page("from-flax", until="model = EquinoxBidirectional")
    arrays, others = names["equinox"].partition(
        names["model"], names["equinox"].is_array
    )

    def apply(arrays: Any, frames: Any, lengths: Any) -> Any:
        return jax.vmap(names["equinox"].combine(arrays, others))(frames, lengths)

    return arrays, apply


def from_tensorflow() -> Recipe:
    nnx = importlib.import_module("flax.nnx")
    names = page("from-tensorflow", until="cells = ported")
    graph, weights = nnx.split(names["cells"])

    def apply(weights: Any, frames: jax.Array, lengths: jax.Array) -> Any:
        mask = jnp.arange(frames.shape[1]) < lengths[:, None]
        return names["read"](nnx.merge(graph, weights), frames, mask)

    return weights, apply


def from_pytorch(kind: str) -> Recipe:
    names = page("from-pytorch", until="def read(")
    width = names["saved"][f"{kind}/frames"].shape[2]

    def read(layers: Any, frames: Any, lengths: Any) -> Any:
        states = {"lstm": 2, "gru": 1}[kind]
        frames = frames[..., :width]
        outputs, *last = names["read"](names[kind], states, layers, frames, lengths)
        return outputs, [jnp.swapaxes(array, 0, 1) for array in last]

    return [names["weights"](kind, layer) for layer in range(2)], read


RECIPES: dict[str, Callable[[], Recipe]] = {
    "the tutorial": tutorial,
    "from Flax, NNX": subclass,
    "from Flax, Linen": linen,
    "from Flax, two reversals": two_reversals,
    "from Flax, Equinox": equinox,
    "from TensorFlow": from_tensorflow,
    "from PyTorch, LSTM": lambda: from_pytorch("lstm"),
    "from PyTorch, GRU": lambda: from_pytorch("gru"),
}


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        weights, apply = RECIPES[request.param]()
        return weights, jax.jit(apply)


@pytest.fixture(autouse=True)
def promotion_as_by_default() -> Any:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def batch(edge: str, padding: float = np.nan) -> tuple[jax.Array, jax.Array]:
    steps, lengths, dtype = EDGES[edge]
    random = np.random.default_rng(0).normal(size=(len(lengths), steps, FEATURES))
    valid = np.arange(steps) < np.array(lengths)[:, None]
    frames = np.where(valid[..., None], random, padding)
    return jnp.asarray(frames, dtype), jnp.array(lengths)


@pytest.mark.parametrize("edge", EDGES)
def test_rows_have_the_results_that_they_have_alone(recipe: Recipe, edge: str) -> None:
    weights, apply = recipe
    frames, lengths = batch(edge)
    weights = jax.tree.map(lambda w: jnp.asarray(w, frames.dtype), weights)
    tolerance = TOLERANCE[frames.dtype.name]
    found = apply(weights, frames, lengths)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    for row, n in enumerate(lengths.tolist()):
        if n == 0:
            continue
        alone = apply(weights, frames[row : row + 1, :n], lengths[row : row + 1])
        for ours, wanted in zip(*map(jax.tree.leaves, (found, alone)), strict=True):
            is_in_time = ours.shape[1:2] == frames.shape[1:2] and ours.ndim == 3
            ours = ours[row, :n] if is_in_time else ours[row]
            np.testing.assert_allclose(
                np.float32(ours), np.float32(wanted[0]), rtol=0, atol=tolerance
            )


@pytest.mark.parametrize("edge", ["an empty row", "only empty rows"])
def test_gradients_do_not_depend_on_the_padding(recipe: Recipe, edge: str) -> None:
    weights, apply = recipe

    @jax.jit
    @jax.grad
    def gradient(weights: Any, frames: jax.Array, lengths: jax.Array) -> Any:
        leaves = jax.tree.leaves(apply(weights, frames, lengths))
        return sum(jnp.sum(leaf**2) for leaf in leaves)

    wanted = gradient(weights, *batch(edge, padding=0))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(wanted))
    found = gradient(weights, *batch(edge))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_an_ensemble_is_mapped(recipe: Recipe) -> None:
    weights, apply = recipe
    members = [jax.tree.map(lambda w, k=k: k * jnp.asarray(w), weights) for k in (1, 2)]
    ensemble = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    frames, lengths = batch("an empty row")
    found = jax.vmap(apply, in_axes=(0, None, None))(ensemble, frames, lengths)
    for k, member in enumerate(members):
        wanted = apply(member, frames, lengths)
        jax.tree.map(
            lambda x, y, k=k: np.testing.assert_allclose(x[k], y, rtol=0, atol=1e-6),
            found,
            wanted,
        )


def test_two_reversals_have_the_bits_of_flax() -> None:
    """At valid steps, in the carry and in gradients; padding of NaN changes nothing."""
    nnx = importlib.import_module("flax.nnx")
    names = page("from-flax", until="class TwoReversals")
    masked = names["masked"]
    layer = names["TwoReversals"](*nnx_rnns(nnx.RNN))
    theirs = nnx.Bidirectional(layer.forward, layer.backward, return_carry=True)
    lengths = jnp.array([3, 5, 1])
    frames = jax.random.normal(jax.random.key(0), (3, 5, FEATURES))
    unknown = jnp.where(masked(jnp.ones_like(frames), lengths) > 0, frames, jnp.nan)

    def ours_of(layer: Any, frames: jax.Array) -> Any:
        return layer(frames, lengths)

    def theirs_of(layer: Any, frames: jax.Array) -> Any:
        carry, outputs = layer(frames, seq_lengths=lengths)
        return masked(outputs, lengths), carry

    def gradient(apply: Any, layer: Any, frames: jax.Array) -> Any:
        def loss(layer: Any) -> jax.Array:
            return jnp.sum(apply(layer, frames)[0] ** 2)

        return jax.tree.leaves(nnx.grad(loss)(layer))

    assert_same(ours_of(layer, frames), theirs_of(theirs, frames))
    wanted = gradient(theirs_of, theirs, frames)
    assert_same(gradient(ours_of, layer, frames), wanted)
    assert_same(gradient(ours_of, layer, unknown), wanted)
    assert any(jnp.isnan(w).any() for w in gradient(theirs_of, theirs, unknown))


def assert_same(found: Any, wanted: Any) -> None:
    for ours, theirs in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


# Subclasses, dropout and CTC ----------------------------------------------------------

CELLS = "GRUCell", "OptimizedLSTMCell"


def frames_and_lengths() -> tuple[jax.Array, jax.Array, jax.Array]:
    frames = jax.random.normal(jax.random.key(0), (3, 5, FEATURES))
    lengths = jnp.array([3, 5, 1])
    return frames, lengths, (jnp.arange(5) < lengths[:, None])[..., None]


def assert_like_parent(ours: Any, theirs: Any, weights: Any) -> None:
    """Functions of weights have the same results, and gradients of valid steps."""
    *_, valid = frames_and_lengths()

    def results(apply: Any, weights: Any) -> Any:
        carry, outputs = apply(weights)
        return carry, jnp.where(valid, outputs, 0)

    def loss(apply: Any, weights: Any) -> jax.Array:
        squares = [jnp.sum(x**2) for x in jax.tree.leaves(results(apply, weights))]
        return jnp.sum(jnp.stack(squares))

    for function in (results, jax.grad(loss, 1)):
        found, wanted = (
            jax.jit(function, static_argnums=0)(apply, weights)
            for apply in (ours, theirs)
        )
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6),
            found,
            wanted,
        )


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("time_major", [False, True])
def test_subclasses_of_nnx_are_like_their_parents(cell: str, time_major: bool) -> None:
    nnx = importlib.import_module("flax.nnx")
    names = page("from-flax", until="class Bidirectional")
    frames, lengths, _ = frames_and_lengths()
    options = dict(time_major=time_major, return_carry=True)

    def both(kind: Any, rnn: Any) -> Any:
        return kind(*nnx_rnns(rnn, cell), **options)

    def one(kind: Any, **more: Any) -> Any:
        return kind(nnx_rnns(kind, cell)[0].cell, **options, **more)

    start = nnx_rnns(nnx.RNN, cell)[0].cell.initialize_carry((3, FEATURES), rngs())
    start = jax.tree.map(lambda x: x + 0.5, start)

    for parent, child in [
        (both(nnx.Bidirectional, nnx.RNN), both(names["Bidirectional"], names["RNN"])),
        (one(nnx.RNN), one(names["RNN"])),
        (one(nnx.RNN, reverse=True, keep_order=True), one(names["RNN"], reverse=True)),
    ]:
        states = [nnx.to_flat_state(nnx.state(module)) for module in (parent, child)]
        assert states[0].paths == states[1].paths

        def apply(module: Any, weights: Any) -> Any:
            _, apply = nnx_recipe(module)
            if not time_major:
                return apply(weights, frames, seq_lengths=lengths)
            init = (start, start) if isinstance(module, nnx.Bidirectional) else start
            x, given = jnp.swapaxes(frames, 0, 1), dict(initial_carry=init)
            carry, outputs = apply(weights, x, seq_lengths=lengths, **given)
            return carry, jnp.swapaxes(outputs, 0, 1)

        functions = [lambda w, m=module: apply(m, w) for module in (child, parent)]
        assert_like_parent(*functions, nnx_recipe(parent)[0])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("is_compact", [True, False])
def test_a_subclass_of_linen_loads_a_checkpoint(cell: str, is_compact: bool) -> None:
    linen = importlib.import_module("flax.linen")
    child = page("from-flax", until="class LinenBidirectional")["LinenBidirectional"]
    frames, lengths, _ = frames_and_lengths()
    parent, ours = (
        linen_model(layer, cell, is_compact) for layer in (linen.Bidirectional, child)
    )
    checkpoint = parent.init(jax.random.key(1), frames, lengths)
    if is_compact:
        assert set(checkpoint["params"]) == {f"{cell}_0", f"{cell}_1"}
    assert_same(ours.init(jax.random.key(1), frames, lengths), checkpoint)
    functions = [
        lambda w, m=model: ((), m.apply(w, frames, lengths)) for model in (ours, parent)
    ]
    assert_like_parent(*functions, checkpoint)


def test_dropout_is_that_of_a_loop() -> None:
    names = page("from-flax", until="def with_dropout")
    frames, lengths, _ = frames_and_lengths()
    cells = tuple(rnn.cell for rnn in nnx_rnns(names["nnx"].RNN))
    key = jax.random.key(7)
    _, found = names["with_dropout"](cells, frames, lengths, key)
    keys = jax.random.split(key, 3)
    masks = [names["kept"](k, 3, 5, 8) for k in keys[:2]]
    of_state = names["kept"](keys[2], 3, 8)
    assert all(0 < np.mean(mask == 0) < 0.5 for mask in (*masks, of_state))
    for direction, cell in enumerate(cells):
        for row, n in enumerate(lengths.tolist()):
            state = jnp.zeros(8)
            for t in [range(n), reversed(range(n))][direction]:
                state, output = cell(state * of_state[row], frames[row, t])
                wanted = output * masks[direction][row, t]
                np.testing.assert_allclose(found[direction][row, t], wanted, atol=1e-6)


def test_ctc_is_that_of_each_utterance_alone() -> None:
    names = page("operators/bidirectional_scan", until="def ctc")
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape, scale=0.5), jnp.float32)

    weights = {
        "convolutions": [{"kernel": normal(3, 4, 4), "bias": normal(4)}] * 2,
        "cells": tuple(names["params"](jax.random.key(k), 4, 8) for k in range(2)),
        "scores": normal(16, 5),
    }
    lengths, counts = jnp.array([13, 22, 9]), jnp.array([2, 3, 1])
    labels = jnp.array([[1, 2, 0], [4, 3, 4], [2, 0, 0]])
    valid = jnp.arange(24) < lengths[:, None]
    frames = jnp.where(valid[..., None], normal(3, 24, 4), jnp.nan)

    @jax.jit
    @jax.value_and_grad
    def total(weights: Any, *batch: jax.Array) -> jax.Array:
        return jnp.sum(names["ctc"](weights, *batch))

    found = total(weights, frames, lengths, labels, counts)
    alone = [
        total(weights, x[None, :n], n[None], y[None, :count], count[None])
        for x, n, y, count in zip(frames, lengths, labels, counts, strict=True)
    ]
    wanted = jax.tree.map(lambda *parts: sum(parts), *alone)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4),
        found,
        wanted,
    )
