"""Products and determinants of matrices, convolutions and their transposes."""

import functools
import math
from typing import Any, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    has_symbols,
    integers,
    numpy_or_jax,
    option,
    product,
    require_broadcastable,
    require_count,
    require_rank,
    require_shape,
)
from dml_jax.onnx_backend._values import Array


def _matmul(node: Node, a: Array, b: Array) -> Array:
    if np.shape(a)[-1:] == (1,):  # such as positions, which 16 bits do not hold
        return jnp.matmul(a, b)
    return _matmul_of_floats(node, a, b)


_matmul_of_floats = product(lambda _, a, b: jnp.matmul(a, b))


def _gemm(node: Node, a: Array, b: Array, c: Any = None) -> Array:
    attributes = node.attributes
    require_rank("A", a, 2)
    require_rank("B", b, 2)
    a = jnp.transpose(a) if attributes["transA"] else a
    b = jnp.transpose(b) if attributes["transB"] else b
    product = _scaled(jnp.matmul(a, b), attributes["alpha"])
    if c is None:
        return product
    require_broadcastable("C", c, product.shape)
    return product + _scaled(jnp.asarray(c), attributes["beta"])


def _scaled(x: Any, factor: float) -> Any:
    return x if factor == 1 else (x * factor).astype(x.dtype)


def _einsum(node: Node, *inputs: Array) -> Array:
    equation = node.attributes["equation"]
    terms = equation.replace(" ", "").split("->")[0].split(",")
    for term, x in zip(terms, inputs, strict=False):
        letters = term.replace("...", "")
        if len({*letters}) < len(letters):
            # NumPy refuses a diagonal of sizes that differ, but JAX does not.
            diagonal = f"{term}->{'...' * ('...' in term)}{''.join({*letters})}"
            known = [1 if jax.export.is_symbolic_dim(n) else n for n in np.shape(x)]
            np.einsum(diagonal, np.broadcast_to(False, known))
    return jnp.einsum(equation, *inputs)


# Convolutions -------------------------------------------------------------------------


# Of a kernel along an axis: the width, the stride, the dilation and the padding.
_Window: TypeAlias = tuple[int, int, int, tuple[int, int]]
_ELEMENT: _Window = (1, 1, 1, (0, 0))
_LONG = 16  # the least width of a kernel for which XLA's strided gradients are slow


def convolution(node: Node, x: Array, weight: Array, bias: Any = None) -> Array:
    """The Conv of a node's attributes."""
    count = np.ndim(x) - 2
    if count < 1:
        raise ValueError(f"`X` must have rank >= 3; got shape {np.shape(x)}")
    require_rank("W", weight, np.ndim(x))
    kernel, attributes = np.shape(weight)[2:], node.attributes
    _require_kernel(node, kernel)
    channels = attributes["group"] * np.shape(weight)[1]
    if np.shape(x)[1] != channels:
        raise ValueError(f"{np.shape(x)[1]} channels for a kernel of {channels}")
    windows = windows_of(node, np.shape(x)[2:], kernel)
    require_shape("B", bias, np.shape(weight)[:1])
    compute = functools.partial(_on_places, windows, attributes["group"])
    if _are_patches_few(np.shape(x), np.shape(weight), windows):
        # On GPUs, XLA has slow kernels for the gradients; on CPUs, patches are slower.
        patches = functools.partial(compute, lambda *_: True)
        slide = functools.partial(compute, _are_apart)
        arguments = jnp.asarray(x), jnp.asarray(weight)
        result = lax.platform_dependent(*arguments, cuda=patches, default=slide)
    else:
        result = compute(_are_apart, x, weight)
    result = result if bias is None else result + bias
    return jnp.moveaxis(result, -1, 1)


def _on_places(
    windows: list[_Window], group: int, is_product: Any, x: Array, weight: Array
) -> jax.Array:
    """A convolution, which is a product along the axes that `is_product` selects.

    The channels of the result are last.
    """
    windows = [*windows]
    for i, window in enumerate(windows):
        size, (width, stride, dilation, _) = np.shape(x)[i + 2], window
        if group > 1 or has_symbols([size]) or window == _ELEMENT:
            continue
        is_long = width >= _LONG and stride > 1 == dilation and width % stride == 0
        is_single = is_product(size, *window)
        if is_single or is_long:
            x, weight = _with_channels(x, weight, i + 2, window, is_single)
            windows[i] = np.shape(weight)[i + 2], 1, 1, (0, 0)
    # Axes of one element have no part in a convolution, but XLA's CPU library takes
    # several times as long for windows along an axis before one.
    rows = enumerate(zip(np.shape(x)[2:], windows, strict=True))
    singles = [i for i, row in rows if row == (1, _ELEMENT)][: len(windows) - 1]
    removed = tuple(i + 2 for i in singles)
    x, weight = x.squeeze(removed), weight.squeeze(removed)
    windows = [window for i, window in enumerate(windows) if i not in singles]
    result = _convolved(x, weight, windows, group)
    return jnp.expand_dims(result, tuple(axis - 1 for axis in removed))


def _are_apart(size: int, *window: Any) -> bool:
    """Whether the places of a kernel along an axis do not overlap, or are one."""
    width, stride, dilation, pad = window
    reach = (width - 1) * dilation + 1
    return stride >= reach or size + sum(pad) < reach + stride


def _are_patches_few(shape: Any, weight: Any, windows: list[_Window]) -> bool:
    """Whether the patches under a kernel with gaps are at most twice the result."""
    if has_symbols(shape) or shape[1] != weight[1]:
        return False
    has_gaps = any(
        window[1:3] != (1, 1) and not _are_apart(size, *window)
        for size, window in zip(shape[2:], windows, strict=True)
    )
    return has_gaps and math.prod(weight[1:]) <= 2 * weight[0]


def _with_channels(
    x: Array, weight: Array, axis: int, window: _Window, is_product: bool
) -> tuple[jax.Array, Array]:
    """Makes channels of adjacent elements along an axis, so that no stride is left.

    If `is_product`, all elements under the kernel become channels, and what is left
    along the axis is a product of matrices. Otherwise, every `stride` elements become
    channels, and what is left is a convolution without a stride. XLA computes gradients
    of strided convolutions by dilated ones, which can take a hundred times as long.
    """
    width, stride, dilation, (before, after) = window
    reach, size = (width - 1) * dilation + 1, np.shape(x)[axis]
    count = (size + before + after - reach) // stride + 1
    step = max(stride, reach) if count == 1 else stride
    parts = -(-reach // step)  # blocks of `step` elements under the kernel
    edges = [(0, 0, 0)] * np.ndim(x)
    edges[axis] = before, (count - 1 + parts) * step - size - before, 0
    x = lax.pad(jnp.asarray(x), jnp.zeros((), x.dtype), edges)
    x = x.reshape(*x.shape[:axis], count - 1 + parts, step, *x.shape[axis + 1 :])
    if is_product:
        slices = [lax.slice_in_dim(x, i, i + count, axis=axis) for i in range(parts)]
        x = jnp.concatenate(slices, axis + 1)
        x = lax.slice_in_dim(x, 0, reach, dilation, axis + 1)
        parts = 1
    shape = np.shape(weight)
    weight = weight.reshape(*shape[:axis], parts, width // parts, *shape[axis + 1 :])
    return _merged(x, axis + 1), _merged(weight, axis + 1)


def _merged(x: Array, axis: int) -> Any:
    """Merges an axis into the channels, which are the second axis."""
    x = numpy_or_jax(x).moveaxis(x, axis, 2)
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])


def _convolved(
    x: Array, weight: Array, windows: list[_Window], group: int
) -> jax.Array:
    """A convolution whose result has the channels last.

    XLA's CPU compiler moves them last itself, but neither within branches nor within
    loops, where convolutions of other layouts take several times as long.
    """
    axes = "".join(map(str, range(np.ndim(x) - 2)))
    x = jnp.moveaxis(x, 1, -1)
    weight = numpy_or_jax(weight).moveaxis(weight, (0, 1), (-1, -2))
    if group == 1 and {*windows} == {_ELEMENT}:
        return jnp.matmul(x, weight.reshape(weight.shape[-2:]))
    _, strides, dilations, pads = zip(*windows, strict=True)
    if _is_depthwise(x, weight, group):
        return _depthwise(x, weight, strides, pads, dilations)
    return lax.conv_general_dilated(
        x,
        jnp.asarray(weight),
        strides,
        pads,
        rhs_dilation=dilations,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        feature_group_count=group,
    )


def _is_depthwise(x: Array, weight: Array, group: int) -> bool:
    """Whether each output channel is that of one input channel, of known size."""
    is_known = not has_symbols(np.shape(x))
    is_wide = x.dtype in (np.float32, np.float64)
    channels = np.shape(x)[-1]
    is_single = 1 < group == channels and np.shape(weight)[-2:] == (1, channels)
    return is_single and is_known and is_wide and np.size(weight) <= 64 * channels


def _depthwise(x: Array, weight: Array, strides: Any, pads: Any, dilations: Any) -> Any:
    """A sum over the elements of the kernel, which XLA fuses. The channels are last.

    Its depthwise convolution takes up to eighty times as long on CPU, and up to fifteen
    times on an H100.
    """
    kernel, total = np.shape(weight)[:-2], None
    edges = [(0, 0, 0), *((before, after, 0) for before, after in pads), (0, 0, 0)]
    x = lax.pad(jnp.asarray(x), jnp.zeros((), x.dtype), edges)
    rows = list(zip(x.shape[1:-1], kernel, strides, dilations, strict=True))
    lasts = [(n - (k - 1) * d - 1) // s * s for n, k, s, d in rows]
    for place in np.ndindex(*kernel):
        starts = [i * d for i, d in zip(place, dilations, strict=True)]
        stops = [i + last + 1 for i, last in zip(starts, lasts, strict=True)]
        limits = x.shape[0], *stops, x.shape[-1]
        part = lax.slice(x, (0, *starts, 0), limits, (1, *strides, 1))
        part = part * weight[(*place, 0)]
        total = part if total is None else total + part
    # XLA would compute the sum again for each of its readers.
    return lax.optimization_barrier(total)


def _require_kernel(node: Node, kernel: tuple[Any, ...]) -> None:
    """Refuses a `kernel_shape` that is not that of the weights."""
    given = tuple(node.attributes.get("kernel_shape", kernel))
    if given != kernel:
        raise ValueError(f"`kernel_shape` must be {kernel}, as of `W`; got {given}")


def _strides_and_dilations(node: Node, count: int) -> tuple[list[int], list[int]]:
    ones = [1] * count
    return node.attributes.get("strides", ones), node.attributes.get("dilations", ones)


def windows_of(node: Node, sizes: Any, kernel: Any) -> list[_Window]:
    """The windows along the spatial axes, which must not be shorter with padding."""
    strides, dilations = _strides_and_dilations(node, len(kernel))
    rows = zip(kernel, dilations, strict=True)
    reaches = [(width - 1) * dilation + 1 for width, dilation in rows]
    modes = "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"
    mode = option(node, "auto_pad", modes)
    if mode == "NOTSET":
        pads = _pads(node, len(kernel))
    else:
        pads = lax.padtype_to_pads(sizes, reaches, strides, mode.removesuffix("_UPPER"))
    for size, pad, reach in zip(sizes, pads, reaches, strict=True):
        padded = size + sum(pad)
        if not jax.export.is_symbolic_dim(padded) and padded < reach:
            raise ValueError(
                f"`X` must have at least {reach} elements with padding on each axis of "
                f"the kernel; got {padded}"
            )
    return list(zip(kernel, strides, dilations, pads, strict=True))


def _pads(node: Node, count: int) -> list[tuple[int, int]]:
    """The attribute `pads` of a kernel with `count` axes, before and after each."""
    pads = node.attributes.get("pads", [0] * 2 * count)
    require_count("pads", pads, 2 * count)
    return list(zip(pads[:count], pads[count:], strict=True))


# Transposed convolutions --------------------------------------------------------------


def _transposed_convolution(
    node: Node, x: Array, weight: Array, bias: Any = None
) -> jax.Array:
    attributes, kernel = node.attributes, np.shape(weight)[2:]
    count, groups = len(kernel), attributes["group"]
    require_rank("X", x, count + 2)
    require_rank("W", weight, np.ndim(x))
    _require_kernel(node, kernel)
    channels = np.shape(weight)[1] * groups
    if np.shape(x)[1] != np.shape(weight)[0]:
        raise ValueError(
            f"`W` must have {np.shape(x)[1]} elements on its first axis, the channels "
            f"of `X`; got shape {np.shape(weight)}"
        )
    require_shape("B", bias, (channels,))
    strides, dilations = _strides_and_dilations(node, count)
    extra = attributes.get("output_padding", [0] * count)
    rows = zip(np.shape(x)[2:], kernel, strides, dilations, extra, strict=True)
    full = [
        (size - 1) * stride + (width - 1) * dilation + 1 + more
        for size, width, stride, dilation, more in rows
    ]
    pads = _transposed_padding(node, np.shape(x)[2:], strides, full)
    sizes = [size - low - high for size, (low, high) in zip(full, pads, strict=True)]

    def forward(y: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            y,
            jnp.asarray(weight),
            strides,
            pads,
            rhs_dilation=dilations,
            feature_group_count=groups,
        )

    result = _transpose(forward, x, (np.shape(x)[0], channels, *sizes))
    return result if bias is None else result + jnp.reshape(bias, (-1, *[1] * count))


def _transposed_padding(
    node: Node, sizes: Any, strides: Any, full: list[Any]
) -> list[tuple[int, int]]:
    """What to cut off each spatial axis, before and after it."""
    mode = node.attributes["auto_pad"]
    shape = node.attributes.get("output_shape")
    if shape is None and not mode.startswith("SAME"):
        return [(0, 0)] * len(full) if mode == "VALID" else _pads(node, len(full))
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
    strides, dilations = _strides_and_dilations(node, count)
    channels = np.shape(x)[1] // math.prod(block)

    def columns(image: jax.Array) -> jax.Array:
        return lax.conv_general_dilated_patches(
            image,
            block,
            strides,
            _pads(node, count),
            rhs_dilation=dilations,
            precision=lax.Precision.HIGHEST,
        )

    return _transpose(columns, x, (np.shape(x)[0], channels, *sizes))


OPERATORS = {
    "MatMul": Operator(_matmul, 1),
    "Gemm": Operator(product(_gemm), 7),
    "Einsum": Operator(product(_einsum), 12),
    "Det": Operator(lambda _, x: jnp.linalg.det(x), 11),
    "Conv": Operator(product(convolution), 1, of_images=True),
    "ConvTranspose": Operator(product(_transposed_convolution), 1),
    "Col2Im": Operator(_columns_to_image, 18, static=(1, 2)),
}
