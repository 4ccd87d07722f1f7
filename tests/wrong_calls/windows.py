"""Wrong offsets, sizes and strides: no sequences, or reads outside of the array."""

import types
from typing import Any

import jax.numpy as jnp
import numpy as np

from wrong_calls.functions import (
    DATES,
    KEY,
    NO_INTEGERS,
    SEQUENCES,
    STRUCT,
    Row,
    Untyped,
    X,
    of_rows,
    traced,
    wrong,
)

FILL_SIZES = [pair for pair in SEQUENCES if "fill" in pair[0]]
COUNTED = [pair for pair in SEQUENCES if pair not in FILL_SIZES]
REQUIRED = [pair for pair in SEQUENCES if pair[1] not in ("strides", "output_sizes")]
WINDOW_STRIDES = [pair for pair in COUNTED if pair[1] == "input_window_strides"]
STARTS_AND_SIZES = [
    pair
    for pair in COUNTED
    if pair[1] in ("offsets", "sizes", "input_window_offsets", "input_window_sizes")
]
OUTPUT_SIZES = [("slice1", "output_sizes")]
GRADIENT_SIZES = [("slice_grad", "output_gradient_sizes")]

NO_SEQUENCES = [
    *[1, 1.5, "11", b"11", {0, 1}, {0: 1}, iter([1, 1]), types.MappingProxyType({})],
    *[np.array(1), np.ones((1, 2), int), jnp.ones((1, 2)), KEY, Untyped(), STRUCT],
]
OF_NO_INTEGERS = [[[1], [1]], np.ones(2), np.ones(2, bool), np.array(["1"] * 2), DATES]
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
MESSAGES: list[Row] = [
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

ROWS = [
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
]
