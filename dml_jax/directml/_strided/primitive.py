"""Reading and writing the elements of a tensor as JAX primitives.

    take(buffer, layout)           the elements of a flat buffer
    put(elements, buffer, layout)  the buffer with other elements
    add(elements, layout, size)    a buffer of zeros to which the elements are added

Each is linear; `add` is the transpose of `take`, and `take` that of both others. JAX's
own transposes would add up in the dtype of the elements, make arrays in the mode, of 64
bits or not, in which they happen to be called, and use pads, which XLA divides wrongly.
Dimensions before the last one of a buffer, as vmap makes them, are taken whole.
"""

from __future__ import annotations

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax._shared import bitwise, calls, jax_versions, lowering
from dml_jax.directml._strided import xla

take_p = jax.extend.core.Primitive("take_of_layout")
put_p = jax.extend.core.Primitive("put_of_layout")
add_p = jax.extend.core.Primitive("add_of_layout")


def take(buffer, layout):
    return take_p.bind(buffer, layout=layout)


def put(elements, buffer, layout):
    axes = jax_versions.varying_axes(elements) | jax_versions.varying_axes(buffer)
    operands = [jax_versions.vary_over(x, axes) for x in (elements, buffer)]
    return put_p.bind(*operands, layout=layout)


def add(elements, layout, size):
    return add_p.bind(elements, layout=layout, size=size)


# Rules --------------------------------------------------------------------------------


def _with_shape(x, batch, shape):
    """The type of an array with the leading dimensions of `x`, and others."""
    spec = [*x.sharding.spec[:batch], *[None] * len(shape)]
    return x.update(
        shape=(*x.shape[:batch], *shape),
        sharding=NamedSharding(x.sharding.mesh, PartitionSpec(*spec)),
        weak_type=False,
    )


def _take_abstract_eval(buffer, *, layout):
    return _with_shape(buffer, buffer.ndim - 1, layout.sizes)


def _put_abstract_eval(elements, buffer, *, layout):
    del elements, layout
    return _with_shape(buffer, buffer.ndim - 1, buffer.shape[-1:])


def _add_abstract_eval(elements, *, layout, size):
    return _with_shape(elements, elements.ndim - len(layout.sizes), (size,))


def _linear_jvp(primitive, primals, tangents, **params):
    (x,), (tangent,) = primals, tangents
    y = primitive.bind(x, **params)
    if type(tangent) is ad.Zero:
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, primitive.bind(tangent, **params)


def _put_jvp(primals, tangents, *, layout):
    elements, buffer = primals
    y = put(elements, buffer, layout)
    if all(type(tangent) is ad.Zero for tangent in tangents):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    with bitwise.full_width(y):
        of_elements, of_buffer = map(ad.instantiate_zeros, tangents)
    return y, put(of_elements, of_buffer, layout)


def _take_transpose(cotangent, buffer, *, layout):
    if type(cotangent) is ad.Zero:
        return (ad.Zero(buffer.aval),)
    return (_divided_as(buffer, add(cotangent, layout, buffer.aval.shape[-1])),)


def _put_transpose(cotangent, elements, buffer, *, layout):
    operands = (elements, buffer)
    if type(cotangent) is ad.Zero:
        return tuple(
            ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands
        )
    by_elements = by_buffer = None
    if ad.is_undefined_primal(elements):
        by_elements = _divided_as(elements, take(cotangent, layout))
    if ad.is_undefined_primal(buffer):
        shape = (*cotangent.shape[:-1], *layout.sizes)
        with bitwise.full_width(cotangent):
            zeros = jnp.zeros(shape, cotangent.dtype)
        by_buffer = _divided_as(buffer, put(zeros, cotangent, layout))
    return by_elements, by_buffer


def _add_transpose(cotangent, elements, *, layout, size):
    del size
    if type(cotangent) is ad.Zero:
        return (ad.Zero(elements.aval),)
    return (_divided_as(elements, take(cotangent, layout)),)


def _divided_as(operand, cotangent):
    """The cotangent of an operand, which an explicit mesh divides as it does that."""
    sharding = operand.aval.sharding
    if not getattr(sharding.mesh, "explicit_axes", ()):
        return cotangent
    return jax.sharding.reshard(cotangent, sharding)


def _batch(primitive, operands, dimensions, **params):
    """One more leading dimension, along which what is not mapped is repeated."""
    size = next(
        x.shape[d] for x, d in zip(operands, dimensions, strict=True) if d is not None
    )
    with bitwise.full_width(*operands):
        moved = [
            jnp.broadcast_to(x, (size, *x.shape))
            if d is None
            else jnp.moveaxis(x, d, 0)
            for x, d in zip(operands, dimensions, strict=True)
        ]
    bind = put if primitive is put_p else primitive.bind
    return bind(*moved, **params), 0


# Lowering -----------------------------------------------------------------------------


def _over_batch(formulation, *operands, layout, **params):
    """A formulation for flat buffers, over all dimensions before."""
    function = functools.partial(formulation, layout=layout, **params)
    rank = 1 if formulation in _OF_BUFFERS else len(layout.sizes)
    for _ in range(operands[0].ndim - rank):
        function = jax.vmap(function)
    return function(*operands)


_OF_BUFFERS = (xla.take, xla.take_divided)


def _lowering(whole, divided):
    """The lowering rule of a primitive, for one device and for many."""

    def lower(ctx, *operands, **params):
        formulation = whole if lowering.sees_full_arrays(ctx) else divided
        lowered = functools.partial(_over_batch, formulation, **params)
        ctx, mesh = lowering.without_explicit_axes(ctx)
        with bitwise.full_width(*ctx.avals_in), jax.sharding.use_abstract_mesh(mesh):
            return mlir.lower_fun(lowered, multiple_results=False)(ctx, *operands)

    return lower


for _primitive, _abstract_eval, _transpose, _ways in (
    (
        take_p,
        _take_abstract_eval,
        _take_transpose,
        (xla.take, xla.take_divided),
    ),
    (
        put_p,
        _put_abstract_eval,
        _put_transpose,
        (xla.put, xla.put_divided),
    ),
    (
        add_p,
        _add_abstract_eval,
        _add_transpose,
        (xla.add, xla.add_divided),
    ),
):
    _options = ("layout", "size") if _primitive is add_p else ("layout",)
    _formulation = functools.partial(_over_batch, _ways[0])
    _primitive.def_impl(
        calls.compiled(_primitive.name, _primitive.bind, _formulation, *_options)
    )
    _primitive.def_abstract_eval(_abstract_eval)
    ad.primitive_jvps[_primitive] = functools.partial(_linear_jvp, _primitive)
    ad.primitive_transposes[_primitive] = _transpose
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
    mlir.register_lowering(_primitive, _lowering(*_ways))

ad.primitive_jvps[put_p] = _put_jvp
