"""Binds the primitive of the reversal, whatever the form of the lengths."""

from __future__ import annotations

import jax
from jax import lax

from dml_jax._reverse import line_lengths, primitive
from dml_jax._reverse.training import reverse_for_training
from dml_jax._shared import bitwise, jax_versions
from dml_jax._shared.arguments import Implementation


def bind(
    x: jax.Array,
    lengths: jax.Array,
    coefficient: jax.Array | None,
    axis: int,
    implementation: Implementation | None,
) -> jax.Array:
    """Binds the primitive, or that of the training mode if there is a coefficient.

    Lengths have the rank of `x`, or that rank without dimensions of size 1 at the end.
    """
    lengths = line_lengths.clamp(lengths, x.shape[axis])

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
