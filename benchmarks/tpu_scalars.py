"""The scalars of a schedule of TPU's compiler, and the loops that they control."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping

MAX_TRIPS = 2**18  # of a loop that is followed

Term = tuple[str, ...]  # a product of scalars, where "!" negates a predicate
Values = Mapping[str, int | None]


def _signed(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


_OPERATIONS: dict[str, Callable[..., int]] = {
    "smov": lambda x: x,
    "sadd": operator.add,
    "ssub": operator.sub,
    "smul": operator.mul,
    "sand": operator.and_,
    "sor": operator.or_,
    "sxor": operator.xor,
    "smin": min,
    "smax": max,
    "sshll": lambda x, by: x << by % 32,
    "sshrl": lambda x, by: x % 2**32 >> by % 32,
    "sshra": lambda x, by: x >> by % 32,
    "scalar_select": lambda p, x, y: x if p else y,
    "pneg": operator.not_,
    "pand": operator.and_,
    "por": operator.or_,
    "pnand": lambda x, y: not (x and y),
    "pnor": lambda x, y: not (x or y),
    "pxor": operator.xor,
    "scmp.eq": operator.eq,
    "scmp.ne": operator.ne,
    "scmp.lt": operator.lt,
    "scmp.le": operator.le,
    "scmp.gt": operator.gt,
    "scmp.ge": operator.ge,
}
_ABSORBING = {"pand": 0, "pnand": 0, "por": 1, "pnor": 1}
_DEFINITION = re.compile(
    r"(%[sp]\w+) = (\w+(?:\.(?:eq|ne|lt|le|gt|ge)\b)?)([\w.]*)([^;}]*)"
)
_GUARDED_MOVE = re.compile(r"^ *\((!?%p\w+), (%\w+)\), (\S+)")
_GUARD = re.compile(r"^ *\(!?%p\w+\),")
_OPERAND = re.compile(r"%[sp]\w+|-?\d+|[^\s,]+")
_STORE = re.compile(r"= sst \[smem:\[(#\w+_spill)\]\] (?:\(!?%p\w+\), )?(%\w+)")
_LOAD = re.compile(r"(%[sp]\w+) = sld \[smem:\[(#\w+_spill)\]\]")


class Scalars:
    """The scalar instructions of a schedule by the names of their results."""

    def __init__(self, code: str) -> None:
        self._definitions: dict[str, tuple[str, list[str]]] = {}
        self._unsigned: set[str] = set()
        for name, operation, suffix, operands in _DEFINITION.findall(code):
            if suffix.startswith(".u32"):
                self._unsigned.add(name)
            if move := _GUARDED_MOVE.match(operands):
                operation, operands = "scalar_select", f"{move[1]} {move[3]} {move[2]}"
            operands = _OPERAND.findall(_GUARD.sub("", operands))
            self._definitions[name] = operation, operands
        stored: dict[str, set[str]] = {}
        for slot, name in _STORE.findall(code):
            stored.setdefault(slot, set()).add(name)
        for name, slot in _LOAD.findall(code):
            if len(stored.get(slot, ())) == 1:
                self._definitions[name] = "smov", list(stored[slot])

    def value(self, name: str, counters: Values) -> int | None:
        """A scalar in terms of the counters of loops; None where it is not known."""
        return self._value(name, dict(counters))

    def _value(self, name: str, known: dict[str, int | None]) -> int | None:
        """A scalar in terms of known ones, to which it is added."""
        if name[0] == "!":
            value = self._value(name[1:], known)
            return None if value is None else int(not value)
        if name.lstrip("-").isdecimal():
            return _signed(int(name))
        if name not in known:
            known[name] = self._computed(name, known)
        return known[name]

    def _computed(self, name: str, known: dict[str, int | None]) -> int | None:
        operation, operands = self._definitions.get(name, ("", []))
        function = _OPERATIONS.get(operation)
        if function is None:
            return None
        values = [self._value(operand, known) for operand in operands]
        absorbing = _ABSORBING.get(operation)
        if absorbing is not None and absorbing in values:
            return int(function(absorbing, absorbing))
        if None in values:
            return None
        if name in self._unsigned:
            values = [value % 2**32 for value in values]
        return _signed(int(function(*values)))

    def product(self, term: Term, counters: Values) -> int | None:
        total = 1
        for name in term:
            value = self.value(name, counters)
            if value is None or value == 0:
                return value
            total *= value
        return total

    def follow(
        self,
        header: str,
        goes_on: Term,
        terms: Collection[Term],
        used: Collection[str],
        outer: Values,
    ) -> tuple[float, Mapping[Term, float] | None, Values]:
        """The trips of a loop, the means of terms, and its counters in the middle.

        The counters are the phis in the first bundle of the loop, as far as `goes_on`,
        the terms and the scalars that are `used` depend on them. Terms that depend on
        data have no mean. If `goes_on` does, there are no means at all.
        """
        phis = {
            name: self._definitions[name][1]
            for name in re.findall(r"(%[sp]\w+) = sphi", header)
        }
        names = {name.lstrip("!") for term in (goes_on, *terms) for name in term}
        needed = self._needed(names.union(used), phis)
        sums = dict.fromkeys(terms, 0)
        values = {name: self.value(phis[name][0], outer) for name in needed}
        history = []
        while len(history) < MAX_TRIPS:
            history.append(values)
            known = {**outer, **values}
            for term, total in list(sums.items()):
                value = self.product(term, known)
                if value is None:  # it depends on data
                    del sums[term]
                else:
                    sums[term] = total + value
            proceed = self.product(goes_on, known)
            if proceed is None:
                break
            if not proceed:
                trips = len(history)
                means = {term: total / trips for term, total in sums.items()}
                return trips, means, history[trips // 2]
            values = {name: self.value(phis[name][1], known) for name in needed}
        return 1, None, {}

    def _needed(self, names: Collection[str], phis: Collection[str]) -> set[str]:
        """The phis of a loop that some scalars depend on, in any trip."""
        seen: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                _, operands = self._definitions.get(name, ("", []))
                left += [x for x in operands if x.startswith("%")]
        return seen.intersection(phis)
