"""What the reversal needs to know of a TPU: its registers, and how XLA stores arrays.

A vector register has 8 sublanes of 128 lanes of 32 bits. XLA stores the last two
dimensions of an array in tiles of that shape, and pads them to whole tiles. It orders
the dimensions of a program's arguments and results so that the padding is least.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

WORD = 4  # bytes
SUBLANES, LANES = 8, 128
REGISTER_BYTES = WORD * SUBLANES * LANES


class Tpu(NamedTuple):
    """The properties of a TPU that the kernel depends on."""

    vmem_bytes: int  # that a kernel may use
    generation: int

    @property
    def gathers_sublanes(self) -> bool:
        """Whether a gather can move elements between sublanes."""
        return self.generation > 4

    @property
    def selects_parts_of_words(self) -> bool:
        """Whether the mask of a select can have an entry for 8 or 16 bits."""
        return self.generation > 4


def orders_of_dimensions(
    shape: tuple[int, ...], dtype: np.dtype
) -> list[tuple[int, ...]]:
    """Orders of the two or more dimensions for a kernel, the fastest first.

    A kernel takes as long for a register that is not full as for a full one, which is
    about the time of two copies of it. So another order is faster than the stored one
    if it has less than half the registers.
    """
    last_first = range(len(shape))[::-1]
    pairs = [(rows, lanes) for lanes, rows in itertools.permutations(last_first, 2)]
    packing = WORD // dtype.itemsize

    def tiles(pair: tuple[int, int], rows_of_tile: int) -> int:
        rows, lanes = pair
        others = math.prod(size for d, size in enumerate(shape) if d not in pair)
        return others * -(-shape[rows] // rows_of_tile) * -(-shape[lanes] // LANES)

    def stored_rows(pair: tuple[int, int]) -> int:
        # Arrays of fewer rows have smaller tiles.
        rows = max(shape[pair[0]], packing)
        rows_of_tile = next((n for n in (1, 2, 4) if n >= rows), SUBLANES)
        return rows_of_tile * tiles(pair, rows_of_tile)

    stored = min(pairs, key=stored_rows)
    registers = {pair: tiles(pair, SUBLANES * packing) for pair in pairs}
    fewest = min(registers.values())

    def time(pair: tuple[int, int]) -> int:
        return registers[pair] + (0 if pair == stored else fewest)

    return [
        (*(d for d in range(len(shape)) if d not in pair), *pair)
        for pair in sorted(pairs, key=time)
    ]
