"""The two fills, and the primitive of sequences.

    fill_value_sequence(start, delta, sizes)

The result of the primitive has the dimensions that start and delta have under `vmap`,
which broadcast against each other, and those of `sizes`. The primitive is linear: the
tangent of a sequence is the sequence of the tangents. The operations of the formula are
in its lowering alone, so float64 does not depend on the 64-bit mode of the program.
"""

import functools
import math
from typing import Any

import jax
import jax.export
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core.primitives import add_p
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax._shared import bitwise, jax_versions, lowering
from dml_jax._shared.arguments import Shape

sequence_p = jax.extend.core.Primitive("fill_value_sequence")


def constant(sizes: Shape, value: Array) -> Array:
    """The value everywhere, with every bit."""
    if bitwise.is_narrow_float(value.dtype):
        return _narrow_constant(sizes, value)
    return lax.full(sizes, value)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _narrow_constant(sizes: Shape, value: Array) -> Array:
    bits = bitwise.to_bits(value)
    if value.dtype == jnp.bfloat16:
        # LLVM broadcasts a bfloat16 by way of float32, which quiets NaNs and loses
        # subnormals. It broadcasts the result of an operation on integers as an
        # integer. Without the barrier, XLA computes the result for a known value.
        bits = lax.optimization_barrier(bits)
        bits = bits | bitwise.unknown_zeros(bits)
    return bitwise.from_bits(lax.full(sizes, bits), value.dtype)


@_narrow_constant.defjvp
def _narrow_constant_jvp(sizes: Shape, primals: Any, tangents: Any) -> Any:
    (value,), (tangent,) = primals, tangents
    # So that the cotangent is a sum in float32.
    wide = lax.full(sizes, tangent.astype(np.float32))
    return _narrow_constant(sizes, value), wide.astype(value.dtype)


# Sequences ----------------------------------------------------------------------------


def sequence(sizes: Shape, start: Array, delta: Array) -> Array:
    """`start + k * delta` at row-major position k, in the dtype of both."""
    axes = jax_versions.varying_axes(start) | jax_versions.varying_axes(delta)
    start, delta = (jax_versions.vary_over(x, axes) for x in (start, delta))
    return sequence_p.bind(start, delta, sizes=sizes)


def _abstract_eval(start: Any, delta: Any, *, sizes: Shape) -> tuple[Any, Any]:
    total, effects = add_p.abstract_eval(start, delta)
    spec = PartitionSpec(*total.sharding.spec, *[None] * len(sizes))
    has_mesh = not (start.sharding.mesh.empty and delta.sharding.mesh.empty)
    mesh = total.sharding.mesh if has_mesh else jax.sharding.get_abstract_mesh()
    sharding = NamedSharding(mesh, spec)
    shape = (*total.shape, *sizes)
    return total.update(shape=shape, sharding=sharding, weak_type=False), effects


def _transpose(cotangent: Any, *scalars: Any, sizes: Shape) -> list[Any]:
    """The sum for start, and the sum of k times the cotangent for delta."""
    wide = np.promote_types(cotangent.dtype, np.float32)
    with bitwise.full_width(wide):
        cotangent = lax.convert_element_type(cotangent, wide)
        rank = cotangent.ndim - len(sizes)
        k = lax.expand_dims(_position(sizes).astype(wide), range(rank))
        return [
            _sum_like(scalar.aval, factor) if ad.is_undefined_primal(scalar) else None
            for scalar, factor in zip(scalars, (cotangent, cotangent * k), strict=True)
        ]


def _sum_like(aval: Any, x: Array) -> Array:
    """The sum over the dimensions that `aval` lacks, or has with size 1."""
    total = x.sum(tuple(range(aval.ndim, x.ndim)))
    ones = tuple(d for d in range(aval.ndim) if aval.shape[d] != total.shape[d])
    return total.sum(ones, keepdims=True).astype(aval.dtype)


def _lower(ctx: Any, *scalars: Any, sizes: Shape) -> Any:
    # TPUs compute float64 as the sum of two float32, without its rounding.
    lowering.refuse_on_tpu(ctx, "fill_value_sequence", "float64")
    # With explicit axes, the type of the result says that it is replicated. XLA is not
    # told so. It shards the fill like its readers, and each device computes its shard.
    return lowering.lower(ctx, functools.partial(_compute, sizes), *scalars)


def _compute(sizes: Shape, start: Array, delta: Array) -> Array:
    """Integers modulo 2^bits; floats in float64, converted once."""
    dtype = start.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = [(start.real, delta.real), (start.imag, delta.imag)]
        return lax.complex(*(_compute(sizes, *part) for part in parts))
    word = np.dtype(np.uint64 if dtype.itemsize == 8 else np.uint32)
    if jnp.issubdtype(dtype, jnp.floating):
        word = np.dtype(np.float64)
    shape = (*jnp.broadcast_shapes(start.shape, delta.shape), *sizes)

    def everywhere(x: Array) -> Array:
        x = lax.expand_dims(x.astype(word), range(x.ndim, x.ndim + len(sizes)))
        return jnp.broadcast_to(x, shape)

    with bitwise.full_width(word):
        k = jnp.broadcast_to(_position(sizes).astype(word), shape)
        # XLA simplifies 0 + x to x if 0 is a literal, although 0 + -0 is 0. `jnp` would
        # report NaNs under `jax_error_checking_behavior_nan`.
        total = lax.sub(everywhere(start), lax.mul(k, lax.neg(everywhere(delta))))
        if dtype in (jnp.bfloat16, jnp.float16):
            total = _rounded(total, int(jnp.finfo(dtype).nmant))
        return total.astype(dtype)


def _rounded(x: Array, bits: int) -> Array:
    # XLA converts float64 to 16 bits by way of float32, which would round first. TPUs
    # have no `reduce_precision` of float64.
    return lax.platform_dependent(
        x, tpu=lambda x: x, default=lambda x: lax.reduce_precision(x, 11, bits)
    )


def _position(sizes: Shape) -> Array:
    """The row-major position of every element; in uint64 for more than 2^32 elements.

    It is a sum over the dimensions instead of a reshaped iota, so that each device
    computes only the positions of its shard. Its dtype is an integer: XLA partitions an
    iota incorrectly if its dtype rounds the positions.
    """
    count = math.prod(sizes)
    is_long = jax.export.is_symbolic_dim(count) or count > 2**32
    counter = np.dtype(np.uint64 if is_long else np.uint32)
    with jax.enable_x64(True):
        total, stride = lax.full(sizes, 0, counter), jnp.ones((), counter)
        for d in reversed(range(len(sizes))):
            total = total + _iota(sizes, d, counter) * stride
            # By factors, since JAX multiplies symbolic sizes in 32 bits.
            stride = stride * jnp.asarray(sizes[d]).astype(counter)
    return total


def _iota(sizes: Shape, d: int, counter: np.dtype) -> Array:
    """`lax.broadcasted_iota`, also for sizes of 2^31 and more.

    XLA multiplies the index of a shard by its size in 32 bits. So an iota of such a
    size is composed of two dimensions, of which XLA shards the first.
    """
    size = sizes[d]
    if jax.export.is_symbolic_dim(size) or size < 2**31 or counter == np.uint32:
        return lax.broadcasted_iota(counter, sizes, d)
    columns = 2 ** (size.bit_length() - 31)
    shape = (-(-size // columns), columns)
    row, column = (lax.broadcasted_iota(counter, shape, axis) for axis in (0, 1))
    index = (row * counter.type(columns) + column).reshape(-1)[:size]
    return lax.broadcast_in_dim(index, sizes, (d,))


sequence_p.def_impl(lowering.compiled(sequence_p, "sizes"))
sequence_p.def_effectful_abstract_eval(_abstract_eval)
ad.deflinear2(sequence_p, _transpose)
batching.defbroadcasting(sequence_p)
mlir.register_lowering(sequence_p, _lower)
