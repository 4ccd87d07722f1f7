"""Ways to read and to write the elements of a tensor in a flat buffer.

Strides that are nested, each stepping over all that the smaller ones reach, cover
every packed, permuted and padded layout. With the dimensions in the order of their
strides, such a buffer is an array of rows, of which each is an array of rows, and so
on: slices, reshapes and one transpose read and write it, which XLA fuses with the
operator. Any other layout, windows that overlap for one, is a gather or a scatter.

Where XLA divides a program among devices, nested layouts are gathers as well: it
divides `lax.pad` wrongly, and what it makes of slices and updates of sharded rows has
pads in it. What is gathered from shards is added up, in which zeros stand for what
other shards have: that keeps the bits of integers, but not those of floats.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import bitwise
from dml_jax.directml._tensor import is_nested, packed_strides


class Layout(NamedTuple):
    """Where elements lie: their number along each dimension, and the steps."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def resized(rows: jax.Array, length: int) -> jax.Array:
    """Rows cut to a length, or filled up to it with zeros."""
    missing = length - rows.shape[-1]
    if missing <= 0:
        return lax.slice_in_dim(rows, 0, length, axis=-1)
    zeros = jnp.zeros((*rows.shape[:-1], missing), rows.dtype)
    return lax.concatenate([rows, zeros], rows.ndim - 1)


def _compact(layout):
    """The layout without repetitions: of size 1 where its stride is 0."""
    pairs = zip(*layout, strict=True)
    sizes = tuple(1 if stride == 0 else size for size, stride in pairs)
    return layout._replace(sizes=sizes)


def _is_packed(layout):
    triples = zip(*layout, packed_strides(layout.sizes), strict=True)
    return all(size == 1 or given == packed for size, given, packed in triples)


# One device ---------------------------------------------------------------------------


def take(buffer: jax.Array, layout: Layout) -> jax.Array:
    """The elements of a buffer."""
    bits, compact = bitwise.to_bits(buffer), _compact(layout)
    if _is_packed(compact):
        elements = bits[: math.prod(compact.sizes)].reshape(compact.sizes)
    elif is_nested(*compact):
        elements = _unfold(bits, compact)
    else:
        elements = bits.at[_places(compact)].get(mode="promise_in_bounds")
    elements = bitwise.from_bits(elements, buffer.dtype)
    return jnp.broadcast_to(elements, layout.sizes)


def put(elements: jax.Array, buffer: jax.Array, layout: Layout) -> jax.Array:
    """The buffer with other elements, no two of them in one place."""
    bits, previous = bitwise.to_bits(elements), bitwise.to_bits(buffer)
    if _is_packed(layout):
        result = _overwrite(bits.reshape(-1), previous)
    elif is_nested(*layout):
        order = _order(layout)
        bits = bits.reshape([size for size in layout.sizes if size > 1])
        bits = bits.transpose(np.argsort(np.argsort(order)))
        rows = tuple((layout.sizes[d], layout.strides[d]) for d in order)
        result = _fold(rows, bits, previous)
    else:
        places = previous.at[_places(layout)]
        result = places.set(bits, mode="promise_in_bounds", unique_indices=True)
    return bitwise.from_bits(result, buffer.dtype)


def add(elements: jax.Array, layout: Layout, size: int) -> jax.Array:
    """Zeros, to which every element is added where it lies: the adjoint of `take`."""
    return _added(elements, layout, size, _spread)


def _added(elements, layout, size, put_among_zeros):
    """The sums, rounded once: a narrow float has not the digits to add many."""
    dtype, compact = elements.dtype, _compact(layout)
    is_disjoint = is_nested(*compact)
    repeated = [d for d, n in enumerate(compact.sizes) if n != layout.sizes[d]]
    if bitwise.is_narrow_float(dtype) and (repeated or not is_disjoint):
        elements = elements.astype(jnp.float32)
    if repeated:
        elements = elements.sum(repeated, dtype=elements.dtype, keepdims=True)
    if is_disjoint:
        return put_among_zeros(elements.astype(dtype), compact, size)
    places = jnp.zeros(size, elements.dtype).at[_places(compact)]
    return places.add(elements, mode="promise_in_bounds").astype(dtype)


def _spread(elements, layout, size):
    """Elements among zeros, which fuses with what comes before, as `_fold` does not."""
    order = _order(layout)
    rows = elements.reshape([n for n in layout.sizes if n > 1])
    rows = rows.transpose(np.argsort(np.argsort(order)))[..., None]
    zero = jnp.zeros((), rows.dtype)
    for d in reversed(order):
        whole = [(0, 0, 0)] * (rows.ndim - 1)
        rows = lax.pad(rows, zero, [*whole, (0, layout.strides[d] - rows.shape[-1], 0)])
        rows = rows.reshape(*rows.shape[:-2], layout.sizes[d] * layout.strides[d])
    missing = size - rows.shape[-1]
    return lax.pad(rows, zero, [(0, missing, 0)])


def _order(layout):
    """The dimensions that have more than one element, largest stride first."""
    dims = [d for d, size in enumerate(layout.sizes) if size > 1]
    return sorted(dims, key=lambda d: -layout.strides[d])


def _unfold(buffer, layout):
    order, rows = _order(layout), buffer
    for d in order:
        rows = _padded(rows, layout.sizes[d] * layout.strides[d])
        rows = rows.reshape(*rows.shape[:-1], layout.sizes[d], layout.strides[d])
    return rows[..., 0].transpose(np.argsort(order)).reshape(layout.sizes)


def _fold(rows, elements, buffer):
    """`buffer` with `elements` at the starts of its rows of rows."""
    if not rows:
        return _overwrite(elements[..., None], buffer)
    (size, stride), *inner = rows
    length, covered = buffer.shape[-1], size * stride
    buffer = _padded(buffer, max(length, covered))
    body = buffer[..., :covered].reshape(*buffer.shape[:-1], size, stride)
    body = _fold(inner, elements, body).reshape(*buffer.shape[:-1], covered)
    return _padded(_overwrite(body, buffer), length)


def _overwrite(elements, buffer):
    """`buffer` with `elements` at its start; in place where XLA may."""
    if elements.shape == buffer.shape:
        return elements
    return lax.dynamic_update_slice(buffer, elements, (0,) * buffer.ndim)


def _padded(rows, length):
    """Rows cut to a length, or filled up to it with zeros, which takes no pass."""
    missing = length - rows.shape[-1]
    if missing <= 0:
        return lax.slice_in_dim(rows, 0, length, axis=-1)
    padding = [(0, 0, 0)] * (rows.ndim - 1) + [(0, missing, 0)]
    return lax.pad(rows, jnp.zeros((), rows.dtype), padding)


def _places(layout):
    """The index in the buffer of every element; DirectML's limit is a uint32."""
    index = jnp.zeros(layout.sizes, jnp.uint32)
    for d, stride in enumerate(layout.strides):
        iota = lax.broadcasted_iota(jnp.uint32, layout.sizes, d)
        index = index + iota * np.uint32(stride % 2**32)
    return index


# Many devices -------------------------------------------------------------------------


def take_divided(buffer: jax.Array, layout: Layout) -> jax.Array:
    """`take`, as XLA divides it rightly."""
    bits, compact = _words(buffer), _compact(layout)
    if _is_packed(compact) and math.prod(compact.sizes) == bits.size:
        bits = bits.reshape(compact.sizes)
    else:
        bits = bits.at[_places(compact)].get(mode="promise_in_bounds")
    bits = jnp.broadcast_to(bits, layout.sizes)
    return lax.bitcast_convert_type(bits, buffer.dtype)


def put_divided(elements: jax.Array, buffer: jax.Array, layout: Layout) -> jax.Array:
    """`put`, as XLA divides it rightly."""
    bits, previous = _words(elements), _words(buffer)
    if is_nested(*layout):
        is_element, index = _elements_at(layout, buffer.shape[-1])
        found = bits.reshape(-1).at[index].get(mode="promise_in_bounds")
        result = jnp.where(is_element, found, previous)
    else:
        places = previous.at[_places(layout)]
        result = places.set(bits, mode="promise_in_bounds", unique_indices=True)
    return lax.bitcast_convert_type(result, buffer.dtype)


def add_divided(elements: jax.Array, layout: Layout, size: int) -> jax.Array:
    """`add`, as XLA divides it rightly."""

    def put_among_zeros(elements, layout, size):
        return put_divided(elements, jnp.zeros(size, elements.dtype), layout)

    return _added(elements, layout, size, put_among_zeros)


def _words(x):
    return lax.bitcast_convert_type(x, np.dtype(f"u{x.dtype.itemsize}"))


def _elements_at(layout, size):
    """For every place of a buffer whether an element is there, and which one."""
    rest = lax.iota(jnp.uint32, size)
    is_element, index = jnp.ones(size, bool), jnp.zeros(size, jnp.uint32)
    packed = packed_strides(layout.sizes)
    for d in _order(layout):
        stride = np.uint32(layout.strides[d])
        at = rest // stride
        rest, is_element = rest - at * stride, is_element & (at < layout.sizes[d])
        index = index + at * np.uint32(packed[d])
    is_element = is_element & (rest == 0)
    return is_element, jnp.where(is_element, index, np.uint32(0))
