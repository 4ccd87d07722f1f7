"""What the public functions accept, and how they say no.

Checks of arrays look at shapes and dtypes only, so they cost microseconds and work on
traced arguments; of NumPy lengths and of lists they look at the values too. The wording
of an error is always

    function: `argument` must …, with the numbers that apply; got …

`TypeError` for a wrong kind, `ValueError` for a wrong value, shape or option,
`OverflowError` for a number that does not fit its dtype.
"""

from __future__ import annotations

import functools
import math
import operator
import reprlib
import sys
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from dml_jax._shared import bitwise, lists

Implementation: TypeAlias = Literal["gather", "scatter", "standalone"]
Size: TypeAlias = Any  # an int, or a symbolic dimension of jax.export

_LARGEST_INT32 = 2**31 - 1
_LARGEST_UINT32 = 2**32 - 1


@functools.cache
def is_array(kind: type) -> bool:
    """Whether objects of a type are arrays of JAX that have values."""
    return issubclass(kind, jax.Array) and not is_traced(kind)


@functools.cache
def is_traced(kind: type) -> bool:
    """Whether objects of a type stand for arrays of a program that is being traced."""
    return issubclass(kind, Tracer)


def as_array(function: str, name: str, value: ArrayLike) -> jax.Array | np.ndarray:
    """`value` as an array whose dtype JAX will not change behind the caller's back."""
    if isinstance(value, jax.Array):
        return value
    array, is_typed = _to_numpy(function, name, value)
    if isinstance(array, jax.Array):
        return array
    if not is_typed:
        return _in_default_width(function, name, array, value)
    if not is_known(array.dtype):
        raise TypeError(
            f"{function}: `{name}` must have a dtype that JAX knows; got {array.dtype}"
        )
    require_width(function, name, array.dtype)
    return array


def lengths(
    function: str, name: str, value: ArrayLike
) -> tuple[jax.Array | np.ndarray, tuple[int, int] | None]:
    """`value` as an array of integers that lie on the same side of every axis size.

    NumPy's 64-bit integers are clipped to 32 bits here unless 64-bit mode is on: JAX
    would take them modulo 2^32, and a length of 2^32 + 1 would become 1. Where that
    changes one, the extremes of what was given come with the result.
    """
    array: Any = value
    is_typed = isinstance(value, jax.Array)
    if not is_typed:
        array, is_typed = _to_numpy(function, name, value, by_value=True)
    # The kind settles the common dtypes in a tenth of the time that issubdtype takes.
    if getattr(array.dtype, "kind", None) not in ("i", "u"):
        if not is_typed and array.size == 0:
            # A list without elements has no dtype.
            return array.astype(np.int32), None
        if array.dtype == object and not is_typed:
            _require_64_bits(function, name, array)
            return _clipped(array)
        require_integer(function, name, array.dtype)
    if isinstance(array, jax.Array):
        return array, None
    if not is_known(array.dtype):
        raise TypeError(
            f"{function}: `{name}` must have a dtype that JAX knows; got {array.dtype}"
        )
    if jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype:
        return array, None
    return _clipped(array)


def _clipped(array: np.ndarray) -> tuple[np.ndarray, tuple[int, int] | None]:
    """Integers in 32 bits, and their extremes if some are beyond those."""
    if array.size == 0:
        return array.astype(np.int32), None
    smallest, largest = int(array.min()), int(array.max())
    is_signed = largest <= _LARGEST_INT32
    if is_signed and smallest >= -_LARGEST_INT32 - 1:
        return array.astype(np.int32), None
    if smallest >= 0 and largest <= _LARGEST_UINT32:
        return array.astype(np.uint32), None
    # uint32 reaches beyond the longest axis, and int32 has what is negative.
    info = np.iinfo(np.int32 if is_signed else np.uint32)
    return np.clip(array, info.min, info.max).astype(info.dtype), (smallest, largest)


def _require_64_bits(function: str, name: str, array: np.ndarray) -> None:
    """Refuses integers of a list that no dtype has."""
    for number in (array.min(), array.max()) if array.size else ():
        if not -(2**63) <= number < 2**64:
            raise OverflowError(
                f"{function}: `{name}` must fit int64 or uint64; got {show(number)}"
            )


def require_integer(function: str, name: str, dtype: Any) -> None:
    """Refuses dtypes other than integers."""
    if not jnp.issubdtype(dtype, jnp.integer) or not is_known(dtype):
        raise TypeError(f"{function}: `{name}` must have an integer dtype; got {dtype}")


def _to_numpy(
    function: str, name: str, value: Any, *, by_value: bool = False
) -> tuple[Any, bool]:
    """`value` as a NumPy array, and whether it came with a dtype of its own.

    Lists that hold arrays of JAX become such an array. An array of objects that came
    without a dtype holds integers that have no dtype in common. `by_value` is for
    integers whose dtype says nothing.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{function}: `{name}` must be an array without a mask, as of `.filled()`; "
            "got MaskedArray"
        )
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value), True
    kinds = lists.kinds(value)
    is_typed = not kinds.are_numbers_of_python
    if kinds.of_jax and not (by_value and kinds.are_integers):
        for kind in kinds.on_host & _OF_64_BITS:
            require_width(function, name, np.dtype(kind))
    try:
        if by_value and kinds.of_jax and kinds.are_integers:
            for leaf in lists.leaves(value):
                if not isinstance(leaf, jax.Array):
                    _require_64_bits(function, name, np.asarray(leaf))
            return lists.integers_of_jax(value), True
        if hasattr(value, "__jax_array__"):
            value = value.__jax_array__()
            return (value if isinstance(value, jax.Array) else jnp.asarray(value)), True
        if kinds.of_jax:
            return _as_jax(function, name, value, kinds), True
        array = np.asarray(value)
        if array.dtype.kind in "fO" and kinds.are_integers:
            array, is_typed = lists.exact(value), False
    except (TypeError, ValueError):
        array = None
    if (
        array is None
        or array.dtype.kind in "UST"
        or (array.dtype.kind == "V" and not is_known(array.dtype))
        or (array.dtype == object and (is_typed or not kinds.on_host))
    ):
        raise TypeError(
            f"{function}: `{name}` must be an array or convertible to one; got "
            f"{describe(value)}"
        )
    return array, is_typed


def _as_jax(function: str, name: str, value: Any, kinds: lists.Kinds) -> jax.Array:
    """Numbers and arrays of JAX as one array, none of them narrowed."""
    dtypes = map(np.dtype, kinds.of_jax & _OF_64_BITS)
    try:
        with np.errstate(over="ignore"), bitwise.full_width(*dtypes):
            array = jnp.asarray(lists.nested(value))
            largest = _largest(array.dtype)
        for leaf in lists.leaves(value):
            is_number = type(leaf) in (int, float)
            if is_number and math.isfinite(leaf) and abs(leaf) > largest:
                raise OverflowError
    except OverflowError:
        wanted = "the dtype of the arrays in it"
        raise _does_not_fit(function, name, wanted, value) from None
    return array


def _largest(dtype: Any) -> float:
    """The largest finite number of a float dtype, and infinity for others."""
    is_float = jnp.issubdtype(dtype, jnp.inexact)
    return float(jnp.finfo(dtype).max) if is_float else math.inf


_OF_64_BITS = frozenset({np.int64, np.uint64, np.float64, np.complex128})


def _in_default_width(
    function: str, name: str, array: np.ndarray, value: object
) -> np.ndarray:
    """Python numbers in the dtype that JAX gives them, if they fit."""
    is_integer = array.dtype == object or array.dtype.kind in "iu"
    dtype = jax.dtypes.canonicalize_dtype(int if is_integer else array.dtype)
    if is_integer and array.size:
        info = np.iinfo(dtype)
        if array.min() < info.min or array.max() > info.max:
            raise _does_not_fit(function, name, dtype, value)
    with np.errstate(over="ignore", invalid="ignore"):  # NaNs may be signalling ones
        result = array.astype(dtype)
    if not is_integer and np.any(np.isfinite(array) & ~np.isfinite(result)):
        raise _does_not_fit(function, name, dtype, value)
    return result


def _does_not_fit(function: str, name: str, dtype: Any, value: object) -> Exception:
    return OverflowError(
        f"{function}: `{name}` must fit {dtype}; got {describe(value)}"
    )


def is_text(value: object) -> bool:
    """Whether `value` is data that only NumPy can hold: strings, or an object array."""
    if isinstance(value, (str, bytes, list, tuple)):
        try:
            return np.asarray(value).dtype.kind in "US"
        except (TypeError, ValueError):
            return False
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "OSUT"


@functools.cache
def is_known(dtype: np.dtype) -> bool:
    """Whether JAX computes with a dtype: not with text, times or long doubles."""
    if dtype == np.bool_ or not dtype.isnative or dtype.kind in "mM":
        return dtype == np.bool_
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits in (2, 4, 8, 16, 32, 64)
    is_long_double = dtype.kind + dtype.char in ("fg", "cG")
    if is_long_double or not jnp.issubdtype(dtype, jnp.inexact):
        return False
    return jnp.finfo(dtype).bits in (4, 8, 16, 32, 64)


def has_zero(dtype: Any) -> bool:
    """Whether a dtype has a zero: PRNG keys and powers of two do not."""
    return isinstance(dtype, np.dtype) and dtype != jnp.float8_e8m0fnu


def require_width(function: str, name: str, dtype: np.dtype) -> None:
    """Refuses 64-bit dtypes while JAX would silently narrow them."""
    if dtype.itemsize >= 8 and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"{function}: `{name}` has dtype {dtype}, which needs 64-bit mode; enable "
            "it with `jax.config.update('jax_enable_x64', True)` or inside "
            f"`with jax.enable_x64(True):`, or cast to a narrower dtype than {dtype}"
        )


def axis(function: str, name: str, value: object, ndim: int) -> int:
    """`value` as an axis in [0, ndim)."""
    index = integer(function, name, value)
    if not -ndim <= index < ndim:
        raise ValueError(
            f"{function}: `{name}` {show(index)} is out of bounds for array of "
            f"dimension {ndim}"
        )
    return index % ndim


def integer(function: str, name: str, value: Any) -> int:
    """`value` as a Python int."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"{function}: `{name}` must be a static integer; got {describe(value)}"
        ) from None


def integers(
    function: str, name: str, value: Any, count: int | None = None
) -> tuple[Size, ...]:
    """`value` as a tuple of sizes, one for each of `count` dimensions."""
    if isinstance(value, (str, bytes)) or not isinstance(
        value, (Sequence, np.ndarray, jax.Array)
    ):
        raise TypeError(
            f"{function}: `{name}` must be a sequence of integers; got "
            f"{describe(value)}"
        )
    if isinstance(value, Tracer) or getattr(value, "ndim", 1) != 1:
        raise TypeError(
            f"{function}: `{name}` must be a static one-dimensional sequence of "
            f"integers; got {describe(value)}"
        )
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.integer):
        value = value.tolist()  # of numbers that are static inside of `jit`, too
    result = tuple(
        element
        if jax.export.is_symbolic_dim(element)
        else integer(function, f"{name}[{i}]", element)
        for i, element in enumerate(value)
    )
    if count is not None and len(result) != count:
        raise ValueError(
            f"{function}: `{name}` must have {count} elements, one for each dimension; "
            f"got {len(result)}"
        )
    return result


def sizes(
    function: str, name: str, value: Any, count: int | None = None
) -> tuple[Size, ...]:
    """`value` as the shape of an array that a program can be compiled for."""
    shape = integers(function, name, value, count)
    for dimension, size in enumerate(shape):
        if size < 0:
            raise too_small(function, name, dimension, size, 0)
    elements = math.prod(
        size for size in shape if not jax.export.is_symbolic_dim(size) and size
    )
    if elements > 2**48:
        raise ValueError(
            f"{function}: `{name}` must have at most 2^48 elements; got "
            f"{show(elements)}"
        )
    return shape


def too_small(
    function: str, name: str, dimension: int, value: Size, least: int
) -> Exception:
    """What to raise for an element of a sequence that is below `least`."""
    return ValueError(
        f"{function}: `{name}[{dimension}]` must be at least {least}; got "
        f"{value if jax.export.is_symbolic_dim(value) else show(value)}"
    )


def option(function: str, name: str, value: Any, allowed: tuple[str, ...]) -> Any:
    """`value`, if it is None or one of `allowed`."""
    if value is None or (isinstance(value, str) and value in allowed):
        return value
    choices = " or ".join(map(repr, (*allowed, None)))
    if isinstance(value, str):
        raise ValueError(f"{function}: `{name}` must be {choices}; got {value!r}")
    raise TypeError(f"{function}: `{name}` must be {choices}; got {describe(value)}")


def flag(function: str, name: str, value: object) -> bool:
    """`value` as a bool; a number or a traced value is not one."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{function}: `{name}` must be a bool; got {describe(value)}")
    return bool(value)


def optional_name(function: str, name: str, value: object) -> str | None:
    """`value`, if it is None or a string with something in it."""
    if value is not None and not isinstance(value, str):
        raise TypeError(
            f"{function}: `{name}` must be a string or None; got {describe(value)}"
        )
    if value == "":
        raise ValueError(f"{function}: `{name}` must not be empty; got ''")
    return value


def output_name(function: str, name: str, value: Any) -> str | None:
    """The name of an operator's only result, alone or as the only one of a sequence."""
    names = value.tolist() if isinstance(value, np.ndarray) else value
    if not lists.is_list(names):
        names = [names]
    if len(names) != 1 and all(isinstance(element, str) for element in names):
        raise ValueError(
            f"{function}: `{name}` must have one name, for the only result; got "
            f"{len(names)}"
        )
    if len(names) != 1 or not isinstance(names[0], str):
        raise TypeError(
            f"{function}: `{name}` must be a string, a sequence of one string or None; "
            f"got {describe(value)}"
        )
    if names[0] == "":
        raise ValueError(f"{function}: `{name}` must not be empty; got {value!r}")
    return str(names[0])


def scalar(function: str, name: str, value: Any) -> Any:
    """`value`, if it is a real number or a traced scalar; host numbers as float."""
    if type(value) is float and -1e38 < value < 1e38:  # what nearly all callers pass
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
    raise TypeError(
        f"{function}: `{name}` must be a real scalar; got {describe(value)}"
    )


def _finite_float(function: str, name: str, number: int | float) -> float:
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{function}: `{name}` must be finite; got {number}")
    dtype = jax.dtypes.canonicalize_dtype(float)
    largest = float(jnp.finfo(dtype).max)
    if abs(number) > largest:
        raise beyond(function, name, dtype, largest, number)
    return float(number)


def beyond(
    function: str, name: str, dtype: Any, largest: float, value: object
) -> Exception:
    """What to raise for a number that is larger than a float dtype has."""
    return OverflowError(
        f"{function}: `{name}` must fit {dtype}, whose largest value is {largest}; got "
        f"{show(value)}"
    )


def describe(value: Any) -> str:
    """A short description of what was given: never a long array, never a trace."""
    if isinstance(value, (jax.Array, np.ndarray)):
        traced = "traced " if isinstance(value, Tracer) else ""
        return f"{traced}{value.dtype} array of shape {value.shape}"
    if jax.export.is_symbolic_dim(value):
        return f"symbolic {value}"
    # Arrays inside of it may have line breaks.
    return f"{type(value).__name__} {' '.join(_short.repr(value).split())}"


def show(number: object) -> str:
    """A number, shortened if it is long."""
    return _short.repr(number)


class _Short(reprlib.Repr):
    """Also of integers of more digits than Python writes."""

    def repr_int(self, x: int, level: int) -> str:
        limit = sys.get_int_max_str_digits()
        if limit and x.bit_length() > 3 * limit:
            return f"{'-' if x < 0 else ''}2^{x.bit_length() - 1} or more"
        return super().repr_int(x, level)


_short = _Short()
_short.maxother = _short.maxstring = 80
