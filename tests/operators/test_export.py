"""Exported programs: for every platform at once, and for sizes yet unknown."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, CASES, REVERSALS, numbers, sampled
from jax import export

import dml_jax
from dml_jax import reference

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def export_for_all(function, *arguments, vjp_order=0):
    """A function that calls the program, or its `vjp_order`-th VJP, exported."""
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
    for _ in range(vjp_order):
        exported = exported.vjp()
    assert exported.platforms == PLATFORMS
    return exported.call


def specs(shapes, dtypes, constraints=()):
    """The arguments of an export, from shapes such as "batch, time, 3"."""
    scope = export.SymbolicScope(constraints)
    return [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def with_arrays(case):
    """The case as a function of its arrays alone, in their order."""
    return lambda *arrays: case.run(**dict(zip(case.arrays, arrays, strict=True)))


@pytest.mark.parametrize("case", sampled(CASES), ids=str)
def test_every_platform(case):
    arrays = case.arrays.values()
    call = export_for_all(with_arrays(case), *arrays)
    assert_same_bits(call(*arrays), case.expected())


@pytest.mark.parametrize("case", sampled(REVERSALS), ids=str)
def test_vjp_of_a_reversal(case):
    x, lengths = case.arrays.values()
    pull_back = export_for_all(with_arrays(case), x, lengths, vjp_order=1)
    cotangent = x + 1
    of_x, of_lengths = pull_back(x, lengths, cotangent)
    assert_same_bits(of_x, case.expected(input=cotangent))  # its own adjoint
    assert of_lengths.dtype == jax.dtypes.float0


# Symbolic sizes -----------------------------------------------------------------------

LENGTHS = {
    "int32": [0, 3, -1, 2**31 - 1, 4],
    "uint32": [0, 3, 2**31, 2**31 + 3, 2**32 - 1],
    "uint8": [0, 3, 1, 255, 4],
}


def reverse_lines(x, lengths, **options):
    lengths = lengths.reshape(lengths.shape[0], 1, 1)
    return dml_jax.reverse_subsequences(x, lengths, axis=1, **options)


REVERSE = {
    "reverse_subsequences-gather": partial(reverse_lines, implementation="gather"),
    "reverse_subsequences-scatter": partial(reverse_lines, implementation="scatter"),
    "reverse_sequence-training": partial(dml_jax.reverse_sequence, **BATCH_MAJOR),
    "reverse_sequence-inference": partial(
        dml_jax.reverse_sequence, **BATCH_MAJOR, training=False
    ),
}


def reversal_arrays(time, dtype):
    lengths = np.array(LENGTHS[dtype], dtype)
    return numbers(len(lengths), time, 3), lengths


@pytest.mark.parametrize("dtype", LENGTHS)
@pytest.mark.parametrize("name", REVERSE)
def test_reversal_of_symbolic_batch_and_time(name, dtype):
    arguments = specs(["batch, time, 3", "batch"], ["float32", dtype])
    call = export_for_all(REVERSE[name], *arguments)
    for time in (1, 9):
        x, lengths = reversal_arrays(time, dtype)
        expected = reference.reverse_sequence(x, lengths, **BATCH_MAJOR)
        assert_same_bits(call(x, lengths), expected)


@pytest.mark.parametrize("name", REVERSE)
def test_vjp_of_a_reversal_of_symbolic_batch_and_time(name):
    arguments = specs(["batch, time, 3", "batch"], ["float32", "uint32"])
    pull_back = export_for_all(REVERSE[name], *arguments, vjp_order=1)
    x, lengths = reversal_arrays(9, "uint32")
    expected = reference.reverse_sequence(x + 1, lengths, **BATCH_MAJOR)
    assert_same_bits(pull_back(x, lengths, x + 1)[0], expected)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_gradient_through_a_call_scales_in_training_alone(training):
    def reverse(x, lengths, coefficient):
        return dml_jax.reverse_sequence(
            x, lengths, **BATCH_MAJOR, training=training, lda_coeff=coefficient
        )

    arguments = specs(["batch, time, 3", "batch", ""], ["float32", "uint32", "float32"])
    exported = export.export(jax.jit(reverse), platforms=PLATFORMS)(*arguments)
    x, lengths = reversal_arrays(9, "uint32")

    def loss(x):
        return jnp.sum(exported.call(x, lengths, jnp.float32(0.5)) * x)

    # x reaches the loss directly, and through the reversal.
    reversed_x = reference.reverse_sequence(x, lengths, **BATCH_MAJOR)
    factor = np.float32(0.5 if training else 1)
    assert_same_bits(jax.grad(loss)(x), reversed_x + factor * reversed_x)


@dataclasses.dataclass(frozen=True)
class Window:
    """A slice whose sizes follow from those of its input.

    `run` takes the module, dml_jax or its reference, and an array of shape `shape`.
    """

    name: str
    shape: str
    run: Callable
    constraints: tuple[str, ...] = ()

    def __str__(self):
        return self.name


WINDOWS = [
    Window(
        "slice-crop-of-the-rest",
        "batch, 7",
        lambda module, x: module.slice(x, [0, 2], [x.shape[0], 3]),
    ),
    Window(
        "slice-every-second",
        "batch, 7",
        lambda module, x: module.slice(x, [0, 2], [(x.shape[0] + 1) // 2, 3], [2, 1]),
    ),
    Window(
        "slice1-flip",
        "batch, 7",
        lambda module, x: module.slice1(x, [0, 2], [x.shape[0], 3], [-1, 1]),
    ),
    Window(
        "slice1-every-second-backwards",
        "batch, 7",
        lambda module, x: module.slice1(x, [0, 2], [x.shape[0], 4], [-2, -3]),
    ),
    Window(
        "slice1-inner-window",
        "batch, 7",
        lambda module, x: module.slice1(x, [1, 0], [x.shape[0] - 2, 7], [-3, 2]),
        constraints=("batch >= 3",),
    ),
    Window(
        "slice_grad-crop-of-the-rest",
        "batch, 3",
        lambda module, x: module.slice_grad(
            x, [x.shape[0], 7], [0, 2], [x.shape[0], 3], [1, 1]
        ),
    ),
    Window(
        "slice_grad-every-second-backwards",
        "batch, 2",
        lambda module, x: module.slice_grad(
            x, [2 * x.shape[0], 7], [0, 2], [2 * x.shape[0] - 1, 4], [-2, -3]
        ),
    ),
]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_window_of_symbolic_batch(window, dtype):
    arguments = specs([window.shape], [dtype], window.constraints)
    call = export_for_all(partial(window.run, dml_jax), *arguments)
    for batch in (3, 8):
        x = numbers(batch, arguments[0].shape[1]).astype(dtype)
        assert_same_bits(call(x), window.run(reference, x))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_vjp_of_a_window_of_symbolic_batch(window):
    run = partial(window.run, dml_jax)
    arguments = specs([window.shape], ["float32"], window.constraints)
    x = numbers(4, arguments[0].shape[1])
    y, pull_back = jax.vjp(run, x)
    (of_x,) = export_for_all(run, *arguments, vjp_order=1)(x, y)
    assert_same_bits(of_x, pull_back(y)[0])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64, jnp.uint8])
@pytest.mark.parametrize(
    ("shape", "sizes"), [("count", [(1,), (300,)]), ("rows, columns", [(7, 43)])]
)
def test_fill_of_symbolic_size(shape, sizes, dtype):
    def fill(like, start, delta):
        sequence = dml_jax.fill_value_sequence(like.shape, dtype, start, delta)
        return sequence, dml_jax.fill_value_constant(like.shape, dtype, start)

    call = export_for_all(fill, *specs([shape, "", ""], ["int8", dtype, dtype]))
    start, delta = np.array([5, 3] if dtype == jnp.uint8 else [-3.2, 0.1], dtype)
    for size in sizes:
        sequence, constant = call(np.zeros(size, np.int8), start, delta)
        expected = reference.fill_value_sequence(size, np.dtype(dtype), start, delta)
        assert_same_bits(sequence, expected)
        assert_same_bits(constant, np.full(size, start, dtype))


def test_derivative_of_a_fill_of_symbolic_size():
    def derivative(like, start, delta):
        fill = partial(dml_jax.fill_value_sequence, like.shape, "float32", start)
        return jax.jvp(fill, (delta,), (jnp.ones_like(delta),))[1]

    arguments = specs(["rows, columns", "", ""], ["int8", "float32", "float32"])
    call = export_for_all(derivative, *arguments)
    result = call(np.zeros((7, 43), np.int8), np.float32(-3.2), np.float32(0.1))
    assert_same_bits(result, numbers(7, 43) - 1)
