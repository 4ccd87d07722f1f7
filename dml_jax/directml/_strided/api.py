"""Tensors in buffers: from flat buffers to arrays, and back.

A buffer is read and written by the primitives of `_layout_primitive`. What graphs do
besides is to read the bytes of a tensor as those of another one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.directml._strided import primitive
from dml_jax.directml._strided.xla import Layout, resized
from dml_jax.directml._tensor import BufferTensorDesc, packed_strides


def read(tensor: BufferTensorDesc, bound: jax.Array) -> jax.Array:
    """The elements of a tensor, with size 1 where its stride is 0."""
    if is_logical(tensor, bound):
        return bound
    sizes, strides = _layout(tensor)
    pairs = zip(sizes, strides, strict=True)
    compact = tuple(1 if stride == 0 else size for size, stride in pairs)
    return primitive.take(bound, Layout(compact, strides))


def broadcast(elements: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """`elements` with the dimensions of size 1 repeated up to `sizes`."""
    if elements.shape == sizes:
        return elements
    strides = packed_strides(elements.shape)
    triples = zip(elements.shape, sizes, strides, strict=True)
    repeated = tuple(stride if given == size else 0 for given, size, stride in triples)
    return primitive.take(elements.reshape(-1), Layout(sizes, repeated))


def write(
    tensor: BufferTensorDesc, elements: jax.Array, previous: jax.Array | None
) -> jax.Array:
    """The buffer of a tensor after its elements are written; the rest is kept.

    Without a previous buffer the rest is 0, and a packed tensor stays as it is.
    """
    if previous is None:
        return elements if tensor.is_packed else flatten(tensor, elements)
    if is_logical(tensor, previous):
        return elements
    return primitive.put(elements, previous, _layout(tensor))


def flatten(tensor: BufferTensorDesc, elements: jax.Array) -> jax.Array:
    """The whole buffer of a tensor, with zeros between its elements."""
    zeros = jnp.zeros(tensor.buffer_size, elements.dtype)
    return primitive.put(elements, zeros, _layout(tensor))


def is_logical(tensor: BufferTensorDesc, bound: jax.Array | np.ndarray) -> bool:
    """Whether what is bound is the array itself, not its buffer."""
    return tensor.is_packed and bound.shape == tensor.sizes


def _layout(tensor) -> Layout:
    return Layout(tensor.sizes, tensor.strides or packed_strides(tensor.sizes))


# Bytes as another data type -----------------------------------------------------------


def reinterpret(buffer: jax.Array, tensor: BufferTensorDesc) -> jax.Array:
    """The bytes of a buffer as the buffer of another tensor, of whatever data type.

    Widths are changed by arithmetic: of two bitcasts in a row XLA makes one, whose
    shapes are wrong where both change the width.
    """
    wanted = tensor.data_type.dtype
    if buffer.dtype == wanted:
        return resized(buffer, tensor.buffer_size)
    given, wide = buffer.dtype.itemsize, wanted.itemsize
    words = lax.bitcast_convert_type(buffer, _unsigned(given))
    if given < wide:
        words = resized(words, tensor.buffer_size * (wide // given))
        words = _joined(words, _unsigned(wide))
    elif given > wide:
        words = _parted(words, _unsigned(wide))
    return resized(lax.bitcast_convert_type(words, wanted), tensor.buffer_size)


def _unsigned(itemsize):
    return np.dtype(f"u{itemsize}")


def _joined(parts, dtype):
    """Neighbours as words, the first as the lowest bits."""
    count = dtype.itemsize // parts.dtype.itemsize
    parts, bits = parts.reshape(-1, count).astype(dtype), 8 * parts.dtype.itemsize
    word = parts[:, 0]
    for i in range(1, count):
        word = word | (parts[:, i] << dtype.type(i * bits))
    return word


def _parted(words, dtype):
    """The inverse of `_joined`."""
    count, bits = words.dtype.itemsize // dtype.itemsize, 8 * dtype.itemsize
    shifts = bits * np.arange(count, dtype=words.dtype)[None]
    return (words[:, None] >> shifts).astype(dtype).reshape(-1)
