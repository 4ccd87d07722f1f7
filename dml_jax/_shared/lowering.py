"""What the primitives of several operators need where they are compiled."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.experimental.layout import Layout, with_layout_constraint
from jax.interpreters import mlir

from dml_jax._shared import bitwise, jax_versions


class Partitioning(NamedTuple):
    """What XLA may do to partition a program.

    Attributes:
      is_whole: XLA does not partition the program. Each operand is a whole array or,
        inside a `shard_map`, a shard.
      max_shards: the most shards into which XLA may divide a dimension.
      is_partly_manual: the program is inside a `shard_map` that leaves some axes of its
        mesh to XLA. There, XLA aborts on some gathers.
      calls_back: XLA can call back to partition an operator.
    """

    is_whole: bool = False
    max_shards: int = 1
    is_partly_manual: bool = False
    calls_back: bool = False


def partitioning(ctx: Any) -> Partitioning:
    """How XLA may partition the program of a lowering rule, also after an export."""
    with jax_versions.optional("the context of lowering rules"):
        module = ctx.module_context
        context: Any = module.axis_context
        is_final = not module.lowering_parameters.for_export
        if hasattr(context, "manual_axes"):
            manual, sizes = context.manual_axes, context.mesh.shape
            free = [size for name, size in sizes.items() if name not in manual]
            is_partly_manual = bool(manual and free)
            is_whole = is_final and not free
            return Partitioning(is_whole, math.prod(free), is_partly_manual)
        devices = getattr(context, "num_devices", None)
        # GSPMD, which JAX deprecates, would need a rule for propagation as well.
        uses_shardy = getattr(jax.config, "jax_use_shardy_partitioner", True)
        calls_back = is_final and uses_shardy and (devices or 1) > 1
        is_whole = is_final and devices == 1
        return Partitioning(is_whole, devices or 1, calls_back=calls_back)
    return Partitioning()


def lower(ctx: Any, function: Callable[..., jax.Array], *operands: Any) -> Any:
    """Lowers `function(*operands)` with the explicit axes of the mesh made automatic.

    XLA then partitions along them, and operations in `function` need no sharding rules.
    """
    ctx, mesh = _without_explicit_axes(ctx)
    # The 64-bit mode may have changed since the program was traced.
    width = bitwise.full_width(*ctx.avals_in)
    with jax.sharding.use_abstract_mesh(mesh), width:
        return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def _without_explicit_axes(ctx: Any) -> tuple[Any, Any]:
    """The context and its mesh, with explicit axes made automatic."""
    mesh = ctx.avals_out[0].sharding.mesh
    with jax_versions.optional("the context of lowering rules"):
        automatic = dict.fromkeys(mesh.explicit_axes, jax.sharding.AxisType.Auto)
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
    if not sharding.mesh.explicit_axes:
        return cotangent
    return jax.sharding.reshard(cotangent, sharding)


# TPU's compiler fails or aborts on some shapes with these dtypes.
_REFUSED_ON_TPU = ("int2", "uint2", "complex128")


def refuse_on_tpu(ctx: Any, operator: str, *others: str) -> None:
    """Raises an error if a program for TPUs has a dtype that they do not support.

    `others` are further dtypes that the operator does not support on TPU.
    """
    platforms = ctx.platforms or ctx.module_context.platforms
    name = ctx.avals_out[0].dtype.name
    if "tpu" in platforms and name in (*_REFUSED_ON_TPU, *others):
        raise NotImplementedError(f"{operator}: dtype {name} is not supported on TPU")


def compiled(primitive: Any, *options: str) -> Callable[..., Any]:
    """The implementation of a primitive outside `jit`: one compiled program.

    Public functions bind primitives under `jit`, so it runs only if `jit` is disabled,
    or under `jax_debug_nans`, when JAX runs a function again without `jit` to find
    where a NaN appeared.
    """

    def traced(*operands: jax.Array, **params: Any) -> Any:
        if not isinstance(operands[0], Tracer):  # it is called without `jit`
            raise FloatingPointError(
                f"invalid value (nan) encountered in {primitive.name}"
            )
        return primitive.bind(*operands, **params)

    traced.__name__ = primitive.name
    program = jax.jit(traced, static_argnames=options)

    def run(*operands: jax.Array, **params: Any) -> Any:
        with jax.disable_jit(False):
            return program(*operands, **params)

    return run


def materialize(x: jax.Array) -> jax.Array:
    """Makes XLA store `x` instead of fusing it into its consumers.

    An array that is already in memory is not copied.
    """
    with jax_versions.optional("`with_layout_constraint`"):
        return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
    return x
