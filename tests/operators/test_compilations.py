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
from assertions import assert_same_bits
from sampling import default_of

import dml_jax
from dml_jax import reference

pytestmark = pytest.mark.usefixtures("with_caches")
COMPILATION = "/jax/core/compile/backend_compile_duration"
TRACE = "/jax/core/compile/jaxpr_trace_duration"
SIZES = itertools.count(1001)
Call = Callable[[], Any]


def new_shape() -> tuple[int, int, int]:
    """A shape no test has had before, so that its first call is the first of all."""
    return 7, 11, next(SIZES)


@contextlib.contextmanager
def recorded_events() -> Iterator[list[str]]:
    """The events of JAX that happen inside, by name."""
    events: list[str] = []

    def listen(event: str, _: float, **__: Any) -> None:
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


def ones(shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(np.ones(shape, np.float32))


def lengths(*shape: int, value: int = 3) -> jax.Array:
    return jnp.asarray(np.full(shape, value, np.int32))


def int64s(*values: int) -> tuple[np.int64, ...]:
    return tuple(np.int64(value) for value in values)


def reverse_subsequences(shape: tuple[int, ...]) -> list[Call]:
    x, lines = ones(shape), lengths(shape[0], 1, 1)
    reverse = functools.partial(dml_jax.reverse_subsequences, x)
    return [
        lambda: reverse(lines, 1),
        lambda: reverse(lines, -2),
        lambda: reverse(sequence_lengths=lines, axis=np.int32(1), implementation=None),
        lambda: reverse(lengths(shape[0], 1, 1, value=9), 1),
        lambda: reverse(np.full((shape[0], 1, 1), -1, np.int32), 1),
        lambda: reverse([[[2]]] * shape[0], 1),
        lambda: dml_jax.reverse_subsequences(np.zeros(shape, np.float32), lines, 1),
    ]


def reverse_sequence(shape: tuple[int, ...]) -> list[Call]:
    x, batch = ones(shape), lengths(shape[1])
    reverse = functools.partial(dml_jax.reverse_sequence, x)
    return [
        lambda: reverse(batch),
        lambda: reverse(batch, batch_axis=1, time_axis=0, training=True, name=None),
        lambda: reverse(batch, batch_axis=np.int64(1), training=np.bool_(True)),
        lambda: reverse(batch, lda_coeff=0.5),
        lambda: reverse(batch, lda_coeff=np.float32(0.25)),
        lambda: reverse(np.full(shape[1], 100, np.int32)),
        lambda: reverse([1] * shape[1]),
    ]


def slice_(shape: tuple[int, ...]) -> list[Call]:
    x, other = ones(shape), ones(shape)
    return [
        lambda: dml_jax.slice(x, (0, 1, 2), (4, 5, 6)),
        lambda: dml_jax.slice(x, [0, 1, 2], [4, 5, 6], None),
        lambda: dml_jax.slice(x, int64s(0, 1, 2), np.array([4, 5, 6]), (1, 1, 1)),
        lambda: dml_jax.slice(other, offsets=(0, 1, 2), sizes=np.array([4, 5, 6])),
    ]


def slice1(shape: tuple[int, ...]) -> list[Call]:
    x = ones(shape)
    return [
        lambda: dml_jax.slice1(x, (0, 1, 2), (4, 5, 6), (1, -2, 3)),
        lambda: dml_jax.slice1(x, [0, 1, 2], [4, 5, 6], [1, -2, 3], None),
        lambda: dml_jax.slice1(x, (0, 1, 2), (4, 5, 6), (1, -2, 3), (4, 3, 2)),
        lambda: dml_jax.slice1(x, int64s(0, 1, 2), (4, 5, 6), np.array([1, -2, 3])),
    ]


def slice_grad(shape: tuple[int, ...]) -> list[Call]:
    grad = functools.partial(dml_jax.slice_grad, ones((4, 3, 2)))
    return [
        lambda: grad(shape, (0, 1, 2), (4, 5, 6), (1, -2, 3)),
        lambda: grad(list(shape), [0, 1, 2], [4, 5, 6], [1, -2, 3]),
        lambda: grad(int64s(*shape), (0, 1, 2), (4, 5, 6), np.array([1, -2, 3])),
    ]


def fill_value_constant(shape: tuple[int, ...]) -> list[Call]:
    fill, of_jax = dml_jax.fill_value_constant, jnp.float32(5)
    return [
        lambda: fill(shape, "float32", 1.0),
        lambda: fill(list(shape), np.float32, 2),
        lambda: fill(int64s(*shape), jnp.float32, np.float32(3)),
        lambda: fill(np.array(shape), np.dtype("float32"), np.float64(4)),
        lambda: fill(shape, "f4", of_jax),
        lambda: fill(shape, "float32", np.nan),
    ]


def fill_value_sequence(shape: tuple[int, ...]) -> list[Call]:
    fill, of_jax = dml_jax.fill_value_sequence, jnp.float32(5)
    return [
        lambda: fill(shape, "float32", 1.0, 2.0),
        lambda: fill(list(shape), np.float32, 2, 3.0),
        lambda: fill(int64s(*shape), jnp.float32, np.float32(3), np.int8(1)),
        lambda: fill(np.array(shape), np.dtype("float32"), np.float64(4), np.inf),
        lambda: fill(shape, "f4", of_jax, of_jax),
    ]


FUNCTIONS = [
    *[reverse_subsequences, reverse_sequence, slice_, slice1, slice_grad],
    *[fill_value_constant, fill_value_sequence],
]
every_function = pytest.mark.parametrize("calls", FUNCTIONS)


@pytest.mark.usefixtures("x32", "nans_are_data")  # lists are of 32 bits then
@every_function
def test_other_spellings_and_values_compile_nothing(
    calls: Callable[..., list[Call]],
) -> None:
    first, *others = calls(new_shape())
    assert compilations(first) == 1
    require_nothing_compiled([*others, first])


@pytest.mark.parametrize(
    "calls", default_of(FUNCTIONS, reverse_sequence), ids=lambda calls: calls.__name__
)
def test_shapes_and_64_bit_modes_do_not_displace_each_other(
    calls: Callable[..., list[Call]],
) -> None:
    first, second = (calls(new_shape())[0] for _ in range(2))
    for call in (first, second):
        for mode in (False, True):
            with jax.enable_x64(mode):
                assert compilations(call) == 1
                assert jax.config.jax_enable_x64 is mode
    for mode in (False, True):
        with jax.enable_x64(mode):
            require_nothing_compiled([first, second])
            assert jax.config.jax_enable_x64 is mode


class Changing:
    """An integer that is equal to itself, whatever it has become."""

    value = 0

    def __index__(self) -> int:
        return self.value


def test_arguments_that_change_are_read_in_every_call() -> None:
    x, index = np.arange(24, dtype=np.float32).reshape(4, 6), Changing()
    for k in (0, 1):
        index.value = k
        found = dml_jax.slice(x, (index, index), (2, 3))
        np.testing.assert_array_equal(found, x[k : k + 2, k : k + 3])
        found = dml_jax.reverse_subsequences(x, [[6]], index)
        np.testing.assert_array_equal(found, np.flip(x, k))


# Inside of jit ------------------------------------------------------------------------

WINDOW = (0, 1, 2), (4, 5, 6), (1, -2, 3)
PROGRAMS = {
    "reverse_subsequences": lambda x, value: dml_jax.reverse_subsequences(
        x, jnp.full((7, 1, 1), value, int), 1
    ),
    "reverse_sequence": lambda x, value: dml_jax.reverse_sequence(
        x, jnp.full(11, value, int), lda_coeff=value
    ),
    "slice": lambda x, value: value * dml_jax.slice(x, *WINDOW[:2]),
    "slice1": lambda x, value: value * dml_jax.slice1(x, *WINDOW),
    "slice_grad": lambda x, value: (
        value * dml_jax.slice_grad(x, x.shape, (0, 0, 0), x.shape, (1, -1, 1))
    ),
    "fill_value_constant": lambda x, value: (
        x + dml_jax.fill_value_constant(x.shape, "float32", value)
    ),
    "fill_value_sequence": lambda x, value: (
        x + dml_jax.fill_value_sequence(x.shape, "float32", value, value)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad], ids=["value", "grad"])
def test_a_program_is_traced_once(name: str, transform: Any) -> None:
    traced = []

    def loss(x: jax.Array, value: jax.Array) -> jax.Array:
        traced.append(value)
        return jnp.sum(PROGRAMS[name](x, value))

    program, x = jax.jit(transform(loss)), ones(new_shape())
    calls = [functools.partial(program, x, np.float32(value)) for value in (1, 2, 3)]
    assert compilations(calls[0]) == 1
    require_nothing_compiled(calls[1:])
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


# Offsets ------------------------------------------------------------------------------


def test_new_offsets_compile_nothing() -> None:
    x, gradient = ones((40, 41)), ones((4, 5))
    slices = [
        lambda i: dml_jax.slice(x, (i, 2 * i), (4, 5), (2, 3)),
        lambda i: dml_jax.slice1(x, (i, 2 * i), (8, 15), (-2, 3)),
        lambda i: dml_jax.slice_grad(gradient, (40, 41), (i, i), (8, 15), (-2, 3)),
    ]
    for run in slices:
        run(0)
        require_nothing_compiled(functools.partial(run, i) for i in range(1, 12))


def test_new_offsets_move_the_same() -> None:
    x = np.arange(42, dtype=np.float32).reshape(6, 7)
    for i in range(3):
        window = (i, i + 1), (3, 3), (-2, 1)
        y = dml_jax.slice1(jnp.asarray(x, jnp.bfloat16), *window)
        expected = reference.slice1(x, *window).astype(jnp.bfloat16)
        assert_same_bits(y, expected)
        put = dml_jax.slice_grad(y, (6, 7), *window)
        assert_same_bits(put, reference.slice_grad(expected, (6, 7), *window))


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
