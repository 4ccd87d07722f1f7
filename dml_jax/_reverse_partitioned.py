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

Shardings that the program states, the lowering reads. Those that XLA chooses,
`custom_partitioning` is told when the program is compiled.
"""

from __future__ import annotations

import functools
import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from dml_jax import __version__, _bits
from dml_jax._reverse_formulations import broadcast_shape


def reverse_shards(reverse, x, lengths, axis, mesh, entry):
    """A device's shard of the result; `reverse(x, lengths, axis)` reverses whole lines.

    The arrays are shards, along the axis by the entry of a PartitionSpec.
    """
    if entry is None:
        return reverse(x, lengths, axis)
    mesh_axes = (entry,) if isinstance(entry, str) else tuple(entry)
    dtype, x = x.dtype, _bits.to_bits(x)  # an exchange may go by way of another dtype
    x = jnp.broadcast_to(x, broadcast_shape(x.shape, lengths.shape, axis))
    devices = lax.axis_size(mesh_axes)
    divisible = [d for d in range(x.ndim) if d != axis and x.shape[d] % devices == 0]
    if devices > 2 and divisible:
        y = _by_whole_lines(reverse, x, lengths, axis, mesh_axes, divisible[0])
    else:
        y = _by_rotations(x, lengths, axis, mesh, mesh_axes)
    return _bits.from_bits(y, dtype)


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
    in_mesh_order = [name for name in mesh.axis_names if name in mesh_axes]
    sizes = [mesh.shape[name] for name in in_mesh_order]
    order = [in_mesh_order.index(name) for name in mesh_axes]
    devices = math.prod(sizes)
    # `ppermute` counts in the order of the mesh, whatever the order of its argument.
    counted = np.arange(devices).reshape(sizes).transpose(order).reshape(-1)
    sum_of_devices = sum_of_devices % devices

    def moved(x, target):
        pairs = [
            (int(counted[device]), int(counted[target(device) % devices]))
            for device in range(devices)
        ]
        return lax.ppermute(x, tuple(in_mesh_order), pairs)

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


def _specs_of_operands(spec, shape, lengths_shape, axis):
    """How the operands are divided for a result that is divided by `spec`."""
    result_shape = broadcast_shape(shape, lengths_shape, axis)

    def of(operand_shape):
        return PartitionSpec(
            *(
                entry if size == result_size and size > 1 else None
                for entry, size, result_size in zip(
                    spec, operand_shape, result_shape, strict=True
                )
            )
        )

    return of(shape), of(lengths_shape)


def _complete(spec, ndim):
    return PartitionSpec(*spec, *[None] * (ndim - len(spec)))


def reverse_explicitly(reverse, x, lengths, axis, sharding):
    """The result of that sharding, of arrays whose shardings the program states."""
    spec = _complete(sharding.spec, x.ndim)
    specs = _specs_of_operands(spec, x.shape, lengths.shape, axis)
    mesh = sharding.mesh
    local = functools.partial(
        reverse_shards, reverse, axis=axis, mesh=mesh, entry=spec[axis]
    )
    # Not over all axes: a shard_map may have made some of them manual.
    with jax.sharding.use_abstract_mesh(mesh):
        local = jax.shard_map(
            local,
            in_specs=specs,
            out_specs=spec,
            axis_names=set(mesh.explicit_axes),
            check_vma=False,
        )
        return local(*map(jax.sharding.reshard, (x, lengths), specs))


@functools.cache
def partitioned(reverse, axis, implementation):
    """A reversal that XLA's partitioner asks how to divide.

    What the partitioner is told depends on the axis, but the text of the program, by
    which JAX's persistent cache knows it, does not. Hence a third operand, which does.
    """
    reverse = functools.partial(reverse, implementation=implementation)
    told = repr((__version__, axis, implementation)).encode()
    mark = np.uint32(zlib.crc32(told))

    @custom_partitioning
    def marked(x, lengths, mark):
        del mark
        return reverse(x, lengths, axis)

    def partition(mesh, operands, result):
        x, lengths, _ = operands
        spec = _complete(result.sharding.spec, len(result.shape))
        specs = _specs_of_operands(spec, x.shape, lengths.shape, axis)

        def of_shards(x, lengths, mark):
            del mark
            # The mesh of whoever compiles, if it is explicit, is of no concern here.
            with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
                return reverse_shards(reverse, x, lengths, axis, mesh, spec[axis])

        specs = (*specs, PartitionSpec())
        of_operands = tuple(NamedSharding(mesh, spec) for spec in specs)
        return mesh, of_shards, NamedSharding(mesh, spec), of_operands

    marked.def_partition(
        partition=partition,
        sharding_rule=_rule,
        infer_sharding_from_operands=_sharding_of_result,
    )
    return lambda x, lengths: marked(x, lengths, mark)


def _rule(mesh, operand_types, result_types):
    """In Shardy's notation: what has the size of the result is divided like it."""
    del mesh
    (result_shape,) = (result_type.shape for result_type in result_types)
    result = [f"d{dimension}" for dimension in range(len(result_shape))]

    def factors(operand, shape):
        return " ".join(
            factor if size == result_size else f"{operand}{factor}"
            for factor, size, result_size in zip(
                result, shape, result_shape, strict=True
            )
        )

    x, lengths, _ = (operand_type.shape for operand_type in operand_types)
    return f"{factors('x', x)}, {factors('n', lengths)}, -> {' '.join(result)}"


def _sharding_of_result(mesh, operands, result):
    """For the partitioner before Shardy: that of what has the size of the result."""
    x, lengths, _ = operands
    specs = [
        _complete(operand.sharding.spec if operand.sharding else (), len(x.shape))
        for operand in (x, lengths)
    ]
    spec = [
        of_x if size == result_size else of_lengths
        for of_x, of_lengths, size, result_size in zip(
            *specs, x.shape, result.shape, strict=True
        )
    ]
    return NamedSharding(mesh, PartitionSpec(*spec))
