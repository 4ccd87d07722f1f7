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
    lengths = _clamp(lengths, x.shape[axis])
    if coefficient is not None:
        # The lengths are mapped, and vary, where the coefficient does.
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


def _clamp(lengths: jax.Array, size: Size) -> jax.Array:
    """The lengths in [0, size], as int32, or as uint32 if the size is 2^31 or more."""
    # 64-bit lengths may be used outside the 64-bit mode in which they were made.
    with bitwise.full_width(lengths.dtype):
        if lengths.dtype.itemsize < 4:
            lengths = lengths.astype(jnp.int32)
        # One operation, since XLA on CPU divides a loop by the number of operations.
        is_small = not jax.export.is_symbolic_dim(size) and size < 2**31
        if is_small and lengths.dtype == jnp.int32:
            return lax.clamp(np.int32(0), lengths, np.int32(size))
        lengths = jnp.maximum(lengths, 0)
        if lengths.dtype == jnp.int32:
            lengths = lengths.astype(jnp.uint32)
        # Compared as unsigned or 64-bit: a uint32 of 2^31 must not turn negative.
        if jax.export.is_symbolic_dim(size):
            limit, position = jnp.asarray(size).astype(lengths.dtype), jnp.int32
        else:
            limit = lengths.dtype.type(size)
            position = jnp.int32 if size < 2**31 else jnp.uint32
        return jnp.minimum(lengths, limit).astype(position)
