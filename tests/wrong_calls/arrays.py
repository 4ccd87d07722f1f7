"""Wrong arrays and wrong lengths."""

import array

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from wrong_calls.calls import (
    ARRAYS,
    DATES,
    KEY,
    LENGTHS,
    LINE_LENGTHS,
    Untyped,
    X,
    generator,
    in_32_bits,
    traced,
    wrong,
)

NO_ARRAYS = {
    "none": None,
    "set": {1, 2, 3},
    "dict": {"a": 1},
    "generator": generator(),
    "object": object(),
    "type": int,
    "shape": jax.ShapeDtypeStruct((3, 4), np.float32),
    "untyped": Untyped(),
    "number-and-none": [np.float16(1), None],
    "ragged": [[1, 2], [3]],
    "ragged-ranks": [[1, 2], 3],
    "nones": [None, None, None],
    "masked": np.ma.array(X, mask=X > 3),
}
TEXT = {
    "string": "abc",
    "bytes": b"abc",
    "list-of-strings": [["a", "b"]],
    "numpy-strings": np.array([["a", "b"]]),
    "objects": np.array([[1, None]], object),
}
NO_DTYPES = {  # dtypes that JAX does not compute with
    "dates": DATES,
    "durations": DATES - DATES,
    "structured": np.zeros((3, 4), [("a", np.int32)]),
    "void": np.zeros((3, 4), "V4"),
    "big-endian": X.astype(">f4"),
    "long-double": X.astype(np.longdouble),
    "float0": np.zeros((3, 4), jax.dtypes.float0),
    **{
        name: np.zeros((3, 4), getattr(ml_dtypes, name, "V1"))
        for name in ("float6_e2m3fn", "float6_e3m2fn", "int1", "uint1")
    },
}
NARROWED = {
    **{name: X.astype(name) for name in ("int64", "uint64", "float64", "complex128")},
    "scalar-int64": np.int64(3),
    "buffer-of-int64": array.array("q", [2**40]),
    "list-of-int64": [np.array([2**40, 1])],
}
TOO_LARGE = {
    "2-to-31": [[2**31]],
    "2-to-70": [[2**70]],
    "scalar": -(2**70),
    "float": [[1e39]],
}
OF_LOW_RANK = {
    "float": 1.5,
    "bool": True,
    "nan": np.nan,
    "complex": 2j,
    "string": "abc",
    "list": [1, 2, 3],
    "key": KEY,
    "strings": np.array(["a", "b", "c"]),
}
SCALAR = {"rank-0": np.float32(1)}
BLOCK = {"rank-3": X[None]}
GRADIENT = [("slice_grad", "input_gradient")]
ARRAY_ERRORS = [
    *wrong(ARRAYS, TypeError, NO_ARRAYS | NO_DTYPES),
    *wrong(ARRAYS, ValueError, NARROWED),
    *wrong(ARRAYS, OverflowError, TOO_LARGE),
    # reverse_sequence also reverses text.
    *wrong([pair for pair in ARRAYS if pair[0] != "reverse_sequence"], TypeError, TEXT),
    *wrong([("reverse_sequence", "input")], ValueError, OF_LOW_RANK),
    *wrong([("reverse_subsequences", "input")], ValueError, SCALAR, axis=0),
    *wrong([("reverse_padded", "x")], ValueError, SCALAR, axis=0),
    *wrong([("slice", "input")], ValueError, SCALAR, "`offsets`"),
    *wrong([("slice1", "input")], ValueError, BLOCK, "`input_window_offsets`"),
    *wrong(GRADIENT, ValueError, BLOCK, "`output_gradient_sizes`"),
    *wrong(GRADIENT, TypeError, {"keys": jax.random.split(KEY, (2, 2))}),
    *wrong(
        GRADIENT,
        ValueError,
        {"too-high": X, "too-wide": X[:2]},
        r"`input_gradient\.shape\[\d\]`",
    ),
]

NO_LENGTHS = {
    **{what: NO_ARRAYS[what] for what in ("none", "set", "dict", "generator")},
    **{what: NO_ARRAYS[what] for what in ("ragged", "nones")},
    "string": "abc",
    "strings": ["1", "2", "3"],
    "float": 1.0,
    "floats": [1.0, 2.0, 3.0],
    "nan": [1, 2, np.nan],
    "inf": [1, 2, np.inf],
    "complex": [1j, 2, 3],
    "bools": [True, False, True],
    "jax-floats": jnp.ones(3, np.float32),
    "jax-bools": jnp.ones(3, bool),
    "keys": jax.random.split(KEY, 3),
    "objects": np.array([1, 2, 3], object),
    "dates": DATES,
    "durations": np.array([1, 2, 3], "m8[s]"),
    "structured": np.zeros(3, [("a", np.int32)]),
    "big-endian": LENGTHS.astype(">i4"),
    "big-endian-64": LENGTHS.astype(">i8"),
    "masked": np.ma.array(LENGTHS, mask=[0, 1, 0]),
}
OF_WRONG_SHAPE = {
    "too-few": LENGTHS[:2],
    "too-many": jnp.ones(4, np.int32),
    "empty": [],
    "2-d": [[1, 2], [3, 4]],
    "transposed": LENGTHS[None],
}
SCALARS = {"scalar": 3, "weak-scalar": in_32_bits(3)}
LINES = [("reverse_subsequences", "sequence_lengths")]
LENS = [("reverse_sequence", "sequence_lens")]
PADDED = [("reverse_padded", "lengths")]
STRINGS = np.array([["a", "b"]] * 3)
LENGTH_ERRORS = [
    *wrong(LINE_LENGTHS, TypeError, NO_LENGTHS),
    *wrong(LINE_LENGTHS, OverflowError, {"huge": [2**70, 1, 1]}),
    *wrong(LINE_LENGTHS, ValueError, OF_WRONG_SHAPE),
    *wrong([*LINES, *LENS], ValueError, SCALARS),
    *wrong(LINES, ValueError, {"1-d": LENGTHS}),
    *wrong(PADDED, ValueError, {"column": LENGTHS[:, None]}),
    *wrong(PADDED, ValueError, {"along-time": LENGTHS}, axis=0),
    *wrong(PADDED, ValueError, {"1-d": LENGTHS}, x=X[None], axis=2),
    *wrong(LENS, ValueError, {"of-1": LENGTHS[:1], "column": LENGTHS[:, None]}),
    *wrong(LENS, ValueError, {"along-time": LENGTHS}, batch_axis=1, time_axis=0),
    *traced(LINE_LENGTHS, 1.0, lambda length: jnp.full(3, length)),
    *traced(LENS, 1, lambda n: jnp.full(3, n), "`input` of dtype <U1", input=STRINGS),
]
