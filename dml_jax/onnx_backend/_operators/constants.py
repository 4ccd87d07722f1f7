"""Constant, Identity, Cast and CastLike."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx

from dml_jax._shared import arguments
from dml_jax.onnx_backend._cast import cast
from dml_jax.onnx_backend._evaluation import Array, Node, Operator, is_text
from dml_jax.onnx_backend._operators._arrays import dtype_of


def _constant(node: Node) -> Array:
    ((name, value),) = node.attributes.items()
    if name == "value":
        return value
    if name in ("value_string", "value_strings"):
        return np.array(value, object)
    return np.array(value, np.int64 if name.startswith("value_int") else np.float32)


def _identity(_: Node, input: Array) -> Array:
    return input


def _cast(node: Node, input: Array) -> Array:
    to = node.attributes["to"]
    if isinstance(to, str):  # version 1 has names
        to = onnx.TensorProto.DataType.Value(to)
    return _converted(node, input, dtype_of("`to`", to))


def _cast_like(node: Node, input: Array, target_type: Array) -> Array:
    return _converted(node, input, np.dtype(target_type.dtype))


def _converted(node: Node, input: Array, dtype: np.dtype) -> Array:
    given = np.dtype(input.dtype)
    if is_text(dtype) or is_text(given) or dtype == ml_dtypes.float8_e8m0fnu:
        raise NotImplementedError(
            f"Cast must not be from or to strings or float8_e8m0fnu; got {given} to "
            f"{dtype}"
        )
    if isinstance(input, np.ndarray) and {given.kind, dtype.kind} <= {"i", "u"}:
        return input.astype(dtype)
    if not arguments.is_known(dtype):
        raise TypeError(f"Cast: `to` must be a dtype that JAX knows; got {dtype}")
    x = jnp.asarray(arguments.as_array("Cast", "input", input))
    is_float8 = dtype.name.startswith("float8")
    return cast(x, dtype, is_float8 and bool(node.attributes["saturate"]))


OPERATORS = {
    "Constant": Operator(_constant, 1),
    "Identity": Operator(_identity, 1),
    "Cast": Operator(_cast, 1),
    "CastLike": Operator(_cast_like, 15),
}
