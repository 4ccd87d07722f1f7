"""Checks of values, which exist at run time only.

A length outside of its axis has a defined result on every platform, so that no index
leaves an array and nothing has to be checked. It is most likely a mistake all the same:
`checked` compiles a variant of a function in which every operator of this package
reports it. The variant is chosen by a context that is part of the key of `jit`; checks
that are always there, such as `checkify.debug_check`, would take every enclosing `jit`
off its fast dispatch path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from dml_jax import _check

P = ParamSpec("P")
R = TypeVar("R")

_values_are_checked = jax.make_user_context(False)


def checked(fn: Callable[P, R]) -> Callable[P, R]:
    """Runs `fn` with the values of its lengths checked, and raises what it finds.

    Outside of `checked`, a negative length acts as 0 and a length beyond the axis acts
    as the axis size, on every platform. Inside, either raises a `ValueError` after the
    computation: it may come from any operator of this package in `fn`, below `jit`,
    `vmap`, `grad`, `scan` or `remat`. The checks are compiled into a variant of their
    own, so that code which is not inside `checked` pays nothing for them. Strings and
    objects, which never reach the compiler, are not checked.

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
        raise TypeError(f"checked: `fn` must be callable; got {_check.describe(fn)}")
    # Imported here because only those who check should pay for the import.
    from jax.experimental import checkify

    run = checkify.checkify(jax.jit(fn))

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for leaf in jax.tree.leaves((args, kwargs)):
            _require_concrete(leaf)
        with _values_are_checked(True):
            error, result = run(*args, **kwargs)
        try:
            message = error.get()
        except jax.errors.TracerBoolConversionError:
            raise TypeError(_UNDER_TRANSFORMATION) from None
        if message is not None:
            raise ValueError(message.split(" (`check` failed)")[0])
        return result

    return wrapper


_UNDER_TRANSFORMATION = (
    "checked: the error can only be read outside of transformations; wrap the "
    "outermost function, as in `checked(jax.jit(fn))`"
)


def _require_concrete(leaf: object) -> None:
    """Refuses traced values, and integers that `jit` would take modulo 2^32."""
    if isinstance(leaf, Tracer):
        raise TypeError(_UNDER_TRANSFORMATION)
    if (
        isinstance(leaf, (np.ndarray, np.generic))
        and leaf.dtype.kind in "iu"
        and leaf.size
    ):
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
    if array.dtype.itemsize < 4:  # int4 could not be compared with the axis size
        array = array.astype(jnp.int32)
    limit = size
    if not jax.export.is_symbolic_dim(size):
        limit = min(size, jnp.iinfo(array.dtype).max)
    from jax.experimental import checkify

    checkify.check(
        jnp.all((array >= 0) & (array <= limit)),
        f"{function}: `{name}` must be in [0, {size}]; got {{smallest}} to {{largest}}",
        smallest=jnp.min(array),
        largest=jnp.max(array),
    )
