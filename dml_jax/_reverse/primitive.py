"""The reversal as a JAX primitive: derivatives, batching, and the table of lowerings.

    reverse(x, lengths, axis, implementation)

The operands have the same rank, and broadcast against each other along every dimension
but `axis`. The lengths have size 1 along `axis` and lie in [0, axis size].

The operator is linear in `x`, an involution, and its own adjoint. JAX transposes a
gather into a scatter, which is several times slower. Here the JVP and the transpose
bind the primitive again, so every derivative of every order costs one gather. A
`custom_vjp` would lose forward mode, a `custom_jvp` would keep the scatter, and
`linear_call` has no batching rule.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import ad, batching, mlir

from dml_jax._reverse import cpu, gpu, partitioning, xla
from dml_jax._shared import bitwise, lowering, partitioner
from dml_jax._shared.arguments import Implementation

reverse_subsequences_p = jax.extend.core.Primitive("reverse_subsequences")


def reverse(
    x: Array, lengths: Array, axis: int, implementation: Implementation | None
) -> Array:
    """Binds the primitive."""
    return reverse_subsequences_p.bind(
        x, lengths, axis=axis, implementation=implementation
    )


# Rules --------------------------------------------------------------------------------


def _abstract_eval(x: Any, lengths: Any, **_: Any) -> Any:
    """The type of the result, with the sharding and the varying manual axes of `x`."""
    shape = jnp.broadcast_shapes(x.shape, lengths.shape)
    # A new ShapedArray would lose the varying manual axes; `update` keeps them.
    return x.update(shape=shape, sharding=_sharding(x, lengths), weak_type=False)


def _sharding(x: Any, lengths: Any) -> jax.sharding.NamedSharding:
    """The sharding of `x`, or of the lengths along dimensions that broadcast `x`."""
    mesh = lengths.sharding.mesh if x.sharding.mesh.empty else x.sharding.mesh
    spec = [
        of_lengths if size != length_size and length_size != 1 else of_x
        for size, length_size, of_x, of_lengths in zip(
            x.shape, lengths.shape, x.sharding.spec, lengths.sharding.spec, strict=True
        )
    ]
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def _jvp_of_x(tangent: Array, _: Any, lengths: Array, **params: Any):
    return reverse(tangent, lengths, **params)


def _transpose(cotangent: Array, x: Any, lengths: Array, **params: Any):
    cotangent = reverse(cotangent, lengths, **params)
    sizes = zip(x.aval.shape, cotangent.shape, strict=True)
    broadcast = [d for d, (size, of_result) in enumerate(sizes) if size != of_result]
    # Outside jit, a sum over no dimensions would quiet signalling NaNs.
    if not broadcast:
        return cotangent, None
    wide = dtype = cotangent.dtype
    if jnp.issubdtype(dtype, jnp.inexact):
        wide = np.promote_types(dtype, np.float32)
    with bitwise.full_width(cotangent):
        total = cotangent.sum(broadcast, wide, keepdims=True)
        return total.astype(dtype), None


def _batch(operands: Any, dimensions: Any, *, axis: int, implementation: Any):
    # The mapped dimension comes first, with size 1 for an operand that is not mapped.
    x, lengths = (
        lax.expand_dims(operand, (0,)) if d is None else jnp.moveaxis(operand, d, 0)
        for operand, d in zip(operands, dimensions, strict=True)
    )
    return reverse(x, lengths, axis + 1, implementation), 0


reverse_subsequences_p.def_abstract_eval(_abstract_eval)
ad.deflinear2(reverse_subsequences_p, _transpose)
ad.defjvp(reverse_subsequences_p, _jvp_of_x, None)  # not linear in the lengths
batching.primitive_batchers[reverse_subsequences_p] = _batch


# Lowering -----------------------------------------------------------------------------


class _Formulation(NamedTuple):
    """What a platform runs instead of XLA's gather.

    `reverse` takes an array [rows, time, lines, step] and lengths [rows, 1, lines, 1],
    and returns None if it does not apply to them. A step is a run of neighbours with
    one length. Floats of up to `max_bits_as_uint` bits are passed as unsigned integers.
    """

    reverse: Callable[[Array, Array], Array | None]
    max_bits_as_uint: int = 16

    def apply(self, x: Array, lengths: Array, axis: int) -> Array | None:
        """The reversal of an array of any rank."""
        shape = jnp.broadcast_shapes(x.shape, lengths.shape)
        end = xla.start_of_step(lengths.shape, axis)
        outer, inner, step = shape[:axis], shape[axis + 1 : end], shape[end:]
        rows, lines = math.prod(outer), math.prod(inner)
        as_uint = bitwise.width(x.dtype) <= self.max_bits_as_uint
        bits = jnp.broadcast_to(bitwise.to_bits(x) if as_uint else x, shape)
        lengths = jnp.broadcast_to(lengths, (*outer, 1, *inner, *[1] * len(step)))
        y = self.reverse(
            bits.reshape(rows, shape[axis], lines, math.prod(step)),
            lengths.reshape(rows, 1, lines, 1),
        )
        return None if y is None else bitwise.from_bits(y.reshape(shape), x.dtype)


_FORMULATIONS: dict[str | None, _Formulation] = {
    # XLA on CPU does not widen 16-bit floats here, and a separate bitcast would cost
    # another pass over memory.
    "cpu": _Formulation(cpu.reversed_windows, max_bits_as_uint=8),
    "cuda": _Formulation(gpu.reverse),
    # Not tested on AMD GPUs. XLA generates their loops by the same code.
    "rocm": _Formulation(gpu.gathered_parts),
}


def _compute(
    x: Array,
    lengths: Array,
    *,
    axis: int,
    implementation: Implementation | None,
    formulation: _Formulation | None,
    uses_rotations: bool,
    program: lowering.Partitioning,
) -> Array:
    """The reversal by the formulation if it applies, else by operations of XLA."""
    is_static = not any(map(jax.export.is_symbolic_dim, (*x.shape, *lengths.shape)))
    if program.is_whole:
        if implementation == "scatter":
            return xla.scatter(x, lengths, axis)
        if formulation is not None and is_static:
            y = formulation.apply(x, lengths, axis)
            if y is not None:
                return y
    if (uses_rotations and is_static) and (
        program.max_shards > 1 or not xla.has_long_steps(x.shape, lengths.shape, axis)
    ):
        return xla.rotate_and_flip(x, lengths, axis, program.max_shards)
    if program.is_whole:
        return xla.gather(x, lengths, axis)
    # XLA partitions a scatter with several times the memory of a gather.
    return bitwise.by_integers(lambda bits: xla.gather(bits, lengths, axis), x)


def _lowering(platform: str | None) -> Callable[..., Any]:
    """The lowering rule of a platform; None is for all platforms without a rule."""

    def lower(ctx: Any, x: Any, lengths: Any, *, axis: int, implementation: Any):
        lowering.refuse_on_tpu(ctx, reverse_subsequences_p.name)
        params = {"axis": axis, "implementation": implementation}
        # XLA partitions the gather, and programs for platforms without a rule of their
        # own. On TPU it cannot call back into this package (jax-ml/jax#38196).
        is_left_to_xla = implementation == "gather" or platform in (None, "tpu")
        program = lowering.partitioning(ctx)
        if program.calls_back and not is_left_to_xla:
            whole = functools.partial(reverse, **params)
            of_shards = functools.partial(
                partitioning.reverse_shards,
                functools.partial(reverse, implementation=implementation),
                axis=axis,
            )
            lowered = partitioner.lower_partitioned(
                ctx, whole, of_shards, params, x, lengths
            )
            if lowered is not None:
                return lowered
        is_slow_gather = platform == "tpu" and implementation != "gather"
        compute = functools.partial(
            _compute,
            formulation=_FORMULATIONS.get(platform) if implementation is None else None,
            uses_rotations=is_slow_gather or program.is_partly_manual,
            program=program,
            **params,
        )
        return lowering.lower(ctx, compute, x, lengths)

    return lower


reverse_subsequences_p.def_impl(
    lowering.compiled(reverse_subsequences_p, "axis", "implementation")
)
for _platform in (None, "tpu", *_FORMULATIONS):
    mlir.register_lowering(reverse_subsequences_p, _lowering(_platform), _platform)
