"""Quantized numbers: y = (x - zero point) * scale.

Products are exact sums of integers of 32 bits. Rounding has the derivative of the
identity inside the range of the integers, and 0 outside, as in fake quantization.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.onnx_backend._cast import cast
from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    along,
    axis_of,
    dtype_in,
    numpy_or_jax,
    require_broadcastable,
    require_scalar,
    require_shape,
)
from dml_jax.onnx_backend._operators.indexing import taken
from dml_jax.onnx_backend._operators.linear import convolution
from dml_jax.onnx_backend._values import Array, Rounded, with_derivative


def _quantize(node: Node, x: Array, scale: Array, zero: Any = None) -> Rounded:
    _require_same_shape(scale, zero)
    given = dtype_in(node, "output_dtype", np.dtype(np.uint8))
    dtype = given if zero is None else zero.dtype
    precision = dtype_in(node, "precision", _float_dtype(scale))
    scale, zero = _spread(node, x, scale), _spread(node, x, zero)
    if jnp.issubdtype(dtype, jnp.integer):
        return quantized(quotient(x, scale, precision), zero, dtype)
    number = _wide(x, precision) / _wide(scale, precision)
    number = number if zero is None else number + _wide(zero, precision)
    result = cast(number, dtype, bool(node.attributes["saturate"]))
    return _rounded(result, number, number)


def dynamically_quantized(x: Array) -> list[Any]:
    """`x` in 256 steps, and the scale and zero point, which have no derivatives.

    That of the product of steps and scale would depend on what rounding changes.
    """
    fixed, dtype = lax.stop_gradient(x), np.dtype(x.dtype)
    low, high = jnp.min(fixed, initial=0), jnp.max(fixed, initial=0)
    scale = quotient(high - low, np.array(255), dtype)
    step = jnp.where(scale > 0, scale, 1)
    zero = quantized(quotient(-low, step, dtype), None, np.uint8).integers
    return [quantized(quotient(x, step, dtype), zero, np.uint8), scale, zero]


def quotient(x: Array, scale: Array, dtype: np.dtype) -> jax.Array:
    """The quotient of numbers of a dtype, rounded once.

    XLA replaces a division by one number by a product with its reciprocal, whose
    rounding moves ties. In 64 bits, that makes no difference.
    """
    a, b = (lax.stop_gradient(_wide(_wide(y, dtype), np.float64)) for y in (x, scale))
    return with_derivative((a / b).astype(dtype), _wide(x, dtype) / _wide(scale, dtype))


def quantized(x: jax.Array, zero: Any, dtype: Any) -> Rounded:
    """Rounds `x` to integers, ties to even, and clamps them to the range of `dtype`."""
    info = jnp.iinfo(dtype)
    number = jnp.rint(x).astype(jnp.float32)
    number = number if zero is None else number + _wide(zero, np.float32)
    clipped = jnp.clip(number, int(info.min), int(info.max))
    return _rounded(clipped.astype(jnp.int32).astype(dtype), number, x)


def _rounded(result: jax.Array, number: jax.Array, x: jax.Array) -> Rounded:
    """What `number` is rounded to, with the derivative of `x` inside the range."""
    is_integer = jnp.issubdtype(result.dtype, jnp.integer)
    info = (jnp.iinfo if is_integer else jnp.finfo)(result.dtype)
    is_inside = (number >= float(info.min)) & (number <= float(info.max))
    smooth = jnp.where(is_inside, x, lax.stop_gradient(x)).astype(np.float32)
    return Rounded(result, with_derivative(result.astype(np.float32), smooth))


def _dequantize(node: Node, x: Array, scale: Array, zero: Any = None) -> jax.Array:
    _require_same_shape(scale, zero)
    dtype = dtype_in(node, "output_dtype", _float_dtype(scale))
    difference = centered(x, _spread(node, x, zero)).astype(dtype)
    return difference * _wide(_spread(node, x, scale), dtype)


def centered(x: Array, zero: Any) -> jax.Array:
    """`x` minus its zero point, as integers of 32 bits or floats."""
    is_integer = jnp.issubdtype(x.dtype, jnp.integer)
    wide = _wide(x, np.int32 if is_integer else np.float32)
    return wide if zero is None else wide - _wide(zero, wide.dtype)


def _wide(x: Array, dtype: Any) -> jax.Array:
    """Casts to a wider dtype; constants by NumPy, which knows all dtypes of ONNX."""
    return jnp.asarray(x.astype(dtype))


def _float_dtype(scale: Array) -> np.dtype:
    """The dtype of a scale; powers of two are scales for floats of 32 bits."""
    is_power = np.dtype(scale.dtype).name == "float8_e8m0fnu"
    is_float = jnp.issubdtype(scale.dtype, jnp.floating) and not is_power
    return np.dtype(scale.dtype if is_float else np.float32)


def _require_same_shape(scale: Array, zero: Any) -> None:
    if np.shape(scale) in ((), (1,)):
        require_scalar("zero_point", zero)
    else:
        require_shape("zero_point", zero, np.shape(scale))


def _spread(node: Node, x: Array, parameter: Any) -> Any:
    """A scale or a zero point of a tensor, an axis, or blocks, for each element."""
    if parameter is None:
        return None
    if np.size(parameter) == 1 and np.ndim(parameter) < 2:
        return parameter.reshape(())
    axis = axis_of(node, x)
    size, block = np.shape(x)[axis], node.attributes["block_size"]
    if np.ndim(parameter) == 1 and not block:
        if np.shape(parameter) != (size,):
            raise ValueError(
                f"`scale` and `zero_point` must have shape ({size},), the size of axis "
                f"{axis}; got {np.shape(parameter)}"
            )
        return parameter.reshape(along(axis, np.ndim(x)))
    if block < 1 or np.shape(parameter)[axis] != -(-size // block):
        raise ValueError(
            f"`block_size` must divide axis {axis} of size {size} into as many blocks "
            f"as the scale has, {np.shape(parameter)[axis]}; got {block}"
        )
    places = np.arange(size) // block
    return taken(lambda x: numpy_or_jax(x).take(x, places, axis), parameter)


# Products -----------------------------------------------------------------------------


def _matmul_integer(
    _: Node, a: Array, b: Array, a_zero: Any = None, b_zero: Any = None
) -> jax.Array:
    if a_zero is not None and np.ndim(a_zero) == 1 and np.size(a_zero) > 1:
        a_zero = a_zero.reshape(-1, 1)  # one for each row
    return matmul_of_bytes(a, b, a_zero, b_zero)


def matmul_of_bytes(a: Array, b: Array, a_zero: Any, b_zero: Any) -> jax.Array:
    """The exact product of matrices of eight-bit integers minus their zero points.

    XLA's CPU library multiplies signed bytes three to five times as fast as floats.
    The zero points p of rows and q of columns are therefore subtracted afterwards:
    (a - p) (b - q) = a b - p sum(b) - q (sum(a) - n p).
    """
    if np.ndim(a) == 1:
        return matmul_of_bytes(a[None], b, a_zero, b_zero).squeeze(-2)
    if np.ndim(b) == 1:
        return matmul_of_bytes(a, b[:, None], a_zero, b_zero).squeeze(-1)
    require_broadcastable("a_zero_point", a_zero, (*np.shape(a)[:-1], 1))
    require_broadcastable("b_zero_point", b_zero, (*np.shape(b)[:-2], 1, b.shape[-1]))
    if jnp.issubdtype(jnp.promote_types(a.dtype, b.dtype), jnp.floating):
        return jnp.matmul(centered(a, a_zero), centered(b, b_zero))
    (a, p), (b, q) = _signed(a, a_zero), _signed(b, b_zero)
    product = jnp.matmul(a, b, preferred_element_type=jnp.int32)
    sums_a = a.sum(-1, dtype=np.int32, keepdims=True)
    sums_b = b.sum(-2, dtype=np.int32, keepdims=True)
    return product - p * sums_b - q * (sums_a - a.shape[-1] * p)


def _signed(x: Array, zero: Any) -> tuple[Array, Any]:
    """Integers with eight bits and a sign, and their zero point."""
    point = 0 if zero is None else zero.astype(np.int32)
    if x.dtype == np.uint8:
        return (x ^ np.uint8(128)).astype(np.int8), point - 128
    return x, point


def _exact_product(
    product: Callable[..., Any], a: jax.Array, b: jax.Array, largest: int, count: int
) -> jax.Array:
    """The sums of `count` products of integers with eight bits and a sign.

    Floats of 32 bits are exact for sums of up to 24 bits. XLA's convolutions of bytes
    take ten times as long on CPUs (jaxlib 0.10.0 and 0.12.0). `largest` is that of the
    sums of the magnitudes of `b`.
    """

    def by_floats(b: jax.Array) -> jax.Array:
        return product(a.astype(jnp.float32), b.astype(jnp.float32)).astype(jnp.int32)

    if jnp.issubdtype(jnp.promote_types(a.dtype, b.dtype), jnp.floating):
        return product(a.astype(jnp.float32), b.astype(jnp.float32))
    if largest * 255 < 2**24:
        return by_floats(b)
    if count * 255 * 16 < 2**24:
        return by_floats(b >> 4) * 16 + by_floats(b & 15)
    return product(a, b)


def _largest_sum(x: Array, zero: Any, axes: tuple[int, ...]) -> int:
    """The largest sum of the magnitudes of `centered`, or what it is at most."""
    if isinstance(x, np.ndarray) and (zero is None or isinstance(zero, np.ndarray)):
        centre = 0 if zero is None else zero.astype(np.int64)
        sums = np.abs(x.astype(np.int64) - centre).sum(axes)
        return int(np.max(sums, initial=0))
    return 255 * math.prod(np.shape(x)[axis] for axis in axes)


def _conv_integer(
    node: Node, x: Array, weight: Array, x_zero: Any = None, w_zero: Any = None
) -> jax.Array:
    require_scalar("x_zero_point", x_zero)
    _require_of_channels("w_zero_point", w_zero, weight)
    if w_zero is not None:
        w_zero = w_zero.reshape(-1, *[1] * (np.ndim(weight) - 1))
    product = functools.partial(convolution, node)
    largest = _largest_sum(weight, w_zero, tuple(range(1, np.ndim(weight))))
    sums = largest, math.prod(np.shape(weight)[1:])
    return _exact_product(product, centered(x, x_zero), centered(weight, w_zero), *sums)


def _require_of_channels(name: str, value: Any, weight: Array) -> None:
    """Refuses a parameter that is neither a scalar nor one for each output channel."""
    if np.shape(value) != np.shape(weight)[:1]:
        require_scalar(name, value)


def _qlinear_matmul(node: Node, *inputs: Array) -> Rounded:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    if np.ndim(a_scale) == 1 and np.size(a_scale) > 1:
        a_scale = a_scale.reshape(-1, 1)
    product = _matmul_integer(node, a, b, a_zero, b_zero)
    require_broadcastable("a_scale", a_scale, np.shape(a))
    require_broadcastable("b_scale", b_scale, np.shape(b))
    require_scalar("y_scale", y_scale)
    require_scalar("y_zero_point", y_zero)
    return _requantized(product, a_scale, b_scale, y_scale, y_zero)


def _qlinear_conv(node: Node, *inputs: Any) -> Rounded:
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero, *more = inputs
    bias = more[0] if more else None
    require_scalar("x_scale", x_scale)
    require_scalar("y_scale", y_scale)
    require_scalar("y_zero_point", y_zero)
    _require_of_channels("w_scale", w_scale, weight)
    require_shape("B", bias, np.shape(weight)[:1])
    result = _conv_integer(node, x, weight, x_zero, w_zero)
    channels = (-1, *[1] * (np.ndim(x) - 2))
    result = result if bias is None else result + jnp.reshape(bias, channels)
    w_scale = jnp.reshape(w_scale, channels)
    return _requantized(result, jnp.reshape(x_scale, ()), w_scale, y_scale, y_zero)


def _requantized(
    total: jax.Array, a_scale: Array, b_scale: Array, y_scale: Array, y_zero: Array
) -> Rounded:
    scale = _wide(a_scale, np.float32) * _wide(b_scale, np.float32)
    factor = scale / _wide(y_scale, np.float32)
    return quantized(total.astype(jnp.float32) * factor, y_zero, y_zero.dtype)


OPERATORS = {
    "DynamicQuantizeLinear": Operator(lambda _, x: dynamically_quantized(x), 11),
    "QuantizeLinear": Operator(_quantize, 10),
    "DequantizeLinear": Operator(_dequantize, 10, of_floats=True),
    "MatMulInteger": Operator(_matmul_integer, 10, of_floats=True),
    "ConvInteger": Operator(_conv_integer, 10, of_floats=True),
    "QLinearMatMul": Operator(_qlinear_matmul, 10, of_floats=True),
    "QLinearConv": Operator(_qlinear_conv, 10, of_floats=True),
}
