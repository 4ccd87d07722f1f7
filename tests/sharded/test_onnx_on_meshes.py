"""ONNX models on meshes, whose axes are explicit unless a program says otherwise."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import AUTO, EXPLICIT, mesh_of, put
from jax.sharding import PartitionSpec as P
from onnx_models import F, parse, runtime_outputs

from dml_jax import onnx_backend

# A convolution and a table, of which tokens choose rows; the sum has no batch.
TEXT = """float[n, 3, 9] x, int64[n, 4] tokens =>
float[n, 6] y, int64[n] best, float s {
  h = Conv<pads = [1, 1]>(x, kernel)
  pooled = GlobalAveragePool(h)
  flat = Flatten(pooled)
  rows = Gather(table, tokens)
  sums = ReduceSum<keepdims = 0>(rows, axis)
  y = Concat<axis = 1>(flat, sums)
  best = ArgMax<axis = 1, keepdims = 0>(y)
  s = ReduceSum<keepdims = 0>(y)
}"""
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((16, 3, 9)).astype(F)
TOKENS = RANDOM.integers(0, 10, (16, 4))
SOURCE = parse(
    TEXT,
    kernel=RANDOM.standard_normal((4, 3, 3)).astype(F),
    table=RANDOM.standard_normal((10, 2)).astype(F),
    axis=np.array([1]),
)
WANTED = runtime_outputs(SOURCE, [X, TOKENS])


@pytest.fixture(params=[AUTO, EXPLICIT], ids=["auto", "explicit"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Any]:
    mesh = mesh_of(request.param, data=4, model=2)
    with jax.set_mesh(mesh):
        yield mesh


@pytest.mark.parametrize("is_compiled", [True, False], ids=["jit", "eager"])
def test_outputs_have_the_sharding_of_the_batch(mesh: Any, is_compiled: bool) -> None:
    model = onnx_backend.prepare(SOURCE)
    x, tokens = put(X, mesh, "data"), put(TOKENS.astype(np.int32), mesh, "data")
    function = jax.jit(model.jax_fn) if is_compiled else model.jax_fn
    outputs = function(x, tokens)
    for found, wanted in zip(outputs, WANTED, strict=True):
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
    if mesh.axis_types[0] == EXPLICIT:
        specs = [jax.typeof(y).sharding.spec for y in outputs]
        assert specs == [P("data", None), P("data"), P()]


def test_gradients(mesh: Any) -> None:
    """Of a batch and of weights that are sharded, as on one device."""
    model = onnx_backend.prepare(SOURCE)
    tokens = TOKENS.astype(np.int32)

    def loss(params: Any, x: Any, tokens: Any) -> Any:
        return jnp.mean(model.apply(params, x, tokens)[0] ** 2)

    differentiate = jax.jit(jax.grad(loss, (0, 1)))
    params = {n: np.asarray(w) for n, w in model.params.items()}
    with jax.set_mesh(mesh_of(AUTO, data=1)):
        wanted = differentiate(params, X, tokens)
    placed = {
        "kernel": put(params["kernel"], mesh, "model"),
        "table": put(params["table"], mesh),
    }
    given = placed, put(X, mesh, "data"), put(tokens, mesh, "data")
    found = differentiate(*given)
    for y, expected in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(y, expected, 1e-5, 1e-6)
    if mesh.axis_types[0] == EXPLICIT:
        for y, array in zip(*map(jax.tree.leaves, (found, given[:2])), strict=True):
            assert jax.typeof(y) == jax.typeof(array)
