"""Operators of the domain com.microsoft, most of which ONNX Runtime's optimizer writes.

Their meaning is that of ONNX Runtime. Those that round their inputs have the
derivatives of the operators that do not.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators import (
    elementwise,
    linear,
    microsoft_attention,
    pooling,
    quantization,
    recurrent,
    shapes,
)
from dml_jax.onnx_backend._operators._arrays import (
    at_least_float32,
    clamped,
    product,
    require_broadcastable,
    require_shape,
)
from dml_jax.onnx_backend._operators.indexing import taken
from dml_jax.onnx_backend._operators.normalization import standardized
from dml_jax.onnx_backend._operators.quantization import (
    centered,
    dynamically_quantized,
    matmul_of_bytes,
    quantized,
    quotient,
)
from dml_jax.onnx_backend._values import Array, Rounded, with_derivative

# Operators of ONNX that others may end with.
_ACTIVATIONS = (
    *("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid", "Elu", "Selu"),
    *("Softplus", "Softsign"),
)


def _fused_convolution(
    node: Node, x: Array, weight: Array, bias: Any = None, added: Any = None
) -> jax.Array:
    result = linear.OPERATORS["Conv"].evaluate(node, x, weight, bias)
    require_shape("Z", added, result.shape)
    result = result if added is None else result + added
    is_clip = node.attributes.get("activation") == "Clip"
    names = ("min", "max") if is_clip else ("alpha", "beta")
    values = node.attributes.get("activation_params", ())
    return _activated(node, result, dict(zip(names, values, strict=False)))


def _fused_gemm(node: Node, *inputs: Any) -> jax.Array:
    result = linear.OPERATORS["Gemm"].evaluate(node, *inputs)
    names = "alpha", "beta", "gamma"
    given = {name: node.attributes.get(f"activation_{name}") for name in names}
    return _activated(node, result, given)


def _activated(node: Node, x: jax.Array, attributes: Mapping[str, Any]) -> jax.Array:
    name = node.attributes.get("activation", "")
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {_ACTIVATIONS}; got {name!r}")
    operator = elementwise.OPERATORS[name]
    return operator.evaluate(node._replace(attributes=attributes), x)


def _fused_matmul(node: Node, a: Array, b: Array) -> jax.Array:
    product = jnp.matmul(_transposed(node, "A", a), _transposed(node, "B", b))
    return product * jnp.asarray(node.attributes.get("alpha", 1.0), a.dtype)


def _transposed(node: Node, name: str, x: Array) -> jax.Array:
    """A matrix of each batch, whose axes may be before the last one."""
    is_batch_inner = node.attributes.get(f"transBatch{name}", 0)
    is_swapped = node.attributes.get(f"trans{name}", 0)
    x = jnp.moveaxis(x, 0, -2) if is_batch_inner and x.ndim > 2 else jnp.asarray(x)
    return jnp.swapaxes(x, -1, -2) if is_swapped and x.ndim > 1 else x


def _skip_normalization(
    node: Node, x: Array, skip: Array, gamma: Array, beta: Any = None, bias: Any = None
) -> list[Any]:
    """Adds two inputs, and normalizes the sum along the last axis."""
    is_centered = node.kind != "SkipSimplifiedLayerNormalization"
    beta, bias = (beta, bias) if is_centered else (None, beta)
    shape = np.shape(x)
    # One row may be added to all of a batch.
    rows = (shape, (1, *shape[1:]), shape[1:]) if len(shape) == 3 else (shape,)
    if np.shape(skip) not in rows:
        require_shape("skip", skip, shape)
    for name, part in {"gamma": gamma, "beta": beta, "bias": bias}.items():
        require_shape(name, part, shape[-1:])
    total = jnp.asarray(x) + skip
    total = total if bias is None else total + bias
    epsilon = node.attributes.get("epsilon", 1e-12)
    wide = at_least_float32(total)
    result, mean, inverse = standardized(wide, -1, epsilon, is_centered)
    result = result * gamma if beta is None else result * gamma + beta
    return [result.astype(x.dtype), mean, inverse, total]


def _embedding(node: Node, *inputs: Any) -> list[Any]:
    """The normalized sum of rows of tables, and the number of ones in each mask."""
    words, segments, word_rows, place_rows, segment_rows, gamma, beta, *more = inputs
    mask, places = (*more, None, None)[:2]
    x = _rows("input_ids", words, word_rows)
    if segments is not None:
        x = x + _rows("segment_ids", segments, segment_rows)
    places = np.arange(x.shape[1])[None] if places is None else places
    skip = _rows("position_ids", places, place_rows)
    result, _, _, total = _skip_normalization(node, x, skip, gamma, beta)
    mask = np.zeros(np.shape(words)) if mask is None else mask
    return [result, jnp.sum(mask == 1, 1, np.int32), total]


def _rows(name: str, numbers: Array, table: Array) -> jax.Array:
    places = clamped(name, numbers, np.shape(table)[0] - 1)
    return taken(lambda x: jnp.take(x, places, axis=0, mode="clip"), table)


def _gelu(node: Node, x: Array, bias: Any = None) -> jax.Array:
    """Gelu, BiasGelu and FastGelu, which has an approximation."""
    require_shape("bias", bias, np.shape(x)[-1:])
    x = jnp.asarray(x) if bias is None else jnp.asarray(x) + bias
    return jax.nn.gelu(x, approximate=node.kind == "FastGelu")


def _quick_gelu(node: Node, x: Array) -> Array:
    return x * jax.nn.sigmoid(jnp.asarray(x) * node.attributes.get("alpha", 1.702))


# Quantized ----------------------------------------------------------------------------


def _matmul_of_bits(node: Node, *inputs: Any) -> jax.Array:
    """MatMulNBits: a matrix product with columns of numbers of few bits, in blocks."""
    a, packed, scales, *more = inputs
    zeros, group, bias = (*more, *[None] * (3 - len(more)))
    size, columns, block = (node.attributes[n] for n in ("K", "N", "block_size"))
    bits, count = node.attributes.get("bits", 4), -(-size // block)
    weight = _unpacked(packed.reshape(columns, -1), bits)[:, :size].astype(a.dtype)
    scales = jnp.reshape(scales, (columns, count)).astype(a.dtype)
    if zeros is None:
        zeros = jnp.full((columns, count), 2 ** (bits - 1))
    elif zeros.dtype == np.uint8:
        zeros = _unpacked(zeros.reshape(columns, -1), bits)[:, :count]
    zeros = jnp.reshape(zeros, (columns, count)).astype(a.dtype)
    if group is None:
        zeros, scales = (jnp.repeat(x, block, 1)[:, :size] for x in (zeros, scales))
    else:  # the block of each row of the matrix
        zeros, scales = zeros[:, group[:size]], scales[:, group[:size]]
    product = jnp.matmul(a, ((weight - zeros) * scales).T)
    return product if bias is None else product + bias


def _unpacked(x: Array, bits: int) -> jax.Array:
    """The numbers in the bytes of rows, the one in the lowest bits first."""
    if bits not in (2, 4, 8):
        raise ValueError(f"`bits` must be 2, 4 or 8; got {bits}")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (jnp.asarray(x)[..., None] >> shifts) & np.uint8(2**bits - 1)
    return parts.reshape(x.shape[0], -1)


def _as_bytes(x: Array) -> Array:
    """Rounds to 256 steps of the range of `x`, with the derivative of the identity."""
    steps, scale, zero = dynamically_quantized(x)
    return with_derivative(centered(steps.integers, zero).astype(x.dtype) * scale, x)


def _matmul_dynamic(
    _: Node, a: Array, b: Array, scale: Array, zero: Any = None, bias: Any = None
) -> jax.Array:
    """DynamicQuantizeMatMul, whose first input is quantized by its range."""
    _require_of_columns(b, bias, b_scale=scale, b_zero_point=zero)
    weight = centered(b, zero) * jnp.asarray(scale)
    product = jnp.matmul(_as_bytes(a), weight, precision=jax.lax.Precision.HIGHEST)
    return product if bias is None else product + bias


def _matmul_to_float(_: Node, *inputs: Any) -> jax.Array:
    a, b, a_scale, b_scale, *more = inputs
    a_zero, b_zero, bias = (*more, *[None] * (3 - len(more)))
    _require_of_columns(b, bias, b_scale=b_scale, b_zero_point=b_zero)
    product = matmul_of_bytes(a, b, a_zero, b_zero)
    result = product.astype(a_scale.dtype) * (jnp.asarray(a_scale) * b_scale)
    return result if bias is None else result + bias


def _require_of_columns(b: Array, bias: Any, **parameters: Any) -> None:
    """Refuses parameters that are not those of a matrix or of its columns."""
    require_shape("bias", bias, np.shape(b)[-1:])
    for name, value in parameters.items():
        require_broadcastable(name, value, np.shape(b))


def _on_integers(kind: str) -> Operator:
    """An operator on inputs that are dequantized, whose result is quantized.

    Each input has its scale and zero point behind it. Those of the result are last, but
    first in QLinearConcat.
    """
    operators = elementwise.OPERATORS | pooling.OPERATORS | shapes.OPERATORS
    function = operators[kind].evaluate

    def evaluate(node: Node, *inputs: Any) -> Rounded:
        if kind == "Concat":
            inputs = (*inputs[2:], *inputs[:2])
        *parts, scale, zero = inputs
        triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        floats = [centered(x, z) * jnp.reshape(s, ()) for x, s, z in triples]
        are_last = node.attributes.get("channels_last")  # of pools, with one input
        floats = [jnp.moveaxis(x, -1, 1) if are_last else x for x in floats]
        result = function(node, *floats)
        result = jnp.moveaxis(result, 1, -1) if are_last else result
        steps = quotient(result, scale, np.dtype(np.float32))
        return quantized(steps, zero, zero.dtype)

    return Operator(evaluate, 1, of_floats=True)


def _quantized_gemm(node: Node, *inputs: Any) -> Any:
    """A product of bytes, which is quantized if it has a scale."""
    a, a_scale, a_zero, b, b_scale, b_zero, *more = inputs
    bias, scale, zero = (*more, *[None] * (3 - len(more)))
    a, b = _transposed(node, "A", a), _transposed(node, "B", b)
    total = matmul_of_bytes(a, b, a_zero, b_zero)
    total = total if bias is None else total + bias
    result = total.astype(np.float32) * (node.attributes["alpha"] * a_scale * b_scale)
    if scale is None or zero is None:
        return result
    return quantized(quotient(result, scale, result.dtype), zero, zero.dtype)


def _quantized_lstm(node: Node, x: Array, w: Array, r: Array, *more: Any) -> list[Any]:
    *others, w_scale, w_zero, r_scale, r_zero = (*more, *[None] * (9 - len(more)))
    weights = _dequantized(w, w_scale, w_zero), _dequantized(r, r_scale, r_zero)
    lengths = others[1]
    if lengths is not None:
        # Padding belongs to the range that is quantized, if it has one.
        is_read = jnp.arange(np.shape(x)[0], dtype=jnp.int32)[:, None] < lengths
        x = jnp.where(is_read[..., None] | jnp.isfinite(x), x, 0)
    return recurrent.recurrence(_QUANTIZED, node, _as_bytes(x), *weights, *others)


def _quantized_step(cell: Any, weights: Any, state: Any, x: Any) -> Any:
    h, c = state
    return recurrent.KINDS["LSTM"].step(cell, weights, (_as_bytes(h), c), x)


_QUANTIZED = recurrent.KINDS["LSTM"]._replace(step=_quantized_step)


def _dequantized(x: Array, scale: Any, zero: Any) -> jax.Array:
    """Weights, with a scale and a zero point for each direction or column."""
    shape = (np.shape(x)[0], 1, -1)
    zero = None if zero is None else jnp.reshape(zero, shape)
    return jnp.swapaxes(centered(x, zero) * jnp.reshape(scale, shape), 1, 2)


# Operators of ONNX whose names have QLinear in front where numbers are quantized.
_ON_INTEGERS = "Add Mul Sigmoid LeakyRelu Concat AveragePool GlobalAveragePool"
# The operators of ONNX whose attributes those of these names have.
ATTRIBUTES_OF = {
    "FusedConv": "Conv",
    "FusedGemm": "Gemm",
    "QGemm": "Gemm",
    "DynamicQuantizeLSTM": "LSTM",
    **{f"QLinear{kind}": kind for kind in _ON_INTEGERS.split()},
}
OPERATORS = {
    **microsoft_attention.OPERATORS,
    **{f"QLinear{kind}": _on_integers(kind) for kind in _ON_INTEGERS.split()},
    "EmbedLayerNormalization": Operator(_embedding, 1),
    "FusedGemm": Operator(_fused_gemm, 1),
    "QGemm": Operator(_quantized_gemm, 1, of_floats=True),
    "FusedConv": Operator(_fused_convolution, 1),
    "FusedMatMul": Operator(product(_fused_matmul), 1),
    "SkipLayerNormalization": Operator(_skip_normalization, 1),
    "SkipSimplifiedLayerNormalization": Operator(_skip_normalization, 1),
    **dict.fromkeys(("Gelu", "BiasGelu", "FastGelu"), Operator(_gelu, 1)),
    "QuickGelu": Operator(_quick_gelu, 1),
    "MatMulNBits": Operator(product(_matmul_of_bits), 1),
    "DynamicQuantizeMatMul": Operator(_matmul_dynamic, 1),
    "DynamicQuantizeLSTM": Operator(_quantized_lstm, 1, states=slice(5, 7)),
    "MatMulIntegerToFloat": Operator(_matmul_to_float, 1, of_floats=True),
    "QuantizeLinear": quantization.OPERATORS["QuantizeLinear"]._replace(since=1),
    "DequantizeLinear": quantization.OPERATORS["DequantizeLinear"]._replace(since=1),
}
