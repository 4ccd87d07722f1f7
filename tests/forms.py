"""The forms in which an argument of a function may be written."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np


class Index:
    """What operator.index takes."""

    def __init__(self, number: int):
        self.number = number

    def __index__(self) -> int:
        return self.number


def strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array[..., None], 2, axis=-1)[..., 1]


INTEGER_FORMS = [int, np.int8, np.array, jnp.int32, Index]
SEQUENCE_FORMS = [
    *[tuple, list, lambda n: np.array(n, np.int16), lambda n: jnp.array(n, jnp.int32)],
    *[lambda n: [np.int16(k) for k in n], lambda n: [jnp.int32(k) for k in n]],
]
ARRAY_FORMS = [np.asarray, jnp.asarray, strided, np.asfortranarray]
LENGTH_FORMS = [np.asarray, strided]
NUMBER_FORMS = [lambda n: n, np.asarray, jnp.asarray]
DTYPE_FORMS = [np.dtype, str, lambda dtype: dtype.type]


def forms_of(name: str, plain: Any) -> list[Callable[[Any], Any]]:
    if "len" in name:
        return LENGTH_FORMS
    if isinstance(plain, np.ndarray):
        return ARRAY_FORMS
    kinds = {tuple: SEQUENCE_FORMS, int: INTEGER_FORMS, np.dtype: DTYPE_FORMS}
    forms = (forms for kind, forms in kinds.items() if isinstance(plain, kind))
    return next(forms, NUMBER_FORMS)
