"""Strided reads and writes of flat buffers as JAX primitives.

    gather_strided(buffer, layout)             the elements at the strides of a layout
    scatter_strided(elements, buffer, layout)  the buffer with these elements replaced
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

from dml_jax._shared import bitwise, calls, jax_versions, lowering
from dml_jax.directml._strided import xla
from dml_jax.directml._strided.xla import Layout

gather_p = jax.extend.core.Primitive("gather_strided")
scatter_p = jax.extend.core.Primitive("scatter_strided")
scatter_add_p = jax.extend.core.Primitive("scatter_add_strided")


def gather_strided(buffer: jax.Array, layout: Layout) -> jax.Array:
    return gather_p.bind(buffer, layout=layout)


def scatter_strided(
    elements: jax.Array, buffer: jax.Array, layout: Layout
) -> jax.Array:
    axes = jax_versions.varying_axes(elements) | jax_versions.varying_axes(buffer)
    operands = [jax_versions.vary_over(x, axes) for x in (elements, buffer)]
    return scatter_p.bind(*operands, layout=layout)


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


def _scatter_abstract_eval(_elements: Any, buffer: Any, **_: Any):
    return _with_shape(buffer, buffer.ndim - 1, buffer.shape[-1:])


def _scatter_add_abstract_eval(elements: Any, *, layout: Layout, size: int):
    return _with_shape(elements, elements.ndim - len(layout.sizes), (size,))


def _scatter_jvp(primals: Any, tangents: Any, *, layout: Layout):
    elements, buffer = primals
    y = scatter_strided(elements, buffer, layout)
    if all(type(tangent) is ad.Zero for tangent in tangents):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    with bitwise.full_width(y):
        by_elements, by_buffer = map(ad.instantiate_zeros, tangents)
    return y, scatter_strided(by_elements, by_buffer, layout)


def _gather_transpose(cotangent: Any, buffer: Any, *, layout: Layout):
    size = buffer.aval.shape[-1]
    return (
        lowering.reshard_like(buffer, scatter_add_strided(cotangent, layout, size)),
    )


def _scatter_transpose(cotangent: Any, elements: Any, buffer: Any, *, layout: Layout):
    by_elements = by_buffer = None
    if ad.is_undefined_primal(elements):
        by_elements = lowering.reshard_like(elements, gather_strided(cotangent, layout))
    if ad.is_undefined_primal(buffer):
        shape = (*cotangent.shape[:-1], *layout.sizes)
        with bitwise.full_width(cotangent):
            zeros = jnp.zeros(shape, cotangent.dtype)
        by_buffer = lowering.reshard_like(
            buffer, scatter_strided(zeros, cotangent, layout)
        )
    return by_elements, by_buffer


def _scatter_add_transpose(cotangent: Any, elements: Any, *, layout: Layout, **_: Any):
    return (lowering.reshard_like(elements, gather_strided(cotangent, layout)),)


def _batch(bind: Callable[..., Any], operands: Any, dimensions: Any, **params: Any):
    """Adds a leading batch dimension, along which unmapped operands are broadcast."""
    size = next(
        x.shape[d] for x, d in zip(operands, dimensions, strict=True) if d is not None
    )
    with bitwise.full_width(*operands):
        moved = [
            jnp.broadcast_to(x, (size, *x.shape))
            if d is None
            else jnp.moveaxis(x, d, 0)
            for x, d in zip(operands, dimensions, strict=True)
        ]
    return bind(*moved, **params), 0


# Lowering -----------------------------------------------------------------------------


def _batched(
    formulation: Callable[..., jax.Array], *operands: jax.Array, **params: Any
) -> jax.Array:
    """A formulation for flat buffers, mapped over all leading dimensions."""
    function = functools.partial(formulation, **params)
    is_gather = formulation in (xla.gather, xla.gather_partitioned)
    rank = 1 if is_gather else len(params["layout"].sizes)
    for _ in range(operands[0].ndim - rank):
        function = jax.vmap(function)
    return function(*operands)


def _lowering(
    formulation: Callable[..., Any], partitioned: Callable[..., Any]
) -> Callable[..., Any]:
    """A lowering rule with formulations for one device and for several devices."""

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        chosen = formulation if lowering.is_unpartitioned(ctx) else partitioned
        lowered = functools.partial(_batched, chosen, **params)
        ctx, mesh = lowering.without_explicit_axes(ctx)
        with bitwise.full_width(*ctx.avals_in), jax.sharding.use_abstract_mesh(mesh):
            return mlir.lower_fun(lowered, multiple_results=False)(ctx, *operands)

    return lower


def _define(
    primitive: jax.extend.core.Primitive,
    bind: Callable[..., Any],
    abstract_eval: Callable[..., Any],
    transpose: Callable[..., Any],
    *formulations: Callable[..., Any],
) -> None:
    options = ("layout", "size") if primitive is scatter_add_p else ("layout",)
    primitive.def_impl(calls.compiled(primitive, *options))
    primitive.def_abstract_eval(abstract_eval)
    ad.deflinear2(primitive, transpose)
    batching.primitive_batchers[primitive] = functools.partial(_batch, bind)
    mlir.register_lowering(primitive, _lowering(*formulations))


_define(
    gather_p,
    gather_strided,
    _gather_abstract_eval,
    _gather_transpose,
    xla.gather,
    xla.gather_partitioned,
)
_define(
    scatter_p,
    scatter_strided,
    _scatter_abstract_eval,
    _scatter_transpose,
    xla.scatter,
    xla.scatter_partitioned,
)
_define(
    scatter_add_p,
    scatter_add_strided,
    _scatter_add_abstract_eval,
    _scatter_add_transpose,
    xla.scatter_add,
    xla.scatter_add_partitioned,
)
# The default rule creates zeros in the current mode, which may lack 64 bits.
ad.primitive_jvps[scatter_p] = _scatter_jvp
