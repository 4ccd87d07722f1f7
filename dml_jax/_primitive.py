"""The reversal as a JAX primitive, with its derivative, batching and lowering rules.

    reverse(x, lengths, axis, implementation)

takes operands of one rank, which broadcast against each other along every dimension but
the axis; the lengths are of size 1 there and lie in [0, axis size].

The map is linear in x, an involution, and its own adjoint. Left to itself JAX would
transpose the gather into a scatter, several times slower than the forward pass; as a
primitive whose tangent and cotangent are the primitive again, every derivative of every
order costs one gather. A `custom_vjp` would lose forward mode, a `custom_jvp` bring the
scatter back, and `linear_call` has no batching rule.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from dml_jax import _bits

reverse_subsequences_p = jax.extend.core.Primitive("reverse_subsequences")


def reverse(x, lengths, axis, implementation):
    return reverse_subsequences_p.bind(
        x, lengths, axis=axis, implementation=implementation
    )


def _abstract_eval(x, lengths, *, axis, implementation):
    del implementation
    shape = _broadcast_shape(x.shape, lengths.shape, axis)
    # `update` keeps the sharding and the varying axes, which a new ShapedArray loses.
    return x.update(shape=shape, sharding=_sharding(x, lengths), weak_type=False)


def _broadcast_shape(shape, lengths_shape, axis):
    return tuple(
        size if dimension == axis or length_size == 1 else length_size
        for dimension, (size, length_size) in enumerate(
            zip(shape, lengths_shape, strict=True)
        )
    )


def _sharding(x, lengths):
    """The sharding of the input, and of the lengths where only they have a size."""
    mesh = lengths.sharding.mesh if x.sharding.mesh.empty else x.sharding.mesh
    spec = [
        of_lengths if size != length_size and length_size != 1 else of_x
        for size, length_size, of_x, of_lengths in zip(
            x.shape,
            lengths.shape,
            x.sharding.spec,
            lengths.sharding.spec,
            strict=True,
        )
    ]
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def _jvp(primals, tangents, *, axis, implementation):
    x, lengths = primals
    tangent, _ = tangents
    y = reverse(x, lengths, axis, implementation)
    if type(tangent) is ad.Zero:
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, reverse(tangent, lengths, axis, implementation)


def _transpose(cotangent, x, lengths, *, axis, implementation):
    if type(cotangent) is ad.Zero:
        return ad.Zero(x.aval), None
    cotangent = reverse(cotangent, lengths, axis, implementation)
    broadcast = [
        dimension
        for dimension, size in enumerate(x.aval.shape)
        if size != cotangent.shape[dimension]
    ]
    return jnp.sum(cotangent, axis=broadcast, keepdims=True), None


def _batch(operands, dimensions, *, axis, implementation):
    """One more leading dimension, of size 1 where an operand is not mapped."""
    x, lengths = (
        lax.expand_dims(operand, (0,))
        if dimension is None
        else jnp.moveaxis(operand, dimension, 0)
        for operand, dimension in zip(operands, dimensions, strict=True)
    )
    return reverse(x, lengths, axis + 1, implementation), 0


def _formulation(x, lengths, *, axis, implementation):
    """What the primitive means, on every platform."""
    bits = _bits.to_bits(x)
    move = _scatter if implementation == "scatter" else _gather
    return _bits.from_bits(move(bits, _source(x.shape, lengths, axis), axis), x.dtype)


def _lowered(x, lengths, **params):
    """The formulation, left to XLA's partitioner where the sharding is explicit."""
    sharding = _sharding(jax.typeof(x), jax.typeof(lengths))
    mesh: Any = sharding.mesh
    formulation: Any = functools.partial(_formulation, **params)
    if not mesh.explicit_axes:
        return formulation(x, lengths)
    # Not of all axes: a shard_map may have made some of them manual.
    with jax.sharding.use_abstract_mesh(mesh):
        formulation = jax.sharding.auto_axes(
            formulation, axes=mesh.explicit_axes, out_sharding=sharding
        )
        return formulation(x, lengths)


def _source(shape, lengths, axis):
    """Where along the axis each element comes from; by involution, also where it goes.

    Of size 1 wherever the lengths are, so that XLA moves whole blocks.
    """
    index_shape = (*lengths.shape[:axis], shape[axis], *lengths.shape[axis + 1 :])
    position = lax.broadcasted_iota(lengths.dtype, index_shape, axis)
    return jnp.where(position < lengths, lengths - 1 - position, position)


def _gather(x, source, axis):
    return jnp.take_along_axis(x, source, axis, mode="promise_in_bounds")


def _scatter(x, target, axis):
    x = jnp.broadcast_to(x, _broadcast_shape(x.shape, target.shape, axis))
    mapped = [d for d in range(x.ndim) if d != axis and target.shape[d] != 1]
    before = sum(d not in mapped for d in range(axis))

    def place(x, target):
        where = (*[slice(None)] * before, target.reshape(-1))
        return (
            jnp.zeros_like(x)
            .at[where]
            .set(x, mode="promise_in_bounds", unique_indices=True)
        )

    # Mapped dimensions become batching dimensions of the scatter, which XLA can shard.
    for dimension in mapped:  # the last one is mapped first, outermost
        place = jax.vmap(place, dimension, dimension)
    return place(x, target)


reverse_subsequences_p.def_impl(_lowered)
reverse_subsequences_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[reverse_subsequences_p] = _jvp
ad.primitive_transposes[reverse_subsequences_p] = _transpose
batching.primitive_batchers[reverse_subsequences_p] = _batch
mlir.register_lowering(
    reverse_subsequences_p, mlir.lower_fun(_lowered, multiple_results=False)
)
