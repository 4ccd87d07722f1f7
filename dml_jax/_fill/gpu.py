"""How a GPU stores a fill: by XLA in parts, or by a kernel for Hopper GPUs in chunks.

XLA fuses the parts with surrounding operations, but not the kernel.
"""

from __future__ import annotations

import math

import jax.export
import numpy as np

from dml_jax._fill import packed_fill_kernel
from dml_jax._fill.xla import Bounds, Sizes
from dml_jax._shared import bitwise
from dml_jax._shared.gpu import MIN_ELEMENTS, PARTS, PER_STORE

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


def is_faster_by_chunks(kind: str, sizes: Sizes, dtype: np.dtype) -> bool:
    """Whether the kernel is faster than parts, which XLA stores in short pieces.

    For bytes, parts take 1.4 times as long as chunks on an H200
    (`benchmarks/results/fills-h200.json`), and the same time on an H100. If four does
    not divide the size, a thread stores single elements of parts. Sequences of 16-bit
    floats are limited by arithmetic, of which XLA's code does more at once. So these
    are faster in parts if four divides the size.
    """
    total = math.prod(sizes)
    is_limited_by_arithmetic = kind == "floats" and dtype.itemsize == 2
    if total < MIN_ELEMENTS or (is_limited_by_arithmetic and total % PER_STORE == 0):
        return False
    return packed_fill_kernel.supports(kind, sizes, dtype)
