"""Checks of values while a program of `Model.run` is traced.

A program clamps indices and sequence lengths. It therefore also returns whether any of
them was outside its range; `Model.run` then computes node by node for the error.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
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


def are_collected() -> bool:
    """Whether the checks that are noted now have an effect."""
    return _checks.get() is not None


def note(is_outside: jax.Array) -> None:
    """Remembers that a value may be outside its range, while `collected` is open."""
    checks = _checks.get()
    if checks is not None:
        checks.append(jnp.any(is_outside))


def are_outside(checks: Sequence[jax.Array]) -> jax.Array:
    return jnp.any(jnp.stack([jnp.zeros((), bool), *checks]))


def with_check(function: Callable[..., Any]) -> Callable[..., tuple[Any, jax.Array]]:
    """The function, which also returns whether a check in it has failed.

    It is the body of a loop or a branch, whose values cannot be noted outside it.
    """

    def checked(*inputs: Any) -> tuple[Any, jax.Array]:
        if not are_collected():
            return function(*inputs), jnp.zeros((), bool)
        with collected() as checks:
            outputs = function(*inputs)
        return outputs, are_outside(checks)

    return checked
