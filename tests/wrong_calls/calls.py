"""Valid calls of every public function, and how a row of test_errors.py changes one."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
NO_INTEGERS = [
    ("none", None),
    ("string", "1"),
    ("float", 1.0),
    ("nan", np.nan),
    ("inf", np.inf),
    ("complex", 1j),
    ("bool", True),
    ("list", [1]),
]


class Bad(NamedTuple):
    id: str
    call: Callable[[], object]
    error: type[Exception]
    message: str


def call(function, **changes):
    """A valid call of `function`, but for the `changes`."""
    return getattr(dml_jax, function)(**{**VALID[function], **changes})


def reverse(x, lengths):
    return dml_jax.reverse_sequence(x, lengths, batch_axis=0, time_axis=1)


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


def in_32_bits(value):
    """What JAX makes of `value` outside of 64-bit mode."""
    with jax.enable_x64(False):
        return jnp.asarray(value)


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
