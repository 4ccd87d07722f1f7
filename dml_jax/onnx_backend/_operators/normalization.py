"""Normalizations along axes: softmax, of batches and of layers; dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.onnx_backend._evaluation import Array, Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    dtype_of,
    index_dtype,
    normalized,
    require_broadcastable,
    require_shape,
)


def _along_axis(function: Callable[..., jax.Array]) -> Callable[..., Array]:
    """An operator from a function of an array and an axis.

    Before version 13, it is along all axes from `axis` on.
    """

    def evaluate(node: Node, x: Array) -> Array:
        is_flat, shape = node.version < 13, np.shape(x)
        axis = node.attributes.get("axis", 1 if is_flat else -1)
        if not is_flat:
            return function(jnp.asarray(x), normalized("axis", axis, len(shape)))
        axis = axis if axis == len(shape) else normalized("axis", axis, len(shape))
        rows = jnp.reshape(x, (int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))))
        return jnp.reshape(function(rows, 1), shape)

    return evaluate


def _hardmax(x: jax.Array, axis: int) -> jax.Array:
    if not x.size:
        return x
    size = x.shape[axis]
    places = jnp.expand_dims(jax.lax.argmax(x, axis, index_dtype(size)), axis)
    numbers = jax.lax.broadcasted_iota(places.dtype, x.shape, axis)
    return (numbers == places).astype(x.dtype)


def _batch_normalization(
    node: Node, x: Array, scale: Array, bias: Array, mean: Array, variance: Array
) -> list[Array]:
    outputs, dtype = [], x.dtype
    is_spatial = node.attributes.get("spatial", 1)
    sizes = (*np.shape(x), 1)[1:2] if is_spatial else np.shape(x)[1:]
    names = "scale", "B", "input_mean", "input_var"
    for name, part in zip(names, (scale, bias, mean, variance), strict=True):
        require_shape(name, part, sizes)
    # Before version 14, a node with more than one output is in training mode.
    has_statistics = node.version < 14 and len(node.outputs) > 1
    if node.attributes.get("training_mode", has_statistics):
        others = tuple(axis for axis in range(np.ndim(x)) if axis != 1)
        axes = others if is_spatial else (0,)
        momentum = node.attributes.get("momentum", 0.9)
        now = jnp.mean(x, axes), jnp.var(x, axes)
        pairs = zip((mean, variance), now, strict=True)
        outputs = [(old * momentum + new * (1 - momentum)) for old, new in pairs]
        outputs = [y.astype(mean.dtype) for y in (*outputs, *now)]
        mean, variance = now
    epsilon = node.attributes.get("epsilon", 1e-5)
    factor = jnp.asarray(scale) / jnp.sqrt(variance + epsilon)
    sizes = (-1, *[1] * (np.ndim(x) - 2)) if is_spatial else sizes
    mean, factor, bias = (jnp.reshape(part, sizes) for part in (mean, factor, bias))
    return [((x - mean) * factor + bias).astype(dtype), *outputs]


def _layer_normalization(
    node: Node, x: Array, scale: Array, bias: Any = None
) -> list[Array]:
    axis = normalized("axis", node.attributes.get("axis", -1), np.ndim(x))
    wide = jnp.asarray(
        x, dtype_of("`stash_type`", node.attributes.get("stash_type", 1))
    )
    axes = tuple(range(axis, np.ndim(x)))
    for name, part in (("Scale", scale), ("B", bias)):
        require_broadcastable(name, part, np.shape(x))
    mean = jnp.mean(wide, axes, keepdims=True)
    variance = jnp.mean(jnp.square(wide - mean), axes, keepdims=True)
    inverse = jax.lax.rsqrt(variance + node.attributes.get("epsilon", 1e-5))
    result = ((wide - mean) * inverse).astype(x.dtype) * scale
    return [result if bias is None else result + bias, mean, inverse]


def _rms_normalization(node: Node, x: Array, scale: Array) -> Array:
    axis = normalized("axis", node.attributes.get("axis", -1), np.ndim(x))
    wide = jnp.asarray(
        x, dtype_of("`stash_type`", node.attributes.get("stash_type", 1))
    )
    axes = tuple(range(axis, np.ndim(x)))
    require_broadcastable("scale", scale, np.shape(x))
    square = jnp.mean(jnp.square(wide), axes, keepdims=True)
    inverse = jax.lax.rsqrt(square + node.attributes.get("epsilon", 1e-5))
    return (wide * inverse).astype(x.dtype) * scale


def _dropout(node: Node, x: Array, ratio: Any = None, is_training: Any = None) -> Any:
    if is_training is not None and np.any(is_training) and np.any(ratio != 0):
        raise NotImplementedError("`training_mode` must be false; got true")
    dtype = x.dtype if node.version < 10 else np.bool_
    return [x, np.ones(np.shape(x), dtype)][: len(node.outputs)]


OPERATORS = {
    "Softmax": Operator(_along_axis(jax.nn.softmax), frozenset({1, 11, 13})),
    "LogSoftmax": Operator(_along_axis(jax.nn.log_softmax), frozenset({1, 11, 13})),
    "Hardmax": Operator(_along_axis(_hardmax), frozenset({1, 11, 13})),
    "BatchNormalization": Operator(_batch_normalization, frozenset({7, 9, 14, 15})),
    "LayerNormalization": Operator(_layer_normalization, frozenset({17})),
    "RMSNormalization": Operator(_rms_normalization, frozenset({23})),
    "Dropout": Operator(_dropout, frozenset({7, 10, 12, 13, 22}), static=(1, 2)),
}
