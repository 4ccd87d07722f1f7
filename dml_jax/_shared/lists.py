"""Nested sequences of numbers and arrays, such as lists of lists.

NumPy makes floats of integers that have no dtype in common, such as 2^63 and -1, and
JAX takes integers modulo 2^32 outside of 64-bit mode. What is in a list is therefore
looked at before either of them has it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Kinds(NamedTuple):
    """The types of the numbers in a list, those of an array being its dtype's."""

    on_host: frozenset[type]
    of_jax: frozenset[type]

    @property
    def are_numbers_of_python(self) -> bool:
        """Whether none comes with a dtype of its own."""
        return not self.of_jax and all(map(_is_number_of_python, self.on_host))

    @property
    def are_integers(self) -> bool:
        """Whether all are integers; with booleans among them, as Python has it."""
        every = self.on_host | self.of_jax
        return every > _BOOLEANS & every and all(map(_is_integer, every - _BOOLEANS))


_BOOLEANS = frozenset({bool, np.bool_})


@functools.cache
def _is_number_of_python(kind: type) -> bool:
    return issubclass(kind, (int, float, complex)) and not issubclass(kind, np.generic)


@functools.cache
def _is_integer(kind: type) -> bool:
    if issubclass(kind, np.generic):
        return bool(jnp.issubdtype(kind, jnp.integer))
    return issubclass(kind, int)


def is_list(value: object) -> bool:
    """Whether `value` is a sequence of its elements: text and buffers are not."""
    if isinstance(value, (list, tuple, range)):
        return True
    if type(value) in _NUMBERS_OF_PYTHON:
        return False
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
    """The kinds of what is in `value`, or of `value` itself."""
    on_host: set[type] = set()
    of_jax: set[type] = set()
    _collect(value, on_host, of_jax)
    return Kinds(frozenset(on_host), frozenset(of_jax))


def _collect(value: Any, on_host: set[type], of_jax: set[type]) -> None:
    kind = type(value)
    if kind is range:
        on_host.update({int} if value else ())
    elif is_list(value):
        types = set(map(type, value))
        if types <= _NUMBERS_OF_PYTHON:
            on_host.update(types)
        else:
            for element in value:
                _collect(element, on_host, of_jax)
    elif isinstance(value, jax.Array):
        of_jax.add(value.dtype.type)
    elif issubclass(kind, np.generic) or kind in _NUMBERS_OF_PYTHON:
        on_host.add(kind)
    else:
        dtype = getattr(value, "dtype", None)
        on_host.add(dtype.type if isinstance(dtype, np.dtype) else kind)


_NUMBERS_OF_PYTHON = {int, float, complex, bool}


def leaves(value: Any) -> Iterator[Any]:
    """What is in `value` that is no list."""
    if not is_list(value):
        yield value
        return
    for element in value:
        yield from leaves(element)


def nested(value: Any) -> Any:
    """`value` as lists, the only sequences that JAX looks into, with tuples."""
    return [nested(element) for element in value] if is_list(value) else value


def exact(value: Any) -> np.ndarray:
    """A list of integers as an array of Python's, which are of any size."""
    array = np.array(nested(value), object)
    numbers = [int(number) for number in array.flat]
    return np.array(numbers, object).reshape(array.shape)


def integers_of_jax(value: Any) -> jax.Array:
    """A nested list of integers, some of them JAX arrays, as int32 or int64.

    Integers beyond int64 are clipped to its range.
    """
    if not any(map(_may_be_beyond_int32, leaves(value))):
        return _stacked(value, np.dtype(np.int32))
    with jax.enable_x64(True):
        return _stacked(value, np.dtype(np.int64))


def _may_be_beyond_int32(leaf: Any) -> bool:
    info = np.iinfo(np.int32)
    if isinstance(leaf, jax.Array):
        if leaf.dtype == bool:
            return False
        own = jnp.iinfo(leaf.dtype)
        return own.min < info.min or own.max > info.max
    return bool(np.any(np.less(leaf, info.min) | np.greater(leaf, info.max)))


def _stacked(value: Any, dtype: np.dtype) -> jax.Array:
    if is_list(value):
        return jnp.stack([_stacked(element, dtype) for element in value])
    info = np.iinfo(dtype)
    if not isinstance(value, jax.Array):
        clipped = np.clip(np.asarray(value, object), info.min, info.max)
        return jnp.asarray(np.asarray(clipped).astype(dtype))
    if value.dtype == np.uint64:
        value = jnp.minimum(value, np.uint64(info.max))
    return value.astype(dtype)
