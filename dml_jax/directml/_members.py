"""Checks of the members of DirectML's structures, by their types.

The checks accept what a member of the C structure can hold. Whether DirectML would
accept the value is up to the `validate` methods of the operator descriptions.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Sequence
from typing import Any

import numpy as np

from dml_jax._shared import arguments

UINT, INT = range(2**32), range(-(2**31), 2**31)


class Struct:
    """Base of frozen dataclasses: converts every field to its annotated type."""

    def __post_init__(self) -> None:
        struct = type(self).__name__
        for name, kind in _field_types(type(self)).items():
            value = _convert(struct, name, getattr(self, name), kind)
            set_frozen(self, **{name: value})


@functools.cache
def _field_types(struct: Any) -> dict[str, Any]:
    types = typing.get_type_hints(struct)
    return {field.name: types[field.name] for field in dataclasses.fields(struct)}


def _convert(function: str, name: str, value: Any, kind: Any) -> Any:
    if kind is int:
        return integer(function, name, value)
    if kind == Sequence[int]:
        limits = INT if name == "input_window_strides" else UINT
        return integers(function, name, value, limits)
    if kind == str | None:
        return arguments.optional_name(function, name, value)
    if issubclass(kind, enum.IntEnum):
        return member_of(function, name, value, kind)
    return instance_of(function, name, value, kind)


def set_frozen(instance: Any, **values: Any) -> None:
    """Sets fields of a frozen dataclass during its construction."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def integer(function: str, name: str, value: Any, limits: range = UINT) -> int:
    """`value` as an integer in the range of a C type."""
    number = arguments.integer(function, name, value)
    if number not in limits:
        rule = f"be {limits[0]} to {limits[-1]}"
        raise arguments.error(ValueError, function, name, rule, number)
    return number


def integers(
    function: str, name: str, value: Any, limits: range = UINT, count: int | None = None
) -> tuple[int, ...]:
    """`value` as a tuple of integers in the range of a C type."""
    numbers = arguments.integers(function, name, value, count)
    for i, number in enumerate(numbers):
        integer(function, f"{name}[{i}]", number, limits)
    return numbers


def member_of(function: str, name: str, value: Any, enumeration: Any) -> Any:
    """`value`, a number or its equivalent, as a member of an enumeration."""
    has_equivalents = "_missing_" in vars(enumeration)
    try:
        if not (has_equivalents and isinstance(value, _EQUIVALENTS)):
            value = arguments.integer(function, name, value)
        return enumeration(value)
    except (TypeError, ValueError) as error:
        example = [*enumeration.__members__][1]
        rule = f"be {_a(enumeration)} such as {enumeration.__name__}.{example}"
        got = arguments.describe(value)
        if has_equivalents:
            rule += ", its name or its NumPy dtype"
            got += _advice(value)
        raise arguments.error(type(error), function, name, rule, got) from None


# What the method `_missing_` of an enumeration may convert, as that of DataType does.
_EQUIVALENTS = (str, type, np.dtype)


def _advice(value: Any) -> str:
    """What to use in place of a dtype that DirectML lacks."""
    if not isinstance(value, (type, np.dtype)):
        return ""
    name = getattr(value, "__name__", str(value))
    if name.startswith("bool"):
        return ". DirectML has no bool; use UINT8"
    return ". DirectML has no complex type" if name.startswith("complex") else ""


def instance_of(function: str, name: str, value: Any, kind: type) -> Any:
    """`value`, if it is an instance of a class."""
    if not isinstance(value, kind):
        example = getattr(kind, "_example", "")
        rule = f"be {_a(kind)}" + (f" such as {example}" if example else "")
        got = arguments.describe(value)
        if isinstance(value, type) and issubclass(value, kind):
            got += "; make an object of it"
        raise arguments.error(TypeError, function, name, rule, got)
    return value


def _a(kind: type) -> str:
    """The name of a class after its article."""
    name = kind.__name__
    if name == "bytes":
        return name
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"
