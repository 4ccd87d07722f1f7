"""Interpolation in images: Resize, Upsample, GridSample and RoiAlign.

Resize interpolates along one axis after the other. The places and weights of the
elements that it reads are computed by NumPy, for scales in 32 bits as in ONNX Runtime,
so that a scale such as 0.7 finds the same ties.
"""

import functools
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    along,
    at_least_float32,
    axes_of,
    in_float32,
    indices_of,
    integers,
    numpy_or_jax,
    option,
    require_axes,
    require_constant,
    require_rank,
    require_shape,
    require_size,
)
from dml_jax.onnx_backend._operators.indexing import taken
from dml_jax.onnx_backend._operators.quantization import quantized
from dml_jax.onnx_backend._values import Array


def _resize(
    node: Node, x: Array, roi: Any = None, scales: Any = None, sizes: Any = None
) -> jax.Array:
    if node.version == 10:
        scales, roi = roi, None
    named = {"roi": roi, "scales": scales, "sizes": sizes}
    roi, scales, sizes = (_unless_empty(*pair) for pair in named.items())
    rank, shape = np.ndim(x), np.shape(x)
    axes = axes_of(node, rank) or list(range(rank))
    old = [shape[axis] for axis in axes]
    scales, counts = _scales_and_sizes(node, old, scales, sizes)
    require_size(node, "sizes", counts)
    y = jnp.asarray(x)
    if 0 in (*shape, *counts):
        resized = dict(zip(axes, counts, strict=True))
        return jnp.zeros([resized.get(i, shape[i]) for i in range(rank)], x.dtype)
    if node.attributes["mode"] != "nearest":
        y = at_least_float32(y)
    for i, (axis, scale, count) in enumerate(zip(axes, scales, counts, strict=True)):
        window = (0.0, 1.0) if roi is None else (roi[i], roi[i + len(axes)])
        if scale != 1 or count != shape[axis] or window != (0, 1):
            y = _resized_axis(node, y, axis, scale, count, window)
    is_rounded = node.attributes["mode"] == "cubic" or node.attributes.get("antialias")
    if is_rounded and jnp.issubdtype(x.dtype, jnp.integer):
        return quantized(y, None, x.dtype).integers
    return y.astype(x.dtype)


def _unless_empty(name: str, values: Any) -> Any:
    """An input, None if it has no elements."""
    if values is not None:
        require_rank(name, values, 1)
    return values if np.size(values) and values is not None else None


def _scales_and_sizes(
    node: Node, old: list[int], scales: Any, sizes: Any
) -> tuple[list[Any], list[int]]:
    """The scales and the new sizes of axes, either of which is given.

    Scales that are given are floats, quotients of sizes are fractions.
    """
    given = sizes if scales is None else scales
    if given is None or len(given) != len(old):
        raise ValueError(
            f"`scales` or `sizes` must have {len(old)} elements; got {given}"
        )
    pairs = zip(given, old, strict=True)
    if scales is not None:
        new = [n if scale == 1 else int(np.float32(n) * scale) for scale, n in pairs]
        return [*map(np.float32, scales)], new
    # An axis without elements has no scale, and a symbolic one keeps its size.
    scales = [1 if n in (size, 0) else Fraction(int(size), n) for size, n in pairs]
    policy = node.attributes["keep_aspect_ratio_policy"]
    if policy == "stretch":
        return scales, integers("sizes", sizes)
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [scale] * len(old), [math.floor(scale * n + Fraction(1, 2)) for n in old]


def _resized_axis(
    node: Node, x: jax.Array, axis: int, scale: Any, count: int, window: Any
) -> jax.Array:
    size = x.shape[axis]
    places = _coordinates(node, size, scale, count, window)
    if node.attributes["mode"] == "nearest":
        result = _nearest(x, axis, _rounded(node, places, scale))
    else:
        result = _weighted(node, x, axis, places, scale)
    if _mode_of(node) != "tf_crop_and_resize":
        return result
    outside = ((places < 0) | (places > size - 1)).reshape(along(axis, x.ndim))
    value = jnp.asarray(node.attributes["extrapolation_value"]).astype(x.dtype)
    return jnp.where(outside, value, result)


def _weighted(
    node: Node, x: jax.Array, axis: int, places: np.ndarray, scale: Any
) -> jax.Array:
    """Sums of the elements near some places, by their distances."""
    attributes, size = node.attributes, x.shape[axis]
    kernel, reach = _kernel_of(node)
    # A smaller image is smoothed by a wider kernel.
    stretch = min(float(scale), 1.0) if attributes.get("antialias") else 1.0
    half = math.ceil(reach / stretch)
    steps = np.arange(1 - half, half + 1, dtype=np.int32)
    taps = np.floor(places)[:, None].astype(np.int32) + steps
    weights = kernel(np.abs(taps - places[:, None]) * stretch)
    if attributes.get("exclude_outside"):
        weights = np.where((taps >= 0) & (taps < size), weights, 0)
    weights = weights / np.sum(weights, 1, keepdims=True)
    used = np.any(weights != 0, 0)
    taps, weights = np.clip(taps[:, used], 0, size - 1), weights[:, used]
    parts = (
        jnp.take(x, tap, axis, mode="clip") * weight.reshape(along(axis, x.ndim))
        for tap, weight in zip(taps.T, weights.T.astype(x.dtype), strict=True)
    )
    return functools.reduce(jnp.add, parts)


def _mode_of(node: Node) -> str:
    """How coordinates are computed, which could not be chosen before version 11."""
    name = "coordinate_transformation_mode"
    return node.attributes[name] if node.version >= 11 else "asymmetric"


def _coordinates(
    node: Node, size: int, scale: Any, count: int, window: tuple[float, float]
) -> np.ndarray:
    """The coordinates in an axis of the elements of the result."""
    mode = _mode_of(node)
    if isinstance(scale, Fraction):  # products and quotients are rounded once
        numbers, length = np.arange(count, dtype=np.float64), float(scale * size)
    else:
        numbers, length = np.arange(count, dtype=np.float32), scale * np.float32(size)

    def unscaled(numbers: np.ndarray) -> np.ndarray:
        if isinstance(scale, Fraction):
            return numbers * scale.denominator / scale.numerator
        return numbers / scale

    if mode == "asymmetric":
        return unscaled(numbers)
    if mode == "align_corners":
        return numbers * np.float32(size - 1) / (length - 1 if length != 1 else np.inf)
    if mode == "tf_crop_and_resize":
        start, end = (float(edge) * (size - 1) for edge in window)
        if count == 1:
            return np.array([(start + end) / 2])
        return start + numbers * (end - start) / (count - 1)
    if mode == "pytorch_half_pixel" and length <= 1:
        return 0 * numbers
    places = unscaled(numbers + np.float32(0.5))
    if mode == "tf_half_pixel_for_nn":
        return places
    if mode == "half_pixel_symmetric":
        places = np.float32(size / 2) * (1 - count / length) + places
    elif mode not in ("half_pixel", "pytorch_half_pixel"):
        raise ValueError(
            "`coordinate_transformation_mode` must be one of ONNX's; got " + repr(mode)
        )
    return places - np.float32(0.5)


def _rounded(node: Node, places: np.ndarray, scale: Any) -> np.ndarray:
    """The coordinates of the nearest elements."""
    if node.version < 11:
        # As in ONNX Runtime; ONNX did not say it.
        is_smaller = scale < 1 and node.kind == "Resize"
        return np.ceil(places) if is_smaller else np.floor(places)
    mode = node.attributes["nearest_mode"]
    modes: dict[str, Callable[..., np.ndarray]] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    return modes[mode](places)


def _nearest(x: jax.Array, axis: int, places: np.ndarray) -> jax.Array:
    size = x.shape[axis]
    numbers = np.clip(places, 0, size - 1).astype(np.int32)
    factor = len(numbers) // size
    if np.array_equal(numbers, np.arange(size * factor) // max(factor, 1)):
        return jnp.repeat(x, factor, axis)  # which is faster
    return taken(lambda x: jnp.take(x, numbers, axis, mode="clip"), x)


def _kernel_of(node: Node) -> tuple[Callable[..., Any], int]:
    """The weight of an element by its distance, and how far it reaches."""
    if node.attributes["mode"] in ("linear", "bilinear"):
        return _triangle, 1
    a = node.attributes.get("cubic_coeff_a", -0.75)  # GridSample has no such attribute
    return functools.partial(_cubic, a=a), 2


def _triangle(d: Any) -> Any:
    return numpy_or_jax(d).where(d <= 1, 1 - d, 0)


def _cubic(d: Any, a: float) -> Any:
    """Keys' kernel of cubic convolution."""
    namespace = numpy_or_jax(d)
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    outer = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return namespace.where(d <= 1, inner, namespace.where(d < 2, outer, 0))


# Samples at the points of a grid ------------------------------------------------------


class _Axis(NamedTuple):
    """An axis of an image, and what is read beyond its border."""

    size: int
    padding: str
    edge: float = 0.0  # what belongs to the image beyond the centers of elements

    def place(self, point: jax.Array) -> jax.Array:
        """The coordinate of a point, of which those of the image are in [-1, 1]."""
        return (point + 1) * ((self.size - 1) / 2 + self.edge) - self.edge

    def inside(self, x: jax.Array) -> jax.Array:
        """Moves coordinates beyond the border into the image, unless these are zero."""
        low, high = -self.edge, self.size - 1 + self.edge
        is_outside = (x < low) | (x > high)
        if self.padding == "border":
            return jnp.where(is_outside, jnp.clip(x, 0, self.size - 1), x)
        if self.padding == "zeros":
            return x
        span = max(high - low, 1e-30)
        turned = jnp.mod(x - low, 2 * span)
        return jnp.where(is_outside, low + jnp.minimum(turned, 2 * span - turned), x)

    def tap(self, place: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The index of an element that is read, and its weight."""
        if self.padding == "zeros":
            weight = jnp.where((place >= 0) & (place < self.size), weight, 0)
        elif self.padding == "reflection":
            place = self.inside(place)
        return jnp.clip(place, 0, self.size - 1).astype(jnp.int32), weight

    def taps(self, place: jax.Array, kernel: Any, reach: int) -> list[Any]:
        """The indices and weights of the elements around a place.

        No kernel sees the absolute value of a distance, which has no slope at 0.
        """
        first = lax.stop_gradient(jnp.floor(place))
        after = place - first
        distances = (
            (n, after - n if n <= 0 else n - after) for n in range(1 - reach, reach + 1)
        )
        return [self.tap(first + n, kernel(d)) for n, d in distances]


def _grid_sample(node: Node, x: Array, grid: Array) -> jax.Array:
    attributes, sizes = node.attributes, np.shape(x)[2:]
    if not sizes or np.ndim(grid) != np.ndim(x):
        raise ValueError(
            "`X` and `grid` must have the same rank >= 3; got shapes "
            f"{np.shape(x)} and {np.shape(grid)}"
        )
    shape = (np.shape(x)[0], *np.shape(grid)[1:-1], len(sizes))
    require_shape("grid", grid, shape)
    is_nearest = attributes["mode"] == "nearest"
    edge = 0.0 if attributes["align_corners"] else 0.5
    kernel, reach = _kernel_of(node)
    taps = []
    for i, size in enumerate(sizes, 1):
        axis = _Axis(size, attributes["padding_mode"], edge)
        # The last axis comes first.
        place = axis.place(jnp.asarray(grid)[..., -i])
        if is_nearest:
            taps.append([axis.tap(axis.inside(jnp.rint(place)), jnp.ones_like(place))])
        else:
            # A wider kernel begins at a place outside, whose elements are moved.
            place = axis.inside(place) if reach == 1 else place
            taps.append(axis.taps(place, kernel, reach))
    read = jax.vmap(lambda image, *places: image[(slice(None), *places)])
    result: Any = 0
    for chosen in itertools.product(*taps):
        places, weights = zip(*chosen, strict=True)
        weight = functools.reduce(jnp.multiply, weights)
        result = result + read(jnp.asarray(x), *places) * weight[:, None]
    return result.astype(x.dtype)


def _affine_grid(node: Node, theta: Array, size: Array) -> jax.Array:
    batch, _, *sizes = integers("size", size)
    count = len(sizes)
    require_shape("theta", theta, (batch, count, count + 1))
    require_size(node, "size", (batch, *sizes, count))
    is_aligned = node.attributes["align_corners"]
    axes = []
    for i, n in enumerate(sizes):
        steps = np.arange(n) / max(n - 1, 1) if is_aligned else (np.arange(n) + 0.5) / n
        axes.append((2 * steps - 1).reshape(along(i, count)))
    # The last axis comes first, and the column of translations last.
    points = np.stack(np.broadcast_arrays(*axes[::-1], 1.0), -1).astype(theta.dtype)
    highest = lax.Precision.HIGHEST
    return jnp.einsum("nij,...j->n...i", theta, points, precision=highest)


def _upsample(node: Node, x: Array, scales: Any = None) -> jax.Array:
    scales = node.attributes.get("scales") if scales is None else scales
    return _resize(node, x, scales=np.asarray(scales, np.float32))


# Samples in the bins of boxes ---------------------------------------------------------

# Without `sampling_ratio`, samples are at least half an element apart. Four are around
# an element, and one more at each end if places are rounded.
_MOST_SAMPLES = 6


class _Bins(NamedTuple):
    """Bins along an axis. The axes of arrays: boxes, bins, elements, samples."""

    start: Any
    step: Any  # between samples
    samples: Any  # their number in a bin
    size: Any  # of the image

    def place(self, i: Any) -> tuple[jax.Array, jax.Array]:
        """Places of samples, moved into the image, and whether they are read."""
        place = self.start + (i + 0.5) * self.step
        is_read = (i < self.samples) & (place >= -1) & (place <= self.size)
        return jnp.clip(place, 0, self.size - 1), is_read

    def taps(self, most: int) -> list[list[jax.Array]]:
        """The elements around `most` samples of each bin; the last one is repeated."""
        i = jnp.minimum(np.arange(most), jnp.maximum(self.samples - 1, 0))
        place, is_read = self.place(i)
        taps = _Axis(self.size, "border").taps(place, _triangle, 1)
        shape = place.shape[0], place.shape[1] * most  # of no boxes, too
        return [[x.reshape(shape) for x in (j, w * is_read)] for j, w in taps]

    def weights(self) -> jax.Array:
        """The weights of all elements in the averages of the bins."""
        element = jnp.arange(self.size)[:, None]
        step = jnp.where(self.step > 0, self.step, 1)
        first = jnp.ceil((element - 1 - self.start) / step - 0.5) - 1
        place, is_read = self.place(jnp.maximum(first, 0) + np.arange(_MOST_SAMPLES))
        weights = jnp.maximum(1 - jnp.abs(place - element), 0) * is_read
        return weights.sum(-1) / jnp.maximum(self.samples[..., 0], 1)


def _bins_of(node: Node, rois: Array, ratio: int, sizes: Any) -> list[_Bins]:
    """The bins along the height and the width of an image."""
    modes = ["half_pixel", "output_half_pixel"]
    mode = option(node, "coordinate_transformation_mode", modes)
    is_shifted = mode == "half_pixel" and node.version >= 16
    namespace, attributes = numpy_or_jax(rois), node.attributes
    places = rois * np.asarray(attributes["spatial_scale"], rois.dtype)
    left, top, right, bottom = (places - is_shifted / 2).T[..., None, None, None]
    rows = (top, bottom, "output_height"), (left, right, "output_width")
    axes = []
    for (low, high, name), size in zip(rows, sizes, strict=True):
        length = high - low if is_shifted else namespace.maximum(high - low, 1)
        width = length / attributes[name]
        samples = namespace.full_like(width, ratio) if ratio else namespace.ceil(width)
        step = width / namespace.maximum(samples, 1)
        bins = np.arange(attributes[name], dtype=rois.dtype)[:, None, None]
        axes.append(_Bins(low + bins * width, step, samples, size))
    return axes


def _roi_align(node: Node, x: Array, rois: Array, batch_indices: Array) -> jax.Array:
    require_axes(
        X=(x, "batch channels height width"),
        rois=(rois, ("boxes", 4)),
        batch_indices=(batch_indices, "boxes"),
    )
    ratio = max(node.attributes["sampling_ratio"], 0)
    is_max = option(node, "mode", ["avg", "max"]) == "max"
    if is_max and not ratio:
        require_constant(rois=rois)
        rois = np.asarray(rois)
    data = jnp.moveaxis(x, 1, -1)
    axes = _bins_of(node, rois, ratio, data.shape[1:3])
    images = jnp.asarray(indices_of(batch_indices, data.shape[0]))

    def average(row: Any) -> jax.Array:
        image, *weights = row
        highest = lax.Precision.HIGHEST
        return jnp.einsum("hwc,ph,qw->cpq", data[image], *weights, precision=highest)

    if not is_max and not ratio:
        weights = (axis.weights() for axis in axes)
        # Without the checkpoint, reverse mode would keep an image for each box.
        return lax.map(jax.checkpoint(average), (images, *weights))
    most = [ratio or int(np.max(axis.samples, initial=1)) for axis in axes]
    combine, reduce = (jnp.maximum, jnp.max) if is_max else (jnp.add, jnp.mean)
    read = functools.reduce(
        combine,
        (
            data[images[:, None, None], i[:, :, None], j[:, None]]
            * (v[:, :, None] * w[:, None])[..., None]
            for (i, v), (j, w) in itertools.product(*map(_Bins.taps, axes, most))
        ),
    )
    rows, columns = (axis.start.shape[1] for axis in axes)
    shape = images.size, rows, most[0], columns, most[1], data.shape[-1]
    pooled = reduce(read.reshape(shape), (2, 4))
    return jnp.moveaxis(pooled, -1, 1)


OPERATORS = {
    "Resize": Operator(_resize, 10, static=(1, 2, 3)),
    "Upsample": Operator(_upsample, 7, static=(1,)),
    "GridSample": Operator(in_float32(_grid_sample), 16),
    "RoiAlign": Operator(in_float32(_roi_align), 10),
    "AffineGrid": Operator(in_float32(_affine_grid), 20, static=(1,)),
}
