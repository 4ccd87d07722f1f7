"""Sequences as a JAX primitive, since float64 should appear in its lowering alone.

    fill_value_sequence(start, delta, sizes)

The result has the dimensions that start and delta have under `vmap`, which broadcast
against each other, and those of `sizes`. It is linear in start and delta: the tangent
of a sequence is the sequence of the tangents.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax import lax
from jax.extend.core.primitives import add_p
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax._fill import xla
from dml_jax._shared import bitwise, calls, jax_versions, lowering

sequence_p = jax.extend.core.Primitive("fill_value_sequence")


def sequence(sizes: xla.Sizes, start: jax.Array, delta: jax.Array) -> jax.Array:
    axes = jax_versions.varying_axes(start) | jax_versions.varying_axes(delta)
    start, delta = (jax_versions.vary_over(x, axes) for x in (start, delta))
    return sequence_p.bind(start, delta, sizes=sizes)


def _abstract_eval(start: Any, delta: Any, *, sizes: xla.Sizes) -> tuple[Any, Any]:
    total, effects = add_p.abstract_eval(start, delta)
    spec = PartitionSpec(*total.sharding.spec, *[None] * len(sizes))
    sharding = NamedSharding(total.sharding.mesh, spec)
    shape = (*total.shape, *sizes)
    return total.update(shape=shape, sharding=sharding, weak_type=False), effects


def _transpose(cotangent: Any, *scalars: Any, sizes: xla.Sizes) -> list[Any]:
    """The sum for start, and the sum of k times the cotangent for delta."""
    wide = np.promote_types(cotangent.dtype, np.float32)
    with bitwise.full_width(wide):
        cotangent = cotangent.astype(wide)
        rank = cotangent.ndim - len(sizes)
        k = lax.expand_dims(xla.position(sizes).astype(wide), range(rank))
        return [
            _sum_like(scalar.aval, factor) if ad.is_undefined_primal(scalar) else None
            for scalar, factor in zip(scalars, (cotangent, cotangent * k), strict=True)
        ]


def _sum_like(aval: Any, x: jax.Array) -> jax.Array:
    """The sum over the dimensions that `aval` lacks, or has with size 1."""
    total = x.sum(range(aval.ndim, x.ndim))
    ones = [d for d in range(aval.ndim) if aval.shape[d] != total.shape[d]]
    return total.sum(ones, keepdims=True).astype(aval.dtype)


def _lower(ctx: Any, *scalars: Any, sizes: xla.Sizes) -> Any:
    # TPUs compute float64 as the sum of two float32, without its rounding.
    lowering.refuse_on_tpu(ctx, "fill_value_sequence", "float64")
    # With explicit axes, the type of the result says that it is replicated. XLA does
    # not see that. It shards the fill like the operations that use it, and each device
    # computes its own shard.
    return lowering.lower(ctx, functools.partial(xla.sequence, sizes), *scalars)


sequence_p.def_impl(calls.compiled(sequence_p, "sizes"))
sequence_p.def_effectful_abstract_eval(_abstract_eval)
ad.deflinear2(sequence_p, _transpose)
batching.defbroadcasting(sequence_p)
mlir.register_lowering(sequence_p, _lower)
