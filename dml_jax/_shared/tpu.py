"""How arrays lie in the memory of a TPU."""

from __future__ import annotations

import itertools
import math

SUBLANES, LANES = 8, 128  # of a vector register


def orders_by_padding(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Orders of the two or more dimensions, the one with the least padding first.

    A TPU stores the last two dimensions in tiles of 8 by 128 elements, or of fewer rows
    if the array has fewer. XLA stores the arguments and the result of a program in the
    first of these orders.
    """

    def key(last_two: tuple[int, int]) -> tuple[int, int, int]:
        rows, lanes = last_two
        others = math.prod(size for d, size in enumerate(shape) if d not in last_two)
        tile = next(n for n in (1, 2, 4, SUBLANES) if n >= min(shape[rows], SUBLANES))
        padded = _round_up(shape[rows], tile) * _round_up(shape[lanes], LANES)
        return others * padded, -lanes, -rows

    dims = range(len(shape))
    return [
        (*(d for d in dims if d not in last_two), *last_two)
        for last_two in sorted(itertools.permutations(dims, 2), key=key)
    ]


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
