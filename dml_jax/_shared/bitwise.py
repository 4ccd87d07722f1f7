"""Data movement that preserves every bit.

XLA on CPU widens bfloat16 and 8-bit floats to float32 around nearly every operation,
including data movement. That costs time and quiets signalling NaNs. Floats narrower
than 32 bits are therefore moved as unsigned integers of their width. float4 is moved as
it is: it has no NaNs, and XLA on CPU cannot compile a bitcast of it within a loop.
Two-bit integers are moved as int8: XLA aborts if devices exchange them.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

UNSIGNED = {4: jnp.uint4, 8: jnp.uint8, 16: jnp.uint16}  # by bits
_TWO_BITS = (jnp.int2, jnp.uint2)


def to_bits(x: jax.Array) -> jax.Array:
    """`x`, but narrow floats as the integers of their bits, 2-bit integers as int8."""
    if x.dtype in _TWO_BITS:
        return x.astype(jnp.int8)
    if not is_narrow_float(x.dtype):
        return x
    return lax.bitcast_convert_type(x, UNSIGNED[jnp.finfo(x.dtype).bits])


def from_bits(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    """The inverse of `to_bits`."""
    if dtype in _TWO_BITS:
        return bits.astype(dtype)
    return lax.bitcast_convert_type(bits, dtype) if bits.dtype != dtype else bits


def is_narrow_float(dtype: np.dtype) -> bool:
    """Whether `dtype` is a float of fewer than 32 bits, but not float4."""
    return jnp.issubdtype(dtype, jnp.floating) and 4 < jnp.finfo(dtype).bits < 32


def by_integers(movement: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Applies `movement` to the bits of `x`, as integers of at least 8 bits.

    XLA partitions a gather as an all-reduce: it adds the zeros of all other devices to
    the value of one. The sum preserves integers, but not every float.
    """
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(*(by_integers(movement, part) for part in (x.real, x.imag)))
    if x.dtype == jnp.float4_e2m1fn:
        return by_integers(movement, x.astype(jnp.float8_e4m3fn)).astype(x.dtype)
    if jnp.issubdtype(x.dtype, jnp.floating):
        bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{jnp.finfo(x.dtype).bits}"))
        return lax.bitcast_convert_type(by_integers(movement, bits), x.dtype)
    if width(x.dtype) >= 8:
        return movement(x)
    return movement(x.astype(jnp.uint8)).astype(x.dtype)


def by_key_data(movement: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Applies `movement` to `x`, or to the data of keys, which has more dimensions."""
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return movement(x)
    data = movement(jax.random.key_data(x))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))


def unknown_zeros(x: jax.Array) -> jax.Array:
    """Zeros in the unsigned dtype of `x`, which the compiler cannot prove to be zeros.

    It therefore keeps an OR with them, although the OR changes nothing.
    """
    one = x.dtype.type(1)
    return x * (x + one) & one


# Widths -------------------------------------------------------------------------------


def width(dtype: np.dtype) -> int:
    """The number of significant bits of an element: 1 for bool, 4 for int4."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return 1
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    return (jnp.iinfo if is_integer else jnp.finfo)(dtype).bits


def index_dtype(size: Any) -> np.dtype:
    """The signed integers that index a dimension."""
    is_long = not jax.export.is_symbolic_dim(size) and size >= 2**31
    return np.dtype(np.int64 if is_long else np.int32)


def is_narrowed(dtype: Any) -> bool:
    """Whether `dtype` has 64 bits, and JAX narrows it in the current mode."""
    if not isinstance(dtype, np.dtype) or dtype.itemsize < 8:
        return False
    return jax.dtypes.canonicalize_dtype(dtype) != dtype


def full_width(*arrays: Any) -> contextlib.AbstractContextManager[Any]:
    """A context that enables 64-bit mode if an array or dtype needs it.

    Outside the mode, 64-bit arrays keep their dtype, but arithmetic narrows them.
    """
    dtypes = (getattr(array, "dtype", array) for array in arrays)
    needs_mode = any(map(is_narrowed, dtypes))
    return jax.enable_x64(True) if needs_mode else contextlib.nullcontext()
