"""XLA formulations of strided reads and writes.

A layout is nested if each stride exceeds the extent of the dimensions with smaller
strides. All packed, permuted and padded layouts are nested. In the order of its
strides, such a buffer is an array of rows, each of which is an array of rows, and so
on. Slices, reshapes and one transpose read and write it, and XLA fuses them with the
operator. Other layouts, such as overlapping windows, need a gather or a scatter.

Partitioned programs use gathers for nested layouts, too, because XLA partitions
`lax.pad` incorrectly, and lowers slices and updates of sharded rows to pads. XLA
partitions a gather as a sum to which the other shards contribute zeros. The sum keeps
the bits of integers, but not of floats, so floats are gathered as integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import bitwise
from dml_jax.directml._tensor import is_nested, is_packed, packed_strides


class Layout(NamedTuple):
    """For each dimension, the number of elements and the distance between two."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def compact(self) -> Layout:
        """The layout with size 1 in dimensions with a stride of 0."""
        pairs = zip(*self, strict=True)
        sizes = tuple(1 if stride == 0 else size for size, stride in pairs)
        return self._replace(sizes=sizes)

    @property
    def order(self) -> list[int]:
        """The dimensions with more than one element, largest stride first."""
        dims = [d for d, size in enumerate(self.sizes) if size > 1]
        return sorted(dims, key=lambda d: -self.strides[d])


def resize(rows: jax.Array, length: int) -> jax.Array:
    """Rows sliced to `length`, or extended to it with zeros."""
    missing = length - rows.shape[-1]
    if missing <= 0:
        return lax.slice_in_dim(rows, 0, length, axis=-1)
    zeros = jnp.zeros((*rows.shape[:-1], missing), rows.dtype)
    return lax.concatenate([rows, zeros], rows.ndim - 1)


def _resize_by_pad(rows: jax.Array, length: int) -> jax.Array:
    """`resize` by a pad, without a pass over memory; not for partitioned programs."""
    if length <= rows.shape[-1]:
        return resize(rows, length)
    return _pad_rows(rows, length)


def _pad_rows(rows: jax.Array, length: int) -> jax.Array:
    padding = [(0, 0, 0)] * (rows.ndim - 1) + [(0, length - rows.shape[-1], 0)]
    return lax.pad(rows, jnp.zeros((), rows.dtype), padding)


# One device ---------------------------------------------------------------------------


def gather(buffer: jax.Array, layout: Layout) -> jax.Array:
    """The elements of a buffer."""
    bits, compact = bitwise.to_bits(buffer), layout.compact
    if is_packed(*compact):
        elements = bits[: math.prod(compact.sizes)].reshape(compact.sizes)
    elif is_nested(*compact):
        elements = _gather_nested(bits, compact)
    else:
        elements = bits.at[_positions(compact)].get(mode="promise_in_bounds")
    elements = bitwise.from_bits(elements, buffer.dtype)
    return jnp.broadcast_to(elements, layout.sizes)


def scatter(elements: jax.Array, buffer: jax.Array, layout: Layout) -> jax.Array:
    """The buffer with its elements replaced; their positions must be distinct."""
    bits, previous = bitwise.to_bits(elements), bitwise.to_bits(buffer)
    if is_packed(*layout):
        result = _overwrite(bits.reshape(-1), previous)
    elif is_nested(*layout):
        rows = [(layout.sizes[d], layout.strides[d]) for d in layout.order]
        result = _scatter_nested(rows, _in_order(bits, layout), previous)
    else:
        result = previous.at[_positions(layout)].set(
            bits, mode="promise_in_bounds", unique_indices=True
        )
    return bitwise.from_bits(result, buffer.dtype)


def scatter_add(elements: jax.Array, layout: Layout, size: int) -> jax.Array:
    """Adds the elements to a buffer of zeros: the transpose of `gather`."""
    return _scatter_add(elements, layout, size, _scatter_to_zeros)


def _scatter_add(
    elements: jax.Array,
    layout: Layout,
    size: int,
    scatter_to_zeros: Callable[[jax.Array, Layout, int], jax.Array],
) -> jax.Array:
    """`scatter_add`, accumulated in at least float32 and rounded once."""
    dtype, compact = elements.dtype, layout.compact
    is_disjoint = is_nested(*compact)
    repeated = [d for d, n in enumerate(compact.sizes) if n != layout.sizes[d]]
    if bitwise.is_narrow_float(dtype) and (repeated or not is_disjoint):
        elements = elements.astype(jnp.float32)
    if repeated:
        elements = elements.sum(repeated, dtype=elements.dtype, keepdims=True)
    if is_disjoint:
        return scatter_to_zeros(elements.astype(dtype), compact, size)
    sums = jnp.zeros(size, elements.dtype).at[_positions(compact)]
    return sums.add(elements, mode="promise_in_bounds").astype(dtype)


def _scatter_to_zeros(elements: jax.Array, layout: Layout, size: int) -> jax.Array:
    """Adds zeros around the elements by pads, which XLA fuses with the operator."""
    rows = _in_order(elements, layout)[..., None]
    for d in reversed(layout.order):
        rows = _pad_rows(rows, layout.strides[d])
        rows = rows.reshape(*rows.shape[:-2], layout.sizes[d] * layout.strides[d])
    return _pad_rows(rows, size)


def _in_order(elements: jax.Array, layout: Layout) -> jax.Array:
    """The elements without dimensions of size 1, in the order of their strides."""
    elements = elements.reshape([size for size in layout.sizes if size > 1])
    return elements.transpose(np.argsort(np.argsort(layout.order)))


def _gather_nested(buffer: jax.Array, layout: Layout) -> jax.Array:
    order, rows = layout.order, buffer
    for d in order:
        rows = _resize_by_pad(rows, layout.sizes[d] * layout.strides[d])
        rows = rows.reshape(*rows.shape[:-1], layout.sizes[d], layout.strides[d])
    return rows[..., 0].transpose(np.argsort(order)).reshape(layout.sizes)


def _scatter_nested(
    rows: Sequence[tuple[int, int]], elements: jax.Array, buffer: jax.Array
) -> jax.Array:
    """`buffer` with `elements` at the starts of nested rows, each (count, length)."""
    if not rows:
        return _overwrite(elements[..., None], buffer)
    (size, stride), *inner = rows
    length, covered = buffer.shape[-1], size * stride
    buffer = _resize_by_pad(buffer, max(length, covered))
    body = buffer[..., :covered].reshape(*buffer.shape[:-1], size, stride)
    body = _scatter_nested(inner, elements, body)
    body = body.reshape(*buffer.shape[:-1], covered)
    return _resize_by_pad(_overwrite(body, buffer), length)


def _overwrite(elements: jax.Array, buffer: jax.Array) -> jax.Array:
    """`buffer` with `elements` at its start; in place if XLA can do that."""
    if elements.shape == buffer.shape:
        return elements
    return lax.dynamic_update_slice(buffer, elements, (0,) * buffer.ndim)


def _positions(layout: Layout) -> jax.Array:
    """The position of every element in the buffer; DirectML limits it to 32 bits."""
    positions = jnp.zeros(layout.sizes, jnp.uint32)
    for d, stride in enumerate(layout.strides):
        iota = lax.broadcasted_iota(jnp.uint32, layout.sizes, d)
        positions = positions + iota * np.uint32(stride % 2**32)
    return positions


# Several devices ----------------------------------------------------------------------


def gather_partitioned(buffer: jax.Array, layout: Layout) -> jax.Array:
    """`gather`, from operations that XLA partitions correctly."""
    bits, compact = _as_unsigned(buffer), layout.compact
    if is_packed(*compact) and math.prod(compact.sizes) == bits.size:
        bits = bits.reshape(compact.sizes)
    else:
        bits = bits.at[_positions(compact)].get(mode="promise_in_bounds")
    bits = jnp.broadcast_to(bits, layout.sizes)
    return lax.bitcast_convert_type(bits, buffer.dtype)


def scatter_partitioned(
    elements: jax.Array, buffer: jax.Array, layout: Layout
) -> jax.Array:
    """`scatter`, from operations that XLA partitions correctly."""
    bits, previous = _as_unsigned(elements), _as_unsigned(buffer)
    if is_nested(*layout):
        is_element, index = _element_at(layout, buffer.shape[-1])
        found = bits.reshape(-1).at[index].get(mode="promise_in_bounds")
        result = jnp.where(is_element, found, previous)
    else:
        result = previous.at[_positions(layout)].set(
            bits, mode="promise_in_bounds", unique_indices=True
        )
    return lax.bitcast_convert_type(result, buffer.dtype)


def scatter_add_partitioned(
    elements: jax.Array, layout: Layout, size: int
) -> jax.Array:
    """`scatter_add`, from operations that XLA partitions correctly."""

    def scatter_to_zeros(elements: jax.Array, layout: Layout, size: int) -> jax.Array:
        zeros = jnp.zeros(size, elements.dtype)
        return scatter_partitioned(elements, zeros, layout)

    return _scatter_add(elements, layout, size, scatter_to_zeros)


def _as_unsigned(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, np.dtype(f"u{x.dtype.itemsize}"))


def _element_at(layout: Layout, size: int) -> tuple[jax.Array, jax.Array]:
    """For each position, whether it holds an element, and the index of the element."""
    rest = lax.iota(jnp.uint32, size)
    is_element, index = jnp.ones(size, bool), jnp.zeros(size, jnp.uint32)
    packed = packed_strides(layout.sizes)
    for d in layout.order:
        stride = np.uint32(layout.strides[d])
        at = rest // stride
        rest, is_element = rest - at * stride, is_element & (at < layout.sizes[d])
        index = index + at * np.uint32(packed[d])
    is_element = is_element & (rest == 0)
    return is_element, jnp.where(is_element, index, np.uint32(0))
