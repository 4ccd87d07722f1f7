"""Wrong data types of fills, and values that do not fit their data type."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wrong_calls.calls import (
    ARRAYS,
    DTYPES,
    FILLS,
    KEY,
    Wrong,
    X,
    in_32_bits,
    traced,
    wrong,
)

CONSTANT = [("fill_value_constant", "value")]
SEQUENCE_DTYPE = [("fill_value_sequence", "value_data_type")]
NO_DTYPES = {
    "none": None,
    "unknown": "float99",
    "empty": "",
    "int": 3,
    "float": 1.5,
    "bool": True,
    "list": [1, 2],
    "abstract": np.floating,
    "abstract-integer": np.integer,
    "key": KEY.dtype,
    "key-name": "key<fry>",
    "malformed": "i4, nonsense",
    "malformed-dict": {"a": "f4"},
    "list-of-pairs": [("a", "f4")],
    "scalar": np.float32(1),
    "jax-array": jnp.ones(2, np.float32),
    "key-array": KEY,
    # Of other things than numbers
    "object": object,
    "date": "M8[s]",
    "duration": "m8[s]",
    "text": str,
    "bytes": "S3",
    "void": "V4",
    "structured": "i4,f4",
    "big-endian": ">f4",
    "long-double": np.longdouble,
}
WIDE_DTYPES = {name: name for name in ("int64", "uint64", "float64", "complex128")}

NO_NUMBERS = {
    "none": None,
    "string": "1",
    "bytes": b"1",
    "list": [1],
    "dict": {},
    "set": {1},
    "slice": slice(1),
    "duration": np.timedelta64(3, "s"),
    "duration-ns": np.timedelta64(3, "ns"),
    "date-ns": np.datetime64(3, "ns"),
    "numpy-string": np.str_("1"),
    "1-d": X[0, :1],
    "2-d": X,
    "jax-1-d": jnp.ones(1, np.float32),
    "key": KEY,
}
OF_ANOTHER_KIND: dict[str, list[Any]] = {
    "bool": [1, 0.0],
    "int4": [in_32_bits(2.5)],
    "uint8": [np.inf],
    "int32": [1.0, np.nan, np.float32(1), 1j, False, jnp.float32(1)],
    "float16": [jnp.float32(1)],
    "bfloat16": [1j, in_32_bits(1j)],
    "float32": [1j, True, np.True_, jnp.int32(1), jnp.bool_(True), jnp.complex64(1j)],
    "complex64": [True],
}
OUT_OF_RANGE: dict[str, list[Any]] = {
    **{
        f"{u}int{n}": [-(2 ** (n - 1)) - 1, 2**n] for u in ("", "u") for n in (4, 8, 16)
    },
    "int32": [-(2**31) - 1, 2**32, 2**70],
    "uint32": [-(2**31) - 1, 2**32],
    "float32": [1e39, -1e39, 10**39, 10**400],
    "float16": [70000.0, 65520, in_32_bits(7e4)],
    "bfloat16": [3.4e38],
    "float8_e4m3fn": [465],
    "float8_e5m2": [61440],
    "float4_e2m1fn": [8, np.nan],
    "complex64": [1e39, 1e39j, -(10**400)],
}
OUT_OF_RANGE["int8"] += [np.int64(2**40), in_32_bits(300)]
OF_A_WIDE_DTYPE = {"int64": 2**64, "uint64": -(2**63) - 1, "float64": 10**400}


def values(dtype: str, error: type[Exception], given: list[Any]) -> Iterator[Wrong]:
    """Values that do not fit a dtype, as each of the arguments they can be."""
    are_alone = dtype in ("bool", "float8_e8m0fnu")  # only a constant has these
    pairs = CONSTANT if are_alone else FILLS
    rows = {f"{i}-{type(value).__name__}": value for i, value in enumerate(given)}
    return wrong(pairs, error, rows, value_data_type=dtype)


def in_x64(row: Wrong) -> Wrong:
    def run() -> None:
        with jax.enable_x64(True):
            row.call()

    return row._replace(id=f"x64-{row.id}", call=run)


FILL_ERRORS = [
    *wrong(DTYPES, TypeError, NO_DTYPES),
    *wrong(DTYPES, ValueError, WIDE_DTYPES),
    *wrong(SEQUENCE_DTYPE, TypeError, {"bool": bool, "e8m0": "float8_e8m0fnu"}),
    *traced(DTYPES, X),
    *[
        row
        for dtype in ("float32", "int32", "complex64")
        for row in wrong(FILLS, TypeError, NO_NUMBERS, value_data_type=dtype)
    ],
    *wrong(CONSTANT, TypeError, NO_NUMBERS, value_data_type="bool"),
    *[row for d, v in OF_ANOTHER_KIND.items() for row in values(d, TypeError, v)],
    *[row for d, v in OUT_OF_RANGE.items() for row in values(d, OverflowError, v)],
    *values("float8_e8m0fnu", OverflowError, [0, -1]),
    *[
        row
        for dtype, value in [
            ("int32", 1.5),
            ("int32", True),
            ("int32", X[0, 1]),
            ("int4", 2.5),
            ("float32", np.int32(1)),
            ("float32", X),
            ("float16", True),
            ("bfloat16", 1j),
        ]
        for row in traced(FILLS, value, value_data_type=dtype)
    ],
]
X64_ERRORS = [
    in_x64(row)
    for row in [
        *[r for d, v in OF_A_WIDE_DTYPE.items() for r in values(d, OverflowError, [v])],
        *wrong([("reverse_sequence", "lda_coeff")], OverflowError, {"long": 10**400}),
        *wrong(ARRAYS, OverflowError, {"huge": [[2**70]]}),
        *wrong(ARRAYS, TypeError, {"none": None}),
    ]
]
