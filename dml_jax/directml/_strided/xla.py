"""XLA formulations of strided reads and writes.

A layout is nested if each stride exceeds the extent of the dimensions with smaller
strides. All packed, permuted and padded layouts are nested. In the order of its
strides, such a buffer is an array of rows, each of which is an array of rows, and so
on. Slices, reshapes and one transpose read it, pads write it, and XLA fuses both with
the operator. Other layouts, such as overlapping windows, are indexed by the position
of each element.

Partitioned programs index nested layouts, too, because XLA partitions `lax.pad`
incorrectly, and lowers slices of sharded rows to pads. XLA partitions a gather as a sum
to which the other shards contribute zeros. The sum keeps the bits of integers, but not
of floats, so floats are gathered as integers there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import bitwise
from dml_jax.directml._tensor import extent, is_nested, is_packed, packed_strides


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


def gather(buffer: jax.Array, layout: Layout, *, is_partitioned: bool) -> jax.Array:
    """The elements of a flat buffer."""
    bits, compact = _to_bits(buffer, is_partitioned), layout.compact
    if math.prod(compact.sizes) == bits.size and is_packed(*compact):
        bits = bits.reshape(compact.sizes)
    elif is_nested(*compact) and not is_partitioned:
        bits = _gather_nested(bits, compact)
    else:
        bits = bits.at[_positions(compact)].get(mode="promise_in_bounds")
    bits = jnp.broadcast_to(bits, layout.sizes)
    return bitwise.from_bits(bits, buffer.dtype)


def scatter(
    elements: jax.Array, layout: Layout, size: int, *, is_partitioned: bool
) -> jax.Array:
    """A buffer of zeros with the elements at distinct positions."""
    bits = _to_bits(elements, is_partitioned)
    if math.prod(layout.sizes) == size and is_packed(*layout):
        result = bits.reshape(-1)
    elif not is_nested(*layout):
        result = jnp.zeros(size, bits.dtype).at[_positions(layout)]
        result = result.set(bits, mode="promise_in_bounds", unique_indices=True)
    elif is_partitioned:
        is_element, index = _element_at(layout, size)
        found = bits.reshape(-1).at[index].get(mode="promise_in_bounds")
        result = jnp.where(is_element, found, jnp.zeros((), bits.dtype))
    else:
        result = _scatter_nested(bits, layout, size)
    return bitwise.from_bits(result, elements.dtype)


def scatter_add(
    elements: jax.Array, layout: Layout, size: int, *, is_partitioned: bool
) -> jax.Array:
    """The transpose of `gather`: sums in at least float32, which are rounded once."""
    dtype, compact = elements.dtype, layout.compact
    is_disjoint = is_nested(*compact)
    repeated = [d for d, n in enumerate(compact.sizes) if n != layout.sizes[d]]
    if bitwise.is_narrow_float(dtype) and (repeated or not is_disjoint):
        elements = elements.astype(jnp.float32)
    if repeated:
        elements = elements.sum(repeated, dtype=elements.dtype, keepdims=True)
    if is_disjoint:
        elements = elements.astype(dtype)
        return scatter(elements, compact, size, is_partitioned=is_partitioned)
    sums = jnp.zeros(size, elements.dtype).at[_positions(compact)]
    return sums.add(elements, mode="promise_in_bounds").astype(dtype)


# Helpers ------------------------------------------------------------------------------


def _to_bits(x: jax.Array, is_partitioned: bool) -> jax.Array:
    if not is_partitioned or x.dtype == bool:
        return bitwise.to_bits(x)
    return lax.bitcast_convert_type(x, np.dtype(f"u{x.dtype.itemsize}"))


def _gather_nested(buffer: jax.Array, layout: Layout) -> jax.Array:
    rows = buffer
    for d in layout.order:
        rows = _resize_by_pad(rows, layout.sizes[d] * layout.strides[d])
        rows = rows.reshape(*rows.shape[:-1], layout.sizes[d], layout.strides[d])
    elements = lax.index_in_dim(rows, 0, axis=-1, keepdims=False)
    return elements.transpose(np.argsort(layout.order)).reshape(layout.sizes)


def _scatter_nested(elements: jax.Array, layout: Layout, size: int) -> jax.Array:
    rows = elements.reshape([n for n in layout.sizes if n > 1])
    rows = rows.transpose(np.argsort(np.argsort(layout.order)))[..., None]
    for d in reversed(layout.order):
        rows = _resize_by_pad(rows, layout.strides[d])
        rows = rows.reshape(*rows.shape[:-2], layout.sizes[d] * layout.strides[d])
    return _resize_by_pad(rows, size)


def _resize_by_pad(rows: jax.Array, length: int) -> jax.Array:
    """Rows sliced to `length`, or extended to it with zeros."""
    padding = [(0, 0, 0)] * (rows.ndim - 1) + [(0, length - rows.shape[-1], 0)]
    return lax.pad(rows, jnp.zeros((), rows.dtype), padding)


def _positions(layout: Layout) -> jax.Array:
    """The position of every element in the buffer."""
    dtype = bitwise.index_dtype(extent(*layout))
    positions = jnp.zeros(layout.sizes, dtype)
    for d in layout.order:
        iota = lax.broadcasted_iota(dtype, layout.sizes, d)
        positions = positions + iota * dtype.type(layout.strides[d])
    return positions


def _element_at(layout: Layout, size: int) -> tuple[jax.Array, jax.Array]:
    """For each position, whether it holds an element, and the index of the element."""
    # DirectML limits positions to 32 bits, and those of 64 bits take twice the memory.
    rest = lax.iota(jnp.uint32, size)
    is_element, index = jnp.ones(size, bool), jnp.zeros(size, jnp.uint32)
    packed = packed_strides(layout.sizes)
    for d in layout.order:
        stride = np.uint32(layout.strides[d])
        at = rest // stride
        rest, is_element = rest - at * stride, is_element & (at < layout.sizes[d])
        index = index + at * np.uint32(packed[d])
    is_element = is_element & (rest == 0)
    index = jnp.where(is_element, index, np.uint32(0))
    return is_element, index.astype(bitwise.index_dtype(math.prod(layout.sizes)))
