"""Repeated calls: memoized checks of arguments, and compiled primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer

R = TypeVar("R")

_IMMUTABLE = frozenset({int, bool, str, type(None)})


def memoized(check: Callable[..., R]) -> Callable[..., R]:
    """Memoizes a check of the types and shapes of arrays, and of static options.

    A check takes longer than the compiled program of a small array. A call is memoized
    if its options are integers, booleans, strings, None, types, dtypes, or lists or
    tuples of integers. Other options may change, or may equal valid ones without being
    valid, as 1.0 equals 1.
    """
    memo = functools.lru_cache(maxsize=4096, typed=True)(check)

    def call(arrays: Any, *options: Any) -> R:
        key = tuple(tuple(o) if type(o) is list else o for o in options)
        for option in key:
            kind = type(option)
            if kind is tuple:
                for element in option:
                    if type(element) is not int:
                        return check(arrays, *options)
            elif kind not in _IMMUTABLE and not isinstance(option, (type, np.dtype)):
                return check(arrays, *options)
        try:
            return memo(arrays, *key)
        except TypeError:  # a symbolic size may have no hash
            return check(arrays, *options)

    return call


def compiled(
    name: str, bind: Callable[..., Any], compute: Callable[..., Any], *options: str
) -> Callable[..., Any]:
    """The implementation of a primitive outside of `jit`: one compiled program.

    If `compute` ran one operation at a time, every intermediate result would be stored,
    and XLA would partition each operation alone, with sums of floats over devices. It
    runs like that only if JAX searches for the origin of a NaN (`jax_debug_nans`).
    """

    def traced(*operands: jax.Array, **params: Any) -> Any:
        is_traced = isinstance(operands[0], Tracer)
        return (bind if is_traced else compute)(*operands, **params)

    traced.__name__ = name
    program = jax.jit(traced, static_argnames=options)

    def run(*operands: jax.Array, **params: Any) -> Any:
        with jax.disable_jit(False):
            return program(*operands, **params)

    return run
