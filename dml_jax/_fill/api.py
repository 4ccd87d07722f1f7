"""Fills: one value everywhere, or an arithmetic sequence in row-major order.

    fill_value_constant    y[k] = value
    fill_value_sequence    y[k] = start + k * delta

DirectML's page described an accumulation (value += delta) until it was corrected in
2024. ONNX's Range has the formula in its text, and an accumulation in its function
body. Here the formula defines the result: integers are computed modulo 2^bits, and
floats in float64, converted to their dtype once. An accumulation drifts, and an index
in a narrow dtype saturates.

`primitive` has the computations.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from dml_jax._fill.primitive import constant, sequence
from dml_jax._shared import arguments, jax_versions
from dml_jax._shared.arguments import Shape
from dml_jax._shared.scalars import as_scalar


def fill_value_constant(
    sizes: Sequence[int], value_data_type: DTypeLike, value: ArrayLike
) -> jax.Array:
    """An array with the same value everywhere.

    If the value is an array of `value_data_type`, every bit is kept, NaN payloads
    included.

    Args:
      sizes: the shape of the result.
      value_data_type: its dtype: bool, any integer, any float or complex.
      value: a number or a (traced) scalar array, of the kind of the dtype or a simpler
        one, which is cast to the dtype. A Python or NumPy integer may be in the signed
        or the unsigned range of an integer dtype: -2 for uint8 is 254.

    Returns:
      An array of shape `sizes` and dtype `value_data_type`.

    Raises:
      TypeError: `sizes` is not a sequence of static integers, `value_data_type` is not
        a dtype of numbers, or `value` is not a scalar of its kind.
      ValueError: a size is negative, the product of the sizes that are not 0 is beyond
        2^48, or the dtype is a 64-bit one outside 64-bit mode.
      OverflowError: `value` is an integer outside both ranges.

    Derivatives: linear in `value`, in both modes. The cotangent of `value` is the sum
    over the elements of the result's cotangent.
    Sharding: with an output sharding each device fills its own shard.

    Example:
      >>> from dml_jax import fill_value_constant
      >>> fill_value_constant((2, 4), "float32", 13)
      Array([[13., 13., 13., 13.],
             [13., 13., 13., 13.]], dtype=float32)

    Source: DirectML, DML_FILL_VALUE_CONSTANT_OPERATOR_DESC; ONNX, ConstantOfShape.
    """
    return _fill("fill_value_constant", sizes, value_data_type, value=value)


def fill_value_sequence(
    sizes: Sequence[int],
    value_data_type: DTypeLike,
    value_start: ArrayLike,
    value_delta: ArrayLike,
) -> jax.Array:
    """An arithmetic sequence: start + k * delta at row-major position k.

    Integers wrap modulo 2^bits. Floats are computed in float64 and converted once. What
    becomes of subnormal numbers depends on the platform: a CPU flushes them to zero. An
    overflow gives, depending on the dtype, an infinity, a NaN, or the largest value
    (float4). Infinities and NaNs propagate as in IEEE arithmetic, so an infinite delta
    gives a NaN at k = 0. The real and imaginary parts of a complex sequence are two
    sequences.

    Args:
      sizes: the shape of the result.
      value_data_type: its dtype: any integer, any float with a zero, or complex.
        `int`, `float` and `complex` are those of `jax.numpy`: 32-bit dtypes outside
        64-bit mode.
      value_start: a number or a (traced) scalar array, of the kind of the dtype or a
        simpler one, which is cast to the dtype. A Python or NumPy integer may be in the
        signed or the unsigned range of an integer dtype: -2 for uint8 is 254.
      value_delta: the difference of neighbours, in the same forms.

    Returns:
      An array of shape `sizes` and dtype `value_data_type`.

    Raises:
      TypeError: `sizes` is not a sequence of static integers, `value_data_type` is not
        a dtype of numbers, or a value is not a scalar of its kind.
      ValueError: a size is negative, the product of the sizes that are not 0 is beyond
        2^48, or the dtype is a 64-bit one outside 64-bit mode.
      OverflowError: `value_start` or `value_delta` is an integer outside both ranges.

    Derivatives: 1 with respect to `value_start` and k with respect to `value_delta`, in
    both modes, computed in at least float32.
    Sharding: with an output sharding each device fills its own shard.

    Example:
      >>> from dml_jax import fill_value_sequence
      >>> fill_value_sequence((3,), "float32", 3, 2)
      Array([3., 5., 7.], dtype=float32)
      >>> fill_value_sequence((2, 2), "uint8", 10, -2)
      Array([[10,  8],
             [ 6,  4]], dtype=uint8)

    Source: DirectML, DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC; ONNX, Range-11 and -27.
    """
    values = {"value_start": value_start, "value_delta": value_delta}
    return _fill("fill_value_sequence", sizes, value_data_type, **values)


def _fill(
    function: str, sizes: Any, value_data_type: Any, **values: ArrayLike
) -> jax.Array:
    shape = arguments.sizes("sizes", sizes)
    dtype = _as_dtype(function, value_data_type)
    scalars = (as_scalar(name, x, dtype) for name, x in values.items())
    return _compiled(function, shape, dtype, *scalars)


def _as_dtype(function: str, value: Any) -> np.dtype:
    try:
        # NumPy would convert None to float64, and arrays and scalars to their dtypes.
        if value is None or isinstance(value, (np.generic, np.ndarray, jax.Array)):
            raise TypeError
        is_python_type = any(value is kind for kind in (int, float, complex))
        dtype = (jax.dtypes.canonicalize_dtype if is_python_type else np.dtype)(value)
    except (TypeError, ValueError):
        rule = "be a dtype, such as 'float32' or jnp.float32"
        raise arguments.not_static("value_data_type", rule, value) from None
    if not _is_accepted(function, dtype):
        rule = "be a dtype of numbers"
        raise arguments.error(TypeError, "value_data_type", rule, dtype)
    arguments.require_width("value_data_type", dtype)
    return dtype


@functools.cache
def _is_accepted(function: str, dtype: np.dtype) -> bool:
    if dtype == np.bool_:
        return function == "fill_value_constant"
    is_number = jnp.issubdtype(dtype, jnp.number) and arguments.is_known(dtype)
    needs_zero = function == "fill_value_sequence"
    return is_number and (arguments.has_zero(dtype) or not needs_zero)


# It is inlined: on a mesh with explicit axes, jax 0.12 constrains the result of a
# nested jitted function to the sharding in its type, which is replicated for a fill.
@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=jax_versions.INLINE)
def _compiled(
    function: str, sizes: Shape, dtype: np.dtype, *scalars: ArrayLike
) -> jax.Array:
    formulas = {"fill_value_constant": constant, "fill_value_sequence": sequence}
    with jax.named_scope(function):
        arrays = (jnp.asarray(scalar).astype(dtype) for scalar in scalars)
        return formulas[function](sizes, *arrays)
