"""The training mode: the reversal, with a coefficient in its backward pass.

    y = reverse(x)        dx = coefficient * reverse(dy)

The reversal is its own adjoint, so a coefficient of 1 gives its derivative. The lengths
and the coefficient receive no cotangent.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import Array

from dml_jax._reverse.primitive import reverse
from dml_jax._shared import bitwise
from dml_jax._shared.arguments import Implementation


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def reverse_for_training(
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
    return reverse(x, lengths, axis, implementation)


def _forward(
    x: Array, lengths: Array, coefficient: Array, *options: Any
) -> tuple[Array, tuple[Array, Array]]:
    # Not `reverse`: a backward pass of this one multiplies by the coefficient, too.
    y = reverse_for_training(x, lengths, coefficient, *options)
    return y, (lengths, coefficient)


def _backward(
    axis: int, implementation: Any, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, None, None]:
    lengths, coefficient = saved
    cotangent = reverse(cotangent, lengths, axis, implementation)
    wide = np.promote_types(cotangent.dtype, np.float32)
    with bitwise.full_width(cotangent):
        product = coefficient.astype(wide) * cotangent.astype(wide)
        return product.astype(cotangent.dtype), None, None


reverse_for_training.defvjp(_forward, _backward)
