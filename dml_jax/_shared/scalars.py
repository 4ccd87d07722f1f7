"""A number that is given for a dtype, which it must fit.

Numbers of Python and NumPy count by their value: floats are rounded to the nearest one
of the dtype, integers may be written in the signed or the unsigned range of its width.
Arrays and traced values count by their dtype, but for what JAX calls weakly typed,
which stands for a Python number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dml_jax._shared import arguments


def as_scalar(function: str, name: str, value: Any, dtype: np.dtype) -> Any:
    """`value` as a scalar of `dtype`: a NumPy one, or the array that was given."""
    if type(value) is float and dtype.char in "fd" and -1e38 < value < 1e38:
        return np.array(value, dtype)  # what most callers pass
    rank = _rank(dtype)
    kind = _KINDS[rank]
    number = _number(value, dtype)
    if isinstance(number, (jax.Array, np.generic)):
        is_weak = isinstance(number, jax.Array) and jax.typeof(number).weak_type
        fits = number.dtype == dtype or (is_weak and 0 < _rank(number.dtype) <= rank)
        if fits and number.shape == ():
            return number
    elif isinstance(number, kind.numbers) and isinstance(number, bool) == (rank == 0):
        return dtype.type(kind.convert(function, name, number, dtype))
    raise TypeError(
        f"{function}: `{name}` must be {kind.words} or a scalar array of dtype "
        f"{dtype}; got {arguments.describe(value)}"
    )


def _number(value: Any, dtype: np.dtype) -> Any:
    """The Python number in `value`, if it has one that is not of `dtype` already."""
    if isinstance(value, (np.ndarray, np.generic)) and value.shape == ():
        of_other_dtype = arguments.is_known(value.dtype) and value.dtype != dtype
        return value.item() if of_other_dtype else np.asarray(value)[()]
    if isinstance(value, jax.Array) and not isinstance(value, Tracer):
        is_weak = jax.typeof(value).weak_type
        return value.item() if is_weak and value.shape == () else value
    return value


def _rank(dtype: Any) -> int:
    """The place of a dtype among booleans, integers, reals and complex numbers."""
    kinds = (jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, k in enumerate(kinds, 1) if jnp.issubdtype(dtype, k)), 0)


def _boolean(function, name, value, dtype):
    return value


def _integer(function, name, value, dtype):
    """`value` modulo 2^bits, if the signed or the unsigned range has it."""
    bits = jnp.iinfo(dtype).bits
    if not -(2 ** (bits - 1)) <= value < 2**bits:
        raise OverflowError(
            f"{function}: `{name}` must be in [{-(2 ** (bits - 1))}, {2**bits - 1}], "
            f"the signed or unsigned range of {dtype}; got {arguments.show(value)}"
        )
    value %= 2**bits
    return value if value <= jnp.iinfo(dtype).max else value - 2**bits


def _real(function, name, value, dtype):
    nearest = _nearest(function, name, value, value, dtype)
    stored = float(dtype.type(nearest))
    if stored != nearest and not (math.isnan(stored) and math.isnan(nearest)):
        raise OverflowError(
            f"{function}: `{name}` must be a value that {dtype} has; got {value}"
        )
    return nearest


def _complex(function, name, value, dtype):
    real = _nearest(function, name, value, value.real, dtype)
    return complex(real, _nearest(function, name, value, value.imag, dtype))


def _nearest(function, name, value, part, dtype):
    """A part of `value`, rounded to the precision of `dtype`, ties to even."""
    if part == 0 or (isinstance(part, float) and not math.isfinite(part)):
        return float(part)
    info = jnp.finfo(dtype)
    exponent = int(abs(part)).bit_length() or math.frexp(part)[1]
    quantum = Fraction(2) ** (max(exponent - 1, int(info.minexp)) - int(info.nmant))
    # NumPy rounds a double to float32 on its way to a narrower float; round() of a
    # fraction rounds once, ties to even.
    nearest = round(Fraction(part) / quantum) * quantum
    if abs(nearest) > Fraction(float(info.max)):
        raise arguments.beyond(function, name, dtype, float(info.max), value)
    return float(nearest)


class _Kind(NamedTuple):
    words: str
    numbers: tuple[type, ...]
    convert: Callable


_KINDS = (
    _Kind("a boolean", (bool,), _boolean),
    _Kind("an integer", (int,), _integer),
    _Kind("a real number", (int, float), _real),
    _Kind("a complex number", (int, float, complex), _complex),
)
