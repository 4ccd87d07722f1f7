"""The layout in which a GPU stores a fill."""

from __future__ import annotations

import math

import jax.export
import numpy as np

from dml_jax._fill.xla import WORD, Sizes, StoreLayout, sizes_in_words
from dml_jax._shared import bitwise
from dml_jax._shared.gpu import (
    MIN_ELEMENTS,
    PARTS,
    PER_STORE,
    divisible_dim,
    large_dim,
)


def store_layout(sizes: Sizes, dtype: np.dtype, sees_full_arrays: bool) -> StoreLayout:
    """The fastest layout; plain elements where XLA partitions the program."""
    if not sees_full_arrays or any(map(jax.export.is_symbolic_dim, sizes)):
        return StoreLayout()
    per_word = _elements_per_word(sizes, dtype)
    words = sizes_in_words(sizes, per_word)
    total = math.prod(words)
    is_word = per_word * dtype.itemsize == WORD.itemsize
    if not is_word or total * per_word < MIN_ELEMENTS:
        return StoreLayout(per_word)
    split_dim = divisible_dim(words)
    if total % (PARTS * PER_STORE) == 0 and split_dim is not None:
        return StoreLayout(per_word, split_dim)
    # Where a thread would store one element, one element of each part is faster.
    return StoreLayout(per_word, large_dim(words) if total % PER_STORE else None)


def _elements_per_word(sizes: Sizes, dtype: np.dtype) -> int:
    if not sizes or bitwise.width(dtype) < 8:
        return 1
    per_word = max(1, WORD.itemsize // dtype.itemsize)
    return per_word if sizes[-1] % per_word == 0 else 1
