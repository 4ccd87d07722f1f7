"""Pooling of windows, and of whole images.

A window is reduced along one axis after the other, by operations on strided slices,
which XLA fuses. As in convolutions, the channels are last. The derivatives in both
modes are those of the operations: where a window has several largest elements, these
share the gradient.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import in_float32, norm, positions
from dml_jax.onnx_backend._operators.linear import windows_of
from dml_jax.onnx_backend._values import Array

_MOST_SLICES = 16  # of an axis; a wider window is one operation of XLA


class Windows(NamedTuple):
    """The windows along a spatial axis."""

    axis: int
    width: int
    stride: int
    dilation: int
    low: int  # padding before the axis
    high: int  # padding after it, up to the end of the last window
    count: Any

    def padded(self, x: jax.Array, value: Any) -> jax.Array:
        edges = [(0, 0, 0)] * x.ndim
        edges[self.axis] = (self.low, self.high, 0)
        return lax.pad(x, np.asarray(value, x.dtype), edges)

    def slices(self, x: jax.Array) -> list[jax.Array]:
        """Each element of all windows, of an array that is padded."""
        last = (self.count - 1) * self.stride + 1
        return [
            lax.slice_in_dim(x, start, start + last, self.stride, self.axis)
            for start in range(0, self.width * self.dilation, self.dilation)
        ]

    def reduce(self, x: jax.Array, operation: Callable[..., Any], value: Any) -> Any:
        """Reduces the elements of each window, `value` in the padding, to one."""
        x = self.padded(x, value)
        if self.width <= _MOST_SLICES:
            return functools.reduce(operation, self.slices(x))
        sizes, strides, dilations = ([1] * x.ndim for _ in range(3))
        sizes[self.axis], strides[self.axis] = self.width, self.stride
        dilations[self.axis] = self.dilation
        initial = np.asarray(value, x.dtype)
        return lax.reduce_window(
            x, initial, operation, sizes, strides, "VALID", None, dilations
        )


def _on_images(pool: Callable[..., Any]) -> Callable[..., Any]:
    """An operator from a function of images whose channels are last."""

    def evaluate(node: Node, x: Array) -> Any:
        _require_elements(x)
        outputs = pool(node, jnp.moveaxis(x, 1, -1))
        return jax.tree.map(lambda y: jnp.moveaxis(y, -1, 1), outputs)

    return evaluate


def _windows_of(node: Node, x: Array) -> tuple[list[Windows], Any]:
    """The windows along each axis, and the padding that the node asks for."""
    kernel, attributes = node.attributes["kernel_shape"], node.attributes
    sizes = np.shape(x)[1:-1]
    if len(kernel) != len(sizes):
        raise ValueError(
            f"`kernel_shape` must have {len(sizes)} elements, as many as `X` has "
            f"spatial axes; got {kernel}"
        )
    is_automatic = attributes["auto_pad"] != "NOTSET"
    is_rounded_up = attributes["ceil_mode"] and not is_automatic
    windows, given = [], windows_of(node, sizes, kernel)
    for axis, (width, stride, dilation, (low, high)) in enumerate(given, 1):
        size, reach = np.shape(x)[axis], (width - 1) * dilation + 1
        free = size + low + high - reach
        count = free // stride + 1
        if is_rounded_up and free % stride and count * stride < size + low:
            count += 1  # a window that begins before the padding after the axis
        end = (count - 1) * stride + reach - low - size
        windows.append(Windows(axis, width, stride, dilation, low, end, count))
    return windows, [pad for *_, pad in given]


def _require_elements(x: Array) -> None:
    """Refuses images without elements; their number may be 0."""
    if 0 in np.shape(x)[1:]:
        raise ValueError(
            "`X` must have elements on all axes but the first one; got shape "
            f"{np.shape(x)}"
        )


def _pooled(x: Any, windows: list[Windows], operation: Any, value: Any) -> jax.Array:
    return functools.reduce(
        lambda y, window: window.reduce(y, operation, value), windows, x
    )


def _max_pool(node: Node, x: jax.Array) -> list[Any]:
    windows, _ = _windows_of(node, x)
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    lowest = -np.inf if is_float else jnp.iinfo(x.dtype).min
    if len(node.outputs) < 2:
        return [_pooled(x, windows, lax.max, lowest)]
    order = "F" if node.attributes["storage_order"] else "C"
    batch, *sizes, channels = x.shape
    places = np.arange(np.prod(sizes)).reshape((1, *sizes, 1), order=order)
    images = positions((batch * channels,), 0)
    images = images.reshape((batch, *[1] * len(sizes), channels))
    elements, numbers = [x], [jnp.asarray(places)]
    for window in windows:
        elements = _slices(elements, window, lowest)
        numbers = _slices(numbers, window, 0)
    stacked = jnp.stack(elements)
    place = lax.argmax(stacked, 0, jnp.int32)[None]
    chosen = jnp.take_along_axis(jnp.stack(numbers), place, 0)[0]
    largest = jnp.take_along_axis(stacked, place, 0)[0]
    return [largest, chosen + images * np.prod(sizes)]


def _slices(arrays: list[jax.Array], window: Windows, value: Any) -> list[jax.Array]:
    return [part for x in arrays for part in window.slices(window.padded(x, value))]


def _average_pool(node: Node, x: jax.Array) -> jax.Array:
    windows, pads = _windows_of(node, x)
    ones = jnp.ones((1, *x.shape[1:-1], 1), x.dtype)
    if node.attributes["count_include_pad"]:
        ones = jnp.pad(ones, [(0, 0), *pads, (0, 0)], constant_values=1)
        rows = zip(windows, pads, strict=True)
        inner = [w._replace(low=0, high=w.high - high) for w, (_, high) in rows]
    else:
        inner = windows
    return _pooled(x, windows, lax.add, 0) / _pooled(ones, inner, lax.add, 0)


def _lp_pool(node: Node, x: jax.Array) -> jax.Array:
    windows, _ = _windows_of(node, x)
    return norm(x, node.attributes["p"], lambda y: _pooled(y, windows, lax.add, 0))


def _global(reduce: Callable[..., Any]) -> Callable[..., Array]:
    def evaluate(_: Node, x: Array) -> Array:
        _require_elements(x)
        axes = tuple(range(2, np.ndim(x)))
        return reduce(jnp.asarray(x), axes, keepdims=True)

    return evaluate


def _global_lp_pool(node: Node, x: Array) -> jax.Array:
    return norm(x, node.attributes["p"], lambda y: _global(jnp.sum)(node, y))


OPERATORS = {
    "MaxPool": Operator(_on_images(_max_pool), 1, of_floats=True, of_images=True),
    "AveragePool": Operator(_on_images(in_float32(_average_pool)), 1, of_images=True),
    "LpPool": Operator(_on_images(in_float32(_lp_pool)), 2, of_images=True),
    "GlobalMaxPool": Operator(_global(jnp.max), 1),
    "GlobalAveragePool": Operator(in_float32(_global(jnp.mean)), 1),
    "GlobalLpPool": Operator(in_float32(_global_lp_pool), 2),
}
