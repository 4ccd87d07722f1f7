"""A GPU kernel that stores a fill in chunks of 16 bytes.

    y[k] = start + k * delta

In XLA's kernels a thread stores four elements of each of four parts, or one element of
each if four does not divide the number of all elements. That leaves bandwidth unused,
most of it for bytes and for such sizes.

A constant is a sequence of integers: its bits, with a delta of 0. Floats are computed
as in `float64`, whose scalars the kernel loads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._fill import float64, xla
from dml_jax._shared import bitwise, chunk_kernel
from dml_jax._shared.chunk_kernel import Completion

_CHUNKS = 4  # that a thread stores
_FLOATS = (jnp.float16, jnp.bfloat16, jnp.float32)
# Selectors of the low bytes, or of the low halves, of two words.
_JOIN_BYTES, _JOIN_HALVES = 0x0040, 0x5410


def supports(kind: str, sizes: xla.Sizes, dtype: np.dtype) -> bool:
    """Whether the kernel computes fills of this kind, whose sizes are static."""
    size = math.prod(sizes)
    if size * dtype.itemsize > chunk_kernel.MAX_BYTES:
        return False
    if jnp.issubdtype(dtype, jnp.integer):
        return bitwise.width(dtype) in (8, 16, 32)
    if dtype not in _FLOATS:
        return False
    return kind == "constant" or (kind == "floats" and float64.suffices(dtype, size))


def fill(kind: str, sizes: xla.Sizes, *scalars: Array) -> Array:
    """The fill of a kind that is supported, of a value or of a start and a delta."""
    dtype = scalars[0].dtype
    if kind == "floats":
        start, delta = scalars
        sequence = float64.prepare(start, delta, math.prod(sizes), "cuda")
        chunk = functools.partial(_floats, dtype=dtype, firsts=len(sequence.first))
        stored = jax.tree.leaves(sequence)
    else:
        chunk, stored = _integers, [*scalars]
        if kind == "constant":
            stored.append(jnp.zeros((), dtype))
    words = lax.bitcast_convert_type(xla.packed(stored), jnp.uint32)
    return chunk_kernel.launch(
        *(chunk, jax.ShapeDtypeStruct(sizes, dtype), words),
        chunks=_CHUNKS,
        at_once=_CHUNKS,
    )


# What a thread computes ---------------------------------------------------------------


def _integers(machine: Any, position: Any) -> Completion:
    start, delta = machine.load_scalar(0), machine.load_scalar(1)

    def element(k: int) -> Any:
        return start + (position + k) * delta

    return functools.partial(_pack, machine, element)


def _floats(machine: Any, position: Any, *, dtype: np.dtype, firsts: int) -> Completion:
    start, delta = machine.load_float64(0), machine.load_float64(1)
    offset = machine.load_float64(2) if dtype == jnp.float32 else None
    end = 2 if offset is None else 3
    first = [machine.load_scalar(end + i) for i in range(firsts)]

    def element(k: int) -> Any:
        # Exact, since positions have 32 bits.
        index = machine.to_float64(position) + float(k)
        x = machine.multiply_add(index, delta, start)
        code = machine.round(x if offset is None else x - offset, dtype)
        return machine.select(position < 1, first[k], code) if k < firsts else code

    return functools.partial(_pack, machine, element)


def _pack(machine: Any, element: Callable[[int], Any]) -> list[Any]:
    """The words of a chunk, from the low bits of a word for each of its elements."""
    words = [element(k) for k in range(machine.per_chunk)]
    if machine.itemsize == 1:
        words = _joined(machine, words, _JOIN_BYTES)
    if machine.itemsize <= 2:
        words = _joined(machine, words, _JOIN_HALVES)
    return words


def _joined(machine: Any, words: list[Any], selector: int) -> list[Any]:
    pairs = zip(words[::2], words[1::2], strict=True)
    return [machine.permute_bytes(low, high, selector) for low, high in pairs]
