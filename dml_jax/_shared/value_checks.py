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
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import jax.custom_batching
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dml_jax._shared import arguments, bitwise, value_reports

P = ParamSpec("P")
R = TypeVar("R")

# How errors leave a program: "as a result" (checkify), "by callbacks", or None: nothing
# is checked.
_way_out = jax.make_user_context(None)


def checked(fn: Callable[P, R]) -> Callable[P, R]:
    """Runs `fn` with the values of its lengths checked, and raises what it finds.

    Outside of `checked`, a negative length acts as 0 and a length beyond the axis acts
    as the axis size, on every platform. Inside, either raises a `ValueError` after the
    computation: it may come from any operator of this package in `fn`, below `jit`,
    `vmap`, `grad`, `scan`, `remat` or `shard_map`. The checks are compiled into a
    variant of their own, so that code which is not inside `checked` pays nothing for
    them. Strings and objects, which never reach the compiler, are not checked.

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

    Source: `jax.experimental.checkify`, which this uses, except for programs with
    `shard_map`, which report by `jax.debug.callback`.
    """
    if not callable(fn):
        raise TypeError(f"checked: `fn` must be callable; got {arguments.describe(fn)}")
    # Imported here because only those who check should pay for the import.
    from jax.experimental import checkify

    program = jax.jit(fn)
    with_error = checkify.checkify(program)

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for leaf in jax.tree.leaves((args, kwargs)):
            _require_concrete(leaf)
        with _way_out("as a result"):
            if not _has_shard_map(program.trace(*args, **kwargs).jaxpr):
                error, result = with_error(*args, **kwargs)
                _raise(error)
                return result
        # JAX's checkify fails around most programs of `shard_map`: where a mesh is set,
        # where it is explicit, and where some axis is not manual.
        with _way_out("by callbacks"), value_reports.collected() as reports:
            result = program(*args, **kwargs)
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(result)):
                raise TypeError(_UNDER_TRANSFORMATION)
            jax.block_until_ready(result)
            jax.effects_barrier()
        message = reports.first_error()
        if message is not None:
            raise ValueError(message)
        return result

    return wrapper


def _has_shard_map(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name == "shard_map"
        or any(map(_has_shard_map, _jaxprs_in(equation.params.values())))
        for equation in jaxpr.eqns
    )


def _jaxprs_in(params: Any) -> Iterator[Any]:
    for param in params:
        if isinstance(param, (tuple, list)):
            yield from _jaxprs_in(param)
        elif hasattr(param, "eqns"):
            yield param


def _raise(error: Any) -> None:
    """Raises what checkify found, if anything."""
    try:
        message = error.get()
    except jax.errors.TracerBoolConversionError:
        raise TypeError(_UNDER_TRANSFORMATION) from None
    if message is None:
        return
    text, *words = message.removesuffix(" (`check` failed)").split(_SEPARATOR)
    if words:
        dtype, *words = words
        extremes = value_reports.extremes_in(np.array(words, np.uint32), dtype)
        text = value_reports.message(text, *extremes)
    raise ValueError(text)


# Between the rule, the dtype and the words of a message of checkify. A function may
# have checks of its own, whose messages do not have it.
_SEPARATOR = "\x1f"

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


def check_lengths(function: str, name: str, array: jax.Array, size: Any) -> None:
    """Inside `checked`: reports lengths outside [0, size]. Outside: nothing at all."""
    if _way_out.value is None or array.size == 0:
        return
    # A 64-bit array may be used outside of the 64-bit mode in which it was made.
    with bitwise.full_width(array.dtype):
        array = jnp.asarray(array)
        if array.dtype.itemsize < 4:  # int4 could not be compared with the axis size
            array = array.astype(jnp.int32)
        smallest, largest = _extremes(array)
        limit = size
        if not jax.export.is_symbolic_dim(size):
            limit = min(size, jnp.iinfo(array.dtype).max)
        is_right = (smallest >= 0) & (largest <= limit)
        # As words of 32 bits, since checkify does not keep 64 bits everywhere.
        extremes = jnp.stack([smallest, largest])
        words = lax.bitcast_convert_type(extremes, jnp.uint32).ravel()
    rule, dtype = _rule(function, name, size), array.dtype.name
    if _way_out.value == "by callbacks":
        value_reports.send(is_right, rule, dtype, words)
        return
    from jax.experimental import checkify

    fields = (f"{{words[{i}]}}" for i in range(words.size))
    checkify.check(is_right, _SEPARATOR.join([rule, dtype, *fields]), words=words)


def reported(
    program: Callable[..., R],
    function: str,
    name: str,
    extremes: tuple[int, int],
    size: Any,
) -> Callable[..., R]:
    """`program`, which has a length that 32 bits do not hold: `checked` reports it."""
    if _way_out.value is None:
        return program
    rule = _rule(function, name, size)
    if _way_out.value == "by callbacks":
        value_reports.send_static(rule, *extremes)
    else:
        from jax.experimental import checkify

        checkify.check(False, value_reports.message(rule, *extremes))

    def run(*operands, **options):
        with _way_out(None):
            return program(*operands, **options)

    return run


def _rule(function, name, size):
    return f"{function}: `{name}` must be in [0, {size}]"


@jax.custom_batching.custom_vmap
def _extremes(array):
    with bitwise.full_width(array.dtype):  # vmap calls it in the caller's mode
        return jnp.min(array), jnp.max(array)


@_extremes.def_vmap
def _extremes_of_batch(size, is_batched, array):
    """Those of the whole batch: of errors under vmap one would be reported."""
    del size, is_batched
    return _extremes(array), (False, False)
