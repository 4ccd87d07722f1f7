"""The reversals behind the door: what is traced and compiled.

Lengths are clamped to what the primitive takes, the training mode scales its gradient,
and `checked` is told of lengths outside of their axis.
"""

from __future__ import annotations

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from dml_jax._shared import bitwise, jax_versions, value_checks


def reverse_subsequences(x, lengths, *, axis, implementation):
    with jax.named_scope("reverse_subsequences"):
        value_checks.check_lengths(
            "reverse_subsequences", "sequence_lengths", lengths, x.shape[axis]
        )
        return _with_operands(_reverse_plainly, x, lengths, axis, implementation)


def reverse_sequence(x, lengths, coefficient, node):
    with jax.named_scope(node.name or "reverse_sequence"):
        value_checks.check_lengths(
            "reverse_sequence", "sequence_lens", lengths, x.shape[node.time_axis]
        )
        lengths = lax.expand_dims(
            lengths, [d for d in range(x.ndim) if d != node.batch_axis]
        )
        if node.training and jnp.issubdtype(x.dtype, jnp.inexact):
            coefficient = _as_array(coefficient)
            x = jax_versions.vary_over(x, jax_versions.varying_axes(coefficient))
            operator = functools.partial(_reverse_for_training, coefficient)
        else:
            operator = _reverse_plainly
        y = _with_operands(operator, x, lengths, node.time_axis, node.implementation)
        return y if node.output_name is None else checkpoint_name(y, node.output_name)


def _with_operands(operator, x, lengths, axis, implementation):
    """Calls `operator` on what the primitive takes."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(x)
        lengths = lax.expand_dims(lengths, range(x.ndim, data.ndim))
        y = _with_operands(operator, data, lengths, axis, implementation)
        return jax.random.wrap_key_data(y, impl=jax.random.key_impl(x))
    lengths = _clamp(lengths, x.shape[axis])
    # Under shard_map the lengths may vary where the input does not: without the cast
    # the cotangent of the input would be summed over too few devices.
    axes = jax_versions.varying_axes(x) | jax_versions.varying_axes(lengths)
    x, lengths = jax_versions.vary_over(x, axes), jax_versions.vary_over(lengths, axes)
    return operator(x, lengths, axis, implementation)


def _clamp(lengths, size):
    """`lengths` in [0, size], in the dtype that positions along the axis have."""
    # A 64-bit array may be used outside of the 64-bit mode in which it was made.
    with bitwise.full_width(lengths.dtype):
        return _clamp_in_mode(_without_series(lengths), size)


def _without_series(lengths):
    """`lengths`, of which Taylor mode knows that they have no derivatives.

    It gives series to all arguments of a jitted function, and fails where the maximum
    of integers has one. Compilers drop the operation.
    """
    return lax.bitwise_or(lengths, lengths)


def _clamp_in_mode(lengths, size):
    if lengths.dtype.itemsize < 4:
        lengths = lengths.astype(jnp.int32)
    lengths = jnp.maximum(lengths, 0)
    if lengths.dtype == jnp.int32:
        lengths = lengths.astype(jnp.uint32)
    # Compared while still unsigned or 64-bit: a uint32 of 2^31 must not turn negative.
    if jax.export.is_symbolic_dim(size):
        limit, position = jnp.asarray(size).astype(lengths.dtype), jnp.int32
    else:
        limit = lengths.dtype.type(size)
        position = jnp.int32 if size < 2**31 else jnp.uint32
    return jnp.minimum(lengths, limit).astype(position)


def _reverse_plainly(*operands):
    # With `jax.extend` comes pallas, slower to import than all of this package.
    from dml_jax._reverse.primitive import reverse

    return reverse(*operands)


def _reverse_for_training(coefficient, *operands):
    from dml_jax._reverse.training import reverse_for_training

    x, lengths, *options = operands
    return reverse_for_training(x, lengths, coefficient, *options)


def _as_array(coefficient):
    """The coefficient, which JAX makes a number where jit is off."""
    dtype = getattr(coefficient, "dtype", np.dtype(np.float32))
    with bitwise.full_width(dtype):
        return jnp.asarray(coefficient)
