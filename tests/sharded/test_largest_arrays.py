"""No device holds more than a few shards, whatever the kinds of the mesh axes."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from devices import AUTO, EXPLICIT, compile_for, most_elements
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax

SIZE = 64
X = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
LENGTHS = np.arange(SIZE, dtype=np.int32)[:, None]
WHOLE = (0, 0), (SIZE, SIZE)

Function = Callable[[jax.Array, jax.Array], jax.Array]

OPERATORS: dict[str, Function] = {
    "reverse": lambda x, n: dml_jax.reverse_subsequences(x, n, 1),
    "reverse_batch": lambda x, n: dml_jax.reverse_subsequences(x, n.T, 0),
    "training": lambda x, n: dml_jax.reverse_sequence(
        x, n[:, 0], batch_axis=0, time_axis=1, lda_coeff=0.5
    ),
    "slice": lambda x, _: dml_jax.slice(x, (0, 0), (SIZE, SIZE // 2), (1, 2)),
    "slice1": lambda x, _: dml_jax.slice1(x, *WHOLE, (-1, 1)),
    "rows_grad": lambda x, _: dml_jax.slice_grad(
        x, (2 * SIZE, SIZE), (0, 0), (2 * SIZE, SIZE), (2, 1)
    ),
    "columns_grad": lambda x, _: dml_jax.slice_grad(
        x, (SIZE, 2 * SIZE), (0, 0), (SIZE, 2 * SIZE), (1, 2)
    ),
}
MESHES = {
    "auto": (AUTO, AUTO),
    "explicit": (EXPLICIT, EXPLICIT),
    "auto_explicit": (AUTO, EXPLICIT),
    "explicit_auto": (EXPLICIT, AUTO),
}
# JAX's own operations gather an array whose dimension is sharded over an automatic axis
# first and an explicit one second.
SPECS = [P("a"), P("a", "b"), P("b", "a"), P(None, "a"), P(None, "b")]


def forward(function: Function) -> Function:
    return function


def tangent(function: Function) -> Function:
    return lambda x, n: jax.jvp(lambda x: function(x, n), (x,), (x,))[1]


def cotangent(function: Function) -> Function:
    def pulled(x: jax.Array, n: jax.Array) -> jax.Array:
        y, pull_back = jax.vjp(lambda x: function(x, n), x)
        return pull_back(y)[0]

    return pulled


PROGRAMS = [
    *itertools.product(OPERATORS, [forward, tangent, cotangent], MESHES, SPECS),
]
PROGRAMS = [each for each in PROGRAMS if each[:2] != ("training", tangent)][::3]


def mesh_of(types: tuple[AxisType, AxisType]) -> Mesh:
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=types)


@pytest.mark.parametrize(
    ("operator", "derivative", "kind", "spec"), default_of(PROGRAMS, *PROGRAMS[::11])
)
def test_largest_array(operator: str, derivative: Any, kind: str, spec: P) -> None:
    function = derivative(OPERATORS[operator])
    mesh = mesh_of(MESHES[kind])
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, spec))
        n = jax.device_put(LENGTHS, NamedSharding(mesh, P()))
        compiled = compile_for(function, x, n)
        y = compiled(x, n)
    assert_same_bits(np.asarray(y), np.asarray(jax.jit(function)(X, LENGTHS)))
    shards = math.prod(mesh.shape[name] for name in spec if name)
    assert most_elements(compiled) <= 4 * max(x.size, y.size) // shards


@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_without_callbacks_of_the_partitioner(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JAX that lacks `custom_partitioning`: XLA partitions the operator itself."""

    def raises(*_: Any, **__: Any) -> Any:
        raise AttributeError("it is gone")

    monkeypatch.setattr("dml_jax._shared.partitioner.custom_partitioning", raises)
    monkeypatch.setattr("dml_jax._shared.jax_versions._missing", {})
    mesh = mesh_of(MESHES[mode])
    function = cotangent(OPERATORS["training"])
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, P("a", "b")))
        with pytest.warns(RuntimeWarning, match="it is gone"):
            y = jax.jit(function)(x, LENGTHS)
    assert_same_bits(np.asarray(y), np.asarray(jax.jit(function)(X, LENGTHS)))
