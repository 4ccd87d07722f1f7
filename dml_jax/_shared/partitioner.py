"""Operators that this package partitions itself, instead of XLA's SPMD partitioner.

XLA partitions a program with automatic shardings while it compiles the program. For an
operator lowered by `lower_partitioned`, XLA calls back with the sharding that it chose
for the result, and compiles the operator's function of shards. All shards have the size
of the largest; elements beyond the end of an array are undefined.

This uses JAX's `custom_partitioning`. Tracing it would require concrete devices in
every lowering, which rules out abstract meshes. Instead, the lowering rule inserts it
with integers as devices, since a sharding depends only on their number and order. The
callback receives the tiles of each device, and constructs a mesh and PartitionSpecs
with the same tiles.
"""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from dml_jax._shared import bitwise, jax_versions, lowering
from dml_jax._version import __version__

Entry: TypeAlias = Any  # of a PartitionSpec: None, a name, or a tuple of names
Shape: TypeAlias = tuple[int, ...]


@jax_versions.optional("`custom_partitioning`")
def lower_partitioned(
    ctx: Any,
    whole: Callable[..., jax.Array],
    of_shards: Callable[..., jax.Array],
    key: object,
    *operands: Any,
) -> Any:
    """Lowers `whole(*operands)`, which XLA partitions by calling `of_shards`.

    If the first operand has narrow floats, both functions take and return their bits.
    The result is None where this version of JAX lacks what this function uses.

    Args:
      ctx: context of a lowering rule whose `lowering.partitioning` calls back.
      whole: the function of whole arrays.
      of_shards: the function of shards, `of_shards(*shards, mesh=..., spec=...)` with
        the mesh and the sharding of the result. `specs_of_operands` gives the
        shardings of the operands.
      key: an object whose `repr` determines `of_shards`.
      *operands: values of the lowering rule.
    """
    shapes = [aval.shape for aval in ctx.avals_in]
    result_shape = ctx.avals_out[0].shape
    module = ctx.module_context
    devices = module.axis_context.num_devices

    @custom_partitioning
    def operator(cache_salt: Any, *operands: jax.Array) -> jax.Array:
        del cache_salt
        return whole(*operands)

    def partition(_: Any, operands: Any, result: Any) -> tuple[Any, ...]:
        del operands
        mesh, spec = _decode(result.sharding, len(result_shape), devices)
        specs = [PartitionSpec(), *specs_of_operands(spec, shapes, result_shape)]

        def local(cache_salt: Any, *shards: jax.Array) -> jax.Array:
            del cache_salt
            # XLA calls this while it compiles. The mesh and the 64-bit mode of the
            # context are then not those of the program.
            no_mesh = jax.sharding.use_abstract_mesh(AbstractMesh((), ()))
            with no_mesh, bitwise.full_width(*shards):
                return of_shards(*shards, mesh=mesh, spec=spec)

        shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
        return mesh, local, NamedSharding(mesh, spec), shardings

    operator.def_partition(
        partition=partition,
        sharding_rule=_rule(shapes, result_shape),
        decode_shardings=False,
    )
    # The key of JAX's persistent cache is the text of a program, which lacks the
    # callbacks. A constant operand adds a hash of what they depend on.
    cache_salt = np.uint32(zlib.crc32(repr((__version__, key)).encode()))
    axis_context = dataclasses.replace(
        module.axis_context, device_assignment=tuple(range(devices))
    )
    ctx = ctx.replace(module_context=module.replace(axis_context=axis_context))

    def of_bits(x: jax.Array, *others: jax.Array) -> jax.Array:
        # Collectives of narrow floats may convert them, which loses bits.
        bits = operator(cache_salt, bitwise.to_bits(x), *others)
        return bitwise.from_bits(bits, x.dtype)

    before = len(module.keepalives)
    lowered = lowering.lower(ctx, of_bits, *operands)
    module.keepalives[before:] = map(_KeptAlive, module.keepalives[before:])
    return lowered


class _KeptAlive:
    """Keeps a callback alive for as long as a program is compiled.

    A compiled program is pickled with what it keeps alive, but a callback cannot be
    pickled. The compiled program does not call it.
    """

    def __init__(self, callback: object) -> None:
        self.callback = callback

    def __reduce__(self) -> Any:
        return type(None), ()


# Shardings ----------------------------------------------------------------------------


def specs_of_operands(
    spec: PartitionSpec, shapes: Sequence[Shape], result_shape: Shape
) -> list[PartitionSpec]:
    """The specs of the operands of a result with the sharding `spec`.

    Each dimension is sharded like the result's, unless it is broadcast from size 1.
    """

    def spec_of(shape: Shape) -> PartitionSpec:
        entries = [
            None if size == 1 != of_result else entry
            for entry, size, of_result in zip(spec, shape, result_shape, strict=True)
        ]
        return PartitionSpec(*entries)

    return [*map(spec_of, shapes)]


def _rule(shapes: Sequence[Shape], result_shape: Shape) -> str:
    """Shardy's sharding rule.

    A dimension of the result shares its factor with the first operand that is not
    broadcast along it. If the other operands shared it too, Shardy would gather the
    whole array where two shardings of a dimension differ.
    """
    factors = [f"d{d}" for d in range(len(result_shape))]
    operands = [[f"{f}o{number}" for f in factors] for number in range(len(shapes))]
    for d, result_size in enumerate(result_shape):
        for operand, shape in zip(operands, shapes, strict=True):
            if shape[d] != 1 or result_size == 1:
                operand[d] = factors[d]
                break
    # The first operand, a scalar, has no dimensions.
    return f"{', '.join(['', *map(' '.join, operands)])} -> {' '.join(factors)}"


def _decode(
    sharding: Any, rank: int, devices: int
) -> tuple[AbstractMesh, PartitionSpec]:
    """A mesh of all devices, and a spec on it that is equivalent to `sharding`.

    If there is no such mesh, the spec replicates the array.
    """
    axes = _axes(_tiles(sharding, rank, devices))
    names = tuple(f"axis{i}" for i in range(len(axes)))
    mesh = AbstractMesh(tuple(size for size, _ in axes), names)
    entries = [_entry(mesh, [steps[d] for _, steps in axes]) for d in range(rank)]
    if None in entries:
        entries = [()] * rank
    return mesh, PartitionSpec(*(entry or None for entry in entries))


def _tiles(sharding: Any, rank: int, devices: int) -> np.ndarray:
    """The indices of each device's tile, along every dimension."""
    tiles = np.zeros((devices, rank), int)
    # Every possible number of tiles divides this shape.
    indices = sharding.devices_indices_map((devices,) * rank)
    for device, slices in enumerate(indices.values()):
        for dimension, index in enumerate(slices):
            if index.stop is not None:
                tiles[device, dimension] = index.start // (index.stop - index.start)
    return tiles


def _axes(tiles: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The axes of a mesh whose devices, in row-major order, have these tiles.

    An axis is its size and, for every dimension, the difference between the tiles of
    neighbouring devices. The last axis is found first.
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


def _entry(mesh: AbstractMesh, steps: Sequence[int]) -> tuple[str, ...] | None:
    """The mesh axes that shard a dimension, major to minor.

    `steps` has the step of every mesh axis along the dimension. The result is None if
    these steps do not enumerate the tiles.
    """
    pairs = zip(steps, mesh.axis_names, strict=True)
    entry = sorted(pair for pair in pairs if pair[0] != 0)
    tiles = 1
    for step, name in entry:  # from minor to major
        if step != tiles:
            return None
        tiles *= mesh.shape[name]
    return tuple(name for _, name in reversed(entry))


# Collectives --------------------------------------------------------------------------


def names_of(entry: Entry) -> tuple[str, ...]:
    """The mesh axes in an entry of a PartitionSpec."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def send(
    x: jax.Array, pairs: Sequence[tuple[int, int]], mesh: Any, names: tuple[str, ...]
) -> jax.Array:
    """`lax.ppermute` over the axes `names`, ordered from major to minor.

    Devices that are not the target of a pair receive zeros.
    """
    in_mesh_order = tuple(name for name in mesh.axis_names if name in names)
    sizes = [mesh.shape[name] for name in in_mesh_order]
    order = [in_mesh_order.index(name) for name in names]
    # `ppermute` ignores the order of its axis names, and numbers devices in mesh order.
    numbers = np.arange(np.prod(sizes)).reshape(sizes).transpose(order).reshape(-1)
    pairs = [(int(numbers[source]), int(numbers[target])) for source, target in pairs]
    return lax.ppermute(x, in_mesh_order, pairs)
