"""Reductions, cumulative sums, and the largest elements."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    axes_of,
    axis_of,
    in_float32,
    index_dtype,
    integer,
    norm,
    normalized,
    require_shape,
    with_masks,
)
from dml_jax.onnx_backend._values import Array


def _reduction(function: Callable[..., Any]) -> Callable[..., Array]:
    """An operator from a function of an array, `axis` and `keepdims`."""

    def evaluate(node: Node, x: Array, axes: Any = None) -> Array:
        numbers = axes_of(node, np.ndim(x), axes) or []
        if not numbers and not node.attributes["noop_with_empty_axes"]:
            numbers = [*range(np.ndim(x))]
        keepdims = bool(node.attributes["keepdims"])
        return function(x, axis=tuple(numbers), keepdims=keepdims).astype(x.dtype)

    return evaluate


def _extremum(function: Callable[..., Any]) -> Callable[..., Any]:
    """The maximum or the minimum, which empty arrays have as well."""

    def reduce(x: Array, axis: Any, keepdims: bool) -> Array:
        result = function(jnp.asarray(x), axis)
        return jnp.expand_dims(result, axis) if keepdims else result

    return reduce


def _mean(x: Array, axis: Any, keepdims: bool) -> Array:
    """The mean, exact and truncated toward zero for integers."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return x.mean(axis, keepdims=keepdims)
    count = math.prod(np.shape(x)[i] for i in axis) or 1
    # Quotients and remainders are summed apart, because a sum of all may overflow.
    quotient, rest = (
        jnp.sum(part, axis, keepdims=keepdims) for part in jnp.divmod(x, count)
    )
    floor = quotient + rest // count
    return floor + ((floor < 0) & (rest % count != 0))


def _as_float(x: Array) -> Array:
    """Integers as float64; JAX's own conversion keeps only 24 bits of an int32."""
    is_integer = jnp.issubdtype(x.dtype, jnp.integer)
    return jnp.asarray(x, jnp.float64) if is_integer else x


def _extreme_index(name: str) -> Callable[..., Array]:
    def evaluate(node: Node, x: Array) -> Array:
        axis = axis_of(node, x)
        keepdims = bool(node.attributes["keepdims"])
        is_last = node.attributes["select_last_index"]
        given = jnp.flip(x, axis) if is_last else jnp.asarray(x)
        size = np.shape(x)[axis]
        index = getattr(jax.lax, name)(given, axis, index_dtype(size))
        index = jnp.expand_dims(index, axis) if keepdims else index
        return (size - 1 - index if is_last else index).astype(jnp.int64)

    return evaluate


def _cumulative(function: Callable[..., jax.Array]) -> Callable[..., Array]:
    """An operator from `jnp.cumulative_sum` or `jnp.cumulative_prod`."""

    def evaluate(node: Node, x: Array, axis: Array) -> Array:
        number = normalized("axis", integer("axis", axis), np.ndim(x))
        is_reversed = node.attributes["reverse"]
        is_exclusive = bool(node.attributes["exclusive"])
        x = jnp.flip(x, number) if is_reversed else jnp.asarray(x)
        total = function(x, axis=number, dtype=x.dtype, include_initial=is_exclusive)
        total = jax.lax.slice_in_dim(total, 0, np.shape(x)[number], axis=number)
        return jnp.flip(total, number) if is_reversed else total

    return evaluate


def _top_k(node: Node, x: Array, k: Any = None) -> list[Array]:
    require_shape("K", k, (1,))
    count = integer("K", node.attributes["k"] if k is None else k)
    axis = axis_of(node, x)
    if not 0 <= count <= np.shape(x)[axis]:
        raise ValueError(f"`K` must be in [0, {np.shape(x)[axis]}]; got {count}")
    is_largest = bool(node.attributes["largest"])
    order = jnp.argsort(x, axis, stable=True, descending=is_largest).astype(jnp.int32)
    order = jax.lax.slice_in_dim(order, 0, count, axis=axis)
    return [jnp.take_along_axis(x, order, axis), order.astype(jnp.int64)]


# `over` has the axes and `keepdims`.
_REDUCTIONS = {
    "Sum": lambda x, **over: x.sum(dtype=x.dtype, **over),
    "Mean": _mean,
    "Prod": lambda x, **over: x.prod(**over),
    "L1": lambda x, **over: jnp.sum(jnp.abs(x), **over),
    "L2": lambda x, **over: norm(_as_float(x), 2, lambda y: jnp.sum(y, **over)),
    "SumSquare": lambda x, **over: jnp.sum(jnp.square(x), **over),
    "LogSum": lambda x, **over: jnp.log(jnp.sum(x, **over)),
    "LogSumExp": lambda x, **over: with_masks(
        jax.nn.logsumexp(with_masks(_as_float(x)), **over)
    ),
}

OPERATORS = {
    **{
        f"Reduce{name}": Operator(in_float32(_reduction(function)), 1, static=(1,))
        for name, function in _REDUCTIONS.items()
    },
    "ReduceMax": Operator(_reduction(_extremum(jax.lax.reduce_max)), 1, static=(1,)),
    "ReduceMin": Operator(_reduction(_extremum(jax.lax.reduce_min)), 1, static=(1,)),
    "ArgMax": Operator(_extreme_index("argmax"), 1),
    "ArgMin": Operator(_extreme_index("argmin"), 1),
    "CumSum": Operator(in_float32(_cumulative(jnp.cumulative_sum)), 11, static=(1,)),
    "CumProd": Operator(in_float32(_cumulative(jnp.cumulative_prod)), 26, static=(1,)),
    "TopK": Operator(_top_k, 1, static=(1,)),
}
