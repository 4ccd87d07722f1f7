"""Operators that change shapes, or move whole blocks of elements."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    axes_of,
    axis_of,
    integer,
    integers,
    normalized,
    numpy_or_jax,
    option,
    require_count,
    require_size,
)
from dml_jax.onnx_backend._values import Array, as_sizes


def _shape(node: Node, x: Array) -> Array:
    start, end = node.attributes["start"], node.attributes.get("end")
    return _sizes(np.shape(x)[start:end])


def _sizes(sizes: Any) -> Any:
    return as_sizes(np.array(sizes, object))


def _reshape(node: Node, x: Array, shape: Array) -> Array:
    sizes = integers("shape", shape)
    if not node.attributes["allowzero"]:
        if any(not n for n in sizes[np.ndim(x) :]):
            raise ValueError(
                f"`shape` must have zeros only for axes of the input; got {sizes}"
            )
        sizes = [n or np.shape(x)[i] for i, n in enumerate(sizes)]
    if sizes.count(-1) > 1:
        raise ValueError(f"`shape` must have -1 at most once; got {sizes}")
    if -1 in sizes and 0 in sizes:
        raise ValueError(
            f"`shape` must not have -1 beside an axis of size 0; got {sizes}"
        )
    return numpy_or_jax(x, sizes=sizes).reshape(x, sizes)


def flatten(node: Node, x: Array) -> Array:
    """`x` as a matrix, whose columns are the axes from `axis` on as one."""
    axis, rank = node.attributes["axis"], np.ndim(x)
    if not -rank <= axis <= rank:
        raise ValueError(f"`axis` must be in [{-rank}, {rank}]; got {axis}")
    axis += rank if axis < 0 else 0
    return x.reshape([math.prod(np.shape(x)[:axis]), math.prod(np.shape(x)[axis:])])


def _squeeze(node: Node, x: Array, axes: Any = None) -> Array:
    numbers = axes_of(node, np.ndim(x), axes)
    return x.squeeze(None if numbers is None else tuple(numbers))


def _unsqueeze(node: Node, x: Array, axes: Any = None) -> Array:
    # ONNX Runtime takes a scalar here, though not in other operators.
    axes = np.atleast_1d(node.attributes["axes"] if axes is None else axes)
    numbers = axes_of(node, np.ndim(x) + np.size(axes), axes) or []
    return numpy_or_jax(x).expand_dims(x, tuple(numbers))


def _concat(node: Node, *inputs: Array) -> Array:
    axis = normalized("axis", node.attributes["axis"], np.ndim(inputs[0]))
    return numpy_or_jax(*inputs).concatenate(inputs, axis)


def _split(node: Node, x: Array, split: Any = None) -> list[Array]:
    axis = axis_of(node, x)
    split = node.attributes.get("split") if split is None else split
    size, count = np.shape(x)[axis], len(node.outputs)
    if split is None:
        count = node.attributes.get("num_outputs", count)
        part = -(-size // count)  # the last part may be smaller
        sizes = [*[part] * (count - 1), size - part * (count - 1)]
        if "num_outputs" not in node.attributes and size % count:
            raise ValueError(f"`input` must have equal parts on the axis; got {sizes}")
    else:
        sizes = integers("split", split)
    if len(sizes) != len(node.outputs):
        raise ValueError(f"`split` must have {count} elements; got {len(sizes)}")
    return consecutive(x, axis, sizes)


def consecutive(x: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    """Consecutive parts along an axis."""
    if min(sizes, default=0) < 0 or sum(sizes) != np.shape(x)[axis]:
        raise ValueError(
            f"`split` must be sizes whose sum is {np.shape(x)[axis]}; got {sizes}"
        )
    ends = list(itertools.accumulate(sizes))
    return list(numpy_or_jax(x).split(x, ends[:-1], axis)) if sizes else []


def _expand(node: Node, x: Array, shape: Array) -> Array:
    sizes = require_size(node, "shape", integers("shape", shape))
    sizes = require_size(node, "shape", lax.broadcast_shapes(np.shape(x), sizes))
    return numpy_or_jax(x, sizes=sizes).broadcast_to(x, sizes)


def _tile(node: Node, x: Array, repeats: Array) -> Array:
    counts = integers("repeats", repeats)
    if len(counts) != np.ndim(x) or min(counts, default=0) < 0:
        raise ValueError(
            f"`repeats` must be {np.ndim(x)} numbers of at least 0; got {counts}"
        )
    sizes = zip(np.shape(x), counts, strict=True)
    require_size(node, "repeats", [size * n for size, n in sizes])
    return jnp.tile(x, counts)


def _pad(
    node: Node, x: Array, pads: Any = None, value: Any = None, axes: Any = None
) -> Array:
    if node.version < 11:
        pads = node.attributes["pads"]
        value = np.asarray(node.attributes["value"], x.dtype)
    rank = np.ndim(x)
    numbers = list(range(rank)) if axes is None else axes_of(node, rank, axes) or []
    amounts = integers("pads", pads)
    require_count("pads", amounts, 2 * len(numbers))
    widths = np.zeros((rank, 2), np.int64)
    widths[numbers] = np.reshape(amounts, (2, -1)).T
    require_size(
        node, "pads", [n + sum(w) for n, w in zip(np.shape(x), widths, strict=True)]
    )
    mode = option(node, "mode", ("constant", "reflect", "edge", "wrap"))
    if mode == "constant":
        value = jnp.zeros((), x.dtype) if value is None else jnp.reshape(value, ())
        edges = [(int(low), int(high), 0) for low, high in widths]
        return lax.pad(x, value.astype(x.dtype), edges)
    inside = tuple(
        slice(max(0, -low), size - max(0, -high))
        for size, (low, high) in zip(np.shape(x), widths, strict=True)
    )
    return jnp.pad(x[inside], np.maximum(widths, 0), mode)


def _trilu(node: Node, x: Array, k: Any = None) -> Array:
    offset = 0 if k is None else integer("k", k)
    is_upper = node.attributes["upper"]
    return (jnp.triu if is_upper else jnp.tril)(x, offset)


OPERATORS = {
    "Shape": Operator(_shape, 1, of_shapes=True),
    "Size": Operator(lambda _, x: _sizes(math.prod(np.shape(x))), 1, of_shapes=True),
    "Reshape": Operator(_reshape, 5, (1,), of_floats=True),
    "Flatten": Operator(flatten, 1, of_floats=True),
    "Squeeze": Operator(_squeeze, 1, (1,), of_floats=True),
    "Unsqueeze": Operator(_unsqueeze, 1, (1,), of_floats=True),
    "Transpose": Operator(
        lambda node, x: x.transpose(node.attributes.get("perm")), 1, of_floats=True
    ),
    "Concat": Operator(_concat, 4, of_floats=True),
    "Split": Operator(_split, 2, (1,), of_floats=True),
    "Expand": Operator(_expand, 8, (1,), of_floats=True, is_copy=True),
    "Tile": Operator(_tile, 6, (1,)),
    "Pad": Operator(_pad, 2, (1, 3), of_floats=True),
    "Trilu": Operator(_trilu, 14, (1,)),
}
