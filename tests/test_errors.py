"""Every argument of every public function, given wrongly: the whole message it gets.

A row is a function, what is wrong, the arguments that differ from a valid call, the
exception and its message, which is compared whole. A message that ends with … goes on
in words that are JAX's, NumPy's or an address.
"""

import array
import functools
from collections.abc import Callable
from typing import NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import dml_jax

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LENGTHS = np.array([2, 4, 3], np.int32)
VALID = {
    "reverse_subsequences": dict(input=X, sequence_lengths=LENGTHS[:, None], axis=1),
    "reverse_sequence": dict(
        input=X, sequence_lens=LENGTHS, batch_axis=0, time_axis=1, training=True
    ),
    "slice": dict(input=X, offsets=(1, 0), sizes=(1, 2), strides=(1, 3)),
    "slice1": dict(
        input=X,
        input_window_offsets=(0, 1),
        input_window_sizes=(3, 3),
        input_window_strides=(-2, 2),
        output_sizes=(2, 1),
    ),
    "slice_grad": dict(
        input_gradient=X[:2, :2],
        output_gradient_sizes=(4, 5),
        input_window_offsets=(0, 1),
        input_window_sizes=(3, 4),
        input_window_strides=(-2, 3),
    ),
    "fill_value_sequence": dict(
        sizes=(2, 3), value_data_type="float32", value_start=3, value_delta=2
    ),
    "fill_value_constant": dict(sizes=(2, 3), value_data_type="float32", value=13),
}
ARRAYS = [
    (function, argument)
    for function, valid in VALID.items()
    for argument in valid
    if argument in ("input", "input_gradient")
]
LINE_LENGTHS = [
    ("reverse_subsequences", "sequence_lengths"),
    ("reverse_sequence", "sequence_lens"),
]
REVERSALS = [function for function, _ in LINE_LENGTHS]
AXES = [
    ("reverse_subsequences", "axis"),
    ("reverse_sequence", "batch_axis"),
    ("reverse_sequence", "time_axis"),
]
SEQUENCES = [
    (function, argument)
    for function, valid in VALID.items()
    for argument in valid
    if argument.endswith(("sizes", "offsets", "strides"))
]
COUNTED = [pair for pair in SEQUENCES if "fill" not in pair[0]]
WINDOWS = [  # and the shape in which each has to lie
    (function, {name: VALID[function][name] for name in names}, shape)
    for names in [("input_window_offsets", "input_window_sizes")]
    for function, shape in [("slice1", X.shape), ("slice_grad", (4, 5))]
]
FILLS = [
    ("fill_value_sequence", "value_start"),
    ("fill_value_sequence", "value_delta"),
    ("fill_value_constant", "value"),
]
NAMES = [("reverse_sequence", name) for name in ("name", "specified_outputs_name")]

NEEDS_X64 = (
    "has dtype {0}, which needs 64-bit mode; enable it with "
    "`jax.config.update('jax_enable_x64', True)` or inside "
    "`with jax.enable_x64(True):`, or cast to a narrower dtype than {0}"
)
LARGEST_FLOAT32 = "3.4028234663852886e+38"
DATES = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "M8[D]")
KEY = jax.random.key(0)


class Bad(NamedTuple):
    id: str
    call: Callable[[], object]
    error: type[Exception]
    message: str


def call(function, **changes):
    """A valid call of `function`, but for the `changes`."""
    return getattr(dml_jax, function)(**{**VALID[function], **changes})


def bad(function, what, changes, error, message):
    run = functools.partial(call, function, **changes)
    return Bad(f"{function}-{what}", run, error, f"{function}: {message}")


def traced(function, argument, value, message, wrap=lambda value: value, **changes):
    """A call under jit whose `argument` is, or has in it, a traced `value`."""

    def run():
        return jax.jit(
            lambda value: call(function, **changes, **{argument: wrap(value)})
        )(value)

    kind = type(value).__name__ if np.isscalar(value) else value.dtype
    rank = np.ndim(wrap(value))
    what = "-".join(map(str, [argument, "traced", kind, rank, *changes.values()]))
    return Bad(f"{function}-{what}", run, TypeError, f"{function}: {message}")


def for_each(pairs, rows):
    """The `rows` (what, value, error, message) of an argument, for each of `pairs`."""
    return [
        bad(f, f"{name}-{what}", {name: value}, error, f"`{name}` {message}")
        for f, name in pairs
        for what, value, error, message in rows
    ]


def describe(value):
    return f"{type(value).__name__} {value!r}"


def generator():
    yield from (1, 1)


# Arrays -------------------------------------------------------------------------------

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

# Lengths ------------------------------------------------------------------------------

NO_INTEGERS = "must have an integer dtype; got "


def shape_errors(what, lengths, got):
    """Lengths of a wrong shape, for both reversals."""
    return [
        bad(
            "reverse_subsequences",
            f"sequence_lengths-{what}",
            dict(sequence_lengths=lengths),
            ValueError,
            "`sequence_lengths` must have shape (3, 1), 1 along axis=1 and the size of "
            f"`input` or 1 along every other dimension; got {got}",
        ),
        bad(
            "reverse_sequence",
            f"sequence_lens-{what}",
            dict(sequence_lens=lengths),
            ValueError,
            "`sequence_lens` must have shape (3,), the size of `input` along "
            f"batch_axis=0; got {got}",
        ),
    ]


LENGTH_ERRORS = [
    *for_each(
        LINE_LENGTHS,
        [
            ("none", None, TypeError, NO_ARRAY + "NoneType …"),
            ("set", {1, 2, 3}, TypeError, NO_ARRAY + "set …"),
            ("dict", {"a": 1}, TypeError, NO_ARRAY + "dict …"),
            ("generator", generator(), TypeError, NO_ARRAY + "generator …"),
            ("nones", [None, None, None], TypeError, NO_ARRAY + "list …"),
            ("ragged", [[1, 2], [3]], TypeError, NO_ARRAY + "list …"),
            ("string", "abc", TypeError, NO_ARRAY + "str …"),
            ("strings", ["1", "2", "3"], TypeError, NO_ARRAY + "list …"),
            ("float", 1.0, TypeError, NO_INTEGERS + "float64"),
            ("floats", [1.0, 2.0, 3.0], TypeError, NO_INTEGERS + "float64"),
            ("nan", [1, 2, np.nan], TypeError, NO_INTEGERS + "float64"),
            ("inf", [1, 2, np.inf], TypeError, NO_INTEGERS + "float64"),
            ("complex", [1j, 2, 3], TypeError, NO_INTEGERS + "complex128"),
            ("bools", [True, False, True], TypeError, NO_INTEGERS + "bool"),
            ("jax-floats", jnp.ones(3), TypeError, NO_INTEGERS + "float32"),
            ("jax-bools", jnp.ones(3, bool), TypeError, NO_INTEGERS + "bool"),
            ("keys", jax.random.split(KEY, 3), TypeError, NO_INTEGERS + "key<fry>"),
            (
                "objects",
                np.array([1, 2, 3], object),
                TypeError,
                NO_INTEGERS + "object",
            ),
            ("dates", DATES, TypeError, NO_INTEGERS + "datetime64[D]"),
            (
                "durations",
                np.array([1, 2, 3], "m8[s]"),
                TypeError,
                NO_INTEGERS + "timedelta64[s]",
            ),
            (
                "structured",
                np.zeros(3, [("a", np.int32)]),
                TypeError,
                NO_INTEGERS + "[('a', '<i4')]",
            ),
            ("big-endian", LENGTHS.astype(">i4"), TypeError, NO_DTYPE + ">i4"),
            ("big-endian-64", LENGTHS.astype(">i8"), TypeError, NO_DTYPE + ">i8"),
            ("masked", np.ma.array(LENGTHS, mask=[0, 1, 0]), TypeError, NO_MASK),
            (
                "huge",
                [2**70, 1, 1],
                OverflowError,
                "must fit int64; got list [1180591620717411303424, 1, 1]",
            ),
        ],
    ),
    *shape_errors("rank-0", 3, "()"),
    *shape_errors("traceable-rank-0", jnp.asarray(3), "()"),
    *shape_errors("too-few", LENGTHS[:2], "(2,)"),
    *shape_errors("too-many", jnp.ones(4, int), "(4,)"),
    *shape_errors("empty", [], "(0,)"),
    *shape_errors("2-d", [[1, 2], [3, 4]], "(2, 2)"),
    *shape_errors("transposed", LENGTHS[None], "(1, 3)"),
    shape_errors("of-the-other-1", LENGTHS, "(3,)")[0],
    shape_errors("of-the-other-2", LENGTHS[:, None], "(3, 1)")[1],
    shape_errors("broadcast", LENGTHS[:1], "(1,)")[1],
    bad(
        "reverse_sequence",
        "sequence_lens-along-time",
        dict(sequence_lens=LENGTHS, batch_axis=1, time_axis=0),
        ValueError,
        "`sequence_lens` must have shape (4,), the size of `input` along batch_axis=1; "
        "got (3,)",
    ),
    *[
        traced(
            function,
            name,
            1.0,
            f"`{name}` must have an integer dtype; got float32",
            lambda length: jnp.full(3, length),
        )
        for function, name in LINE_LENGTHS
    ],
    traced(
        "reverse_sequence",
        "sequence_lens",
        1,
        "`input` of dtype <U1 must come with `sequence_lens` that are concrete, "
        "outside of jit, vmap and grad; got traced int32 array of shape (3,)",
        lambda length: jnp.full(3, length),
        input=np.array([["a", "b"]] * 3),
    )._replace(id="reverse_sequence-sequence_lens-traced-for-strings"),
]

# Axes and options ---------------------------------------------------------------------

NO_INTEGER = "must be a static integer; got "
NO_SCALAR = "must be a real scalar; got "
NO_IMPLEMENTATION = "must be 'gather' or 'scatter' or 'standalone' or None; got "
NO_NAME = "must be a string or None; got "

OPTION_ERRORS = [
    *for_each(
        AXES,
        [
            *[
                (what, value, TypeError, NO_INTEGER + describe(value))
                for what, value in [
                    ("none", None),
                    ("string", "1"),
                    ("float", 1.0),
                    ("nan", np.nan),
                    ("inf", np.inf),
                    ("complex", 1j),
                    ("bool", True),
                    ("numpy-bool", np.True_),
                    ("numpy-float", np.float32(1)),
                    ("date", np.datetime64("2020-01-01")),
                    ("list", [1]),
                    ("tuple", (0, 1)),
                    ("dict", {0: 1}),
                ]
            ],
            ("1-d", X[0, :1], TypeError, NO_INTEGER + "float32 array of shape (1,)"),
            ("jax", jnp.ones(()), TypeError, NO_INTEGER + "float32 array of shape ()"),
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
    *for_each(
        NAMES,
        [
            ("empty", "", ValueError, "must not be empty; got ''"),
            *[
                (what, value, TypeError, NO_NAME + describe(value))
                for what, value in [
                    ("int", 3),
                    ("bytes", b"reverse"),
                    ("bool", True),
                    ("list", ["reverse"]),
                ]
            ],
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
                    ("jax-1-d", jnp.ones(1), "float32 array of shape (1,)"),
                    ("jax-bool", jnp.array(True), "bool array of shape ()"),
                    ("jax-complex", jnp.array(1j), "complex64 array of shape ()"),
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
        jnp.ones(1),
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
            f"`{name}` {must}; got traced {jnp.result_type(value)} array of shape ()",
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
            (NAMES, 1, "must be a string or None"),
        ]
        for function, name in pairs
    ],
]

# Offsets, sizes and strides -----------------------------------------------------------

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
        for what, value in [
            ("none", None),
            ("string", "1"),
            ("float", 1.0),
            ("nan", np.nan),
            ("inf", np.inf),
            ("complex", 1j),
            ("bool", True),
            ("list", [1]),
        ]
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
                    ("jax-2-d", jnp.ones((1, 2)), "float32 array of shape (1, 2)"),
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
                "`input_window_strides[1]` must not be 0; got 0",
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

# Data types and values ----------------------------------------------------------------

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
                    ("jax-array", jnp.ones(2), "float32 array of shape (2,)"),
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
    *kind_error("jax-1-d", "float32", jnp.ones(1), "float32 array of shape (1,)"),
    *kind_error("jax-1-d", "int32", jnp.ones(1, int), "int32 array of shape (1,)"),
    *kind_error("2-d", "float32", X, "float32 array of shape (3, 4)"),
    *kind_error("jax", "float16", jnp.float32(1), "float32 array of shape ()"),
    *kind_error("jax-int", "float32", jnp.int32(1), "int32 array of shape ()"),
    *kind_error("jax-float", "int32", jnp.float32(1), "float32 array of shape ()"),
    *kind_error("jax-bool", "float32", jnp.bool_(True), "bool array of shape ()"),
    *kind_error("jax-complex", "float32", jnp.array(1j), "complex64 array of shape ()"),
    *kind_error("key", "float32", KEY, "key<fry> array of shape ()"),
    *kind_error("weak", "int4", jnp.asarray(2.5), "float32 array of shape ()"),
    *kind_error("weak", "bfloat16", jnp.asarray(1j), "complex64 array of shape ()"),
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
        jnp.asarray(300),
        OverflowError,
        "must be in [-128, 255], the signed or unsigned range of int8; got 300",
    ),
    *value_error(
        "weak-70000",
        "float16",
        jnp.asarray(7e4),
        OverflowError,
        "must fit float16, whose largest value is 65504.0; got 70000.0",
    ),
    *[
        traced(
            function,
            name,
            value,
            f"`{name}` must be {NUMBERS[dtype]} or a scalar array of dtype {dtype}; "
            f"got traced {jnp.result_type(value)} array of shape {np.shape(value)}",
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

# checked ------------------------------------------------------------------------------

LOST = (
    "checked: the error can only be read outside of transformations; wrap the "
    "outermost function, as in `checked(jax.jit(fn))`"
)


def reverse(x, lengths):
    return dml_jax.reverse_sequence(x, lengths, batch_axis=0, time_axis=1)


CHECKED = dml_jax.checked(reverse)
BATCH = np.stack([X, X]), np.stack([LENGTHS, LENGTHS])
CHECKED_ERRORS = [
    *[
        Bad(
            f"checked-fn-{what}",
            functools.partial(dml_jax.checked, value),
            TypeError,
            f"checked: `fn` must be callable; got {got}",
        )
        for what, value, got in [
            ("int", 3, "int 3"),
            ("none", None, "NoneType None"),
            ("string", "reverse", "str 'reverse'"),
            ("array", X, "float32 array of shape (3, 4)"),
        ]
    ],
    *[
        Bad(f"checked-under-{what}", run, TypeError, LOST)
        for what, run in [
            ("jit", lambda: jax.jit(CHECKED)(X, LENGTHS)),
            ("jit-of-nothing", lambda: jax.jit(lambda: CHECKED(X, LENGTHS))()),
            ("vmap", lambda: jax.vmap(CHECKED)(*BATCH)),
            ("grad", lambda: jax.grad(lambda x: CHECKED(x, LENGTHS).sum())(X)),
            ("jvp", lambda: jax.jvp(lambda x: CHECKED(x, LENGTHS), (X,), (X,))),
            ("remat", lambda: jax.checkpoint(CHECKED)(X, LENGTHS)),
            ("eval_shape", lambda: jax.eval_shape(CHECKED, X, LENGTHS)),
            (
                "scan",
                lambda: jax.lax.scan(lambda i, xs: (i, CHECKED(*xs)), 0, BATCH),
            ),
            ("checked", lambda: dml_jax.checked(CHECKED)(X, LENGTHS)),
        ]
    ],
    *[
        Bad(
            f"checked-{what}",
            functools.partial(CHECKED, X, lengths),
            ValueError,
            f"reverse_sequence: `sequence_lens` must be in [0, 4]; got {got}",
        )
        for what, lengths, got in [
            ("too-long", np.array([2, 5, 3], np.int32), "2 to 5"),
            ("negative", np.array([2, -1, 3], np.int8), "-1 to 3"),
            ("both", jnp.array([7, -2, 3]), "-2 to 7"),
            ("too-long-uint32", np.full(3, 2**31, np.uint32), f"{2**31} to {2**31}"),
        ]
    ],
    Bad(
        "checked-line-lengths",
        functools.partial(
            dml_jax.checked(lambda n: dml_jax.reverse_subsequences(X, n, -2)),
            np.array([[0, 4, 1, 2]], np.int32),
        ),
        ValueError,
        "reverse_subsequences: `sequence_lengths` must be in [0, 3]; got 0 to 4",
    ),
    Bad(
        "checked-static-error",
        functools.partial(CHECKED, X, LENGTHS[:2]),
        ValueError,
        "reverse_sequence: `sequence_lens` must have shape (3,), the size of `input` "
        "along batch_axis=0; got (2,)",
    ),
    # jit takes 64-bit integers modulo 2^32, and 2^33 + 1 would pass for 1.
    Bad(
        "checked-wide-argument",
        functools.partial(CHECKED, X, np.array([1, 2**33 + 1, 3])),
        ValueError,
        "checked: arguments must fit 32 bits outside of 64-bit mode, or JAX takes them "
        f"modulo 2^32; got {2**33 + 1}",
    ),
]

# 64-bit mode --------------------------------------------------------------------------


def in_x64(row):
    def run():
        with jax.enable_x64(True):
            return row.call()

    return row._replace(id=f"x64-{row.id}", call=run)


X64_ERRORS = [
    in_x64(row)
    for row in [
        *range_error("int64", 2**64, -(2**63), 2**64 - 1),
        *range_error("uint64", -(2**63) - 1, -(2**63), 2**64 - 1),
        *overflow("float64", 10**400, "1.7976931348623157e+308", "1000…"),
        bad(
            "reverse_sequence",
            "lda_coeff-overflow",
            dict(lda_coeff=10**400),
            OverflowError,
            "`lda_coeff` must fit float64, whose largest value is "
            "1.7976931348623157e+308; got 1000…",
        ),
        *for_each(
            ARRAYS,
            [
                ("huge", [[2**70]], OverflowError, "must fit int64; got list …"),
                ("none", None, TypeError, NO_ARRAY + "NoneType …"),
            ],
        ),
    ]
]

ERRORS = [
    *ARRAY_ERRORS,
    *LENGTH_ERRORS,
    *OPTION_ERRORS,
    *SEQUENCE_ERRORS,
    *FILL_ERRORS,
    *CHECKED_ERRORS,
    *X64_ERRORS,
]


def test_every_row_has_a_name_of_its_own():
    assert len({row.id for row in ERRORS}) == len(ERRORS)


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.id)
def test_message(row):
    with pytest.raises(row.error) as raised:
        row.call()
    assert type(raised.value) is row.error
    opening, ellipsis, _ = row.message.partition("…")
    message = str(raised.value)
    assert (message[: len(opening)] if ellipsis else message) == opening


# What must not be an error ------------------------------------------------------------


@pytest.mark.parametrize("function", VALID)
def test_the_call_that_the_table_varies_is_valid(function, x64):
    call(function)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, ml_dtypes.int4])
def test_lengths_of_any_integer_dtype(dtype, x64):
    result = reverse(X, LENGTHS.astype(dtype))
    np.testing.assert_array_equal(result, reverse(X, LENGTHS))


def test_lengths_in_a_list_of_traced_numbers():
    result = jax.jit(lambda n: reverse(X, [n, 4, 3]))(2)
    np.testing.assert_array_equal(result, reverse(X, LENGTHS))


def test_input_in_a_list_of_traced_numbers():
    result = jax.jit(lambda x: reverse([[x, 2.0], [3.0, 4.0]], [2, 0]))(1.0)
    np.testing.assert_array_equal(result, [[2, 1], [3, 4]])


def test_strides_beyond_every_axis():
    far = dict(offsets=(1, 2), sizes=(1, 1), strides=(2**70, 2**31))
    np.testing.assert_array_equal(call("slice", **far), X[1:2, 2:3])
    far = dict(input_window_strides=(2**70, -(2**63)), output_sizes=(1, 1))
    np.testing.assert_array_equal(call("slice1", **far), X[:1, 3:])
    del far["output_sizes"]
    result = call("slice_grad", input_gradient=X[:1, 1:2], **far)
    np.testing.assert_array_equal(np.argwhere(result), [[0, 4]])


@pytest.mark.parametrize("coefficient", [2**70, np.float64(0.5), np.array(3), 0])
def test_coefficients_of_any_real_kind(coefficient):
    call("reverse_sequence", lda_coeff=coefficient)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int4", "float16", "complex64"])
def test_traced_python_numbers(dtype):
    result = jax.jit(lambda value: dml_jax.fill_value_constant((1,), dtype, value))(5)
    np.testing.assert_array_equal(result, np.array([5], dtype))


@pytest.mark.parametrize("sizes", [(2, 2**31), (2, 2, 2**31), (0, 2**40)], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "uint32", "float16", "float32"])
def test_more_elements_than_int32_counts(sizes, dtype):
    result = jax.eval_shape(
        lambda: dml_jax.fill_value_sequence(sizes, dtype, value_start=0, value_delta=1)
    )
    assert (result.shape, result.dtype) == (sizes, dtype)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_fills_of_a_symbolic_size_without_bounds(dtype):
    def like(x):
        return dml_jax.fill_value_sequence(x.shape, dtype, 10, -2)

    shape = jax.export.symbolic_shape("n, m")
    exported = jax.export.export(jax.jit(like))(jax.ShapeDtypeStruct(shape, np.int8))
    np.testing.assert_array_equal(exported.call(np.ones((1, 3), np.int8)), [[10, 8, 6]])


def test_checked_around_a_gradient():
    gradient = dml_jax.checked(jax.grad(lambda x: jnp.sum(reverse(x, LENGTHS) * X)))
    np.testing.assert_array_equal(gradient(X), reverse(X, LENGTHS))


# Anything for anything ----------------------------------------------------------------

# No value makes a large array, whichever argument it becomes.
ODDITIES = [
    *[None, True, 0, 1, -1, 2, 5, 2**31, 2**40, 2**70, -(2**70)],
    *[0.0, 1.5, -1e39, np.nan, np.inf, 1j, "", "abc", "gather", "float32", b"abc"],
    *[[], (), (1,), (0, 0), [1, 1], (2, 1), [0, 2**40], [-1, 1], (1, 1, 1), range(2)],
    *[[1.5, 2.5], [True, False], ["a", "b"], [None, None], [2**70, 1], [np.nan, 1]],
    *[[[1, 2], [3, 4]], [[1, 2], [3]], {1, 2}, {"a": 1}, object(), int, float, len],
    *[X, X[0], X[0, 0], X > 3, X.astype(int), X.astype(float), X.astype(complex)],
    *[X.astype(">f4"), X.astype(np.longdouble), X.astype(object), X.astype(str)],
    *[X.astype(ml_dtypes.bfloat16), X.astype(ml_dtypes.int4), np.ma.array(X)],
    *[LENGTHS, LENGTHS[:, None], LENGTHS.astype(np.uint64), LENGTHS.astype(np.int8)],
    *[np.array([2, 2**40, -3]), np.zeros((0, 3)), np.zeros((3, 0), np.int32)],
    *[np.float16(2), np.int64(2), np.uint8(255), np.bool_(True), np.longdouble(2)],
    *[DATES, DATES[0], np.timedelta64(3, "ns"), np.zeros((3, 4), [("a", np.int32)])],
    *[np.zeros(3, "V4"), np.array(3, object), np.zeros((3, 4), jax.dtypes.float0)],
    *[jnp.asarray(X), jnp.asarray(2), jnp.asarray(300), jnp.asarray(2.5)],
    *[jnp.float32(2), jnp.int8(1), jnp.ones(1), jnp.ones(2, int), jnp.array(True)],
    *[KEY, jax.random.split(KEY, (3, 4)), jax.ShapeDtypeStruct((3, 4), np.float32)],
    *["int8", "uint4", "bool", "int64", "complex64", "float8_e4m3fn", "m8[s]", ">i4"],
    *[np.float16, np.dtype("V4"), KEY.dtype, array.array("d", [1, 2]), memoryview(X)],
]


def message_of(function, changes):
    """What a call says when it fails as it may, None when it does not fail."""
    try:
        call(function, **changes)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("mode", ["x32", "x64"])
@pytest.mark.parametrize("function", VALID)
@hypothesis.settings(max_examples=150)
@hypothesis.given(data=st.data())
def test_anything_gives_a_result_or_one_of_our_errors(function, mode, data):
    names = [*VALID[function]]
    if function in REVERSALS:
        names += ["implementation"]
    if function == "reverse_sequence":
        names += ["lda_coeff", "name", "specified_outputs_name"]
    any_value = st.integers(0, len(ODDITIES) - 1).map(ODDITIES.__getitem__)
    changes = data.draw(
        st.dictionaries(st.sampled_from(names), any_value, min_size=1, max_size=2)
    )
    with jax.enable_x64(mode == "x64"):
        message = message_of(function, changes)
    assert message is None or message.startswith(f"{function}: ")


# What is remembered -------------------------------------------------------------------


class Pair(NamedTuple):
    first: int
    second: int


def test_a_valid_call_does_not_make_an_equal_one_valid():
    """(True, 2) equals (1, 2), and so does any tuple class with these elements."""
    for sizes in ((1, 2), Pair(1, 2)):
        assert dml_jax.fill_value_constant(sizes, "int8", 1).shape == (1, 2)
    for sizes in ((True, 2), (1.0, 2), Pair(True, 2), Pair(1.0, 2)):
        with pytest.raises(TypeError, match=r"^fill_value_constant: `sizes.0.` must"):
            dml_jax.fill_value_constant(sizes, "int8", 1)
    x, lengths = X[:2, :2], np.array([[2, 2]])
    dml_jax.reverse_subsequences(x, lengths, 0)
    with pytest.raises(TypeError, match=r"^reverse_subsequences: `axis` must"):
        dml_jax.reverse_subsequences(x, lengths, False)


def test_an_axis_that_changes_is_looked_at_again():
    class Axis:
        value = 0

        def __index__(self):
            return self.value

    axis = Axis()
    dml_jax.reverse_subsequences(X[:2, :2], np.array([[2, 2]]), axis)
    axis.value = 1
    with pytest.raises(ValueError, match=r"^reverse_subsequences: `sequence_lengths`"):
        dml_jax.reverse_subsequences(X[:2, :2], np.array([[2, 2]]), axis)


@pytest.mark.parametrize("name", ["float6_e2m3fn", "float6_e3m2fn", "int1", "uint1"])
def test_dtypes_of_ml_dtypes_that_jax_cannot_compute_with(name):
    dtype = np.dtype(getattr(ml_dtypes, name, "V1"))
    with pytest.raises(TypeError, match=r"^slice: `input` must have a dtype that JAX"):
        dml_jax.slice(np.zeros(3, dtype), (0,), (1,))


def test_an_adjoint_needs_a_zero():
    gradient = np.ones(1, ml_dtypes.float8_e8m0fnu)
    with pytest.raises(TypeError, match="must have a dtype with a zero"):
        dml_jax.slice_grad(gradient, (3,), (1,), (1,), (1,))


def test_one_error_is_one_traceback():
    with pytest.raises(ValueError, match=r"^reverse_sequence") as error:
        reverse(X, LENGTHS[:2])
    assert error.value.__context__ is None
