"""The layout of stores in which a GPU computes a fill."""

from __future__ import annotations

import math

import jax.export
import numpy as np

from dml_jax._fill.xla import PARTS, WORD, Sizes, StoreLayout, sizes_in_words
from dml_jax._shared import bitwise

_PER_STORE = 4  # elements that a thread stores if their number is divisible by it
_WORTHWHILE = 2**20  # elements; the time for fewer is that of launching the kernel


def store_layout(sizes: Sizes, dtype: np.dtype, sees_full_arrays: bool) -> StoreLayout:
    """The fastest layout; plain elements where XLA partitions the program."""
    if not sees_full_arrays or any(map(jax.export.is_symbolic_dim, sizes)):
        return StoreLayout()
    per_word = _elements_per_word(sizes, dtype)
    words = sizes_in_words(sizes, per_word)
    total = math.prod(words)
    is_word = per_word * dtype.itemsize == WORD.itemsize
    if not is_word or total * per_word < _WORTHWHILE:
        return StoreLayout(per_word)
    divisible = [d for d, size in enumerate(words) if size % PARTS == 0]
    if total % (PARTS * _PER_STORE) == 0 and divisible:
        return StoreLayout(per_word, divisible[0])
    # A thread would store one element: then one element of each part is faster.
    large = [d for d, size in enumerate(words) if size >= PARTS]
    return StoreLayout(per_word, large[0] if total % _PER_STORE and large else None)


def _elements_per_word(sizes: Sizes, dtype: np.dtype) -> int:
    if not sizes or bitwise.width(dtype) < 8:
        return 1
    per_word = max(1, WORD.itemsize // dtype.itemsize)
    return per_word if sizes[-1] % per_word == 0 else 1
