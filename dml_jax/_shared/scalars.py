"""Conversion of scalars to a given dtype.

Python and NumPy numbers are converted by value: a real number is rounded to the nearest
value of the dtype, and an integer may be in the signed or the unsigned range of its
width. Arrays and traced values must have the dtype already. Weakly typed JAX values
of another dtype are treated as Python numbers.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dml_jax._shared import arguments

# For each rank, the name of the kind of dtype and the Python types that it accepts.
_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("a boolean", (bool,)),
    ("an integer", (int,)),
    ("a real number", (int, float)),
    ("a complex number", (int, float, complex)),
)


def as_scalar(function: str, name: str, value: Any, dtype: np.dtype) -> Any:
    """`value` as a scalar of `dtype`: a NumPy one, or the array that was given."""
    if type(value) is float and dtype.char in "fd" and abs(value) < 1e38:
        return np.array(value, dtype)  # NumPy rounds it once
    rank = _rank(dtype)
    kind, numbers = _KINDS[rank]
    number = _number(value, dtype)
    if isinstance(number, (jax.Array, np.generic)):
        is_weak = isinstance(number, jax.Array) and jax.typeof(number).weak_type
        fits = number.dtype == dtype or (is_weak and 0 < _rank(number.dtype) <= rank)
        if fits and number.shape == ():
            return number
    elif isinstance(number, numbers) and isinstance(number, bool) == (rank == 0):
        return dtype.type(_converted(function, name, number, dtype))
    rule = f"be {kind} or a scalar array of dtype {dtype}"
    raise arguments.error(TypeError, function, name, rule, arguments.describe(value))


def _rank(dtype: Any) -> int:
    """0 for booleans, 1 for integers, 2 for real and 3 for complex numbers."""
    kinds = (jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, k in enumerate(kinds, 1) if jnp.issubdtype(dtype, k)), 0)


def _number(value: Any, dtype: np.dtype) -> Any:
    """A concrete scalar as a Python number, unless it has `dtype` already."""
    if isinstance(value, (np.ndarray, np.generic)) and value.shape == ():
        has_other_dtype = arguments.is_known(value.dtype) and value.dtype != dtype
        return value.item() if has_other_dtype else np.asarray(value)[()]
    if isinstance(value, jax.Array) and not isinstance(value, Tracer):
        is_weak = jax.typeof(value).weak_type
        return value.item() if is_weak and value.shape == () else value
    return value


def _converted(function: str, name: str, value: Any, dtype: np.dtype) -> Any:
    """A Python number, rounded to a value of `dtype` of the same or a higher rank."""
    rank = _rank(dtype)
    if rank == 0:
        return value
    if rank == 1:
        return _wrapped(function, name, value, dtype)
    real = _nearest(function, name, value, value.real, dtype)
    if rank == 3:
        return complex(real, _nearest(function, name, value, value.imag, dtype))
    stored = float(dtype.type(real))
    if stored != real and not (math.isnan(stored) and math.isnan(real)):
        rule = f"be representable in {dtype}"
        raise arguments.error(OverflowError, function, name, rule, value)
    return real


def _wrapped(function: str, name: str, value: int, dtype: np.dtype) -> int:
    """`value` modulo 2^bits, if it is in the signed or the unsigned range."""
    info = jnp.iinfo(dtype)
    size = 2**info.bits
    if not -size // 2 <= value < size:
        limits = f"[{-size // 2}, {size - 1}]"
        rule = f"be in {limits}, the signed or unsigned range of {dtype}"
        got = arguments.show(value)
        raise arguments.error(OverflowError, function, name, rule, got)
    value %= size
    return value if value <= info.max else value - size


def _nearest(
    function: str, name: str, value: complex, part: float, dtype: np.dtype
) -> float:
    """A part of `value`, rounded to the precision of `dtype`, ties to even."""
    if part == 0 or (isinstance(part, float) and not math.isfinite(part)):
        return float(part)
    info = jnp.finfo(dtype)
    exponent = int(abs(part)).bit_length() or math.frexp(part)[1]
    quantum = Fraction(2) ** (max(exponent - 1, int(info.minexp)) - int(info.nmant))
    # NumPy would round twice, via float32; round() of a Fraction rounds once.
    nearest = round(Fraction(part) / quantum) * quantum
    if abs(nearest) > Fraction(float(info.max)):
        raise arguments.beyond(function, name, dtype, float(info.max), value)
    return float(nearest)
