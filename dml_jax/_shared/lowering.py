"""What lowering rules ask of their context, and what their programs share."""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.layout import Layout, with_layout_constraint

from dml_jax._shared import jax_versions


def sees_full_arrays(ctx: Any) -> bool:
    """Whether a lowering rule, given its context, sees whole arrays or manual shards.

    If not, XLA partitions the program, or may do so where it is exported to.
    """
    if ctx.module_context.lowering_parameters.for_export:
        return False
    context: Any = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):
        return set(context.manual_axes) == set(context.mesh.axis_names)
    return getattr(context, "num_devices", None) == 1


def is_spmd_partitioned(ctx: Any) -> bool:
    """Whether XLA divides a lowering rule's program among a known number of devices."""
    if ctx.module_context.lowering_parameters.for_export:
        return False
    return getattr(ctx.module_context.axis_context, "num_devices", 1) > 1


def has_explicit_shardings(ctx: Any) -> bool:
    """Whether the operands of a lowering rule state how they are divided."""
    meshes = [aval.sharding.mesh for aval in ctx.avals_in]
    return any(getattr(mesh, "explicit_axes", ()) for mesh in meshes)


def without_explicit_axes(ctx: Any) -> tuple[Any, Any]:
    """A lowering rule's context with shardings left to XLA, and its mesh."""
    mesh = ctx.avals_out[0].sharding.mesh
    explicit = {
        name: jax.sharding.AxisType.Auto for name in getattr(mesh, "explicit_axes", ())
    }
    mesh = mesh.update_axis_types(explicit)

    def left(aval):
        spec = jax.sharding.PartitionSpec(*[None] * aval.ndim)
        return aval.update(sharding=jax.sharding.NamedSharding(mesh, spec))

    avals_in, avals_out = map(left, ctx.avals_in), map(left, ctx.avals_out)
    return ctx.replace(avals_in=[*avals_in], avals_out=[*avals_out]), mesh


def available(ctx: Any, ways: tuple, kernels: frozenset) -> tuple:
    """Those of some ways to compute that a lowering rule's program can have."""
    if not sees_full_arrays(ctx):
        return ()
    if kernels.isdisjoint(ways) or jax_versions.runs_mosaic():
        return ways
    return tuple(way for way in ways if way not in kernels)


def materialize(x: jax.Array) -> jax.Array:
    """`x`, which XLA computes on its own instead of fusing it with what uses it.

    What is in memory already is not copied.
    """
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
