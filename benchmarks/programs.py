"""The arrays of a workload, and the functions that are applied to them.

`operator` is dml_jax's, `idiom` the same in plain jax.numpy, and `expected` the result
of the NumPy reference. A timed program is one of the first two alone, its gradient, or
a pipeline with elementwise operations that XLA can fuse it with.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import dml_jax
from benchmarks.workloads import Workload
from dml_jax import reference

ARGUMENTS = {
    "reverse_subsequences": ("input", "sequence_lengths"),
    "reverse_sequence": ("input", "sequence_lens"),
    "slice1": ("input",),
    "slice_grad": ("input_gradient",),
    "fill_value_sequence": ("value_start", "value_delta"),
    "fill_value_constant": ("value",),
}

Arrays = tuple[jax.Array, ...]
Function = Callable[..., Any]
Shape = tuple[int, ...]


# Arrays -------------------------------------------------------------------------------


def arrays(workload: Workload) -> Arrays:
    """The arguments of a workload's program, made on the device."""
    shape, dtype = workload.shape, workload.dtype
    if not workload.is_reversal:
        if workload.operator.startswith("slice"):
            return (_data(shape, dtype),)
        scalars = tuple(jax.device_put(value) for value in _scalars(workload))
        if workload.group == "pipeline":
            return *scalars, _data(shape, dtype)
        return scalars
    across = tuple(1 if d == workload.axis else n for d, n in enumerate(shape))
    batch = workload.options.get("batch_axis")
    lengths = _lengths(
        across if batch is None else (shape[batch],), shape[workload.axis]
    )
    return _data(shape, dtype), lengths


def _scalars(workload: Workload) -> list[np.generic]:
    """The arguments of a fill: fractions for floats, whose sums must be rounded."""
    is_float = jnp.issubdtype(workload.dtype, jnp.inexact)
    values = (0.1, 0.3) if is_float else (1, 2)
    count = len(ARGUMENTS[workload.operator])
    return [workload.dtype.type(value) for value in values[:count]]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _data(shape: Shape, dtype: np.dtype) -> jax.Array:
    """Numbers from -1 to 1 (0 to 255 for integers) that every dtype can hold."""
    noise = _noise(shape) >> 24
    if jnp.issubdtype(dtype, jnp.integer):
        return noise.astype(dtype)
    return ((noise.astype(jnp.float32) - 128) / 128).astype(dtype)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _lengths(shape: Shape, longest: int) -> jax.Array:
    return (_noise(shape) % np.uint32(longest + 1)).astype(jnp.int32)


def _noise(shape: Shape) -> jax.Array:
    """Pseudorandom numbers, always the same; cheaper to compile than `jax.random`."""
    bits = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> shift)) * np.uint32(factor)
    return bits ^ (bits >> 16)


def of_lines(workload: Workload, lengths: Any) -> Any:
    """Lengths with the rank of the input, an array of any library."""
    batch = workload.options.get("batch_axis")
    if batch is None:
        return lengths
    return lengths.reshape(
        [-1 if d == batch else 1 for d in range(len(workload.shape))]
    )


def window(workload: Workload) -> tuple[range, ...]:
    """The positions that a slice keeps, for each dimension."""
    offsets, sizes, strides = (
        workload.options[f"input_window_{name}"]
        for name in ("offsets", "sizes", "strides")
    )
    return tuple(
        range(o, o + n, s) if s > 0 else range(o + n - 1, o - 1, s)
        for o, n, s in zip(offsets, sizes, strides, strict=True)
    )


def indices(workload: Workload) -> tuple[slice, ...]:
    """The window as an index."""
    return tuple(
        slice(r.start, r.stop if r.stop >= 0 else None, r.step)
        for r in window(workload)
    )


# Programs -----------------------------------------------------------------------------


def functions(workload: Workload) -> dict[str, Function]:
    """The timed functions of the workload's arrays: dml_jax's and plain JAX's.

    Those of a random shape are also measured between elementwise operations, which XLA
    may fuse with them.
    """
    operators = dict(dml_jax=operator(workload), jnp=idiom(workload))
    found = {name: program(workload, each) for name, each in operators.items()}
    if workload.group == "random":
        found |= {f"{name}_between": _between(f) for name, f in found.items()}
    return found


def program(workload: Workload, operator: Function) -> Function:
    """The operator alone, its gradient, or a pipeline."""
    if workload.group == "backward":

        def gradient(cotangent: jax.Array, lengths: jax.Array) -> jax.Array:
            _, pull = jax.vjp(lambda x: operator(x, lengths), jnp.zeros_like(cotangent))
            return pull(cotangent)[0]

        return gradient
    if workload.group != "pipeline":
        return operator
    if workload.is_reversal:
        return _between(operator)
    return lambda start, delta, x: x * operator(start, delta)


def _between(function: Function) -> Function:
    return lambda x, *others: function(x * 2, *others) + 1


def operator(workload: Workload) -> Function:
    """dml_jax's public function with the workload's static options."""
    return _with_options(dml_jax, workload)


def expected(workload: Workload, arrays: Arrays) -> np.ndarray:
    """The result of the NumPy reference. The gradient of a reversal is a reversal."""
    on_host = [np.asarray(array)[()] for array in arrays]
    function = _with_options(reference, workload)
    if workload.group == "pipeline":
        function = program(workload, function)
    return np.asarray(function(*on_host))


def _with_options(module: types.ModuleType, workload: Workload) -> Function:
    function = getattr(module, workload.operator)
    names = ARGUMENTS[workload.operator]

    def call(*arrays: Any) -> Any:
        return function(**dict(zip(names, arrays, strict=True)), **workload.options)

    return call


# The plain idioms ---------------------------------------------------------------------


def idiom(workload: Workload) -> Function:
    """The operator as a user of jax.numpy would write it."""
    if workload.is_reversal:
        return functools.partial(_gather, workload)
    return {
        "slice1": _lax_slice,
        "slice_grad": _lax_pad,
        "fill_value_sequence": _iota,
        "fill_value_constant": _full,
    }[workload.operator](workload)


def _gather(workload: Workload, x: jax.Array, lengths: jax.Array) -> jax.Array:
    lengths = of_lines(workload, lengths)
    t = lax.broadcasted_iota(lengths.dtype, _along(workload), workload.axis)
    source = jnp.where(t < lengths, lengths - 1 - t, t)
    return jnp.take_along_axis(x, source, workload.axis, mode="promise_in_bounds")


def _along(workload: Workload) -> list[int]:
    return [n if d == workload.axis else 1 for d, n in enumerate(workload.shape)]


def _lax_slice(workload: Workload) -> Function:
    ranges = window(workload)
    starts = [min(r[0], r[-1]) for r in ranges]
    ends = [max(r[0], r[-1]) + 1 for r in ranges]
    strides = [abs(r.step) for r in ranges]
    backwards = [d for d, r in enumerate(ranges) if r.step < 0]
    return lambda x: lax.rev(lax.slice(x, starts, ends, strides), backwards)


def _lax_pad(workload: Workload) -> Function:
    ranges, sizes = window(workload), workload.options["output_gradient_sizes"]
    padding = [
        (min(r[0], r[-1]), n - 1 - max(r[0], r[-1]), abs(r.step) - 1)
        for r, n in zip(ranges, sizes, strict=True)
    ]
    backwards = [d for d, r in enumerate(ranges) if r.step < 0]
    zero = np.zeros((), workload.dtype)
    return lambda gradient: lax.pad(lax.rev(gradient, backwards), zero, padding)


def _iota(workload: Workload) -> Function:
    shape = workload.shape

    def fill(start: jax.Array, delta: jax.Array) -> jax.Array:
        steps = lax.iota(workload.dtype, math.prod(shape))
        return (steps * delta + start).reshape(shape)

    return fill


def _full(workload: Workload) -> Function:
    return lambda value: jnp.full(workload.shape, value)
