"""The reversal of an array that is sharded over devices.

Where the reversed axis is not sharded, every device reverses its shard. Where P devices
shard it, in shards of S steps, one of two algorithms applies. Neither needs more memory
on a device than a few shards.

All-to-all, if another dimension is a multiple of P and P > 2: a first all-to-all leaves
each device with whole lines, a P-th of them; it reverses those, and a second all-to-all
brings them back. An element crosses between devices at most twice.

Permutations, otherwise: let m S + r = n - 1 be the last reversed step of a line. Step i
of the result's shard on device d is

    y[d S + i] = x[m S + r - d S - i],

step (r - i) mod S of shard m - d, or of shard m - d - 1 where i > r. So every element
keeps its position p in its shard while it moves from device s to device k - s, with
k(p) = m for p <= r, and m - 1 for p > r. Each device then reverses what it received:

    c[p] = x_of_device(k(p) - d)[p]        y[i] = c[(r - i) mod S]

One ppermute maps device s to -s; for each bit b of k, another maps s to s + 2^b, and
its result is used where the bit is set. That sends 1 + log2(P) shards, or 1 for two
devices. Three devices use one ppermute for each k instead.

A ragged all-to-all would send each element once, but takes more than ten times as long
on H200 GPUs with jax 0.11.2: docs/scaling.md.

The lowering rule calls `reverse_explicit` for shardings that are part of the types.
`_shared/partitioner.py` calls `reverse_shards` for those that XLA chooses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from dml_jax._reverse.xla import broadcast_shape
from dml_jax._shared import bitwise, partitioner

ReverseLines = Callable[[Array, Array, int], Array]


def reverse_shards(
    reverse_lines: ReverseLines,
    x: Array,
    lengths: Array,
    axis: int,
    mesh: Any,
    spec: PartitionSpec,
) -> Array:
    """This device's shard of the result, which is sharded by `spec`.

    The operands are shards, too. `reverse_lines` reverses lines that are not sharded.
    """
    mesh_axes = partitioner.names_of(spec[axis])
    if not mesh_axes:
        return reverse_lines(x, lengths, axis)
    dtype, x = x.dtype, bitwise.to_bits(x)  # a collective may convert narrow floats
    x = jnp.broadcast_to(x, broadcast_shape(x.shape, lengths.shape, axis))
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
    x: Array, lengths: Array, axis: int, mesh: Any, mesh_axes: tuple[str, ...]
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
    x: Array, device_sum: Array, mesh: Any, mesh_axes: tuple[str, ...]
) -> Array:
    """Each element of device `device_sum` - d, on device d."""
    devices = math.prod(mesh.shape[name] for name in mesh_axes)
    device_sum = device_sum % devices

    def permute(x: Array, target: Callable[[int], int]) -> Array:
        pairs = [(device, target(device) % devices) for device in range(devices)]
        return partitioner.send(x, pairs, mesh, mesh_axes)

    if devices == 3:
        by_sum = [permute(x, lambda device, k=k: k - device) for k in range(3)]
        return lax.select_n(jnp.broadcast_to(device_sum, x.shape), *by_sum)
    if devices > 2:  # modulo 2, -s is s
        x = permute(x, lambda device: -device)
    for bit in range((devices - 1).bit_length()):
        moved = permute(x, lambda device, distance=2**bit: device + distance)
        x = jnp.where(device_sum >> bit & 1, moved, x)
    return x


def reverse_explicit(
    reverse_lines: ReverseLines,
    x: Array,
    lengths: Array,
    axis: int,
    sharding: NamedSharding,
) -> Array:
    """The result with that sharding, of arrays on a mesh with explicit axes."""
    spec = partitioner.complete(sharding.spec, x.ndim)
    shape = broadcast_shape(x.shape, lengths.shape, axis)
    specs = partitioner.specs_of_operands(spec, [x.shape, lengths.shape], shape)
    mesh: Any = sharding.mesh
    local = functools.partial(
        reverse_shards, reverse_lines, axis=axis, mesh=mesh, spec=spec
    )
    # Only the explicit axes: a surrounding shard_map may have made others manual.
    with jax.sharding.use_abstract_mesh(mesh):
        local = jax.shard_map(
            local,
            in_specs=tuple(specs),
            out_specs=spec,
            axis_names=set(mesh.explicit_axes),
            check_vma=False,
        )
        return local(*map(jax.sharding.reshard, (x, lengths), specs))
