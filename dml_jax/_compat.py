"""What one supported JAX version calls otherwise than another, bridged here only."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The manual mesh axes along which `x` differs from device to device."""
    aval = jax.typeof(x)
    if hasattr(aval, "manual_axis_type"):
        return aval.manual_axis_type.varying
    return aval.vma  # before jax 0.9


def vary_over(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    """`x`, declared to differ along `axes` too."""
    missing = tuple(axes - varying_axes(x))
    if not missing:
        return x
    if hasattr(lax, "pcast"):
        return lax.pcast(x, missing, to="varying")
    return lax.pvary(x, missing)  # pyright: ignore[reportAttributeAccessIssue]


def is_whole(ctx: Any) -> bool:
    """Whether a lowering rule, given its context, sees whole arrays or manual shards.

    If not, XLA partitions the program, or may do so where it is exported to.
    """
    if ctx.module_context.lowering_parameters.for_export:
        return False
    context: Any = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):
        return set(context.manual_axes) == set(context.mesh.axis_names)
    return getattr(context, "num_devices", None) == 1


def is_divided(ctx: Any) -> bool:
    """Whether XLA divides a lowering rule's program among a known number of devices."""
    if ctx.module_context.lowering_parameters.for_export:
        return False
    return getattr(ctx.module_context.axis_context, "num_devices", 1) > 1


def is_explicit(ctx: Any) -> bool:
    """Whether the operands of a lowering rule state how they are divided."""
    meshes = [aval.sharding.mesh for aval in ctx.avals_in]
    return any(getattr(mesh, "explicit_axes", ()) for mesh in meshes)


def without_explicit_axes(ctx: Any) -> tuple[Any, Any]:
    """A lowering rule's context with shardings left to XLA, and its mesh."""
    mesh = ctx.avals_in[0].sharding.mesh
    explicit = {
        name: jax.sharding.AxisType.Auto for name in getattr(mesh, "explicit_axes", ())
    }
    mesh = mesh.update_axis_types(explicit)

    def left(aval):
        spec = jax.sharding.PartitionSpec(*[None] * aval.ndim)
        return aval.update(sharding=jax.sharding.NamedSharding(mesh, spec))

    avals_in, avals_out = map(left, ctx.avals_in), map(left, ctx.avals_out)
    return ctx.replace(avals_in=[*avals_in], avals_out=[*avals_out]), mesh


# Before, Pallas refuses copies to shared memory that are not of 128 bytes, or so many.
COPIES_ANY_ROWS = jax.__version_info__ >= (0, 11, 2)
_SPEAKS_MOSAIC = (0, 10, 2) <= jax.__version_info__ < (0, 13)
_HOPPER = 9  # the compute capability of the GPUs that the kernels were tried on


def available(ctx: Any, ways: tuple, kernels: frozenset) -> tuple:
    """Those of some ways to compute that a lowering rule's program can have."""
    if not is_whole(ctx):
        return ()
    if kernels.isdisjoint(ways) or runs_mosaic():
        return ways
    return tuple(way for way in ways if way not in kernels)


def launch(kernel: Any, *operands: jax.Array) -> Any:
    """The result of a Mosaic kernel.

    Pallas keeps the references of a kernel's scope in its jaxpr since jax 0.11, which
    a check of leaks takes for leaks, also of an empty kernel.
    """
    with jax.check_tracer_leaks(False):
        return kernel(*operands)


def runs_mosaic() -> bool:
    """Whether every CUDA device there is takes our Mosaic kernels.

    A lowering rule is not told which of them its program is for. Pallas promises no
    stability: the versions are those with which the kernels were lowered, at least.
    """
    try:
        devices = jax.devices("cuda")
    except RuntimeError:  # a program for CUDA is lowered elsewhere
        return False
    return _SPEAKS_MOSAIC and all(
        int(float(device.compute_capability)) == _HOPPER for device in devices
    )
