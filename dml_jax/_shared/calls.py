"""Repeated calls: memoized checks of arguments, and compiled primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer

R = TypeVar("R")


def memoized(check: Callable[..., R]) -> Callable[..., R]:
    """Memoizes a check of arrays' types and shapes, and of static options.

    A check takes longer than the compiled program of a small array. Only immutable
    built-in options are memoized: others may be equal to them and still be refused, as
    1.0 is where 1 is accepted, or may change.
    """
    remembered = functools.lru_cache(maxsize=4096, typed=True)(check)

    def call(of_arrays: Any, *options: Any) -> R:
        for option in options:
            kind = type(option)
            if kind is tuple:
                for element in option:
                    if type(element) is not int:
                        return check(of_arrays, *options)
            elif kind not in _IMMUTABLE and not isinstance(option, (type, np.dtype)):
                return check(of_arrays, *options)
        try:
            return remembered(of_arrays, *options)
        except TypeError:  # symbolic sizes, for example, may have no hash
            return check(of_arrays, *options)

    return call


_IMMUTABLE = frozenset({int, bool, str, type(None)})


def compiled(
    name: str, bind: Callable[..., Any], formulation: Callable[..., Any], *options: str
) -> Callable[..., Any]:
    """What a primitive does outside of programs: one program, as JAX's primitives do.

    Operation by operation it would be divided among devices in other ways, which add
    floats up, and would take the memory of all that it computes on the way. So it is
    computed only where JAX, under `jax_debug_nans`, looks for what made a NaN.
    """

    def traced(*operands: jax.Array, **params: Any) -> Any:
        is_traced = isinstance(operands[0], Tracer)
        return (bind if is_traced else formulation)(*operands, **params)

    traced.__name__ = name
    program = jax.jit(traced, static_argnames=options)

    def run(*operands: jax.Array, **params: Any) -> Any:
        with jax.disable_jit(False):
            return program(*operands, **params)

    return run
