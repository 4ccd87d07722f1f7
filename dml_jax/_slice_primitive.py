"""The slice as a JAX primitive: `lax.slice`, but for how a GPU computes it.

    take(x, lattice, standalone)

Its derivatives are those of `lax.slice`: the slice of the tangent, and the pad of the
cotangent. They are taken of the primitive and not of the formulations, whose transposes
would add up four arrays, or have none.
"""

from __future__ import annotations

import jax
import jax.extend.core
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from dml_jax import _bits, _compat
from dml_jax._slice_formulations import even_quarters, limits_of, quarters, words

slice_p = jax.extend.core.Primitive("slice_of_lattice")


def take(x, lattice, standalone):
    return slice_p.bind(x, lattice=lattice, standalone=standalone)


def put(x, shape, lattice):
    """The adjoint: the elements where they are taken from, and zeros elsewhere."""
    limits = limits_of(lattice)
    padding = [
        (low, extent - limit, step - 1)
        for low, extent, limit, step in zip(
            lattice.lowest, shape, limits, lattice.steps, strict=True
        )
    ]

    def pad(bits):
        bits = lax.rev(bits, lattice.downwards)
        if bits.dtype != x.dtype:
            return _bits.pad_bits(bits, padding)
        return lax.pad(bits, jnp.zeros((), bits.dtype), padding)

    return _bits.move(pad, x)


def _abstract_eval(x, *, lattice, standalone):
    del standalone
    aval, _ = lax.slice_p.abstract_eval(
        x,
        start_indices=lattice.lowest,
        limit_indices=limits_of(lattice),
        strides=lattice.steps,
    )
    return aval


def _jvp(primals, tangents, **params):
    (x,), (tangent,) = primals, tangents
    y = slice_p.bind(x, **params)
    if type(tangent) is ad.Zero:
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, slice_p.bind(tangent, **params)


def _transpose(cotangent, x, *, lattice, standalone):
    del standalone
    if type(cotangent) is ad.Zero:
        return (ad.Zero(x.aval),)
    return (put(cotangent, x.aval.shape, lattice),)


def _batch(operands, dimensions, *, lattice, standalone):
    """One more leading dimension, which is taken whole."""
    x = jnp.moveaxis(operands[0], dimensions[0], 0)
    lattice = lattice._replace(
        lowest=(0, *lattice.lowest),
        sizes=(x.shape[0], *lattice.sizes),
        steps=(1, *lattice.steps),
        downwards=tuple(d + 1 for d in lattice.downwards),
    )
    return take(x, lattice, standalone), 0


def _default(x, *, lattice, standalone):
    del standalone
    bits = _bits.to_bits(x)
    y = lax.slice(bits, lattice.lowest, limits_of(lattice), lattice.steps)
    return _bits.from_bits(lax.rev(y, lattice.downwards), x.dtype)


def _on_gpu(x, *, lattice, standalone):
    bits = _bits.to_integers(x)
    ways = (even_quarters, words, quarters) if standalone else (even_quarters, quarters)
    for way in ways if bits is not None else ():
        y = way(bits, lattice)
        if y is not None:
            return _bits.from_bits(y, x.dtype)
    return _default(x, lattice=lattice, standalone=standalone)


def _lower_on_gpu(ctx, x, **params):
    formulation = _on_gpu if _compat.is_whole(ctx) else _default
    return mlir.lower_fun(formulation, multiple_results=False)(ctx, x, **params)


slice_p.def_impl(_default)
slice_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[slice_p] = _jvp
ad.primitive_transposes[slice_p] = _transpose
batching.primitive_batchers[slice_p] = _batch
mlir.register_lowering(slice_p, mlir.lower_fun(_default, multiple_results=False))
for _gpu in ("cuda", "rocm"):
    mlir.register_lowering(slice_p, _lower_on_gpu, _gpu)
