"""Operators on single elements, with NumPy's broadcasting."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    in_float32,
    named,
    numpy_or_jax,
    option,
    require_scalar,
)
from dml_jax.onnx_backend._values import Array


def _divide(_: Node, a: Array, b: Array) -> Array:
    namespace = numpy_or_jax(a, b)
    if jnp.issubdtype(a.dtype, jnp.inexact):
        return namespace.divide(a, b)
    # Quotients of integers are truncated toward zero.
    floor = namespace.floor_divide(a, b)
    is_inexact = namespace.remainder(a, b) != 0
    return floor + (is_inexact & ((a < 0) != (b < 0)))


def _modulo(node: Node, a: Array, b: Array) -> Array:
    name = "fmod" if node.attributes["fmod"] else "remainder"
    return getattr(numpy_or_jax(a, b), name)(a, b)


def _power(_: Node, base: Array, exponent: Array) -> Array:
    namespace, dtype = numpy_or_jax(base, exponent), base.dtype
    if jnp.issubdtype(exponent.dtype, jnp.floating):
        is_integer = jnp.issubdtype(base.dtype, jnp.integer)
        wide = jnp.promote_types(base.dtype, exponent.dtype)
        base = base.astype(jnp.float64 if is_integer else wide)
        # Not 0 to the power of 0, whose slope would be NaN.
        base = namespace.where((base == 0) & (exponent == 0), 1, base)
    elif jnp.issubdtype(base.dtype, jnp.integer):
        return _integer_power(base, exponent.astype(np.int64)).astype(dtype)
    return namespace.power(base, exponent).astype(dtype)


def _integer_power(base: Array, exponent: Array) -> Array:
    """Powers of integers; reciprocals are truncated toward zero.

    NumPy refuses negative exponents, and JAX does not compute reciprocals.
    """
    namespace, is_reciprocal = numpy_or_jax(base, exponent), exponent < 0
    # Of 1 and -1, whose powers only depend on whether the exponent is even.
    counts = namespace.where(is_reciprocal, exponent & 1, exponent)
    powers = namespace.power(base, counts)
    return namespace.where(is_reciprocal & (abs(base) != 1), 0, powers)


def _clip(node: Node, x: Array, low: Any = None, high: Any = None) -> Array:
    if node.version < 11:
        bounds = node.attributes["min"], node.attributes["max"]
        low, high = (np.asarray(bound, x.dtype) for bound in bounds)
    require_scalar("min", low)
    require_scalar("max", high)
    # Where the bounds are in the wrong order, the result is the upper one.
    if low is not None:
        x = numpy_or_jax(x, low).maximum(x, low)
    return x if high is None else numpy_or_jax(x, high).minimum(x, high)


def _reduced(name: str) -> Callable[..., Array]:
    """An operator of any number of inputs, by one of two."""

    def evaluate(_: Node, *inputs: Array) -> Array:
        return functools.reduce(getattr(numpy_or_jax(*inputs), name), inputs)

    return evaluate


def _mean(_: Node, *inputs: Array) -> Array:
    return functools.reduce(numpy_or_jax(*inputs).add, inputs) / len(inputs)


def _is_infinite(node: Node, x: Array) -> Array:
    names = "detect_negative", "detect_positive"
    negative, positive = (bool(node.attributes[name]) for name in names)
    return numpy_or_jax(x).isinf(x) & ((x < 0) & negative | (x > 0) & positive)


def _shift(node: Node, x: Array, count: Array) -> Array:
    is_left = option(node, "direction", ("LEFT", "RIGHT")) == "LEFT"
    return jnp.left_shift(x, count) if is_left else jnp.right_shift(x, count)


# Activations --------------------------------------------------------------------------


def activation(function: Callable[..., Any], *names: str) -> Callable[..., Array]:
    """An operator from a function of an array and of attributes with some names."""

    def evaluate(node: Node, x: Array) -> Array:
        values = (node.attributes[name] for name in names)
        return function(jnp.asarray(x), *values).astype(x.dtype)

    return evaluate


def hard_sigmoid(x: jax.Array, alpha: float, beta: float) -> jax.Array:
    return jnp.clip(alpha * x + beta, 0, 1)


def leaky_relu(x: jax.Array, alpha: float) -> jax.Array:
    return jnp.where(x < 0, alpha * x, x)


def _selu(x: jax.Array, alpha: float, gamma: float) -> jax.Array:
    return gamma * jax.nn.elu(x, alpha)


def _gelu(node: Node, x: Array) -> Array:
    approximation = option(node, "approximate", ("none", "tanh"))
    return jax.nn.gelu(x, approximate=approximation == "tanh")


def _table(since: int, **functions: Any) -> dict[str, Operator]:
    """Operators that are supported from the same opset on."""
    return {
        name: Operator(
            named(f) if isinstance(f, str) else f, since, is_elementwise=True
        )
        for name, f in functions.items()
    }


OPERATORS = {
    **_table(1, Not="logical_not"),
    **_table(1, Softsign=activation(jax.nn.soft_sign)),
    **_table(1, Softplus=activation(jax.nn.softplus)),
    **_table(6, Neg="negative", Abs="abs", Sqrt="sqrt", Exp="exp", Log="log"),
    **_table(6, Floor="floor", Ceil="ceil", Reciprocal="reciprocal", Clip=_clip),
    **_table(6, Tanh="tanh", Sigmoid=activation(jax.nn.sigmoid)),
    **_table(6, Relu=activation(jax.nn.relu)),
    **_table(6, LeakyRelu=activation(leaky_relu, "alpha")),
    **_table(6, Elu=activation(jax.nn.elu, "alpha")),
    **_table(6, Selu=activation(_selu, "alpha", "gamma")),
    **_table(6, HardSigmoid=activation(hard_sigmoid, "alpha", "beta")),
    **_table(7, Add="add", Sub="subtract", Mul="multiply", Div=_divide, Pow=_power),
    **_table(7, Sin="sin", Cos="cos", Tan="tan"),
    **_table(7, Asin="arcsin", Acos="arccos", Atan="arctan"),
    **_table(7, And="logical_and", Or="logical_or", Xor="logical_xor"),
    **_table(7, Equal="equal", Less="less", Greater="greater"),
    **_table(7, PRelu=lambda _, x, slope: leaky_relu(x, slope)),
    **_table(8, Max=_reduced("maximum"), Min=_reduced("minimum")),
    **_table(8, Sum=in_float32(_reduced("add")), Mean=in_float32(_mean)),
    **_table(9, Sign="sign", Erf=activation(jax.scipy.special.erf)),
    **_table(9, Sinh="sinh", Cosh="cosh"),
    **_table(9, Asinh="arcsinh", Acosh="arccosh", Atanh="arctanh"),
    **_table(9, Where="where", IsNaN="isnan"),
    **_table(10, Mod=_modulo, IsInf=_is_infinite),
    **_table(11, Round="rint", BitShift=_shift),
    **_table(12, LessOrEqual="less_equal", GreaterOrEqual="greater_equal"),
    **_table(12, Celu=activation(jax.nn.celu, "alpha")),
    **_table(18, BitwiseAnd="bitwise_and", BitwiseOr="bitwise_or"),
    **_table(18, BitwiseXor="bitwise_xor", BitwiseNot="bitwise_not"),
    **_table(20, Gelu=_gelu),
}
