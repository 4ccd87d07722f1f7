"""The arrays of a workload, and the functions that are applied to them.

`operator` is dml_jax's, and `idiom` the same in plain JAX. A timed program is one of
the two alone, its gradient, or one between elementwise operations that XLA can fuse it
with.
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
from benchmarks.workloads import Shape, Workload

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


# Arrays -------------------------------------------------------------------------------


def arrays(workload: Workload) -> Arrays:
    """The arguments of a workload's program, made on the device."""
    data = functools.partial(_data, workload.shape, workload.dtype)
    if workload.is_reversal:
        longest = workload.shape[workload.axis]
        return data(), _lengths(_shape_of_lengths(workload), longest)
    if workload.operator.startswith("slice"):
        return (data(),)
    # Fractions, whose sums must be rounded.
    is_float = jnp.issubdtype(workload.dtype, jnp.inexact)
    count = len(ARGUMENTS[workload.operator])
    values = ((0.1, 0.3) if is_float else (1, 2))[:count]
    scalars = tuple(jax.device_put(workload.dtype.type(value)) for value in values)
    return (*scalars, data()) if workload.group == "pipeline" else scalars


def _shape_of_lengths(workload: Workload) -> Shape:
    batch = workload.options.get("batch_axis")
    if batch is not None:
        return (workload.shape[batch],)
    return tuple(1 if d == workload.axis else n for d, n in enumerate(workload.shape))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _data(shape: Shape, dtype: np.dtype) -> jax.Array:
    """Numbers from -1 to 1 (0 to 255 for integers) that every dtype can hold."""
    noise = _noise(shape) >> 24
    if jnp.issubdtype(dtype, jnp.integer):
        return noise.astype(dtype)
    return ((noise.astype(jnp.float32) - 128) / 128).astype(dtype)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _lengths(shape: Shape, longest: int) -> jax.Array:
    """The same fractions of any longest one."""
    fractions = _noise(shape).astype(jnp.float32) * 2.0**-32  # may round to 1
    lengths = (fractions * (longest + 1)).astype(jnp.int32)
    return jnp.minimum(lengths, longest)


def _noise(shape: Shape) -> jax.Array:
    """Pseudorandom numbers, always the same; cheaper to compile than `jax.random`."""
    bits = jnp.uint32(0)  # the position, without a reshape, which would not be sharded
    for size, index in zip(shape, jnp.indices(shape, jnp.uint32, True), strict=True):
        bits = bits * np.uint32(size) + index
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> shift)) * np.uint32(factor)
    return bits ^ (bits >> 16)


def of_lines(workload: Workload, lengths: Any) -> Any:
    """Lengths with the rank of the input, an array of any library."""
    batch = workload.options.get("batch_axis")
    if batch is None:
        return lengths
    rank = len(workload.shape)
    return lengths.reshape([-1 if d == batch else 1 for d in range(rank)])


def window(workload: Workload) -> list[range]:
    """The positions that a slice keeps, for each dimension."""
    offsets, sizes, strides = (
        workload.options[f"input_window_{name}"]
        for name in ("offsets", "sizes", "strides")
    )
    return [
        range(o, o + n, s) if s > 0 else range(o + n - 1, o - 1, s)
        for o, n, s in zip(offsets, sizes, strides, strict=True)
    ]


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
    """The operator alone, its gradient, or its product with an array."""
    if workload.group == "backward":
        return gradient(operator)
    if workload.group == "pipeline":
        return lambda start, delta, x: x * operator(start, delta)
    return operator


def gradient(reversal: Function) -> Function:
    def pull_back(cotangent: jax.Array, lengths: jax.Array) -> jax.Array:
        zeros = jnp.zeros_like(cotangent)
        return jax.vjp(lambda x: reversal(x, lengths), zeros)[1](cotangent)[0]

    return pull_back


def _between(function: Function) -> Function:
    return lambda x, *others: function(x * 2, *others) + 1


def operator(workload: Workload, module: types.ModuleType = dml_jax) -> Function:
    """A module's function with the workload's static options."""
    function = getattr(module, workload.operator)
    names = ARGUMENTS[workload.operator]

    def call(*arrays: Any) -> Any:
        return function(**dict(zip(names, arrays, strict=True)), **workload.options)

    return call


# The plain idioms ---------------------------------------------------------------------


def idiom(workload: Workload) -> Function:
    """The operator as a user of JAX would write it."""
    if workload.is_reversal:
        return functools.partial(_gather, workload)
    idioms = {
        "slice1": _lax_slice,
        "slice_grad": _transposed_slice,
        "fill_value_sequence": _iota,
        "fill_value_constant": lambda workload, value: jnp.full(workload.shape, value),
    }
    return functools.partial(idioms[workload.operator], workload)


def _gather(workload: Workload, x: jax.Array, lengths: jax.Array) -> jax.Array:
    lengths, axis = of_lines(workload, lengths), workload.axis
    along = [n if d == axis else 1 for d, n in enumerate(workload.shape)]
    t = lax.broadcasted_iota(lengths.dtype, along, axis)
    source = jnp.where(t < lengths, lengths - 1 - t, t)
    return jnp.take_along_axis(x, source, axis, mode="promise_in_bounds")


def _lax_slice(workload: Workload, x: jax.Array) -> jax.Array:
    ranges = window(workload)
    starts = [min(r[0], r[-1]) for r in ranges]
    ends = [max(r[0], r[-1]) + 1 for r in ranges]
    strides = [abs(r.step) for r in ranges]
    backwards = [d for d, r in enumerate(ranges) if r.step < 0]
    return lax.rev(lax.slice(x, starts, ends, strides), backwards)


def _transposed_slice(workload: Workload, gradient: jax.Array) -> jax.Array:
    """A pad."""
    shape = workload.options["output_gradient_sizes"]
    x = jax.ShapeDtypeStruct(shape, workload.dtype)
    return jax.linear_transpose(functools.partial(_lax_slice, workload), x)(gradient)[0]


def _iota(workload: Workload, start: jax.Array, delta: jax.Array) -> jax.Array:
    steps = lax.iota(workload.dtype, math.prod(workload.shape))
    return (steps * delta + start).reshape(workload.shape)
