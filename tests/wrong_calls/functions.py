"""Valid calls of every public function, and calls in which arguments are wrong."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dml_jax
from wrong_calls.form import Wrong

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LENGTHS = np.array([2, 4, 3], np.int32)
WINDOW = dict(
    input_window_offsets=(0, 1),
    input_window_sizes=(3, 3),
    input_window_strides=(-2, 2),
)
VALID: dict[str, dict[str, Any]] = {
    "reverse_padded": dict(x=X, lengths=LENGTHS, axis=1),
    "reverse_subsequences": dict(
        input=X, sequence_lengths=LENGTHS[:, None], axis=1, implementation=None
    ),
    "reverse_sequence": dict(
        **dict(input=X, sequence_lens=LENGTHS, batch_axis=0, time_axis=1),
        **dict(training=True, lda_coeff=1, implementation=None),
        specified_outputs_name=None,
    ),
    "slice": dict(input=X, offsets=(1, 0), sizes=(1, 2), strides=(1, 3)),
    "slice1": dict(input=X, **WINDOW, output_sizes=(2, 1)),
    "slice_grad": dict(
        input_gradient=X[:2, :2], output_gradient_sizes=(4, 5), **WINDOW
    ),
    "fill_value_sequence": dict(
        sizes=(2, 3), value_data_type="float32", value_start=3, value_delta=2
    ),
    "fill_value_constant": dict(sizes=(2, 3), value_data_type="float32", value=13),
}

Argument = tuple[str, str]  # a function and one of its arguments
# A function, changes of its valid call, the error and the message after the function.
Row = tuple[str, dict[str, Any], type[Exception], str]


def arguments_named(*endings: str) -> list[Argument]:
    return [(f, name) for f in VALID for name in VALID[f] if name.endswith(endings)]


ARRAYS = arguments_named("input", "input_gradient", "x")
LENGTH_ARGUMENTS = arguments_named("lengths", "lens")
AXES = arguments_named("axis")
SEQUENCES = arguments_named("sizes", "offsets", "strides")
DTYPES = arguments_named("data_type")
VALUES = arguments_named("value", "start", "delta")

KEY = jax.random.key(0)
STRUCT = jax.ShapeDtypeStruct((2,), np.int32)
NO_INTEGERS = [None, "1", 1.0, np.nan, True, [1], np.timedelta64(1, "s"), STRUCT]


def in_32_bits(value: Any) -> jax.Array:
    """The weakly typed array that JAX makes of `value` outside 64-bit mode."""
    with jax.enable_x64(False):
        return jnp.asarray(value)


def call(function: str, **changes: Any) -> Any:
    """A valid call of `function`, except for the `changes`."""
    return getattr(dml_jax, function)(**{**VALID[function], **changes})


def wrong(
    arguments: Iterable[Argument],
    error: type[Exception],
    values: Iterable[Any],
    subject: str = "`{}`…",
    **changes: Any,
) -> Iterator[Wrong]:
    """Calls with each of the `values` as each of the arguments.

    The message begins with the function and `subject`, in which {} is the argument.
    """
    for function, name in arguments:
        for value in values:
            yield Wrong(
                "-".join([function, name, type(value).__name__, *changes]),
                functools.partial(call, function, **changes, **{name: value}),
                error,
                f"{function}: {subject.format(name)}",
            )


def traced(
    arguments: Iterable[Argument],
    value: Any,
    wrap: Callable[[Any], Any] = lambda value: value,
    subject: str = "`{}`…",
    **changes: Any,
) -> Iterator[Wrong]:
    """Calls under jit in which an argument is, or contains, a traced `value`."""
    for function, name in arguments:

        def run(function: str = function, name: str = name) -> None:
            def program(value: Any) -> Any:
                return call(function, **changes, **{name: wrap(value)})

            jax.jit(program)(value)

        yield Wrong(
            "-".join([function, name, "traced", type(value).__name__, *changes]),
            run,
            TypeError,
            f"{function}: {subject.format(name)}",
        )


def of_rows(rows: Iterable[Row]) -> Iterator[Wrong]:
    for function, changes, error, message in rows:
        run = functools.partial(call, function, **changes)
        name = "-".join([function, *changes])
        yield Wrong(name, run, error, f"{function}: {message}")


def in_x64(row: Wrong) -> Wrong:
    def run() -> None:
        with jax.enable_x64(True):
            row.call()

    return row._replace(name=f"x64-{row.name}", call=run)
