"""Fills: one value everywhere, or an arithmetic sequence in row-major order.

    fill_value_constant    y[k] = value
    fill_value_sequence    y[k] = start + k * delta

DirectML's page once accumulated (value += delta) and was corrected in 2024; ONNX's
Range has the same formula in its text and an accumulation in its function body. Here
the formula is taken at its word: integers are computed modulo 2^bits, and a float is
the correctly rounded value of start + k * delta for every k, whatever the size, the
platform and the compiler. Accumulating drifts, an index in the dtype of the result
saturates, and a rounded product loses everything where start and k * delta cancel;
whether a product is rounded at all depends on the instruction set, since XLA contracts
it with the sum.

How, `_rounding` says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from dml_jax import _bits, _check, _rounding
from dml_jax._scalar import as_scalar


def fill_value_constant(
    sizes: Sequence[int], value_data_type: DTypeLike, value: ArrayLike
) -> jax.Array:
    """An array with the same value everywhere.

    A value that is an array of `value_data_type` keeps every bit, NaN payloads
    included.

    Args:
      sizes: the shape of the result.
      value_data_type: its dtype: bool, any integer, any float or complex.
      value: a Python or NumPy number, or a (traced) scalar of `value_data_type`. A
        number is rounded to the nearest float. An integer may be given in the signed or
        the unsigned range of its width: -2 for uint8 is 254.

    Returns:
      An array of shape `sizes` and dtype `value_data_type`.

    Raises:
      TypeError: `sizes` is not a sequence of static integers, `value_data_type` is not
        a dtype of numbers, or `value` is not a scalar of its kind.
      ValueError: a size is negative, the product of the sizes that are not 0 is beyond
        2^48, or the dtype is a 64-bit one outside of 64-bit mode.
      OverflowError: `value` does not fit `value_data_type`.

    Derivatives: linear in `value`, both modes; its cotangent is the sum of the
    result's. Sharding: under an output sharding each device fills its own shard; on a
    mesh with explicit axes, where it is wrapped in `jax.sharding.auto_axes`.

    Example:
      >>> from dml_jax import fill_value_constant
      >>> fill_value_constant((2, 4), "float32", 13)
      Array([[13., 13., 13., 13.],
             [13., 13., 13., 13.]], dtype=float32)

    Source: DirectML, DML_FILL_VALUE_CONSTANT_OPERATOR_DESC; ONNX, ConstantOfShape.
    """
    function = "fill_value_constant"
    sizes = _check.sizes(function, "sizes", sizes)
    dtype = _dtype(function, value_data_type, jnp.bool_, jnp.number)
    _check.require_width(function, "value_data_type", dtype)
    value = as_scalar(function, "value", value, dtype)
    return _constant(value, sizes=sizes, dtype=dtype)


def fill_value_sequence(
    sizes: Sequence[int],
    value_data_type: DTypeLike,
    value_start: ArrayLike,
    value_delta: ArrayLike,
) -> jax.Array:
    """An arithmetic sequence: start + k * delta at row-major position k.

    Integers wrap modulo 2^bits. Floats are correctly rounded for every k, subnormals
    included; what overflows becomes what the dtype has for it: an infinity, a NaN, or
    the largest value (float4). Infinite and NaN starts and deltas propagate as IEEE
    arithmetic has it, so an infinite delta gives a NaN at k = 0. The real and imaginary
    parts of a complex sequence are two sequences.

    Args:
      sizes: the shape of the result.
      value_data_type: its dtype: any integer, any float with a zero, or complex.
      value_start: a Python or NumPy number, or a (traced) scalar of `value_data_type`.
        A number is rounded to the nearest float. An integer may be given in the signed
        or the unsigned range of its width: -2 for uint8 is 254. A new value compiles
        nothing anew.
      value_delta: likewise.

    Returns:
      An array of shape `sizes` and dtype `value_data_type`.

    Raises:
      TypeError: `sizes` is not a sequence of static integers, `value_data_type` is not
        a dtype of numbers, or a value is not a scalar of its kind.
      ValueError: a size is negative, the product of the sizes that are not 0 is beyond
        2^48, or the dtype is a 64-bit one outside of 64-bit mode.
      OverflowError: `value_start` or `value_delta` does not fit `value_data_type`.

    Derivatives: 1 by `value_start` and k by `value_delta`, both modes, computed in at
    least float32. Sharding: under an output sharding each device fills its own shard;
    on a mesh with explicit axes, where it is wrapped in `jax.sharding.auto_axes`.

    Example:
      >>> from dml_jax import fill_value_sequence
      >>> fill_value_sequence((3,), "float32", 3, 2)
      Array([3., 5., 7.], dtype=float32)
      >>> fill_value_sequence((2, 2), "uint8", 10, -2)
      Array([[10,  8],
             [ 6,  4]], dtype=uint8)

    Source: DirectML, DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC; ONNX, Range-11 and -27.
    """
    function = "fill_value_sequence"
    sizes = _check.sizes(function, "sizes", sizes)
    dtype = _dtype(function, value_data_type, jnp.number)
    _check.require_width(function, "value_data_type", dtype)
    start = as_scalar(function, "value_start", value_start, dtype)
    delta = as_scalar(function, "value_delta", value_delta, dtype)
    return _sequence(start, delta, sizes=sizes, dtype=dtype)


# Arguments ----------------------------------------------------------------------------


def _dtype(function, value, *kinds):
    """`value` as a dtype that JAX has, of one of the kinds."""
    try:
        # NumPy would take float64 for None, and for an array or a scalar its dtype.
        if value is None or isinstance(value, (np.ndarray, np.generic, jax.Array)):
            raise TypeError
        dtype = np.dtype(value)
    except (TypeError, ValueError):
        is_array = isinstance(value, (np.ndarray, jax.Array))
        got = _check.describe(value) if is_array else repr(value)
        raise TypeError(
            f"{function}: `value_data_type` must be a dtype; got {got}"
        ) from None
    if not _is_one_of(dtype, kinds):
        raise TypeError(
            f"{function}: `value_data_type` must be a dtype of numbers; got {dtype}"
        )
    return dtype


@functools.cache
def _is_one_of(dtype, kinds):
    """Whether JAX has the dtype and a kind of it; a sequence needs a zero, too."""
    of_kind = any(jnp.issubdtype(dtype, kind) for kind in kinds)
    has_zero = jnp.bool_ in kinds or _check.has_zero(dtype)
    return of_kind and has_zero and _check.is_known(dtype)


# Jitted cores -------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("sizes", "dtype"))
def _constant(value, *, sizes, dtype):
    with jax.named_scope("fill_value_constant"):
        value = jnp.asarray(value).astype(dtype)
        return _bits.move(lambda value: lax.broadcast(value, sizes), value)


@functools.partial(jax.jit, static_argnames=("sizes", "dtype"))
def _sequence(start, delta, *, sizes, dtype):
    with jax.named_scope("fill_value_sequence"):
        start, delta = (jnp.asarray(value).astype(dtype) for value in (start, delta))
        if jnp.issubdtype(dtype, jnp.integer):
            return _integers(sizes, start, delta)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return lax.complex(
                _floats(sizes, start.real, delta.real),
                _floats(sizes, start.imag, delta.imag),
            )
        return _floats(sizes, start, delta)


def _integers(sizes, start, delta):
    """start + k * delta modulo 2^bits, by way of the unsigned word of 32 or 64 bits."""
    word = jnp.uint64 if start.dtype.itemsize == 8 else jnp.uint32
    position = _position(sizes, word)
    result = start.astype(word) + position * delta.astype(word)
    return _truncate(result, start.dtype)


def _truncate(word, dtype):
    """The low bits of unsigned words, as a possibly signed and narrower integer."""
    info = jnp.iinfo(dtype)
    unsigned = jnp.dtype(f"uint{info.bits}")
    word = (word & word.dtype.type(2**info.bits - 1)).astype(unsigned)
    return word if dtype == unsigned else lax.bitcast_convert_type(word, dtype)


def _position(sizes, word):
    """The row-major position of every element, modulo the range of `word`.

    A sum over the dimensions rather than one reshaped iota, so that a sharded result
    needs its own positions only. An iota in a narrower dtype would be rounded, and XLA
    partitions a rounded iota wrongly.
    """
    position = jnp.zeros(sizes, word)
    stride = 1
    for dimension in reversed(range(len(sizes))):
        index = lax.broadcasted_iota(word, sizes, dimension)
        position = position + index * _modulo(stride, word)
        stride = stride * sizes[dimension]
    return position


def _modulo(size, word):
    """A size, which may be symbolic or beyond the range of `word`, as a `word`."""
    if jax.export.is_symbolic_dim(size):
        return jnp.asarray(size).astype(word)
    return np.dtype(word).type(size % 2 ** jnp.iinfo(word).bits)


def _long_position(sizes):
    """The row-major position as two words of 24 bits, the lower one first.

    For more elements than a uint32 can count: the position has 2^24 columns, of which
    the iotas along the two dimensions are the words.
    """
    total = math.prod(sizes)
    rows = -(-total // 2**24)
    return [
        lax.broadcasted_iota(jnp.uint32, (rows, 2**24), dimension)
        .reshape(rows * 2**24)[:total]
        .reshape(sizes)
        for dimension in (1, 0)
    ]


# Floats -------------------------------------------------------------------------------


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _floats(sizes, start, delta):
    """start + k * delta, correctly rounded."""
    total = math.prod(sizes)
    # A symbolic size has no bound here; exported programs count up to 2^32.
    count = 2**32 if jax.export.is_symbolic_dim(total) else total
    words, word_bits = _rounding.words_of_index(start.dtype, count)
    if words == 1:
        index = [_position(sizes, jnp.uint64 if word_bits == 64 else jnp.uint32)]
    elif count <= 2**32:
        position = _position(sizes, jnp.uint32)
        index = [position & (2**word_bits - 1), position >> word_bits]
    else:
        index = _long_position(sizes)
    return _rounding.multiply_add(index, delta, start, count.bit_length())


@_floats.defjvp
def _floats_jvp(sizes, primals, tangents):
    """The derivative of what is computed, not of how: 1 by start and k by delta."""
    wide = np.promote_types(primals[0].dtype, np.float32)
    start, delta = (tangent.astype(wide) for tangent in tangents)
    total = math.prod(sizes)
    if jax.export.is_symbolic_dim(total) or total <= 2**32:
        position = _position(sizes, jnp.uint32).astype(wide)
    else:
        low, high = _long_position(sizes)
        position = low.astype(wide) + high.astype(wide) * 2.0**24
    tangent = start + position * delta
    return _floats(sizes, *primals), tangent.astype(primals[0].dtype)
