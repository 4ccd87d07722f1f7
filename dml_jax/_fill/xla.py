"""Ways to compute a fill, by platform.

    constant    the value everywhere
    integers    start + k * delta modulo 2^bits
    doubles     correctly rounded by way of float64, where that is fast: `_double`
    limbs       correctly rounded by way of integers, anywhere: `_rounding`

A fill on a GPU takes as long as its stores, and XLA has a thread store four elements.
Two things make that more, neither of them a change to what is stored:

- Elements narrower than 32 bits are put together to words of that width. Words of 64
  bits are slower.
- The fill is a concatenation of four equal parts: XLA has a thread store four elements
  of each. That pays for words of 32 bits only, and where nothing is computed from the
  concatenation, as a complex number from its components would be.

`Stores` says which of the two. Where XLA's partitioner is to divide the program there
are no parts: along a concatenated dimension every device would compute all of them.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._fill import float64, rounding
from dml_jax._shared import bitwise, lowering

WORD = np.dtype("uint32")
PARTS = 4
_WORTHWHILE_APART = 2**14  # elements


class Stores(NamedTuple):
    """What a fill is put together from."""

    lanes: int = 1  # elements of a word
    dimension: int | None = None  # of the words, along which the parts lie


# Ways ---------------------------------------------------------------------------------


def constant(sizes, stores, value):
    """The value everywhere, with every bit."""
    word = bitwise.to_bits(value)
    if stores.lanes > 1:
        code = _code(value.dtype)
        ones = sum(2 ** (8 * code.itemsize * lane) for lane in range(stores.lanes))
        word = lax.bitcast_convert_type(value, code).astype(WORD) * WORD.type(ones)
    words = [word, word]
    if stores.dimension is not None:
        # XLA would take equal neighbours for one part.
        words[1] = lax.optimization_barrier(word)

    def broadcast(part):
        return lax.broadcast(words[part.number % 2], part.sizes)

    return _put_together(sizes, value.dtype, stores, broadcast)


def integers(sizes, stores, start, delta):
    """By way of the unsigned integer of 32 or 64 bits."""
    dtype = start.dtype
    wide = np.uint64 if dtype.itemsize == 8 else np.uint32
    start, delta = start.astype(wide), delta.astype(wide)

    def element(position):
        return _truncate(start + position * delta, dtype)

    return _by_position(sizes, dtype, stores, wide, element)


def doubles(sizes, stores, platform, is_apart, start, delta):
    dtype = start.dtype
    sequence = float64.prepare(start, delta, platform)
    if is_apart and math.prod(sizes) >= _WORTHWHILE_APART:
        # A loop whose two threads have unequal shares would compute it every time.
        with jax.enable_x64(True):
            sequence = jax.tree.map(
                lambda x: lowering.materialize(x[None])[0], sequence
            )

    def element(position):
        return float64.element(sequence, position, dtype, platform)

    return _by_position(sizes, dtype, stores, np.uint32, element)


def limbs(sizes, count, start, delta):
    """For positions below `count`."""
    words, word_bits = rounding.words_of_index(start.dtype, count)
    if words == 1:
        index = [position(sizes, jnp.uint64 if word_bits == 64 else jnp.uint32)]
    elif count <= 2**32:
        low = position(sizes, jnp.uint32)
        index = [low & (2**word_bits - 1), low >> word_bits]
    else:
        index = long_position(sizes)
    return rounding.multiply_add(index, delta, start, count.bit_length())


def _truncate(word, dtype):
    """The low bits of unsigned words, as a possibly signed and narrower integer."""
    info = jnp.iinfo(dtype)
    unsigned = jnp.dtype(f"uint{info.bits}")
    word = (word & word.dtype.type(2**info.bits - 1)).astype(unsigned)
    return word if dtype == unsigned else lax.bitcast_convert_type(word, dtype)


# Words and parts ----------------------------------------------------------------------


class _Part(NamedTuple):
    """Some of the words: which part it is, and where in the whole."""

    number: int
    sizes: tuple
    strides: tuple  # of the whole
    offset: int  # the position of its first word


def _by_position(sizes, dtype, stores, counter, element):
    """The array of `element(position)`, with positions counted in `counter`.

    Every lane of the words is an array of its own.
    """

    def elements(part):
        return element(_position_in(part, counter))

    def words(part):
        first = _position_in(part, counter) * counter(stores.lanes)
        words = jnp.zeros(part.sizes, WORD)
        for lane in range(stores.lanes):
            code = _code(dtype)
            one = lax.bitcast_convert_type(element(first + counter(lane)), code)
            shift = WORD.type(8 * code.itemsize * lane)
            words = words | one.astype(WORD) << shift
        return words

    make = elements if stores.lanes == 1 else words
    return _put_together(sizes, dtype, stores, make)


def _put_together(sizes, dtype, stores, make):
    """The array of which `make` makes the words, part by part."""
    parts = [make(part) for part in _parts(sizes, stores)]
    words = parts[0] if len(parts) == 1 else lax.concatenate(parts, stores.dimension)
    if stores.lanes > 1:
        words = bitwise.split(words, _code(dtype))
    return bitwise.from_bits(words, dtype)


def _parts(sizes, stores):
    words = sizes_in_words(sizes, stores.lanes)
    strides = _strides(words)
    d = stores.dimension
    if d is None:
        return [_Part(0, words, strides, 0)]
    bounds = [words[d] * i // PARTS for i in range(PARTS + 1)]
    return [
        _Part(
            i, (*words[:d], end - begin, *words[d + 1 :]), strides, begin * strides[d]
        )
        for i, (begin, end) in enumerate(itertools.pairwise(bounds))
    ]


def sizes_in_words(sizes, lanes):
    return sizes if lanes == 1 else (*sizes[:-1], sizes[-1] // lanes)


def _code(dtype):
    """The unsigned integer of the width of a dtype."""
    return np.dtype(f"uint{8 * dtype.itemsize}")


# Positions ----------------------------------------------------------------------------


def position(sizes, word):
    """The row-major position of every element, modulo the range of `word`."""
    return _position_in(_Part(0, sizes, _strides(sizes), 0), word)


def _position_in(part, word):
    """A sum over the dimensions rather than one reshaped iota.

    So a sharded result needs its own positions only. An iota in a narrower dtype would
    be rounded, and XLA partitions a rounded iota wrongly.
    """
    total = jnp.full(part.sizes, _modulo(part.offset, word), word)
    for dimension in reversed(range(len(part.sizes))):
        index = _index(part.sizes, dimension, word)
        total = total + index * _modulo(part.strides[dimension], word)
    return total


def _index(sizes, dimension, word):
    """The iota along a dimension.

    XLA multiplies the number of a shard by its size in 32 bits. Dimensions that need
    more are made of two, of which the devices share the first.
    """
    size = sizes[dimension]
    if jax.export.is_symbolic_dim(size) or size < 2**31 or np.dtype(word).itemsize < 8:
        return lax.broadcasted_iota(word, sizes, dimension)
    columns = 2 ** (size.bit_length() - 31)
    shape = (-(-size // columns), columns)
    row, column = (lax.broadcasted_iota(word, shape, d) for d in (0, 1))
    index = (row * word(columns) + column).reshape(-1)
    index = index if index.size == size else index[:size]
    return lax.broadcast_in_dim(index, sizes, (dimension,))


def _strides(sizes):
    return tuple(math.prod(sizes[dimension + 1 :]) for dimension in range(len(sizes)))


def _modulo(size, word):
    """A size, which may be symbolic or beyond the range of `word`, as a `word`."""
    if jax.export.is_symbolic_dim(size):
        return jnp.asarray(size).astype(word)
    return np.dtype(word).type(size % 2 ** jnp.iinfo(word).bits)


def bound(sizes):
    """What all positions are below; exported programs count up to 2^32."""
    total = math.prod(sizes)
    return 2**32 if jax.export.is_symbolic_dim(total) else total


def long_position(sizes):
    """The row-major position as two words of 24 bits, the lower one first.

    For more elements than a uint32 can count.
    """
    with jax.enable_x64(True):
        whole = position(sizes, jnp.uint64)
        words = whole & (2**24 - 1), whole >> 24
        return [word.astype(jnp.uint32) for word in words]
