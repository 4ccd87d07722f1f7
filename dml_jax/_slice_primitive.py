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

from dml_jax import _bits, _calls, _compat, _jet, _partitioning
from dml_jax import _slice_formulations as formulations
from dml_jax import _slice_partitioned as partitioned

take_p = jax.extend.core.Primitive("slice_of_lattice")
put_p = jax.extend.core.Primitive("slice_grad_of_lattice")


def take(x, lattice, standalone):
    return take_p.bind(x, lattice=lattice, standalone=standalone)


def put(x, shape, lattice, standalone):
    return put_p.bind(x, shape=shape, lattice=lattice, standalone=standalone)


# Rules --------------------------------------------------------------------------------


def _take_abstract_eval(x, *, lattice, **_):
    aval, _ = lax.slice_p.abstract_eval(
        x.update(weak_type=False),
        start_indices=lattice.lowest,
        limit_indices=formulations.limits_of(lattice),
        strides=lattice.steps,
    )
    return aval


def _put_abstract_eval(x, *, shape, lattice, **_):
    sharding = NamedSharding(x.sharding.mesh, PartitionSpec())
    zero = x.update(shape=(), sharding=sharding, weak_type=False)
    padding = _padding(shape, lattice)
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
    return (put(cotangent, x.aval.shape, lattice, standalone=False),)


def _put_transpose(cotangent, x, *, lattice, **_):
    if type(cotangent) is ad.Zero:
        return (ad.Zero(x.aval),)
    return (take(cotangent, lattice, standalone=False),)


def _take_batch(operands, dimensions, *, lattice, standalone):
    x = jnp.moveaxis(operands[0], dimensions[0], 0)
    return take(x, _batched(lattice, x.shape[0]), standalone), 0


def _put_batch(operands, dimensions, *, shape, lattice, standalone):
    x = jnp.moveaxis(operands[0], dimensions[0], 0)
    shape, lattice = (x.shape[0], *shape), _batched(lattice, x.shape[0])
    return put(x, shape, lattice, standalone), 0


def _batched(lattice, size):
    """The lattice with one more leading dimension, which is taken whole."""
    return lattice._replace(
        lowest=(0, *lattice.lowest),
        sizes=(size, *lattice.sizes),
        steps=(1, *lattice.steps),
        downwards=tuple(d + 1 for d in lattice.downwards),
    )


# Lowering -----------------------------------------------------------------------------


def _take(x, *, lattice, ways=(), **_):
    def otherwise(bits):
        limits = formulations.limits_of(lattice)
        y = lax.slice(bits, lattice.lowest, limits, lattice.steps)
        return lax.rev(y, lattice.downwards)

    return _moved(
        x, [functools.partial(way, lattice=lattice) for way in ways], otherwise
    )


def _put(x, *, shape, lattice, ways=(), is_whole=False, **_):
    sharding = _put_abstract_eval(jax.typeof(x), shape=shape, lattice=lattice).sharding
    if getattr(sharding.mesh, "explicit_axes", ()):
        x, lattice = _turned(x, lattice)
        put = _put_of_bits(x.dtype)
        return partitioned.put_explicitly(put, x, shape, lattice, sharding)
    if not is_whole and _is_filled(shape, lattice):
        return _turned(x, lattice)[0]
    if not is_whole:
        return put_by_positions(x, shape, lattice)

    def otherwise(bits):
        bits, padding = lax.rev(bits, lattice.downwards), _padding(shape, lattice)
        if _bits.is_narrow_float(x.dtype):
            return _bits.pad_bits(bits, padding)
        return lax.pad(bits, jnp.zeros((), bits.dtype), padding)

    ways = [functools.partial(way, shape=shape, lattice=lattice) for way in ways]
    return _moved(x, ways, otherwise)


def _is_filled(shape, lattice):
    """Whether there is an element for every position."""
    return lattice.sizes == shape and not any(lattice.lowest)


def _turned(x, lattice):
    """`x`, and the lattice, both upwards along all dimensions."""
    bits = lax.rev(_bits.to_bits(x), lattice.downwards)
    return _bits.from_bits(bits, x.dtype), lattice._replace(downwards=())


def _put_of_bits(dtype):
    """`put` for what a device has, by the bits of narrow floats."""

    def put(bits, **params):
        # As floats, of which `pad_bits` knows how to pad them.
        x = _bits.from_bits(bits, dtype)
        return _bits.to_bits(put_p.bind(x, standalone=False, **params))

    return put


def put_by_positions(x, shape, lattice):
    """A gather and a select for every position, which XLA partitions correctly.

    The offsets of the lattice may be traced.
    """

    def put(bits):
        for d, extent in enumerate(shape):
            low, size, step = lattice.lowest[d], lattice.sizes[d], lattice.steps[d]
            if d in lattice.downwards:
                bits = lax.rev(bits, (d,))
            if size == extent:
                continue
            if size == 0:
                return jnp.zeros(shape, bits.dtype)
            bits = _spread(bits, d, extent, low, size, step)
        return bits

    with _bits.full_width(x):
        return _bits.by_integers(put, x)


def _spread(bits, d, extent, low, size, step):
    """`put_by_positions` along one dimension."""
    dtype = _bits.index_dtype(extent)
    with _bits.full_width(dtype, bits):
        position = lax.iota(dtype, extent) - jnp.asarray(low).astype(dtype)
        index = position // step
        is_element = (position >= 0) & (position % step == 0) & (index < size)
        others = [other for other in range(bits.ndim) if other != d]
        elements = jnp.take(bits, index, axis=d, mode="clip")
        zero = jnp.zeros((), bits.dtype)
        return jnp.where(lax.expand_dims(is_element, others), elements, zero)


def _padding(shape, lattice):
    limits = formulations.limits_of(lattice)
    return tuple(
        (low, extent - limit, step - 1)
        for low, extent, limit, step in zip(
            lattice.lowest, shape, limits, lattice.steps, strict=True
        )
    )


def _moved(x, ways, otherwise):
    """`x`, moved by the first of the ways that takes its bits, or else by XLA."""
    bits = _bits.to_integers(x)
    results = (way(bits) for way in ways) if bits is not None else ()
    y = next((y for y in results if y is not None), None)
    if y is None:
        y = otherwise(_bits.to_bits(x))
    return _bits.from_bits(y, x.dtype)


def _lowering(formulation, default=(), standalone=()):
    """The lowering rule of a platform, with its ways inside of programs and alone."""
    ways = {False: default, True: standalone}

    def lower(ctx, x, *, standalone, **params):
        chosen = _compat.available(ctx, ways[standalone], _KERNELS)
        is_whole = _compat.is_whole(ctx)
        lowered = functools.partial(
            formulation, ways=chosen, is_whole=is_whole, **params
        )
        with _bits.full_width(*ctx.avals_in):
            return mlir.lower_fun(lowered, multiple_results=False)(ctx, x)

    return lower


def _divided(lower):
    """The lowering rule of `put` where XLA's partitioner asks how to divide it.

    It does not on TPU (jax-ml/jax#38196), nor along automatic axes of a mesh that has
    explicit ones. XLA does not exchange two bits.
    """

    def put_turned(x, *, shape, lattice):
        x, lattice = _turned(x, lattice)
        return put(x, shape, lattice, standalone=False)

    def lower_divided(ctx, x, *, shape, lattice, standalone):
        is_divided = _compat.is_divided(ctx) and not _compat.is_explicit(ctx)
        params = dict(shape=shape, lattice=lattice)
        is_divided = is_divided and not _is_filled(shape, lattice)
        if not is_divided or "int2" in ctx.avals_in[0].dtype.name:
            return lower(ctx, x, standalone=standalone, **params)
        if lattice.downwards:  # by XLA, which removes what a backward pass undoes
            return mlir.lower_fun(put_turned, multiple_results=False)(ctx, x, **params)
        put_bits = _put_of_bits(ctx.avals_in[0].dtype)
        return _partitioning.divided(
            ctx,
            functools.partial(put_bits, **params),
            functools.partial(partitioned.put_shards, put_bits, **params),
            params,
            x,
        )

    return lower_divided


_KERNELS = frozenset({formulations.runs, formulations.gaps})
_FUSED = (formulations.even_quarters, formulations.quarters)
_ALONE = (formulations.even_quarters, formulations.words, formulations.quarters)
_TAKE_WAYS: dict[str | None, dict[str, tuple]] = {
    None: dict(),
    "cuda": dict(default=_FUSED, standalone=(formulations.runs, *_ALONE)),
    "rocm": dict(default=_FUSED, standalone=_ALONE),
}
_PUT_WAYS: dict[str | None, dict[str, tuple]] = {
    None: dict(),
    "cpu": dict(),
    "cuda": dict(standalone=(formulations.gaps,)),
    "rocm": dict(),
}

take_p.def_impl(
    _calls.compiled(take_p.name, take_p.bind, _take, "lattice", "standalone")
)
put_p.def_impl(
    _calls.compiled(put_p.name, put_p.bind, _put, "shape", "lattice", "standalone")
)

for _primitive, _formulation, _ways, _abstract_eval, _transpose, _batch in (
    (take_p, _take, _TAKE_WAYS, _take_abstract_eval, _take_transpose, _take_batch),
    (put_p, _put, _PUT_WAYS, _put_abstract_eval, _put_transpose, _put_batch),
):
    _primitive.def_abstract_eval(_abstract_eval)
    ad.primitive_jvps[_primitive] = functools.partial(_jvp, _primitive)
    ad.primitive_transposes[_primitive] = _transpose
    batching.primitive_batchers[_primitive] = _batch
    _jet.define_linear(_primitive)
    for _platform, _of_platform in _ways.items():
        _rule = _lowering(_formulation, **_of_platform)
        if _primitive is put_p and _platform is not None:
            _rule = _divided(_rule)
        mlir.register_lowering(_primitive, _rule, _platform)
