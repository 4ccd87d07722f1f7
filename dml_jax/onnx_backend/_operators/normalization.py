"""Softmax and normalizations."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    at_least_float32,
    axes_of,
    axis_of,
    dtype_in,
    in_float32,
    index_dtype,
    norm,
    require_broadcastable,
    require_shape,
    with_masks,
)
from dml_jax.onnx_backend._operators.pooling import Windows
from dml_jax.onnx_backend._operators.shapes import flatten
from dml_jax.onnx_backend._values import Array


def _along_axis(function: Callable[..., jax.Array]) -> Callable[..., Array]:
    """An operator from a function of an array and an axis.

    Before version 13, it is along all axes from `axis` on.
    """

    def evaluate(node: Node, x: Array) -> Array:
        if node.version < 13:
            return function(jnp.asarray(flatten(node, x)), 1).reshape(np.shape(x))
        return function(jnp.asarray(x), axis_of(node, x))

    return evaluate


def _softmax(function: Callable[..., jax.Array]) -> Operator:
    return Operator(_along_axis(lambda x, axis: function(with_masks(x), axis)), 1)


def _hardmax(x: jax.Array, axis: int) -> jax.Array:
    if not x.size:
        return x
    size = x.shape[axis]
    places = lax.argmax(x, axis, index_dtype(size))
    return jax.nn.one_hot(places, size, dtype=x.dtype, axis=axis)


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
    x = at_least_float32(x)
    if has_statistics or node.attributes["training_mode"]:
        others = tuple(axis for axis in range(np.ndim(x)) if axis != 1)
        axes = others if is_spatial else (0,)
        momentum = node.attributes["momentum"]
        now = jnp.mean(x, axes), jnp.var(x, axes)
        pairs = zip((mean, variance), now, strict=True)
        outputs = [(old * momentum + new * (1 - momentum)) for old, new in pairs]
        outputs = [y.astype(mean.dtype) for y in (*outputs, *now)]
        mean, variance = now
    factor = jnp.asarray(scale) / jnp.sqrt(
        at_least_float32(variance) + node.attributes["epsilon"]
    )
    axis = 1 if is_spatial and np.ndim(x) > 1 else -1
    x = (jnp.moveaxis(x, axis, -1) - mean) * factor + bias
    return [jnp.moveaxis(x.astype(dtype), -1, axis), *outputs]


def standardized(
    x: jax.Array, axes: Any, epsilon: float, is_centered: bool = True
) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    """`x` with variance 1 along axes, its mean, and its inverse deviation.

    The mean is subtracted only if `is_centered`.
    """
    mean = jnp.mean(x, axes, keepdims=True) if is_centered else None
    x = x if mean is None else x - mean
    variance = jnp.mean(jnp.square(x), axes, keepdims=True)
    inverse = lax.rsqrt(variance + epsilon)
    return x * inverse, mean, inverse


def _layer_normalization(
    node: Node, x: Array, scale: Array, bias: Any = None
) -> list[Any]:
    """LayerNormalization, and those of RMS, which do not subtract the mean."""
    attributes, rank = node.attributes, np.ndim(x)
    axis = axis_of(node, x)
    is_centered = node.kind == "LayerNormalization"
    require_broadcastable("Scale" if is_centered else "scale", scale, np.shape(x))
    require_broadcastable("B", bias, np.shape(x))
    wide = jnp.asarray(x, dtype_in(node, "stash_type"))
    axes, epsilon = tuple(range(axis, rank)), attributes["epsilon"]
    result, mean, inverse = standardized(wide, axes, epsilon, is_centered)
    result = result.astype(x.dtype) * scale
    statistics = [mean, inverse] if is_centered else [inverse]
    return [result if bias is None else result + bias, *statistics]


def _group_normalization(node: Node, x: Array, scale: Array, bias: Array) -> jax.Array:
    """GroupNormalization, and InstanceNormalization, where each channel is a group."""
    if node.kind == "InstanceNormalization" and np.ndim(x) < 3:
        raise ValueError(f"`input` must have rank >= 3; got shape {np.shape(x)}")
    batch, channels, *sizes = np.shape(x)
    groups = node.attributes.get("num_groups", channels)
    if channels % groups:
        raise ValueError(
            f"`num_groups` must divide {channels}, the number of channels; got {groups}"
        )
    # Before version 21, parameters are those of groups.
    count = groups if node.version < 21 else channels
    require_shape("scale", scale, (count,))
    require_shape("bias" if "num_groups" in node.attributes else "B", bias, (count,))
    rows = jnp.reshape(x, (batch, groups, channels // groups * math.prod(sizes)))
    result, *_ = standardized(rows, 2, node.attributes["epsilon"])
    scale, bias = (
        jnp.repeat(part, channels // count).reshape(-1, *[1] * len(sizes))
        for part in (scale, bias)
    )
    return result.reshape(np.shape(x)) * scale + bias


def _mean_variance_normalization(node: Node, x: Array) -> Array:
    axes = axes_of(node, np.ndim(x)) or (0, 2, 3)
    x = x - jnp.mean(x, axes, keepdims=True)
    deviation = norm(x, 2, lambda y: jnp.mean(y, tuple(axes), keepdims=True))
    return x / (deviation + 1e-9)


def _lp_normalization(node: Node, x: Array) -> Array:
    axis = axis_of(node, x)
    total = norm(x, node.attributes["p"], lambda y: jnp.sum(y, axis, keepdims=True))
    return x / jnp.where(total == 0, 1, total)  # zeros stay zeros


def _local_response_normalization(node: Node, x: Array) -> jax.Array:
    attributes, size = node.attributes, node.attributes["size"]
    low = (size - 1) // 2
    window = Windows(1, size, 1, 1, low, size - 1 - low, np.shape(x)[1])
    total = window.reduce(jnp.square(x), jnp.add, 0)
    factor = attributes["bias"] + attributes["alpha"] / size * total
    return x / factor ** attributes["beta"]


# ONNX Runtime has these from opset 1, with the attributes of operators of ONNX.
ATTRIBUTES_OF = {
    "LayerNormalization": "LayerNormalization",
    "SimplifiedLayerNormalization": "RMSNormalization",
}
OPERATORS = {
    "Softmax": _softmax(jax.nn.softmax),
    "LogSoftmax": _softmax(jax.nn.log_softmax),
    "Hardmax": Operator(_along_axis(_hardmax), 1),
    "BatchNormalization": Operator(
        _batch_normalization, 7, of_images=True, statistics=slice(3, 5)
    ),
    **dict.fromkeys(ATTRIBUTES_OF, Operator(_layer_normalization, 1)),
    "RMSNormalization": Operator(_layer_normalization, 23),
    "GroupNormalization": Operator(in_float32(_group_normalization), 18),
    "InstanceNormalization": Operator(in_float32(_group_normalization), 6),
    "MeanVarianceNormalization": Operator(in_float32(_mean_variance_normalization), 9),
    "LpNormalization": Operator(in_float32(_lp_normalization), 1),
    "LRN": Operator(in_float32(_local_response_normalization), 1),
}
