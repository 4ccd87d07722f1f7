"""The reversal as a JAX primitive, with its derivative, batching and lowering rules.

    reverse(x, lengths, axis, implementation)

takes operands of one rank, which broadcast against each other along every dimension but
the axis; the lengths are of size 1 there and lie in [0, axis size].

The map is linear in x, an involution, and its own adjoint. JAX's own
transpose of the gather is a scatter, several times slower than the forward pass; as a
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
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from dml_jax import _bits, _calls, _compat, _jet, _partitioning, _reverse_partitioned
from dml_jax import _reverse_formulations as formulations

reverse_subsequences_p = jax.extend.core.Primitive("reverse_subsequences")


def reverse(x, lengths, axis, implementation):
    return reverse_subsequences_p.bind(
        x, lengths, axis=axis, implementation=implementation
    )


def _abstract_eval(x, lengths, *, axis, **params):
    del params
    shape = formulations.broadcast_shape(x.shape, lengths.shape, axis)
    # `update` keeps the varying manual axes, which a new ShapedArray would lose.
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
    broadcast = _broadcast_dimensions(x.aval.shape, cotangent.shape)
    # A sum over nothing would quiet NaNs outside of programs.
    if broadcast:
        cotangent = _bits.sum_wide(cotangent, broadcast, keepdims=True)
    return cotangent, None


def _broadcast_dimensions(shape, result_shape):
    sizes = zip(shape, result_shape, strict=True)
    return tuple(
        d for d, (size, result_size) in enumerate(sizes) if size != result_size
    )


def _batch(operands, dimensions, *, axis, implementation):
    x, lengths = _with_leading_dimension(operands, dimensions)
    return reverse(x, lengths, axis + 1, implementation), 0


def _with_leading_dimension(operands, dimensions):
    """Operands with the dimension that is mapped: of size 1 where they have none."""
    return [
        lax.expand_dims(operand, (0,))
        if dimension is None
        else jnp.moveaxis(operand, dimension, 0)
        for operand, dimension in zip(operands, dimensions, strict=True)
    ]


# Training mode ------------------------------------------------------------------------


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
    aval = _abstract_eval(x, lengths, axis=axis, implementation=implementation)
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
    broadcast = _broadcast_dimensions(x.aval.shape, cotangent.shape)
    with _bits.full_width(cotangent, coefficient):
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
    operands = _with_leading_dimension(operands, dimensions)
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
    _calls.compiled(
        training_p.name, training_p.bind, _training, "axis", "implementation"
    )
)
backward_p.def_impl(_refuse_forward_mode)
_jet.refuse(training_p, _refuse_forward_mode)
mlir.register_lowering(training_p, mlir.lower_fun(_training, multiple_results=False))
mlir.register_lowering(backward_p, _refuse_forward_mode)


# Lowering -----------------------------------------------------------------------------


def _formulation(x, lengths, *, axis, implementation, ways=(), is_whole=False):
    """What the primitive means, by the first of the ways that takes the operands."""
    if any(map(jax.export.is_symbolic_dim, (*x.shape, *lengths.shape))):
        ways = ()
    results = (way(x, lengths, axis) for way in ways)
    y = next((y for y in results if y is not None), None)
    if y is not None:
        return y
    if not is_whole:  # XLA can partition a gather without several times its memory
        return _bits.by_integers(
            lambda bits: formulations.gather(bits, lengths, axis), x
        )
    plain = formulations.scatter if implementation == "scatter" else formulations.gather
    return plain(x, lengths, axis)


def _lowered(x, lengths, *, axis, implementation, **options):
    """The formulation; where the shardings are explicit, of each device's shard."""
    sharding = _sharding(jax.typeof(x), jax.typeof(lengths))
    mesh: Any = sharding.mesh
    params: Any = dict(implementation=implementation)
    if not mesh.explicit_axes:
        return _formulation(x, lengths, axis=axis, **params, **options)
    return _reverse_partitioned.reverse_explicitly(
        functools.partial(reverse, **params), x, lengths, axis, sharding
    )


def _lowering(**ways):
    """The lowering rule of a platform, with its ways for each implementation."""

    def lower(ctx, x, lengths, *, axis, implementation):
        params = dict(axis=axis, implementation=implementation)
        if ways and _is_divided_here(ctx, implementation):
            whole = functools.partial(reverse_subsequences_p.bind, **params)
            return _partitioning.divided(
                ctx, whole, _of_shards(**params), params, x, lengths
            )
        chosen = ways.get(implementation or "default", ())
        chosen = _compat.available(ctx, chosen, _KERNELS)
        lowered = functools.partial(
            _lowered, ways=chosen, is_whole=_compat.is_whole(ctx), **params
        )
        with _bits.full_width(*ctx.avals_in):
            return mlir.lower_fun(lowered, multiple_results=False)(ctx, x, lengths)

    return lower


def _is_divided_here(ctx, implementation):
    """Whether XLA's partitioner asks this package how to divide the reversal.

    It does not on TPU (jax-ml/jax#38196), nor along automatic axes of a mesh that has
    explicit ones. The gather is left to it.
    """
    return (
        implementation != "gather"
        and _compat.is_divided(ctx)
        and not _compat.is_explicit(ctx)
        and "int2" not in ctx.avals_in[0].dtype.name  # XLA does not exchange two bits
    )


def _of_shards(axis, implementation):
    def of_shards(x, lengths, mesh, spec):
        whole_lines = functools.partial(reverse, implementation=implementation)
        return _reverse_partitioned.reverse_shards(
            whole_lines, x, lengths, axis, mesh, spec
        )

    return of_shards


reverse_subsequences_p.def_impl(
    _calls.compiled(
        reverse_subsequences_p.name, reverse, _lowered, "axis", "implementation"
    )
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
