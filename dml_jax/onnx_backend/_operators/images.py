"""Operators of convolutional networks, other than convolutions and pools."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._evaluation import Array, Node, Operator
from dml_jax.onnx_backend._operators._arrays import integers, normalized, require_size


def _transposed_convolution(
    node: Node, x: Array, weight: Array, bias: Any = None
) -> jax.Array:
    attributes, kernel = node.attributes, np.shape(weight)[2:]
    count, groups = len(kernel), attributes.get("group", 1)
    strides = attributes.get("strides", [1] * count)
    dilations = attributes.get("dilations", [1] * count)
    extra = attributes.get("output_padding", [0] * count)
    # A convolution of the spread input with the reversed kernel.
    inputs, outputs = np.shape(weight)[:2]
    parts = jnp.reshape(weight, (groups, inputs // groups, outputs, *kernel))
    parts = jnp.swapaxes(parts, 1, 2).reshape(-1, inputs // groups, *kernel)
    pads = _transposed_padding(node, np.shape(x)[2:], kernel, strides, dilations, extra)
    rows = zip(kernel, dilations, pads, extra, strict=True)
    edges = [
        ((k - 1) * dilation - low, (k - 1) * dilation - high + more)
        for k, dilation, (low, high), more in rows
    ]
    result = lax.conv_general_dilated(
        jnp.asarray(x),
        jnp.flip(parts, range(2, count + 2)),
        [1] * count,
        edges,
        lhs_dilation=strides,
        rhs_dilation=dilations,
        feature_group_count=groups,
    )
    return result if bias is None else result + jnp.reshape(bias, (-1, *[1] * count))


def _transposed_padding(
    node: Node, sizes: Any, kernel: Any, strides: Any, dilations: Any, extra: Any
) -> list[tuple[int, int]]:
    """The elements to cut off each spatial axis, before and after it."""
    mode = node.attributes.get("auto_pad", "NOTSET")
    shape = node.attributes.get("output_shape")
    if shape is None and not mode.startswith("SAME"):
        none = [0] * 2 * len(kernel)
        pads = none if mode == "VALID" else node.attributes.get("pads", none)
        return list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))
    if shape is None:
        shape = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    pads = []
    rows = zip(sizes, kernel, strides, dilations, extra, shape[-len(kernel) :])
    for size, k, stride, dilation, more, wanted in rows:
        total = stride * (size - 1) + more + (k - 1) * dilation + 1 - wanted
        # If the result is larger than what there is, its end is zero.
        low = max(0, total // 2 if mode == "SAME_UPPER" else (total + 1) // 2)
        pads.append((low, total - low))
    return pads


def _columns_to_image(
    node: Node, x: Array, image_shape: Array, block_shape: Array
) -> jax.Array:
    sizes, block = integers("image_shape", image_shape), integers("block", block_shape)
    attributes, count = node.attributes, len(sizes)
    strides = attributes.get("strides", [1] * count)
    dilations = attributes.get("dilations", [1] * count)
    pads = np.reshape(attributes.get("pads", [0] * 2 * count), (2, count)).tolist()
    padded = [low + size + high for low, size, high in zip(pads[0], sizes, pads[1])]
    batch = np.shape(x)[0]
    blocks = [
        (size - (width - 1) * dilation - 1) // stride + 1
        for size, width, dilation, stride in zip(padded, block, dilations, strides)
    ]
    columns = jnp.reshape(x, (batch, -1, *block, *blocks))
    require_size(node, "image_shape", (*columns.shape[:2], *padded))
    image = jnp.zeros((*columns.shape[:2], *padded), x.dtype)
    for taps in itertools.product(*map(range, block)):
        windows = tuple(
            slice(tap * dilation, tap * dilation + (number - 1) * stride + 1, stride)
            for tap, dilation, number, stride in zip(taps, dilations, blocks, strides)
        )
        image = image.at[(..., *windows)].add(
            columns[(slice(None), slice(None), *taps)]
        )
    inner = tuple(slice(low, low + size) for low, size in zip(pads[0], sizes))
    return image[(..., *inner)]


def _depth_to_space(node: Node, x: Array) -> jax.Array:
    batch, channels, height, width = np.shape(x)
    block, outer = node.attributes["blocksize"], channels
    outer = channels // block**2
    if node.attributes.get("mode", "DCR") == "DCR":
        parts = jnp.reshape(x, (batch, block, block, outer, height, width))
        parts = jnp.transpose(parts, (0, 3, 4, 1, 5, 2))
    else:
        parts = jnp.reshape(x, (batch, outer, block, block, height, width))
        parts = jnp.transpose(parts, (0, 1, 4, 2, 5, 3))
    return parts.reshape(batch, outer, height * block, width * block)


def _space_to_depth(node: Node, x: Array) -> jax.Array:
    batch, channels, height, width = np.shape(x)
    block = node.attributes["blocksize"]
    rows, columns = height // block, width // block
    parts = jnp.reshape(x, (batch, channels, rows, block, columns, block))
    is_depth_first = node.attributes.get("mode", "DCR") == "DCR"
    order = (0, 3, 5, 1, 2, 4) if is_depth_first else (0, 1, 3, 5, 2, 4)
    return parts.transpose(order).reshape(batch, channels * block**2, rows, columns)


# Normalizations -----------------------------------------------------------------------


def _instance_normalization(
    node: Node, x: Array, scale: Array, bias: Array
) -> jax.Array:
    axes = tuple(range(2, np.ndim(x)))
    wide = jnp.asarray(x).astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(wide, axes, keepdims=True)
    centered = wide - mean
    variance = jnp.mean(jnp.square(centered), axes, keepdims=True)
    inverse = lax.rsqrt(variance + node.attributes.get("epsilon", 1e-5))
    channels = (-1, *[1] * len(axes))
    scale, bias = jnp.reshape(scale, channels), jnp.reshape(bias, channels)
    return (centered * inverse * scale + bias).astype(x.dtype)


def _lp_normalization(node: Node, x: Array) -> jax.Array:
    axis = normalized("axis", node.attributes.get("axis", -1), np.ndim(x))
    x = jnp.asarray(x)
    if node.attributes.get("p", 2) == 1:
        norm = jnp.sum(jnp.abs(x), axis, keepdims=True)
    else:
        norm = jnp.sqrt(jnp.sum(jnp.square(x), axis, keepdims=True))
    return x / jnp.where(norm == 0, jnp.ones_like(norm), norm)


def _local_response_normalization(node: Node, x: Array) -> jax.Array:
    attributes, size = node.attributes, node.attributes["size"]
    x = jnp.asarray(x)
    low = (size - 1) // 2
    widths = [(0, 0)] * x.ndim
    widths[1] = (low, size - 1 - low)
    squares = jnp.pad(jnp.square(x), widths)
    count = x.shape[1]
    total = sum(lax.slice_in_dim(squares, i, i + count, axis=1) for i in range(size))
    factor = attributes.get("bias", 1.0) + attributes.get("alpha", 1e-4) / size * total
    return (x / factor ** attributes.get("beta", 0.75)).astype(x.dtype)


OPERATORS = {
    "ConvTranspose": Operator(_transposed_convolution, frozenset({1, 11, 22})),
    "Col2Im": Operator(_columns_to_image, frozenset({18}), static=(1, 2)),
    "DepthToSpace": Operator(_depth_to_space, frozenset({1, 11, 13, 28})),
    "SpaceToDepth": Operator(_space_to_depth, frozenset({1, 13, 28})),
    "InstanceNormalization": Operator(_instance_normalization, frozenset({6, 22})),
    "LpNormalization": Operator(_lp_normalization, frozenset({1, 22})),
    "LRN": Operator(_local_response_normalization, frozenset({1, 13})),
}
