"""The dtypes that tests go through, by their names."""

import jax.numpy as jnp
import numpy as np

INTEGERS = ["int2", "uint2", "int4", "uint4"] + [
    f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64)
]
FLOATS = [
    "float4_e2m1fn",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "bfloat16",
    "float16",
    "float32",
    "float64",
]
DTYPES = ["bool", *INTEGERS, *FLOATS, "complex64", "complex128"]
X64_ONLY = ("int64", "uint64", "float64", "complex128")
SEQUENCE_FLOATS = [name for name in FLOATS if name != "float8_e8m0fnu"]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(jnp, name, name))


def needs_x64(dtype: np.dtype) -> bool:
    return dtype.itemsize >= 8 and dtype != np.complex64


def random_elements(dtype: np.dtype, size: int, seed: int = 0) -> np.ndarray:
    """Elements of random bits, and zeros, infinities and NaNs of both signs.

    Integers below a byte keep to the bits that their storage may hold.
    """
    random = np.random.default_rng([seed, size])
    if dtype == np.bool_:
        return random.integers(0, 2, size).astype(bool)
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        info = jnp.iinfo(dtype)
        return random.integers(info.min, info.max + 1, size).astype(dtype)
    stored = random.integers(0, 256, (size, dtype.itemsize), dtype=np.uint8)
    if dtype == jnp.float4_e2m1fn:
        stored &= 15
    array = stored.view(dtype).reshape(size)
    if jnp.issubdtype(dtype, jnp.inexact):
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan]
        with np.errstate(all="ignore"):
            array[: len(special)] = np.array(special).astype(dtype)[:size]
    return array
