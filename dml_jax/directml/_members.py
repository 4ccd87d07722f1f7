"""Checks of the members of DirectML's structures, by their types.

The checks accept what a member of the C structure can hold. Whether DirectML would
accept the value is up to the `validate` methods of the operator descriptions.
"""

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dml_jax._shared import arguments

UINT, UINT64, INT = range(2**32), range(2**64), range(-(2**31), 2**31)


class Struct:
    """Base of frozen dataclasses: converts every field to its annotated type.

    Integers are UINTs unless the field's metadata has other `limits`. A default of None
    is kept.
    """

    def __post_init__(self) -> None:
        struct: Any = type(self)
        with arguments.named(struct.__name__):
            for field in dataclasses.fields(struct):
                name, value = field.name, getattr(self, field.name)
                if value is not None or field.default is not None:
                    kind = fields_of(struct)[name]
                    limits = field.metadata.get("limits", UINT)
                    value = _converted(name, value, kind, limits)
                    object.__setattr__(self, name, value)


@functools.cache
def fields_of(struct: Any) -> dict[str, Any]:
    """The type of every field."""
    kinds = typing.get_type_hints(struct)
    return {field.name: kinds[field.name] for field in dataclasses.fields(struct)}


@functools.cache
def camel(member: str) -> str:
    """The C name of a member: InputTensor for input_tensor."""
    return "".join(word.capitalize() for word in member.split("_"))


def _converted(name: str, value: Any, kind: Any, limits: range) -> Any:
    """The value of a field, converted to the field's type."""
    if kind is int:
        return arguments.integer(name, value, limits)
    if kind in (Sequence[int], tuple[int, ...], tuple[int, ...] | None):
        return arguments.integers(name, value, limits=limits)
    if kind == str | None:
        return arguments.optional_name(name, value)
    if kind == Callable[..., Any]:
        return _function(name, value)
    if typing.get_origin(kind) is Sequence:
        return _instances(name, value, typing.get_args(kind)[0])
    if isinstance(kind, enum.EnumType):
        return member_of(name, value, kind)
    return instance_of(name, value, kind)


def member_of(name: str, value: Any, enumeration: Any) -> Any:
    """`value`, a number or what `_missing_` converts, as a member of an enumeration."""
    has_equivalents = "_missing_" in vars(enumeration)
    is_flag = bool(issubclass(enumeration, enum.Flag))
    try:
        if not (has_equivalents and isinstance(value, _EQUIVALENTS)):
            value = arguments.integer(name, value)
        if is_flag and value not in range(sum(enumeration) + 1):
            raise ValueError
        return enumeration(value)
    except (TypeError, ValueError) as error:
        names = [f"{enumeration.__name__}.{name}" for name in enumeration.__members__]
        rule = f"be {_a(enumeration)} such as {names[1]}"
        if is_flag:
            rule = f"be {' or '.join(names)}"
        got = arguments.describe(value)
        if has_equivalents:
            rule += ", its name or its NumPy dtype"
            got += _advice(value)
        raise arguments.error(type(error), name, rule, got) from None


# What `DataType._missing_` converts.
_EQUIVALENTS = (str, type, np.dtype)


def _advice(value: Any) -> str:
    """What to use instead of a dtype that DirectML lacks."""
    if not isinstance(value, (type, np.dtype)):
        return ""
    name = getattr(value, "__name__", str(value))
    if name.startswith("bool"):
        return ". DirectML has no bool; use UINT8"
    return ". DirectML has no complex type" if name.startswith("complex") else ""


def instance_of(name: str, value: Any, kind: Any) -> Any:
    """`value`, if it is an instance of a class or of one of a union."""
    if not isinstance(value, kind):
        example = getattr(kind, "_example", "")
        rule = f"be {_a(kind)}" + (f" such as {example}" if example else "")
        got = arguments.describe(value)
        if isinstance(value, type) and issubclass(value, kind):
            got += "; make an object of it"
        raise arguments.error(TypeError, name, rule, got)
    return value


def _instances(name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    """`value` as a tuple of instances of a class or a union."""
    if not isinstance(value, (list, tuple)):
        got, rule = arguments.describe(value), "be a list or a tuple"
        raise arguments.error(TypeError, name, rule, got)
    return tuple(instance_of(f"{name}[{i}]", x, kind) for i, x in enumerate(value))


def _function(name: str, value: Any) -> Any:
    try:
        hash(value)
        if callable(value):
            return value
    except TypeError:
        pass
    got, rule = arguments.describe(value), "be callable and hashable"
    raise arguments.error(TypeError, name, rule, got)


def _a(kind: Any) -> str:
    """The name of a class with its article, or the names of the classes in a union."""
    if isinstance(kind, types.UnionType):
        return " or ".join(part.__name__ for part in typing.get_args(kind))
    name = kind.__name__
    if name == "bytes":
        return name
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"
