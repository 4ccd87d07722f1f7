"""Checks of the arguments of public functions, and the errors they raise.

`jnp.asarray` converts arrays, with its own errors. The checks here are for static
options and scalars. They raise `TypeError` for a wrong type, `ValueError` for a wrong
value, shape or option, and `OverflowError` for an integer that does not fit its dtype.
"""

from __future__ import annotations

import functools
import math
import operator
import reprlib
import typing
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dml_jax._shared import bitwise

Implementation: TypeAlias = Literal["gather", "scatter"]
Size: TypeAlias = Any  # an int, or a symbolic dimension of jax.export


# Errors -------------------------------------------------------------------------------


def error(
    kind: type[Exception], function: str, name: str, rule: str, got: object
) -> Exception:
    """An error whose message has the common form."""
    return kind(f"{function}: `{name}` must {rule}; got {got}")


def not_static(function: str, name: str, rule: str, value: Any) -> Exception:
    """The error for an option, which says how to keep `jit` from tracing it."""
    got = describe(value)
    if isinstance(value, Tracer):
        got += (
            ". Bind it with `functools.partial`, or, outside `checked`, name it in "
            "the `static_argnames` of `jax.jit`, so that it is not traced"
        )
        if "offsets" in name:
            got += ". `jax.lax.dynamic_slice` takes traced starts"
    return error(TypeError, function, name, rule, got)


def describe(value: Any) -> str:
    """The type of `value`, with its dtype and shape or a short `repr`."""
    if isinstance(value, (jax.Array, np.ndarray)):
        traced = "traced " if isinstance(value, Tracer) else ""
        return f"{traced}{value.dtype} array of shape {value.shape}"
    if jax.export.is_symbolic_dim(value):
        return f"symbolic {value}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    # Arrays in a list are printed with line breaks.
    return f"{type(value).__name__} {' '.join(show(value).split())}"


_short = reprlib.Repr()
_short.maxother = _short.maxstring = 80
show = _short.repr


# Dtypes -------------------------------------------------------------------------------


@functools.cache
def is_known(dtype: np.dtype) -> bool:
    """Whether JAX supports a dtype, unlike text, times and long doubles."""
    if not dtype.isnative or not hasattr(jnp, dtype.name):
        return False
    # Integers of 1 bit and floats of 6 bits are too new.
    return dtype == np.bool_ or bitwise.width(dtype) in (2, 4, 8, 16, 32, 64)


def has_zero(dtype: Any) -> bool:
    """Whether a dtype has a zero, unlike PRNG keys and powers of two."""
    return isinstance(dtype, np.dtype) and dtype != jnp.float8_e8m0fnu


def conversion(given: Any, wanted: Any) -> str:
    """How to convert an array of real numbers, for an error about its dtype."""
    is_real = isinstance(given, np.dtype) and (
        given.kind in "biuf" or (given.kind == "V" and is_known(given))
    )
    return f". Convert it by `.astype('{wanted}')`" if is_real else ""


def require_width(function: str, name: str, dtype: np.dtype) -> None:
    """Refuses a 64-bit dtype that JAX would narrow."""
    if bitwise.is_narrowed(dtype):
        raise ValueError(
            f"{function}: `{name}` has dtype {dtype}, which needs 64-bit mode; enable "
            "it with `jax.config.update('jax_enable_x64', True)` or inside `with "
            "jax.enable_x64(True):`, or use a narrower dtype, such as "
            f"'{jax.dtypes.canonicalize_dtype(dtype)}'"
        )


# Static arguments ---------------------------------------------------------------------


def integer(function: str, name: str, value: Any) -> int:
    """`value` as a Python int."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        rule = "be a static integer"
        raise not_static(function, name, rule, value) from None


def integers(
    function: str, name: str, value: Any, count: int | None = None
) -> tuple[Size, ...]:
    """`value` as a tuple of static integers or symbolic sizes."""
    if not isinstance(value, (tuple, list)):  # the common case
        value = _as_sequence(function, name, value)
    result = tuple(
        element
        if jax.export.is_symbolic_dim(element)
        else integer(function, f"{name}[{i}]", element)
        for i, element in enumerate(value)
    )
    if count is not None and len(result) != count:
        rule = f"have {count} elements, one for each dimension"
        raise error(ValueError, function, name, rule, len(result))
    return result


def _as_sequence(function: str, name: str, value: Any) -> Any:
    """`value`, if it is a static sequence; its elements are not checked."""
    is_sequence = isinstance(value, (Sequence, np.ndarray, jax.Array))
    if not is_sequence or isinstance(value, (str, bytes)):
        rule = "be a sequence of integers, one for each dimension"
        hint = f". Write ({value},)" if isinstance(value, int) else ""
        raise error(TypeError, function, name, rule, describe(value) + hint)
    if isinstance(value, Tracer) or getattr(value, "ndim", 1) != 1:
        rule = "be a static one-dimensional sequence of integers"
        raise not_static(function, name, rule, value)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.integer):
        return value.tolist()  # Python integers, which are static also under `jit`
    return value


def sizes(
    function: str, name: str, value: Any, count: int | None = None
) -> tuple[Size, ...]:
    """`value` as a shape of at most 2^48 elements, which XLA can compile."""
    shape = integers(function, name, value, count)
    for dimension, size in enumerate(shape):
        if size < 0:
            raise too_small(function, name, dimension, size, 0)
    elements = math.prod(
        size for size in shape if not jax.export.is_symbolic_dim(size) and size
    )
    if elements > 2**48:
        rule = "have at most 2^48 elements"
        raise error(ValueError, function, name, rule, show(elements))
    return shape


def too_small(
    function: str, name: str, dimension: int, value: Size, minimum: int
) -> Exception:
    """The error for an element of a sequence below `minimum`."""
    got = value if jax.export.is_symbolic_dim(value) else show(value)
    rule = f"be at least {minimum}"
    return error(ValueError, function, f"{name}[{dimension}]", rule, got)


def require_implementation(function: str, value: Any) -> None:
    """Refuses other values than None and the names of implementations."""
    allowed = typing.get_args(Implementation)
    if value is None or (isinstance(value, str) and value in allowed):
        return
    rule = f"be {', '.join(map(repr, allowed))} or None"
    if isinstance(value, str):
        raise error(ValueError, function, "implementation", rule, repr(value))
    raise not_static(function, "implementation", rule, value)


def flag(function: str, name: str, value: object) -> bool:
    """`value` as a bool; a number or a traced value is not one."""
    if not isinstance(value, (bool, np.bool_)):
        raise not_static(function, name, "be a bool", value)
    return bool(value)


def optional_name(function: str, name: str, value: object) -> str | None:
    """`value`, if it is None or a string that is not empty."""
    if value is not None and not isinstance(value, str):
        raise not_static(function, name, "be a string or None", value)
    if value == "":
        raise error(ValueError, function, name, "not be empty", "''")
    return value
