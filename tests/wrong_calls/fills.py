"""Wrong data types of fills, and values that do not fit their data type."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from wrong_calls.form import Wrong
from wrong_calls.functions import (
    DTYPES,
    KEY,
    VALUES,
    Row,
    X,
    in_32_bits,
    in_x64,
    of_rows,
    traced,
    wrong,
)

CONSTANT = [("fill_value_constant", "value")]
SEQUENCE_DTYPE = [("fill_value_sequence", "value_data_type")]
NO_DTYPES = [None, "float99", "", 3, [1, 2], KEY.dtype, "i4, nonsense"]
NO_DTYPES += [{"a": "f4"}, np.float32(1), jnp.ones(2, np.float32), KEY]
# Of other things than numbers
NO_DTYPES += [object, "M8[s]", str, "V4", "i4,f4", ">f4", np.longdouble]
WIDE_DTYPES = ["int64", "complex128", np.float64, np.dtype(float)]

NO_NUMBERS = [
    *[None, "1", [1], {}, np.str_("1"), X[0, :1], jnp.ones(1, np.float32), KEY],
]
OF_ANOTHER_KIND: dict[str, list[Any]] = {
    "bool": [1, 0.0],
    "int4": [in_32_bits(2.5)],
    "uint8": [np.inf],
    "int32": [1.0, np.nan, np.float32(1), 1j, False, jnp.float32(1)],
    "bfloat16": [in_32_bits(1j)],
    "float32": [1j, True, jnp.bool_(True), jnp.complex64(1j)],
    "complex64": [True],
}
OUT_OF_RANGE: dict[str, list[Any]] = {
    **{f"int{n}": [-(2 ** (n - 1)) - 1, 2**n] for n in (4, 8, 16, 32)},
    **{f"uint{n}": [-(2 ** (n - 1)) - 1, 2**n] for n in (4, 8, 16, 32)},
}
OUT_OF_RANGE["int8"] += [2**70, np.int64(2**40)]
OF_A_WIDE_DTYPE = {"int64": [2**64], "uint64": [-(2**63) - 1]}
TRACED_OF_ANOTHER_KIND = [
    *[("int32", 1.5), ("int32", True), ("int32", X[0, 1])],
    *[("float32", X), ("bfloat16", 1j)],
]

MESSAGES: list[Row] = [
    ("fill_value_constant", {"value_data_type": "torch.float32"}, TypeError,
     "`value_data_type` must be a dtype, such as 'float32' or jnp.float32; got str "
     "'torch.float32'"),
    ("fill_value_constant", {"value_data_type": "int8", "value": 256}, OverflowError,
     "`value` must be in [-128, 255], the signed or unsigned range of int8; got 256"),
    ("fill_value_sequence", {"value_delta": KEY}, TypeError,
     "`value_delta` must be a scalar and a real number; got key<fry> array of shape "
     "()"),
]  # fmt: skip


def values(error: type[Exception], given: dict[str, list[Any]]) -> Iterator[Wrong]:
    """Values that do not fit a dtype, as each of the arguments they can be."""
    for dtype, of_dtype in given.items():
        is_alone = dtype in ("bool", "float8_e8m0fnu")  # only a constant has these
        arguments = CONSTANT if is_alone else VALUES
        yield from wrong(arguments, error, of_dtype, value_data_type=dtype)


ROWS = [
    *wrong(DTYPES, TypeError, NO_DTYPES),
    *wrong(DTYPES, ValueError, WIDE_DTYPES, "`{}` has dtype …, which needs 64-bit…"),
    *wrong(SEQUENCE_DTYPE, TypeError, [bool, "float8_e8m0fnu"]),
    *traced(DTYPES, X),
    *values(
        TypeError, dict.fromkeys(["bool", "float32", "int32", "complex64"], NO_NUMBERS)
    ),
    *values(TypeError, OF_ANOTHER_KIND),
    *values(OverflowError, OUT_OF_RANGE),
    *map(in_x64, values(OverflowError, OF_A_WIDE_DTYPE)),
    *[
        row
        for dtype, value in TRACED_OF_ANOTHER_KIND
        for row in traced(VALUES, value, value_data_type=dtype)
    ],
    *of_rows(MESSAGES),
]
