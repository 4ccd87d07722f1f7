"""Calls that come again: their arguments are settled, and their program is compiled."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer

R = TypeVar("R")


def settled(check: Callable[..., R]) -> Callable[..., R]:
    """Remembers what a check made of what it has of arrays, and of static options.

    Programs call operators alike again and again, and the call of a compiled program is
    over in less time than its arguments take to be checked one by one. Only built-in
    options are remembered: others may be equal to them and still be refused, or change.
    """

    @functools.lru_cache(maxsize=4096, typed=True)
    def remembered(of_arrays: Any, *options: Any) -> R:
        if not set(map(type, options)) <= _BUILT_IN:
            raise TypeError
        return check(of_arrays, *options)

    def call(of_arrays: Any, *options: Any) -> R:
        try:
            return remembered(of_arrays, *options)
        except (TypeError, ValueError):
            pass  # without a hash, not to be remembered, or wrong: the check says it
        return check(of_arrays, *options)

    return call


def settled_sequences(check: Callable[..., R]) -> Callable[..., R]:
    """`settled`, for four options that may be tuples: (True,) is equal to (1,).

    Those that are the same objects need not be looked at. They are compared one by one,
    and are always four, because loops and calls would take longer than all the rest.
    """

    @functools.lru_cache(maxsize=4096)
    def remembered(of_arrays: Any, options: Any) -> tuple[Any, R]:
        if not _are_built_in(options):
            raise TypeError
        return options, check(of_arrays, *options)

    def call(
        of_arrays: Any, one: Any, two: Any = None, three: Any = None, four: Any = None
    ) -> R:
        options = one, two, three, four
        try:
            (first, second, third, fourth), result = remembered(of_arrays, options)
            if one is first and two is second and three is third and four is fourth:
                return result
            if _are_built_in(options):
                return result
        except (TypeError, ValueError):
            pass  # without a hash, not to be remembered, or wrong: the check says it
        return check(of_arrays, *options)

    return call


def _are_built_in(options: Any) -> bool:
    """Whether tuples among the options hold integers, and the rest cannot change."""
    others = [option for option in options if type(option) not in _BUILT_IN]
    if not all(isinstance(option, (type, np.dtype)) for option in others):
        return False
    tuples = [option for option in options if type(option) is tuple]
    return set(map(type, itertools.chain.from_iterable(tuples))) <= {int}


_BUILT_IN = {int, bool, str, tuple, type(None)}


def program(core: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A jitted core for these static options, which JAX need not hash in every call.

    Threads that ask at once get the same one, or each would compile its own.
    """
    with _making_a_program:
        return _program(core, **options)


_making_a_program = threading.RLock()  # a signal's handler may call operators, too


@functools.lru_cache(maxsize=4096)
def _program(core: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    specialised: Any = functools.partial(core, **options)
    specialised.__name__ = core.__name__  # as profiles and compiled programs call it
    return jax.jit(specialised)


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
