"""Compiled programs of a model, for the shapes and static values of its inputs."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.onnx_backend._range_checks import are_outside, collected

MOST_PROGRAMS = 64
MOST_BYTES = 2**31  # of the weights in all programs, but four programs are kept
# Errors that another trace would raise again, so that they are remembered; running out
# of memory is not one.
_LASTING = (
    *(TypeError, ValueError, NotImplementedError),
    *(LookupError, ArithmeticError, AttributeError),
)

# Arrays by name: NumPy's, or JAX's on the device of the programs.
Values: TypeAlias = Mapping[str, Any]


class Programs:
    """A function from values by name to arrays, compiled for each kind of values.

    The elements of static values are part of a program's key. If tracing fails without
    it, those of all scalars of integers and booleans are, too. If it still fails,
    nothing is compiled. The programs that were used last are kept.
    """

    def __init__(
        self, function: Callable[[Values], list[Any]], static: Set[str], nbytes: int
    ):
        """`nbytes` is the size of the weights, of which each program has a copy."""
        self._function = function
        self._static = static
        most = min(MOST_PROGRAMS, max(4, MOST_BYTES // max(nbytes, 1)))
        # A cache of entries by the keys of programs.
        self._entry = functools.lru_cache(most)(lambda _: _Entry())
        self._lock = threading.Lock()

    def run(self, values: Values) -> list[np.ndarray] | None:
        """The function's outputs; None where it has to be called itself.

        That is so if it cannot be compiled, if a value is outside its range, and if
        a program fails. The function then finds and names what is wrong.
        """
        scalars = {
            n for n, x in values.items() if x.size == 1 and x.dtype.kind in "biu"
        }
        for static in (self._static, self._static | scalars):
            names = [name for name in values if name not in static]
            if not names:
                return None
            try:
                program = self._program(values, names)
                if program is not None:
                    outside, outputs = program(*(values[name] for name in names))
                    is_valid = not any(map(np.asarray, outside))
                    return [*map(np.array, outputs)] if is_valid else None
            except Exception:
                return None
        return None

    def _program(self, values: Values, names: Sequence[str]) -> Any:
        """The program whose arguments are the values of some names, if there is one."""
        key = tuple(
            (name, x.shape, x.dtype, None if name in names else x.tobytes())
            for name, x in values.items()
        )
        with self._lock:
            entry = self._entry(key)
        with entry.lock:  # other threads wait for the same program
            if not entry.is_settled:
                entry.program = _compiled(self._function, values, names)
                entry.is_settled = True
        return entry.program


class _Entry:
    """A program; none if the function cannot be traced."""

    def __init__(self):
        self.lock = threading.Lock()
        self.is_settled = False
        self.program: Callable[..., Any] | None = None


def _compiled(
    function: Callable[[Values], list[Any]], values: Values, names: Sequence[str]
) -> Callable[..., Any] | None:
    """A program of the values of some names, or None if there cannot be one."""
    # The program must not keep these values.
    types = [jax.ShapeDtypeStruct(values[n].shape, values[n].dtype) for n in names]
    static = {name: np.asarray(x) for name, x in values.items() if name not in names}

    def program(*given: Any) -> Any:
        with collected() as checks:
            outputs = function({**static, **dict(zip(names, given, strict=True))})
        outside = [are_outside(checks)] if checks else []
        return outside, [jnp.asarray(value) for value in outputs]

    try:
        lowered = jax.jit(program).lower(*types)
    except _LASTING:
        return None
    return lowered.compile()
