"""Constants, and operators that change the dtype or nothing."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
from jax import lax

from dml_jax._shared import arguments
from dml_jax.onnx_backend._cast import cast
from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import dtype_in, dtype_of, numpy_or_jax
from dml_jax.onnx_backend._values import Array, is_symbolic, is_text, traced


def _constant(node: Node) -> Array:
    ((name, value),) = node.attributes.items()
    if name == "value":
        return value
    if name in ("value_string", "value_strings"):
        return np.array(value, object)
    return np.array(value, np.int64 if name.startswith("value_int") else np.float32)


def _cast(node: Node, input: Array) -> Array:
    to = node.attributes["to"]
    if isinstance(to, str):  # version 1 has names
        to = onnx.TensorProto.DataType.Value(to)
    return _converted(node, input, dtype_of("`to`", to))


def _cast_like(node: Node, input: Array, target_type: Array) -> Array:
    return _converted(node, input, np.dtype(target_type.dtype))


def _converted(node: Node, input: Array, dtype: np.dtype) -> Array:
    if is_symbolic(input) and dtype == np.int64:
        return input
    input = traced(input)
    given = np.dtype(input.dtype)
    if is_text(dtype) or is_text(given) or dtype == ml_dtypes.float8_e8m0fnu:
        raise NotImplementedError(
            f"Cast must not be from or to strings or float8_e8m0fnu; got {given} to "
            f"{dtype}"
        )
    if isinstance(input, np.ndarray) and {given.kind, dtype.kind} <= {"i", "u"}:
        return input.astype(dtype)
    for each in (given, dtype):
        if not arguments.is_known(each):
            raise TypeError(f"`to` and the input must be dtypes of JAX; got {each}")
    saturate = dtype.name.startswith("float8") and bool(node.attributes["saturate"])
    return cast(jnp.asarray(input), dtype, saturate)


def _bit_cast(node: Node, x: Array) -> Array:
    dtype = dtype_in(node, "to")
    for given in (np.dtype(x.dtype), dtype):
        if not arguments.is_known(given):
            raise TypeError(f"`to` and the input must be dtypes of JAX; got {given}")
    if x.dtype == jnp.bool_:
        x = x.astype(np.uint8)
    is_bool = dtype == jnp.bool_
    result = lax.bitcast_convert_type(x, jnp.uint8 if is_bool else dtype)
    if result.shape != np.shape(x):
        raise ValueError(
            f"`to` must have as many bits as the input, {x.dtype}; got {dtype}"
        )
    return result != 0 if is_bool else result


def _eye_like(node: Node, x: Array) -> Array:
    namespace, dtype = numpy_or_jax(sizes=np.shape(x)), dtype_in(node, "dtype", x.dtype)
    return namespace.eye(*np.shape(x), node.attributes["k"]).astype(dtype)


OPERATORS = {
    "Constant": Operator(_constant, 1),
    "Identity": Operator(lambda _, x: x, 1, of_floats=True, is_copy=True),
    "Cast": Operator(_cast, 1, of_floats=True, is_copy=True),
    "CastLike": Operator(_cast_like, 15),
    "BitCast": Operator(_bit_cast, 26),
    "EyeLike": Operator(_eye_like, 9),
}
