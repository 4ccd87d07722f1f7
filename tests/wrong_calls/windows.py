"""Offsets, sizes and strides: what is no sequence, or reads beyond its array."""

import jax.numpy as jnp
import numpy as np

from wrong_calls.calls import (
    COUNTED,
    DATES,
    KEY,
    NO_INTEGERS,
    SEQUENCES,
    WINDOWS,
    X,
    bad,
    describe,
    for_each,
    generator,
    traced,
)

NO_SEQUENCE = "must be a sequence of integers; got "
NO_STATIC_SEQUENCE = "must be a static one-dimensional sequence of integers; got "


def element_errors(function, name):
    """What is no integer, as the second element."""
    return [
        bad(
            function,
            f"{name}-of-{what}",
            {name: [1, value]},
            TypeError,
            f"`{name}[1]` must be a static integer; got {describe(value)}",
        )
        for what, value in NO_INTEGERS
    ]


SEQUENCE_ERRORS = [
    *for_each(
        [pair for pair in SEQUENCES if pair[1] not in ("strides", "output_sizes")],
        [("none", None, TypeError, NO_SEQUENCE + "NoneType None")],
    ),
    *for_each(
        SEQUENCES,
        [
            *[
                (what, value, TypeError, NO_SEQUENCE + describe(value))
                for what, value in [
                    ("int", 1),
                    ("float", 1.5),
                    ("bool", True),
                    ("string", "11"),
                    ("bytes", b"11"),
                    ("set", {0, 1}),
                    ("dict", {0: 1}),
                    ("numpy-int", np.int64(1)),
                    ("slice", slice(1)),
                ]
            ],
            ("generator", generator(), TypeError, NO_SEQUENCE + "generator …"),
            *[
                (what, value, TypeError, NO_STATIC_SEQUENCE + got)
                for what, value, got in [
                    ("rank-0", np.array(1), "int64 array of shape ()"),
                    ("2-d", np.ones((1, 2), int), "int64 array of shape (1, 2)"),
                    (
                        "jax-2-d",
                        jnp.ones((1, 2), np.float32),
                        "float32 array of shape (1, 2)",
                    ),
                    ("key", KEY, "key<fry> array of shape ()"),
                ]
            ],
        ],
    ),
    *[
        row
        for function, name in SEQUENCES
        for row in [
            *element_errors(function, name),
            bad(
                function,
                f"{name}-nested",
                {name: [[1], [1]]},
                TypeError,
                f"`{name}[0]` must be a static integer; got list [1]",
            ),
            bad(
                function,
                f"{name}-numpy-floats",
                {name: np.ones(2)},
                TypeError,
                f"`{name}[0]` must be a static integer; got float64 np.float64(1.0)",
            ),
            bad(
                function,
                f"{name}-numpy-strings",
                {name: np.array(["1", "1"])},
                TypeError,
                f"`{name}[0]` must be a static integer; got str_ np.str_('1')",
            ),
            bad(
                function,
                f"{name}-dates",
                {name: DATES},
                TypeError,
                f"`{name}[0]` must be a static integer; got datetime64 "
                "np.datetime64('2020-01-01')",
            ),
            traced(
                function,
                name,
                1,
                f"`{name}[0]` must be a static integer; got traced int32 array of "
                "shape ()",
                lambda element: (element, 1),
            ),
            traced(
                function,
                name,
                np.ones(2, np.int32),
                f"`{name}` must be a static one-dimensional sequence of integers; got "
                "traced int32 array of shape (2,)",
            ),
        ]
    ],
    *[
        bad(
            function,
            f"{name}-of-{len(value)}",
            {name: value},
            ValueError,
            f"`{name}` must have 2 elements, one for each dimension; got {len(value)}",
        )
        for function, name in COUNTED
        for value in ([], np.ones(1, int), (1, 1, 1))
    ],
    # slice
    *[
        bad(
            "slice",
            f"{name}-{value}",
            {name: (0, value)},
            ValueError,
            f"`{name}[1]` must be at least 0; got {value}",
        )
        for name in ("offsets", "sizes")
        for value in (-1, -(2**70))
    ],
    *[
        bad(
            "slice",
            f"strides-{stride}",
            dict(strides=(stride, 1)),
            ValueError,
            f"`strides[0]` must be at least 1; got {stride}. `slice1` takes negative "
            "strides",
        )
        for stride in (0, -1)
    ],
    *[
        bad(
            "slice",
            f"beyond-{what}",
            changes,
            ValueError,
            f"reads of dimension {dimension} must stay inside its {extent} elements; "
            f"the last index read is {last}",
        )
        for what, changes, dimension, extent, last in [
            ("by-offset", dict(offsets=(3, 0)), 0, 3, 3),
            ("by-huge-offset", dict(offsets=(2**70, 0)), 0, 3, 2**70),
            ("by-size", dict(sizes=(3, 2)), 0, 3, 3),
            ("by-stride", dict(strides=(1, 4)), 1, 4, 4),
            ("by-stride-and-offset", dict(offsets=(1, 1)), 1, 4, 4),
            ("without-strides", dict(strides=None, sizes=(1, 5)), 1, 4, 4),
            ("of-empty", dict(input=X[:0], offsets=(0, 0)), 0, 0, 0),
        ]
    ],
    bad(
        "slice",
        "beyond-with-nothing-to-read",
        dict(offsets=(4, 0), sizes=(0, 2)),
        ValueError,
        "`offsets[0]` must be at most 3, the size of dimension 0; got 4",
    ),
    # Windows
    *[
        row
        for function, window, shape in WINDOWS
        for row in [
            *[
                bad(
                    function,
                    f"{name}-{value}",
                    {name: (value, 1)},
                    ValueError,
                    f"`{name}[0]` must be at least 0; got {value}",
                )
                for name in window
                for value in (-1, -(2**70))
            ],
            bad(
                function,
                "input_window_strides-0",
                dict(input_window_strides=(1, 0)),
                ValueError,
                "`input_window_strides[1]` must be nonzero; got 0",
            ),
            *[
                bad(
                    function,
                    f"beyond-by-{name}",
                    {**window, name: changed},
                    ValueError,
                    f"reads of dimension {dimension} must stay inside its "
                    f"{shape[dimension]} elements; the last index read is {last}",
                )
                for name, changed, dimension, last in [
                    ("input_window_offsets", (shape[0] - 2, 0), 0, shape[0]),
                    ("input_window_sizes", (1, shape[1]), 1, shape[1]),
                ]
            ],
            bad(
                function,
                "beyond-with-an-empty-window",
                dict(input_window_offsets=(9, 0), input_window_sizes=(0, 1)),
                ValueError,
                f"`input_window_offsets[0]` must be at most {shape[0]}, the size of "
                "dimension 0; got 9",
            ),
        ]
    ],
    *[
        bad(
            "slice1",
            f"output_sizes-{value}",
            dict(output_sizes=(2, value)),
            ValueError,
            "`output_sizes` must have size 0 to 2, what the window gives, along "
            f"dimension 1; got {value}",
        )
        for value in (3, -1, 2**70)
    ],
    bad(
        "slice_grad",
        "output_gradient_sizes-negative",
        dict(output_gradient_sizes=(4, -1)),
        ValueError,
        "`output_gradient_sizes[1]` must be at least 0; got -1",
    ),
    bad(
        "slice_grad",
        "output_gradient_sizes-too-small",
        dict(output_gradient_sizes=(2, 5)),
        ValueError,
        "reads of dimension 0 must stay inside its 2 elements; the last index read is "
        "2",
    ),
    bad(
        "slice_grad",
        "output_gradient_sizes-huge",
        dict(output_gradient_sizes=(2**70, 5)),
        ValueError,
        f"`output_gradient_sizes` must have at most 2^48 elements; got {5 * 2**70}",
    ),
    # Fills
    *[
        bad(function, f"sizes-{what}", dict(sizes=sizes), ValueError, message)
        for function in ("fill_value_sequence", "fill_value_constant")
        for what, sizes, message in [
            ("negative", (2, -1), "`sizes[1]` must be at least 0; got -1"),
            (
                "too-many",
                (2**24, 2**25),
                f"`sizes` must have at most 2^48 elements; got {2**49}",
            ),
            (
                "huge",
                [2**70],
                f"`sizes` must have at most 2^48 elements; got {2**70}",
            ),
            (
                "huge-and-empty",
                (0, 2**70),
                f"`sizes` must have at most 2^48 elements; got {2**70}",
            ),
        ]
    ],
]
