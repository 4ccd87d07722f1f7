"""The slice and its adjoint for any platform."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from dml_jax._shared import bitwise


def take(x, lattice):
    """`lax.slice` and `lax.rev`."""
    bits = bitwise.to_bits(x)
    y = lax.slice(bits, lattice.starts, lattice.limits, lattice.strides)
    return bitwise.from_bits(lax.rev(y, lattice.reversed_dims), x.dtype)


def put(x, shape, lattice):
    """`lax.pad` with zeros between the elements."""
    bits, padding = (
        lax.rev(bitwise.to_bits(x), lattice.reversed_dims),
        lattice.padding(shape),
    )
    if bitwise.is_narrow_float(x.dtype):
        y = bitwise.pad_bits(bits, padding)
    else:
        y = lax.pad(bits, jnp.zeros((), bits.dtype), padding)
    return bitwise.from_bits(y, x.dtype)


def put_by_positions(x, shape, lattice):
    """A gather and a select for every position, which XLA partitions correctly.

    The offsets of the lattice may be traced.
    """

    def put(bits):
        for d, extent in enumerate(shape):
            low, size, step = lattice.starts[d], lattice.sizes[d], lattice.strides[d]
            if d in lattice.reversed_dims:
                bits = lax.rev(bits, (d,))
            if size == extent:
                continue
            if size == 0:
                return jnp.zeros(shape, bits.dtype)
            bits = _spread(bits, d, extent, low, size, step)
        return bits

    with bitwise.full_width(x):
        return bitwise.by_integers(put, x)


def _spread(bits, d, extent, low, size, step):
    """`put_by_positions` along one dimension."""
    dtype = bitwise.index_dtype(extent)
    with bitwise.full_width(dtype, bits):
        position = lax.iota(dtype, extent) - jnp.asarray(low).astype(dtype)
        index = position // step
        is_element = (position >= 0) & (position % step == 0) & (index < size)
        others = [other for other in range(bits.ndim) if other != d]
        elements = jnp.take(bits, index, axis=d, mode="clip")
        zero = jnp.zeros((), bits.dtype)
        return jnp.where(lax.expand_dims(is_element, others), elements, zero)
