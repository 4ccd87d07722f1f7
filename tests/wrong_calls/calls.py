"""Valid calls of every public function, and calls in which one argument is wrong."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dml_jax

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LENGTHS = np.array([2, 4, 3], np.int32)
VALID: dict[str, dict[str, Any]] = {
    "reverse_padded": {"x": X, "lengths": LENGTHS, "axis": 1},
    "reverse_subsequences": {
        "input": X,
        "sequence_lengths": LENGTHS[:, None],
        "axis": 1,
    },
    "reverse_sequence": {
        "input": X,
        "sequence_lens": LENGTHS,
        "batch_axis": 0,
        "time_axis": 1,
        "training": True,
    },
    "slice": {"input": X, "offsets": (1, 0), "sizes": (1, 2), "strides": (1, 3)},
    "slice1": {
        "input": X,
        "input_window_offsets": (0, 1),
        "input_window_sizes": (3, 3),
        "input_window_strides": (-2, 2),
        "output_sizes": (2, 1),
    },
    "slice_grad": {
        "input_gradient": X[:2, :2],
        "output_gradient_sizes": (4, 5),
        "input_window_offsets": (0, 1),
        "input_window_sizes": (3, 4),
        "input_window_strides": (-2, 3),
    },
    "fill_value_sequence": {
        "sizes": (2, 3),
        "value_data_type": "float32",
        "value_start": 3,
        "value_delta": 2,
    },
    "fill_value_constant": {"sizes": (2, 3), "value_data_type": "float32", "value": 13},
}
REVERSALS = ["reverse_subsequences", "reverse_sequence"]

Pairs = Sequence[tuple[str, str]]  # a function and one of its arguments


def arguments_named(*endings: str) -> list[tuple[str, str]]:
    return [(f, name) for f in VALID for name in VALID[f] if name.endswith(endings)]


ARRAYS = arguments_named("input", "input_gradient", "x")
LINE_LENGTHS = arguments_named("lengths", "lens")
AXES = arguments_named("axis")
SEQUENCES = arguments_named("sizes", "offsets", "strides")
DTYPES = arguments_named("data_type")
FILLS = arguments_named("value", "start", "delta")

DATES = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], "M8[D]")
KEY = jax.random.key(0)
NO_INTEGERS = {
    "none": None,
    "string": "1",
    "float": 1.0,
    "nan": np.nan,
    "inf": np.inf,
    "complex": 1j,
    "bool": True,
    "list": [1],
    "1-d": np.array([1]),
    "duration": np.timedelta64(1, "s"),
    "shape": jax.ShapeDtypeStruct((), np.int32),
}


class Untyped:
    """An object with a dtype and a shape that is no array."""

    dtype, shape, ndim = np.dtype(np.float32), (3, 4), 2


class Wrong(NamedTuple):
    """A wrong call; its error begins with the function and `subject`."""

    id: str
    call: Callable[[], object]
    error: type[Exception]
    function: str
    subject: str  # a regular expression


def call(function: str, **changes: Any) -> Any:
    """A valid call of `function`, except for the `changes`."""
    return getattr(dml_jax, function)(**{**VALID[function], **changes})


def reverse(x: Any, lengths: Any, **options: Any) -> Any:
    options = {"batch_axis": 0, "time_axis": 1} | options
    return dml_jax.reverse_sequence(x, lengths, **options)


def wrong(
    pairs: Pairs,
    error: type[Exception],
    values: Mapping[str, Any],
    subject: str | None = None,
    **changes: Any,
) -> Iterator[Wrong]:
    """Calls with each of the `values` as each of the arguments."""
    for function, name in pairs:
        for what, value in values.items():
            run = functools.partial(call, function, **changes, **{name: value})
            yield Wrong(
                "-".join([function, name, what, *_words(changes)]),
                run,
                error,
                function,
                subject or rf"`{name}(\[\d\])?`",
            )


def wrong_calls(
    function: str,
    error: type[Exception],
    subject: str,
    calls: Mapping[str, dict[str, Any]],
) -> Iterator[Wrong]:
    """Calls with several changes each."""
    for what, changes in calls.items():
        run = functools.partial(call, function, **changes)
        yield Wrong(f"{function}-{what}", run, error, function, subject)


def traced(
    pairs: Pairs,
    value: Any,
    wrap: Callable[[Any], Any] = lambda value: value,
    subject: str | None = None,
    **changes: Any,
) -> Iterator[Wrong]:
    """Calls under jit in which an argument is, or contains, a traced `value`."""
    for function, name in pairs:

        def run(function: str = function, name: str = name) -> None:
            def program(value: Any) -> Any:
                return call(function, **changes, **{name: wrap(value)})

            jax.jit(program)(value)

        dtype, rank = np.asarray(value).dtype, np.ndim(wrap(value))
        yield Wrong(
            "-".join([function, name, f"traced-{dtype}-{rank}", *_words(changes)]),
            run,
            TypeError,
            function,
            subject or rf"`{name}(\[\d\])?`",
        )


def _words(changes: Mapping[str, Any]) -> Iterator[str]:
    for name, value in changes.items():
        yield value if isinstance(value, str) else name


def in_32_bits(value: Any) -> jax.Array:
    """The weakly typed array that JAX makes of `value` outside of 64-bit mode."""
    with jax.enable_x64(False):
        return jnp.asarray(value)


def generator() -> Iterator[int]:
    yield from (1, 1)
