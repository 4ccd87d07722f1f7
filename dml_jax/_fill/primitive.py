"""The fills as a JAX primitive, since only its lowering rule knows the platform.

    fill(kind, sizes, *scalars)

The kind "constant" takes a value, and the kind "sequence" a start and a delta. `xla`
has the formulations.

The derivatives are those of the formula, not of the operations that compute it: 1 with
respect to start, and the position k with respect to delta. The kind "tangent" is the
formula without the correct rounding. It is linear, and so is "constant". The parameter
`vmaps` says for each `vmap`, outermost first, which of the scalars it maps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax._fill import gpu, xla
from dml_jax._shared import bitwise, calls, jax_versions, lowering

Vmaps: TypeAlias = tuple[tuple[bool, ...], ...]

fill_p = jax.extend.core.Primitive("fill_value")
_GPUS = ("cuda", "rocm")
_LINEAR = ("constant", "tangent")


def fill(kind: str, sizes: xla.Sizes, *scalars: jax.Array) -> jax.Array:
    axes = frozenset().union(*map(jax_versions.varying_axes, scalars))
    scalars = tuple(jax_versions.vary_over(scalar, axes) for scalar in scalars)
    return fill_p.bind(*scalars, kind=kind, sizes=sizes, vmaps=())


# Rules --------------------------------------------------------------------------------


def _abstract_eval(*scalars: Any, sizes: xla.Sizes, vmaps: Vmaps, **_: Any):
    leading = _mapped_dimensions(vmaps)
    shape = (*(scalars[i].shape[d] for i, d in leading), *sizes)
    mapped = [scalars[i].sharding.spec[d] for i, d in leading]
    spec = PartitionSpec(*mapped, *[None] * len(sizes))
    sharding = NamedSharding(_mesh(scalars), spec)
    # `update` keeps the varying axes, which a new ShapedArray loses.
    return scalars[0].update(shape=shape, sharding=sharding, weak_type=False)


def _mesh(scalars: tuple[Any, ...]) -> Any:
    """The mesh of the scalars, or of the context if they have none."""
    meshes = (scalar.sharding.mesh for scalar in scalars)
    mesh = next((mesh for mesh in meshes if not mesh.empty), None)
    return jax_versions.mesh_of_new_arrays() if mesh is None else mesh


def _mapped_dimensions(vmaps: Vmaps) -> list[tuple[int, int]]:
    """For each vmap, the first scalar that it maps, and the mapped dimension of it."""
    firsts = [is_mapped.index(True) for is_mapped in vmaps]
    return [
        (first, sum(is_mapped[first] for is_mapped in vmaps[:level]))
        for level, first in enumerate(firsts)
    ]


def _batch(scalars: Any, dimensions: Any, *, vmaps: Vmaps, **params: Any):
    is_mapped = tuple(dimension is not None for dimension in dimensions)
    scalars = [
        scalar if dimension is None else jnp.moveaxis(scalar, dimension, 0)
        for scalar, dimension in zip(scalars, dimensions, strict=True)
    ]
    return fill_p.bind(*scalars, vmaps=(is_mapped, *vmaps), **params), 0


def _jvp(scalars: Any, tangents: Any, **params: Any):
    y = fill_p.bind(*scalars, **params)
    if all(type(tangent) is ad.Zero for tangent in tangents):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    if params["kind"] not in _LINEAR:
        params["kind"] = "tangent"
    return y, fill_p.bind(*map(ad.instantiate_zeros, tangents), **params)


def _transpose(
    cotangent: Any, *scalars: Any, kind: str, sizes: Any, vmaps: Vmaps, **__: Any
):
    if kind not in _LINEAR:
        raise NotImplementedError("fill_value_sequence: rounds, and is not linear")
    if type(cotangent) is ad.Zero:
        return [ad.Zero(scalar.aval) for scalar in scalars]
    if kind == "constant":
        axes = range(cotangent.ndim - len(sizes), cotangent.ndim)
        return [bitwise.sum_wide(cotangent, axes)]
    zeros = [ad.instantiate_zeros(ad.Zero(_aval(scalar))) for scalar in scalars]
    with bitwise.full_width(cotangent):
        _, pull_back = jax.vjp(
            _mapped(functools.partial(xla.tangent, sizes), vmaps), *zeros
        )
        return [
            cotangent_of if ad.is_undefined_primal(scalar) else None
            for scalar, cotangent_of in zip(scalars, pull_back(cotangent), strict=True)
        ]


def _aval(scalar: Any) -> Any:
    return scalar.aval if ad.is_undefined_primal(scalar) else jax.typeof(scalar)


# Lowering -----------------------------------------------------------------------------


def _compute(
    *scalars: jax.Array,
    kind: str,
    sizes: xla.Sizes,
    vmaps: Vmaps,
    platform: str,
    is_unpartitioned: bool,
) -> jax.Array:
    bounds = None
    if platform in _GPUS and is_unpartitioned:
        bounds = gpu.part_bounds(sizes, scalars[0].dtype)
    formulation = {
        "constant": functools.partial(xla.constant, sizes, bounds, platform),
        "sequence": functools.partial(xla.sequence, sizes, bounds, platform),
        "tangent": functools.partial(xla.tangent, sizes),
    }[kind]
    return _mapped(formulation, vmaps)(*scalars)


def _mapped(function: Any, vmaps: Vmaps) -> Callable[..., jax.Array]:
    """A function of the scalars, with the same vmaps as the fill."""
    for is_mapped in reversed(vmaps):
        function = jax.vmap(function, [0 if mapped else None for mapped in is_mapped])
    return function


def _lowering(platform: str):
    def lower(ctx: Any, *scalars: Any, kind: str, **params: Any):
        if kind == "constant":
            lowering.refuse_on_tpu(ctx, "fill_value_constant")
        else:
            # TPUs compute float64 as the sum of two float32, without its rounding.
            others = () if kind == "tangent" else ("float64",)
            lowering.refuse_on_tpu(ctx, "fill_value_sequence", *others)
        compute = functools.partial(
            _compute,
            kind=kind,
            platform=platform,
            is_unpartitioned=lowering.is_unpartitioned(ctx),
            **params,
        )
        # With explicit axes, the type of the result says that it is replicated. XLA
        # does not see that. It shards the fill like the operations that use it, and
        # each device computes its own shard.
        return lowering.lower(ctx, compute, *scalars)

    return lower


fill_p.def_impl(calls.compiled(fill_p, "kind", "sizes", "vmaps"))
fill_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[fill_p] = _jvp
ad.primitive_transposes[fill_p] = _transpose
batching.primitive_batchers[fill_p] = _batch
mlir.register_lowering(fill_p, _lowering("other"))
for _platform in ("cpu", "tpu", *_GPUS):
    mlir.register_lowering(fill_p, _lowering(_platform), _platform)
