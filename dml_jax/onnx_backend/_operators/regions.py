"""RoiAlign, which pools the samples of an image that are in the bins of boxes.

A bin has `sampling_ratio` samples along each axis, at places between elements. Without
a ratio, their number depends on the box, but they are at least half an element apart,
so that an element is in few of them. Averages are then products of the image and the
weights of its elements, for boxes of any size.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    in_float32,
    indices_of,
    numpy_or_jax,
    option,
    require_axes,
    require_constant,
)
from dml_jax.onnx_backend._values import Array

_MOST_SAMPLES = 6  # that an element is in: 4, and one at each end if places are rounded


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

    def taps(self, most: int) -> list[tuple[jax.Array, jax.Array]]:
        """The elements around `most` samples of each bin, and their weights.

        The last sample of a bin that has fewer is repeated.
        """
        last = jnp.maximum(self.samples - 1, 0)
        place, is_read = self.place(jnp.minimum(np.arange(most), last))
        low = jnp.floor(place)
        high, after = jnp.minimum(low + 1, self.size - 1), place - low
        shape = place.shape[0], -1
        return [
            (i.astype(jnp.int32).reshape(shape), (weight * is_read).reshape(shape))
            for i, weight in ((low, 1 - after), (high, after))
        ]

    def weights(self) -> jax.Array:
        """The weights of all elements in the averages of the bins."""
        element = jnp.arange(self.size)[:, None]
        step = jnp.where(self.step > 0, self.step, 1)
        first = jnp.ceil((element - 1 - self.start) / step - 0.5) - 1
        i = jnp.maximum(first, 0) + np.arange(_MOST_SAMPLES)
        place, is_read = self.place(i)
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
    if not is_max and not ratio:

        def average(row: Any) -> jax.Array:
            i, *weights = row
            highest = lax.Precision.HIGHEST
            return jnp.einsum("hwc,ph,qw->pqc", data[i], *weights, precision=highest)

        weights = (axis.weights() for axis in axes)
        # Without the checkpoint, reverse mode would keep an image for each box.
        pooled = lax.map(jax.checkpoint(average), (images, *weights))
        return jnp.moveaxis(pooled, -1, 1)
    most = [ratio or int(np.max(axis.samples, initial=1)) for axis in axes]
    taps = map(_Bins.taps, axes, most)
    parts = [
        data[images[:, None, None], i[:, :, None], j[:, None]]
        * (v[:, :, None] * w[:, None])[..., None]
        for (i, v), (j, w) in itertools.product(*taps)
    ]
    combine, reduce = (jnp.maximum, jnp.max) if is_max else (jnp.add, jnp.mean)
    read = functools.reduce(combine, parts)
    bins = (axis.start.shape[1] for axis in axes)
    split = itertools.chain.from_iterable(zip(bins, most, strict=True))
    pooled = reduce(read.reshape(images.size, *split, data.shape[-1]), (2, 4))
    return jnp.moveaxis(pooled, -1, 1)


OPERATORS = {"RoiAlign": Operator(in_float32(_roi_align), 10, of_images=True)}
