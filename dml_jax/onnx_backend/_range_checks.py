"""Checks of values while a program of `Model.run` is traced.

A program clamps indices and sequence lengths. It therefore also returns whether any of
them was outside of its range; `Model.run` then computes node by node for the error.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

_checks: contextvars.ContextVar[list[jax.Array] | None]
_checks = contextvars.ContextVar("checks", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list[jax.Array]]:
    """The checks that nodes note in this context."""
    checks: list[jax.Array] = []
    token = _checks.set(checks)
    try:
        yield checks
    finally:
        _checks.reset(token)


def note_outside(values: Any, least: Any, most: Any) -> None:
    """Notes whether traced values are outside of a range, if checks are collected."""
    checks = _checks.get()
    if checks is not None:
        checks.append(jnp.any((values < least) | (values > most)))


def refuse_unbounded_loop() -> None:
    """Refuses a loop without a known number of iterations, if checks are collected.

    The most iterations that a loop may have are counted outside of programs only.
    """
    if _checks.get() is not None:
        raise TypeError("the number of iterations must be known in a program of `run`")
