"""Operators that select, update or reinterpret elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import arguments
from dml_jax.onnx_backend._evaluation import Array, Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    axis_of,
    clamped,
    dtype_of,
    normalized,
    require_axes,
    require_constant,
    require_shape,
)


def _unique(node: Node, x: Array) -> list[Any]:
    require_constant(X=x)
    x, axis = np.asarray(x), node.attributes.get("axis")
    x = x.ravel() if axis is None else x
    axis = normalized("axis", axis or 0, x.ndim)
    values, first, inverse, counts = np.unique(x, True, True, True, axis)
    inverse = inverse.reshape(-1)
    if not node.attributes["sorted"]:
        order = np.argsort(first)
        values, first, counts = (
            np.take(values, order, axis),
            first[order],
            counts[order],
        )
        inverse = np.argsort(order)[inverse]
    return [values, *(part.astype(np.int64) for part in (first, inverse, counts))]


def _non_max_suppression(
    node: Node,
    boxes: Array,
    scores: Array,
    most: Any = None,
    overlap: Any = None,
    least: Any = None,
) -> np.ndarray:
    require_constant(
        boxes=boxes,
        scores=scores,
        max_output_boxes_per_class=most,
        iou_threshold=overlap,
        score_threshold=least,
    )
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
    batch = np.arange(moved.shape[0], dtype=np.int32)[:, None]
    starts = np.zeros(moved.shape[0], np.int64) if starts is None else starts
    is_circular = node.attributes["mode"] == "circular"
    most = 2**63 - 1 if is_circular else moved.shape[1] - new.shape[1]
    starts = clamped("write_indices", starts, most)
    places = starts[:, None] + np.arange(new.shape[1], dtype=np.int32)
    places = places % moved.shape[1]
    return jnp.moveaxis(moved.at[batch, places].set(new), 1, axis)


def _bit_cast(node: Node, x: Array) -> Array:
    dtype = dtype_of("`to`", node.attributes["to"])
    for given in (np.dtype(x.dtype), dtype):
        if not arguments.is_known(given):
            raise TypeError(f"`to` and the input must be dtypes of JAX; got {given}")
    if x.dtype == jnp.bool_:
        x = x.astype(np.uint8)
    if dtype == jnp.bool_:
        return _bits(x, np.dtype(np.uint8)) != 0
    return _bits(x, dtype)


def _bits(x: Array, dtype: np.dtype) -> jax.Array:
    result = lax.bitcast_convert_type(x, dtype)
    if result.shape != np.shape(x):
        raise ValueError(
            f"`to` must have as many bits as the input, {x.dtype}; got {dtype}"
        )
    return result


def _eye_like(node: Node, x: Array) -> np.ndarray:
    number, (rows, columns) = node.attributes.get("dtype"), np.shape(x)
    dtype = x.dtype if number is None else dtype_of("`dtype`", number)
    return np.eye(rows, columns, node.attributes["k"]).astype(dtype)


def _determinant(_: Node, x: Array) -> jax.Array:
    return jnp.linalg.det(x)


OPERATORS = {
    "Unique": Operator(_unique, 11),
    "NonMaxSuppression": Operator(_non_max_suppression, 10),
    "TensorScatter": Operator(_tensor_scatter, 24, indices=(2,)),
    "BitCast": Operator(_bit_cast, 26),
    "EyeLike": Operator(_eye_like, 9),
    "Det": Operator(_determinant, 11),
}
