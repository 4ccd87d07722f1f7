"""Run-time checks of values, which `checked` turns on.

The operators define the result of every length on every platform, so no index is out of
bounds and no check is needed. A length outside its axis is probably a mistake,
though. `checked` compiles a variant of a function in which the operators report their
lengths by callbacks. A context that is part of the key of `jit` selects the variant, so
code outside `checked` pays nothing. In contrast, an effect in every program, such as
that of `checkify.debug_check`, would take `jit` off its fast dispatch path.
"""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import PartitionSpec

from dml_jax._shared import arguments, bitwise

P = ParamSpec("P")
R = TypeVar("R")

_UNDER_TRANSFORMATION = (
    "checked: the error can only be read outside transformations; wrap the "
    "outermost function, as in `checked(jax.jit(fn))`"
)


def checked(fn: Callable[P, R]) -> Callable[P, R]:
    """Wraps `fn` so that it checks the values of its lengths.

    Outside `checked`, a negative length acts as 0 and a length beyond the axis acts
    as the axis size, on every platform. Inside, either raises a `ValueError` after the
    computation. The checks cover every operator of this package in `fn`, also inside
    `jit`, `vmap`, `grad`, `scan`, `remat` or `shard_map`. They are compiled into a
    variant of `fn`, so code outside `checked` pays nothing for them.

    Args:
      fn: a function of arrays (pytrees of them) that JAX can trace. It is jitted.

    Returns:
      A function with the arguments and results of `fn`. It reads the error back from
      the device, so it cannot itself be transformed, for example by `jit`.

    Raises:
      ValueError: a length is outside [0, axis size]; the message has the smallest and
        the largest length. Or a NumPy argument has integers that do not fit 32 bits,
        outside 64-bit mode.
      TypeError: the returned function was called under a transformation. JAX also
        raises one for an operator in a `shard_map` that leaves several axes to XLA.

    Derivatives: differentiate inside, as in `checked(jax.grad(fn))`.
    Sharding: arguments and results keep their shardings. The lengths of all devices are
    checked, and every process raises. Only one checked function runs at a time.

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

    Source: `jax.debug.callback`, by which the checks report.
    """
    if not callable(fn):
        raise TypeError(f"checked: `fn` must be callable; got {arguments.describe(fn)}")
    if _is_checking is None:
        raise NotImplementedError(
            f"checked: jax {jax.__version__} has no `jax.make_user_context`"
        )
    program = jax.jit(fn)

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for leaf in jax.tree.leaves((args, kwargs)):
            _require_concrete(leaf)
        # A callback does not know to which run it belongs, so there is one at a time.
        with _one_run, _is_checking(True):
            _extremes_of.clear()
            try:
                result = program(*args, **kwargs)
                leaves = jax.tree.leaves(result)
                if any(isinstance(leaf, Tracer) for leaf in leaves):
                    raise TypeError(_UNDER_TRANSFORMATION)
                try:
                    jax.block_until_ready(result)
                finally:
                    jax.effects_barrier()
            except jax.errors.JaxRuntimeError as error:
                signalled = _of_signal(error)
                if signalled is None:
                    raise
                raise signalled from None
            message = _first_error()
        message = _of_all_processes(message, [*jax.tree.leaves(args), *leaves])
        if message:
            raise ValueError(message)
        return result

    return wrapper


def check_lengths(function: str, name: str, lengths: jax.Array, size: Any) -> None:
    """Reports the extremes of `lengths` inside `checked`, and does nothing outside."""
    if _is_checking is None or not _is_checking.value:
        return
    # A 64-bit array may be used outside the 64-bit mode in which it was made.
    with bitwise.full_width(lengths.dtype):
        if lengths.dtype.itemsize < 4:
            lengths = lengths.astype(jnp.int32)
        # Callbacks outside 64-bit mode receive 32 bits.
        words = lax.bitcast_convert_type(jnp.stack(_extremes(lengths)), jnp.uint32)
    check = _Check(next(_order), function, name, size)
    _call_back(functools.partial(_record, check, lengths.dtype.name), words)


def _require_concrete(leaf: Any) -> None:
    """Refuses traced values, and integers that `jit` would take modulo 2^32."""
    if isinstance(leaf, Tracer):
        raise TypeError(_UNDER_TRANSFORMATION)
    is_integer = isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "iu"
    if not is_integer or leaf.size == 0:
        return
    narrow = np.iinfo(jax.dtypes.canonicalize_dtype(leaf.dtype))
    for value in (int(leaf.min()), int(leaf.max())):
        if not narrow.min <= value <= narrow.max:
            raise ValueError(
                "checked: arguments must fit 32 bits outside 64-bit mode, or JAX "
                f"takes them modulo 2^32; got {value}"
            )


@jax.custom_batching.custom_vmap
def _extremes(lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
    info = jnp.iinfo(lengths.dtype)
    # Without lengths, as under a vmap over nothing, the smallest is above the largest,
    # so that nothing is reported.
    largest, smallest = map(lengths.dtype.type, (info.max, info.min))
    with bitwise.full_width(lengths.dtype):  # vmap calls it in the caller's mode
        return jnp.min(lengths, initial=largest), jnp.max(lengths, initial=smallest)


@_extremes.def_vmap
def _extremes_of_batch(axis_size: int, is_batched: Any, lengths: jax.Array) -> Any:
    """The extremes of the whole batch, so that there is one report under vmap."""
    del axis_size, is_batched
    return _extremes(lengths), (False, False)


# Reports ------------------------------------------------------------------------------


class _Check(NamedTuple):
    """A check in a program; errors are raised in the order of tracing."""

    order: int
    function: str
    name: str
    size: Any


# A part of the key of `jit`.
_make_context: Any = getattr(jax, "make_user_context", None)
_is_checking: Any = _make_context and _make_context(False)
_order = itertools.count()
_one_run = threading.RLock()
_recording = threading.Lock()
_extremes_of: dict[_Check, tuple[int, int]] = {}  # of all devices and iterations


def _call_back(receive: Callable[..., None], words: jax.Array) -> None:
    """Calls `receive` at run time, also where a mesh has manual and explicit axes."""

    def send(words: jax.Array) -> jax.Array:
        jax.debug.callback(receive, words)
        return words

    run: Any = send
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.manual_axes and mesh.explicit_axes:
        run = jax.sharding.auto_axes(
            send, axes=mesh.explicit_axes, out_sharding=PartitionSpec()
        )
    run(words)


def _record(check: _Check, dtype: str, words: Any) -> None:
    smallest, largest = np.asarray(words, np.uint32).ravel().view(dtype).tolist()
    with _recording:
        before = _extremes_of.get(check, (smallest, largest))
        _extremes_of[check] = min(before[0], smallest), max(before[1], largest)


def _of_signal(error: Exception) -> BaseException | None:
    """The exception that a signal raised in a callback; XLA reports its text alone."""
    found = re.search(
        r"^(?:KeyboardInterrupt:? ?|SystemExit: (\d+))$", str(error), re.M
    )
    if found is None:
        return None
    return SystemExit(int(found[1])) if found[1] else KeyboardInterrupt()


def _first_error() -> str:
    for check, (smallest, largest) in sorted(_extremes_of.items()):
        if smallest < 0 or largest > check.size:
            return (
                f"{check.function}: `{check.name}` must be in [0, {check.size}]; got "
                f"{smallest} to {largest}"
            )
    return ""


def _of_all_processes(message: str, leaves: Iterable[Any]) -> str:
    """The first error of all processes, if arrays span them; otherwise `message`.

    XLA calls back from only one device of an automatically partitioned program.
    """
    arrays = (leaf for leaf in leaves if isinstance(leaf, jax.Array))
    if jax.process_count() == 1:
        return message
    processes = {d.process_index for x in arrays for d in x.sharding.device_set}
    if len(processes) < jax.process_count():
        return message
    from jax.experimental import multihost_utils

    row = np.frombuffer(message.encode()[:_ROW].ljust(_ROW, b" "), np.uint8)
    rows = multihost_utils.process_allgather(row)
    messages = (row.tobytes().decode().strip() for row in rows)
    return next(filter(None, messages), "")


_ROW = 256  # bytes, more than any message has
