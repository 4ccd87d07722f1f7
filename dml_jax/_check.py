"""What the public functions accept, and how they say no.

Every check looks at shapes, dtypes and static options only, so it costs microseconds
and works on traced arguments. The wording of an error is always

    function: `argument` must …, with the numbers that apply; got …

`TypeError` for a wrong kind, `ValueError` for a wrong value, shape or option,
`OverflowError` for a number that does not fit its dtype.

Values that only exist at run time (lengths) have a defined result whatever they are;
`checked` turns the ones that are most likely a mistake into an error.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

Implementation: TypeAlias = Literal["gather", "scatter"]
Size: TypeAlias = Any  # an int, or a symbolic dimension of jax.export
P = ParamSpec("P")
R = TypeVar("R")

_LARGEST_INT32 = 2**31 - 1
_LARGEST_UINT32 = 2**32 - 1


def as_array(function: str, name: str, value: ArrayLike) -> jax.Array | np.ndarray:
    """`value` as an array whose dtype JAX will not change behind the caller's back."""
    if isinstance(value, jax.Array):
        return value
    if not isinstance(value, (np.ndarray, np.generic)):
        try:
            return jnp.asarray(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(
                f"{function}: `{name}` must be an array or convertible to one; got "
                f"{type(value).__name__} ({error})"
            ) from None
    array = np.asarray(value)
    if is_host_only(array):
        raise TypeError(
            f"{function}: `{name}` must have a dtype that JAX knows; got {array.dtype}"
        )
    require_width(function, name, array.dtype)
    return array


def is_host_only(value: object) -> bool:
    """Whether `value` is NumPy data (text, objects, times) no accelerator can hold."""
    return isinstance(value, (np.ndarray, np.generic)) and (
        value.dtype.kind in "OSUTMm" or value.dtype.names is not None
    )


def require_width(function: str, name: str, dtype: np.dtype) -> None:
    """Refuses 64-bit dtypes while JAX would silently narrow them."""
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
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
            f"{function}: `{name}` {index} is out of bounds for array of dimension "
            f"{ndim}"
        )
    return index % ndim


def integer(function: str, name: str, value: Any) -> Size:
    """`value` as a Python int; symbolic dimensions stay what they are."""
    if type(value) is int or jax.export.is_symbolic_dim(value):
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
    """`value` as a tuple of Python ints, one for each of `count` dimensions."""
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
    result = tuple(
        integer(function, f"{name}[{i}]", element) for i, element in enumerate(value)
    )
    if count is not None and len(result) != count:
        raise ValueError(
            f"{function}: `{name}` must have {count} elements, one for each dimension; "
            f"got {len(result)}"
        )
    return result


def option(function: str, name: str, value: Any, allowed: tuple[str, ...]) -> Any:
    """`value`, if it is None or one of `allowed`."""
    if value is not None and not (isinstance(value, str) and value in allowed):
        choices = " or ".join(map(repr, (*allowed, None)))
        raise ValueError(f"{function}: `{name}` must be {choices}; got {value!r}")
    return value


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


def lengths(function: str, name: str, value: ArrayLike) -> jax.Array | np.ndarray:
    """`value` as an array of integers that lie on the same side of every axis size.

    NumPy's 64-bit integers are clipped to 32 bits here unless 64-bit mode is on: JAX
    would take them modulo 2^32, and a length of 2^32 + 1 would become 1.
    """
    # The kind settles the common dtypes in a tenth of the time that issubdtype takes.
    if isinstance(value, jax.Array):
        if value.dtype.kind in "iu":
            return value
        array = value
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise TypeError(
                f"{function}: `{name}` must be an array or convertible to one; got "
                f"{type(value).__name__} ({error})"
            ) from None
        if array.size == 0 and not isinstance(value, np.ndarray):
            array = array.astype(np.int32)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(
            f"{function}: `{name}` must have an integer dtype; got {array.dtype}"
        )
    if isinstance(array, np.ndarray) and array.dtype.itemsize == 8:
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
            # uint32 reaches beyond the longest axis; -1 keeps a negative length
            # negative, for `checked` to see.
            if array.size and array.max() > _LARGEST_INT32:
                return np.clip(array, 0, _LARGEST_UINT32).astype(np.uint32)
            return np.maximum(array, -1).astype(np.int32)
    return array


def scalar(function: str, name: str, value: Any) -> Any:
    """`value`, if it is a real number or a traced scalar; host numbers as float."""
    if type(value) is float and -1e38 < value < 1e38:  # what nearly all callers pass
        return value
    if isinstance(value, jax.Array):
        if value.shape != () or not (
            jnp.issubdtype(value.dtype, jnp.floating)
            or jnp.issubdtype(value.dtype, jnp.integer)
        ):
            raise TypeError(
                f"{function}: `{name}` must be a real scalar; got {describe(value)}"
            )
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.shape == ():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"{function}: `{name}` must be a real scalar; got {describe(value)}"
        )
    if not np.isfinite(value):
        raise ValueError(f"{function}: `{name}` must be finite; got {value}")
    dtype = jax.dtypes.canonicalize_dtype(float)
    if abs(value) > float(jnp.finfo(dtype).max):
        raise OverflowError(
            f"{function}: `{name}` must fit {dtype}, whose largest value is "
            f"{jnp.finfo(dtype).max}; got {value}"
        )
    return float(value)


def describe(value: object) -> str:
    """A short description of what was given: never a long array, never a trace."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return f"{value.dtype} array of shape {value.shape}"
    return f"{type(value).__name__} {value!r}"


# Run-time checks ----------------------------------------------------------------------

_values_are_checked = jax.make_user_context(False)


def checked(fn: Callable[P, R]) -> Callable[P, R]:
    """Runs `fn` with the values of its lengths checked, and raises what it finds.

    Outside of `checked`, a negative length acts as 0 and a length beyond the axis acts
    as the axis size, on every platform. Inside, either raises a `ValueError` after the
    computation: it may come from any operator of this package in `fn`, below `jit`,
    `vmap`, `grad`, `scan` or `remat`. The checks are compiled into a variant of their
    own, so that code which is not inside `checked` pays nothing for them.

    Args:
      fn: a function of arrays (pytrees of them) that JAX can trace. It is jitted.

    Returns:
      A function with the arguments and results of `fn`. It reads the error back from
      the device, so call it from Python: it is not itself a function to `jit`.

    Raises:
      ValueError: a length is outside [0, axis size]; the message has the smallest and
        the largest length that came. Or an argument has NumPy integers beyond 32 bits,
        outside of 64-bit mode.
      TypeError: the returned function was called under a transformation.

    Example:
      >>> import jax.numpy as jnp
      >>> import dml_jax
      >>> def backwards(x, lengths):
      ...     return dml_jax.reverse_sequence(x, lengths, batch_axis=0, time_axis=1)
      >>> x = jnp.arange(6.0).reshape(2, 3)
      >>> dml_jax.checked(backwards)(x, jnp.array([2, 3]))
      Array([[1., 0., 2.],
             [5., 4., 3.]], dtype=float32)
      >>> dml_jax.checked(backwards)(x, jnp.array([2, 4]))
      Traceback (most recent call last):
        ...
      ValueError: reverse_sequence: `sequence_lens` must be in [0, 3]; got 2 to 4

    Source: `jax.experimental.checkify`, on which this stands.
    """
    if not callable(fn):
        raise TypeError(f"checked: `fn` must be callable; got {describe(fn)}")
    # Imported here because only those who check should pay for the import.
    from jax.experimental import checkify

    run = checkify.checkify(jax.jit(fn))

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for leaf in jax.tree.leaves((args, kwargs)):
            _require_no_wrap(leaf)
        with _values_are_checked(True):
            error, result = run(*args, **kwargs)
        try:
            message = error.get()
        except jax.errors.JAXTypeError:
            raise TypeError(
                "checked: the error can only be read outside of transformations; wrap "
                "the outermost function, as in `checked(jax.jit(fn))`"
            ) from None
        if message is not None:
            raise ValueError(message.split(" (`check` failed)")[0])
        return result

    return wrapper


def _require_no_wrap(leaf: object) -> None:
    """Refuses integers of NumPy that `jit` would take modulo 2^32 without a word."""
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iu" and leaf.size:
        narrow = np.iinfo(jax.dtypes.canonicalize_dtype(leaf.dtype))
        for value in (leaf.min(), leaf.max()):
            if not narrow.min <= int(value) <= narrow.max:
                raise ValueError(
                    "checked: arguments must fit 32 bits outside of 64-bit mode, or "
                    f"JAX takes them modulo 2^32; got {value}"
                )


def check_lengths(function: str, name: str, array: ArrayLike, size: int) -> None:
    """Inside `checked`: reports lengths outside [0, size]. Outside: nothing at all."""
    array = jnp.asarray(array)
    if not _values_are_checked.value or array.size == 0:
        return
    from jax.experimental import checkify

    checkify.check(
        jnp.all((array >= 0) & (array <= size)),
        f"{function}: `{name}` must be in [0, {size}]; got {{smallest}} to {{largest}}",
        smallest=jnp.min(array),
        largest=jnp.max(array),
    )
