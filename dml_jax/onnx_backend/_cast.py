"""Casts between dtypes that give the bits ONNX's Cast specifies.

XLA on CPU flushes subnormal numbers to zero between float32 and float64, and rounds
twice between some other dtypes. Floats are therefore rounded once, on their bits: the
fraction is shifted and the exponent rebased. For subnormal results, a power of two is
added whose unit in the last place is the smallest subnormal number, so the addition
rounds them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import bitwise


@functools.partial(jax.jit, static_argnums=(1, 2))
def cast(x: jax.Array, dtype: np.dtype, saturate: bool) -> jax.Array:
    """Casts `x` to a dtype other than float8_e8m0fnu.

    With `saturate`, numbers beyond the range of `dtype`, infinities included, become
    its largest finite number, with their sign.
    """
    if x.dtype == dtype and not saturate:
        return x
    if jnp.issubdtype(x.dtype, jnp.floating):
        if jnp.issubdtype(dtype, jnp.floating):
            return _float_to_float(x, dtype, saturate)
        wide = _widen(x)  # XLA converts the largest float4_e2m1fn as an infinity
        if dtype == jnp.bool_:
            return _split_sign(wide)[0] != 0
        return _convert(wide, dtype)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return _narrow(_integer_to_float32(x), dtype, saturate)
    return _convert(x, dtype)


def _convert(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Converts by XLA; integers below 8 bits take the low bits of an int32."""
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        x = x.astype(jnp.int32)
    return x.astype(dtype)


def _integer_to_float32(x: jax.Array) -> jax.Array:
    """Rounds integers to odd in float32, so that a second rounding is correct."""
    if x.dtype == jnp.bool_ or jnp.iinfo(x.dtype).bits <= 16:
        return x.astype(jnp.float32)
    word = np.dtype(f"u{x.dtype.itemsize}")
    magnitude = jnp.where(x < 0, -x, x).astype(word)
    length = 8 * word.itemsize - lax.clz(magnitude)
    lost = jnp.where(length > 24, length - 24, 0)
    kept = magnitude >> lost
    is_inexact = (kept << lost) != magnitude
    single = ((kept | is_inexact.astype(word)) << lost).astype(jnp.float32)
    return jnp.where(x < 0, -single, single)


# A custom rule, because the derivative of a bitcast is zero.
@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _float_to_float(x: jax.Array, dtype: np.dtype, saturate: bool) -> jax.Array:
    wide = _widen(x)
    if dtype == wide.dtype:
        return wide
    return _to_double(wide) if dtype == jnp.float64 else _narrow(wide, dtype, saturate)


@_float_to_float.defjvp
def _float_to_float_jvp(
    dtype: np.dtype, saturate: bool, primals: Any, tangents: Any
) -> tuple[jax.Array, jax.Array]:
    (x,), (tangent,) = primals, tangents
    if saturate:
        is_within = jnp.abs(_widen(x)) <= float(jnp.finfo(dtype).max)
        tangent = jnp.where(is_within, tangent, jnp.zeros((), tangent.dtype))
    return _float_to_float(x, dtype, saturate), tangent.astype(dtype)


def _widen(x: jax.Array) -> jax.Array:
    """Casts floats below 32 bits to float32."""
    return x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)


def _split_sign(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The bits of float32 or float64 numbers without the sign bit, and that bit."""
    word = np.dtype(f"u{x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, word)
    last = 8 * word.itemsize - 1
    return bits & word.type(2**last - 1), bits >> last


def _to_double(x: jax.Array) -> jax.Array:
    """Casts float32 to float64."""
    magnitude, sign = _split_sign(x)
    subnormal = magnitude.astype(jnp.float64) * 2.0**-149
    subnormal = jnp.where(sign == 1, -subnormal, subnormal)
    return jnp.where(magnitude < 2**23, subnormal, x.astype(jnp.float64))


def _narrow(x: jax.Array, dtype: Any, saturate: bool) -> jax.Array:
    """Rounds float32 or float64 to a float dtype of fewer bits, ties to even."""
    wide, info = jnp.finfo(x.dtype), jnp.finfo(dtype)
    magnitude, sign = _split_sign(x)
    word = magnitude.dtype.type
    fraction, rebase = int(info.nmant), int(info.minexp) - int(wide.minexp)
    shift = int(wide.nmant) - fraction

    last = (magnitude >> shift) & word(1)
    code = (magnitude + word(2 ** (shift - 1) - 1) + last) >> shift
    code = code - word(rebase << fraction)
    if rebase:  # otherwise, subnormal numbers are rounded like others
        unit = 2.0 ** (int(info.minexp) + shift)
        count = lax.bitcast_convert_type(jnp.abs(x) + x.dtype.type(unit), word)
        is_subnormal = magnitude < word((rebase + 1) << int(wide.nmant))
        code = jnp.where(is_subnormal, count & word(2 ** (fraction + 1) - 1), code)

    # The codes of the largest number, of overflow, of NaN and of -0.
    special = np.array([np.inf, np.nan, -0.0]).astype(dtype)
    codes = np.append(info.max.astype(dtype), special).view(f"u{dtype.itemsize}")
    largest, infinity, nan, negative_zero = map(word, codes)
    code = jnp.where(code > largest, largest if saturate else infinity, code)
    is_nan = magnitude > _split_sign(jnp.full((), np.inf, x.dtype))[0]
    code = jnp.where(is_nan, nan, code)
    signed = code ^ (sign << (int(info.bits) - 1))
    if negative_zero == 0:  # the dtype has no -0, whose bits are those of NaN
        signed = jnp.where((code == 0) | (code == nan), code, signed)
    unsigned = bitwise.UNSIGNED.get(int(info.bits), jnp.uint32)
    return lax.bitcast_convert_type(signed.astype(unsigned), dtype)
