"""Nested sequences of numbers and arrays, such as lists of lists.

NumPy converts integers without a common dtype, such as 2^63 and -1, to floats, and JAX
takes integers modulo 2^32 outside of 64-bit mode. Lists are therefore examined before
NumPy or JAX converts them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_NUMBERS_OF_PYTHON = {int, float, complex, bool}
_BOOLEANS = frozenset({bool, np.bool_})


class Kinds(NamedTuple):
    """The types of the numbers in a list; for an array, the type of its elements."""

    on_host: frozenset[type]
    of_jax: frozenset[type]

    @property
    def are_numbers_of_python(self) -> bool:
        """Whether all are Python numbers, which have no dtype of their own."""
        return not self.of_jax and all(map(_is_number_of_python, self.on_host))

    @property
    def are_integers(self) -> bool:
        """Whether all are integers, or a mix of integers and booleans."""
        numbers = (self.on_host | self.of_jax) - _BOOLEANS
        return bool(numbers) and all(map(_is_integer, numbers))


@functools.cache
def _is_number_of_python(kind: type) -> bool:
    return issubclass(kind, (int, float, complex)) and not issubclass(kind, np.generic)


@functools.cache
def _is_integer(kind: type) -> bool:
    if issubclass(kind, np.generic):
        return bool(jnp.issubdtype(kind, jnp.integer))
    return issubclass(kind, int)


def is_list(value: object) -> bool:
    """Whether `value` is a sequence other than text, a buffer or an array."""
    if isinstance(value, (list, tuple, range)):
        return True
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    if hasattr(value, "__array__") or hasattr(value, "__jax_array__"):
        return False
    try:
        memoryview(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return True
    return False


def kinds(value: Any) -> Kinds:
    """The types of the numbers in `value`, or of `value` itself."""
    on_host: set[type] = set()
    of_jax: set[type] = set()

    def collect(value: Any) -> None:
        if is_list(value):
            types = set(map(type, value))
            if types <= _NUMBERS_OF_PYTHON:  # fast for long lists
                on_host.update(types)
            else:
                for element in value:
                    collect(element)
            return
        dtype = getattr(value, "dtype", None)
        if isinstance(value, jax.Array):
            of_jax.add(value.dtype.type)
        else:
            on_host.add(dtype.type if isinstance(dtype, np.dtype) else type(value))

    collect(value)
    return Kinds(frozenset(on_host), frozenset(of_jax))


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
    """A list of integers as an object array of Python integers."""
    array = np.array(nested(value), object)
    numbers = [int(number) for number in array.flat]
    return np.array(numbers, object).reshape(array.shape)


def integers_of_jax(value: Any) -> jax.Array:
    """A nested list of integers, some of them JAX arrays, as int32 or int64.

    Integers beyond int64 are clipped to its range.
    """
    if all(map(_fits_int32, leaves(value))):
        return _stack(value, np.dtype(np.int32))
    with jax.enable_x64(True):
        return _stack(value, np.dtype(np.int64))


def _fits_int32(leaf: Any) -> bool:
    if isinstance(leaf, jax.Array):
        return np.can_cast(leaf.dtype, np.int32)
    info = np.iinfo(np.int32)
    return bool(np.all((leaf >= info.min) & (leaf <= info.max)))


def _stack(value: Any, dtype: np.dtype) -> jax.Array:
    if is_list(value):
        return jnp.stack([_stack(element, dtype) for element in value])
    info = np.iinfo(dtype)
    if not isinstance(value, jax.Array):
        clipped = np.clip(np.asarray(value, object), info.min, info.max)
        return jnp.asarray(np.asarray(clipped).astype(dtype))
    if value.dtype == np.uint64:
        value = jnp.minimum(value, np.uint64(info.max))
    return value.astype(dtype)
