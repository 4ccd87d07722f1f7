"""Strided reads and writes of flat buffers as JAX primitives.

    gather_strided(buffer, layout)             the elements at the strides of a layout
    scatter_strided(elements, layout, n)       a buffer of n zeros with these elements
    scatter_add_strided(elements, layout, n)   a buffer of n zeros plus the elements

All three are linear. The transpose of `gather_strided` is `scatter_add_strided`, and
the transpose of both others is `gather_strided`. JAX's transposes of the formulations
would accumulate in the dtype of the elements, would depend on whether 64-bit mode is on
when they are called, and would contain pads, which XLA partitions incorrectly. Leading
dimensions, which vmap adds, are batch dimensions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax._shared import bitwise, calls, lowering
from dml_jax.directml._strided import xla
from dml_jax.directml._strided.xla import Layout

gather_p = jax.extend.core.Primitive("gather_strided")
scatter_p = jax.extend.core.Primitive("scatter_strided")
scatter_add_p = jax.extend.core.Primitive("scatter_add_strided")


def gather_strided(buffer: jax.Array, layout: Layout) -> jax.Array:
    return gather_p.bind(buffer, layout=layout)


def scatter_strided(elements: jax.Array, layout: Layout, size: int) -> jax.Array:
    return scatter_p.bind(elements, layout=layout, size=size)


def scatter_add_strided(elements: jax.Array, layout: Layout, size: int) -> jax.Array:
    return scatter_add_p.bind(elements, layout=layout, size=size)


# Rules --------------------------------------------------------------------------------


def _with_shape(x: Any, batch: int, shape: tuple[int, ...]) -> Any:
    """The type of an array with `batch` leading dimensions of `x` and then `shape`."""
    spec = [*x.sharding.spec[:batch], *[None] * len(shape)]
    return x.update(
        shape=(*x.shape[:batch], *shape),
        sharding=NamedSharding(x.sharding.mesh, PartitionSpec(*spec)),
        weak_type=False,
    )


def _gather_abstract_eval(buffer: Any, *, layout: Layout):
    return _with_shape(buffer, buffer.ndim - 1, layout.sizes)


def _scatter_abstract_eval(elements: Any, *, layout: Layout, size: int):
    return _with_shape(elements, elements.ndim - len(layout.sizes), (size,))


def _gather_transpose(cotangent: Any, buffer: Any, *, layout: Layout):
    summed = scatter_add_strided(cotangent, layout, buffer.aval.shape[-1])
    return [lowering.reshard_like(buffer, summed)]


def _scatter_transpose(cotangent: Any, elements: Any, *, layout: Layout, size: int):
    del size
    return [lowering.reshard_like(elements, gather_strided(cotangent, layout))]


def _batch(primitive: Any, operands: Any, dimensions: Any, **params: Any):
    with bitwise.full_width(*operands):
        x = jnp.moveaxis(operands[0], dimensions[0], 0)
    return primitive.bind(x, **params), 0


# Lowering -----------------------------------------------------------------------------


def _lower(formulation: Callable[..., Any], ctx: Any, x: Any, **params: Any) -> Any:
    batch = ctx.avals_in[0].ndim
    batch -= 1 if formulation is xla.gather else len(params["layout"].sizes)
    is_partitioned = not lowering.is_unpartitioned(ctx)
    lowered = functools.partial(formulation, is_partitioned=is_partitioned, **params)
    for _ in range(batch):
        lowered = jax.vmap(lowered)
    ctx, mesh = lowering.without_explicit_axes(ctx)
    # Elements may have 64 bits, and so may positions beyond 2^31.
    with jax.enable_x64(True), jax.sharding.use_abstract_mesh(mesh):
        return mlir.lower_fun(lowered, multiple_results=False)(ctx, x)


for _primitive, _formulation, _options in (
    (gather_p, xla.gather, ("layout",)),
    (scatter_p, xla.scatter, ("layout", "size")),
    (scatter_add_p, xla.scatter_add, ("layout", "size")),
):
    _is_gather = _primitive is gather_p
    _primitive.def_impl(calls.compiled(_primitive, *_options))
    _primitive.def_abstract_eval(
        _gather_abstract_eval if _is_gather else _scatter_abstract_eval
    )
    ad.deflinear2(_primitive, _gather_transpose if _is_gather else _scatter_transpose)
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
    mlir.register_lowering(_primitive, functools.partial(_lower, _formulation))
