"""Programs exported for every platform at once, of sizes yet unknown."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, moved_back, numbers
from dtypes import dtype_of
from jax import export
from sampling import default_of

import dml_jax
from dml_jax import reference

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def export_for_all(function: Callable[..., Any], *arguments: Any) -> export.Exported:
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
    assert exported.platforms == PLATFORMS
    return exported


def specs(
    shapes: list[str], dtypes: list[Any], constraints: tuple[str, ...] = ()
) -> list[jax.ShapeDtypeStruct]:
    """The arguments of an export, from shapes such as "batch, time, 3"."""
    scope = export.SymbolicScope(constraints)
    return [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


LENGTHS = {
    "int32": [0, 3, -1, 2**31 - 1, 4],
    "uint32": [0, 3, 2**31, 2**31 + 3, 2**32 - 1],
    "uint8": [0, 3, 1, 255, 4],
}


def reverse_lines(x: Any, lengths: Any, **options: Any) -> jax.Array:
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


def reversal_arrays(time: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array(LENGTHS[dtype], dtype)
    return numbers(len(lengths), time, 3), lengths


@pytest.mark.parametrize("dtype", default_of(LENGTHS, "int32", "uint32"))
@pytest.mark.parametrize("name", REVERSE)
def test_reversal_of_symbolic_batch_and_time(name: str, dtype: str) -> None:
    arguments = specs(["batch, time, 3", "batch"], ["float32", dtype])
    exported = export_for_all(REVERSE[name], *arguments)
    pull_back = exported.vjp().call
    for time in (1, 9):
        x, lengths = reversal_arrays(time, dtype)
        expected = reference.reverse_sequence(x, lengths, **BATCH_MAJOR)
        assert_same_bits(exported.call(x, lengths), expected)
        assert_same_bits(pull_back(expected, lengths, expected)[0], x)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_gradient_through_a_call_scales_in_training_alone(training: bool) -> None:
    def reverse(x: Any, lengths: Any, coefficient: Any) -> jax.Array:
        return dml_jax.reverse_sequence(
            x, lengths, **BATCH_MAJOR, training=training, lda_coeff=coefficient
        )

    arguments = specs(["batch, time, 3", "batch", ""], ["float32", "uint32", "float32"])
    exported = export.export(jax.jit(reverse), platforms=PLATFORMS)(*arguments)
    x, lengths = reversal_arrays(9, "uint32")

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(exported.call(x, lengths, jnp.float32(0.5)) * x)

    # x reaches the loss directly, and through the reversal.
    reversed_x = reference.reverse_sequence(x, lengths, **BATCH_MAJOR)
    factor = np.float32(0.5 if training else 1)
    assert_same_bits(jax.grad(loss)(x), reversed_x + factor * reversed_x)


# Slices whose sizes follow from those of their input, of `shape`. They are functions of
# the module, dml_jax or its reference, and of the array.
WINDOWS = {
    "slice-crop-of-the-rest": (
        "batch, 7",
        lambda module, x: module.slice(x, [0, 2], [x.shape[0], 3]),
    ),
    "slice-every-second": (
        "batch, 7",
        lambda module, x: module.slice(x, [0, 2], [(x.shape[0] + 1) // 2, 3], [2, 1]),
    ),
    "slice1-inner-window": (
        "batch, 7",
        lambda module, x: module.slice1(x, [1, 0], [x.shape[0] - 2, 7], [-3, 2]),
    ),
    "slice_grad-every-second-reversed": (
        "batch, 2",
        lambda module, x: module.slice_grad(
            x, [2 * x.shape[0], 7], [0, 2], [2 * x.shape[0] - 1, 4], [-2, -3]
        ),
    ),
}


@pytest.mark.parametrize("dtype", default_of([jnp.float32, jnp.bfloat16], jnp.bfloat16))
@pytest.mark.parametrize("name", WINDOWS)
def test_window_of_symbolic_batch(name: str, dtype: Any) -> None:
    shape, run = WINDOWS[name]
    (argument,) = specs([shape], [dtype], ("batch >= 3",))
    exported = export_for_all(partial(run, dml_jax), argument)
    for batch in (3, 8):
        x = numbers(batch, argument.shape[1]).astype(dtype)
        y = run(reference, x)
        assert_same_bits(exported.call(x), y)
        expected = moved_back(partial(run, reference), x.shape, y)
        assert_same_bits(exported.vjp().call(x, y)[0], expected)


@pytest.mark.parametrize(
    "dtype",
    default_of([jnp.float32, jnp.bfloat16, jnp.complex64, jnp.uint8], jnp.bfloat16),
)
@pytest.mark.parametrize(
    ("shape", "sizes"), [("count", [(1,), (300,)]), ("rows, columns", [(7, 43)])]
)
def test_fill_of_symbolic_size(shape: str, sizes: Any, dtype: Any) -> None:
    def fill(like: Any, start: Any, delta: Any) -> tuple[jax.Array, jax.Array]:
        sequence = dml_jax.fill_value_sequence(like.shape, dtype, start, delta)
        return sequence, dml_jax.fill_value_constant(like.shape, dtype, start)

    arguments = specs([shape, "", ""], ["int8", dtype, dtype])
    call = export_for_all(fill, *arguments).call
    start, delta = np.array([5, 3] if dtype == jnp.uint8 else [-3.2, 0.1], dtype)
    for size in sizes:
        sequence, constant = call(np.zeros(size, np.int8), start, delta)
        expected = reference.fill_value_sequence(size, np.dtype(dtype), start, delta)
        assert_same_bits(sequence, expected)
        assert_same_bits(constant, np.full(size, start, dtype))


def test_derivative_of_a_fill_of_symbolic_size() -> None:
    def derivative(like: Any, start: Any, delta: Any) -> jax.Array:
        fill = partial(dml_jax.fill_value_sequence, like.shape, "float32", start)
        return jax.jvp(fill, (delta,), (jnp.ones_like(delta),))[1]

    arguments = specs(["rows, columns", "", ""], ["int8", "float32", "float32"])
    call = export_for_all(derivative, *arguments).call
    result = call(np.zeros((7, 43), np.int8), np.float32(-3.2), np.float32(0.1))
    assert_same_bits(result, numbers(7, 43) - 1)


PROGRAMS = {
    "reverse_subsequences": lambda x: dml_jax.reverse_subsequences(x, [[2], [1]], 1),
    "slice": lambda x: dml_jax.slice1(x, (0, 1), (2, 2), (1, -1)),
    "slice_grad": lambda x: dml_jax.slice_grad(x, (4, 7), (0, 1), (4, 5), (2, 2)),
    "fill_value_constant": lambda x: dml_jax.fill_value_constant(
        (3,), x.dtype, x[0, 0]
    ),
    "fill_value_sequence": lambda x: dml_jax.fill_value_sequence(
        (3,), x.dtype, x[0, 0], x[0, 1]
    ),
}


@pytest.mark.parametrize(
    "dtype",
    default_of(
        ["int2", "uint2", "complex128", "float64"], "int2", "complex128", "float64"
    ),
)
@pytest.mark.parametrize("operator", PROGRAMS)
def test_dtypes_that_fail_in_the_compiler_of_tpus_are_refused(
    operator: str, dtype: str
) -> None:
    with jax.enable_x64(dtype in ("complex128", "float64")):
        argument = jax.ShapeDtypeStruct((2, 3), dtype_of(dtype))
        function = jax.jit(PROGRAMS[operator])
        export.export(function, platforms=("cpu", "cuda"))(argument)
        for platforms in (("tpu",), PLATFORMS):
            run = export.export(function, platforms=platforms)
            if dtype == "float64" and operator != "fill_value_sequence":
                run(argument)
                continue
            message = rf"^{operator}: dtype \w+ is not supported on TPU$"
            with pytest.raises(NotImplementedError, match=message):
                run(argument)
