"""Wrong axes and other options of the reversals."""

import jax
import jax.numpy as jnp
import numpy as np

from wrong_calls.calls import (
    AXES,
    KEY,
    NO_INTEGERS,
    REVERSALS,
    X,
    traced,
    wrong,
    wrong_calls,
)

AXIS = [("reverse_padded", "axis"), ("reverse_subsequences", "axis")]
IMPLEMENTATIONS = [(function, "implementation") for function in REVERSALS]
TRAINING = [("reverse_sequence", "training")]
NAME = [("reverse_sequence", "name")]
OUTPUT_NAME = [("reverse_sequence", "specified_outputs_name")]
COEFFICIENT = [("reverse_sequence", "lda_coeff")]

NO_AXES = {what: value for what, value in NO_INTEGERS.items() if what != "none"} | {
    "numpy-bool": np.True_,
    "numpy-float": np.float32(1),
    "date": np.datetime64("2020-01-01"),
    "tuple": (0, 1),
    "dict": {0: 1},
    "1-d": X[0, :1],
    "jax": jnp.float32(1),
    "long-list": list(range(1000)),
    "symbolic": jax.export.symbolic_shape("n")[0],
}
NO_FLAGS = {
    "none": None,
    "int": 1,
    "float": 0.0,
    "string": "yes",
    "list": [True],
    "numpy": np.array(True),
    "jax": jnp.array(True),
}
NO_NAMES = {
    "int": 3,
    "bytes": b"reverse",
    "bool": True,
    "set": {"reverse"},
    "dict": {"reverse": 1},
}
NO_OUTPUT_NAMES = NO_NAMES | {
    "list-of-none": [None],
    "list-of-bytes": [b"y"],
    "name-and-none": ["y", None],
    "nested": [["y"]],
    "range": range(1),
    "view": memoryview(X),
}
NO_COEFFICIENTS = {
    "none": None,
    "string": "0.5",
    "bool": True,
    "numpy-bool": np.True_,
    "complex": 1j,
    "list": [0.5],
    "dict": {},
    "duration": np.timedelta64(3, "s"),
    "duration-ns": np.timedelta64(3, "ns"),
    "date-ns": np.datetime64(3, "ns"),
    "1-d": np.array([0.5]),
    "jax-1-d": jnp.ones(1, np.float32),
    "jax-bool": jnp.array(True),
    "jax-complex": jnp.complex64(1j),
    "key": KEY,
}
NOT_FINITE = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "f32": np.float32("nan")}
BEYOND_FLOAT32 = {
    "float": 1e39,
    "negative": -1e39,
    "numpy": np.float64(1e39),
    "integer": 10**39,
    "long-integer": -(10**400),
}
NOT_0_OR_1 = {str(n): n for n in (2, -1, 2**70)}

OPTION_ERRORS = [
    *wrong(AXES, TypeError, NO_AXES),
    *wrong(AXIS, TypeError, {"none": None}),
    *wrong([pair for pair in AXES if pair not in AXIS], ValueError, NOT_0_OR_1),
    *wrong(AXIS, ValueError, {str(n): n for n in (2, -3, 2**70, -(2**70))}),
    *wrong_calls(
        "reverse_sequence",
        ValueError,
        "`batch_axis` and `time_axis`",
        {f"both-{axis}": {"batch_axis": axis, "time_axis": axis} for axis in (0, 1)},
    ),
    *wrong(IMPLEMENTATIONS, ValueError, {"unknown": "cuda", "case": "Gather", "": ""}),
    *wrong(
        IMPLEMENTATIONS,
        TypeError,
        {"int": 3, "bool": False, "bytes": b"gather", "list": ["gather"], "1-d": X[0]},
    ),
    *wrong(TRAINING, TypeError, NO_FLAGS),
    *wrong(NAME, TypeError, NO_NAMES | {"list": ["reverse"]}),
    *wrong(NAME, ValueError, {"empty": ""}),
    *wrong(OUTPUT_NAME, TypeError, NO_OUTPUT_NAMES),
    *wrong(
        OUTPUT_NAME,
        ValueError,
        {
            "empty": "",
            "list-of-empty": [""],
            "no-names": [],
            "two-names": ["a", "b"],
            "array-of-two": np.array(["a", "b"]),
        },
    ),
    *wrong(COEFFICIENT, TypeError, NO_COEFFICIENTS),
    *wrong(COEFFICIENT, ValueError, NOT_FINITE),
    *wrong(COEFFICIENT, OverflowError, BEYOND_FLOAT32),
    *traced(COEFFICIENT, jnp.ones(1, np.float32)),
    *traced(COEFFICIENT, 1j),
    *traced(AXES, 1),
    *traced(AXES, 1.0),
    *traced(IMPLEMENTATIONS, 0),
    *traced(TRAINING, True),
    *traced([*NAME, *OUTPUT_NAME], 1),
]
