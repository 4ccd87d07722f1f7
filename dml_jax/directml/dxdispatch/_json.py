"""JSON as DxDispatch reads it, with the place of every value for messages.

Its reader takes comments and trailing commas, which the standard library does not:
they become spaces first, so that the line and column of an error stay what they are.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

E = TypeVar("E", bound=enum.IntEnum | enum.IntFlag)

# A string or a comment that does not end takes all that is left, which the decoder then
# refuses; nothing is tried twice, so that any text takes time in proportion.
_STRING = r'("(?:[^"\\]++|\\.)*+(?:"|\\?\Z))'
_COMMENT = re.compile(
    _STRING + r"|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)", re.DOTALL
)
_TRAILING_COMMA = re.compile(_STRING + r"|,(?=\s*+[\]}])", re.DOTALL)


class Entry:
    """A value of a model and its place, as in resources.A.initialValues[3]."""

    def __init__(self, value: Any, place: str):
        self.value = value
        self.place = place

    def refused(self, rule: str) -> ValueError:
        """What to raise when the value breaks a rule."""
        place = self.place or "the model"
        return ValueError(f"`{place}` must {rule}; got {shown(self.value)}")

    def text(self) -> str:
        """The value as a string that can be printed."""
        if not isinstance(self.value, str):
            raise self.refused("be a string")
        if not self.value.isprintable():
            raise self.refused("be a string that can be printed")
        return self.value

    def flag(self) -> bool:
        """The value as a bool."""
        if not isinstance(self.value, bool):
            raise self.refused("be true or false")
        return self.value

    def integer(self, least: int, most: int) -> int:
        """The value as an integer in a range."""
        if type(self.value) is not int or not least <= self.value <= most:
            raise self.refused(f"be an integer from {least} to {most}")
        return self.value

    def unsigned(self, bits: int = 32) -> int:
        """The value as a UINT, or a UINT64."""
        return self.integer(0, 2**bits - 1)

    def items(self, most: int | None = None) -> list[Entry]:
        """The elements of an array."""
        if not isinstance(self.value, list):
            raise self.refused("be an array")
        if most is not None and len(self.value) > most:
            raise self.refused(f"have at most {most} elements")
        return [self.item(i) for i in range(len(self.value))]

    def item(self, index: int) -> Entry:
        """An element of an array."""
        return Entry(self.value[index], f"{self.place}[{index}]")

    def named(self) -> Iterator[tuple[str, Entry]]:
        """The members of an object whose names the model chooses."""
        if not isinstance(self.value, dict):
            raise self.refused("be an object")
        for name, value in self.value.items():
            if not name.isprintable():
                raise self.refused("have names that can be printed")
            yield name, Entry(value, f"{self.place}.{name}" if self.place else name)

    def members(
        self, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
    ) -> dict[str, Entry]:
        """The members of an object whose names the format defines."""
        members = dict(self.named())
        for name in required:
            if name not in members:
                raise self.refused(f"have a member `{name}`")
        known = {*required, *optional}
        for name, member in members.items():
            if name not in known and not name.startswith(("$", "_", "//")):
                names = ", ".join(sorted(known))
                raise ValueError(
                    f"`{member.place}` must be one of the members {names}; got {name}"
                )
        return members

    def member_of(self, enumeration: type[E], prefix: str) -> E:
        """The value as a member of an enumeration, by its full or its short name."""
        names = [str(member.name) for member in enumeration]
        if 0 not in list(enumeration) and issubclass(enumeration, enum.Flag):
            names.insert(0, "NONE")
        name = self.text().removeprefix(prefix)
        if name not in names:
            raise self.refused(f"be one of {', '.join(names)}")
        return enumeration[name]

    def flags_of(self, enumeration: type[E], prefix: str) -> E:
        """The value, a name or an array of names, as flags."""
        entries = self.items() if isinstance(self.value, list) else [self]
        return enumeration(sum({e.member_of(enumeration, prefix) for e in entries}))


def parse(text: str) -> Entry:
    """The root of a model."""
    text = _COMMENT.sub(_blank, text)
    text = _TRAILING_COMMA.sub(_blank, text)
    try:
        value, _ = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"`{place}` must be JSON; got {error.msg}") from None
    except RecursionError:
        raise ValueError("`the model` must be JSON; got too many levels") from None
    return Entry(value, "")


def _blank(match: re.Match) -> str:
    """Spaces for what is not a string, line breaks kept."""
    return match[1] or re.sub(r"[^\n]", " ", match[0])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                twice = shown(name).strip('"')
                raise ValueError(f"`{twice}` must be a member once; got it twice")
            seen.add(name)
    return members


def _no_constant(name: str) -> Any:
    raise ValueError(f'`a number` must be finite, or a string like "nan"; got {name}')


def _integer(digits: str) -> int:
    if len(digits) > 400:
        raise ValueError(f"`a number` must have at most 400 digits; got {len(digits)}")
    return int(digits)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer
)


def shown(value: Any) -> str:
    """A value as JSON that can be printed, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return f"{type(value).__name__} of too many levels"
    text = text if text.isprintable() else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
