"""How a GPU stores a fill: in parts, which XLA fuses with surrounding operations."""

from __future__ import annotations

import math

import jax.export
import numpy as np

from dml_jax._fill.xla import Bounds, Sizes
from dml_jax._shared import bitwise

PARTS = 4
MIN_ELEMENTS = 2**20  # below, the launch of the kernel dominates
_ALIGNMENT = 512  # elements, which a block of threads stores at once


def part_bounds(sizes: Sizes, dtype: np.dtype) -> Bounds:
    """The positions at which the parts begin and end; None for symbolic sizes.

    A thread stores four neighbours of each part at once, or one if the number of all
    elements is not divisible by four. Where the sizes of the first three parts
    differed, fills took up to 1.6 times as long. So the last part takes the rest.
    """
    if any(map(jax.export.is_symbolic_dim, sizes)):
        return None
    total = math.prod(sizes)
    if bitwise.width(dtype) not in (8, 16, 32) or total < MIN_ELEMENTS:
        return 0, total
    size = total // (PARTS * _ALIGNMENT) * _ALIGNMENT
    return *(i * size for i in range(PARTS)), total
