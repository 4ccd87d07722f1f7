"""Formulations of a fill.

    constant                   the value everywhere
    integers                   start + k * delta modulo 2^bits
    rounded_by_float64         up to 32 bits, where float64 is fast: `float64`
    rounded_by_double_words    float64, in pairs of float64: `double_word`
    rounded_by_integers        up to 32 bits, on any platform: `rounding`

The last three are correctly rounded.

A GPU spends the time for a fill on stores. Two layouts raise their throughput without
changing the result:

- Elements below 32 bits are packed into 32-bit words. 64-bit words are slower.
- The result is a concatenation of four parts (`_shared/gpu.py`). That is faster for
  32-bit words, unless something is computed from the result, as a complex number is
  from its components.

`StoreLayout` says which of them apply. Where XLA partitions the program, the result has
no parts, because every device would compute the whole concatenated dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._fill import double_word, float64, rounding
from dml_jax._shared import bitwise, lowering
from dml_jax._shared.arguments import Size
from dml_jax._shared.gpu import part_bounds

Sizes: TypeAlias = tuple[Size, ...]
WORD = np.dtype("uint32")
_WORTHWHILE_TO_MATERIALIZE = 2**14  # elements


class StoreLayout(NamedTuple):
    """The layouts above that a fill has."""

    per_word: int = 1  # elements packed into a word
    split_dim: int | None = None  # dimension of the words that is split into parts


# Formulations -------------------------------------------------------------------------


def constant(sizes: Sizes, layout: StoreLayout, value: Array) -> Array:
    """The value everywhere, with every bit."""
    word = bitwise.to_bits(value)
    if layout.per_word > 1:
        code = _unsigned(value.dtype)
        ones = sum(2 ** (8 * code.itemsize * i) for i in range(layout.per_word))
        word = lax.bitcast_convert_type(value, code).astype(WORD) * WORD.type(ones)
    words = [word, word]
    if layout.split_dim is not None:
        # XLA would merge neighbouring parts that are equal.
        words[1] = lax.optimization_barrier(word)

    def broadcast(part: _Part) -> Array:
        return lax.broadcast(words[part.number % 2], part.sizes)

    return _concatenate_parts(sizes, value.dtype, layout, broadcast)


def integers(sizes: Sizes, layout: StoreLayout, start: Array, delta: Array) -> Array:
    """`start + k * delta` in uint32 or uint64, truncated."""
    dtype = start.dtype
    wide = np.uint64 if dtype.itemsize == 8 else np.uint32
    start, delta = start.astype(wide), delta.astype(wide)

    def element(position: Array) -> Array:
        return _truncate(start + position * delta, dtype)

    return _by_position(sizes, dtype, layout, wide, element)


def rounded_by_float64(
    sizes: Sizes,
    layout: StoreLayout,
    platform: str,
    materialize: bool,
    start: Array,
    delta: Array,
) -> Array:
    """`start + k * delta`, if `float64.suffices` for the dtype and the positions."""
    dtype = start.dtype
    sequence = float64.prepare(start, delta, platform)
    if materialize:
        sequence = _materialized(sequence, sizes)

    def element(position: Array) -> Array:
        return float64.element(sequence, position, dtype, platform)

    return _by_position(sizes, dtype, layout, np.uint32, element)


def rounded_by_double_words(
    sizes: Sizes, count: int, materialize: bool, start: Array, delta: Array
) -> Array:
    """`start + k * delta` in float64, for positions k below `count`."""
    sequence = double_word.prepare(start, delta, count)
    if materialize:
        sequence = _materialized(sequence, sizes)
    k = position(sizes, np.uint32 if count <= 2**32 else np.uint64)
    return double_word.element(sequence, k)


def _materialized(sequence: Any, sizes: Sizes) -> Any:
    """The scalars in memory, if there are many elements.

    Unless the iterations of a loop divide evenly among threads, XLA would recompute the
    scalars for each element.
    """
    if math.prod(sizes) < _WORTHWHILE_TO_MATERIALIZE:
        return sequence
    with jax.enable_x64(True):
        return jax.tree.map(lambda x: lowering.materialize(x[None])[0], sequence)


def tangent(sizes: Sizes, start: Array, delta: Array) -> Array:
    """The tangent of a sequence, `start + k * delta`, in at least float32."""
    wide = np.promote_types(start.dtype, np.float32)
    if position_bound(sizes) <= 2**32:
        k = position(sizes, np.uint32).astype(wide)
    else:
        low, high = long_position(sizes)
        k = low.astype(wide) + high.astype(wide) * 2.0**24
    return (start.astype(wide) + k * delta.astype(wide)).astype(start.dtype)


def rounded_by_integers(sizes: Sizes, count: int, start: Array, delta: Array) -> Array:
    """`start + k * delta` in up to 32 bits, for positions k below `count`."""
    words, word_bits = rounding.words_of_index(start.dtype, count)
    if words == 1:
        index = [position(sizes, np.uint32)]
    elif count <= 2**32:
        low = position(sizes, np.uint32)
        index = [low & (2**word_bits - 1), low >> word_bits]
    else:
        index = long_position(sizes)
    return rounding.multiply_add(index, delta, start, count.bit_length())


def _truncate(words: Array, dtype: np.dtype) -> Array:
    """The low bits of unsigned integers, as integers of `dtype`."""
    bits = jnp.iinfo(dtype).bits
    unsigned = jnp.dtype(f"uint{bits}")
    words = (words & words.dtype.type(2**bits - 1)).astype(unsigned)
    return words if dtype == unsigned else lax.bitcast_convert_type(words, dtype)


# Words and parts ----------------------------------------------------------------------


class _Part(NamedTuple):
    """A part of the words, which are numbered in row-major order of the whole."""

    number: int
    sizes: Sizes
    strides: Sizes  # of the whole
    offset: Size  # position of the first word


def _by_position(
    sizes: Sizes,
    dtype: np.dtype,
    layout: StoreLayout,
    counter: Any,
    element: Callable[[Array], Array],
) -> Array:
    """The array of `element(position)`, with positions of dtype `counter`."""

    def make(part: _Part) -> Array:
        first = _positions(part, counter)
        if layout.per_word == 1:
            return element(first)
        first = first * counter(layout.per_word)
        code = _unsigned(dtype)
        words = jnp.zeros(part.sizes, WORD)
        for i in range(layout.per_word):
            bits = lax.bitcast_convert_type(element(first + counter(i)), code)
            words = words | bits.astype(WORD) << WORD.type(8 * code.itemsize * i)
        return words

    return _concatenate_parts(sizes, dtype, layout, make)


def _concatenate_parts(
    sizes: Sizes, dtype: np.dtype, layout: StoreLayout, make: Callable[[_Part], Array]
) -> Array:
    """The array whose words `make` computes part by part."""
    whole, d = sizes_in_words(sizes, layout.per_word), layout.split_dim
    strides = _strides(whole)
    if d is None:
        words = make(_Part(0, whole, strides, 0))
    else:
        parts = []
        for i, (begin, end) in enumerate(part_bounds(whole[d])):
            part_sizes = (*whole[:d], end - begin, *whole[d + 1 :])
            parts.append(make(_Part(i, part_sizes, strides, begin * strides[d])))
        words = lax.concatenate(parts, d)
    if layout.per_word > 1:
        words = bitwise.split(words, _unsigned(dtype))
    return bitwise.from_bits(words, dtype)


def sizes_in_words(sizes: Sizes, per_word: int) -> Sizes:
    return sizes if per_word == 1 else (*sizes[:-1], sizes[-1] // per_word)


def _unsigned(dtype: np.dtype) -> np.dtype:
    """The unsigned integer of the size of a dtype."""
    return np.dtype(f"uint{8 * dtype.itemsize}")


# Positions ----------------------------------------------------------------------------


def position(sizes: Sizes, counter: Any) -> Array:
    """The row-major position of every element, modulo the range of `counter`."""
    return _positions(_Part(0, sizes, _strides(sizes), 0), counter)


def _positions(part: _Part, counter: Any) -> Array:
    """The positions of the words of a part.

    They are a sum over the dimensions instead of one reshaped iota, so that each device
    computes only the positions of its shard. Their dtype is an integer: XLA partitions
    an iota incorrectly if its dtype rounds the positions.
    """
    total = jnp.full(part.sizes, _modulo(part.offset, counter), counter)
    for d in reversed(range(len(part.sizes))):
        index = _iota(part.sizes, d, counter)
        total = total + index * _modulo(part.strides[d], counter)
    return total


def _iota(sizes: Sizes, d: int, counter: Any) -> Array:
    """`lax.broadcasted_iota`, also for sizes of 2^31 and more.

    XLA multiplies the index of a shard by its size in 32 bits. So an iota of such a
    size is composed of two dimensions, of which XLA shards the first.
    """
    size = sizes[d]
    is_narrow = np.dtype(counter).itemsize < 8
    if jax.export.is_symbolic_dim(size) or size < 2**31 or is_narrow:
        return lax.broadcasted_iota(counter, sizes, d)
    columns = 2 ** (size.bit_length() - 31)
    shape = (-(-size // columns), columns)
    row, column = (lax.broadcasted_iota(counter, shape, axis) for axis in (0, 1))
    index = (row * counter(columns) + column).reshape(-1)
    index = index if index.size == size else index[:size]
    return lax.broadcast_in_dim(index, sizes, (d,))


def _strides(sizes: Sizes) -> Sizes:
    return tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))


def _modulo(size: Size, counter: Any) -> Any:
    """A size, which may be symbolic or too large for `counter`, in that dtype."""
    if jax.export.is_symbolic_dim(size):
        return jnp.asarray(size).astype(counter)
    return np.dtype(counter).type(size % 2 ** jnp.iinfo(counter).bits)


def position_bound(sizes: Sizes) -> int:
    """A number above all positions; 2^32 for symbolic sizes."""
    total = math.prod(sizes)
    return 2**32 if jax.export.is_symbolic_dim(total) else total


def long_position(sizes: Sizes) -> list[Array]:
    """The position of more than 2^32 elements as two words of 24 bits, low first."""
    with jax.enable_x64(True):
        both = position(sizes, np.uint64)
        words = both & (2**24 - 1), both >> 24
        return [word.astype(np.uint32) for word in words]
