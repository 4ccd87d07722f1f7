"""The training mode: the reversal, with a coefficient in its backward pass only."""

from __future__ import annotations

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from dml_jax._reverse.primitive import (
    abstract_eval,
    broadcast_dimensions,
    reverse,
    with_leading_dimension,
)
from dml_jax._shared import bitwise, calls, taylor


def reverse_for_training(x, lengths, coefficient, axis, implementation):
    """The reversal, with `coefficient` in its backward pass only."""
    coefficient = lax.broadcast(coefficient, (1,) * x.ndim)
    params = dict(axis=axis, implementation=implementation)
    return training_p.bind(x, lengths, coefficient, **params)


# `training_p` is the reversal. Its derivative is `backward_p`, a linear map that has a
# transpose only. The coefficient is broadcast along the dimensions of the others. (A
# `custom_vjp` would add up the cotangents of mapped lengths in a narrow dtype, mix
# those of mapped coefficients, and end forward mode in a message that names no
# operator.)
training_p = jax.extend.core.Primitive("reverse_sequence_training")
backward_p = jax.extend.core.Primitive("reverse_sequence_backward")


def _training_abstract_eval(x, lengths, coefficient, *, axis, implementation):
    aval = abstract_eval(x, lengths, axis=axis, implementation=implementation)
    return aval.update(shape=_with_coefficients(aval.shape, coefficient.shape))


def _training(x, lengths, coefficient, **params):
    shape = _with_coefficients(x.shape, coefficient.shape)
    return reverse(jnp.broadcast_to(x, shape), lengths, **params)


def _with_coefficients(shape, coefficient_shape):
    """The shape, with the dimensions along which coefficients are mapped."""
    sizes = zip(shape, coefficient_shape, strict=True)
    return tuple(size if mapped == 1 else mapped for size, mapped in sizes)


def _jvp_of(primitive, primals, tangents, **params):
    y = primitive.bind(*primals, **params)
    tangent, *_ = tangents  # nothing flows to lengths and coefficients
    if type(tangent) is ad.Zero:
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, backward_p.bind(tangent, *primals[1:], **params)


def _backward_transpose(cotangent, x, lengths, coefficient, **params):
    if type(cotangent) is ad.Zero:
        return ad.Zero(x.aval), None, None
    cotangent = reverse(cotangent, lengths, **params)
    # By way of float32, since two narrow floats need not have a common dtype.
    wide = np.promote_types(cotangent.dtype, np.float32)
    if jnp.issubdtype(coefficient.dtype, jnp.floating):
        wide = np.promote_types(wide, np.promote_types(coefficient.dtype, np.float32))
    broadcast = broadcast_dimensions(x.aval.shape, cotangent.shape)
    with bitwise.full_width(cotangent, coefficient):
        product = coefficient.astype(wide) * cotangent.astype(wide)
        if broadcast:
            product = jnp.sum(product, broadcast, keepdims=True)
        return product.astype(cotangent.dtype), None, None


def _refuse_forward_mode(*_, **__):
    raise TypeError(
        "reverse_sequence: `training` must be False for derivatives in forward mode "
        "(jvp, jacfwd, hessian, linearize, jet), unless `lda_coeff` is the number 1; "
        "got True"
    )


def _training_batch(primitive, operands, dimensions, *, axis, implementation):
    operands = with_leading_dimension(operands, dimensions)
    params = dict(axis=axis + 1, implementation=implementation)
    return primitive.bind(*operands, **params), 0


for _primitive in (training_p, backward_p):
    _primitive.def_abstract_eval(_training_abstract_eval)
    ad.primitive_jvps[_primitive] = functools.partial(_jvp_of, _primitive)
    batching.primitive_batchers[_primitive] = functools.partial(
        _training_batch, _primitive
    )
ad.primitive_transposes[backward_p] = _backward_transpose
training_p.def_impl(
    calls.compiled(
        training_p.name, training_p.bind, _training, "axis", "implementation"
    )
)
backward_p.def_impl(_refuse_forward_mode)
taylor.refuse(training_p, _refuse_forward_mode)
mlir.register_lowering(training_p, mlir.lower_fun(_training, multiple_results=False))
mlir.register_lowering(backward_p, _refuse_forward_mode)
