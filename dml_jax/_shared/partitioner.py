"""Operators that XLA's partitioner divides by a function of this package.

XLA partitions a program with automatic shardings when it compiles it. For an operator
that `lower_partitioned` lowers, it calls back with the sharding that it chose for the
result, and compiles what the operator's own function does with one shard of each
operand. Shards may be uneven: all have the size of the largest, and what is beyond the
array is undefined.

JAX has `custom_partitioning` for this. Where it is traced, every lowering needs
concrete devices, so that there can be no abstract mesh. Here the lowering rule inserts
it, with integers in place of devices: a sharding depends on the number and the order of
the devices only. The callback receives the tile of each device, and finds a mesh and
PartitionSpecs with the same tiles.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from dml_jax._shared import bitwise
from dml_jax._version import __version__

Entry: TypeAlias = Any  # of a PartitionSpec: None, a name, or a tuple of names
Shape: TypeAlias = tuple[int, ...]
OfShards: TypeAlias = Callable[..., jax.Array]


def lower_partitioned(
    ctx: Any,
    whole: Callable[..., jax.Array],
    of_shards: OfShards,
    told: object,
    *operands: Any,
) -> Any:
    """Lowers `whole(*operands)`, which XLA's partitioner may divide among devices.

    The functions are given the bits of the first operand if it has narrow floats, and
    return those of the result.

    Args:
      ctx: context of a lowering rule, for which `lowering.is_spmd_partitioned` is true.
      whole: the function of whole arrays.
      of_shards: the function of the shards, `of_shards(*shards, mesh=..., spec=...)`
        with the mesh and the sharding of the result. The operands are divided as
        `specs_of_operands` says.
      told: an object whose `repr` determines `of_shards`.
      *operands: values that are lowered.
    """
    shapes = [aval.shape for aval in ctx.avals_in]
    result_shape = ctx.avals_out[0].shape
    module = ctx.module_context
    devices = module.axis_context.num_devices
    operator = custom_partitioning(lambda mark, *operands: whole(*operands))

    def partition(_, operands, result):
        del operands
        mesh, (spec,) = _decode([result.sharding], [len(result_shape)], devices)
        specs = [PartitionSpec(), *specs_of_operands(spec, shapes, result_shape)]

        def local(mark, *shards):
            del mark
            # XLA calls this while it compiles. Then the mesh and the 64-bit mode of the
            # context are those of whoever compiles, not those of the program.
            no_mesh = jax.sharding.use_abstract_mesh(AbstractMesh((), ()))
            with no_mesh, bitwise.full_width(*shards):
                return of_shards(*shards, mesh=mesh, spec=spec)

        shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
        return mesh, local, NamedSharding(mesh, spec), shardings

    def infer(_, operands, result):
        del result
        shardings = [operand.sharding for operand in operands[1:]]
        mesh, specs = _decode(shardings, list(map(len, shapes)), devices)
        return NamedSharding(mesh, _spec_of_result(specs, shapes, result_shape))

    operator.def_partition(
        partition=partition,
        infer_sharding_from_operands=infer,  # for the partitioner before Shardy
        sharding_rule=_rule(shapes, result_shape),
        decode_shardings=False,
    )
    # JAX's persistent cache keys a program by its text, which does not have the
    # callbacks. A constant operand carries a hash of what they depend on.
    mark = np.uint32(zlib.crc32(repr((__version__, told)).encode()))
    axis_context = dataclasses.replace(
        module.axis_context, device_assignment=tuple(range(devices))
    )
    ctx = ctx.replace(module_context=module.replace(axis_context=axis_context))

    def of_bits(x, *others):
        # XLA may exchange narrow floats by way of others, and does not keep their bits.
        return bitwise.from_bits(operator(mark, bitwise.to_bits(x), *others), x.dtype)

    return mlir.lower_fun(of_bits, multiple_results=False)(ctx, *operands)


# Shardings ----------------------------------------------------------------------------


def complete(spec: PartitionSpec, ndim: int) -> PartitionSpec:
    """`spec` with an entry for each of `ndim` dimensions."""
    return PartitionSpec(*spec, *[None] * (ndim - len(spec)))


def specs_of_operands(
    spec: PartitionSpec, shapes: Sequence[Shape], result_shape: Shape
) -> list[PartitionSpec]:
    """How operands are divided for a result that is divided by `spec`.

    Each dimension is divided like the result's, unless it is of size 1 and broadcast.
    """
    spec = complete(spec, len(result_shape))
    return [
        PartitionSpec(
            *(
                entry if _is_not_broadcast(size, result_size) else None
                for entry, size, result_size in zip(
                    spec, shape, result_shape, strict=True
                )
            )
        )
        for shape in shapes
    ]


def _spec_of_result(specs, shapes, result_shape):
    """How the result is divided for operands that are divided by `specs`."""
    operands = [*zip(specs, shapes, strict=True)]
    entries, used = [], set()
    for d, size in enumerate(result_shape):
        candidates = (
            spec[d] for spec, shape in operands if _is_not_broadcast(shape[d], size)
        )
        entry = names_of(next(filter(None, candidates), None))
        entries.append(entry if used.isdisjoint(entry) else ())
        used.update(entry)
    return PartitionSpec(*(entry or None for entry in entries))


def _rule(shapes, result_shape):
    """Shardy's sharding rule: dimensions that are not broadcast share a factor."""
    factors = [f"d{dimension}" for dimension in range(len(result_shape))]
    operands = [
        " ".join(
            factor if _is_not_broadcast(size, result_size) else f"{factor}o{number}"
            for factor, size, result_size in zip(
                factors, shape, result_shape, strict=True
            )
        )
        for number, shape in enumerate(shapes)
    ]
    # The first operand, a scalar, has no dimensions.
    return f"{', '.join(['', *operands])} -> {' '.join(factors)}"


def _is_not_broadcast(size, result_size):
    return size > 1 or size == result_size


def _decode(shardings, ranks, devices):
    """A mesh of all devices, and the specs that divide arrays as these shardings do.

    If there is no such mesh, all arrays are replicated.
    """
    tiles = [_tiles(*array, devices) for array in zip(shardings, ranks, strict=True)]
    axes = _axes(np.concatenate(tiles, axis=1))
    mesh = AbstractMesh(
        tuple(size for size, _ in axes), tuple(f"axis{i}" for i in range(len(axes)))
    )
    entries = [
        _entry([(steps[column], size) for size, steps in axes])
        for column in range(sum(ranks))
    ]
    if None in entries:
        entries = [()] * len(entries)
    names = (
        tuple(mesh.axis_names[axis] for axis in entry or ()) or None
        for entry in entries
    )
    return mesh, [PartitionSpec(*itertools.islice(names, rank)) for rank in ranks]


def _tiles(sharding, rank, devices):
    """The numbers of the tiles that every device has, along every dimension."""
    tiles = np.zeros((devices, rank), int)
    if sharding is None:
        return tiles
    # The shape is divisible by every number of tiles that there can be.
    indices = sharding.devices_indices_map((devices,) * rank)
    for device, slices in enumerate(indices.values()):
        for dimension, index in enumerate(slices):
            if index.stop is not None:
                tiles[device, dimension] = index.start // (index.stop - index.start)
    return tiles


def _axes(tiles):
    """The axes of a mesh whose devices, in row-major order, have these tiles.

    For each axis its size, and the steps between the tiles of devices that follow each
    other along it. They are found from the last axis on.
    """
    axes, stride = [], 1
    while stride < len(tiles):
        column = tiles[::stride]
        steps = column[1] - column[0]
        is_regular = (column == np.arange(len(column))[:, None] * steps).all(axis=1)
        size = len(column) if is_regular.all() else int(is_regular.argmin())
        if size < 2 or len(column) % size:
            return [(len(tiles), np.full(tiles.shape[1], -1))]
        axes.insert(0, (size, steps))
        stride *= size
    return axes


def _entry(axes):
    """The mesh axes that shard a dimension, major to minor.

    Args:
      axes: for every axis of the mesh, its step along the dimension, and its size.

    Returns:
      The numbers of the axes, or None if their steps do not number the tiles.
    """
    entry = sorted(
        (axis for axis, (step, _) in enumerate(axes) if step != 0),
        key=lambda axis: -axes[axis][0],
    )
    tiles = 1
    for axis in reversed(entry):
        if axes[axis][0] != tiles:
            return None
        tiles *= axes[axis][1]
    return tuple(entry)


# Exchanges ----------------------------------------------------------------------------


def names_of(entry: Entry) -> tuple[str, ...]:
    """The mesh axes that an entry of a PartitionSpec names."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def send(
    x: jax.Array, pairs: Sequence[tuple[int, int]], mesh: Any, names: tuple[str, ...]
) -> jax.Array:
    """`lax.ppermute`, with the devices numbered in the order of `names`.

    Devices that are the target of none of the pairs receive zeros.
    """
    in_mesh_order = tuple(name for name in mesh.axis_names if name in names)
    sizes = [mesh.shape[name] for name in in_mesh_order]
    order = [in_mesh_order.index(name) for name in names]
    # `ppermute` numbers devices in mesh order, whatever the order of its axis names.
    counted = np.arange(np.prod(sizes)).reshape(sizes).transpose(order).reshape(-1)
    pairs = [(int(counted[source]), int(counted[target])) for source, target in pairs]
    return lax.ppermute(x, in_mesh_order, pairs)
