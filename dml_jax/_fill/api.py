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

How, `_fill_formulations` says.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from dml_jax._shared import arguments, calls
from dml_jax._shared.scalars import as_scalar


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
    result's. Sharding: under an output sharding each device fills its own shard.

    Example:
      >>> from dml_jax import fill_value_constant
      >>> fill_value_constant((2, 4), "float32", 13)
      Array([[13., 13., 13., 13.],
             [13., 13., 13., 13.]], dtype=float32)

    Source: DirectML, DML_FILL_VALUE_CONSTANT_OPERATOR_DESC; ONNX, ConstantOfShape.
    """
    function = "fill_value_constant"
    kinds = (jnp.bool_, jnp.number)
    sizes, dtype = _check_result((function, kinds), sizes, value_data_type)
    arguments.require_width(function, "value_data_type", dtype)
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
    least float32. Sharding: under an output sharding each device fills its own shard.

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
    sizes, dtype = _check_result((function, (jnp.number,)), sizes, value_data_type)
    arguments.require_width(function, "value_data_type", dtype)
    start = as_scalar(function, "value_start", value_start, dtype)
    delta = as_scalar(function, "value_delta", value_delta, dtype)
    return _sequence(start, delta, sizes=sizes, dtype=dtype)


# Arguments ----------------------------------------------------------------------------


@calls.memoized
def _check_result(function_and_kinds, sizes, value_data_type):
    """The shape and the dtype of the result of a function."""
    function, kinds = function_and_kinds
    sizes = arguments.sizes(function, "sizes", sizes)
    return sizes, _dtype(function, value_data_type, kinds)


# For None NumPy takes float64, and NumPy 2.0 some dtype for each of the others.
_NO_DTYPES = (
    *(None, np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger),
    *(np.inexact, np.floating, np.complexfloating, np.flexible, np.character),
)


def _dtype(function, value, kinds):
    """`value` as a dtype that JAX has, of one of the kinds."""
    try:
        if any(value is other for other in _NO_DTYPES):
            raise TypeError
        # NumPy would take their dtype.
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            raise TypeError
        dtype = np.dtype(value)
    except (TypeError, ValueError):
        is_array = isinstance(value, (np.ndarray, jax.Array))
        got = arguments.describe(value) if is_array else repr(value)
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
    has_zero = jnp.bool_ in kinds or arguments.has_zero(dtype)
    return of_kind and has_zero and arguments.is_known(dtype)


# Jitted cores -------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("sizes", "dtype"))
def _constant(value, *, sizes, dtype):
    with jax.named_scope("fill_value_constant"):
        return _fill("constant", sizes, jnp.asarray(value).astype(dtype))


@functools.partial(jax.jit, static_argnames=("sizes", "dtype"))
def _sequence(start, delta, *, sizes, dtype):
    with jax.named_scope("fill_value_sequence"):
        start, delta = (jnp.asarray(value).astype(dtype) for value in (start, delta))
        if jnp.issubdtype(dtype, jnp.integer):
            return _fill("integers", sizes, start, delta)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return lax.complex(
                _fill("components", sizes, start.real, delta.real),
                _fill("components", sizes, start.imag, delta.imag),
            )
        return _fill("floats", sizes, start, delta)


def _fill(way, sizes, *scalars):
    # With `jax.extend` comes pallas, slower to import than all of this package.
    from dml_jax._fill.primitive import fill

    return fill(way, sizes, *scalars)
