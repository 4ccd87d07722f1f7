"""Binds the primitive of the reversal, also in the training mode.

The training mode has a coefficient in its backward pass:

    y = reverse(x)        dx = coefficient * reverse(dy)

The reversal is its own adjoint, so a coefficient of 1 gives its derivative. The lengths
and the coefficient receive no cotangent.
"""

import functools
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._reverse import primitive
from dml_jax._shared import bitwise, jax_versions
from dml_jax._shared.arguments import Implementation, Size


def bind(
    x: Array,
    lengths: Array,
    axis: int,
    implementation: Implementation | None,
    coefficient: Array | None,
) -> Array:
    """Binds the primitive, in the training mode if there is a coefficient.

    Lengths have the rank of `x`, or that rank without dimensions of size 1 at the end.
    """
    lengths = clamp(lengths, x.shape[axis])
    if coefficient is not None:
        # Makes the lengths mapped and varying wherever the coefficient is.
        lengths = lengths + coefficient.astype(lengths.dtype) * 0

    def reverse(x: Array) -> Array:
        lines = lax.expand_dims(lengths, range(lengths.ndim, x.ndim))
        # Under shard_map the lengths may vary over axes over which the input does not.
        # Without the cast, the cotangent of the input would be summed over too few
        # devices.
        axes = jax_versions.varying_axes(x) | jax_versions.varying_axes(lines)
        x, lines = jax_versions.vary_over(x, axes), jax_versions.vary_over(lines, axes)
        if coefficient is None:
            return primitive.reverse(x, lines, axis, implementation)
        return _reverse_for_training(x, lines, coefficient, axis, implementation)

    return bitwise.by_key_data(reverse, x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _reverse_for_training(
    x: Array,
    lengths: Array,
    coefficient: Array,
    axis: int,
    implementation: Implementation | None,
) -> Array:
    """The reversal; its backward pass multiplies by the scalar `coefficient`.

    Every `vmap` over the coefficient must map the lengths, too. Otherwise the result is
    not mapped, and JAX sums its cotangents before the coefficient multiplies them.
    """
    del coefficient
    return primitive.reverse(x, lengths, axis, implementation)


def _forward(
    x: Array, lengths: Array, coefficient: Array, *options: Any
) -> tuple[Array, tuple[Array, Array]]:
    # Not `reverse`: a backward pass of this one multiplies by the coefficient, too.
    y = _reverse_for_training(x, lengths, coefficient, *options)
    return y, (lengths, coefficient)


def _backward(
    axis: int, implementation: Any, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, None, None]:
    lengths, coefficient = saved
    cotangent = primitive.reverse(cotangent, lengths, axis, implementation)
    wide = np.promote_types(cotangent.dtype, np.float32)
    with bitwise.full_width(cotangent):
        product = coefficient.astype(wide) * cotangent.astype(wide)
        return product.astype(cotangent.dtype), None, None


_reverse_for_training.defvjp(_forward, _backward)


def clamp(lengths: Array, size: Size) -> Array:
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
