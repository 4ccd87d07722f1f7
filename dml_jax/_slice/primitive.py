"""The slice and its transpose as JAX primitives.

    strided_slice(x, window)                     `lax.slice`, `lax.rev`
    strided_slice_transpose(x, shape, window)    `lax.rev`, `lax.pad`

Both are linear, and each is the transpose of the other. The formulations are not
differentiated: their transposes are slow, or JAX has none.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.extend.core
import jax.numpy as jnp
from jax import Array
from jax.interpreters import ad, batching, mlir

from dml_jax._shared import bitwise, jax_versions, lowering, partitioner
from dml_jax._slice import partitioning, xla
from dml_jax._slice.window import Window, WindowDimension, covers, unreversed

slice_p = jax.extend.core.Primitive("strided_slice")
transpose_p = jax.extend.core.Primitive("strided_slice_transpose")


def strided_slice(x: Array, window: Window) -> Array:
    return slice_p.bind(x, window=window)


def strided_slice_transpose(x: Array, shape: tuple[int, ...], window: Window) -> Array:
    return transpose_p.bind(x, shape=shape, window=window)


# Rules --------------------------------------------------------------------------------


def _slice_abstract_eval(x: Any, *, window: Window):
    plain = functools.partial(xla.slice_forwards, window=window)
    return jax_versions.type_of_result(plain, x, tuple(part.size for part in window))


def _transpose_abstract_eval(x: Any, *, shape: Any, window: Window):
    plain = functools.partial(xla.pad_forwards, shape=shape, window=window)
    return jax_versions.type_of_result(plain, x, shape)


def _slice_transpose_rule(cotangent: Any, x: Any, *, window: Window):
    y = strided_slice_transpose(cotangent, x.aval.shape, window)
    # The type of a slice of one element does not say how `x` was sharded.
    return [lowering.reshard_like(x, y)]


def _transpose_transpose_rule(cotangent: Any, _: Any, *, window: Any, **__: Any):
    return [strided_slice(cotangent, window)]


def _slice_batch(operands: Any, dimensions: Any, *, window: Any):
    x = jnp.moveaxis(operands[0], dimensions[0], 0)
    return strided_slice(x, (WindowDimension(0, x.shape[0]), *window)), 0


def _transpose_batch(operands: Any, dimensions: Any, *, shape: Any, window: Any):
    x = jnp.moveaxis(operands[0], dimensions[0], 0)
    shape, window = (x.shape[0], *shape), (WindowDimension(0, x.shape[0]), *window)
    return strided_slice_transpose(x, shape, window), 0


slice_p.def_abstract_eval(_slice_abstract_eval)
slice_p.def_impl(lowering.compiled(slice_p, "window"))
ad.deflinear2(slice_p, _slice_transpose_rule)
batching.primitive_batchers[slice_p] = _slice_batch

transpose_p.def_abstract_eval(_transpose_abstract_eval)
transpose_p.def_impl(lowering.compiled(transpose_p, "shape", "window"))
ad.deflinear2(transpose_p, _transpose_transpose_rule)
batching.primitive_batchers[transpose_p] = _transpose_batch


# Lowering of the slice ----------------------------------------------------------------


def _lower_slice(ctx: Any, x: Any, *, window: Window):
    lowering.refuse_on_tpu(ctx, "slice")
    return _lower_typed(ctx, functools.partial(xla.strided_slice, window=window), x)


def _lower_typed(ctx: Any, function: Callable[..., Array], x: Any):
    """Lowers operations that have rules for explicit axes, as JAX lowers them."""
    with bitwise.full_width(*ctx.avals_in):
        return mlir.lower_fun(function, multiple_results=False)(ctx, x)


mlir.register_lowering(slice_p, _lower_slice)


# Lowering of the transpose ------------------------------------------------------------


def _transpose_lowering(platform: str | None) -> Callable[..., Any]:
    """The lowering rule of a platform; None is for all platforms without a rule."""

    def lower(ctx: Any, x: Any, *, shape: tuple[int, ...], window: Window):
        lowering.refuse_on_tpu(ctx, "slice_grad")
        params = {"shape": shape, "window": window}
        if covers(window, shape):
            return _lower_typed(ctx, functools.partial(xla.reverse, window=window), x)
        program = lowering.partitioning(ctx)
        if platform in _WITH_CALLBACK and program.calls_back:
            lowered = _lower_partitioned(ctx, x, **params)
            if lowered is not None:
                return lowered
        if 0 in ctx.avals_in[0].shape:  # XLA may fail to partition an empty slice
            return lowering.lower(ctx, lambda x: jnp.zeros(shape, x.dtype), x)
        avoids_gather = platform == "tpu" or program.is_partly_manual
        compute: Callable[..., Array]
        if program.is_whole:
            # For TPUs, XLA takes minutes to compile a pad with zeros between elements.
            is_slow = platform == "tpu" and any(part.stride > 1 for part in window)
            compute = xla.gather_and_select if is_slow else xla.strided_slice_transpose
        elif avoids_gather and program.max_shards > 1:
            compute = functools.partial(xla.spread, max_shards=program.max_shards)
        else:
            compute = xla.gather_and_select
        return lowering.lower(ctx, functools.partial(compute, **params), x)

    return lower


def _lower_partitioned(ctx: Any, x: Any, *, shape: Any, window: Window):
    """The transpose, which XLA partitions by calling back; None if it cannot."""
    params = {"shape": shape, "window": unreversed(window)}
    transpose = functools.partial(strided_slice_transpose, **params)
    if window != params["window"]:
        # XLA partitions this reversal, and cancels it against that of a backward pass.
        def reverse_first(x: Array) -> Array:
            return transpose(xla.reverse(x, window))

        return lowering.lower(ctx, reverse_first, x)
    of_shards = functools.partial(
        partitioning.transpose_shards, strided_slice_transpose, **params
    )
    return partitioner.lower_partitioned(ctx, transpose, of_shards, params, x)


_WITH_CALLBACK = ("cpu", "cuda", "rocm")  # not TPUs: jax-ml/jax#38196
for _platform in (None, "tpu", *_WITH_CALLBACK):
    mlir.register_lowering(transpose_p, _transpose_lowering(_platform), _platform)
