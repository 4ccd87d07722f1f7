"""Wrong axes and other options of the reversals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import dml_jax
from wrong_calls.form import Wrong
from wrong_calls.functions import (
    AXES,
    KEY,
    LENGTHS,
    NO_INTEGERS,
    Row,
    X,
    in_x64,
    of_rows,
    traced,
    wrong,
)

AXIS = [("reverse_padded", "axis"), ("reverse_subsequences", "axis")]
IMPLEMENTATIONS = [
    (function, "implementation")
    for function in ("reverse_subsequences", "reverse_sequence")
]
TRAINING = [("reverse_sequence", "training")]
NAME = [("reverse_sequence", "name")]
OUTPUT_NAME = [("reverse_sequence", "specified_outputs_name")]
COEFFICIENT = [("reverse_sequence", "lda_coeff")]

NO_AXES = [*[value for value in NO_INTEGERS if value is not None], np.True_, (0, 1)]
NO_AXES += [np.float32(1), jnp.float32(1), jax.export.symbolic_shape("n")[0]]
NO_FLAGS = [None, 1, "yes", [True], jnp.array(True)]
NO_NAMES = [3, b"reverse", True, {"reverse"}]
NO_OUTPUT_NAMES = [*NO_NAMES, [["y"]], range(1), memoryview(X), [None], ["y", None]]
EMPTY_OR_TWO = ["", [""], [], ["a", "b"], np.array(["a", "b"])]
NO_COEFFICIENTS = [
    *[None, "0.5", True, np.True_, 1j, [0.5], np.array([0.5]), KEY],
    *[np.timedelta64(3, "s"), jnp.ones(1, np.float32), jnp.array(True)],
]
NOT_FINITE = [np.nan, -np.inf, np.float32("nan")]
BEYOND_FLOAT32 = [1e39, -1e39, np.float64(1e39), 10**39, -(10**400)]

BOTH = "`batch_axis` and `time_axis`…"
MESSAGES: list[Row] = [
    ("reverse_subsequences", {"axis": [*range(1000)]}, TypeError,
     "`axis` must be a static integer; got list [0, 1, 2, 3, 4, 5, ...]"),
    ("reverse_sequence", {"time_axis": 2}, ValueError,
     "`time_axis` must be 0 or 1; got 2. `reverse_subsequences` takes any axis"),
    ("reverse_sequence", {"batch_axis": 0, "time_axis": 0}, ValueError, BOTH),
    ("reverse_sequence", {"batch_axis": 1, "time_axis": 1}, ValueError, BOTH),
    ("reverse_sequence", {"implementation": "cuda"}, ValueError,
     "`implementation` must be 'gather' or 'scatter' or None; got 'cuda'"),
    ("reverse_sequence", {"lda_coeff": -(10**5000)}, OverflowError,
     "`lda_coeff` must fit float32, whose largest value is 3.4028234663852886e+38; got "
     "-2^16609 or more"),
]  # fmt: skip

REVERSE = functools.partial(dml_jax.reverse_sequence, X, LENGTHS)
HINT = (
    "Bind it with `functools.partial`, or, outside of `checked`, name it in the "
    "`static_argnames` of `jax.jit`, so that it is not traced"
)
OF_PROGRAMS = [
    Wrong(
        "jit-axis",
        lambda: jax.jit(REVERSE)(batch_axis=0),
        TypeError,
        f"reverse_sequence: `batch_axis` must be…; got traced int32 array of …. {HINT}",
    ),
    Wrong(
        "checked-axis",
        lambda: dml_jax.checked(REVERSE)(batch_axis=0),
        TypeError,
        f"reverse_sequence: `batch_axis` must be…. {HINT}",
    ),
    Wrong(
        "checked-implementation",
        lambda: dml_jax.checked(REVERSE)(implementation="gather"),
        TypeError,
        "checked: …arguments must be arrays; got str 'gather'…",
    ),
    Wrong(
        "jit-offsets",
        lambda: jax.jit(lambda start: dml_jax.slice(X, (start, 0), (1, 1)))(0),
        TypeError,
        "slice: `offsets[0]` must be…`jax.lax.dynamic_slice` takes traced starts",
    ),
]

ROWS = [
    *wrong(AXES, TypeError, NO_AXES),
    *wrong(AXIS, TypeError, [None]),
    *wrong([pair for pair in AXES if pair not in AXIS], ValueError, [2, -1, 2**70]),
    *wrong(AXIS, ValueError, [2, -3, 2**70, -(2**70)]),
    *wrong(IMPLEMENTATIONS, ValueError, ["cuda", ""]),
    *wrong(IMPLEMENTATIONS, TypeError, [3, b"gather", X[0]]),
    *wrong(TRAINING, TypeError, NO_FLAGS),
    *wrong(NAME, TypeError, [*NO_NAMES, ["reverse"]]),
    *wrong(NAME, ValueError, [""]),
    *wrong(OUTPUT_NAME, TypeError, NO_OUTPUT_NAMES),
    *wrong(OUTPUT_NAME, ValueError, EMPTY_OR_TWO),
    *wrong(COEFFICIENT, TypeError, NO_COEFFICIENTS),
    *wrong(COEFFICIENT, ValueError, NOT_FINITE),
    *wrong(COEFFICIENT, OverflowError, BEYOND_FLOAT32),
    *map(in_x64, wrong(COEFFICIENT, OverflowError, [10**400])),
    *traced(COEFFICIENT, jnp.ones(1, np.float32)),
    *traced(COEFFICIENT, 1j),
    *traced(AXES, 1),
    *traced(AXES, 1.0),
    *traced(IMPLEMENTATIONS, 0),
    *traced(TRAINING, True),
    *traced([*NAME, *OUTPUT_NAME], 1),
    *of_rows(MESSAGES),
    *OF_PROGRAMS,
]
