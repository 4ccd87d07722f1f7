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
from jax import lax
from jax.interpreters import ad, batching, mlir

from dml_jax._reverse import cpu, gpu, partitioning, xla
from dml_jax._shared import bitwise, calls, lowering, partitioner, taylor

reverse_subsequences_p = jax.extend.core.Primitive("reverse_subsequences")


def reverse(x, lengths, axis, implementation):
    return reverse_subsequences_p.bind(
        x, lengths, axis=axis, implementation=implementation
    )


def abstract_eval(x, lengths, *, axis, **params):
    del params
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
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
    broadcast = broadcast_dimensions(x.aval.shape, cotangent.shape)
    # A sum over nothing would quiet NaNs outside of programs.
    if broadcast:
        cotangent = bitwise.sum_wide(cotangent, broadcast, keepdims=True)
    return cotangent, None


def broadcast_dimensions(shape, result_shape):
    sizes = zip(shape, result_shape, strict=True)
    return tuple(
        d for d, (size, result_size) in enumerate(sizes) if size != result_size
    )


def _batch(operands, dimensions, *, axis, implementation):
    x, lengths = with_leading_dimension(operands, dimensions)
    return reverse(x, lengths, axis + 1, implementation), 0


def with_leading_dimension(operands, dimensions):
    """Operands with the dimension that is mapped: of size 1 where they have none."""
    return [
        lax.expand_dims(operand, (0,))
        if dimension is None
        else jnp.moveaxis(operand, dimension, 0)
        for operand, dimension in zip(operands, dimensions, strict=True)
    ]


# Lowering -----------------------------------------------------------------------------


def _formulation(
    x, lengths, *, axis, implementation, formulations=(), sees_full_arrays=False
):
    """What the primitive means, by the first of the ways that takes the operands."""
    if any(map(jax.export.is_symbolic_dim, (*x.shape, *lengths.shape))):
        formulations = ()
    results = (formulation(x, lengths, axis) for formulation in formulations)
    y = next((y for y in results if y is not None), None)
    if y is not None:
        return y
    if not sees_full_arrays:
        # XLA partitions a gather without several times its memory, unlike a scatter.
        return bitwise.by_integers(lambda bits: xla.gather(bits, lengths, axis), x)
    plain = xla.scatter if implementation == "scatter" else xla.gather
    return plain(x, lengths, axis)


def _lowered(x, lengths, *, axis, implementation, **options):
    """The formulation; where the shardings are explicit, of each device's shard."""
    sharding = _sharding(jax.typeof(x), jax.typeof(lengths))
    mesh: Any = sharding.mesh
    params: Any = dict(implementation=implementation)
    if not mesh.explicit_axes:
        return _formulation(x, lengths, axis=axis, **params, **options)
    return partitioning.reverse_explicitly(
        functools.partial(reverse, **params), x, lengths, axis, sharding
    )


def _lowering(**formulations):
    """The lowering rule of a platform, with its ways for each implementation."""

    def lower(ctx, x, lengths, *, axis, implementation):
        params = dict(axis=axis, implementation=implementation)
        if formulations and _is_divided_here(ctx, implementation):
            whole = functools.partial(reverse_subsequences_p.bind, **params)
            return partitioner.lower_partitioned(
                ctx, whole, _of_shards(**params), params, x, lengths
            )
        chosen = formulations.get(implementation or "default", ())
        chosen = lowering.available(ctx, chosen, _KERNELS)
        lowered = functools.partial(
            _lowered,
            formulations=chosen,
            sees_full_arrays=lowering.sees_full_arrays(ctx),
            **params,
        )
        with bitwise.full_width(*ctx.avals_in):
            return mlir.lower_fun(lowered, multiple_results=False)(ctx, x, lengths)

    return lower


def _is_divided_here(ctx, implementation):
    """Whether XLA's partitioner asks this package how to divide the reversal.

    It does not on TPU (jax-ml/jax#38196), nor along automatic axes of a mesh that has
    explicit ones. The gather is left to it.
    """
    return (
        implementation != "gather"
        and lowering.is_spmd_partitioned(ctx)
        and not lowering.has_explicit_shardings(ctx)
        and "int2" not in ctx.avals_in[0].dtype.name  # XLA does not exchange two bits
    )


def _of_shards(axis, implementation):
    def of_shards(x, lengths, mesh, spec):
        whole_lines = functools.partial(reverse, implementation=implementation)
        return partitioning.reverse_shards(whole_lines, x, lengths, axis, mesh, spec)

    return of_shards


reverse_subsequences_p.def_impl(
    calls.compiled(
        reverse_subsequences_p.name, reverse, _lowered, "axis", "implementation"
    )
)
reverse_subsequences_p.def_abstract_eval(abstract_eval)
ad.primitive_jvps[reverse_subsequences_p] = _jvp
ad.primitive_transposes[reverse_subsequences_p] = _transpose
batching.primitive_batchers[reverse_subsequences_p] = _batch
taylor.define_linear(reverse_subsequences_p, constants=(1,))

_KERNELS = frozenset(
    {gpu.shared_memory_tiles, gpu.fused_shared_memory_tiles, gpu.packed_copy}
)
_ON_CPU = (cpu.reversed_windows, cpu.cache_blocked, cpu.preclamped)
_ON_GPU = (gpu.split_stores,)
_ALONE_ON_GPU = (gpu.packed_u32, gpu.transposed, gpu.split_stores)
_FORMULATIONS: dict[str | None, dict[str, tuple]] = {
    None: dict(),
    "cpu": dict(default=_ON_CPU, standalone=_ON_CPU),
    "cuda": dict(
        default=(gpu.fused_shared_memory_tiles, *_ON_GPU),
        standalone=(gpu.shared_memory_tiles, gpu.packed_copy, *_ALONE_ON_GPU),
    ),
    "rocm": dict(default=_ON_GPU, standalone=_ALONE_ON_GPU),
}
for _platform, _formulations in _FORMULATIONS.items():
    mlir.register_lowering(
        reverse_subsequences_p, _lowering(**_formulations), _platform
    )
