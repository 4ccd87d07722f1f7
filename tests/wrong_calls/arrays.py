"""What is no array, and arrays of a dtype or a rank that no operator takes."""

import array

import jax
import numpy as np

from wrong_calls.calls import ARRAYS, DATES, KEY, NEEDS_X64, X, bad, for_each, generator

NO_ARRAY = "must be an array or convertible to one; got "
NO_DTYPE = "must have a dtype that JAX knows; got "
NO_MASK = "must be an array without a mask, as of `.filled()`; got MaskedArray"
TEXT = [
    ("string", "abc", TypeError, NO_ARRAY + "str …"),
    ("bytes", b"abc", TypeError, NO_ARRAY + "bytes …"),
    ("list-of-strings", [["a", "b"]], TypeError, NO_ARRAY + "list …"),
    ("numpy-strings", np.array([["a", "b"]]), TypeError, NO_DTYPE + "<U1"),
    ("objects", np.array([[1, None]], object), TypeError, NO_DTYPE + "object"),
]

ARRAY_ERRORS = [
    *for_each(
        ARRAYS,
        [
            ("none", None, TypeError, NO_ARRAY + "NoneType …"),
            ("set", {1, 2}, TypeError, NO_ARRAY + "set …"),
            ("dict", {"a": 1}, TypeError, NO_ARRAY + "dict …"),
            ("generator", generator(), TypeError, NO_ARRAY + "generator …"),
            ("object", object(), TypeError, NO_ARRAY + "object …"),
            ("type", int, TypeError, NO_ARRAY + "type …"),
            (
                "shape",
                jax.ShapeDtypeStruct((3, 4), np.float32),
                TypeError,
                NO_ARRAY + "ShapeDtypeStruct …",
            ),
            ("ragged", [[1, 2], [3]], TypeError, NO_ARRAY + "list …"),
            ("ragged-ranks", [[1, 2], 3], TypeError, NO_ARRAY + "list …"),
            ("dates", DATES, TypeError, NO_DTYPE + "datetime64[D]"),
            ("duration", DATES - DATES, TypeError, NO_DTYPE + "timedelta64[D]"),
            (
                "structured",
                np.zeros((3, 4), [("a", np.int32)]),
                TypeError,
                NO_DTYPE + "[('a', '<i4')]",
            ),
            ("void", np.zeros((3, 4), "V4"), TypeError, NO_DTYPE + "|V4"),
            ("big-endian", X.astype(">f4"), TypeError, NO_DTYPE + ">f4"),
            (
                "long-double",
                X.astype(np.longdouble),
                TypeError,
                NO_DTYPE + str(np.dtype(np.longdouble)),
            ),
            ("masked", np.ma.array(X, mask=X > 3), TypeError, NO_MASK),
            ("int64", X.astype(np.int64), ValueError, NEEDS_X64.format("int64")),
            ("uint64", X.astype(np.uint64), ValueError, NEEDS_X64.format("uint64")),
            ("float64", X.astype(np.float64), ValueError, NEEDS_X64.format("float64")),
            (
                "complex128",
                X.astype(np.complex128),
                ValueError,
                NEEDS_X64.format("complex128"),
            ),
            ("scalar-int64", np.int64(3), ValueError, NEEDS_X64.format("int64")),
            (
                "buffer-of-int64",
                array.array("q", [2**40]),
                ValueError,
                NEEDS_X64.format("int64"),
            ),
            (
                "list-of-int64",
                [np.array([2**40, 1])],
                ValueError,
                NEEDS_X64.format("int64"),
            ),
            ("too-large", [[2**31]], OverflowError, "must fit int32; got list …"),
            ("huge", [[2**70]], OverflowError, "must fit int32; got list …"),
            ("huge-scalar", -(2**70), OverflowError, "must fit int32; got int …"),
            ("list-overflow", [[1e39]], OverflowError, "must fit float32; got list …"),
        ],
    ),
    # reverse_sequence is at home with text; the others are not.
    *for_each([pair for pair in ARRAYS if pair[0] != "reverse_sequence"], TEXT),
    *[
        bad(
            "reverse_sequence",
            f"input-rank-{np.ndim(value)}-{what}",
            dict(input=value),
            ValueError,
            f"`input` must have rank 2 or more; got rank {np.ndim(value)}",
        )
        for what, value in [
            ("float", 1.5),
            ("bool", True),
            ("nan", np.nan),
            ("complex", 2j),
            ("string", "abc"),
            ("list", [1, 2, 3]),
            ("key", KEY),
            ("strings", np.array(["a", "b", "c"])),
        ]
    ],
    bad(
        "reverse_subsequences",
        "input-rank-0",
        dict(input=np.float32(1), axis=0),
        ValueError,
        "`axis` 0 is out of bounds for array of dimension 0",
    ),
    bad(
        "slice",
        "input-rank-0",
        dict(input=np.float32(1)),
        ValueError,
        "`offsets` must have 0 elements, one for each dimension; got 2",
    ),
    bad(
        "slice1",
        "input-rank-3",
        dict(input=X[None]),
        ValueError,
        "`input_window_offsets` must have 3 elements, one for each dimension; got 2",
    ),
    bad(
        "slice_grad",
        "input_gradient-rank-3",
        dict(input_gradient=X[None]),
        ValueError,
        "`output_gradient_sizes` must have 3 elements, one for each dimension; got 2",
    ),
    bad(
        "slice_grad",
        "input_gradient-keys",
        dict(input_gradient=jax.random.split(KEY, (2, 2))),
        TypeError,
        "`input_gradient` must have a dtype with a zero; got key<fry>",
    ),
    bad(
        "slice_grad",
        "input_gradient-too-high",
        dict(input_gradient=X),
        ValueError,
        "`input_gradient` must have size 0 to 2, what the window gives, along "
        "dimension 0; got 3",
    ),
    bad(
        "slice_grad",
        "input_gradient-too-wide",
        dict(input_gradient=X[:2]),
        ValueError,
        "`input_gradient` must have size 0 to 2, what the window gives, along "
        "dimension 1; got 4",
    ),
]
