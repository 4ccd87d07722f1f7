"""The transpose of a slice where its result is sharded.

Along a sharded dimension, each device holds S indices of the result. Element g[i] of
the operand has index start + stride * i in the result. So device d needs at most
ceil(S / stride) elements, of which the first is

    first(d) = ceil((d * S - start) / stride)

They are in the shards of consecutive devices. For each distance between source and
target, one `ppermute` sends the elements, in pieces padded to the longest. Each device
then computes the transpose for its shard.

XLA's partitioner does not get the `lax.pad` of the whole array, because it partitions
that incorrectly: docs/xla.md.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from dml_jax._shared import partitioner
from dml_jax._slice.window import Window, WindowDimension

Names: TypeAlias = tuple[str, ...]  # of mesh axes


def transpose_shards(
    transpose: Callable[..., Array],
    x: Array,
    *,
    shape: tuple[int, ...],
    window: Window,
    mesh: Mesh,
    spec: PartitionSpec,
) -> Array:
    """A device's shard of `transpose(x, shape=shape, window=window)`.

    Args:
      transpose: the transpose of a whole array.
      x: the shard of the operand, sharded as `partitioner.specs_of_operands` says;
        the bits of a narrow float, which a collective may convert.
      shape: the shape of the whole result.
      window: the window of the whole result, without reversed dimensions.
      mesh: the devices.
      spec: the sharding of the result.
    """
    padded_shape, sizes, of_shard = list(shape), list(shape), list(window)
    starts: list[Any] = [np.int32(0)] * x.ndim
    for d, extent in enumerate(shape):
        names = partitioner.names_of(spec[d])
        if not names:
            continue
        start, size, stride, _ = window[d]
        if (start, size) == (0, extent):
            padded_shape[d] = sizes[d] = x.shape[d]
            of_shard[d] = WindowDimension(0, x.shape[d])
            continue
        devices = range(math.prod(mesh.shape[name] for name in names))
        sizes[d] = -(-extent // len(devices))
        capacity = -(-sizes[d] // stride)
        # For each device's first element, its index in the operand, which may be
        # outside (`_pieces` cuts it), and in the device's shard, below `stride`.
        firsts = [-((start - device * sizes[d]) // stride) for device in devices]
        indices = [start + stride * firsts[i] - i * sizes[d] for i in devices]
        pieces = _pieces(firsts, capacity, size, max(x.shape[d], 1))
        x = _fetch(x, d, capacity, pieces, mesh, names)
        # On every device the transpose puts the first element at index stride - 1. The
        # slice below moves it to its index in the shard.
        rim = stride - 1
        starts[d] = rim - _lookup(np.array(indices, np.int32), lax.axis_index(names))
        padded_shape[d] = capacity * stride + rim
        of_shard[d] = WindowDimension(rim, capacity, stride)
    y = transpose(x, shape=tuple(padded_shape), window=tuple(of_shard))
    return lax.dynamic_slice(y, starts, sizes)


class _Piece(NamedTuple):
    """Elements that one device holds and another one needs."""

    source: int
    target: int
    source_start: int  # index in the shard of the source
    target_start: int  # index among the elements of the target
    size: int


def _pieces(firsts: list[int], capacity: int, size: int, held: int) -> list[_Piece]:
    """The pieces of `size` elements that devices need, longest first.

    Each device holds `held` elements. Device d needs `capacity` from `firsts[d]` on.
    """
    pieces = []
    for target, first in enumerate(firsts):
        begin, end = max(first, 0), min(first + capacity, size)
        for source in range(begin // held, -(-end // held)):
            base = source * held
            low, high = max(begin, base), min(end, base + held)
            holder = source if size > 1 else target  # a single element is replicated
            pieces.append(_Piece(holder, target, low - base, low - first, high - low))
    return sorted(pieces, key=lambda piece: -piece.size)


def _fetch(
    x: Array, d: int, capacity: int, pieces: list[_Piece], mesh: Mesh, names: Names
) -> Array:
    """The elements for a device's shard of the result, with zeros where none exist."""
    shape = [capacity if axis == d else size for axis, size in enumerate(x.shape)]
    fetched = jnp.zeros(shape, x.dtype)
    by_distance: dict[int, list[_Piece]] = {}  # in the order of their longest pieces
    for piece in pieces:
        by_distance.setdefault(piece.target - piece.source, []).append(piece)
    for sent_at_once in by_distance.values():
        fetched = _receive(fetched, x, d, sent_at_once, mesh, names)
    return fetched


def _receive(
    fetched: Array, x: Array, d: int, pieces: list[_Piece], mesh: Mesh, names: Names
) -> Array:
    """`fetched` with these pieces; a device sends and receives at most one of them."""
    held, needed = x.shape[d], fetched.shape[d]
    longest = pieces[0].size
    source_starts, target_starts, shifts, lows, highs = np.zeros(
        (5, math.prod(mesh.shape[name] for name in names)), np.int32
    )
    for source, target, source_start, target_start, size in pieces:
        # All pieces are sent and stored with the length of the longest one.
        source_starts[source] = min(source_start, held - longest)
        target_starts[target] = min(target_start, needed - longest)
        lows[target] = target_start - target_starts[target]
        highs[target] = lows[target] + size
        shifts[target] = source_start - source_starts[source] - lows[target]
    of_device = functools.partial(_lookup, device=lax.axis_index(names))
    piece = lax.dynamic_slice_in_dim(x, of_device(source_starts), longest, d)
    pairs = [(source, target) for source, target, *_ in pieces]
    if any(source != target for source, target in pairs):
        piece = partitioner.send(piece, pairs, mesh, names)
    if shifts.any():
        zeros = jnp.zeros_like(piece)
        piece = lax.concatenate([zeros, piece, zeros], d)
        piece = lax.dynamic_slice_in_dim(piece, longest + of_device(shifts), longest, d)
    all_receive = len(pieces) == len(highs) and (highs == longest).all()
    if not all_receive or lows.any():
        before = lax.dynamic_slice_in_dim(fetched, of_device(target_starts), longest, d)
        shape = [longest if axis == d else 1 for axis in range(x.ndim)]
        index = lax.broadcasted_iota(jnp.int32, shape, d)
        is_new = (of_device(lows) <= index) & (index < of_device(highs))
        piece = jnp.where(is_new, piece, before)
    return lax.dynamic_update_slice_in_dim(fetched, piece, of_device(target_starts), d)


def _lookup(table: np.ndarray, device: Array) -> Any:
    """The table's entry for a device; a constant if all entries are equal."""
    return table[0] if (table == table[0]).all() else jnp.asarray(table)[device]
