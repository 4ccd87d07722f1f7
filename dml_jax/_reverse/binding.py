"""Binds the primitive of the reversal, whatever the form of the lengths."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._reverse import primitive
from dml_jax._reverse.training import reverse_for_training
from dml_jax._shared import bitwise, jax_versions
from dml_jax._shared.arguments import Implementation, Size


def bind(
    x: jax.Array,
    lengths: jax.Array,
    axis: int,
    implementation: Implementation | None = None,
    coefficient: jax.Array | None = None,
) -> jax.Array:
    """Binds the primitive, in the training mode if there is a coefficient.

    Lengths have the rank of `x`, or that rank without dimensions of size 1 at the end.
    """
    lengths = clamp(lengths, x.shape[axis])
    if coefficient is not None:
        # Makes the lengths mapped and varying wherever the coefficient is.
        lengths = lengths + coefficient.astype(lengths.dtype) * 0

    def reverse(x: jax.Array) -> jax.Array:
        lines = lax.expand_dims(lengths, range(lengths.ndim, x.ndim))
        # Under shard_map the lengths may vary over axes over which the input does not.
        # Without the cast, the cotangent of the input would be summed over too few
        # devices.
        axes = jax_versions.varying_axes(x) | jax_versions.varying_axes(lines)
        x, lines = jax_versions.vary_over(x, axes), jax_versions.vary_over(lines, axes)
        if coefficient is None:
            return primitive.reverse(x, lines, axis, implementation)
        return reverse_for_training(x, lines, coefficient, axis, implementation)

    return bitwise.by_key_data(reverse, x)


def clamp(lengths: jax.Array, size: Size) -> jax.Array:
    """The lengths in [0, size], as int32, or as uint32 if the size is 2^31 or more."""
    is_symbolic = jax.export.is_symbolic_dim(size)
    is_long = not is_symbolic and size >= 2**31
    position = np.uint32 if is_long else np.int32
    # 64-bit lengths may be used outside the 64-bit mode in which they were made.
    with bitwise.full_width(lengths.dtype):
        if lengths.dtype.itemsize < 4:
            lengths = lengths.astype(jnp.int32)
        if is_long and lengths.dtype == jnp.int32:
            lengths = jnp.maximum(lengths, 0).astype(jnp.uint32)
        dtype = lengths.dtype
        limit = jnp.asarray(size).astype(dtype) if is_symbolic else dtype.type(size)
        # One operation, since XLA on CPU divides a loop by the number of operations.
        return lax.clamp(dtype.type(0), lengths, limit).astype(position)
