"""What the checks of a program found, brought out of it by callbacks.

Every device reports what it has, and the host puts it together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec


@dataclasses.dataclass
class _Found:
    """What one check of a program found, on all devices and in all iterations."""

    rule: str
    is_right: bool
    smallest: int
    largest: int


class Reports:
    """What the checks of one run found, in the order in which they were traced."""

    def __init__(self) -> None:
        self._found: dict[int, _Found] = {}

    def add(self, place: int, found: _Found) -> None:
        before = self._found.get(place, found)
        self._found[place] = _Found(
            found.rule,
            before.is_right and found.is_right,
            min(before.smallest, found.smallest),
            max(before.largest, found.largest),
        )

    def first_error(self) -> str | None:
        for _, found in sorted(self._found.items()):
            if not found.is_right:
                return message(found.rule, found.smallest, found.largest)
        return None


def message(rule: str, smallest: int, largest: int) -> str:
    return f"{rule}; got {smallest} to {largest}"


def extremes_in(words: Any, dtype: str) -> tuple[int, int]:
    """The smallest and the largest number, which came as words of 32 bits."""
    smallest, largest = np.asarray(words, np.uint32).view(dtype).tolist()
    return smallest, largest


# A callback is not told which run it belongs to, so that there is one run at a time.
_running = threading.RLock()
_adding = threading.Lock()
_current: Reports | None = None
_places = itertools.count()


@contextlib.contextmanager
def collected() -> Iterator[Reports]:
    """Collects what is sent meanwhile."""
    global _current
    with _running:
        before, _current = _current, Reports()
        try:
            yield _current
        finally:
            _current = before


def send(is_right: Any, rule: str, dtype: str, words: Any) -> None:
    """Sends what a check found, when the program that is being traced runs."""
    receive = functools.partial(_receive, next(_places), rule, dtype)
    _call_back(receive, is_right, words)


def send_static(rule: str, smallest: int, largest: int) -> None:
    """The same for numbers that are known and wrong."""
    found = _Found(rule, False, smallest, largest)
    jax.debug.callback(functools.partial(_add, next(_places), found))


def _receive(place: int, rule: str, dtype: str, is_right: Any, words: Any) -> None:
    _add(place, _Found(rule, bool(is_right), *extremes_in(words, dtype)))


def _add(place: int, found: _Found) -> None:
    with _adding:
        if _current is not None:
            _current.add(place, found)


def _call_back(receive: Any, *operands: Any) -> None:
    """A callback, below `shard_map` too where some axes are manual, others explicit."""

    mesh = jax.sharding.get_abstract_mesh()
    everywhere: Any = functools.partial
    if mesh.manual_axes and mesh.explicit_axes:
        everywhere = functools.partial(
            jax.sharding.auto_axes,
            axes=mesh.explicit_axes,
            out_sharding=PartitionSpec(),
        )

    def run(*operands):
        jax.debug.callback(receive, *operands)
        return operands

    everywhere(run)(*operands)
