"""Primitives outside `jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer


def compiled(primitive: Any, *options: str) -> Callable[..., Any]:
    """The implementation of a primitive outside `jit`: one compiled program.

    Public functions bind primitives under `jit`, so it runs only if `jit` is disabled,
    or under `jax_debug_nans`, when JAX runs a function again without `jit` to find
    where a NaN appeared.
    """

    def traced(*operands: jax.Array, **params: Any) -> Any:
        if not isinstance(operands[0], Tracer):  # it is called without `jit`
            raise FloatingPointError(
                f"invalid value (nan) encountered in {primitive.name}"
            )
        return primitive.bind(*operands, **params)

    traced.__name__ = primitive.name
    program = jax.jit(traced, static_argnames=options)

    def run(*operands: jax.Array, **params: Any) -> Any:
        with jax.disable_jit(False):
            return program(*operands, **params)

    return run
