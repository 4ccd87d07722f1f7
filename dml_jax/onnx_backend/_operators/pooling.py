"""Pooling of windows, and of whole images.

A window is reduced along one axis after the other, by operations on strided slices,
which XLA fuses. Their derivatives in both modes are those of the operations: where a
window has several largest elements, these share the gradient.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._evaluation import Array, Node, Operator
from dml_jax.onnx_backend._operators.linear import padding

_MOST_SLICES = 16  # of an axis; a wider window is one operation of XLA


class _Windows(NamedTuple):
    """The windows along a spatial axis."""

    axis: int
    size: Any  # of the axis
    width: int
    stride: int
    dilation: int
    low: int  # padding before the axis
    high: int  # padding after it
    count: Any  # of windows

    def taps(self) -> list[Any]:
        """The positions in the axis of each element of all windows."""
        starts = jnp.arange(self.count, dtype=jnp.int64) * self.stride - self.low
        return [starts + tap * self.dilation for tap in range(self.width)]

    def padded(self, x: jax.Array, value: Any) -> jax.Array:
        """Pads the axis so that all windows lie within it."""
        reach = (self.count - 1) * self.stride + (self.width - 1) * self.dilation + 1
        edges = [(0, 0, 0)] * x.ndim
        edges[self.axis] = (self.low, reach - self.low - self.size, 0)
        return lax.pad(x, jnp.asarray(value, x.dtype), edges)

    def slices(self, x: jax.Array) -> list[jax.Array]:
        """Each element of all windows, of an array that is padded."""
        last = (self.count - 1) * self.stride + 1
        return [
            lax.slice_in_dim(x, start, start + last, self.stride, self.axis)
            for start in range(0, self.width * self.dilation, self.dilation)
        ]

    def reduce(self, x: jax.Array, operation: Callable[..., Any], value: Any) -> Any:
        """Reduces the elements of each window, and those in its padding, to one."""
        x = self.padded(x, value)
        if self.width <= _MOST_SLICES:
            return functools.reduce(operation, self.slices(x))
        sizes, strides, dilations = ([1] * x.ndim for _ in range(3))
        sizes[self.axis], strides[self.axis] = self.width, self.stride
        dilations[self.axis] = self.dilation
        initial = jnp.asarray(value, x.dtype)
        return lax.reduce_window(
            x, initial, operation, sizes, strides, "VALID", None, dilations
        )


def _windows_of(node: Node, x: Array) -> list[_Windows]:
    kernel, attributes = node.attributes["kernel_shape"], node.attributes
    sizes = np.shape(x)[2:]
    if len(kernel) != len(sizes):
        raise ValueError(
            f"`kernel_shape` must have {len(sizes)} elements, as many as `X` has "
            f"spatial axes; got {kernel}"
        )
    strides = attributes.get("strides", [1] * len(kernel))
    dilations = attributes.get("dilations", [1] * len(kernel))
    pads = padding(node, sizes, kernel, strides, dilations)
    is_automatic = attributes.get("auto_pad", "NOTSET") != "NOTSET"
    is_rounded_up = attributes.get("ceil_mode", 0) and not is_automatic
    windows = []
    rows = zip(sizes, kernel, strides, dilations, pads, strict=True)
    for axis, (size, width, stride, dilation, (low, high)) in enumerate(rows, 2):
        free = size + low + high - (width - 1) * dilation - 1
        if is_rounded_up:
            count = -(-free // stride) + 1
            # A window that begins in the padding after the axis is left out.
            count -= int((count - 1) * stride >= size + low)
        else:
            count = free // stride + 1
        windows.append(_Windows(axis, size, width, stride, dilation, low, high, count))
    return windows


def _max_pool(node: Node, x: Array) -> list[Any]:
    x, windows = jnp.asarray(x), _windows_of(node, x)
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    lowest = -np.inf if is_float else jnp.iinfo(x.dtype).min
    if len(node.outputs) < 2:
        return [_reduced(x, windows, jnp.maximum, lowest)]
    for window in windows:
        x = window.padded(x, lowest)
    elements = [x]
    for window in windows:
        elements = [part for x in elements for part in window.slices(x)]
    stacked = jnp.stack(elements)
    place = jnp.argmax(stacked, 0)[None]
    largest = jnp.take_along_axis(stacked, place, 0)[0]
    positions = jnp.stack(jnp.broadcast_arrays(*_positions(node, windows)))
    outer = np.arange(np.prod(largest.shape[:2])) * _area(windows)
    outer = outer.reshape(*largest.shape[:2], *[1] * len(windows))
    shape = (len(elements), *[1] * 2, *largest.shape[2:])
    positions = jnp.broadcast_to(positions.reshape(shape), stacked.shape)
    return [largest, outer + jnp.take_along_axis(positions, place, 0)[0]]


def _reduced(
    x: jax.Array, windows: list[_Windows], operation: Callable[..., Any], value: Any
) -> jax.Array:
    for window in windows:
        x = window.reduce(x, operation, value)
    return x


def _area(windows: list[_Windows]) -> int:
    return int(np.prod([window.size for window in windows]))


def _positions(node: Node, windows: list[_Windows]) -> list[Any]:
    """The positions in an image of each element of all windows."""
    is_row_major = not node.attributes.get("storage_order", 0)
    strides, stride = {}, 1
    for window in reversed(windows) if is_row_major else windows:
        strides[window.axis] = stride
        stride *= window.size
    return [
        sum(
            jnp.expand_dims(
                tap * strides[window.axis],
                [axis - 2 for axis in strides if axis != window.axis],
            )
            for tap, window in zip(taps, windows, strict=True)
        )
        for taps in itertools.product(*(window.taps() for window in windows))
    ]


def _average_pool(node: Node, x: Array) -> jax.Array:
    windows = _windows_of(node, x)
    total = _reduced(jnp.asarray(x), windows, jnp.add, 0)
    has_padding = node.attributes.get("count_include_pad", 0)
    for window in windows:
        low, high = (window.low, window.high) if has_padding else (0, 0)
        inside = [(-low <= tap) & (tap < window.size + high) for tap in window.taps()]
        count = sum(tap.astype(total.dtype) for tap in inside)
        others = [axis for axis in range(total.ndim) if axis != window.axis]
        total = total / jnp.expand_dims(count, others)
    return total


def _lp_pool(node: Node, x: Array) -> jax.Array:
    p = node.attributes.get("p", 2)
    powers = jnp.abs(x) ** p
    total = _reduced(powers, _windows_of(node, x), jnp.add, 0)
    return (total ** (1 / p)).astype(x.dtype)


def _global(reduce: Callable[..., Any]) -> Callable[..., Array]:
    """An operator that reduces all spatial axes."""

    def evaluate(node: Node, x: Array) -> Array:
        result = reduce(node, jnp.asarray(x), tuple(range(2, np.ndim(x))))
        return result.astype(x.dtype)

    return evaluate


def _maximum(_: Node, x: jax.Array, axes: Any) -> jax.Array:
    return jnp.max(x, axes, keepdims=True)


def _mean(_: Node, x: jax.Array, axes: Any) -> jax.Array:
    return jnp.mean(x, axes, keepdims=True)


def _lp_norm(node: Node, x: jax.Array, axes: Any) -> jax.Array:
    p = node.attributes.get("p", 2)
    return jnp.sum(jnp.abs(x) ** p, axes, keepdims=True) ** (1 / p)


def _max_unpool(node: Node, x: Array, indices: Array, shape: Any = None) -> jax.Array:
    kernel, attributes = node.attributes["kernel_shape"], node.attributes
    strides = attributes.get("strides", [1] * len(kernel))
    pads = np.reshape(attributes.get("pads", [0] * 2 * len(kernel)), (2, -1))
    rows = zip(np.shape(x)[2:], kernel, strides, pads.sum(0).tolist(), strict=True)
    sizes = [(n - 1) * stride + width - pad for n, width, stride, pad in rows]
    sizes = [*np.shape(x)[:2], *sizes]
    wanted = sizes if shape is None else np.asarray(shape).tolist()
    flat = jnp.zeros(int(np.prod(sizes)), x.dtype)
    image = flat.at[jnp.ravel(indices)].set(jnp.ravel(x)).reshape(sizes)
    widths = [(0, more - size) for size, more in zip(sizes, wanted, strict=True)]
    return jnp.pad(image, widths)


OPERATORS = {
    "MaxPool": Operator(_max_pool, frozenset({1, 8, 10, 11, 12, 22})),
    "AveragePool": Operator(_average_pool, frozenset({1, 7, 10, 11, 19, 22})),
    "LpPool": Operator(_lp_pool, frozenset({2, 11, 18, 22})),
    "GlobalMaxPool": Operator(_global(_maximum), frozenset({1, 22})),
    "GlobalAveragePool": Operator(_global(_mean), frozenset({1, 22})),
    "GlobalLpPool": Operator(_global(_lp_norm), frozenset({2, 22})),
    "MaxUnpool": Operator(_max_unpool, frozenset({9, 11, 22}), static=(2,)),
}
