"""The slice and its adjoint as JAX primitives.

    take(x, lattice, standalone)        `lax.slice`, and `lax.rev`
    put(x, shape, lattice, standalone)  its adjoint: `lax.pad` with zeros between

Each is the transpose of the other, and derivatives are taken of the primitives: the
formulations have slow transposes, such as sums of four arrays, or none. `standalone`
says whether the operator is the whole program, by which a GPU chooses a formulation.
"""

from __future__ import annotations

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax._shared import bitwise, calls, lowering, partitioner, taylor
from dml_jax._slice import gpu, partitioning, xla

take_p = jax.extend.core.Primitive("strided_slice")
put_p = jax.extend.core.Primitive("strided_slice_transpose")


def strided_slice(x, lattice, standalone):
    return take_p.bind(x, lattice=lattice, standalone=standalone)


def strided_slice_transpose(x, shape, lattice, standalone):
    return put_p.bind(x, shape=shape, lattice=lattice, standalone=standalone)


# Rules --------------------------------------------------------------------------------


def _take_abstract_eval(x, *, lattice, **_):
    aval, _ = lax.slice_p.abstract_eval(
        x.update(weak_type=False),
        start_indices=lattice.starts,
        limit_indices=lattice.limits,
        strides=lattice.strides,
    )
    return aval


def _put_abstract_eval(x, *, shape, lattice, **_):
    sharding = NamedSharding(x.sharding.mesh, PartitionSpec())
    zero = x.update(shape=(), sharding=sharding, weak_type=False)
    padding = lattice.padding(shape)
    aval, _ = lax.pad_p.abstract_eval(
        x.update(weak_type=False), zero, padding_config=padding
    )
    return aval


def _jvp(primitive, primals, tangents, **params):
    (x,), (tangent,) = primals, tangents
    y = primitive.bind(x, **params)
    if type(tangent) is ad.Zero:
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, primitive.bind(tangent, **params)


def _take_transpose(cotangent, x, *, lattice, **_):
    if type(cotangent) is ad.Zero:
        return (ad.Zero(x.aval),)
    return (
        strided_slice_transpose(cotangent, x.aval.shape, lattice, standalone=False),
    )


def _put_transpose(cotangent, x, *, lattice, **_):
    if type(cotangent) is ad.Zero:
        return (ad.Zero(x.aval),)
    return (strided_slice(cotangent, lattice, standalone=False),)


def _take_batch(operands, dimensions, *, lattice, standalone):
    x = jnp.moveaxis(operands[0], dimensions[0], 0)
    return strided_slice(x, lattice.batched(x.shape[0]), standalone), 0


def _put_batch(operands, dimensions, *, shape, lattice, standalone):
    x = jnp.moveaxis(operands[0], dimensions[0], 0)
    shape, lattice = (x.shape[0], *shape), lattice.batched(x.shape[0])
    return strided_slice_transpose(x, shape, lattice, standalone), 0


# Lowering -----------------------------------------------------------------------------


def _take(x, *, lattice, formulations=(), **_):
    formulations = [functools.partial(way, lattice=lattice) for way in formulations]
    return _moved(x, formulations, functools.partial(xla.take, lattice=lattice))


def _put(x, *, shape, lattice, formulations=(), sees_full_arrays=False, **_):
    sharding = _put_abstract_eval(jax.typeof(x), shape=shape, lattice=lattice).sharding
    if getattr(sharding.mesh, "explicit_axes", ()):
        x, lattice = _turned(x, lattice)
        put = _put_of_bits(x.dtype)
        return partitioning.put_explicitly(put, x, shape, lattice, sharding)
    if not sees_full_arrays and lattice.fills(shape):
        return _turned(x, lattice)[0]
    if not sees_full_arrays:
        return xla.put_by_positions(x, shape, lattice)
    formulations = [
        functools.partial(way, shape=shape, lattice=lattice) for way in formulations
    ]
    return _moved(
        x, formulations, functools.partial(xla.put, shape=shape, lattice=lattice)
    )


def _turned(x, lattice):
    """`x`, and the lattice, both upwards along all dimensions."""
    bits = lax.rev(bitwise.to_bits(x), lattice.reversed_dims)
    return bitwise.from_bits(bits, x.dtype), lattice._replace(reversed_dims=())


def _put_of_bits(dtype):
    """`put` for what a device has, by the bits of narrow floats."""

    def put(bits, **params):
        # As floats, of which `pad_bits` knows how to pad them.
        x = bitwise.from_bits(bits, dtype)
        return bitwise.to_bits(put_p.bind(x, standalone=False, **params))

    return put


def _moved(x, formulations, otherwise):
    """`x`, moved by the first of the ways that takes its bits, or else by XLA."""
    bits = bitwise.to_integers(x)
    results = (way(bits) for way in formulations) if bits is not None else ()
    y = next((y for y in results if y is not None), None)
    return otherwise(x) if y is None else bitwise.from_bits(y, x.dtype)


def _lowering(formulation, default=(), standalone=()):
    """The lowering rule of a platform, with its ways inside of programs and alone."""
    formulations = {False: default, True: standalone}

    def lower(ctx, x, *, standalone, **params):
        chosen = lowering.available(ctx, formulations[standalone], _KERNELS)
        sees_full_arrays = lowering.sees_full_arrays(ctx)
        lowered = functools.partial(
            formulation,
            formulations=chosen,
            sees_full_arrays=sees_full_arrays,
            **params,
        )
        with bitwise.full_width(*ctx.avals_in):
            return mlir.lower_fun(lowered, multiple_results=False)(ctx, x)

    return lower


def _divided(lower):
    """The lowering rule of `put` where XLA's partitioner asks how to divide it.

    It does not on TPU (jax-ml/jax#38196), nor along automatic axes of a mesh that has
    explicit ones. XLA does not exchange two bits.
    """

    def put_turned(x, *, shape, lattice):
        x, lattice = _turned(x, lattice)
        return strided_slice_transpose(x, shape, lattice, standalone=False)

    def lower_divided(ctx, x, *, shape, lattice, standalone):
        is_spmd_partitioned = lowering.is_spmd_partitioned(
            ctx
        ) and not lowering.has_explicit_shardings(ctx)
        params = dict(shape=shape, lattice=lattice)
        is_spmd_partitioned = is_spmd_partitioned and not lattice.fills(shape)
        if not is_spmd_partitioned or "int2" in ctx.avals_in[0].dtype.name:
            return lower(ctx, x, standalone=standalone, **params)
        if lattice.reversed_dims:  # by XLA, which removes what a backward pass undoes
            return mlir.lower_fun(put_turned, multiple_results=False)(ctx, x, **params)
        put_bits = _put_of_bits(ctx.avals_in[0].dtype)
        return partitioner.lower_partitioned(
            ctx,
            functools.partial(put_bits, **params),
            functools.partial(partitioning.put_shards, put_bits, **params),
            params,
            x,
        )

    return lower_divided


_KERNELS = frozenset({gpu.packed_copy, gpu.packed_copy_with_zeros})
_FUSED = (gpu.even_split_stores, gpu.split_stores)
_ALONE = (gpu.even_split_stores, gpu.packed_u32, gpu.split_stores)
_TAKE_FORMULATIONS: dict[str | None, dict[str, tuple]] = {
    None: dict(),
    "cuda": dict(default=_FUSED, standalone=(gpu.packed_copy, *_ALONE)),
    "rocm": dict(default=_FUSED, standalone=_ALONE),
}
_PUT_FORMULATIONS: dict[str | None, dict[str, tuple]] = {
    None: dict(),
    "cpu": dict(),
    "cuda": dict(standalone=(gpu.packed_copy_with_zeros,)),
    "rocm": dict(),
}

take_p.def_impl(
    calls.compiled(take_p.name, take_p.bind, _take, "lattice", "standalone")
)
put_p.def_impl(
    calls.compiled(put_p.name, put_p.bind, _put, "shape", "lattice", "standalone")
)

for _primitive, _formulation, _formulations, _abstract_eval, _transpose, _batch in (
    (
        take_p,
        _take,
        _TAKE_FORMULATIONS,
        _take_abstract_eval,
        _take_transpose,
        _take_batch,
    ),
    (put_p, _put, _PUT_FORMULATIONS, _put_abstract_eval, _put_transpose, _put_batch),
):
    _primitive.def_abstract_eval(_abstract_eval)
    ad.primitive_jvps[_primitive] = functools.partial(_jvp, _primitive)
    ad.primitive_transposes[_primitive] = _transpose
    batching.primitive_batchers[_primitive] = _batch
    taylor.define_linear(_primitive)
    for _platform, _of_platform in _formulations.items():
        _rule = _lowering(_formulation, **_of_platform)
        if _primitive is put_p and _platform is not None:
            _rule = _divided(_rule)
        mlir.register_lowering(_primitive, _rule, _platform)
