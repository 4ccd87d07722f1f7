"""Operators that read or write elements at indices."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dml_jax.onnx_backend._evaluation import Array, Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    axis_of,
    indices_of,
    integer,
    normalized,
    numpy_or_jax,
    option,
    require_constant,
    require_shape,
    require_size,
)


def _gather(node: Node, data: Array, indices: Array) -> Array:
    axis = axis_of(node, data)
    places = indices_of(indices, np.shape(data)[axis])
    return numpy_or_jax(data, places).take(data, places, axis, mode="clip")


def _gather_elements(node: Node, data: Array, indices: Array) -> Array:
    axis = axis_of(node, data)
    return _taken(data, _element_places(data, axis, indices))


def _element_places(data: Array, axis: int, indices: Array) -> Any:
    """What to index `data` with, for indices along an axis."""
    sizes, shape = np.shape(data), np.shape(indices)
    pairs = list(zip(shape, sizes, strict=False))
    others = pairs[:axis] + pairs[axis + 1 :]
    if len(shape) != len(sizes) or any(n > size for n, size in others):
        raise ValueError(
            f"`indices` must have rank {len(sizes)}, and at most the sizes {sizes} of "
            f"`data` on axes other than {axis}; got shape {shape}"
        )
    places: list[Any] = list(np.indices(shape, sparse=True))
    places[axis] = indices_of(indices, sizes[axis])
    return tuple(places)


def _gather_nd(node: Node, data: Array, indices: Array) -> Array:
    count = node.attributes["batch_dims"]
    data, indices = _with_an_axis(data, indices, count)
    return _taken(data, _slice_places(data, indices, count))


def _with_an_axis(data: Array, indices: Array, batch_dims: int = 0) -> Any:
    """Indices without elements, which select all of `data`, as those of a new axis."""
    if np.shape(indices)[-1:] != (0,):
        return data, indices
    data = numpy_or_jax(data).expand_dims(data, batch_dims)
    return data, np.zeros((*np.shape(indices)[:-1], 1), np.int64)


def _taken(data: Array, places: Any) -> Array:
    """Elements of `data`, which NumPy cannot index with traced places."""
    is_traced = any(isinstance(place, Tracer) for place in places)
    return (jnp.asarray(data) if is_traced else data)[places]


def _slice_places(data: Array, indices: Array, batch_dims: int = 0) -> Any:
    """What to index `data` with, for indices of slices in the last dimension."""
    shape, sizes = np.shape(indices), np.shape(data)
    batch, sizes = sizes[:batch_dims], sizes[batch_dims:]
    if shape[:-1][:batch_dims] != batch or not len(shape) or shape[-1] > len(sizes):
        raise ValueError(
            f"`indices` must have the sizes {batch} of `data` on its first axes, and "
            f"at most {len(sizes)} on its last axis; got shape {shape}"
        )
    batch = np.indices(shape[:-1], sparse=True)[:batch_dims]
    sizes = sizes[: shape[-1]]
    places = [indices_of(indices[..., i], size) for i, size in enumerate(sizes)]
    return (*batch, *places)


def _scatter_elements(
    node: Node, data: Array, indices: Array, updates: Array
) -> jax.Array:
    axis = axis_of(node, data)
    places = _element_places(data, axis, indices)
    require_shape("updates", updates, np.shape(indices))
    return _scatter(node, data, places, updates)


def _scatter_nd(node: Node, data: Array, indices: Array, updates: Array) -> jax.Array:
    shape = np.shape(data)
    data, indices = _with_an_axis(data, indices)
    places = _slice_places(data, indices)
    *outer, depth = np.shape(indices)
    require_shape("updates", updates, (*outer, *np.shape(data)[depth:]))
    return jnp.reshape(_scatter(node, data, places, updates), shape)


def _scatter(node: Node, data: Array, places: Any, updates: Array) -> jax.Array:
    names = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}
    reduction = option(node, "reduction", [*names])
    places = jnp.asarray(data).at[places]
    return getattr(places, names[reduction])(updates)


def _one_hot(node: Node, indices: Array, depth: Array, values: Array) -> Array:
    count = integer("depth", depth)
    require_shape("values", values, (2,))
    axis = normalized("axis", node.attributes["axis"], np.ndim(indices) + 1)
    require_size(node, "depth", (*np.shape(indices), count))
    places = jnp.expand_dims(jnp.asarray(indices), axis)
    # `depth` may be beyond a narrow dtype; floats are truncated.
    is_unsigned = jnp.issubdtype(places.dtype, jnp.unsignedinteger)
    places = places.astype(jnp.uint64 if is_unsigned else jnp.int64)
    places = jnp.where(places < 0, places + count, places)
    numbers = jnp.arange(count, dtype=places.dtype)
    numbers = jnp.expand_dims(numbers, [i for i in range(np.ndim(places)) if i != axis])
    return jnp.where(places == numbers, values[1], values[0])


def _non_zero(_: Node, x: Array) -> Array:
    require_constant(X=x)
    return np.argwhere(np.asarray(x)).T.astype(np.int64)


def _compress(node: Node, data: Array, condition: Array) -> Array:
    axis = node.attributes.get("axis")
    data = data.ravel() if axis is None else data
    axis = normalized("axis", axis or 0, np.ndim(data))
    size, shape = np.shape(data)[axis], np.shape(condition)
    is_known = not jax.export.is_symbolic_dim(size)
    if len(shape) != 1 or (is_known and shape[0] > size):
        raise ValueError(
            f"`condition` must have one dimension of at most {size} elements; got "
            f"shape {shape}"
        )
    return numpy_or_jax(data).take(data, np.flatnonzero(condition), axis)


OPERATORS = {
    "Gather": Operator(_gather, 1, indices=(1,)),
    "GatherElements": Operator(_gather_elements, 11, indices=(1,)),
    "GatherND": Operator(_gather_nd, 11, indices=(1,)),
    "ScatterElements": Operator(_scatter_elements, 11, indices=(1,)),
    "Scatter": Operator(_scatter_elements, 9, indices=(1,)),
    "ScatterND": Operator(_scatter_nd, 11, indices=(1,)),
    "OneHot": Operator(_one_hot, 9, static=(1,)),
    "NonZero": Operator(_non_zero, 9),
    "Compress": Operator(_compress, 9, static=(1,)),
}
