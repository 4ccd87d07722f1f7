"""Operators that read or write elements at indices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dml_jax.onnx_backend._evaluation import Array, Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    indices_of,
    integer,
    normalized,
    numpy_or_jax,
    require_size,
)


def _gather(node: Node, data: Array, indices: Array) -> Array:
    axis = normalized("axis", node.attributes.get("axis", 0), np.ndim(data))
    places = indices_of(indices, np.shape(data)[axis])
    return numpy_or_jax(data, places).take(data, places, axis, mode="clip")


def _gather_elements(node: Node, data: Array, indices: Array) -> Array:
    axis = normalized("axis", node.attributes.get("axis", 0), np.ndim(data))
    return _taken(data, _element_places(data, axis, indices))


def _element_places(data: Array, axis: int, indices: Array) -> Any:
    """What to index `data` with, for indices along an axis."""
    places: list[Any] = list(np.indices(np.shape(indices), sparse=True))
    places[axis] = indices_of(indices, np.shape(data)[axis])
    return tuple(places)


def _gather_nd(node: Node, data: Array, indices: Array) -> Array:
    count = node.attributes.get("batch_dims", 0)
    return _taken(data, _slice_places(data, indices, count))


def _taken(data: Array, places: Any) -> Array:
    """Elements of `data`, which NumPy cannot index with traced places."""
    is_traced = any(isinstance(place, Tracer) for place in places)
    return (jnp.asarray(data) if is_traced else data)[places]


def _slice_places(data: Array, indices: Array, batch_dims: int = 0) -> Any:
    """What to index `data` with, for indices of slices in the last dimension."""
    *outer, depth = np.shape(indices)
    if not batch_dims <= len(outer) or batch_dims + depth > np.ndim(data):
        raise ValueError(
            f"`indices` must have at most {np.ndim(data) - batch_dims} elements in its "
            f"last dimension; got shape {np.shape(indices)}"
        )
    batch = np.indices(outer, sparse=True)[:batch_dims]
    sizes = np.shape(data)[batch_dims : batch_dims + depth]
    places = [indices_of(indices[..., i], size) for i, size in enumerate(sizes)]
    return (*batch, *places)


def _scatter_elements(
    node: Node, data: Array, indices: Array, updates: Array
) -> jax.Array:
    axis = normalized("axis", node.attributes.get("axis", 0), np.ndim(data))
    return _scatter(node, data, _element_places(data, axis, indices), updates)


def _scatter_nd(node: Node, data: Array, indices: Array, updates: Array) -> jax.Array:
    return _scatter(node, data, _slice_places(data, indices), updates)


def _scatter(node: Node, data: Array, places: Any, updates: Array) -> jax.Array:
    names = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}
    reduction = node.attributes.get("reduction", "none")
    if reduction not in names:
        raise ValueError(f"`reduction` must be one of {[*names]}; got {reduction!r}")
    places = jnp.asarray(data).at[places]
    return getattr(places, names[reduction])(updates)


def _one_hot(node: Node, indices: Array, depth: Array, values: Array) -> Array:
    count = integer("depth", depth)
    axis = normalized("axis", node.attributes.get("axis", -1), np.ndim(indices) + 1)
    require_size(node, "depth", (*np.shape(indices), count))
    places = jnp.expand_dims(jnp.asarray(indices), axis)
    if jnp.issubdtype(places.dtype, jnp.integer):
        places = places.astype(jnp.int64)  # `depth` may be beyond a narrow dtype
    places = jnp.where(places < 0, places + count, places)
    numbers = jnp.arange(count, dtype=places.dtype)
    numbers = jnp.expand_dims(numbers, [i for i in range(np.ndim(places)) if i != axis])
    return jnp.where(places == numbers, values[1], values[0])


def _non_zero(_: Node, x: Array) -> Array:
    if isinstance(x, Tracer):
        raise TypeError("must have constant inputs under JAX's transformations")
    return np.array(np.nonzero(np.asarray(x)), np.int64)


def _compress(node: Node, data: Array, condition: Array) -> Array:
    axis = node.attributes.get("axis")
    data = numpy_or_jax(data).ravel(data) if axis is None else data
    return numpy_or_jax(data).take(data, np.flatnonzero(condition), axis or 0)


OPERATORS = {
    "Gather": Operator(_gather, frozenset({1, 11, 13}), indices=(1,)),
    "GatherElements": Operator(_gather_elements, frozenset({11, 13}), indices=(1,)),
    "GatherND": Operator(_gather_nd, frozenset({11, 12, 13}), indices=(1,)),
    "ScatterElements": Operator(
        _scatter_elements, frozenset({11, 13, 16, 18}), indices=(1,)
    ),
    "Scatter": Operator(_scatter_elements, frozenset({9, 11}), indices=(1,)),
    "ScatterND": Operator(_scatter_nd, frozenset({11, 13, 16, 18}), indices=(1,)),
    "OneHot": Operator(_one_hot, frozenset({9, 11, 28}), static=(1,)),
    "NonZero": Operator(_non_zero, frozenset({9, 13})),
    "Compress": Operator(_compress, frozenset({9, 11, 28}), static=(1,)),
}
