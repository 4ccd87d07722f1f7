"""Ways to compute a slice, or its adjoint, on a GPU: what XLA gives, sooner.

XLA has a thread store four elements if four divides their number, else one: narrow
elements leave most of a store unused, and odd sizes cost more than twice the time.

    quarters   four slices, concatenated: a thread stores as much of each
    words      runs of narrow elements as the words they lie in
    runs       Hopper GPUs: runs of narrow elements that begin anywhere, in a kernel
    gaps       the same for the adjoint, with zeros between the elements

`split_stores` fuses with what is around it, the rest does not. They take integers or
booleans and the lattice of `_slice`, and return None for what they are not made for.
"""

from __future__ import annotations

import math

import jax
import jax.export
import jax.numpy as jnp
from jax import lax

from dml_jax._shared import bitwise, packed_copy_kernel
from dml_jax._slice.window import limits_of

_WORTHWHILE = 2**20  # elements; with fewer, launching the kernel takes the time
_THREADS = 128  # in a block of what XLA launches
_GPU_CACHE = 2**25  # bytes


def even_split_stores(x, lattice):
    """In four parts of equal size, each a multiple of what a thread stores."""
    if _is_small(x, lattice) or not _is_even(lattice.sizes):
        return None
    divisible = [d for d in range(x.ndim) if lattice.sizes[d] % 4 == 0]
    return _in_four_parts(x, lattice, divisible[0]) if divisible else None


def split_stores(x, lattice):
    """In four parts of about equal size, where a thread would store one element."""
    sizes = lattice.sizes
    if _is_small(x, lattice) or math.prod(sizes) % 4 == 0:
        return None
    large = [d for d in range(x.ndim) if sizes[d] >= 4]
    return _in_four_parts(x, lattice, large[0]) if large else None


def _is_even(sizes):
    """Whether no thread has less to do, upon which none stores more than an element."""
    return math.prod(sizes) % (4 * 4 * _THREADS) == 0


def _is_small(x, lattice):
    return _is_symbolic(x, lattice.sizes) or math.prod(lattice.sizes) < _WORTHWHILE


def _is_symbolic(x, sizes):
    return any(map(jax.export.is_symbolic_dim, (*x.shape, *sizes)))


def _in_four_parts(x, lattice, dimension):
    _, lowest, sizes, steps, downwards = lattice
    parts = []
    for i in range(4):
        begin, end = (sizes[dimension] * j // 4 for j in (i, i + 1))
        starts, limits = list(lowest), list(lattice.limits)
        starts[dimension] += steps[dimension] * begin
        limits[dimension] = starts[dimension] + steps[dimension] * (end - begin - 1) + 1
        # XLA puts slices of one array together again, but not those of its complement.
        part = lax.slice(~x if i % 2 else x, starts, limits, steps)
        parts.append(lax.rev(~part if i % 2 else part, downwards))
    if dimension in downwards:
        parts.reverse()
    return lax.concatenate(parts, dimension)


def packed_u32(x, lattice):
    """For narrow elements that are taken one by one along the last dimension."""
    _, lowest, sizes, steps, _ = lattice
    if _is_small(x, lattice) or bitwise.width(x.dtype) not in (8, 16):
        return None
    shape, lowest, sizes, steps = _merged(x.shape, lowest, sizes, steps)
    per_word = 4 // x.dtype.itemsize
    if not shape or steps[-1] != 1 or shape[-1] % per_word or sizes[-1] % per_word:
        return None
    whole = bitwise.join(x.reshape(shape), jnp.uint32)
    first, shift = divmod(lowest[-1], per_word)
    count = sizes[-1] // per_word
    limits = limits_of(lowest, sizes, steps)

    def take(first):
        starts, ends = (*lowest[:-1], first), (*limits[:-1], first + count)
        return lax.slice(whole, starts, ends, steps)

    y = take(first)
    if shift:
        bits = 8 * x.dtype.itemsize * shift
        y = (y >> bits) | (take(first + 1) << (32 - bits))
    y = bitwise.split(y, x.dtype).reshape(lattice.sizes)
    return lax.rev(y, lattice.reversed_dims)


def packed_copy(x, lattice):
    """For narrow elements, a kernel; not where quarters in the cache are as fast."""
    sizes = lattice.sizes
    if _is_small(x, lattice):
        return None
    if _is_even(sizes) and math.prod(sizes) * x.dtype.itemsize <= _GPU_CACHE:
        return None
    return packed_copy_kernel.strided_slice(x, lattice)


def packed_copy_with_zeros(x, shape, lattice):
    """For narrow elements among zeros, a kernel."""
    if _is_symbolic(x, shape) or math.prod(shape) < _WORTHWHILE:
        return None
    return packed_copy_kernel.strided_slice_transpose(x, shape, lattice)


def _merged(shape, lowest, sizes, steps) -> tuple[tuple[int, ...], ...]:
    """The slice, with the dimensions merged that make one run in memory."""
    merged = []
    for extent, low, size, step in zip(shape, lowest, sizes, steps, strict=True):
        if merged and (low, size, step) == (0, extent, 1) and merged[-1][3] == 1:
            merged[-1] = [factor * extent for factor in merged[-1][:3]] + [1]
        else:
            merged.append([extent, low, size, step])
    return tuple(zip(*merged, strict=True)) if merged else ((), (), (), ())
