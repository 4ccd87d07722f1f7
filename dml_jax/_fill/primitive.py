"""The fills as a JAX primitive, since only its lowering rule knows the platform.

    fill(kind, sizes, standalone, *scalars)

The kind "constant" takes a value. The others take a start and a delta: "integers",
"floats", "complex" and "tangent". If they are known, there are
also "float32_sums" and "float64_sums" if such floats hold all sums, and "sums_of_words"
if two words of float64 do. `xla` has the formulations. `gpu` has those for GPUs; a fill
is `standalone` if XLA could not fuse it with anything.

The derivatives are those of the formula, not of the operations that compute it: 1 with
respect to start, and the position k with respect to delta. A "tangent" is
start + k * delta without the correct rounding. "tangent" and "constant" are linear. The
parameter `vmaps` says for each `vmap`, outermost first, which of the scalars it maps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax._fill import double_word, float64, gpu, packed_fill_kernel, tpu, xla
from dml_jax._shared import bitwise, calls, jax_versions, lowering, taylor

Vmaps: TypeAlias = tuple[tuple[bool, ...], ...]

fill_p = jax.extend.core.Primitive("fill_value")
_GPUS = ("cuda", "rocm")
_LINEAR = ("constant", "tangent")
_SUMS = {"float32_sums": 32, "float64_sums": 64}  # the bits of the floats


def fill(
    kind: str, sizes: xla.Sizes, standalone: bool, *scalars: jax.Array
) -> jax.Array:
    axes = frozenset().union(*map(jax_versions.varying_axes, scalars))
    scalars = tuple(jax_versions.vary_over(scalar, axes) for scalar in scalars)
    params = {"kind": kind, "sizes": sizes, "vmaps": (), "standalone": standalone}
    return fill_p.bind(*scalars, **params)


def kind_of_floats(sizes: xla.Sizes, start: np.generic, delta: np.generic) -> str:
    """The kind of a sequence of floats whose start and delta are known."""
    dtype, count = start.dtype, xla.position_bound(sizes)
    # Positions have 32 bits. With one element, XLA would know the product, too.
    if count > 2**32 or count < 2:
        return "floats"
    start, delta = np.float64(start), np.float64(delta)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == np.float64:
            return _kind_of_float64(start, delta, (count - 1).bit_length())
        if dtype not in (np.float16, jnp.bfloat16, np.float32):
            return "floats"
        in_float32, in_float64 = float64.exactness(start, delta, dtype, count)
    if in_float32:
        return "float32_sums"
    return "float64_sums" if in_float64 and dtype == np.float32 else "floats"


def _kind_of_float64(start: np.float64, delta: np.float64, position_bits: int) -> str:
    if double_word.rounds_once(start, delta, position_bits):
        return "float64_sums"
    has_words = double_word.words_are_exact(start, delta, position_bits)
    return "sums_of_words" if has_words else "floats"


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


def _formulation(
    kind: str,
    sizes: xla.Sizes,
    dtype: np.dtype,
    platform: str,
    sees_full_arrays: bool,
    vmaps: Vmaps = (),
    may_use_kernel: bool = False,
) -> Callable[..., jax.Array]:
    """What a platform computes, as a function of the scalars."""
    if may_use_kernel and not vmaps and gpu.is_faster_by_chunks(kind, sizes, dtype):
        return functools.partial(packed_fill_kernel.fill, kind, sizes)
    on_one_cpu = platform == "cpu" and sees_full_arrays and not vmaps
    bounds = None
    if kind == "complex":  # two sequences
        part = np.finfo(dtype).dtype
        floats = _formulation("floats", sizes, part, platform, False, vmaps, False)
        return functools.partial(_of_parts, floats)
    if platform in _GPUS and sees_full_arrays:
        bounds = gpu.part_bounds(sizes, dtype)
    elif on_one_cpu and kind == "integers" and xla.are_faster_flat(sizes):
        bounds = (0, math.prod(sizes))
    if kind == "constant":
        return functools.partial(xla.constant, sizes, bounds, platform)
    if kind == "integers":
        return functools.partial(xla.integers, sizes, bounds, on_one_cpu)
    if kind == "tangent":
        return functools.partial(xla.tangent, sizes)
    count = xla.position_bound(sizes)
    has_float64 = platform in ("cpu", *_GPUS)
    has_sums = has_float64 or (kind == "float32_sums" and dtype != np.float16)
    if kind in _SUMS and has_sums:
        bits = _SUMS[kind]
        return functools.partial(
            xla.exact_in_floats, sizes, bounds, platform, on_one_cpu, bits, dtype
        )
    if kind == "sums_of_words" and has_float64:
        return functools.partial(xla.sums_of_words, sizes, bounds, platform, on_one_cpu)
    if platform == "tpu" and tpu.suffices(dtype, count):
        return functools.partial(tpu.rounded_by_parts, sizes, count)
    if dtype == np.float64:
        return functools.partial(
            xla.rounded_by_double_words, sizes, bounds, platform, count, on_one_cpu
        )
    if platform in ("tpu", "other"):
        return functools.partial(xla.rounded_by_integers, sizes, count)
    if float64.suffices(dtype, count):
        return functools.partial(
            xla.rounded_by_float64, sizes, bounds, platform, on_one_cpu
        )
    if float64.has_blocks(dtype, count) and sees_full_arrays and not vmaps:
        return functools.partial(
            xla.rounded_by_blocks, sizes, bounds, platform, count, on_one_cpu
        )
    return functools.partial(xla.rounded_by_integers, sizes, count)


def _of_parts(floats: Callable[..., jax.Array], start: jax.Array, delta: jax.Array):
    return lax.complex(floats(start.real, delta.real), floats(start.imag, delta.imag))


def _compute(
    *scalars: jax.Array,
    kind: str,
    sizes: xla.Sizes,
    vmaps: Vmaps,
    platform: str = "other",
    sees_full_arrays: bool = False,
    standalone: bool = False,
) -> jax.Array:
    may_use_kernel = standalone and sees_full_arrays and platform == "cuda"
    formulation = _formulation(
        *(kind, sizes, scalars[0].dtype, platform, sees_full_arrays, vmaps),
        may_use_kernel=may_use_kernel and jax_versions.runs_mosaic(),
    )
    if kind in ("floats", "complex"):
        scalars = xla.without_known_values(*scalars)
    # The 64-bit mode may have changed since the program was traced.
    with bitwise.full_width(*scalars):
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
            sees_full_arrays=lowering.sees_full_arrays(ctx),
            **params,
        )
        # With explicit axes, the type of the result would say that it is replicated.
        # Without them, XLA shards the fill like the operations that use it, and each
        # device computes its own shard.
        ctx, mesh = lowering.without_explicit_axes(ctx)
        with jax.sharding.use_abstract_mesh(mesh):
            return mlir.lower_fun(compute, multiple_results=False)(ctx, *scalars)

    return lower


_params = ("kind", "sizes", "vmaps", "standalone")
fill_p.def_impl(calls.compiled(fill_p.name, fill_p.bind, _compute, *_params))
fill_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[fill_p] = _jvp
ad.primitive_transposes[fill_p] = _transpose
batching.primitive_batchers[fill_p] = _batch
taylor.define_linear(fill_p)
mlir.register_lowering(fill_p, _lowering("other"))
for _platform in ("cpu", "tpu", *_GPUS):
    mlir.register_lowering(fill_p, _lowering(_platform), _platform)
