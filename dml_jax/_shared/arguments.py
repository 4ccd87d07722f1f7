"""Checks of the arguments of public functions, and the errors they raise.

`jnp.asarray` converts arrays, with its own errors. The checks here are for static
options and scalars. They raise `TypeError` for a wrong type, `ValueError` for a wrong
value, shape or option, and `OverflowError` for an integer that does not fit its dtype.
"""

import contextlib
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
Shape: TypeAlias = tuple[Size, ...]


# Errors -------------------------------------------------------------------------------


class Message(str):
    """The message of a check, which does not know the function that it is for."""


class named(contextlib.ContextDecorator):
    """Begins the messages of checks with the name of a function.

    It is the decorator of the public functions. No other error is changed.
    """

    def __init__(self, function: str) -> None:
        self.function = function

    def __enter__(self) -> None: ...

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if error and error.args and isinstance(error.args[0], Message):
            error.args = (f"{self.function}: {error}",)


def error(kind: type[Exception], name: str, rule: str, got: object) -> Exception:
    """An error whose message has the common form, once it is `named`."""
    return kind(Message(f"`{name}` must {rule}; got {got}"))


def not_static(name: str, rule: str, value: Any) -> Exception:
    """The error for an option, which says how to keep `jit` from tracing it."""
    got = describe(value)
    if isinstance(value, Tracer):
        got += (
            ". Bind it with `functools.partial`, or, outside `checked`, name it in "
            "the `static_argnames` of `jax.jit`, so that it is not traced"
        )
        if "offsets" in name:
            got += ". `jax.lax.dynamic_slice` takes traced starts"
    return error(TypeError, name, rule, got)


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


def require_width(name: str, dtype: np.dtype) -> None:
    """Refuses a 64-bit dtype that JAX would narrow."""
    if bitwise.is_narrowed(dtype):
        message = (
            f"`{name}` has dtype {dtype}, which needs 64-bit mode; enable it with "
            "`jax.config.update('jax_enable_x64', True)` or inside `with "
            "jax.enable_x64(True):`, or use a narrower dtype, such as "
            f"'{jax.dtypes.canonicalize_dtype(dtype)}'"
        )
        raise ValueError(Message(message))


# Static arguments ---------------------------------------------------------------------


def integer(name: str, value: Any, limits: range | None = None) -> int:
    """`value` as a Python int, in the range of a C type if there are limits."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise not_static(name, "be a static integer", value) from None
    if limits and number not in limits:
        rule = f"be {limits[0]} to {limits[-1]}"
        raise error(ValueError, name, rule, show(number))
    return number


def integers(
    name: str, value: Any, count: int | None = None, limits: range | None = None
) -> Shape:
    """`value` as a tuple of static integers or, without limits, symbolic sizes."""
    if not isinstance(value, (tuple, list)):  # the common case
        value = _as_sequence(name, value)
    result = tuple(
        element
        if not limits and jax.export.is_symbolic_dim(element)
        else integer(f"{name}[{i}]", element, limits)
        for i, element in enumerate(value)
    )
    if count is not None and len(result) != count:
        rule = f"have {count} elements, one for each dimension"
        raise error(ValueError, name, rule, len(result))
    return result


def _as_sequence(name: str, value: Any) -> Any:
    """`value`, if it is a static sequence; its elements are not checked."""
    is_sequence = isinstance(value, (Sequence, np.ndarray, jax.Array))
    if not is_sequence or isinstance(value, (str, bytes)):
        rule = "be a sequence of integers, one for each dimension"
        hint = f". Write ({value},)" if isinstance(value, int) else ""
        raise error(TypeError, name, rule, describe(value) + hint)
    if isinstance(value, Tracer) or getattr(value, "ndim", 1) != 1:
        rule = "be a static one-dimensional sequence of integers"
        raise not_static(name, rule, value)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.integer):
        return value.tolist()  # Python integers, which are static also under `jit`
    return value


def naturals(name: str, value: Any, count: int | None = None) -> Shape:
    """`value` as a tuple of static integers or symbolic sizes, none negative."""
    numbers = integers(name, value, count)
    for i, number in enumerate(numbers):
        if number < 0:
            got = number if jax.export.is_symbolic_dim(number) else show(number)
            raise error(ValueError, f"{name}[{i}]", "be at least 0", got)
    return numbers


def sizes(name: str, value: Any, count: int | None = None) -> Shape:
    """`value` as a shape of at most 2^48 elements, which XLA can compile."""
    shape = naturals(name, value, count)
    elements = math.prod(
        size for size in shape if not jax.export.is_symbolic_dim(size) and size
    )
    if elements > 2**48:
        raise error(ValueError, name, "have at most 2^48 elements", show(elements))
    return shape


def require_implementation(value: Any) -> None:
    """Refuses other values than None and the names of implementations."""
    allowed = typing.get_args(Implementation)
    if value is None or (isinstance(value, str) and value in allowed):
        return
    rule = f"be {', '.join(map(repr, allowed))} or None"
    if isinstance(value, str):
        raise error(ValueError, "implementation", rule, repr(value))
    raise not_static("implementation", rule, value)


def flag(name: str, value: object) -> bool:
    """`value` as a bool; a number or a traced value is not one."""
    if not isinstance(value, (bool, np.bool_)):
        raise not_static(name, "be a bool", value)
    return bool(value)


def optional_name(name: str, value: object) -> str | None:
    """`value`, if it is None or a string that is not empty."""
    if value is not None and not isinstance(value, str):
        raise not_static(name, "be a string or None", value)
    if value == "":
        raise error(ValueError, name, "not be empty", "''")
    return value
