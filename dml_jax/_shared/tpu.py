"""How arrays lie in the memory of a TPU."""

from __future__ import annotations

import itertools
import math

import numpy as np

SUBLANES, LANES = 8, 128  # of a vector register
WORD = 4  # bytes


def orders_of_dimensions(
    shape: tuple[int, ...], dtype: np.dtype
) -> list[tuple[int, ...]]:
    """Orders of the two or more dimensions for a kernel, the fastest first.

    A TPU stores the last two dimensions in tiles of 8 by 128 words, or of fewer rows if
    the array has fewer. XLA stores the arguments and the result of a program in the
    order with the least padding. A kernel takes as long for a register that is not full
    as for a full one, which is about the time of two copies of it. So another order is
    faster than the stored one if it has less than half the registers.
    """
    rows_per_register = SUBLANES * WORD // dtype.itemsize

    def tiles(last_two: tuple[int, int], rows_of_tile: int) -> int:
        rows, lanes = last_two
        others = math.prod(size for d, size in enumerate(shape) if d not in last_two)
        return others * -(-shape[rows] // rows_of_tile) * -(-shape[lanes] // LANES)

    def padded_rows(last_two: tuple[int, int]) -> int:
        size = min(shape[last_two[0]], SUBLANES)
        tile = next(rows for rows in (1, 2, 4, SUBLANES) if rows >= size)
        return tile * tiles(last_two, tile)

    last_first = range(len(shape))[::-1]
    pairs = [(rows, lanes) for lanes, rows in itertools.permutations(last_first, 2)]
    stored = min(pairs, key=padded_rows)
    fewest = min(tiles(pair, rows_per_register) for pair in pairs)

    def time(last_two: tuple[int, int]) -> int:
        copies = 0 if last_two == stored else fewest
        return tiles(last_two, rows_per_register) + copies

    return [
        (*(d for d in range(len(shape)) if d not in last_two), *last_two)
        for last_two in sorted(pairs, key=time)
    ]
