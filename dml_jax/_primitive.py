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
import jax.export
import jax.extend.core
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType

from dml_jax import _calls, _compat, _jet, _reverse_partitioned
from dml_jax import _reverse_formulations as formulations

reverse_subsequences_p = jax.extend.core.Primitive("reverse_subsequences")


def reverse(x, lengths, axis, implementation):
    x = lax.convert_element_type(x, x.dtype)  # no longer weakly typed
    return reverse_subsequences_p.bind(
        x,
        lengths,
        axis=axis,
        implementation=implementation,
        partitioned=_partitioned(x, lengths, axis, implementation),
    )


def _partitioned(x, lengths, axis, implementation):
    """The reversal as XLA's partitioner takes it, where it may come to that.

    JAX tells a lowering rule of the mesh only if the program has a primitive such as
    `custom_partitioning` in it, hence this parameter.
    """
    if implementation in ("gather", "scatter") or jax.device_count() == 1:
        return None
    meshes = [jax.typeof(operand).sharding.mesh for operand in (x, lengths)]
    is_automatic = all(set(mesh.axis_types) <= {AxisType.Auto} for mesh in meshes)
    is_symbolic = any(map(jax.export.is_symbolic_dim, (*x.shape, *lengths.shape)))
    if not is_automatic or is_symbolic or "int2" in x.dtype.name:
        return None  # XLA does not exchange two bits
    operands = [
        jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in (x, lengths)
    ]
    divided = _reverse_partitioned.partitioned(_reverse_shard, axis, implementation)
    return jax.make_jaxpr(divided)(*operands)


def _reverse_shard(x, lengths, axis, implementation):
    return reverse_subsequences_p.bind(
        x, lengths, axis=axis, implementation=implementation, partitioned=None
    )


def _abstract_eval(x, lengths, *, axis, **params):
    del params
    shape = formulations.broadcast_shape(x.shape, lengths.shape, axis)
    # `update` keeps the sharding and the varying axes, which a new ShapedArray loses.
    return x.update(shape=shape, sharding=_sharding(x, lengths), weak_type=False)


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


def _jvp(primals, tangents, *, axis, implementation, **_):
    x, lengths = primals
    tangent, _ = tangents
    y = reverse(x, lengths, axis, implementation)
    if type(tangent) is ad.Zero:
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, reverse(tangent, lengths, axis, implementation)


def _transpose(cotangent, x, lengths, *, axis, implementation, **_):
    if type(cotangent) is ad.Zero:
        return ad.Zero(x.aval), None
    cotangent = reverse(cotangent, lengths, axis, implementation)
    broadcast = [
        dimension
        for dimension, size in enumerate(x.aval.shape)
        if size != cotangent.shape[dimension]
    ]
    if broadcast:  # or NaNs would be quieted outside of programs
        cotangent = jnp.sum(cotangent, axis=broadcast, keepdims=True)
    return cotangent, None


def _batch(operands, dimensions, *, axis, implementation, **_):
    """One more leading dimension, of size 1 where an operand is not mapped."""
    x, lengths = (
        lax.expand_dims(operand, (0,))
        if dimension is None
        else jnp.moveaxis(operand, dimension, 0)
        for operand, dimension in zip(operands, dimensions, strict=True)
    )
    return reverse(x, lengths, axis + 1, implementation), 0


def _formulation(x, lengths, *, axis, implementation, ways=()):
    """What the primitive means, by the first of the ways that takes the operands."""
    if implementation == "scatter":
        ways = (formulations.scatter,)
    elif any(map(jax.export.is_symbolic_dim, (*x.shape, *lengths.shape))):
        ways = ()
    results = (way(x, lengths, axis) for way in (*ways, formulations.gather))
    return next(y for y in results if y is not None)


def _lowered(x, lengths, *, axis, implementation, ways=(), **_):
    """The formulation; where the shardings are explicit, of each device's shard."""
    sharding = _sharding(jax.typeof(x), jax.typeof(lengths))
    mesh: Any = sharding.mesh
    params: Any = dict(implementation=implementation)
    if not mesh.explicit_axes:
        return _formulation(x, lengths, axis=axis, ways=ways, **params)
    return _reverse_partitioned.reverse_explicitly(
        functools.partial(_reverse_shard, **params), x, lengths, axis, sharding
    )


def _lowering(**ways):
    """The lowering rule of a platform, with its ways for each implementation.

    Where XLA's partitioner is to divide a program without asking us, the gather is what
    it can divide.
    """

    def lower(ctx, x, lengths, *, axis, implementation, partitioned):
        # On TPU, which has no ways, the partitioner does not ask: jax-ml/jax#38196.
        if ways and partitioned is not None and _compat.is_divided(ctx):
            divided = jax.extend.core.jaxpr_as_fun(partitioned)
            return mlir.lower_fun(divided, multiple_results=True)(ctx, x, lengths)
        chosen = ways.get(implementation or "default", ())
        chosen = _compat.available(ctx, chosen, _KERNELS)
        lowered = functools.partial(
            _lowered, axis=axis, implementation=implementation, ways=chosen
        )
        return mlir.lower_fun(lowered, multiple_results=False)(ctx, x, lengths)

    return lower


_reverse_alone = _calls.compiled(
    reverse_subsequences_p.name, reverse, _lowered, "axis", "implementation"
)
# `partitioned` is made anew: a jaxpr equals no other, and would be compiled each time.
reverse_subsequences_p.def_impl(
    lambda *operands, partitioned, **params: _reverse_alone(*operands, **params)
)
reverse_subsequences_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[reverse_subsequences_p] = _jvp
ad.primitive_transposes[reverse_subsequences_p] = _transpose
batching.primitive_batchers[reverse_subsequences_p] = _batch
_jet.define_linear(reverse_subsequences_p, constants=(1,))

_KERNELS = frozenset(
    {formulations.strips, formulations.fused_strips, formulations.runs}
)
_ON_CPU = (formulations.windows, formulations.tiles, formulations.prepared)
_ON_GPU = (formulations.quarters,)
_ALONE_ON_GPU = (formulations.words, formulations.transposed, formulations.quarters)
_WAYS: dict[str | None, dict[str, tuple]] = {
    None: dict(),
    "cpu": dict(default=_ON_CPU, standalone=_ON_CPU),
    "cuda": dict(
        default=(formulations.fused_strips, *_ON_GPU),
        standalone=(formulations.strips, formulations.runs, *_ALONE_ON_GPU),
    ),
    "rocm": dict(default=_ON_GPU, standalone=_ALONE_ON_GPU),
}
for _platform, _ways in _WAYS.items():
    mlir.register_lowering(reverse_subsequences_p, _lowering(**_ways), _platform)
