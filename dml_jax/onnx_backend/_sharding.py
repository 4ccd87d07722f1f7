"""Graphs of arrays on meshes with explicit axes.

Many operations of JAX cannot tell the sharding of their result from those of their
operands. Inside a graph, the axes are therefore automatic.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


def with_automatic_axes(
    function: Callable[..., list[jax.Array]], *arguments: Any
) -> list[jax.Array]:
    """Calls `function`, within which explicit axes of meshes are automatic.

    Results with the batch of an argument, which is its first axis, are sharded along
    it in the same way; others are replicated.
    """
    leaves, tree = jax.tree.flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if _explicit_axes(leaf)]
    if not places:
        return function(*arguments)

    def call(sharded: list[Any]) -> list[jax.Array]:
        given = dict(zip(places, sharded, strict=True))
        every = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
        return function(*jax.tree.unflatten(tree, every))

    sharded = [leaves[i] for i in places]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in sharded]
    mesh = jax.typeof(sharded[0]).sharding.mesh
    batches = {
        x.shape[0]: jax.typeof(x).sharding.spec[0]
        for x in reversed(sharded)
        if x.ndim and jax.typeof(x).sharding.spec[0]
    }
    shardings = [
        NamedSharding(mesh, PartitionSpec(*map(batches.get, y.shape[:1])))
        for y in jax.eval_shape(call, shapes)
    ]
    axes = mesh.explicit_axes
    automatic: Any = jax.sharding.auto_axes(call, axes=axes, out_sharding=shardings)
    return automatic(sharded)


def _explicit_axes(value: Any) -> tuple[str, ...]:
    if not isinstance(value, jax.Array):
        return ()
    return getattr(jax.typeof(value).sharding.mesh, "explicit_axes", ())
