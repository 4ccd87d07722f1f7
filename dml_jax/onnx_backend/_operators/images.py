"""Transposed convolutions, and moves between channels and pixels."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._evaluation import Array, Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    integers,
    require_rank,
    require_shape,
)
from dml_jax.onnx_backend._operators.linear import require_kernel, strides_and_dilations


def _transposed_convolution(
    node: Node, x: Array, weight: Array, bias: Any = None
) -> jax.Array:
    attributes, kernel = node.attributes, np.shape(weight)[2:]
    count, groups = len(kernel), attributes["group"]
    require_rank("X", x, count + 2)
    require_rank("W", weight, np.ndim(x))
    require_kernel(node, kernel)
    channels = np.shape(weight)[1] * groups
    if np.shape(x)[1] != np.shape(weight)[0]:
        raise ValueError(
            f"`W` must have {np.shape(x)[1]} elements on its first axis, the channels "
            f"of `X`; got shape {np.shape(weight)}"
        )
    require_shape("B", bias, (channels,))
    strides, dilations = strides_and_dilations(node, count)
    extra = attributes.get("output_padding", [0] * count)
    rows = zip(np.shape(x)[2:], kernel, strides, dilations, extra, strict=True)
    full = [
        (size - 1) * stride + (width - 1) * dilation + 1 + more
        for size, width, stride, dilation, more in rows
    ]
    pads = _transposed_padding(node, np.shape(x)[2:], strides, full)
    sizes = [size - low - high for size, (low, high) in zip(full, pads, strict=True)]

    def convolution(y: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            y,
            jnp.asarray(weight),
            strides,
            pads,
            rhs_dilation=dilations,
            feature_group_count=groups,
        )

    result = _transpose(convolution, x, (np.shape(x)[0], channels, *sizes))
    return result if bias is None else result + jnp.reshape(bias, (-1, *[1] * count))


def _transposed_padding(
    node: Node, sizes: Any, strides: Any, full: list[Any]
) -> list[tuple[int, int]]:
    """What to cut off each spatial axis, before and after it."""
    mode = node.attributes["auto_pad"]
    shape = node.attributes.get("output_shape")
    if shape is None and not mode.startswith("SAME"):
        none = [0] * 2 * len(full)
        pads = none if mode == "VALID" else node.attributes.get("pads", none)
        return list(zip(pads[: len(full)], pads[len(full) :], strict=True))
    if shape is None:
        shape = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    pads = []
    for size, wanted, stride in zip(full, shape[-len(full) :], strides, strict=True):
        total = size - wanted
        if -total >= stride:
            raise ValueError(
                f"`output_shape` must be below {size + stride} for an axis that the "
                f"elements of `X` fill up to {size}; got {wanted}"
            )
        # If the result is larger than what there is, its end is zero.
        low = max(0, total // 2 if mode == "SAME_UPPER" else (total + 1) // 2)
        pads.append((low, total - low))
    return pads


def _transpose(function: Any, x: Array, shape: Any) -> jax.Array:
    """The transpose at `x` of a linear function of arrays of a shape."""
    image = jax.ShapeDtypeStruct(shape, x.dtype)
    columns = jnp.reshape(x, jax.eval_shape(function, image).shape)
    return jax.linear_transpose(function, image)(columns)[0]


def _columns_to_image(
    node: Node, x: Array, image_shape: Array, block_shape: Array
) -> jax.Array:
    sizes, block = integers("image_shape", image_shape), integers("block", block_shape)
    count = len(sizes)
    strides, dilations = strides_and_dilations(node, count)
    pads = np.reshape(node.attributes.get("pads", [0] * 2 * count), (2, count))
    channels = np.shape(x)[1] // math.prod(block)

    def columns(image: jax.Array) -> jax.Array:
        return lax.conv_general_dilated_patches(
            image,
            block,
            strides,
            list(zip(*pads.tolist(), strict=True)),
            rhs_dilation=dilations,
            precision=lax.Precision.HIGHEST,
        )

    return _transpose(columns, x, (np.shape(x)[0], channels, *sizes))


def _depth_to_space(node: Node, x: Array) -> jax.Array:
    batch, channels, height, width = np.shape(x)
    block = node.attributes["blocksize"]
    outer = channels // block**2
    if node.attributes["mode"] == "DCR":
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
    is_depth_first = node.attributes["mode"] == "DCR"
    order = (0, 3, 5, 1, 2, 4) if is_depth_first else (0, 1, 3, 5, 2, 4)
    return parts.transpose(order).reshape(batch, channels * block**2, rows, columns)


OPERATORS = {
    "ConvTranspose": Operator(_transposed_convolution, 1),
    "Col2Im": Operator(_columns_to_image, 18, static=(1, 2)),
    "DepthToSpace": Operator(_depth_to_space, 1),
    "SpaceToDepth": Operator(_space_to_depth, 1),
}
