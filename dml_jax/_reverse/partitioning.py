"""The reversal of an array that is sharded over devices.

Where the reversed axis is not sharded, every device reverses its shard. Where P devices
shard it, in shards of S steps, one of two algorithms applies. Neither holds more than a
few shards on a device.

All-to-all, if another dimension is a multiple of P and P > 2: after an all-to-all, each
device has 1/P of the lines as a whole. It reverses them, and a second all-to-all
restores the sharding. An element is sent at most twice.

Permutations, otherwise: let m S + r = n - 1 be the last reversed step of a line. Step i
of the result's shard on device d is

    y[d S + i] = x[m S + r - d S - i],

which is step (r - i) mod S of shard m - d, or of shard m - d - 1 if i > r. So the
element at position p of a shard is sent from device s to device k - s, where k(p) = m
for p <= r and k(p) = m - 1 for p > r, and keeps its position. Each device then reverses
what it received:

    c[p] = x_of_device(k(p) - d)[p]        y[i] = c[(r - i) mod S]

One ppermute sends from device s to -s. For each bit b of k, another sends from s to
s + 2^b, and its result is used where the bit is set. A device sends 1 + log2(P) shards,
rounded up, or 1 if P = 2.

A ragged all-to-all would send each element once, but takes more than ten times as long
on H200 GPUs with jax 0.11.2: docs/scaling.md.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from dml_jax._shared import bitwise, partitioner

ReverseLines = Callable[[Array, Array, int], Array]


def reverse_shards(
    reverse_lines: ReverseLines,
    x: Array,
    lengths: Array,
    axis: int,
    mesh: Mesh,
    spec: PartitionSpec,
) -> Array:
    """A device's shard of the result, which is sharded by `spec`.

    The operands are the device's shards. `reverse_lines` reverses whole lines.
    """
    mesh_axes = partitioner.names_of(spec[axis])
    if not mesh_axes:
        return reverse_lines(x, lengths, axis)
    dtype, x = x.dtype, bitwise.to_bits(x)  # a collective may convert narrow floats
    x = jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, lengths.shape))
    devices = lax.axis_size(mesh_axes)
    divisible = [d for d in range(x.ndim) if d != axis and x.shape[d] % devices == 0]
    if devices > 2 and divisible:
        y = _reverse_by_all_to_all(
            reverse_lines, x, lengths, axis, mesh_axes, divisible[0]
        )
    else:
        y = _reverse_by_permutes(x, lengths, axis, mesh, mesh_axes)
    return bitwise.from_bits(y, dtype)


def _reverse_by_all_to_all(
    reverse_lines: ReverseLines,
    x: Array,
    lengths: Array,
    axis: int,
    mesh_axes: tuple[str, ...],
    dimension: int,
) -> Array:
    """Shards `dimension` instead of `axis`, reverses whole lines, and shards back."""
    if lengths.shape[dimension] != 1:
        size = x.shape[dimension] // lax.axis_size(mesh_axes)
        start = lax.axis_index(mesh_axes) * size
        lengths = lax.dynamic_slice_in_dim(lengths, start, size, dimension)
    lines = lax.all_to_all(x, mesh_axes, dimension, axis, tiled=True)
    lines = reverse_lines(lines, lengths, axis)
    return lax.all_to_all(lines, mesh_axes, axis, dimension, tiled=True)


def _reverse_by_permutes(
    x: Array, lengths: Array, axis: int, mesh: Mesh, mesh_axes: tuple[str, ...]
) -> Array:
    size = x.shape[axis]
    last = jnp.maximum(lengths, 1) - 1
    last_shard = (last // size).astype(jnp.int32)
    last_position = (last % size).astype(jnp.int32)
    shape = [size if dimension == axis else 1 for dimension in range(x.ndim)]
    position = lax.broadcasted_iota(jnp.int32, shape, axis)

    device_sum = jnp.where(position <= last_position, last_shard, last_shard - 1)
    received = _receive(x, device_sum, mesh, mesh_axes)
    source = (last_position - position) % size
    y = jnp.take_along_axis(received, source, axis, mode="promise_in_bounds")

    start = lax.axis_index(mesh_axes).astype(lengths.dtype) * size
    reversed_here = jnp.minimum(lengths - jnp.minimum(lengths, start), size)
    return jnp.where(position < reversed_here.astype(jnp.int32), y, x)


def _receive(
    x: Array, device_sum: Array, mesh: Mesh, mesh_axes: tuple[str, ...]
) -> Array:
    """On device d, the elements of device `device_sum` - d, at their positions."""
    devices = math.prod(mesh.shape[name] for name in mesh_axes)
    device_sum = device_sum % devices

    def permute(x: Array, target: Callable[[int], int]) -> Array:
        pairs = [(device, target(device) % devices) for device in range(devices)]
        return partitioner.send(x, pairs, mesh, mesh_axes)

    if devices > 2:  # modulo 2, -s is s
        x = permute(x, lambda device: -device)
    for bit in range((devices - 1).bit_length()):
        moved = permute(x, lambda device, distance=2**bit: device + distance)
        x = jnp.where(device_sum >> bit & 1, moved, x)
    return x
