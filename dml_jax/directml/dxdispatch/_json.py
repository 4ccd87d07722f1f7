"""Parses JSON as DxDispatch does, and locates each value for error messages.

DxDispatch accepts comments and trailing commas, which Python's parser rejects. They are
replaced by spaces before parsing, which keeps lines and columns in errors correct.
"""

from __future__ import annotations

import collections
import contextlib
import difflib
import enum
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from dml_jax.directml._members import UINT, camel

E = TypeVar("E", bound=enum.IntEnum | enum.IntFlag)

# An unterminated string or comment extends to the end of the text. So a string and a
# comment match wherever they begin, and matching takes linear time for any text.
_STRING = r'("[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z))'
_COMMENT = re.compile(
    _STRING + r"|//[^\n]*|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/|\Z)", re.DOTALL
)
_TRAILING_COMMA = re.compile(_STRING + r"|,(?=\s*[\]}])", re.DOTALL)


class Entry(NamedTuple):
    """A JSON value and its location in the model, such as resources.A.sizeInBytes."""

    value: Any
    location: str

    def error(
        self, rule: str, kind: type[Exception] = ValueError, got: str | None = None
    ) -> Exception:
        """The exception for a value that breaks a rule; `got` is the value if None."""
        location = self.location or "the model"
        got = _shown(self.value) if got is None else got
        return kind(f"`{location}` must {rule}; got {got}")

    @contextlib.contextmanager
    def located(self) -> Iterator[None]:
        """Locates the member that an error of a structure is about."""
        try:
            yield
        except (TypeError, ValueError) as error:
            # It begins with the structure and the member in snake_case.
            rest = re.sub(r"^\w+: `(\w+)", lambda m: camel(m[1]), str(error))
            raise ValueError(f"`{self.location}.{rest}") from None

    def text(self) -> str:
        """The value as a printable string."""
        if not isinstance(self.value, str):
            raise self.error("be a string")
        if not self.value.isprintable():
            raise self.error("be a printable string")
        return self.value

    def flag(self) -> bool:
        """The value as a bool."""
        if not isinstance(self.value, bool):
            raise self.error("be true or false")
        return self.value

    def integer(self, limits: range = UINT) -> int:
        """The value as an integer in a range."""
        if type(self.value) is not int or self.value not in limits:
            raise self.error(f"be an integer from {limits[0]} to {limits[-1]}")
        return self.value

    def elements(self, maximum: int | None = None) -> list[Entry]:
        """The elements of an array, of which there are at most `maximum`."""
        if not isinstance(self.value, list):
            raise self.error("be an array")
        if maximum is not None and len(self.value) > maximum:
            raise self.error(f"have at most {maximum} elements")
        return [
            Entry(value, f"{self.location}[{i}]") for i, value in enumerate(self.value)
        ]

    def entries(self) -> dict[str, Entry]:
        """The members of an object with arbitrary names."""
        if not isinstance(self.value, dict):
            raise self.error("be an object")
        if not all(map(str.isprintable, self.value)):
            raise self.error("have printable member names")
        repeated = getattr(self.value, "repeated", None)
        if repeated is not None:
            raise self.member(repeated, None).error("be given once", got="it twice")
        return {name: self.member(name, value) for name, value in self.value.items()}

    def member(self, name: str, value: Any) -> Entry:
        """The member of an object with a name and a value."""
        name = shortened(name)
        return Entry(value, f"{self.location}.{name}" if self.location else name)

    def members(
        self, required: Iterable[str] = (), defaults: Mapping[str, Any] | None = None
    ) -> dict[str, Entry]:
        """The members of an object that has only required and default members.

        Members whose names begin with $, _ or // are comments. Missing members have
        their value in `defaults`.
        """
        members = self.entries()
        defaults = defaults or {}
        known = sorted({*required, *defaults})
        for name, member in members.items():
            if name not in known and not name.startswith(("$", "_", "//")):
                got = shortened(name)
                for nearest in difflib.get_close_matches(name, known, 1):
                    got += f". Write {nearest}"
                rule = f"be one of the members {', '.join(known) or '(none)'}"
                raise member.error(rule, got=got)
        for name in required:
            if name not in members:
                raise self.error(f"have a member `{name}`")
        missing = defaults.keys() - members
        return members | {name: self.member(name, defaults[name]) for name in missing}

    def member_of(self, enumeration: type[E], prefix: str) -> E:
        """The value as a member of an enumeration, with or without the C prefix."""
        name = self.text().removeprefix(prefix)
        if name not in enumeration.__members__:
            raise self.error(f"be one of {', '.join(enumeration.__members__)}")
        return enumeration[name]

    def flags_of(self, enumeration: type[E], prefix: str) -> E:
        """The value, a name or an array of names, as flags."""
        entries = self.elements() if isinstance(self.value, list) else [self]
        return enumeration(sum({e.member_of(enumeration, prefix) for e in entries}))


def parse(text: str) -> Entry:
    """The root of a model."""
    if not text.strip():
        raise ValueError("`the model` must be valid JSON; the file is empty")
    for ignored in (_COMMENT, _TRAILING_COMMA):
        text = ignored.sub(_blank, text)
    try:
        # DxDispatch ignores what follows the root value.
        value, _ = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        word = _WORD.match(text, error.pos)[0]  # type: ignore[index]
        got = f"; got {word}" if word else ""
        if word in _NAMES:
            got += f". JSON writes {_NAMES[word]}"
        raise ValueError(
            f"`the model` must be valid JSON; {position}: {error.msg}{got}"
        ) from None
    return Entry(value, "")


_WORD = re.compile(r"\w{0,20}")
_NAMES = {"True": "true", "False": "false", "None": "null"}  # Python's and JSON's


def _blank(match: re.Match[str]) -> str:
    """A string unchanged; anything else replaced by spaces, except for line breaks."""
    return match[1] or re.sub(r"[^\n]", " ", match[0])


class _Object(dict[str, Any]):
    """The members of an object, and one of the names that were given repeatedly."""

    def __init__(self, pairs: list[tuple[str, Any]]):
        super().__init__(pairs)
        counts = collections.Counter(name for name, _ in pairs)
        self.repeated = next((name for name in counts if counts[name] > 1), None)


_DECODER = json.JSONDecoder(object_pairs_hook=_Object)


def _shown(value: Any) -> str:
    """A value as printable JSON, shortened if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    text = text if text.isprintable() else json.dumps(value)
    return shortened(text, 60)


def shortened(text: str, maximum: int = 200) -> str:
    """A text that a model gives, cut if it is long; the default is for names."""
    return text if len(text) <= maximum else f"{text[: maximum - 3]}…"
