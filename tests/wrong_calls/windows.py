"""Wrong offsets, sizes and strides: no sequences, or reads outside of the array."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from wrong_calls.calls import (
    DATES,
    KEY,
    NO_INTEGERS,
    SEQUENCES,
    Untyped,
    X,
    generator,
    traced,
    wrong,
    wrong_calls,
)

FILL_SIZES = [pair for pair in SEQUENCES if "fill" in pair[0]]
COUNTED = [pair for pair in SEQUENCES if pair not in FILL_SIZES]
REQUIRED = [pair for pair in SEQUENCES if pair[1] not in ("strides", "output_sizes")]
SLICE_STRIDES = [("slice", "strides")]
WINDOWS = [
    (f, f"input_window_{n}")
    for f in ("slice1", "slice_grad")
    for n in ("offsets", "sizes")
]
OUTPUT_SIZES = [("slice1", "output_sizes")]
GRADIENT_SIZES = [("slice_grad", "output_gradient_sizes")]

NO_SEQUENCES = {
    "int": 1,
    "float": 1.5,
    "bool": True,
    "string": "11",
    "bytes": b"11",
    "set": {0, 1},
    "dict": {0: 1},
    "numpy-int": np.int64(1),
    "slice": slice(1),
    "generator": generator(),
    "rank-0": np.array(1),
    "2-d": np.ones((1, 2), int),
    "jax-2-d": jnp.ones((1, 2), np.float32),
    "key": KEY,
    **{f"of-{what}": [1, value] for what, value in NO_INTEGERS.items()},
    "nested": [[1], [1]],
    "numpy-floats": np.ones(2),
    "numpy-strings": np.array(["1", "1"]),
    "dates": DATES,
    "untyped": Untyped(),
    "numpy-bools": np.ones(2, bool),
    "numpy-complex": np.ones(2, np.complex64),
    "mapping": types.MappingProxyType({}),
    "shape": jax.ShapeDtypeStruct((2,), np.int32),
}
HUGE = {"2-to-49": (2**24, 2**25), "2-to-70": [2**70], "huge-and-empty": (0, 2**70)}
READS = {
    "offset": {"offsets": (3, 0)},
    "huge-offset": {"offsets": (2**70, 0)},
    "size": {"sizes": (3, 2)},
    "stride": {"strides": (1, 4)},
    "stride-and-offset": {"offsets": (1, 1)},
    "no-strides": {"strides": None, "sizes": (1, 5)},
    "empty": {"input": X[:0], "offsets": (0, 0)},
}
EMPTY_WINDOW = {"input_window_offsets": (9, 0), "input_window_sizes": (0, 1)}

SEQUENCE_ERRORS = [
    *wrong(REQUIRED, TypeError, {"none": None}),
    *wrong(SEQUENCES, TypeError, NO_SEQUENCES),
    *traced(SEQUENCES, 1, lambda element: (element, 1)),
    *traced(SEQUENCES, np.ones(2, np.int32)),
    *wrong(COUNTED, ValueError, {"0": [], "1": np.ones(1, int), "3": (1, 1, 1)}),
    # slice
    *wrong(
        [("slice", "offsets"), ("slice", "sizes")],
        ValueError,
        {"negative": (0, -1), "very-negative": (0, -(2**70))},
    ),
    *wrong(SLICE_STRIDES, ValueError, {"zero": (0, 1), "negative": (-1, 1)}),
    *wrong_calls("slice", ValueError, "reads of dimension . must stay", READS),
    *wrong(
        [("slice", "offsets")], ValueError, {"beyond-nothing": (4, 0)}, sizes=(0, 2)
    ),
    # Windows
    *wrong(WINDOWS, ValueError, {"negative": (-1, 1), "very-negative": (-(2**70), 1)}),
    *wrong(
        [(function, "input_window_strides") for function in ("slice1", "slice_grad")],
        ValueError,
        {"zero": (1, 0)},
    ),
    *wrong_calls(
        "slice1",
        ValueError,
        "reads of dimension . must stay",
        {
            "offset": {"input_window_offsets": (1, 0)},
            "size": {"input_window_sizes": (1, 4)},
        },
    ),
    *wrong_calls(
        "slice_grad",
        ValueError,
        r"`output_gradient_sizes\[\d\]` must be at least",
        {
            "offset": {"input_window_offsets": (2, 0)},
            "size": {"input_window_sizes": (1, 5)},
            "gradient": {"output_gradient_sizes": (2, 5)},
        },
    ),
    *[
        row
        for function in ("slice1", "slice_grad")
        for row in wrong_calls(
            function,
            ValueError,
            r"`input_window_offsets\[0\]`",
            {"empty-window": EMPTY_WINDOW},
        )
    ],
    *wrong(OUTPUT_SIZES, ValueError, {str(n): (2, n) for n in (3, -1, 2**70)}),
    *wrong(GRADIENT_SIZES, ValueError, {"negative": (4, -1), "huge": (2**70, 5)}),
    # Fills
    *wrong(FILL_SIZES, ValueError, HUGE | {"negative": (2, -1)}),
]
