"""Conversion of scalars that may be traced.

Numbers become NumPy scalars. JAX arrays are kept: `jit` casts them to the dtype of the
result. The checks are of the package's own rules: the kind of a scalar, the range of
integers, and that a factor is finite.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax._shared import arguments

_KINDS = ("a boolean", "an integer", "a real number", "a complex number")


def as_scalar(name: str, value: Any, dtype: np.dtype) -> Any:
    """`value` as a NumPy scalar of `dtype`, or the JAX array that was given.

    Its kind is that of the dtype or, for numbers, a simpler one: an integer may stand
    for a float. A Python or NumPy integer may be in the signed or the unsigned range of
    an integer dtype: -2 for uint8 is 254.
    """
    kind, wanted = _kind(value), _kind_of(dtype)
    if np.shape(value) != () or not min(wanted, 1) <= kind <= wanted:
        got, rule = arguments.describe(value), f"be a scalar and {_KINDS[wanted]}"
        raise arguments.error(TypeError, name, rule, got)
    if isinstance(value, jax.Array):
        return value
    if wanted == 1:
        return dtype.type(_wrapped(name, int(value), dtype))
    # NumPy makes an object of a large integer.
    number = float(value) if isinstance(value, int) and wanted else value
    return np.asarray(number).astype(dtype)[()]


def real(name: str, value: Any) -> Any:
    """`value` as a real scalar: the array that was given, or a finite float."""
    if np.shape(value) != () or _kind(value) not in (1, 2):
        got = arguments.describe(value)
        raise arguments.error(TypeError, name, "be a real scalar", got)
    if isinstance(value, jax.Array):
        return value
    if not math.isfinite(value):
        raise arguments.error(ValueError, name, "be finite", value)
    return float(value)


def _kind(value: Any) -> int:
    """The index in `_KINDS` of the kind of `value`; -1 if it is no number."""
    if isinstance(value, int):
        return int(not isinstance(value, bool))
    return _kind_of(getattr(value, "dtype", None) or np.asarray(value).dtype)


def _kind_of(dtype: Any) -> int:
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), -1)


def _wrapped(name: str, value: int, dtype: np.dtype) -> int:
    """`value` modulo 2^bits, if it is in the signed or the unsigned range."""
    info = jnp.iinfo(dtype)
    size = 2**info.bits
    if not -size // 2 <= value < size:
        limits = f"[{-size // 2}, {size - 1}]"
        rule = f"be in {limits}, the signed or unsigned range of {dtype}"
        got = arguments.show(value)
        raise arguments.error(OverflowError, name, rule, got)
    value %= size
    return value if value <= info.max else value - size
