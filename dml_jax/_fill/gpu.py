"""How a fill on a GPU is put together, so that a thread stores as much as it can."""

from __future__ import annotations

import math

import jax
import jax.export

from dml_jax._fill import xla
from dml_jax._shared import bitwise

_PER_STORE = 4  # elements of a part, which have to divide it
_WORTHWHILE = 2**20  # elements; with fewer, launching the kernel takes the time


def stores_of_gpu(sizes, dtype, sees_full_arrays):
    """The best for a GPU: of programs that XLA partitions, those with one element."""
    if not sees_full_arrays or any(map(jax.export.is_symbolic_dim, sizes)):
        return xla.Stores()
    lanes = _lanes(sizes, dtype)
    words = xla.sizes_in_words(sizes, lanes)
    is_word = lanes * dtype.itemsize == xla.WORD.itemsize
    total = math.prod(words)
    if not is_word or total * lanes < _WORTHWHILE:
        return xla.Stores(lanes)
    divisible = [d for d, size in enumerate(words) if size % xla.PARTS == 0]
    if total % (xla.PARTS * _PER_STORE) == 0 and divisible:
        return xla.Stores(lanes, divisible[0])
    # Of an odd number a thread stores one element: then one of each part is more.
    large = [d for d, size in enumerate(words) if size >= xla.PARTS]
    return xla.Stores(lanes, large[0] if total % _PER_STORE and large else None)


def _lanes(sizes, dtype):
    """How many elements make a word, which divide the last size."""
    if not sizes or bitwise.width(dtype) < 8:
        return 1
    lanes = max(1, xla.WORD.itemsize // dtype.itemsize)
    return lanes if sizes[-1] % lanes == 0 else 1
