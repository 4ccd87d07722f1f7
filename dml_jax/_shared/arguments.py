"""Checks of the arguments of public functions, and the errors they raise.

Checks of arrays read shapes and dtypes only, so they take microseconds and work on
traced arguments. Checks of lists also read the values.

They raise `TypeError` for a wrong type, `ValueError` for a wrong value, shape or
option, and `OverflowError` for a number that does not fit its dtype.
"""

from __future__ import annotations

import functools
import math
import operator
import reprlib
import sys
import typing
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from dml_jax._shared import bitwise, lists

Implementation: TypeAlias = Literal["gather", "scatter"]
LengthsLike: TypeAlias = ArrayLike | Sequence[Any]  # lists, nested or not, of integers
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
            ". Bind it with `functools.partial`, or, outside of `checked`, name it in "
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
    return f"{type(value).__name__} {' '.join(_short.repr(value).split())}"


def show(number: object) -> str:
    """A number, shortened if it is long."""
    return _short.repr(number)


class _Short(reprlib.Repr):
    """Also shows integers with more digits than Python converts to text."""

    def repr_int(self, x: int, level: int) -> str:
        limit = sys.get_int_max_str_digits()
        if limit and x.bit_length() > 3 * limit:
            return f"{'-' if x < 0 else ''}2^{x.bit_length() - 1} or more"
        return super().repr_int(x, level)


_short = _Short()
_short.maxother = _short.maxstring = 80


# Arrays -------------------------------------------------------------------------------


def as_array(function: str, name: str, value: ArrayLike) -> jax.Array | np.ndarray:
    """`value` as an array whose dtype JAX does not change."""
    if isinstance(value, jax.Array):
        return value
    array, is_typed = to_array(function, name, value)
    if isinstance(array, jax.Array):
        return array
    if not is_typed:
        return _in_default_width(function, name, array, value)
    require_known(function, name, array.dtype)
    require_width(function, name, array.dtype)
    return array


def to_array(function: str, name: str, value: Any) -> tuple[Any, bool]:
    """`value` as an array, and whether it has a dtype of its own.

    The result is a JAX array if `value` contains one, otherwise a NumPy array. Its
    dtype is object for a list of integers that have no common dtype.
    """
    if isinstance(value, np.ma.MaskedArray):
        got = "MaskedArray. Call `.filled(value)`"
        raise error(TypeError, function, name, "be an array without a mask", got)
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value), True
    types = lists.types(value)
    if types.of_jax:
        for kind in types.on_host & _OF_64_BITS:
            require_width(function, name, np.dtype(kind))
    is_typed = not types.are_of_python
    try:
        if hasattr(value, "__jax_array__"):
            return jnp.asarray(value.__jax_array__()), True
        if types.of_jax:
            return _stack(function, name, value, types), True
        array = np.asarray(value)
        if array.dtype.kind in "fO" and types.are_integers:
            array, is_typed = lists.exact(value), False
    except (TypeError, ValueError, RuntimeError) as reason:  # of an `__array__`
        raise not_an_array(function, name, value, reason) from None
    is_unknown_void = array.dtype.kind == "V" and not is_known(array.dtype)
    is_object = array.dtype == object and (is_typed or not types.on_host)
    if array.dtype.kind in "UST" or is_unknown_void or is_object:
        raise not_an_array(function, name, value)
    return array, is_typed


def not_an_array(
    function: str, name: str, value: Any, reason: Exception | None = None
) -> Exception:
    """The error for a value that is no array; `reason` is that of a conversion."""
    got = describe(value)
    if lists.is_list(value):
        rows = [row for row in value if lists.is_list(row) or np.ndim(row)]
        if len({len(row) for row in rows}) > 1:
            got += ". Its rows have different sizes: pad them to one size"
    elif reason and hasattr(value, "__array__"):
        got += f", which cannot be converted: {' '.join(str(reason).split())}"
        if hasattr(value, "__dlpack__"):
            got += " (`jax.dlpack.from_dlpack` may convert it without NumPy)"
    rule = "be an array or convertible to one"
    return error(TypeError, function, name, rule, got)


def _stack(function: str, name: str, value: Any, types: lists.Types) -> jax.Array:
    """Stacks numbers and JAX arrays into one array without narrowing any of them."""
    dtypes = map(np.dtype, types.of_jax & _OF_64_BITS)
    try:
        with np.errstate(over="ignore"), bitwise.full_width(*dtypes):
            array = jnp.asarray(lists.nested(value))
            is_float = jnp.issubdtype(array.dtype, jnp.inexact)
            largest = float(jnp.finfo(array.dtype).max) if is_float else math.inf
        for leaf in lists.leaves(value):
            is_number = type(leaf) in (int, float)
            if is_number and math.isfinite(leaf) and abs(leaf) > largest:
                raise OverflowError
    except OverflowError:
        wanted = "the dtype of the arrays in it"
        raise does_not_fit(function, name, wanted, value) from None
    return array


_OF_64_BITS = {np.int64, np.uint64, np.float64, np.complex128}


def _in_default_width(
    function: str, name: str, array: np.ndarray, value: object
) -> np.ndarray:
    """Python numbers as an array of JAX's default dtype, if they fit."""
    is_integer = array.dtype.kind in "iuO"
    dtype = jax.dtypes.canonicalize_dtype(int if is_integer else array.dtype)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # a NaN may be signalling
            result = array.astype(dtype)
    except OverflowError:  # of Python integers
        raise does_not_fit(function, name, dtype, value) from None
    if is_integer:
        is_lost = result != array
    else:
        is_lost = np.isfinite(array) & ~np.isfinite(result)
    if np.any(is_lost):
        raise does_not_fit(function, name, dtype, value)
    return result


def does_not_fit(function: str, name: str, dtype: Any, value: object) -> Exception:
    got = describe(value)
    if dtype in (np.int32, np.float32):
        got += f". Wider numbers need {_HOW_TO_ENABLE_64_BITS}"
    return error(OverflowError, function, name, f"fit {dtype}", got)


_HOW_TO_ENABLE_64_BITS = (
    "64-bit mode; enable it with `jax.config.update('jax_enable_x64', True)` or inside "
    "`with jax.enable_x64(True):`"
)


@functools.cache
def is_known(dtype: np.dtype) -> bool:
    """Whether JAX supports a dtype, unlike text, times and long doubles."""
    if dtype == np.bool_ or not dtype.isnative or dtype.kind in "mM":
        return dtype == np.bool_
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits in (2, 4, 8, 16, 32, 64)
    is_long_double = dtype.kind + dtype.char in ("fg", "cG")
    if is_long_double or not jnp.issubdtype(dtype, jnp.inexact):
        return False
    return jnp.finfo(dtype).bits in (4, 8, 16, 32, 64)


def require_known(function: str, name: str, dtype: np.dtype) -> None:
    """Refuses a dtype that JAX does not compute with, and says how to convert it."""
    if not is_known(dtype):
        got = str(dtype)
        if dtype.kind in "mM":
            got += ". Pass `x.view('int64')` in 64-bit mode"
        elif not dtype.isnative:
            got += conversion(dtype, dtype.newbyteorder("="))
        raise error(TypeError, function, name, "have a dtype that JAX knows", got)


def conversion(given: Any, wanted: Any) -> str:
    """How to convert an array of real numbers, for an error about its dtype."""
    is_real = isinstance(given, np.dtype) and (
        given.kind in "biuf" or (given.kind == "V" and is_known(given))
    )
    return f". Convert it by `.astype('{wanted}')`" if is_real else ""


def has_zero(dtype: Any) -> bool:
    """Whether a dtype has a zero, unlike PRNG keys and powers of two."""
    return isinstance(dtype, np.dtype) and dtype != jnp.float8_e8m0fnu


def require_width(function: str, name: str, dtype: np.dtype) -> None:
    """Refuses a 64-bit dtype if JAX would silently narrow it."""
    if bitwise.is_narrowed(dtype):
        raise ValueError(
            f"{function}: `{name}` has dtype {dtype}, which needs "
            f"{_HOW_TO_ENABLE_64_BITS}, or use a narrower dtype, such as "
            f"'{jax.dtypes.canonicalize_dtype(dtype)}'"
        )


# Static arguments ---------------------------------------------------------------------


def is_bool(value: object) -> bool:
    """Whether `value` is a Python or NumPy boolean."""
    return isinstance(value, (bool, np.bool_))


def integer(function: str, name: str, value: Any) -> int:
    """`value` as a Python int."""
    if type(value) is int:
        return value
    try:
        if is_bool(value):
            raise TypeError
        return operator.index(value)
    except TypeError:
        rule = "be a static integer"
        raise not_static(function, name, rule, value) from None


def integers(
    function: str, name: str, value: Any, count: int | None = None
) -> tuple[Size, ...]:
    """`value` as a tuple of sizes, one for each of `count` dimensions."""
    if not isinstance(value, (tuple, list)):  # the usual ones
        value = _as_sequence(function, name, value)
    result = tuple(
        element
        if type(element) is int or jax.export.is_symbolic_dim(element)
        else integer(function, f"{name}[{i}]", element)
        for i, element in enumerate(value)
    )
    if count is not None and len(result) != count:
        rule = f"have {count} elements, one for each dimension"
        raise error(ValueError, function, name, rule, len(result))
    return result


def _as_sequence(function: str, name: str, value: Any) -> Any:
    """A sequence of integers; its elements are not checked."""
    is_sequence = isinstance(value, (Sequence, np.ndarray, jax.Array))
    if not is_sequence or isinstance(value, (str, bytes)):
        rule = "be a sequence of integers, one for each dimension"
        is_integer = isinstance(value, (int, np.integer)) and not is_bool(value)
        hint = f". Write ({value},)" if is_integer else ""
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
    """`value` as the shape of an array that XLA can compile."""
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
    allowed = (*typing.get_args(Implementation), None)
    if value is None or (isinstance(value, str) and value in allowed):
        return
    rule = "be " + " or ".join(map(repr, allowed))
    if isinstance(value, str):
        raise error(ValueError, function, "implementation", rule, repr(value))
    raise not_static(function, "implementation", rule, value)


def flag(function: str, name: str, value: object) -> bool:
    """`value` as a bool; a number or a traced value is not one."""
    if not is_bool(value):
        raise not_static(function, name, "be a bool", value)
    return bool(value)


def optional_name(function: str, name: str, value: object) -> str | None:
    """`value`, if it is None or a string that is not empty."""
    if value is not None and not isinstance(value, str):
        raise not_static(function, name, "be a string or None", value)
    if value == "":
        raise error(ValueError, function, name, "not be empty", "''")
    return value


def scalar(function: str, name: str, value: Any) -> Any:
    """`value` as a real scalar: a JAX array unchanged, any other number as a float."""
    if type(value) is float and -1e38 < value < 1e38:  # the most common argument
        return value
    number = value
    if isinstance(value, (np.ndarray, np.generic)):
        is_number = value.shape == () and is_known(value.dtype)
        number = value.item() if is_number else None
    if isinstance(value, jax.Array):
        dtype = value.dtype
        is_real = any(jnp.issubdtype(dtype, k) for k in (jnp.floating, jnp.integer))
        if value.shape == () and is_real:
            return value
    elif isinstance(number, (int, float)) and not isinstance(number, bool):
        return _finite_float(function, name, number)
    raise error(TypeError, function, name, "be a real scalar", describe(value))


def _finite_float(function: str, name: str, number: int | float) -> float:
    if isinstance(number, float) and not math.isfinite(number):
        raise error(ValueError, function, name, "be finite", number)
    dtype = jax.dtypes.canonicalize_dtype(float)
    largest = float(jnp.finfo(dtype).max)
    if abs(number) > largest:
        raise beyond(function, name, dtype, largest, number)
    return float(number)


def beyond(
    function: str, name: str, dtype: Any, largest: float, value: object
) -> Exception:
    """The error for a number beyond the largest value of a float dtype."""
    rule = f"fit {dtype}, whose largest value is {largest}"
    return error(OverflowError, function, name, rule, show(value))
