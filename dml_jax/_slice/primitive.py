"""The slice and its transpose as JAX primitives.

    strided_slice(x, window, standalone)                     `lax.slice`, `lax.rev`
    strided_slice_transpose(x, shape, window, standalone)    `lax.rev`, `lax.pad`

Both are linear, and each is the transpose of the other. The formulations are not
differentiated: their transposes are slow, or JAX has none. If `standalone` is true, the
operator is compiled as a program of its own; GPUs have other formulations for that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import ad, batching, mlir

from dml_jax._shared import (
    bitwise,
    calls,
    jax_versions,
    lowering,
    partitioner,
    taylor,
)
from dml_jax._slice import gpu, partitioning, tpu, xla
from dml_jax._slice.window import SliceFormulation, StridedWindow, TransposeFormulation

slice_p = jax.extend.core.Primitive("strided_slice")
transpose_p = jax.extend.core.Primitive("strided_slice_transpose")


def strided_slice(x: Array, window: StridedWindow, standalone: bool) -> Array:
    return slice_p.bind(x, window=window, standalone=standalone)


def strided_slice_transpose(
    x: Array, shape: tuple[int, ...], window: StridedWindow, standalone: bool
) -> Array:
    return transpose_p.bind(x, shape=shape, window=window, standalone=standalone)


# Rules --------------------------------------------------------------------------------


def _slice_abstract_eval(x: Any, *, window: StridedWindow, **_: Any):
    def plain(x: Array) -> Array:
        return lax.slice(x, window.starts, window.limits, window.strides)

    return jax_versions.type_of_result(plain, x)


def _transpose_abstract_eval(x: Any, *, shape: Any, window: StridedWindow, **_: Any):
    def plain(x: Array) -> Array:
        return lax.pad(x, jnp.zeros((), x.dtype), window.padding(shape))

    return jax_versions.type_of_result(plain, x)


def _slice_transpose_rule(cotangent: Any, x: Any, *, window: StridedWindow, **_: Any):
    y = strided_slice_transpose(cotangent, x.aval.shape, window, standalone=False)
    # The type of a slice of one element does not say how `x` was sharded.
    return [lowering.reshard_like(x, y)]


def _transpose_transpose_rule(cotangent: Any, _: Any, *, window: Any, **__: Any):
    return [strided_slice(cotangent, window, standalone=False)]


def _slice_batch(operands: Any, dimensions: Any, *, window: Any, standalone: bool):
    x = jnp.moveaxis(operands[0], dimensions[0], 0)
    return strided_slice(x, window.batched(x.shape[0]), standalone), 0


def _transpose_batch(
    operands: Any, dimensions: Any, *, shape: Any, window: Any, standalone: bool
):
    x = jnp.moveaxis(operands[0], dimensions[0], 0)
    shape, window = (x.shape[0], *shape), window.batched(x.shape[0])
    return strided_slice_transpose(x, shape, window, standalone), 0


# What is computed ---------------------------------------------------------------------


def _slice(
    x: Array,
    *,
    window: StridedWindow,
    formulations: tuple[SliceFormulation, ...] = (),
    **_: Any,
) -> Array:
    y = _first_result(x, formulations, window)
    return xla.strided_slice(x, window) if y is None else y


def _transpose(
    x: Array,
    *,
    shape: tuple[int, ...],
    window: StridedWindow,
    formulations: tuple[TransposeFormulation, ...] = (),
    sees_full_arrays: bool = False,
    max_shards: int = 1,
    **_: Any,
) -> Array:
    aval = _transpose_abstract_eval(jax.typeof(x), shape=shape, window=window)
    if getattr(aval.sharding.mesh, "explicit_axes", ()):
        x, window = _reverse(x, window)
        transpose = _transpose_of_bits(x.dtype)
        transpose = functools.partial(
            partitioning.transpose_shards, transpose, shape=shape, window=window
        )
        return partitioner.map_explicit_shards(transpose, shape, aval.sharding, x)
    if not sees_full_arrays:
        if window.covers(shape):
            return _reverse(x, window)[0]
        if max_shards > 1:
            return xla.spread(x, shape, window, max_shards)
        return xla.gather_and_select(x, shape, window)
    y = _first_result(x, formulations, shape, window)
    return xla.strided_slice_transpose(x, shape, window) if y is None else y


def _first_result(
    x: Array, formulations: tuple[Callable[..., Any], ...], *params: Any
) -> Array | None:
    """The result of the first formulation that applies to `x`, or to its bits."""
    for formulation in formulations:
        takes_any = inspect.unwrap(formulation) in _OF_ANY_DTYPE
        bits = x if takes_any else bitwise.to_integers(x)
        y = None if bits is None else formulation(bits, *params)
        if y is not None:
            return bitwise.from_bits(y, x.dtype)
    return None


def _zeros(_: Array, *, shape: Any = None, window: StridedWindow, dtype: Any) -> Array:
    """The result for an empty operand."""
    return jnp.zeros(window.sizes if shape is None else shape, dtype)


def _reverse(x: Array, window: StridedWindow) -> tuple[Array, StridedWindow]:
    """`x`, reversed, and the window without reversed dimensions."""
    bits = lax.rev(bitwise.to_bits(x), window.reversed_dims)
    return bitwise.from_bits(bits, x.dtype), window._replace(reversed_dims=())


def _transpose_of_bits(dtype: np.dtype) -> Callable[..., Array]:
    """The transpose on bits: collectives move narrow floats as unsigned integers."""

    def transpose(bits: Array, **params: Any) -> Array:
        # Bound on floats, since `bitwise.pad_bits` is used for narrow floats only.
        x = bitwise.from_bits(bits, dtype)
        return bitwise.to_bits(transpose_p.bind(x, standalone=False, **params))

    return transpose


# Lowering -----------------------------------------------------------------------------

# These take any dtype, since XLA does not fuse a conversion to bits with a kernel or a
# memcpy, or divides it between threads.
_OF_ANY_DTYPE = frozenset(
    [
        *(gpu.contiguous, xla.float16_slice),
        *(tpu.vmem_slice, tpu.vmem_slice_transpose, tpu.gather_and_select),
    ]
)
_KERNELS = frozenset(
    [
        *(gpu.packed_copy, gpu.packed_copy_with_zeros),
        *(tpu.vmem_slice, tpu.vmem_slice_transpose),
    ]
)


def _lowering(
    compute: Callable[..., Array],
    default: tuple[SliceFormulation | TransposeFormulation, ...] = (),
    standalone: tuple[SliceFormulation | TransposeFormulation, ...] = (),
    platform: str | None = None,
    has_partitioner_callback: bool = False,
) -> Callable[..., Any]:
    """The lowering rule of a platform with these formulations."""
    formulations = {False: default, True: standalone}

    def lower(ctx: Any, x: Any, *, standalone: bool, **params: Any):
        lowering.refuse_on_tpu(ctx, "slice" if compute is _slice else "slice_grad")
        if 0 in ctx.avals_in[0].shape:  # which XLA may fail to partition
            return _lower(ctx, _zeros, x, dtype=ctx.avals_out[0].dtype, **params)
        if (
            has_partitioner_callback
            and lowering.is_partitioned_by_callback(ctx)
            and not params["window"].covers(params["shape"])
        ):
            lowered = _lower_partitioned(ctx, x, **params)
            if lowered is not None:
                return lowered
        return _lower(
            ctx,
            compute,
            x,
            formulations=lowering.available(
                ctx, formulations[standalone], _KERNELS, platform
            ),
            sees_full_arrays=lowering.sees_full_arrays(ctx),
            max_shards=lowering.max_shards(ctx) if platform == "tpu" else 1,
            **params,
        )

    return lower


def _lower(ctx: Any, function: Callable[..., Array], x: Any, **params: Any):
    function = functools.partial(function, **params)
    with bitwise.full_width(*ctx.avals_in):
        return mlir.lower_fun(function, multiple_results=False)(ctx, x)


def _lower_partitioned(ctx: Any, x: Any, **params: Any):
    if params["window"].reversed_dims:
        # XLA partitions this reversal, and cancels it against that of a backward pass.
        return _lower(ctx, _reverse_first, x, **params)
    transpose = _transpose_of_bits(ctx.avals_in[0].dtype)
    return partitioner.lower_partitioned(
        ctx,
        functools.partial(transpose, **params),
        functools.partial(partitioning.transpose_shards, transpose, **params),
        params,
        x,
    )


def _reverse_first(x: Array, *, shape: tuple[int, ...], window: StridedWindow) -> Array:
    x, window = _reverse(x, window)
    return strided_slice_transpose(x, shape, window, standalone=False)


slice_p.def_abstract_eval(_slice_abstract_eval)
slice_p.def_impl(
    calls.compiled(slice_p.name, slice_p.bind, _slice, "window", "standalone")
)
ad.deflinear2(slice_p, _slice_transpose_rule)
batching.primitive_batchers[slice_p] = _slice_batch
taylor.define_linear(slice_p)

transpose_p.def_abstract_eval(_transpose_abstract_eval)
transpose_p.def_impl(
    calls.compiled(
        *(transpose_p.name, transpose_p.bind, _transpose),
        *("shape", "window", "standalone"),
    )
)
ad.deflinear2(transpose_p, _transpose_transpose_rule)
batching.primitive_batchers[transpose_p] = _transpose_batch
taylor.define_linear(transpose_p)

_FUSED = (gpu.equal_split_stores, gpu.contiguous, gpu.split_stores)
_STANDALONE = (gpu.equal_split_stores, gpu.packed_u32, gpu.split_stores)
_CPU = (xla.float16_slice,)
_TPU_SLICES = (tpu.vmem_slice,)
_TPU_TRANSPOSES = (tpu.vmem_slice_transpose, tpu.gather_and_select)
for _platform, _formulations in {
    None: {},
    "cpu": {"default": _CPU, "standalone": _CPU},
    "cuda": {"default": _FUSED, "standalone": (gpu.packed_copy, *_STANDALONE)},
    "rocm": {"default": _FUSED, "standalone": _STANDALONE},
    "tpu": {"default": _TPU_SLICES, "standalone": _TPU_SLICES},
}.items():
    _rule = _lowering(_slice, platform=_platform, **_formulations)
    mlir.register_lowering(slice_p, _rule, _platform)
for _platform, _formulations in {
    None: {},
    "cpu": {},
    "cuda": {"standalone": (gpu.packed_copy_with_zeros,)},
    "rocm": {},
    "tpu": {"default": _TPU_TRANSPOSES, "standalone": _TPU_TRANSPOSES},
}.items():
    _rule = _lowering(
        _transpose,
        platform=_platform,
        # XLA has no callback on TPUs (jax-ml/jax#38196).
        has_partitioner_callback=_platform in ("cpu", "cuda", "rocm"),
        **_formulations,
    )
    mlir.register_lowering(transpose_p, _rule, _platform)
