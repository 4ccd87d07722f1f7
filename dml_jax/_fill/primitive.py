"""The fills as a JAX primitive: only its lowering knows the platform, and who divides.

    fill(way, sizes, *scalars)

The ways are "constant" (of a value), "integers", "floats" and "components" of complex
numbers (of a start and a delta). What each platform computes for them,
`xla` and `gpu` says.

The derivatives are those of the formula, 1 by start and k by delta, and not those of
the steps in which a platform computes it. Constants alone are linear. A vmap adds a
level, which says what scalars it maps; the formulation is mapped likewise.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from dml_jax._fill import float64, gpu, xla
from dml_jax._shared import bitwise, calls, jax_versions, lowering, taylor

fill_p = jax.extend.core.Primitive("fill_value")

_GPUS = ("cuda", "rocm")


def fill(way, sizes, *scalars):
    axes = frozenset().union(*map(jax_versions.varying_axes, scalars))
    scalars = [jax_versions.vary_over(scalar, axes) for scalar in scalars]
    return fill_p.bind(*scalars, way=way, sizes=sizes, levels=())


def _abstract_eval(*scalars, way, sizes, levels):
    del way
    leading = _leading_dimensions(levels)
    shape = (*(scalars[i].shape[d] for i, d in leading), *sizes)
    # `update` keeps the varying axes, which a new ShapedArray loses.
    sharding = _sharding(scalars, sizes, levels)
    return scalars[0].update(shape=shape, sharding=sharding, weak_type=False)


def _sharding(scalars, sizes, levels):
    """That of what is mapped; a fill itself is not sharded."""
    meshes = [scalar.sharding.mesh for scalar in scalars]
    # Numbers have no mesh: then the mesh is the one in which the program is traced.
    mesh = next((mesh for mesh in meshes if not mesh.empty), None)
    mesh = jax_versions.mesh_of_new_arrays() if mesh is None else mesh
    mapped = [scalars[i].sharding.spec[d] for i, d in _leading_dimensions(levels)]
    spec = jax.sharding.PartitionSpec(*mapped, *[None] * len(sizes))
    return jax.sharding.NamedSharding(mesh, spec)


def _leading_dimensions(levels):
    """For every level, a scalar that it maps, and along which of its dimensions."""
    firsts = [mapped.index(True) for mapped in levels]
    return [
        (first, sum(mapped[first] for mapped in levels[:level]))
        for level, first in enumerate(firsts)
    ]


def _batch(scalars, dimensions, *, levels, **params):
    mapped = tuple(dimension is not None for dimension in dimensions)
    scalars = [
        scalar if dimension is None else jnp.moveaxis(scalar, dimension, 0)
        for scalar, dimension in zip(scalars, dimensions, strict=True)
    ]
    return fill_p.bind(*scalars, levels=(mapped, *levels), **params), 0


def _jvp(scalars, tangents, *, way, sizes, levels):
    params = dict(way=way, sizes=sizes, levels=levels)
    y = fill_p.bind(*scalars, **params)
    if all(type(tangent) is ad.Zero for tangent in tangents):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    tangents = [*map(ad.instantiate_zeros, tangents)]
    if way == "constant":
        return y, fill_p.bind(*tangents, **params)
    with bitwise.full_width(y):
        return y, _mapped(functools.partial(_tangent, sizes), levels)(*tangents)


def _tangent(sizes, start, delta):
    """start + k * delta, in at least float32."""
    wide = np.promote_types(start.dtype, np.float32)
    if xla.bound(sizes) <= 2**32:
        k = xla.position(sizes, jnp.uint32).astype(wide)
    else:
        low, high = xla.long_position(sizes)
        k = low.astype(wide) + high.astype(wide) * 2.0**24
    return (start.astype(wide) + k * delta.astype(wide)).astype(start.dtype)


def _transpose(cotangent, *scalars, way, sizes, **_):
    if way != "constant":
        raise NotImplementedError("fill_value_sequence: rounds, and is not linear")
    if type(cotangent) is ad.Zero:
        return [ad.Zero(scalars[0].aval)]
    axes = range(cotangent.ndim - len(sizes), cotangent.ndim)
    return [bitwise.sum_wide(cotangent, axes)]


# Lowering -----------------------------------------------------------------------------


def _formulation(way, sizes, dtype, platform, sees_full_arrays, levels=()):
    """What a platform computes, as a function of the scalars."""
    stores = xla.Stores()
    if platform in _GPUS:
        sees_full_arrays = sees_full_arrays and way != "components"
        stores = gpu.stores_of_gpu(sizes, dtype, sees_full_arrays)
    if way in ("constant", "integers"):
        return functools.partial(getattr(xla, way), sizes, stores)
    count = xla.bound(sizes)
    if platform == "other" or not float64.suffices(dtype, count):
        return functools.partial(xla.limbs, sizes, count)
    is_apart = platform == "cpu" and sees_full_arrays and not levels
    return functools.partial(xla.doubles, sizes, stores, platform, is_apart)


def _lowered(*scalars, way, sizes, levels, platform="other", sees_full_arrays=False):
    dtype = scalars[0].dtype
    compute = _formulation(way, sizes, dtype, platform, sees_full_arrays, levels)
    compute = _mapped(compute, levels)
    # A program may be lowered in another mode than it was traced in.
    with bitwise.full_width(*scalars):
        return compute(*scalars)


def _mapped(function: Any, levels):
    """A function of the scalars of a fill, mapped like the fill."""
    for mapped in reversed(levels):
        in_axes = [0 if is_mapped else None for is_mapped in mapped]
        function = jax.vmap(function, in_axes)
    return function


def _lowering(platform):
    def lower(ctx, *scalars, **params):
        sees_full_arrays = lowering.sees_full_arrays(ctx)
        lowered = functools.partial(
            _lowered, platform=platform, sees_full_arrays=sees_full_arrays, **params
        )
        # Without the explicit sharding, which is none: what becomes of the result may
        # be divided, and then a device is to compute its own part.
        ctx, mesh = lowering.without_explicit_axes(ctx)
        with jax.sharding.use_abstract_mesh(mesh):
            return mlir.lower_fun(lowered, multiple_results=False)(ctx, *scalars)

    return lower


fill_p.def_impl(
    calls.compiled(fill_p.name, fill_p.bind, _lowered, "way", "sizes", "levels")
)
fill_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[fill_p] = _jvp
ad.primitive_transposes[fill_p] = _transpose
batching.primitive_batchers[fill_p] = _batch
taylor.define_linear(fill_p)
mlir.register_lowering(fill_p, _lowering("other"))
for _platform in ("cpu", *_GPUS):
    mlir.register_lowering(fill_p, _lowering(_platform), _platform)
