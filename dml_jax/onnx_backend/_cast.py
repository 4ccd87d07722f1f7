"""Numbers of one dtype as the nearest ones of another, as ONNX's Cast has them.

XLA on CPU takes subnormal numbers for zeros where it converts float32 to float64 or
back, and rounds twice between other dtypes. Here a float is rounded once, in integers:
its bits are those of the result where the fraction is shifted and the exponent rebased.
The sum of a small number and a power of two is a number whose last bits count the
result's subnormals; the addition rounds.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax._shared import bitwise

_WORDS = {np.dtype(np.float32): jnp.uint32, np.dtype(np.float64): jnp.uint64}


@functools.partial(jax.jit, static_argnums=(1, 2))
def cast(x: jax.Array, dtype: np.dtype, saturate: bool) -> jax.Array:
    """`x` in another dtype.

    Args:
      x: numbers or booleans.
      dtype: the dtype, other than float8_e8m0fnu.
      saturate: whether what is beyond the largest of `dtype` becomes it, infinities
        too.
    """
    if x.dtype == dtype and not saturate:
        return x
    if jnp.issubdtype(x.dtype, jnp.floating):
        if jnp.issubdtype(dtype, jnp.floating):
            return _float_to_float(x, dtype, saturate)
        wide = _widen(x)  # XLA takes the largest float4_e2m1fn for an infinity
        if dtype == jnp.bool_:
            return _magnitude(wide)[0] != 0
        return _convert(wide, dtype)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return _narrow(_integer_to_odd(x), dtype, saturate)
    return _convert(x, dtype)


def _convert(x, dtype):
    """`x` in another dtype, where XLA is right."""
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        x = x.astype(jnp.int32)  # of which the low bits are taken
    return x.astype(dtype)


def _integer_to_odd(x):
    """`x` as float32, where the last bit is 1 if bits below it are lost."""
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


# A bitcast has no derivative.
@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _float_to_float(x, dtype, saturate):
    wide = _widen(x)
    if dtype == wide.dtype:
        return wide
    return _to_double(wide) if dtype == jnp.float64 else _narrow(wide, dtype, saturate)


@_float_to_float.defjvp
def _float_to_float_jvp(dtype, saturate, primals, tangents):
    (x,), (tangent,) = primals, tangents
    if saturate:
        is_within = jnp.abs(_widen(x)) <= float(jnp.finfo(dtype).max)
        tangent = jnp.where(is_within, tangent, jnp.zeros((), tangent.dtype))
    return _float_to_float(x, dtype, saturate), tangent.astype(dtype)


def _widen(x):
    """`x` as float32, if it is narrower."""
    return x if x.dtype in _WORDS else x.astype(jnp.float32)


def _magnitude(x):
    """The bits of float32 or float64 numbers without the sign, and the sign."""
    word = np.dtype(_WORDS[x.dtype])
    bits = lax.bitcast_convert_type(x, word)
    last = 8 * word.itemsize - 1
    return bits & word.type(2**last - 1), bits >> last


def _to_double(x):
    """float32 as float64."""
    magnitude, sign = _magnitude(x)
    subnormal = magnitude.astype(jnp.float64) * 2.0**-149
    subnormal = jnp.where(sign == 1, -subnormal, subnormal)
    return jnp.where(magnitude < 2**23, subnormal, x.astype(jnp.float64))


def _narrow(x, dtype, saturate):
    """float32 or float64 rounded to a dtype of fewer bits, ties to even."""
    wide, info = jnp.finfo(x.dtype), jnp.finfo(dtype)
    magnitude, sign = _magnitude(x)
    word = magnitude.dtype.type
    fraction, rebase = int(info.nmant), int(info.minexp) - int(wide.minexp)
    shift = int(wide.nmant) - fraction

    last = (magnitude >> shift) & word(1)
    code = (magnitude + word(2 ** (shift - 1) - 1) + last) >> shift
    code = code - word(rebase << fraction)
    if rebase:  # else subnormal numbers are rounded as the others are
        unit = 2.0 ** (int(info.minexp) + shift)
        count = lax.bitcast_convert_type(jnp.abs(x) + x.dtype.type(unit), word)
        is_subnormal = magnitude < word((rebase + 1) << int(wide.nmant))
        code = jnp.where(is_subnormal, count & word(2 ** (fraction + 1) - 1), code)

    most, overflow, nan, has_signed_zero = _codes(dtype)
    code = jnp.where(code > word(most), word(most if saturate else overflow), code)
    is_nan = magnitude > _magnitude(jnp.full((), np.inf, x.dtype))[0]
    code = jnp.where(is_nan, word(nan), code)
    signed = code ^ (sign << (int(info.bits) - 1))
    if not has_signed_zero:  # then NaN has the bits that -0 would have
        signed = jnp.where((code == 0) | (code == word(nan)), code, signed)
    unsigned = bitwise.UNSIGNED.get(int(info.bits), jnp.uint32)
    return lax.bitcast_convert_type(signed.astype(unsigned), dtype)


def _codes(dtype):
    """The codes of the largest number, infinity and NaN, and whether -0 is its own."""
    numbers = np.array([np.inf, np.nan, -0.0]).astype(dtype)
    codes = np.append(jnp.finfo(dtype).max.astype(dtype), numbers)
    most, overflow, nan, negative_zero = codes.view(f"u{dtype.itemsize}").tolist()
    return most, overflow, nan, bool(negative_zero)
