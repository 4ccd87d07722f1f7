"""Results that GPUs store in four parts.

In the kernels that XLA generates, a thread stores four elements if their number is
divisible by four, else one. If the result is a concatenation of four parts, a thread
stores as many elements of each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PARTS = 4
PER_STORE = 4  # elements that a thread stores if their number is divisible by it
THREADS = 128  # of a block
CACHE_BYTES = 2**25
MIN_ELEMENTS = 2**20  # below, the launch of the kernel dominates


def divisible_dim(sizes: Sequence[Any]) -> int | None:
    """The first dimension that can be split into parts of equal size."""
    return next((d for d, size in enumerate(sizes) if size % PARTS == 0), None)


def large_dim(sizes: Sequence[Any]) -> int | None:
    """The first dimension that can be split into parts of at least one element."""
    return next((d for d, size in enumerate(sizes) if size >= PARTS), None)


def part_bounds(size: Any) -> list[tuple[Any, Any]]:
    """The begin and the end of each part of a dimension."""
    return [(size * i // PARTS, size * (i + 1) // PARTS) for i in range(PARTS)]
