"""The reversal of an array that several devices share: what each of them does.

Along dimensions that are not reversed, every device reverses what it has. Along a
reversed axis that P devices share, in shards of S steps, there are two ways, in both of
which no device ever holds more than a few shards.

Where another dimension is a multiple of P, the devices exchange all but a P-th of their
shards, so that each has the whole of a P-th of the lines; they reverse those, and
exchange them back. An element crosses between devices twice at most.

Otherwise, or for two devices, let m S + r = n - 1 be the last reversed step of a line.
Device d is to have, at its step i,

    y[d S + i] = x[m S + r - d S - i],

step (r - i) mod S of shard m - d, or of shard m - d - 1 where i > r. So every element
keeps its place within its shard as it goes from device s to device k - s, with k = m up
to place r and m - 1 after it, and each device reverses what it gets:

    c[p] = x_of_device(k(p) - d)[p]        y[i] = c[(r - i) mod S]

The devices are reflected, s to -s, and rotated by 2^b for each bit of k, which is kept
where the bit is set: 1 + log2(P) steps of a shard, or 1 for two devices. Three do it
for each k, of which every device keeps one in place.

(A ragged exchange would send each element once. On H200s and jax 0.11.2 it takes more
than ten times as long: docs/scaling.md.)

The lowering rule reads the shardings that a program states. Those that XLA chooses are
known when it compiles the program: `_shared/partitioner.py`.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from dml_jax._reverse.xla import broadcast_shape
from dml_jax._shared import bitwise, partitioner


def reverse_shards(reverse, x, lengths, axis, mesh, spec):
    """A device's shard of the result; `reverse(x, lengths, axis)` reverses whole lines.

    The arrays are shards, and the result is divided by `spec`.
    """
    mesh_axes = partitioner.names_of(spec[axis])
    if not mesh_axes:
        return reverse(x, lengths, axis)
    dtype, x = x.dtype, bitwise.to_bits(x)  # an exchange may go by way of another dtype
    x = jnp.broadcast_to(x, broadcast_shape(x.shape, lengths.shape, axis))
    devices = lax.axis_size(mesh_axes)
    divisible = [d for d in range(x.ndim) if d != axis and x.shape[d] % devices == 0]
    if devices > 2 and divisible:
        y = _by_whole_lines(reverse, x, lengths, axis, mesh_axes, divisible[0])
    else:
        y = _by_rotations(x, lengths, axis, mesh, mesh_axes)
    return bitwise.from_bits(y, dtype)


def _by_whole_lines(reverse, x, lengths, axis, mesh_axes, dimension):
    """By an exchange of the axis against another dimension, and back."""
    if lengths.shape[dimension] != 1:
        part = x.shape[dimension] // lax.axis_size(mesh_axes)
        first = lax.axis_index(mesh_axes) * part
        lengths = lax.dynamic_slice_in_dim(lengths, first, part, dimension)
    lines = lax.all_to_all(x, mesh_axes, dimension, axis, tiled=True)
    lines = reverse(lines, lengths, axis)
    return lax.all_to_all(lines, mesh_axes, axis, dimension, tiled=True)


def _by_rotations(x, lengths, axis, mesh, mesh_axes):
    size = x.shape[axis]
    last = jnp.maximum(lengths, 1) - 1
    last_shard = (last // size).astype(jnp.int32)
    last_place = (last % size).astype(jnp.int32)
    shape = [size if dimension == axis else 1 for dimension in range(x.ndim)]
    place = lax.broadcasted_iota(jnp.int32, shape, axis)

    sum_of_devices = jnp.where(place <= last_place, last_shard, last_shard - 1)
    exchanged = _rotate(x, sum_of_devices, mesh, mesh_axes)
    source = (last_place - place) % size
    y = jnp.take_along_axis(exchanged, source, axis, mode="promise_in_bounds")

    first = lax.axis_index(mesh_axes).astype(lengths.dtype) * size
    reversed_here = jnp.minimum(lengths - jnp.minimum(lengths, first), size)
    return jnp.where(place < reversed_here.astype(jnp.int32), y, x)


def _rotate(x, sum_of_devices, mesh, mesh_axes):
    """Every element from the device that makes this sum with the receiving one."""
    devices = math.prod(mesh.shape[name] for name in mesh_axes)
    sum_of_devices = sum_of_devices % devices

    def moved(x, target):
        pairs = [(device, target(device) % devices) for device in range(devices)]
        return partitioner.send(x, pairs, mesh, mesh_axes)

    if devices == 3:
        sums = [moved(x, lambda device, k=k: k - device) for k in range(3)]
        return lax.select_n(jnp.broadcast_to(sum_of_devices, x.shape), *sums)
    if devices > 2:  # two of them are their own reflections
        x = moved(x, lambda device: -device)
    for bit in range((devices - 1).bit_length()):
        rotated = moved(x, lambda device, distance=2**bit: device + distance)
        x = jnp.where(sum_of_devices >> bit & 1, rotated, x)
    return x


# Shardings ----------------------------------------------------------------------------


def reverse_explicitly(reverse, x, lengths, axis, sharding):
    """The result of that sharding, of arrays whose shardings the program states."""
    spec = partitioner.complete(sharding.spec, x.ndim)
    shape = broadcast_shape(x.shape, lengths.shape, axis)
    specs = partitioner.specs_of_operands(spec, [x.shape, lengths.shape], shape)
    mesh = sharding.mesh
    local = functools.partial(reverse_shards, reverse, axis=axis, mesh=mesh, spec=spec)
    # Not over all axes: a shard_map may have made some of them manual.
    with jax.sharding.use_abstract_mesh(mesh):
        local = jax.shard_map(
            local,
            in_specs=tuple(specs),
            out_specs=spec,
            axis_names=set(mesh.explicit_axes),
            check_vma=False,
        )
        return local(*map(jax.sharding.reshard, (x, lengths), specs))
