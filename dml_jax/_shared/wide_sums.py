"""Linear functions whose transposes add floats of up to 16 bits up in float32.

The transposes of broadcasts and of products are sums, which JAX computes in the dtype
of the operand. A sum of 4,096 ones is 256 in bfloat16.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal

from dml_jax._shared import bitwise, jax_versions

_SPREADING = "add", "broadcast_in_dim", "div", "gather", "mul", "sub"
# XLA adds the terms of a 16-bit product up in float32, but not always on CPU.
_PRODUCTS = "conv_general_dilated", "dot_general"


def transposed_in_float32(linear: Callable[..., Any], operands: list[Any]) -> Any:
    """linear(operands), evaluated so that its transpose adds up in float32."""
    with jax_versions.optional("the sum of 16-bit gradients in float32"):
        traced, results = jax.make_jaxpr(linear, return_shape=True)(operands)
        return jax.tree.unflatten(jax.tree.structure(results), _run(traced, operands))
    return linear(operands)


def _run(traced: Any, operands: Sequence[Any]) -> list[Any]:
    jaxpr = traced.jaxpr
    values = dict(zip(jaxpr.constvars, traced.consts, strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else values[v]

    for equation in jaxpr.eqns:
        found = _computed(equation, [*map(read, equation.invars)])
        values.update(zip(equation.outvars, found, strict=True))
    return [*map(read, jaxpr.outvars)]


def _computed(equation: Any, operands: list[Any]) -> Sequence[Any]:
    primitive, params = equation.primitive, equation.params
    if primitive.name == "jit":
        return _run(params["jaxpr"], operands)
    bind, result = functools.partial(primitive.bind, **params), equation.outvars[0].aval

    def wide(*operands: Any, **changed: Any) -> jax.Array:
        of_dtype = [x.dtype == result.dtype for x in operands]
        pairs = zip(operands, of_dtype, strict=True)
        found = bind(*(x.astype(jnp.float32) if k else x for x, k in pairs), **changed)
        return found.astype(result.dtype)

    is_narrow = bitwise.is_narrow_float(result.dtype)
    if is_narrow and primitive.name in _PRODUCTS:
        wide = functools.partial(wide, preferred_element_type=jnp.dtype(jnp.float32))
        return [lax.platform_dependent(*operands, cpu=wide, default=bind)]
    spreads = any(x.shape != result.shape for x in operands)
    if is_narrow and spreads and primitive.name in _SPREADING:
        return [wide(*operands)]
    found = bind(*operands)
    return found if primitive.multiple_results else [found]
