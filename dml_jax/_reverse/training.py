"""The training mode: the reversal, with a coefficient in its backward pass only.

`training_p` computes the reversal. Its JVP is `backward_p`, which can be transposed but
not evaluated: forward mode raises an error of this package. The coefficient has the
rank of `x`, and sizes other than 1 only along dimensions over which it is mapped.

A `custom_vjp` would sum the cotangents of mapped lengths and coefficients in a narrow
dtype. In forward mode its error would name no operator.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import ad, batching, mlir

from dml_jax._reverse.primitive import (
    abstract_eval,
    broadcast_dimensions,
    reverse,
    with_leading_batch,
)
from dml_jax._reverse.xla import broadcast_shape
from dml_jax._shared import bitwise, calls
from dml_jax._shared.arguments import Implementation

training_p = jax.extend.core.Primitive("reverse_sequence_training")
backward_p = jax.extend.core.Primitive("reverse_sequence_backward")


def reverse_for_training(
    x: Array,
    lengths: Array,
    coefficient: Array,
    axis: int,
    implementation: Implementation | None,
) -> Array:
    """The reversal; its backward pass multiplies by the scalar `coefficient`."""
    coefficient = lax.broadcast(coefficient, (1,) * x.ndim)
    return training_p.bind(
        x, lengths, coefficient, axis=axis, implementation=implementation
    )


def _abstract_eval(x: Any, lengths: Any, coefficient: Any, *, axis: int, **_: Any):
    aval = abstract_eval(x, lengths, axis=axis)
    return aval.update(shape=broadcast_shape(aval.shape, coefficient.shape, axis))


def _compute(
    x: Array, lengths: Array, coefficient: Any, *, axis: int, **params: Any
) -> Array:
    shape = broadcast_shape(x.shape, coefficient.shape, axis)
    return reverse(jnp.broadcast_to(x, shape), lengths, axis, **params)


def _jvp_of_x(tangent: Any, _: Any, lengths: Any, coefficient: Any, **params: Any):
    return backward_p.bind(tangent, lengths, coefficient, **params)


def _backward_transpose(
    cotangent: Any, x: Any, lengths: Any, coefficient: Any, **params: Any
):
    cotangent = reverse(cotangent, lengths, **params)
    # Two narrow floats may have no common dtype, so each is promoted to float32.
    wide = np.promote_types(cotangent.dtype, np.float32)
    if jnp.issubdtype(coefficient.dtype, jnp.floating):
        wide = np.promote_types(wide, np.promote_types(coefficient.dtype, np.float32))
    broadcast = broadcast_dimensions(x.aval.shape, cotangent.shape)
    with bitwise.full_width(cotangent, coefficient):
        product = coefficient.astype(wide) * cotangent.astype(wide)
        if broadcast:
            product = jnp.sum(product, broadcast, keepdims=True)
        return product.astype(cotangent.dtype), None, None


def _refuse_forward_mode(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "reverse_sequence: `training` must be False for derivatives in forward mode "
        "(jvp, jacfwd, hessian, linearize, jet), unless `lda_coeff` is the number 1; "
        "got True"
    )


def _batch(primitive: Any, operands: Any, dimensions: Any, *, axis: int, **params: Any):
    operands = with_leading_batch(operands, dimensions)
    return primitive.bind(*operands, axis=axis + 1, **params), 0


ad.deflinear2(backward_p, _backward_transpose)
for _primitive in (training_p, backward_p):
    _primitive.def_abstract_eval(_abstract_eval)
    ad.defjvp(_primitive, _jvp_of_x, None, None)
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
training_p.def_impl(calls.compiled(training_p, "axis", "implementation"))
mlir.register_lowering(training_p, mlir.lower_fun(_compute, multiple_results=False))
backward_p.def_impl(_refuse_forward_mode)
mlir.register_lowering(backward_p, _refuse_forward_mode)
