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

    def apply(weights: Any, *arrays: Any) -> Any:
        return nnx.merge(graph, weights, others, copy=True)(*arrays)

    return weights, apply


def rngs() -> Any:
    return importlib.import_module("flax.nnx").Rngs(0)


def tutorial() -> Recipe:
    names = page("tutorial", until="class Recogniser")
    return nnx_recipe(names["Recogniser"](FEATURES, 8, classes=2, rngs=rngs()))


def both_ways() -> Recipe:
    names = page("from-flax", until="class BothWays")
    return nnx_recipe(names["BothWays"](FEATURES, 8, rngs=rngs()))


def two_reversals() -> Recipe:
    names = page("from-flax", until="class Bidirectional")
    return nnx_recipe(names["Bidirectional"](FEATURES, 8, rngs=rngs()))


def linen() -> Recipe:
    names = page("from-flax", until="class LinenBidirectional")
    layer = names["LinenBidirectional"](hidden=8)
    frames = jnp.zeros((2, 3, FEATURES))
    weights = layer.init(jax.random.key(0), frames, jnp.array([3, 2]))
    return weights, layer.apply


def equinox() -> Recipe:
    names = page("from-flax", until="model = EquinoxBothWays")
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
    return weights, lambda weights, *arrays: names["read"](
        nnx.merge(graph, weights), *arrays
    )


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
    "from Flax, one scan": both_ways,
    "from Flax, two reversals": two_reversals,
    "from Flax, Linen, two reversals": linen,
    "from Flax, Equinox": equinox,
    "from TensorFlow": from_tensorflow,
    "from PyTorch, LSTM": lambda: from_pytorch("lstm"),
    "from PyTorch, GRU": lambda: from_pytorch("gru"),
}


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return RECIPES[request.param]()


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
    names = page("from-flax", until="class Bidirectional")
    masked = names["masked"]
    layer = names["Bidirectional"](FEATURES, 8, rngs=rngs())
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
