"""Tensors in buffers: from flat buffers to arrays, and back.

Strides that are nested, each stepping over all that the smaller ones reach, cover
every packed, permuted and padded layout. With the dimensions in the order of their
strides, such a buffer is an array of rows, of which each is an array of rows, and so
on: slices, reshapes and one transpose read and write it, which XLA fuses with the
operator. Any other layout, windows that overlap for one, is a gather or a scatter.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax import _bits
from dml_jax.directml._tensor import BufferTensorDesc, is_nested, packed_strides


def read(tensor: BufferTensorDesc, bound: jax.Array) -> jax.Array:
    """The elements of a tensor, with size 1 where its stride is 0."""
    if is_logical(tensor, bound):
        return bound
    if tensor.is_packed:
        return bound[: math.prod(tensor.sizes)].reshape(tensor.sizes)
    sizes, strides = _compact(tensor)
    if is_nested(sizes, strides):
        return _bits.move(functools.partial(_unfold, sizes, strides), bound)
    return _bits.move(functools.partial(_gather, sizes, strides), bound)


def write(
    tensor: BufferTensorDesc, elements: jax.Array, previous: jax.Array | None
) -> jax.Array:
    """The buffer of a tensor after its elements are written; the rest is kept.

    Without a previous buffer the rest is 0, and a packed tensor stays as it is.
    """
    if previous is None:
        return elements if tensor.is_packed else flatten(tensor, elements)
    return (
        elements if is_logical(tensor, previous) else _put(tensor, elements, previous)
    )


def flatten(tensor: BufferTensorDesc, elements: jax.Array) -> jax.Array:
    """The whole buffer of a tensor, with zeros between its elements."""
    return _put(tensor, elements, jnp.zeros(tensor.buffer_size, elements.dtype))


def reinterpret(buffer: jax.Array, tensor: BufferTensorDesc) -> jax.Array:
    """The bytes of a buffer as the buffer of another tensor, of whatever data type."""
    given, wanted = buffer.dtype.itemsize, tensor.data_type.dtype.itemsize
    if given < wanted:
        buffer = _resize(buffer, tensor.buffer_size * (wanted // given))
        buffer = buffer.reshape(-1, wanted // given)
    if buffer.dtype != tensor.data_type.dtype:
        buffer = lax.bitcast_convert_type(buffer, tensor.data_type.dtype).reshape(-1)
    return _resize(buffer, tensor.buffer_size)


def is_logical(tensor: BufferTensorDesc, bound: jax.Array | np.ndarray) -> bool:
    """Whether what is bound is the array itself, not its buffer."""
    return tensor.is_packed and bound.shape == tensor.sizes


def _compact(tensor):
    """Sizes without the dimensions that are broadcast, and the strides."""
    strides = tensor.strides or packed_strides(tensor.sizes)
    pairs = zip(tensor.sizes, strides, strict=True)
    return tuple(1 if stride == 0 else size for size, stride in pairs), strides


def _order(sizes, strides):
    """The dimensions that have more than one element, largest stride first."""
    dims = [d for d, size in enumerate(sizes) if size > 1]
    return sorted(dims, key=lambda d: -strides[d])


def _unfold(sizes, strides, buffer):
    order = _order(sizes, strides)
    rows = buffer
    for d in order:
        rows = _resize(rows, sizes[d] * strides[d])
        rows = rows.reshape(*rows.shape[:-1], sizes[d], strides[d])
    elements = rows[..., 0]
    return elements.transpose(np.argsort(order)).reshape(sizes)


def _put(tensor, elements, buffer):
    count = math.prod(tensor.sizes)
    if tensor.is_packed:
        return _bits.move(_overwrite, elements.reshape(count), buffer)
    if is_nested(tensor.sizes, tensor.strides):
        order = _order(tensor.sizes, tensor.strides)
        elements = elements.reshape([size for size in tensor.sizes if size > 1])
        elements = elements.transpose(np.argsort(np.argsort(order)))
        rows = tuple((tensor.sizes[d], tensor.strides[d]) for d in order)
        return _bits.move(functools.partial(_fold, rows), elements, buffer)
    scatter = functools.partial(_scatter, tensor.sizes, tensor.strides)
    return _bits.move(scatter, elements, buffer)


def _fold(rows, elements, buffer):
    """`buffer` with `elements` at the starts of its rows of rows."""
    if not rows:
        return _overwrite(elements[..., None], buffer)
    (size, stride), *inner = rows
    length, covered = buffer.shape[-1], size * stride
    buffer = _resize(buffer, max(length, covered))
    body = buffer[..., :covered].reshape(*buffer.shape[:-1], size, stride)
    body = _fold(inner, elements, body).reshape(*buffer.shape[:-1], covered)
    return _resize(_overwrite(body, buffer), length)


def _overwrite(elements, buffer):
    """`buffer` with `elements` at its start; in place where XLA may."""
    if elements.shape == buffer.shape:
        return elements
    return lax.dynamic_update_slice(buffer, elements, (0,) * buffer.ndim)


def _resize(rows, length):
    """Rows cut to a length, or filled up to it with zeros."""
    missing = length - rows.shape[-1]
    if missing <= 0:
        return lax.slice_in_dim(rows, 0, length, axis=-1)
    padding = [(0, 0, 0)] * (rows.ndim - 1) + [(0, missing, 0)]
    return lax.pad(rows, jnp.zeros((), rows.dtype), padding)


def _gather(sizes, strides, buffer):
    return buffer.at[_places(sizes, strides)].get(mode="promise_in_bounds")


def _scatter(sizes, strides, elements, buffer):
    places = buffer.at[_places(sizes, strides)]
    return places.set(elements, mode="promise_in_bounds", unique_indices=True)


def _places(sizes, strides):
    """The index in the buffer of every element; DirectML's limit is a uint32."""
    index = jnp.zeros(sizes, jnp.uint32)
    for d, stride in enumerate(strides):
        iota = lax.broadcasted_iota(jnp.uint32, sizes, d)
        index = index + iota * np.uint32(stride)
    return index
