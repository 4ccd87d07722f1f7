"""Helpers for lowering rules: partitioning, formulations, and stored arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.interpreters import mlir

from dml_jax._shared import bitwise, jax_versions


def is_unpartitioned(ctx: Any) -> bool:
    """True if each operand is a whole array, or a shard inside `shard_map`.

    False if XLA partitions the program, or may partition it after export.
    """
    with jax_versions.optional("the context of lowering rules"):
        if ctx.module_context.lowering_parameters.for_export:
            return False
        context: Any = ctx.module_context.axis_context
        if hasattr(context, "manual_axes"):
            return set(context.manual_axes) == set(context.mesh.axis_names)
        return getattr(context, "num_devices", None) == 1
    return False


def max_shards(ctx: Any) -> int:
    """The most shards into which XLA may divide a dimension."""
    with jax_versions.optional("the context of lowering rules"):
        context: Any = ctx.module_context.axis_context
        if hasattr(context, "manual_axes"):
            sizes = context.mesh.shape.items()
            return math.prod(n for name, n in sizes if name not in context.manual_axes)
        return getattr(context, "num_devices", 1)
    return 1


def is_partly_manual(ctx: Any) -> bool:
    """True inside a `shard_map` that leaves some axes of its mesh to XLA.

    XLA ends the process where it partitions some gathers there.
    """
    with jax_versions.optional("the context of lowering rules"):
        context: Any = ctx.module_context.axis_context
        manual = getattr(context, "manual_axes", ())
        return bool(manual) and set(manual) != set(context.mesh.axis_names)
    return False


def is_partitioned_by_callback(ctx: Any) -> bool:
    """Whether XLA's partitioner can call back to partition an operator.

    The number of devices must be known.
    """
    with jax_versions.optional("the context of lowering rules"):
        if ctx.module_context.lowering_parameters.for_export:
            return False
        devices = getattr(ctx.module_context.axis_context, "num_devices", 1)
        return devices > 1
    return False


def lower(ctx: Any, function: Callable[..., jax.Array], *operands: Any) -> Any:
    """Lowers `function(*operands)`, which XLA partitions along explicit axes too.

    The operations of `function` need no rules for shardings that are part of a type.
    """
    ctx, mesh = without_explicit_axes(ctx)
    # The 64-bit mode may have changed since the program was traced.
    width = bitwise.full_width(*ctx.avals_in)
    with jax.sharding.use_abstract_mesh(mesh), width:
        return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def without_explicit_axes(ctx: Any) -> tuple[Any, Any]:
    """The context and its mesh, with explicit axes made automatic."""
    mesh = ctx.avals_out[0].sharding.mesh
    with jax_versions.optional("the context of lowering rules"):
        automatic = dict.fromkeys(
            getattr(mesh, "explicit_axes", ()), jax.sharding.AxisType.Auto
        )
        mesh = mesh.update_axis_types(automatic)

        def without_spec(aval: Any) -> Any:
            spec = jax.sharding.PartitionSpec(*[None] * aval.ndim)
            return aval.update(sharding=jax.sharding.NamedSharding(mesh, spec))

        avals_in = [without_spec(aval) for aval in ctx.avals_in]
        avals_out = [without_spec(aval) for aval in ctx.avals_out]
        return ctx.replace(avals_in=avals_in, avals_out=avals_out), mesh
    return ctx, mesh


def reshard_like(operand: Any, cotangent: jax.Array) -> jax.Array:
    """`cotangent` with the sharding of `operand`, on a mesh with explicit axes."""
    sharding = operand.aval.sharding
    if not getattr(sharding.mesh, "explicit_axes", ()):
        return cotangent
    return jax.sharding.reshard(cotangent, sharding)


# With these, TPU's compiler fails on some shapes, or ends its process.
_REFUSED_ON_TPU = ("int2", "uint2", "complex128")


def refuse_on_tpu(ctx: Any, operator: str, *others: str) -> None:
    """Raises an error if a program for TPUs has a dtype that they do not support.

    `others` are dtypes that the operator does not support there.
    """
    platforms = ctx.platforms or ctx.module_context.platforms
    name = ctx.avals_out[0].dtype.name
    if "tpu" in platforms and name in (*_REFUSED_ON_TPU, *others):
        raise NotImplementedError(f"{operator}: dtype {name} is not supported on TPU")


def materialize(x: jax.Array) -> jax.Array:
    """Makes XLA store `x` instead of fusing it into its consumers.

    An array that is already in memory is not copied.
    """
    with jax_versions.optional("`with_layout_constraint`"):
        return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
    return x
