"""Nothing is compiled anew that has been compiled before, however it is written."""

import contextlib
import functools
import itertools

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits

import dml_jax
from dml_jax import reference

pytestmark = pytest.mark.usefixtures("with_caches")
COMPILATION = "/jax/core/compile/backend_compile_duration"
TRACE = "/jax/core/compile/jaxpr_trace_duration"

SIZES = itertools.count(1001)


def new_shape():
    """A shape no test has had before, so that its first call is the first of all."""
    return 7, 11, next(SIZES)


@contextlib.contextmanager
def counted():
    """The events of JAX that happen inside, by name."""
    events = []

    def listen(event, duration, **_):
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def compilations(call):
    with counted() as events:
        jax.block_until_ready(call())
    return events.count(COMPILATION)


def require_nothing_anew(calls):
    """None of the calls is traced or compiled; names them by their place."""
    found = {}
    for place, call in enumerate(calls):
        with counted() as events:
            jax.block_until_ready(call())
        if {COMPILATION, TRACE} & set(events):
            found[place] = events
    assert not found


def ones(shape):
    return jnp.asarray(np.ones(shape, np.float32))


def lengths(*shape, value=3):
    return jnp.asarray(np.full(shape, value, np.int32))


def integers(*values):
    return tuple(np.int64(value) for value in values)


def reversals_of_lines(shape):
    reverse = functools.partial(dml_jax.reverse_subsequences, ones(shape))
    lines = lengths(shape[0], 1, 1)
    return [
        lambda: reverse(lines, 1),
        lambda: reverse(lines, -2),
        lambda: reverse(lines, axis=np.int32(1)),
        lambda: reverse(sequence_lengths=lines, axis=1, implementation=None),
        lambda: reverse(lengths(shape[0], 1, 1, value=9), 1),
        lambda: reverse(np.full((shape[0], 1, 1), -1, np.int32), 1),
        lambda: reverse([[[2]]] * shape[0], 1),
        lambda: dml_jax.reverse_subsequences(np.zeros(shape, np.float32), lines, 1),
    ]


def reversals_of_sequences(shape):
    x, batch = ones(shape), lengths(shape[1])
    reverse = functools.partial(dml_jax.reverse_sequence, x, batch)
    return [
        reverse,
        lambda: reverse(batch_axis=1, time_axis=0, training=True, name=None),
        lambda: reverse(batch_axis=np.int64(1), training=np.bool_(True)),
        lambda: reverse(lda_coeff=0.5),
        lambda: reverse(lda_coeff=np.float32(0.25)),
        lambda: reverse(lda_coeff=3),
        lambda: dml_jax.reverse_sequence(x, lengths(shape[1], value=2)),
        lambda: dml_jax.reverse_sequence(x, np.full(shape[1], 100, np.int32)),
        lambda: dml_jax.reverse_sequence(x, [1] * shape[1]),
    ]


def slices(shape):
    x, other = ones(shape), ones(shape)
    return [
        lambda: dml_jax.slice(x, (0, 1, 2), (4, 5, 6)),
        lambda: dml_jax.slice(x, [0, 1, 2], [4, 5, 6], None),
        lambda: dml_jax.slice(x, (0, 1, 2), (4, 5, 6), (1, 1, 1)),
        lambda: dml_jax.slice(x, tuple([0, 1, 2]), tuple([4, 5, 6])),
        lambda: dml_jax.slice(x, integers(0, 1, 2), np.array([4, 5, 6])),
        lambda: dml_jax.slice(other, offsets=(0, 1, 2), sizes=np.array([4, 5, 6])),
    ]


def windows(shape):
    x = ones(shape)
    return [
        lambda: dml_jax.slice1(x, (0, 1, 2), (4, 5, 6), (1, -2, 3)),
        lambda: dml_jax.slice1(x, [0, 1, 2], [4, 5, 6], [1, -2, 3], None),
        lambda: dml_jax.slice1(x, (0, 1, 2), (4, 5, 6), (1, -2, 3), (4, 3, 2)),
        lambda: dml_jax.slice1(x, integers(0, 1, 2), (4, 5, 6), np.array([1, -2, 3])),
    ]


def gradients(shape):
    gradient = ones((4, 3, 2))
    return [
        lambda: dml_jax.slice_grad(gradient, shape, (0, 1, 2), (4, 5, 6), (1, -2, 3)),
        lambda: dml_jax.slice_grad(
            gradient, list(shape), [0, 1, 2], [4, 5, 6], [1, -2, 3]
        ),
        lambda: dml_jax.slice_grad(
            gradient, integers(*shape), (0, 1, 2), (4, 5, 6), np.array([1, -2, 3])
        ),
    ]


def constants(shape):
    fill, of_jax = dml_jax.fill_value_constant, jnp.float32(5)
    return [
        lambda: fill(shape, "float32", 1.0),
        lambda: fill(list(shape), np.float32, 2),
        lambda: fill(integers(*shape), jnp.float32, np.float32(3)),
        lambda: fill(np.array(shape), np.dtype("float32"), np.float64(4)),
        lambda: fill(shape, "f4", of_jax),
        lambda: fill(shape, "float32", -0.0),
        lambda: fill(shape, "float32", np.nan),
    ]


def sequences(shape):
    fill, of_jax = dml_jax.fill_value_sequence, jnp.float32(5)
    return [
        lambda: fill(shape, "float32", 1.0, 2.0),
        lambda: fill(list(shape), np.float32, 2, 3.0),
        lambda: fill(integers(*shape), jnp.float32, np.float32(3), np.int8(1)),
        lambda: fill(np.array(shape), np.dtype("float32"), np.float64(4), np.inf),
        lambda: fill(shape, "f4", of_jax, of_jax),
    ]


EVERY_FUNCTION = pytest.mark.parametrize(
    "calls",
    [
        pytest.param(reversals_of_lines, id="reverse_subsequences"),
        pytest.param(reversals_of_sequences, id="reverse_sequence"),
        pytest.param(slices, id="slice"),
        pytest.param(windows, id="slice1"),
        pytest.param(gradients, id="slice_grad"),
        pytest.param(constants, id="fill_value_constant"),
        pytest.param(sequences, id="fill_value_sequence"),
    ],
)


@pytest.mark.usefixtures("x32", "nans_are_data")  # lists are of 32 bits then
@EVERY_FUNCTION
def test_spellings_and_values_compile_nothing_anew(calls):
    first, *others = calls(new_shape())
    assert compilations(first) == 1
    require_nothing_anew([*others, first])


@EVERY_FUNCTION
def test_new_shape_compiles_once(calls):
    found = [calls(new_shape())[0] for _ in range(2)]
    for call in found:
        assert compilations(call) == 1
    require_nothing_anew(found)


@EVERY_FUNCTION
def test_modes_of_64_bits_do_not_displace_each_other(calls):
    call = calls(new_shape())[0]
    for mode in (False, True):
        with jax.enable_x64(mode):
            assert compilations(call) == 1
            assert jax.config.jax_enable_x64 is mode
    for mode in (False, True):
        with jax.enable_x64(mode):
            require_nothing_anew([call])
            assert jax.config.jax_enable_x64 is mode


class Changing:
    """An integer that is equal to itself, whatever it has become."""

    def __init__(self):
        self.value = 0

    def __index__(self):
        return self.value


def test_what_may_change_is_looked_at_in_every_call():
    x, index = np.arange(24, dtype=np.float32).reshape(4, 6), Changing()
    offsets = (index, index)
    for index.value in (0, 1):
        k = index.value
        found = dml_jax.slice(x, offsets, (2, 3))
        np.testing.assert_array_equal(found, x[k : k + 2, k : k + 3])
        found = dml_jax.reverse_subsequences(x, [[6]], index)
        np.testing.assert_array_equal(found, np.flip(x, k))


# Inside of jit ------------------------------------------------------------------------


def lines_in_program(x, value):
    return dml_jax.reverse_subsequences(x, jnp.full((7, 1, 1), value, int), 1)


def sequences_in_program(x, value):
    return dml_jax.reverse_sequence(x, jnp.full(11, value, int), lda_coeff=value)


def slice_in_program(x, value):
    return value * dml_jax.slice(x, (0, 1, 2), (4, 5, 6))


def window_in_program(x, value):
    return value * dml_jax.slice1(x, (0, 1, 2), (4, 5, 6), (1, -2, 3))


def gradient_in_program(x, value):
    return value * dml_jax.slice_grad(x, x.shape, (0, 0, 0), x.shape, (1, -1, 1))


def constant_in_program(x, value):
    return x + dml_jax.fill_value_constant(x.shape, "float32", value)


def sequence_in_program(x, value):
    return x + dml_jax.fill_value_sequence(x.shape, "float32", value, value)


@pytest.mark.parametrize(
    "function",
    [
        lines_in_program,
        sequences_in_program,
        slice_in_program,
        window_in_program,
        gradient_in_program,
        constant_in_program,
        sequence_in_program,
    ],
)
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad], ids=["value", "grad"])
def test_a_program_is_traced_once(function, transform):
    traced = []

    def loss(x, value):
        traced.append(value)
        return jnp.sum(function(x, value))

    program = jax.jit(transform(loss))
    x = ones(new_shape())
    calls = [functools.partial(program, x, np.float32(value)) for value in (1, 2, 3)]
    assert compilations(calls[0]) == 1
    require_nothing_anew(calls[1:])
    assert len(traced) == 1


def test_coefficients_compile_no_new_backward_pass():
    """A number and an array are two kinds; of each kind any value will do."""
    shape = new_shape()
    x, batch = ones(shape), lengths(shape[1])

    def backward(coefficient):
        _, pull = jax.vjp(
            lambda x: dml_jax.reverse_sequence(x, batch, lda_coeff=coefficient), x
        )
        return lambda: pull(x)[0]

    def calls(*coefficients):
        return [backward(coefficient) for coefficient in coefficients]

    for warm_up in calls(2.0, jnp.float32(1)):
        jax.block_until_ready(warm_up())
    for call in calls(
        0.5, np.float32(2), 3, np.int8(4), *jnp.arange(4, dtype=np.float32)
    ):
        assert compilations(call) == 0


# Offsets ------------------------------------------------------------------------------


def test_new_offsets_compile_nothing():
    x, gradient = ones((40, 41)), ones((4, 5))
    slices = [
        lambda i: dml_jax.slice(x, (i, 2 * i), (4, 5), (2, 3)),
        lambda i: dml_jax.slice1(x, (i, 2 * i), (8, 15), (-2, 3)),
        lambda i: dml_jax.slice_grad(gradient, (40, 41), (i, i), (8, 15), (-2, 3)),
    ]
    for run in slices:
        run(0)
        require_nothing_anew(functools.partial(run, i) for i in range(1, 12))


def test_offsets_that_come_often_are_compiled_for():
    x = ones((7, next(SIZES)))
    counts = [compilations(lambda: dml_jax.slice(x, (1, 2), (4, 5))) for _ in range(40)]
    assert sum(counts) <= 2
    assert sum(counts[20:]) == 0


def test_new_offsets_move_the_same():
    x = np.arange(42, dtype=np.float32).reshape(6, 7)
    for i in range(3):
        window = (i, i + 1), (3, 3), (-2, 1)
        y = dml_jax.slice1(jnp.asarray(x, jnp.bfloat16), *window)
        expected = reference.slice1(x, *window).astype(jnp.bfloat16)
        assert_same_bits(y, expected)
        put = dml_jax.slice_grad(y, (6, 7), *window)
        expected = reference.slice_grad(expected, (6, 7), *window)
        assert_same_bits(put, expected)


# Memory -------------------------------------------------------------------------------


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="asks for what XLA allocates on a CPU"
)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(
    ("shape", "mapped", "axis"),
    [((2, 3, 4, 5, 64, 6), (2, 3, 4, 5, 1, 6), 4), ((64, 512), (64, 1), 1)],
)
@pytest.mark.parametrize("is_exported", [False, True])
def test_scatters_take_four_results_of_memory(shape, mapped, axis, dtype, is_exported):
    run = jax.jit(
        functools.partial(
            dml_jax.reverse_subsequences, axis=axis, implementation="scatter"
        )
    )
    x, lengths = jnp.ones(shape, dtype), jnp.ones(mapped, jnp.int32)
    if is_exported:
        run = jax.jit(jax.export.export(run)(x, lengths).call)
    memory = run.lower(x, lengths).compile().memory_analysis()
    assert memory.temp_size_in_bytes <= 4 * x.nbytes
