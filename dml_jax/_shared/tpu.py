"""How arrays lie in the memory of a TPU, and operations on its vector registers."""

from __future__ import annotations

import itertools
import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

SUBLANES, LANES = 8, 128  # of a vector register
WORD = 4  # bytes


def rows_per_register(dtype: np.dtype) -> int:
    return SUBLANES * WORD // dtype.itemsize


def _tiles(shape: tuple[int, ...], last_two: tuple[int, int], rows_of_tile: int) -> int:
    rows, lanes = last_two
    others = math.prod(size for d, size in enumerate(shape) if d not in last_two)
    return others * -(-shape[rows] // rows_of_tile) * -(-shape[lanes] // LANES)


def _pairs(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    last_first = range(len(shape))[::-1]
    return [(rows, lanes) for lanes, rows in itertools.permutations(last_first, 2)]


def stored_rows_and_lanes(shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, int]:
    """The dimensions that XLA stores last in the arguments and results of a program.

    It stores them in tiles of 8 by 128 words, or of fewer rows if the array has fewer,
    in the order with the least padding.
    """

    def padded_rows(last_two: tuple[int, int]) -> int:
        size = max(shape[last_two[0]], WORD // dtype.itemsize)
        tile = next(rows for rows in (1, 2, 4, SUBLANES) if rows >= min(size, SUBLANES))
        return tile * _tiles(shape, last_two, tile)

    return min(_pairs(shape), key=padded_rows)


def orders_of_dimensions(
    shape: tuple[int, ...], dtype: np.dtype
) -> list[tuple[int, ...]]:
    """Orders of the two or more dimensions for a kernel, the fastest first.

    A kernel takes as long for a register that is not full as for a full one, which is
    about the time of two copies of it. So another order is faster than the stored one
    if it has less than half the registers.
    """
    rows_of_tile = rows_per_register(dtype)
    stored, pairs = stored_rows_and_lanes(shape, dtype), _pairs(shape)
    fewest = min(_tiles(shape, pair, rows_of_tile) for pair in pairs)

    def time(last_two: tuple[int, int]) -> int:
        copies = 0 if last_two == stored else fewest
        return _tiles(shape, last_two, rows_of_tile) + copies

    return [
        (*(d for d in range(len(shape)) if d not in last_two), *last_two)
        for last_two in sorted(pairs, key=time)
    ]


# Registers ----------------------------------------------------------------------------


def iota(axis: int) -> Array:
    """A register with the index of each sublane, or of each lane."""
    return lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), axis)


def gather(register: Array, index: Array, axis: int) -> Array:
    """Moves words of a register along an axis, from indices in bounds."""
    return jnp.take_along_axis(register, index, axis, mode="promise_in_bounds")
