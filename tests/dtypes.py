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
