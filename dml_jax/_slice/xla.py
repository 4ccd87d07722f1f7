"""The slice and its transpose for any platform."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from dml_jax._shared import bitwise
from dml_jax._slice.window import Window, WindowDimension, unreversed


def strided_slice(x: Array, window: Window) -> Array:
    """`lax.slice` and `lax.rev`."""
    bits = _reversed(slice_forwards(bitwise.to_bits(x), window), window)
    return bitwise.from_bits(bits, x.dtype)


def slice_forwards(x: Array, window: Window) -> Array:
    """`lax.slice`."""
    starts = [part.start for part in window]
    limits = [part.limit for part in window]
    return lax.slice(x, starts, limits, [part.stride for part in window])


def _reversed(bits: Array, window: Window) -> Array:
    return lax.rev(bits, [d for d, part in enumerate(window) if part.is_reversed])


def strided_slice_transpose(x: Array, shape: tuple[int, ...], window: Window) -> Array:
    """`lax.rev`, and `lax.pad` with zeros between the elements."""
    bits = _reversed(bitwise.to_bits(x), window)
    pad = functools.partial(pad_forwards, shape=shape, window=window)

    def pad_on_cpu(bits: Array) -> Array:
        # On CPU a pad is a select between an element and zero. If the result is used as
        # bfloat16, LLVM selects in bfloat16, which goes through float32 and quiets
        # NaNs. The OR needs integers.
        return pad(bits) | bitwise.unknown_zeros(bits[(0,) * bits.ndim])

    if bits.dtype != jnp.uint16 or bits.size == 0:
        return bitwise.from_bits(pad(bits), x.dtype)
    bits = lax.platform_dependent(bits, cpu=pad_on_cpu, default=pad)
    return bitwise.from_bits(bits, x.dtype)


def pad_forwards(x: Array, shape: tuple[int, ...], window: Window) -> Array:
    """`lax.pad` with zeros between the elements."""
    padding = [
        (part.start, size - part.limit, part.stride - 1)
        for part, size in zip(window, shape, strict=True)
    ]
    return lax.pad(x, jnp.zeros((), x.dtype), padding)


def reverse(x: Array, window: Window) -> Array:
    """`lax.rev`."""
    return bitwise.from_bits(_reversed(bitwise.to_bits(x), window), x.dtype)


def spread(x: Array, shape: tuple[int, ...], window: Window, max_shards: int) -> Array:
    """The transpose in operations that XLA partitions without a gather.

    XLA incorrectly partitions a pad between elements (docs/xla.md), so a reshape puts
    the zeros there. XLA also incorrectly pads a dimension that has fewer elements than
    shards, so such dimensions are gathered.
    """
    few = [d for d, part in enumerate(window) if part.size < max_shards]
    rest = tuple(
        part if d in few else WindowDimension(0, shape[d])
        for d, part in enumerate(unreversed(window))
    )

    def transpose(bits: Array) -> Array:
        bits = _reversed(bits, window)
        for d, (extent, part) in enumerate(zip(shape, window, strict=True)):
            if part.size == extent or d in few:
                continue
            bits = _spread_along(bits, d, extent, part.start, part.stride, max_shards)
        return gather_and_select(_replicated_along(bits, few), shape, rest)

    return bitwise.by_integers(transpose, x)


def _replicated_along(bits: Array, dims: list[int]) -> Array:
    """`bits`, not sharded along `dims`, inside a `shard_map` over some axes of a mesh.

    There, XLA aborts if a gather needs elements of other devices.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes or not dims:
        return bits
    free = PartitionSpec.UNCONSTRAINED
    entries = [None if d in dims else free for d in range(bits.ndim)]
    return lax.with_sharding_constraint(bits, PartitionSpec(*entries))


def _spread_along(
    bits: Array, d: int, extent: int, start: int, stride: int, max_shards: int
) -> Array:
    if stride > 1:
        # A reshape divides only a multiple of the number of shards.
        bits = _pad(bits, d, 0, -bits.shape[d] % max_shards)
        spread_size = bits.shape[d] * stride
        bits = _pad(lax.expand_dims(bits, (d + 1,)), d + 1, 0, stride - 1)
        bits = bits.reshape(*bits.shape[:d], spread_size, *bits.shape[d + 2 :])
    size = min(bits.shape[d], extent - start)
    bits = lax.slice_in_dim(bits, 0, size, axis=d)
    return _pad(bits, d, start, extent - start - size)


def _pad(bits: Array, d: int, low: int, high: int) -> Array:
    padding = [(low, high, 0) if axis == d else (0, 0, 0) for axis in range(bits.ndim)]
    return lax.pad(bits, jnp.zeros((), bits.dtype), padding)


def gather_and_select(x: Array, shape: tuple[int, ...], window: Window) -> Array:
    """The transpose as a gather and a select, which XLA partitions correctly."""

    def transpose(bits: Array) -> Array:
        for d, (extent, part) in enumerate(zip(shape, window, strict=True)):
            if part.is_reversed:
                bits = lax.rev(bits, (d,))
            if part.size == extent:
                continue
            if part.size == 0:
                return jnp.zeros(shape, bits.dtype)
            bits = _gather_and_select_along(bits, d, extent, part)
        if bits.dtype != jnp.uint16:
            return bits
        # As in `strided_slice_transpose`. Each element has its own zero, since the
        # operand may be sharded.
        return lax.platform_dependent(
            bits,
            cpu=lambda bits: bits | bitwise.unknown_zeros(bits),
            default=lambda bits: bits,
        )

    with bitwise.full_width(x):
        return bitwise.by_integers(transpose, x)


def _gather_and_select_along(
    bits: Array, d: int, extent: int, part: WindowDimension
) -> Array:
    dtype = bitwise.index_dtype(extent)
    with bitwise.full_width(dtype, bits):
        offset = lax.iota(dtype, extent) - jnp.asarray(part.start).astype(dtype)
        index = offset // part.stride
        is_element = (offset >= 0) & (offset % part.stride == 0) & (index < part.size)
        others = [other for other in range(bits.ndim) if other != d]
        elements = jnp.take(bits, index, axis=d, mode="clip")
        zero = jnp.zeros((), bits.dtype)
        return jnp.where(lax.expand_dims(is_element, others), elements, zero)
