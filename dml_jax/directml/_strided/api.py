"""Converts flat buffers of tensors to arrays, and arrays to buffers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import jax_versions
from dml_jax.directml._strided import primitive
from dml_jax.directml._strided.xla import Layout
from dml_jax.directml._tensor import BufferTensorDesc, packed_strides


def read(tensor: BufferTensorDesc, bound: jax.Array) -> jax.Array:
    """The elements of a tensor; dimensions with a stride of 0 have size 1."""
    if is_logical(tensor, bound):
        return bound
    return primitive.gather_strided(bound, _layout(tensor).compact)


def broadcast(elements: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """`jnp.broadcast_to` for `sizes` of the same rank.

    Its transpose, unlike JAX's, rounds the sums of repeated elements once.
    """
    if elements.shape == sizes:
        return elements
    strides = packed_strides(elements.shape)
    triples = zip(elements.shape, sizes, strides, strict=True)
    repeated = tuple(stride if given == size else 0 for given, size, stride in triples)
    return primitive.gather_strided(elements.reshape(-1), Layout(sizes, repeated))


def write(
    tensor: BufferTensorDesc, elements: jax.Array, previous: jax.Array | None
) -> jax.Array:
    """The buffer of a tensor with its elements written; the rest is kept.

    If there is no previous buffer, the rest is 0, and a packed tensor is returned as an
    array of its sizes.
    """
    if previous is None:
        return elements if tensor.is_packed else flatten(tensor, elements)
    if is_logical(tensor, previous):
        return elements
    layout, size = _layout(tensor), previous.shape[-1]
    written = primitive.scatter_strided(elements, layout, size)
    axes = jax_versions.varying_axes(written) | jax_versions.varying_axes(previous)
    written, kept = (jax_versions.vary_over(x, axes) for x in (written, previous))
    sharding = jax.typeof(written).sharding
    if getattr(sharding.mesh, "explicit_axes", ()):
        kept = jax.sharding.reshard(kept, sharding)
    is_element = primitive.scatter_strided(jnp.ones(tensor.sizes, bool), layout, size)
    return lax.select(is_element, written, kept)


def flatten(tensor: BufferTensorDesc, elements: jax.Array) -> jax.Array:
    """The whole buffer of a tensor, with zeros between its elements."""
    return primitive.scatter_strided(elements, _layout(tensor), tensor.buffer_size)


def is_logical(tensor: BufferTensorDesc, bound: jax.Array | np.ndarray) -> bool:
    """Whether a tensor is bound as an array with its sizes, not as a flat buffer."""
    return tensor.is_packed and bound.shape == tensor.sizes


def _layout(tensor: BufferTensorDesc) -> Layout:
    return Layout(tensor.sizes, tensor.strides or packed_strides(tensor.sizes))


# Bytes as another data type -----------------------------------------------------------


def reinterpret(buffer: jax.Array, tensor: BufferTensorDesc) -> jax.Array:
    """The bytes of a buffer as the buffer of a tensor of any data type.

    Arithmetic changes the width instead of bitcasts: XLA merges two consecutive
    bitcasts that change the width into one of the wrong shape.
    """
    dtype = tensor.data_type.dtype
    if buffer.dtype == dtype:
        return _resize(buffer, tensor.buffer_size)
    given, wanted = buffer.dtype.itemsize, dtype.itemsize
    words = lax.bitcast_convert_type(buffer, np.dtype(f"u{given}"))
    if given < wanted:
        words = _resize(words, tensor.buffer_size * (wanted // given))
        words = _join(words, np.dtype(f"u{wanted}"))
    elif given > wanted:
        words = _split(words, np.dtype(f"u{wanted}"))
    return _resize(lax.bitcast_convert_type(words, dtype), tensor.buffer_size)


def _join(parts: jax.Array, dtype: np.dtype) -> jax.Array:
    """Packs consecutive integers into wider ones, the first into the lowest bits."""
    count = dtype.itemsize // parts.dtype.itemsize
    parts, bits = parts.reshape(-1, count).astype(dtype), 8 * parts.dtype.itemsize
    word = parts[:, 0]
    for i in range(1, count):
        word = word | (parts[:, i] << dtype.type(i * bits))
    return word


def _split(words: jax.Array, dtype: np.dtype) -> jax.Array:
    """The inverse of `_join`."""
    count, bits = words.dtype.itemsize // dtype.itemsize, 8 * dtype.itemsize
    shifts = bits * np.arange(count, dtype=words.dtype)[None]
    return (words[:, None] >> shifts).astype(dtype).reshape(-1)


def _resize(buffer: jax.Array, length: int) -> jax.Array:
    """A buffer sliced to `length`, or extended to it with zeros; not by a pad."""
    missing = length - buffer.size
    if missing <= 0:
        return lax.slice_in_dim(buffer, 0, length)
    return lax.concatenate([buffer, jnp.zeros(missing, buffer.dtype)], 0)
