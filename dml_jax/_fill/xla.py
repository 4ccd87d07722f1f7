"""Formulations of a fill.

    constant                   the value everywhere
    integers                   start + k * delta modulo 2^bits
    exact_in_floats            floats whose sums are exact in float32 or float64
    sums_of_words              float64, as exact sums of two words: `double_word`
    rounded_by_float64         up to 32 bits, where float64 is fast: `float64`
    rounded_by_blocks          float32, more than 2^28 elements, likewise
    rounded_by_double_words    float64, in two words of float64: `double_word`
    rounded_by_integers        up to 32 bits, on any platform: `rounding`

The last six are correctly rounded.

On a GPU, stores take most of the time of a fill. XLA's kernels store the most bytes at
once if the fill is computed as one-dimensional parts, which are then concatenated
(`_shared/gpu.py`) and reshaped. The parameter `bounds` has the positions at which the
parts begin and end. It is None where a fill keeps its dimensions, and wherever XLA may
partition the program: with parts, every device would compute the whole fill.

The parameter `on_one_cpu` is true on a CPU if XLA neither partitions nor maps the fill.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax._fill import double_word, float64, rounding
from dml_jax._shared import bitwise, lowering
from dml_jax._shared.arguments import Size

Sizes: TypeAlias = tuple[Size, ...]
Bounds: TypeAlias = tuple[int, ...] | None
_WORTHWHILE_TO_MATERIALIZE = 2**14  # elements
_MIN_DIVIDED = 2**18  # elements; XLA divides loops over so many between threads
_MAX_INNER = 12  # product of the sizes after the first one; LLVM unrolls such loops
_ROW = 1024  # elements of a row of `_in_rows`
_MIN_IN_ROWS = 4 * _ROW  # elements; with fewer, a loop is seldom divided
_SLOW_BFLOAT16 = range(9, 12)  # sizes of the last dimension; LLVM vectorizes no loop


# Formulations -------------------------------------------------------------------------


def constant(sizes: Sizes, bounds: Bounds, platform: str, value: Array) -> Array:
    """The value everywhere, with every bit."""
    bits = bitwise.to_bits(value)
    if bounds is not None:
        # XLA would merge neighbouring parts that are equal.
        values = [bits, lax.optimization_barrier(bits)]
        parts = [
            lax.broadcast(values[i % 2], (end - begin,))
            for i, (begin, end) in enumerate(itertools.pairwise(bounds))
        ]
        whole = _joined(parts, sizes)
    else:
        if platform == "cpu" and value.dtype == jnp.bfloat16:
            # LLVM broadcasts a bfloat16 by way of float32, which quiets NaNs and loses
            # subnormals. It broadcasts the result of an operation on integers as an
            # integer. Without the barrier, XLA computes the result for a known value.
            bits = lax.optimization_barrier(bits)
            bits = bits | bitwise.unknown_zeros(bits)
        whole = lax.broadcast(bits, sizes)
    return bitwise.from_bits(whole, value.dtype)


def integers(
    sizes: Sizes, bounds: Bounds, on_one_cpu: bool, start: Array, delta: Array
) -> Array:
    """`start + k * delta` modulo 2^bits.

    It is computed in uint32 or uint64, and truncated. On one CPU, integers of at least
    8 bits are computed in their own dtype, which takes fewer operations. XLA divides a
    loop with more operations between threads at a smaller size.
    """
    dtype = start.dtype
    word = np.dtype(np.uint64 if dtype.itemsize == 8 else np.uint32)
    if on_one_cpu and jnp.iinfo(dtype).bits >= 8:
        word = dtype
    start, delta = start.astype(word), delta.astype(word)

    def element(k: Array) -> Array:
        return _truncate(k * delta + start, dtype)

    return _by_position(sizes, bounds, word.type, element)


def are_faster_flat(sizes: Sizes) -> bool:
    """Whether one CPU computes integers faster in one dimension.

    A position then takes fewer operations, so XLA divides only larger loops between
    threads. Larger arrays are as fast or faster with their dimensions.
    """
    _, inner = _first_and_inner(sizes)
    return math.prod(sizes) < _MIN_DIVIDED or math.prod(inner) <= _MAX_INNER


def rounded_by_float64(
    sizes: Sizes,
    bounds: Bounds,
    platform: str,
    on_one_cpu: bool,
    start: Array,
    delta: Array,
) -> Array:
    """`start + k * delta`, if `float64.suffices` for the dtype and the positions."""
    dtype = start.dtype
    sequence = float64.prepare(start, delta, position_bound(sizes), platform)
    is_exact = sequence.is_exact
    is_switched = on_one_cpu and _is_faster_switched(sizes, dtype)
    if is_switched and is_exact is not None and dtype == jnp.float32:
        return _switched(
            sizes,
            is_exact,
            lambda k: float64.general(sequence, k, dtype, platform),
            lambda k: float64.exact_sums(sequence, k, dtype, platform),
        )
    sequence = _stored(sequence, sizes, on_one_cpu)

    def element(k: Array) -> Array:
        return float64.element(sequence, k, dtype, platform)

    if on_one_cpu:
        return _by_float_position(sizes, np.float64, dtype, element)
    return _by_position(sizes, bounds, np.uint32, element)


def exact_in_floats(
    sizes: Sizes,
    bounds: Bounds,
    platform: str,
    on_one_cpu: bool,
    bits: int,
    dtype: np.dtype,
    start: Array,
    delta: Array,
) -> Array:
    """`start + k * delta`, if floats of 32 or 64 `bits` hold all sums."""
    wide = np.dtype(f"float{bits}").type
    with jax.enable_x64(True):
        start, delta = without_known_values(start.astype(wide), delta.astype(wide))

    def element(k: Array) -> Array:
        return float64.exact(start, delta, k, bits, dtype, platform)

    if on_one_cpu:
        return _by_float_position(sizes, wide, dtype, element, has_few_operations=True)
    return _by_position(sizes, bounds, _counter_for_floats(sizes), element)


def sums_of_words(
    sizes: Sizes,
    bounds: Bounds,
    platform: str,
    on_one_cpu: bool,
    start: Array,
    delta: Array,
) -> Array:
    """`start + k * delta` in float64, if `double_word.words_are_exact`."""
    position_bits = (position_bound(sizes) - 1).bit_length()
    words = double_word.words_of_sums(start, delta, position_bits)

    def element(k: Array) -> Array:
        return double_word.sum_of_words(words, k, platform)

    if on_one_cpu:
        return _by_float_position(
            sizes, np.float64, start.dtype, element, has_few_operations=True
        )
    return _by_position(sizes, bounds, _counter_for_floats(sizes), element)


def _counter_for_floats(sizes: Sizes) -> Any:
    # Signed integers are converted to floats in fewer operations.
    return np.int32 if position_bound(sizes) <= 2**31 else np.uint32


def rounded_by_blocks(
    sizes: Sizes,
    bounds: Bounds,
    platform: str,
    count: int,
    on_one_cpu: bool,
    start: Array,
    delta: Array,
) -> Array:
    """`start + k * delta`, if `float64.has_blocks` for the dtype and the positions."""

    def by_blocks(start: Array, delta: Array) -> Array:
        blocks = float64.prepare_blocks(start, delta, count, platform)
        blocks = _stored(blocks, sizes, on_one_cpu)

        def element(k: Array) -> Array:
            return float64.element_of_blocks(blocks, k, platform)

        return _by_position(sizes, bounds, np.uint32, element)

    by_integers = functools.partial(rounded_by_integers, sizes, count)
    fits = float64.fits_blocks(start, delta)
    return lax.cond(fits, by_blocks, by_integers, start, delta)


def rounded_by_double_words(
    sizes: Sizes,
    bounds: Bounds,
    platform: str,
    count: int,
    on_one_cpu: bool,
    start: Array,
    delta: Array,
) -> Array:
    """`start + k * delta` in float64, for positions k below `count`."""
    sequence = double_word.prepare(start, delta, count, platform)
    case = sequence.case
    is_switched = on_one_cpu and _is_faster_switched(sizes, start.dtype)
    if is_switched and case is not None:
        return _switched(
            sizes,
            case,
            lambda k: double_word.general(sequence, k, platform),
            lambda k: double_word.sums_from_third(sequence, k, platform),
            lambda k: double_word.sum_of_words(sequence.words, k, platform),
        )
    sequence = _stored(sequence, sizes, on_one_cpu)
    element = functools.partial(double_word.element, sequence, platform=platform)
    if on_one_cpu:
        return _by_float_position(sizes, np.float64, start.dtype, element)
    counter = np.uint32 if count <= 2**32 else np.uint64
    return _by_position(sizes, bounds, counter, element)


def without_known_values(*scalars: Array) -> tuple[Array, ...]:
    """The same scalars, whose values XLA does not know.

    XLA replaces x + 0 by x if it knows the 0. That changes the sign of a zero.
    """
    return tuple(lax.optimization_barrier(scalars))


def _stored(sequence: Any, sizes: Sizes, on_one_cpu: bool) -> Any:
    """The scalars of a sequence, from packed arrays, in memory if the fill is large.

    If they were not packed, each thread of a GPU would recompute them. A CPU would
    recompute them for each element if the iterations of a loop do not divide evenly
    among threads. XLA on CPU fuses through barriers, so a constraint on the layout
    stores the arrays. It would store more than eight scalars in a loop for each one.
    """
    is_stored = on_one_cpu and math.prod(sizes) >= _WORTHWHILE_TO_MATERIALIZE
    leaves, structure = jax.tree.flatten(sequence)
    groups = [leaves[i : i + 8] for i in range(0, len(leaves), 8)]
    stored = [leaf for group in groups for leaf in _stored_scalars(group, is_stored)]
    return structure.unflatten(stored)


def _stored_scalars(arrays: list[Array], is_stored: bool) -> list[Array]:
    """The same scalars, read from one packed array."""
    with jax.enable_x64(True):
        words = packed(arrays)
        words = lowering.materialize(words) if is_stored else words
        ends = itertools.accumulate(array.size for array in arrays)
        return [
            _from_words(words[end - x.size : end].reshape(x.shape), x.dtype)
            for x, end in zip(arrays, ends, strict=True)
        ]


def packed(arrays: list[Array]) -> Array:
    """The elements of arrays, as words of 64 bits that a GPU computes once.

    With words of 32 bits, XLA on GPU makes a kernel for each scalar.
    """
    with jax.enable_x64(True):
        words = jnp.concatenate([_words(array).reshape(-1) for array in arrays])
        return lax.optimization_barrier(words)


def _words(x: Array) -> Array:
    """The bits of numbers in words of 64 bits."""
    code = np.dtype(f"uint{8 * x.dtype.itemsize}")
    return lax.bitcast_convert_type(x, code).astype(jnp.uint64)


def _from_words(words: Array, dtype: np.dtype) -> Array:
    code = np.dtype(f"uint{8 * dtype.itemsize}")
    return lax.bitcast_convert_type(words.astype(code), dtype)


def tangent(sizes: Sizes, start: Array, delta: Array) -> Array:
    """The tangent of a sequence, `start + k * delta`, in at least float32."""
    if jnp.issubdtype(start.dtype, jnp.complexfloating):
        # By components, since a TPU does not convert to complex128.
        return lax.complex(
            tangent(sizes, start.real, delta.real),
            tangent(sizes, start.imag, delta.imag),
        )
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
    if words.dtype == dtype:
        return words
    bits = jnp.iinfo(dtype).bits
    unsigned = jnp.dtype(f"uint{bits}")
    words = (words & words.dtype.type(2**bits - 1)).astype(unsigned)
    return words if dtype == unsigned else lax.bitcast_convert_type(words, dtype)


# Positions ----------------------------------------------------------------------------


def _by_position(
    sizes: Sizes, bounds: Bounds, counter: Any, element: Callable[[Array], Array]
) -> Array:
    """The array of `element(position)`, with positions of dtype `counter`."""
    if bounds is None:
        return element(position(sizes, counter))
    parts = [
        element(_iota((end - begin,), 0, counter) + _modulo(begin, counter))
        for begin, end in itertools.pairwise(bounds)
    ]
    return _joined(parts, sizes)


def _by_float_position(
    sizes: Sizes,
    counter: Any,
    dtype: np.dtype,
    element: Callable[[Array], Array],
    has_few_operations: bool = False,
) -> Array:
    """The array of `element(position)`, with positions that are floats, on one CPU.

    Such positions need no conversion. In one dimension, they take the fewest
    operations. XLA divides a loop with fewer operations only at a larger size.

    If an element takes more than a few operations, dtypes of up to 16 bits are as fast
    or faster with their dimensions. If it takes a few, rows are faster only for dtypes
    of 16 bits with several dimensions.
    """
    in_rows = _is_faster_in_rows(sizes, dtype)
    if has_few_operations:
        _, inner = _first_and_inner(sizes)
        in_rows = in_rows and dtype.itemsize == 2 and len(inner) > 0
    is_flat = has_few_operations or dtype.itemsize >= 4
    bounds = (0, math.prod(sizes)) if is_flat else None
    with jax.enable_x64(True):
        if in_rows:
            return _in_rows(sizes, counter, element)
        return _by_position(sizes, bounds, counter, element)


def _switched(sizes: Sizes, index: Array, *elements: Callable[[Array], Array]) -> Array:
    """The array of `element(position)` by one of several functions, on one CPU.

    A conditional selects the loop. XLA does not divide a loop in a conditional between
    threads. So the loop compares its index with no bound of a thread, and LLVM
    vectorizes it.
    """

    def branch(element: Callable[[Array], Array]) -> Array:
        with jax.enable_x64(True):
            return element(lax.iota(np.float64, math.prod(sizes)))

    branches = [functools.partial(branch, element) for element in elements]
    return lax.switch(index, branches).reshape(sizes)


def _is_faster_switched(sizes: Sizes, dtype: np.dtype) -> bool:
    """Whether `_switched` is faster than a loop that selects each element.

    A following operation is not fused. From 256 KB on, that takes longer than is
    gained, unless the first dimension is uneven. From 512 KB on, XLA divides the loop
    of plain JAX, too.
    """
    end = 2**19 if _is_uneven(sizes, _MAX_INNER) else 2**18
    return 2**13 <= math.prod(sizes) * dtype.itemsize < end


def _is_faster_in_rows(sizes: Sizes, dtype: np.dtype) -> bool:
    """Whether `_in_rows` is faster than one loop."""
    if math.prod(sizes) < _MIN_IN_ROWS:
        return False
    _, inner = _first_and_inner(sizes)
    if dtype == jnp.bfloat16 and inner and inner[-1] in _SLOW_BFLOAT16:
        return True
    return _is_uneven(sizes, _MAX_INNER if dtype.itemsize <= 2 else 1)


def _is_uneven(sizes: Sizes, most: int) -> bool:
    """Whether the first size is odd, and the others have a product of at most `most`.

    XLA on CPU divides the loop over the first dimension between threads. If the parts
    are uneven, that loop compares its index with the size, and LLVM does not vectorize
    it. LLVM unrolls the inner loops, instead of vectorizing them, if they are short.
    """
    first, inner = _first_and_inner(sizes)
    return first % 2 == 1 and math.prod(inner) <= most


def _first_and_inner(sizes: Sizes) -> tuple[int, list[int]]:
    """The first size and the others; those that are 1 do not count."""
    first, *inner = [size for size in sizes if size != 1] or [1]
    return first, inner


def _in_rows(sizes: Sizes, counter: Any, element: Callable[[Array], Array]) -> Array:
    """The array of `element(position)`, computed in rows of `_ROW` and copied."""
    rows = -(-math.prod(sizes) // _ROW), _ROW
    padded = lowering.materialize(element(position(rows, counter)))
    return padded.reshape(-1)[: math.prod(sizes)].reshape(sizes)


def _joined(parts: list[Array], sizes: Sizes) -> Array:
    """One-dimensional parts as an array of these sizes."""
    return lax.concatenate(parts, 0).reshape(sizes)


def position(sizes: Sizes, counter: Any) -> Array:
    """The row-major position of every element, modulo the range of `counter`.

    It is a sum over the dimensions instead of a reshaped iota, so that each device
    computes only the positions of its shard. Its dtype is an integer: XLA partitions an
    iota incorrectly if its dtype rounds the positions.
    """
    total = jnp.zeros(sizes, counter)
    for d in reversed(range(len(sizes))):
        stride = _modulo(math.prod(sizes[d + 1 :]), counter)
        total = total + _iota(sizes, d, counter) * stride
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


def _modulo(size: Size, counter: Any) -> Any:
    """A size, which may be symbolic, modulo the range of `counter`, in that dtype."""
    if jax.export.is_symbolic_dim(size):
        return jnp.asarray(size).astype(counter)
    return np.uint64(size).astype(counter)


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
