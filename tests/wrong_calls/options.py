"""Wrong axes, windows and other options."""

import functools
import types
from typing import Any

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
    SEQUENCES,
    STRUCT,
    Row,
    X,
    arguments_named,
    of_rows,
    traced,
    wrong,
)

AXIS = [("reverse_padded", "axis"), ("reverse_subsequences", "axis")]
IMPLEMENTATIONS = arguments_named("implementation")
TRAINING, COEFFICIENT = arguments_named("training"), arguments_named("lda_coeff")
NAME, OUTPUT_NAME = [("reverse_sequence", "name")], arguments_named("outputs_name")

NO_AXES = [*[value for value in NO_INTEGERS if value is not None], np.True_, (0, 1)]
NO_AXES += [np.float32(1), jnp.float32(1), jax.export.symbolic_shape("n")[0]]
NO_FLAGS = [None, 1, "yes", [True], jnp.array(True)]
NO_NAMES = [3, b"reverse", True, {"reverse"}]
NO_OUTPUT_NAMES = [*NO_NAMES, [["y"]], [3], range(1), memoryview(X)]
EMPTY_OR_TWO = ["", [""], [], ["a", "b"], ["y", None], np.array(["a", "b"])]
NO_COEFFICIENTS = [
    *[None, "0.5", True, np.True_, 1j, [0.5], np.array([0.5]), KEY],
    *[jnp.ones(1, np.float32), jnp.array(True)],
]
NOT_FINITE = [np.nan, -np.inf, np.float32("nan")]

# Windows ------------------------------------------------------------------------------

FILL_SIZES = [pair for pair in SEQUENCES if "fill" in pair[0]]
COUNTED = [pair for pair in SEQUENCES if pair not in FILL_SIZES]
REQUIRED = [pair for pair in SEQUENCES if pair[1] not in ("strides", "output_sizes")]
WINDOW_STRIDES = arguments_named("window_strides")
STARTS_AND_SIZES = [*arguments_named("offsets", "window_sizes"), ("slice", "sizes")]
OUTPUT_SIZES = arguments_named("output_sizes")
GRADIENT_SIZES = arguments_named("gradient_sizes")

NO_SEQUENCES = [
    *[1, 1.5, "11", b"11", {0, 1}, {0: 1}, iter([1, 1]), types.MappingProxyType({})],
    *[np.array(1), np.ones((1, 2), int), jnp.ones((1, 2)), KEY, STRUCT],
]
OF_NO_INTEGERS = [[[1], [1]], np.ones(2), np.ones(2, bool), np.array(["1"] * 2)]
READS: list[dict[str, Any]] = [
    *[{"offsets": (3, 0)}, {"offsets": (2**70, 0)}, {"offsets": (1, 1)}],
    *[{"sizes": (3, 2)}, {"strides": (1, 4)}, {"strides": None, "sizes": (1, 5)}],
    {"input": X[:0], "offsets": (0, 0)},
]
WINDOW_READS = [{"input_window_offsets": (1, 0)}, {"input_window_sizes": (1, 4)}]
WINDOW_WRITES = [{"input_window_offsets": (2, 0)}, {"output_gradient_sizes": (2, 5)}]
EMPTY_WINDOW = {"input_window_offsets": (9, 0), "input_window_sizes": (0, 1)}
OUTSIDE = "reads of dimension … must stay"
STEPS = "must be 0 to 2, the window's size over the stride, rounded up; got"

# Whole messages -----------------------------------------------------------------------

BOTH = "`batch_axis` and `time_axis`…"
MESSAGES: list[Row] = [
    ("reverse_subsequences", {"axis": [*range(1000)]}, TypeError,
     "`axis` must be a static integer; got list [0, 1, 2, 3, 4, 5, ...]"),
    ("reverse_sequence", {"time_axis": 2}, ValueError,
     "`time_axis` must be 0 or 1; got 2. `reverse_subsequences` takes any axis"),
    ("reverse_sequence", {"batch_axis": 0, "time_axis": 0}, ValueError, BOTH),
    ("reverse_sequence", {"batch_axis": 1, "time_axis": 1}, ValueError, BOTH),
    ("reverse_sequence", {"implementation": "cuda"}, ValueError,
     "`implementation` must be 'gather', 'scatter' or None; got 'cuda'"),
    # Windows
    *[("slice", changes, ValueError, f"{OUTSIDE}…") for changes in READS],
    *[("slice1", changes, ValueError, f"{OUTSIDE}…") for changes in WINDOW_READS],
    *[("slice_grad", changes, ValueError, "`output_gradient_sizes[…]` must be at …")
      for changes in WINDOW_WRITES],
    *[(function, EMPTY_WINDOW, ValueError, "`input_window_offsets[0]`…")
      for function in ("slice1", "slice_grad")],
    ("slice", {"sizes": (1,)}, ValueError,
     "`sizes` must have 2 elements, one for each dimension; got 1"),
    ("slice", {"offsets": (2**70, 0)}, ValueError,
     "reads of dimension 0 must stay inside its 3 elements; the last index read is "
     f"{2**70}, offsets[0] + strides[0] * (sizes[0] - 1). Sizes are those of the "
     "result, not ends"),
    ("slice", {"strides": (1, -1)}, ValueError,
     "`strides[1]` must be at least 1; got -1. `slice1` takes negative strides"),
    ("slice1", {"input_window_strides": (0, 1)}, ValueError,
     "`input_window_strides[0]` must be nonzero; got 0"),
    ("slice1", {"output_sizes": [1, 1.5]}, TypeError,
     "`output_sizes[1]` must be a static integer; got float 1.5"),
    ("slice1", {"output_sizes": (2, 3)}, ValueError, f"`output_sizes[1]` {STEPS} 3"),
    ("slice_grad", {"input_gradient": X[:2]}, ValueError,
     f"`input_gradient.shape[1]` {STEPS} 4"),
    ("slice_grad", {"output_gradient_sizes": (0, 0), "input_window_offsets": (4, 5)},
     ValueError,
     "`output_gradient_sizes[0]` must be at least 7: the window reaches index 6, "
     "input_window_offsets[0] + input_window_sizes[0] - 1; got 0. The sizes are the "
     "second argument"),
    ("fill_value_constant", {"sizes": 3}, TypeError,
     "`sizes` must be a sequence of integers, one for each dimension; got int 3. Write "
     "(3,)"),
]  # fmt: skip

REVERSE = functools.partial(dml_jax.reverse_sequence, X, LENGTHS)
HINT = (
    "Bind it with `functools.partial`, or, outside `checked`, name it in the "
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
    *traced(COEFFICIENT, jnp.ones(1, np.float32)),
    *traced(COEFFICIENT, 1j),
    *traced(AXES, 1),
    *traced(AXES, 1.0),
    *traced(IMPLEMENTATIONS, 0),
    *traced(TRAINING, True),
    *traced([*NAME, *OUTPUT_NAME], 1),
    *wrong(REQUIRED, TypeError, [None]),
    *wrong(SEQUENCES, TypeError, NO_SEQUENCES),
    *wrong(SEQUENCES, TypeError, [[1, value] for value in NO_INTEGERS], "`{}[1]`…"),
    *wrong(SEQUENCES, TypeError, OF_NO_INTEGERS, "`{}[0]`…"),
    *traced(SEQUENCES, 1, lambda element: (element, 1), "`{}[0]`…"),
    *traced(SEQUENCES, np.ones(2, np.int32)),
    *wrong(COUNTED, ValueError, [[], np.ones(1, int), (1, 1, 1)]),
    *wrong(STARTS_AND_SIZES, ValueError, [(-1, 1), (-(2**70), 1)], "`{}[0]`…"),
    *wrong([("slice", "strides")], ValueError, [(0, 1), (-1, 1)], "`{}[0]`…"),
    *wrong([("slice", "offsets")], ValueError, [(4, 0)], "`{}[0]`…", sizes=(0, 2)),
    *wrong(WINDOW_STRIDES, ValueError, [(0, 1)], "`{}[0]`…"),
    *wrong(OUTPUT_SIZES, ValueError, [(2, n) for n in (3, -1, 2**70)], "`{}[1]`…"),
    *wrong(GRADIENT_SIZES, ValueError, [(4, -1)], "`{}[1]`…"),
    *wrong(GRADIENT_SIZES, ValueError, [(2**70, 5)]),
    *wrong(FILL_SIZES, ValueError, [(2**24, 2**25), [2**70]]),
    *wrong(FILL_SIZES, ValueError, [(2, -1)], "`{}[1]`…"),
    *of_rows(MESSAGES),
    *OF_PROGRAMS,
]
