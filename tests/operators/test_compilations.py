"""What has been compiled is not compiled again, however a call is written."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from sampling import default_of

import dml_jax

pytestmark = pytest.mark.usefixtures("with_caches")
COMPILATION = "/jax/core/compile/backend_compile_duration"
TRACE = "/jax/core/compile/jaxpr_trace_duration"
# The programs of JAX by which `jnp.asarray` converts arguments.
CONVERSIONS = "stage", "convert_element_type", "broadcast_in_dim", "concatenate"
SIZES = itertools.count(1001)
Call = Callable[[], Any]


def new_shape() -> tuple[int, int, int]:
    """A shape no test has had before, so that its first call is the first of all."""
    return 7, 11, next(SIZES)


@contextlib.contextmanager
def recorded_events() -> Iterator[list[str]]:
    """The events of JAX that happen inside, by name."""
    events: list[str] = []

    def listen(event: str, _: float, fun_name: str = "", **__: Any) -> None:
        if not any(name in fun_name for name in CONVERSIONS):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def compilations(call: Call) -> int:
    with recorded_events() as events:
        jax.block_until_ready(call())
    return events.count(COMPILATION)


def require_nothing_compiled(calls: Iterable[Call]) -> None:
    """None of the calls is traced or compiled; names them by their position."""
    found = {}
    for position, call in enumerate(calls):
        with recorded_events() as events:
            jax.block_until_ready(call())
        if {COMPILATION, TRACE} & set(events):
            found[position] = events
    assert not found


def ones(shape: tuple[int, ...]) -> np.ndarray:
    return np.ones(shape, np.float32)


def lengths(*shape: int, value: int = 3) -> np.ndarray:
    return np.full(shape, value, np.int32)


WINDOW = {
    "input_window_offsets": (0, 1, 2),
    "input_window_sizes": (4, 5, 6),
    "input_window_strides": (1, -2, 3),
}
ARRAY = np.ndarray, np.floating
ONE, TWO = np.float32(1), np.float32(2)
FLOAT32 = np.dtype("float32")
# The arguments of each function, for a shape.
ARGUMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "reverse_padded": lambda *n: {"x": ones(n), "lengths": lengths(n[0]), "axis": 1},
    "reverse_subsequences": lambda *n: {
        "input": ones(n),
        "sequence_lengths": lengths(n[0], 1, 1),
        "axis": 1,
    },
    "reverse_sequence": lambda *n: {
        "input": ones(n),
        "sequence_lens": lengths(n[1]),
        "batch_axis": 1,
        "lda_coeff": 0.75,
    },
    "slice": lambda *n: {"input": ones(n), "offsets": (0, 1, 2), "sizes": (4, 5, 6)},
    "slice1": lambda *n: {"input": ones(n), **WINDOW},
    "slice_grad": lambda *n: {
        "input_gradient": ones((4, 3, 2)),
        "output_gradient_sizes": n,
        **WINDOW,
    },
    "fill_value_constant": lambda *n: {
        "sizes": n,
        "value_data_type": FLOAT32,
        "value": ONE,
    },
    "fill_value_sequence": lambda *n: {
        "sizes": n,
        "value_data_type": FLOAT32,
        "value_start": ONE,
        "value_delta": TWO,
    },
}
OTHERS: dict[str, list[dict[str, Any]]] = {
    "reverse_padded": [{"axis": -2}, {"lengths": [2] * 7}],
    "reverse_subsequences": [
        *[{"axis": -2}, {"implementation": None}, {"sequence_lengths": [[[2]]] * 7}],
        *[{"sequence_lengths": lengths(7, 1, 1, value=n)} for n in (9, -1)],
    ],
    "reverse_sequence": [
        *[{"time_axis": 0, "training": np.bool_(True), "name": None}],
        *[{"lda_coeff": 0.5}, {"lda_coeff": np.float32(0.25)}],
        *[{"sequence_lens": [1] * 11}, {"sequence_lens": lengths(11, value=100)}],
    ],
    "slice": [{"strides": None}, {"strides": (1, 1, 1)}],
    "slice1": [{"output_sizes": None}, {"output_sizes": (4, 3, 2)}],
    "fill_value_constant": [
        {"value": value} for value in (2, np.nan, np.float64(4), np.int8(1))
    ],
    "fill_value_sequence": [{"value_start": 2, "value_delta": np.inf}],
}


class Index:
    """What operator.index takes."""

    def __init__(self, number: int):
        self.number = number

    def __index__(self) -> int:
        return self.number


def strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array[..., None], 2, axis=-1)[..., 1]


# The forms in which an argument may be written, by its type.
FORMS: dict[type, list[Callable[[Any], Any]]] = {
    int: [int, np.int8, np.array, jnp.int32, Index],
    tuple: [
        *[tuple, list, lambda n: np.array(n, np.int16), lambda n: jnp.array(n)],
        *[lambda n: [np.int16(k) for k in n], lambda n: [jnp.int32(k) for k in n]],
    ],
    np.ndarray: [np.asarray, jnp.asarray, strided, np.asfortranarray],
    np.dtype: [np.dtype, str, lambda dtype: dtype.type],
    object: [lambda n: n, np.asarray, jnp.asarray],
}


def calls_of(function: str) -> list[Call]:
    """Calls of a new shape, in all forms and with other values."""
    arguments = ARGUMENTS[function](*new_shape())
    changes: list[dict[str, Any]] = [{}, *OTHERS.get(function, [])]
    changes += [
        {name: form(value)}
        for name, value in arguments.items()
        for form in next(f for kind, f in FORMS.items() if isinstance(value, kind))
    ]
    run = getattr(dml_jax, function)
    return [functools.partial(run, **{**arguments, **each}) for each in changes]


@pytest.mark.usefixtures("x32", "nans_are_data")  # lists are of 32 bits then
@pytest.mark.parametrize("function", ARGUMENTS)
def test_other_spellings_and_values_compile_nothing(function: str) -> None:
    first, *others = calls_of(function)
    assert compilations(first) == 1
    require_nothing_compiled([*others, first])


# Inside of jit ------------------------------------------------------------------------


@pytest.mark.parametrize("function", ARGUMENTS)
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad], ids=["value", "grad"])
def test_a_program_is_traced_once(function: str, transform: Any) -> None:
    arguments, traced = ARGUMENTS[function](*new_shape()), []
    arrays = {name: x for name, x in arguments.items() if isinstance(x, ARRAY)}
    lengths = {name: arrays.pop(name) for name in [*arrays] if "len" in name}

    def loss(arrays: dict[str, Any], lengths: dict[str, Any]) -> jax.Array:
        traced.append(arrays)
        y = getattr(dml_jax, function)(**{**arguments, **arrays, **lengths})
        return jnp.sum(y * y)

    program, given = jax.jit(transform(loss)), (arrays, lengths)
    others = [jax.tree.map(lambda x, k=k: x * x.dtype.type(k), given) for k in (2, 3)]
    assert compilations(lambda: program(*given)) == 1
    require_nothing_compiled(functools.partial(program, *other) for other in others)
    assert len(traced) == 1


def test_coefficients_compile_no_new_backward_pass() -> None:
    """A number and an array are two kinds; of each kind any value will do."""
    shape = new_shape()
    x, batch = ones(shape), lengths(shape[1])

    def backward(coefficient: Any) -> Call:
        _, pull = jax.vjp(
            lambda x: dml_jax.reverse_sequence(x, batch, lda_coeff=coefficient), x
        )
        return lambda: pull(x)[0]

    for coefficient in (2.0, jnp.float32(1)):
        jax.block_until_ready(backward(coefficient)())
    for coefficient in (0.5, np.float32(2), 3, np.int8(4), *jnp.arange(4, dtype="f")):
        assert compilations(backward(coefficient)) == 0


# Memory -------------------------------------------------------------------------------


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="asks for what XLA allocates on a CPU"
)
@pytest.mark.parametrize(
    "dtype",
    default_of(
        ["uint8", "int4", "float8_e5m2", "bfloat16", "float32", "complex64"],
        *("uint8", "int4"),
    ),
)
@pytest.mark.parametrize(
    ("shape", "mapped", "axis"),
    [
        ((2, 3, 4, 5, 64, 6), (2, 3, 4, 5, 1, 6), 4),
        ((64, 512), (64, 1), 1),
        ((8, 64, 5, 6), (8, 1, 1, 1), 1),
        ((2**16, 2**15 + 8), (2**16, 1), 1),  # with indices of 64 bits
    ],
)
@pytest.mark.parametrize("is_exported", [False, True])
def test_scatters_take_four_results_of_memory(
    shape: Any, mapped: Any, axis: int, dtype: str, is_exported: bool
) -> None:
    run = jax.jit(
        functools.partial(
            dml_jax.reverse_subsequences, axis=axis, implementation="scatter"
        )
    )
    x = jax.ShapeDtypeStruct(shape, dtype)
    lengths = jax.ShapeDtypeStruct(mapped, np.int32)
    if is_exported:
        run = jax.jit(jax.export.export(run)(x, lengths).call)
    memory = run.lower(x, lengths).compile().memory_analysis()
    assert memory.temp_size_in_bytes <= 4 * x.size * x.dtype.itemsize
