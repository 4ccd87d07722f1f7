"""Nested sequences of numbers and arrays, such as lists of lists.

NumPy converts integers without a common dtype, such as 2^63 and -1, to floats, and JAX
takes integers modulo 2^32 outside of 64-bit mode. Lists are therefore examined before
NumPy or JAX converts them.
"""

from __future__ import annotations

import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Types(NamedTuple):
    """The types of the numbers in a list; for an array, the type of its elements."""

    on_host: set[type]
    of_jax: set[type]

    @property
    def are_of_python(self) -> bool:
        """Whether all are Python numbers, which have no dtype of their own."""
        return not self.of_jax and all(
            issubclass(kind, (int, float, complex)) and not issubclass(kind, np.generic)
            for kind in self.on_host
        )

    @property
    def are_integers(self) -> bool:
        """Whether all are integers, or a mix of integers and booleans."""
        numbers = (self.on_host | self.of_jax) - {bool, np.bool_}
        return bool(numbers) and all(
            issubclass(kind, int)
            or (issubclass(kind, np.generic) and jnp.issubdtype(kind, jnp.integer))
            for kind in numbers
        )


def types(value: Any) -> Types:
    """The types of the numbers in `value`, or of `value` itself."""
    found = Types(set(), set())
    _collect(value, found)
    return found


def _collect(value: Any, found: Types) -> None:
    if is_list(value):
        kinds = set(map(type, value))
        if kinds <= {int, float, complex, bool}:  # fast for long lists
            found.on_host.update(kinds)
        else:
            for element in value:
                _collect(element, found)
        return
    dtype = getattr(value, "dtype", None)
    if isinstance(value, jax.Array):
        found.of_jax.add(value.dtype.type)
    elif isinstance(dtype, np.dtype) and _is_array(value):
        found.on_host.add(dtype.type)
    else:
        found.on_host.add(type(value))


def is_list(value: object) -> bool:
    """Whether `value` is a sequence other than text, a buffer or an array."""
    if isinstance(value, (list, tuple, range)):
        return True
    is_data = isinstance(value, (str, bytes, bytearray, memoryview, array.array))
    return isinstance(value, Sequence) and not is_data and not _is_array(value)


def _is_array(value: object) -> bool:
    """Whether NumPy or JAX converts `value`, unlike a `jax.ShapeDtypeStruct`."""
    return hasattr(value, "__array__") or hasattr(value, "__jax_array__")


def leaves(value: Any) -> Iterator[Any]:
    """The elements of `value` that are not lists themselves."""
    if not is_list(value):
        yield value
        return
    for element in value:
        yield from leaves(element)


def nested(value: Any) -> Any:
    """`value` with all of its sequences converted to lists, which JAX accepts."""
    return [nested(element) for element in value] if is_list(value) else value


def exact(value: Any) -> np.ndarray:
    """A list of integers as an object array, which holds them exactly."""
    return np.array(nested(value), object)
