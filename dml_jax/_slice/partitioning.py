"""The adjoint of a slice for an array that several devices share.

Along a shared dimension each device has a shard of S positions of the result. The
element g[i] of the operand belongs to position low + step * i, so device d needs the
elements from

    first(d) = ceil((d S - low) / step)

on, at most ceil(S / step) of them. They lie in the shards of consecutive devices. There
is one `ppermute` for each distance between source and target, whose pieces have the
length of the longest one. Then every device places the elements of its own shard.

XLA's partitioner is not given the `lax.pad` of the whole array, which it divides
wrongly: docs/xla.md.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import bitwise, partitioner


def put_shards(put, x, *, shape, lattice, mesh, spec):
    """A device's shard of `put(x, shape, lattice)`, whose result is divided by `spec`.

    `x` is a shard, too, as `partitioner.specs_of_operands` divides it. The lattice
    walks upwards along all dimensions.
    """
    dtype, x = x.dtype, bitwise.to_bits(x)  # an exchange may go by way of another dtype
    extents, sizes = list(shape), list(shape)
    starts: list[Any] = [np.int32(0)] * x.ndim
    for d, extent in enumerate(shape):
        names = partitioner.names_of(spec[d])
        if not names:
            continue
        shards = _Shards(
            extent,
            *(lattice.starts[d], lattice.sizes[d], lattice.strides[d]),
            devices=math.prod(mesh.shape[name] for name in names),
        )
        if shards.are_taken_whole:
            extents[d] = sizes[d] = x.shape[d]
            lattice = _with_dimension(lattice, d, 0, x.shape[d], 1)
            continue
        x = _fetched(x, d, shards, mesh, names)
        # The first element lies at a position below `step`. It is put at step - 1, and
        # the slice below shifts it into place.
        last = shards.step - 1
        places = np.array([shards.place(device) for device in shards.all], np.int32)
        starts[d] = last - _of(lax.axis_index(names), places)
        extents[d], sizes[d] = shards.capacity * shards.step + last, shards.size
        lattice = _with_dimension(lattice, d, last, shards.capacity, shards.step)
    y = put(x, shape=tuple(extents), lattice=lattice)
    return bitwise.from_bits(lax.dynamic_slice(y, starts, sizes), dtype)


def _with_dimension(lattice, d, low, size, step):
    """The lattice with another dimension `d`."""

    def replaced(values, value):
        return (*values[:d], value, *values[d + 1 :])

    return lattice._replace(
        starts=replaced(lattice.starts, low),
        sizes=replaced(lattice.sizes, size),
        strides=replaced(lattice.strides, step),
    )


class _Piece(NamedTuple):
    """Elements that one device has and another needs."""

    source: int
    target: int
    begin: int  # in the shard of the source
    place: int  # among the elements of the target
    size: int


class _Shards(NamedTuple):
    """One dimension of the result, which some devices share."""

    extent: int
    low: int
    elements: int
    step: int
    devices: int

    @property
    def all(self):
        return range(self.devices)

    @property
    def are_taken_whole(self):
        return (self.low, self.elements) == (0, self.extent)

    @property
    def size(self):
        return -(-self.extent // self.devices)

    @property
    def capacity(self):
        """The most elements of a shard."""
        return -(-self.size // self.step)

    def first(self, device):
        """The first element at or after the start of a shard, as if there were more."""
        return -((self.low - device * self.size) // self.step)

    def place(self, device):
        """The position of that element in the shard, which is below `step`."""
        return self.low + self.step * self.first(device) - device * self.size

    def pieces(self, held):
        """What the devices need of each other, if each holds `held` elements."""
        for target in self.all:
            first = self.first(target)
            begin, end = max(first, 0), min(first + self.capacity, self.elements)
            for source in range(begin // held, -(-end // held)):
                base = source * held
                low, high = max(begin, base), min(end, base + held)
                yield _Piece(source, target, low - base, low - first, high - low)


def _fetched(x, d, shards, mesh, names):
    """The elements that belong to a device's shard of the result, among zeros."""
    shape = [shards.capacity if a == d else size for a, size in enumerate(x.shape)]
    fetched = jnp.zeros(shape, x.dtype)
    pieces = [*shards.pieces(max(x.shape[d], 1))]
    if shards.elements == 1:  # which is replicated: nothing is sent
        pieces = [piece._replace(source=piece.target) for piece in pieces]
    pieces.sort(key=lambda piece: -piece.size)
    distances = dict.fromkeys(piece.target - piece.source for piece in pieces)
    for distance in distances:  # in the order of their longest pieces
        at_once = [p for p in pieces if p.target - p.source == distance]
        fetched = _with_pieces(fetched, x, d, at_once, mesh, names)
    return fetched


def _with_pieces(fetched, x, d, pieces, mesh, names):
    """`fetched`, with pieces of which every device sends and receives one at most."""
    held, needed = x.shape[d], fetched.shape[d]
    longest = pieces[0].size
    begins, places, shifts, lows, highs = np.zeros(
        (5, math.prod(mesh.shape[name] for name in names)), np.int32
    )
    for source, target, begin, place, size in pieces:
        # All pieces are sent and stored as long as the longest one.
        begins[source] = min(begin, held - longest)
        places[target] = min(place, needed - longest)
        lows[target] = place - places[target]
        highs[target] = lows[target] + size
        shifts[target] = begin - begins[source] - lows[target]
    if len(pieces) == begins.size and not lows.any() and (highs == longest).all():
        lows = highs = None  # every device replaces all of the window
    of = functools.partial(_of, lax.axis_index(names))
    piece = lax.dynamic_slice_in_dim(x, of(begins), longest, d)
    pairs = [(source, target) for source, target, *_ in pieces]
    if any(source != target for source, target in pairs):
        piece = partitioner.send(piece, pairs, mesh, names)
    if shifts.any():
        zeros = jnp.zeros_like(piece)
        piece = lax.concatenate([zeros, piece, zeros], d)
        piece = lax.dynamic_slice_in_dim(piece, longest + of(shifts), longest, d)
    if lows is not None:
        before = lax.dynamic_slice_in_dim(fetched, of(places), longest, d)
        shape = [longest if axis == d else 1 for axis in range(x.ndim)]
        place = lax.broadcasted_iota(jnp.int32, shape, d)
        piece = jnp.where((of(lows) <= place) & (place < of(highs)), piece, before)
    return lax.dynamic_update_slice_in_dim(fetched, piece, of(places), d)


def _of(device, table):
    """The entry of a device, which is no operation if all are alike."""
    return table[0] if (table == table[0]).all() else jnp.asarray(table)[device]


def put_explicitly(put, x, shape, lattice, sharding):
    """The result of that sharding, of an array whose sharding the program states."""
    mesh, spec = sharding.mesh, partitioner.complete(sharding.spec, x.ndim)
    (spec_of_x,) = partitioner.specs_of_operands(spec, [x.shape], shape)
    with jax.sharding.use_abstract_mesh(mesh):
        local = jax.shard_map(
            functools.partial(
                put_shards, put, shape=shape, lattice=lattice, mesh=mesh, spec=spec
            ),
            in_specs=spec_of_x,
            out_specs=spec,
            # Not over all axes: a shard_map may have made some of them manual.
            axis_names=set(mesh.explicit_axes),
            check_vma=False,
        )
        return local(jax.sharding.reshard(x, spec_of_x))
