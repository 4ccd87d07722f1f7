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

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.extend.core
import jax.numpy as jnp
from jax import Array, lax
from jax.interpreters import ad, batching, mlir

from dml_jax._reverse import cpu, gpu, partitioning, tpu, xla
from dml_jax._shared import bitwise, calls, lowering, partitioner, taylor
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


def abstract_eval(x: Any, lengths: Any, *, axis: int, **_: Any) -> Any:
    """The type of the result, with the sharding and the varying manual axes of `x`."""
    shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
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
    broadcast = broadcast_dimensions(x.aval.shape, cotangent.shape)
    # Outside of jit, a sum over no dimensions would quiet signalling NaNs.
    if broadcast:
        cotangent = bitwise.sum_wide(cotangent, broadcast, keepdims=True)
    return cotangent, None


def broadcast_dimensions(
    shape: tuple[int, ...], result_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """The dimensions along which an array of `shape` was broadcast."""
    sizes = zip(shape, result_shape, strict=True)
    return tuple(d for d, (size, in_result) in enumerate(sizes) if size != in_result)


def _batch(operands: Any, dimensions: Any, *, axis: int, implementation: Any):
    x, lengths = with_leading_batch(operands, dimensions)
    return reverse(x, lengths, axis + 1, implementation), 0


def with_leading_batch(operands: Any, dimensions: Any) -> list[Array]:
    """The operands with the mapped dimension first, or with size 1 if not mapped."""
    return [
        lax.expand_dims(operand, (0,))
        if dimension is None
        else jnp.moveaxis(operand, dimension, 0)
        for operand, dimension in zip(operands, dimensions, strict=True)
    ]


reverse_subsequences_p.def_abstract_eval(abstract_eval)
ad.deflinear2(reverse_subsequences_p, _transpose)
ad.defjvp(reverse_subsequences_p, _jvp_of_x, None)  # not linear in the lengths
batching.primitive_batchers[reverse_subsequences_p] = _batch
taylor.define_linear(reverse_subsequences_p, constants=(1,))


# Lowering -----------------------------------------------------------------------------


class _Formulation(NamedTuple):
    """What a platform prefers to the gather.

    `reverse` takes an array, lengths and an axis, and returns None if it does not apply
    to them. Floats of up to `max_bits_as_uint` bits are passed as unsigned integers.
    """

    reverse: Callable[[Array, Array, int], Array | None]
    max_bits_as_uint: int = 16


def _in_lines(
    reverse: Callable[[Array, Array], Array | None],
) -> Callable[[Array, Array, int], Array | None]:
    """A formulation of arrays [rows, time, lines, step], for arrays of any rank.

    The lengths become [rows, 1, lines, 1]. A step has all consecutive elements that
    share a length.
    """

    def reverse_any_rank(x: Array, lengths: Array, axis: int) -> Array | None:
        shape = xla.broadcast_shape(x.shape, lengths.shape, axis)
        varying = [d for d in range(axis + 1, x.ndim) if lengths.shape[d] != 1]
        end = max(varying, default=axis) + 1
        outer, inner, step = shape[:axis], shape[axis + 1 : end], shape[end:]
        rows, lines = math.prod(outer), math.prod(inner)
        lengths = jnp.broadcast_to(lengths, (*outer, 1, *inner, *[1] * len(step)))
        x = jnp.broadcast_to(x, shape)
        y = reverse(
            x.reshape(rows, shape[axis], lines, math.prod(step)),
            lengths.reshape(rows, 1, lines, 1),
        )
        return None if y is None else y.reshape(shape)

    return reverse_any_rank


_PLATFORMS: dict[str | None, _Formulation] = {
    # XLA on CPU does not widen 16-bit floats here, and a separate bitcast would cost
    # another pass over memory.
    "cpu": _Formulation(_in_lines(cpu.reversed_windows), 8),
    "cuda": _Formulation(_in_lines(gpu.reverse)),
    # Not run on an AMD GPU, for which XLA generates loops by the same code.
    "rocm": _Formulation(_in_lines(gpu.gathered_parts)),
    # A TPU stores the last two dimensions in tiles, so its formulation takes arrays of
    # any rank. A separate bitcast of 16-bit floats would cost another pass over memory.
    "tpu": _Formulation(tpu.barrel_shift, 4),
}


def _compute(
    x: Array,
    lengths: Array,
    *,
    axis: int,
    implementation: Implementation | None,
    formulation: _Formulation | None = None,
    is_unpartitioned: bool = False,
    max_shards: int = 1,
) -> Array:
    """The reversal by the formulation if it applies, else by operations of XLA."""
    if any(map(jax.export.is_symbolic_dim, (*x.shape, *lengths.shape))):
        formulation, max_shards = None, 1
    if formulation is not None:
        as_uint = bitwise.width(x.dtype) <= formulation.max_bits_as_uint
        bits = bitwise.to_bits(x) if as_uint else x
        y = formulation.reverse(bits, lengths, axis)
        if y is not None:
            return bitwise.from_bits(y, x.dtype)
    if not is_unpartitioned:
        if max_shards > 1:
            return xla.rotate_and_flip(x, lengths, axis, max_shards)
        # XLA partitions a scatter with several times the memory of a gather.
        return bitwise.by_integers(lambda bits: xla.gather(bits, lengths, axis), x)
    plain = xla.scatter if implementation == "scatter" else xla.gather
    return plain(x, lengths, axis)


def _reverse_shards(
    axis: int, implementation: Implementation | None
) -> Callable[..., Array]:
    """The reversal of one device's shards."""
    reverse_lines = functools.partial(reverse, implementation=implementation)
    return functools.partial(partitioning.reverse_shards, reverse_lines, axis=axis)


def _lowering(platform: str | None) -> Callable[..., Any]:
    """The lowering rule of a platform; None is for all platforms without a rule."""

    def lower(ctx: Any, x: Any, lengths: Any, *, axis: int, implementation: Any):
        lowering.refuse_on_tpu(ctx, reverse_subsequences_p.name)
        params = {"axis": axis, "implementation": implementation}
        # XLA partitions the gather, and programs for platforms without a rule of their
        # own. For TPUs it has no callback (jax-ml/jax#38196).
        is_tpu = platform == "tpu"
        by_xla = implementation == "gather" or platform is None or is_tpu
        if not by_xla and lowering.is_partitioned_by_callback(ctx):
            lowered = partitioner.lower_partitioned(
                ctx,
                functools.partial(reverse, **params),
                _reverse_shards(**params),
                params,
                x,
                lengths,
            )
            if lowered is not None:
                return lowered
        is_unpartitioned = lowering.is_unpartitioned(ctx)
        is_free = implementation is None and is_unpartitioned
        rotates = is_tpu and implementation != "gather"
        if lowering.is_partly_manual(ctx):  # where XLA cannot partition a gather
            rotates = True
        compute = functools.partial(
            _compute,
            formulation=_PLATFORMS.get(platform) if is_free else None,
            is_unpartitioned=is_unpartitioned,
            max_shards=lowering.max_shards(ctx) if rotates else 1,
            **params,
        )
        return lowering.lower(ctx, compute, x, lengths)

    return lower


reverse_subsequences_p.def_impl(
    calls.compiled(reverse_subsequences_p, "axis", "implementation")
)
for _platform in (None, *_PLATFORMS):
    mlir.register_lowering(reverse_subsequences_p, _lowering(_platform), _platform)
