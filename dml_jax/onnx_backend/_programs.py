"""Compiled programs of a model, for the shapes and static values of its inputs."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.onnx_backend._evaluation import is_text
from dml_jax.onnx_backend._range_checks import collected

MOST_PROGRAMS = 64
_MOST_STATIC = 64  # elements of an input that may be static to decide a branch

Values: TypeAlias = Mapping[str, Any]
# The program, if there is one, and the names of its arguments.
_Program: TypeAlias = tuple[Callable[..., Any] | None, Sequence[str]]


class Programs:
    """A function from values by name to arrays, compiled for each kind of values.

    NumPy arrays among the values are static, and jax.Arrays are arguments of a program.
    Where branches or shapes depend on an argument, small arguments of integers and
    booleans are made static. Where that is not enough, nothing is compiled. The
    programs that were used last are kept.
    """

    def __init__(self, function: Callable[[Values], list[Any]]):
        self._function = function
        self._programs: collections.OrderedDict[Any, _Program]
        self._programs = collections.OrderedDict()
        self._lock = threading.Lock()

    def run(self, values: Values, device: Any) -> Sequence[Any]:
        """The function's outputs on a device."""
        if not any(isinstance(x, jax.Array) for x in values.values()):
            return self._function(values)
        if any(is_text(x) for x in values.values()):
            return self._function(values)
        program, names = self._program(values, device)
        if program is None:
            small = _with_small_static(values)
            if small is not values:
                program, names = self._program(small, device)
        if program is not None:
            is_outside, outputs = program(*(values[name] for name in names))
            if not is_outside:
                return outputs
        return self._function(values)  # also gives the errors, with the nodes' names

    def _program(self, values: Values, device: Any) -> _Program:
        key = device, _key(values)
        with self._lock:
            if key not in self._programs:
                self._programs[key] = _compiled(self._function, values)
                if len(self._programs) > MOST_PROGRAMS:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            return self._programs[key]


def _key(values: Values) -> tuple[Any, ...]:
    """What a program depends on: types, and the values of NumPy arrays."""
    return tuple(
        (name, x.shape, x.dtype, x.tobytes() if isinstance(x, np.ndarray) else None)
        for name, x in values.items()
    )


def _with_small_static(values: Values) -> Values:
    def is_small(x: Any) -> bool:
        is_discrete = x.dtype == np.bool_ or jnp.issubdtype(x.dtype, jnp.integer)
        return isinstance(x, jax.Array) and is_discrete and x.size <= _MOST_STATIC

    if not any(map(is_small, values.values())):
        return values
    return {n: np.asarray(x) if is_small(x) else x for n, x in values.items()}


def _compiled(function: Callable[[Values], list[Any]], values: Values) -> _Program:
    """A program of what is not static, or None if there cannot be one."""
    names = [name for name, x in values.items() if isinstance(x, jax.Array)]
    # The program must not keep the arguments of its first call.
    static = {name: x for name, x in values.items() if name not in names}

    def program(*given: Any) -> Any:
        with collected() as checks:
            outputs = function({**static, **dict(zip(names, given, strict=True))})
        is_outside = jnp.any(jnp.stack(checks)) if checks else False
        return is_outside, [jnp.asarray(value) for value in outputs]

    compiled = jax.jit(program)
    try:
        jax.block_until_ready(compiled(*(values[name] for name in names)))
    except Exception:  # what is wrong is found again, and named, without a program
        return None, names
    return compiled, names
