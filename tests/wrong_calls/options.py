"""The axes and the other options of the reversals, given wrongly."""

import jax
import jax.numpy as jnp
import numpy as np

from wrong_calls.calls import (
    AXES,
    KEY,
    LARGEST_FLOAT32,
    NAMES,
    NO_INTEGERS,
    REVERSALS,
    X,
    bad,
    describe,
    for_each,
    in_32_bits,
    traced,
)

NO_INTEGER = "must be a static integer; got "
NO_SCALAR = "must be a real scalar; got "
NO_IMPLEMENTATION = "must be 'gather' or 'scatter' or 'standalone' or None; got "
NO_NAME = "must be a string or None; got "
NO_OUTPUT_NAME = "must be a string, a sequence of one string or None; got "
NO_NAMES = [
    ("int", 3),
    ("bytes", b"reverse"),
    ("bool", True),
    ("set", {"reverse"}),
    ("dict", {"reverse": 1}),
]

OPTION_ERRORS = [
    *for_each(
        AXES,
        [
            *[
                (what, value, TypeError, NO_INTEGER + describe(value))
                for what, value in [
                    *NO_INTEGERS,
                    ("numpy-bool", np.True_),
                    ("numpy-float", np.float32(1)),
                    ("date", np.datetime64("2020-01-01")),
                    ("tuple", (0, 1)),
                    ("dict", {0: 1}),
                ]
            ],
            ("1-d", X[0, :1], TypeError, NO_INTEGER + "float32 array of shape (1,)"),
            (
                "jax",
                jnp.float32(1),
                TypeError,
                NO_INTEGER + "float32 array of shape ()",
            ),
            (
                "long-list",
                list(range(1000)),
                TypeError,
                NO_INTEGER + "list [0, 1, 2, 3, 4, 5, ...]",
            ),
        ],
    ),
    *[
        bad(
            "reverse_subsequences",
            f"axis-{axis}",
            dict(axis=axis),
            ValueError,
            f"`axis` {axis} is out of bounds for array of dimension 2",
        )
        for axis in (2, -3, 2**70, -(2**70))
    ],
    bad(
        "reverse_subsequences",
        "axis-symbolic",
        dict(axis=jax.export.symbolic_shape("n")[0]),
        TypeError,
        "`axis` must be a static integer; got symbolic n",
    ),
    *[
        bad(
            "reverse_sequence",
            f"axes-{batch_axis}-{time_axis}",
            dict(batch_axis=batch_axis, time_axis=time_axis),
            ValueError,
            "`batch_axis` and `time_axis` must be 0 and 1 or 1 and 0; got "
            f"{batch_axis} and {time_axis}. `reverse_subsequences` takes any axis",
        )
        for batch_axis, time_axis in [
            (0, 0),
            (1, 1),
            (0, 2),
            (2, 1),
            (-1, 0),
            (0, -1),
            (-2, -1),
            (2**70, 0),
        ]
    ],
    *for_each(
        [(function, "implementation") for function in REVERSALS],
        [
            *[
                (repr(value), value, ValueError, NO_IMPLEMENTATION + repr(value))
                for value in ("cuda", "Gather", "")
            ],
            *[
                (what, value, TypeError, NO_IMPLEMENTATION + describe(value))
                for what, value in [
                    ("int", 3),
                    ("bool", False),
                    ("bytes", b"gather"),
                    ("list", ["gather"]),
                ]
            ],
            ("1-d", X[0], TypeError, NO_IMPLEMENTATION + "float32 array of shape (4,)"),
        ],
    ),
    *for_each(
        [("reverse_sequence", "training")],
        [
            *[
                (what, value, TypeError, "must be a bool; got " + describe(value))
                for what, value in [
                    ("none", None),
                    ("int", 1),
                    ("float", 0.0),
                    ("string", "yes"),
                    ("list", [True]),
                ]
            ],
            *[
                (what, value, TypeError, "must be a bool; got bool array of shape ()")
                for what, value in [("numpy", np.array(True)), ("jax", jnp.array(True))]
            ],
        ],
    ),
    *for_each(NAMES, [("empty", "", ValueError, "must not be empty; got ''")]),
    *for_each(
        NAMES[:1],
        [
            (what, value, TypeError, NO_NAME + describe(value))
            for what, value in [*NO_NAMES, ("list", ["reverse"])]
        ],
    ),
    *for_each(
        NAMES[1:],
        [
            *[
                (what, value, TypeError, NO_OUTPUT_NAME + describe(value))
                for what, value in [
                    *NO_NAMES,
                    ("list-of-none", [None]),
                    ("list-of-bytes", [b"y"]),
                    ("name-and-none", ["y", None]),
                    ("nested", [["y"]]),
                    ("range", range(1)),
                ]
            ],
            *[
                (
                    what,
                    value,
                    ValueError,
                    f"must have one name, for the only result; got {len(value)}",
                )
                for what, value in [
                    ("no-names", []),
                    ("two-names", ["a", "b"]),
                    ("array-of-two", np.array(["a", "b"])),
                ]
            ],
            ("view", memoryview(X), TypeError, NO_OUTPUT_NAME + "memoryview …"),
            ("list-of-empty", [""], ValueError, "must not be empty; got ['']"),
        ],
    ),
    *for_each(
        [("reverse_sequence", "lda_coeff")],
        [
            *[
                (what, value, TypeError, NO_SCALAR + describe(value))
                for what, value in [
                    ("none", None),
                    ("string", "0.5"),
                    ("bool", True),
                    ("numpy-bool", np.True_),
                    ("complex", 1j),
                    ("list", [0.5]),
                    ("dict", {}),
                    ("duration", np.timedelta64(3, "s")),
                    ("duration-ns", np.timedelta64(3, "ns")),
                    ("date-ns", np.datetime64(3, "ns")),
                ]
            ],
            *[
                (what, value, TypeError, NO_SCALAR + got)
                for what, value, got in [
                    ("1-d", np.array([0.5]), "float64 array of shape (1,)"),
                    ("jax-1-d", jnp.ones(1, np.float32), "float32 array of shape (1,)"),
                    ("jax-bool", jnp.array(True), "bool array of shape ()"),
                    ("jax-complex", jnp.complex64(1j), "complex64 array of shape ()"),
                    ("key", KEY, "key<fry> array of shape ()"),
                ]
            ],
            ("nan", np.nan, ValueError, "must be finite; got nan"),
            ("inf", np.inf, ValueError, "must be finite; got inf"),
            ("minus-inf", -np.inf, ValueError, "must be finite; got -inf"),
            ("numpy-nan", np.float32("nan"), ValueError, "must be finite; got nan"),
            *[
                (
                    f"overflow-{type(value).__name__}-{text.rstrip('…')}",
                    value,
                    OverflowError,
                    f"must fit float32, whose largest value is {LARGEST_FLOAT32}; got "
                    f"{text}",
                )
                for value, text in [
                    (1e39, "1e+39"),
                    (-1e39, "-1e+39"),
                    (np.float64(1e39), "1e+39"),
                    (10**39, "1" + 39 * "0"),
                    (-(10**400), "-1000…"),
                ]
            ],
        ],
    ),
    traced(
        "reverse_sequence",
        "lda_coeff",
        jnp.ones(1, np.float32),
        "`lda_coeff` must be a real scalar; got traced float32 array of shape (1,)",
    ),
    traced(
        "reverse_sequence",
        "lda_coeff",
        1j,
        "`lda_coeff` must be a real scalar; got traced complex64 array of shape ()",
    ),
    *[
        traced(
            function,
            name,
            value,
            f"`{name}` {must}; got traced {in_32_bits(value).dtype} array of shape ()",
        )
        for pairs, value, must in [
            (AXES, 1, "must be a static integer"),
            (AXES, 1.0, "must be a static integer"),
            (
                [(function, "implementation") for function in REVERSALS],
                0,
                "must be 'gather' or 'scatter' or 'standalone' or None",
            ),
            ([("reverse_sequence", "training")], True, "must be a bool"),
            (NAMES[:1], 1, "must be a string or None"),
            (NAMES[1:], 1, "must be a string, a sequence of one string or None"),
        ]
        for function, name in pairs
    ],
]
