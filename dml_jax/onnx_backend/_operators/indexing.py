"""Operators that read or write elements at indices, or find the indices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    at_least_float32,
    axis_of,
    clamped,
    indices_of,
    integer,
    is_half,
    normalized,
    numpy_or_jax,
    option,
    positions,
    require_axes,
    require_constant,
    require_shape,
    require_size,
)
from dml_jax.onnx_backend._values import Array, with_derivative


def _gather(node: Node, data: Array, indices: Array) -> Array:
    axis = axis_of(node, data)
    places = indices_of(indices, np.shape(data)[axis])
    namespace = numpy_or_jax(data, places)
    return taken(lambda x: namespace.take(x, places, axis, mode="clip"), data)


def taken(take: Callable[[Any], Array], x: Array) -> Any:
    """Elements of `x`, whose gradients are summed in float32 where they repeat."""
    if not (is_half(x) and isinstance(x, Tracer)):
        return take(x)
    smooth = take(at_least_float32(x)).astype(x.dtype)
    return with_derivative(take(x), smooth)  # which keeps the bits of NaNs


def _gather_elements(node: Node, data: Array, indices: Array) -> Array:
    axis = axis_of(node, data)
    return _elements(data, _element_places(data, axis, indices))


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
    places = [positions(shape, i) for i in range(len(shape))]
    places[axis] = indices_of(indices, sizes[axis])
    return tuple(places)


def _gather_nd(node: Node, data: Array, indices: Array) -> Array:
    count = node.attributes["batch_dims"]
    data, indices = _with_an_axis(data, indices, count)
    return _elements(data, _slice_places(data, indices, count))


def _with_an_axis(data: Array, indices: Array, batch_dims: int = 0) -> Any:
    """Indices without elements, which select all of `data`, as those of a new axis."""
    if np.shape(indices)[-1:] != (0,):
        return data, indices
    data = numpy_or_jax(data).expand_dims(data, batch_dims)
    return data, np.zeros((*np.shape(indices)[:-1], 1), np.int64)


def _elements(data: Array, places: Any) -> Array:
    """Elements of `data`, which NumPy cannot index with traced places."""
    is_traced = any(isinstance(place, Tracer) for place in places)
    return taken(lambda x: (jnp.asarray(x) if is_traced else x)[places], data)


def _slice_places(data: Array, indices: Array, batch_dims: int = 0) -> Any:
    """What to index `data` with, for indices of slices in the last dimension."""
    shape, sizes = np.shape(indices), np.shape(data)
    batch, sizes = sizes[:batch_dims], sizes[batch_dims:]
    if shape[:-1][:batch_dims] != batch or not len(shape) or shape[-1] > len(sizes):
        raise ValueError(
            f"`indices` must have the sizes {batch} of `data` on its first axes, and "
            f"at most {len(sizes)} on its last axis; got shape {shape}"
        )
    batch = [positions(shape[:-1], i) for i in range(batch_dims)]
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
    reduction = option(node, "reduction", ["none", "add", "mul", "max", "min"])
    if is_half(data) and reduction in ("add", "mul"):
        wide = at_least_float32(data), places, at_least_float32(updates)
        return _scatter(node, *wide).astype(data.dtype)
    data = jnp.asarray(data)
    if reduction == "mul":
        return _multiplied(data, updates, places)
    name = "set" if reduction == "none" else reduction
    return getattr(data.at[places], name)(updates)


@jax.custom_jvp
def _multiplied(data: jax.Array, updates: Array, places: Any) -> jax.Array:
    """`data` times the updates; JAX has no derivatives where places repeat."""
    return data.at[places].multiply(updates)


@_multiplied.defjvp
def _multiplied_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (data, updates, places), (data_tangent, tangent, _) = primals, tangents
    zeros, ones = jnp.zeros_like(data), jnp.ones_like(data)
    # The product of all other updates of an element is that of those which are not
    # zero, divided by the update's own, and zero if another one is zero.
    nonzero = jnp.where(updates == 0, 1, updates)
    counts = zeros.at[places].add(updates == 0)[places]
    others = _multiplied(ones, nonzero, places)[places] / nonzero
    others = jnp.where(counts == (updates == 0), others, 0)
    change = zeros.at[places].add(tangent * others)
    factors = _multiplied(ones, updates, places)
    return _multiplied(*primals), data_tangent * factors + data * change


def _tensor_scatter(
    node: Node, cache: Array, update: Array, starts: Any = None
) -> jax.Array:
    axis = axis_of(node, cache)
    sizes = list(np.shape(cache))
    if np.ndim(update) == len(sizes) and np.shape(update)[axis] <= sizes[axis]:
        sizes[axis] = np.shape(update)[axis]
    require_shape("update", update, sizes)
    require_shape("write_indices", starts, sizes[:1])
    moved, new = jnp.moveaxis(cache, axis, 1), jnp.moveaxis(update, axis, 1)
    batch = positions(moved.shape[:2], 0)
    starts = jnp.zeros(moved.shape[:1], jnp.int64) if starts is None else starts
    is_circular = node.attributes["mode"] == "circular"
    most = 2**63 - 1 if is_circular else moved.shape[1] - new.shape[1]
    starts = clamped("write_indices", starts, most)
    places = starts[:, None] + np.arange(new.shape[1], dtype=np.int32)
    places = places % moved.shape[1]
    return jnp.moveaxis(moved.at[batch, places].set(new), 1, axis)


def _one_hot(node: Node, indices: Array, depth: Array, values: Array) -> Array:
    count = integer("depth", depth)
    require_shape("values", values, (2,))
    axis = normalized("axis", node.attributes["axis"], np.ndim(indices) + 1)
    require_size(node, "depth", (*np.shape(indices), count))
    places = jnp.asarray(indices)
    # `depth` may be beyond a narrow dtype; floats are truncated.
    is_unsigned = jnp.issubdtype(places.dtype, jnp.unsignedinteger)
    places = places.astype(jnp.uint64 if is_unsigned else jnp.int64)
    places = jnp.where(places < 0, places + count, places)
    is_chosen = jax.nn.one_hot(places, count, dtype=bool, axis=axis)
    return jnp.where(is_chosen, values[1], values[0])


def _non_zero(_: Node, x: Array) -> Array:
    require_constant(X=x)
    return np.argwhere(np.asarray(x)).T.astype(np.int64)


def _compress(node: Node, data: Array, condition: Array) -> Array:
    axis, shape = node.attributes.get("axis"), np.shape(condition)
    size = data.size if axis is None else np.shape(data)[axis_of(node, data)]
    is_known = not jax.export.is_symbolic_dim(size)
    if len(shape) != 1 or (is_known and shape[0] > size):
        raise ValueError(
            f"`condition` must have one dimension of at most {size} elements; got "
            f"shape {shape}"
        )
    return numpy_or_jax(data).take(data, np.flatnonzero(condition), axis)


def _unique(node: Node, x: Array) -> list[Any]:
    require_constant(X=x)
    axis = node.attributes.get("axis")
    values, first, inverse, counts = np.unique(np.asarray(x), True, True, True, axis)
    inverse = inverse.reshape(-1)
    if not node.attributes["sorted"]:
        order = np.argsort(first)
        values, first, counts = values.take(order, axis), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return [values, *(part.astype(np.int64) for part in (first, inverse, counts))]


def _non_max_suppression(node: Node, *inputs: Any) -> np.ndarray:
    names = "boxes scores max_output_boxes_per_class iou_threshold score_threshold"
    require_constant(**dict(zip(names.split(), inputs, strict=False)))
    boxes, scores, most, overlap, least = (*inputs, *[None] * (5 - len(inputs)))
    require_axes(boxes=(boxes, "batch boxes 4"), scores=(scores, "batch classes boxes"))
    boxes, scores = np.asarray(boxes), np.asarray(scores)
    limit = 0 if most is None or not np.size(most) else int(np.ravel(most)[0])
    threshold = 0.0 if overlap is None else float(np.ravel(overlap)[0])
    a, b, c, d = np.moveaxis(boxes, -1, 0)
    if node.attributes["center_point_box"]:
        a, b, c, d = b - d / 2, a - c / 2, b + d / 2, a + c / 2
    # The smaller and the larger coordinate of each axis.
    low = np.stack([np.minimum(a, c), np.minimum(b, d)], -1)
    high = np.stack([np.maximum(a, c), np.maximum(b, d)], -1)
    selected = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        values = scores[batch, kind]
        order = np.argsort(-values, kind="stable")
        if least is not None and np.size(least):
            order = order[values[order] > np.ravel(least)[0]]
        for _ in range(max(limit, 0)):
            if not order.size:
                break
            best, order = order[0], order[1:]
            selected.append((batch, kind, best))
            shares = _shares(low[batch], high[batch], best, order)
            order = order[shares <= threshold]
    return np.array(selected, np.int64).reshape(-1, 3)


def _shares(low: np.ndarray, high: np.ndarray, box: int, others: Any) -> np.ndarray:
    """The intersections of a box and others, as shares of their unions."""
    sides = np.minimum(high[box], high[others]) - np.maximum(low[box], low[others])
    common = np.prod(np.maximum(sides, 0), -1)
    areas = np.prod(high - low, -1)
    union = areas[box] + areas[others] - common
    return np.divide(common, union, out=np.zeros_like(common), where=common > 0)


OPERATORS = {
    "Gather": Operator(_gather, 1, of_floats=True),
    "GatherElements": Operator(_gather_elements, 11),
    "GatherND": Operator(_gather_nd, 11),
    "ScatterElements": Operator(_scatter_elements, 11),
    "Scatter": Operator(_scatter_elements, 9),
    "ScatterND": Operator(_scatter_nd, 11),
    "TensorScatter": Operator(_tensor_scatter, 24),
    "OneHot": Operator(_one_hot, 9, static=(1,)),
    "NonZero": Operator(_non_zero, 9),
    "Compress": Operator(_compress, 9, static=(1,)),
    "Unique": Operator(_unique, 11),
    "NonMaxSuppression": Operator(_non_max_suppression, 10),
}
