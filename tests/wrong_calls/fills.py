"""Data types that a fill cannot have, and values that its data type has not."""

import jax.numpy as jnp
import numpy as np

from wrong_calls.calls import (
    FILLS,
    KEY,
    LARGEST_FLOAT32,
    NEEDS_X64,
    VALID,
    X,
    bad,
    describe,
    for_each,
    in_32_bits,
    traced,
)

DTYPES = [(function, "value_data_type") for function in VALID if "fill" in function]
NO_NUMBERS = "must be a dtype of numbers; got "
NUMBERS = {
    "bool": "a boolean",
    **dict.fromkeys(["int4", "int8", "uint8", "int32"], "an integer"),
    **dict.fromkeys(["float16", "bfloat16", "float32"], "a real number"),
    "complex64": "a complex number",
}


def value_error(what, dtype, value, error, message):
    """A value that does not fit its dtype, as each of the arguments it can be."""
    return [
        bad(
            function,
            f"{name}-{what}-{dtype}",
            {"value_data_type": dtype, name: value},
            error,
            f"`{name}` {message}",
        )
        for function, name in FILLS
        if function == "fill_value_constant" or dtype not in ("bool", "float8_e8m0fnu")
    ]


def kind_error(what, dtype, value, got):
    return value_error(
        what,
        dtype,
        value,
        TypeError,
        f"must be {NUMBERS[dtype]} or a scalar array of dtype {dtype}; got {got}",
    )


def range_error(dtype, value, low, high):
    return value_error(
        value,
        dtype,
        value,
        OverflowError,
        f"must be in [{low}, {high}], the signed or unsigned range of {dtype}; got "
        f"{value}",
    )


def overflow(dtype, value, largest, text=None):
    return value_error(
        (text or str(value)).rstrip("…"),
        dtype,
        value,
        OverflowError,
        f"must fit {dtype}, whose largest value is {largest}; got {text or value}",
    )


def absent(dtype, value):
    return value_error(
        value,
        dtype,
        value,
        OverflowError,
        f"must be a value that {dtype} has; got {value}",
    )


FILL_ERRORS = [
    *for_each(
        DTYPES,
        [
            *[
                (what, value, TypeError, f"must be a dtype; got {value!r}")
                for what, value in [
                    ("none", None),
                    ("unknown", "float99"),
                    ("empty", ""),
                    ("int", 3),
                    ("float", 1.5),
                    ("bool", True),
                    ("list", [1, 2]),
                    ("abstract", np.floating),
                    ("abstract-integer", np.integer),
                    ("key", KEY.dtype),
                    ("key-name", "key<fry>"),
                    ("malformed", "i4, nonsense"),
                    ("malformed-dict", {"a": "f4"}),
                ]
            ],
            *[
                (what, value, TypeError, "must be a dtype; got " + got)
                for what, value, got in [
                    ("scalar", np.float32(1), "np.float32(1.0)"),
                    (
                        "jax-array",
                        jnp.ones(2, np.float32),
                        "float32 array of shape (2,)",
                    ),
                    ("key-array", KEY, "key<fry> array of shape ()"),
                ]
            ],
            *[
                (what, value, TypeError, NO_NUMBERS + got)
                for what, value, got in [
                    ("object", object, "object"),
                    ("date", "M8[s]", "datetime64[s]"),
                    ("duration", "m8[s]", "timedelta64[s]"),
                    ("string", str, "<U0"),
                    ("bytes", "S3", "|S3"),
                    ("void", "V4", "|V4"),
                    ("structured", "i4,f4", "[('f0', '<i4'), ('f1', '<f4')]"),
                    ("big-endian", ">f4", ">f4"),
                    (
                        "long-double",
                        np.longdouble,
                        str(np.dtype(np.longdouble)),
                    ),
                ]
            ],
            *[
                (f"wide-{name}", name, ValueError, NEEDS_X64.format(name))
                for name in ("int64", "uint64", "float64", "complex128")
            ],
            ("python-int", int, ValueError, NEEDS_X64.format("int64")),
            ("python-float", float, ValueError, NEEDS_X64.format("float64")),
        ],
    ),
    *for_each(
        [("fill_value_sequence", "value_data_type")],
        [
            ("of-bools", bool, TypeError, NO_NUMBERS + "bool"),
            ("e8m0", "float8_e8m0fnu", TypeError, NO_NUMBERS + "float8_e8m0fnu"),
        ],
    ),
    *[
        traced(
            function,
            name,
            X,
            f"`{name}` must be a dtype; got traced float32 array of shape (3, 4)",
        )
        for function, name in DTYPES
    ],
    *[
        row
        for what, value in [
            ("none", None),
            ("string", "1"),
            ("bytes", b"1"),
            ("list", [1]),
            ("dict", {}),
            ("set", {1}),
            ("slice", slice(1)),
            ("duration", np.timedelta64(3, "s")),
            ("duration-ns", np.timedelta64(3, "ns")),
            ("date-ns", np.datetime64(3, "ns")),
            ("numpy-string", np.str_("1")),
        ]
        for dtype in ("float32", "int32", "complex64", "bool")
        for row in kind_error(what, dtype, value, describe(value))
    ],
    *kind_error("float", "int32", 1.0, "float 1.0"),
    *kind_error("nan", "int32", np.nan, "float nan"),
    *kind_error("inf", "uint8", np.inf, "float inf"),
    *kind_error("numpy-float", "int32", np.float32(1), "float32 np.float32(1.0)"),
    *kind_error("complex", "int32", 1j, "complex 1j"),
    *kind_error("complex", "float32", 1j, "complex 1j"),
    *kind_error("complex", "bfloat16", 1j, "complex 1j"),
    *kind_error("bool", "float32", True, "bool True"),
    *kind_error("bool", "int32", False, "bool False"),
    *kind_error("bool", "complex64", True, "bool True"),
    *kind_error("numpy-bool", "float32", np.True_, "bool np.True_"),
    *kind_error("int", "bool", 1, "int 1"),
    *kind_error("float", "bool", 0.0, "float 0.0"),
    *kind_error("1-d", "float32", X[0, :1], "float32 array of shape (1,)"),
    *kind_error(
        "jax-1-d", "float32", jnp.ones(1, np.float32), "float32 array of shape (1,)"
    ),
    *kind_error("jax-1-d", "int32", jnp.ones(1, np.int32), "int32 array of shape (1,)"),
    *kind_error("2-d", "float32", X, "float32 array of shape (3, 4)"),
    *kind_error("jax", "float16", jnp.float32(1), "float32 array of shape ()"),
    *kind_error("jax-int", "float32", jnp.int32(1), "int32 array of shape ()"),
    *kind_error("jax-float", "int32", jnp.float32(1), "float32 array of shape ()"),
    *kind_error("jax-bool", "float32", jnp.bool_(True), "bool array of shape ()"),
    *kind_error(
        "jax-complex", "float32", jnp.complex64(1j), "complex64 array of shape ()"
    ),
    *kind_error("key", "float32", KEY, "key<fry> array of shape ()"),
    *kind_error("weak", "int4", in_32_bits(2.5), "float32 array of shape ()"),
    *kind_error("weak", "bfloat16", in_32_bits(1j), "complex64 array of shape ()"),
    *[
        row
        for dtypes, low, high in [
            (("int4", "uint4"), -8, 15),
            (("int8", "uint8"), -128, 255),
            (("int16", "uint16"), -(2**15), 2**16 - 1),
            (("int32", "uint32"), -(2**31), 2**32 - 1),
        ]
        for dtype in dtypes
        for value in (low - 1, high + 1)
        for row in range_error(dtype, value, low, high)
    ],
    *range_error("int32", 2**70, -(2**31), 2**32 - 1),
    *range_error("int8", np.int64(2**40), -128, 255),
    *overflow("float32", 1e39, LARGEST_FLOAT32),
    *overflow("float32", -1e39, LARGEST_FLOAT32),
    *overflow("float32", 10**39, LARGEST_FLOAT32),
    *overflow("float32", 10**400, LARGEST_FLOAT32, "1000…"),
    *overflow("float16", 70000.0, "65504.0"),
    *overflow("float16", 65520, "65504.0"),
    *overflow("bfloat16", 3.4e38, "3.3895313892515355e+38"),
    *overflow("float8_e4m3fn", 465, "448.0"),
    *overflow("float8_e5m2", 61440, "57344.0"),
    *overflow("float4_e2m1fn", 8, "6.0"),
    *overflow("complex64", 1e39, LARGEST_FLOAT32),
    *overflow("complex64", 1e39j, LARGEST_FLOAT32),
    *overflow("complex64", -(10**400), LARGEST_FLOAT32, "-1000…"),
    *absent("float8_e8m0fnu", 0),
    *absent("float8_e8m0fnu", -1),
    *absent("float4_e2m1fn", np.nan),
    *value_error(
        "weak-300",
        "int8",
        in_32_bits(300),
        OverflowError,
        "must be in [-128, 255], the signed or unsigned range of int8; got 300",
    ),
    *value_error(
        "weak-70000",
        "float16",
        in_32_bits(7e4),
        OverflowError,
        "must fit float16, whose largest value is 65504.0; got 70000.0",
    ),
    *[
        traced(
            function,
            name,
            value,
            f"`{name}` must be {NUMBERS[dtype]} or a scalar array of dtype {dtype}; "
            f"got traced {in_32_bits(value).dtype} array of shape {np.shape(value)}",
            value_data_type=dtype,
        )
        for function, name in FILLS
        for dtype, value in [
            ("int32", 1.5),
            ("int32", X[0, 1]),
            ("int4", 2.5),
            ("float32", np.int32(1)),
            ("float32", X),
            ("float16", True),
            ("bfloat16", 1j),
        ]
    ],
]
