"""64-bit arrays that are bound in another mode than the one they were made in."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import adjoint, buffer_size, expected_of, with_buffer

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

CUBE, PART, LINE = (2, 3, 4), (1, 2, 2), (2, 1, 4)
WINDOW = ((1, 0, 1), (1, 3, 3), (1, -2, 2))
LAYOUTS = {  # strides of a large and of a small input, and of such outputs
    "packed": ((None, None), (None, None)),
    "strided": (((17, 4, 1), (9, 2, 5)), ((2, 8, 40), (9, 2, 5))),
    "broadcast": (((0, 4, 1), (0, 0, 1)), (None, None)),
    "woven": (((1, 1, 2), (1, 1, 1)), ((3, 2, 12), (9, 1, 3))),
}


@pytest.fixture(params=[False, True], ids=["used-in-x32", "used-in-x64"])
def modes(request: pytest.FixtureRequest) -> tuple[bool, bool]:
    """The mode in which arrays are made, and the other one, in which they are used."""
    return not request.param, request.param


def descs(data_type: DataType, layout: str) -> Iterator[dml.OperatorDesc]:
    (large, small), (large_out, small_out) = LAYOUTS[layout]

    def of(
        sizes: tuple[int, ...], strides: Any, data_type: DataType = data_type
    ) -> BufferTensorDesc:
        return BufferTensorDesc(data_type, sizes, strides)

    lengths = of(LINE, (1, 1, 0), DataType.UINT64)
    value = ScalarUnion.of(data_type, 2**40 + 1)
    source, output = of(CUBE, large), of(CUBE, large_out)
    yield dml.ReverseSubsequencesOperatorDesc(source, lengths, output, 1)
    part = of(PART, small_out)
    yield dml.SliceOperatorDesc(source, part, (1, 0, 1), PART, (5, 2, 2))
    yield dml.Slice1OperatorDesc(source, part, *WINDOW)
    yield dml.SliceGradOperatorDesc(of(PART, small), output, *WINDOW)
    yield dml.FillValueConstantOperatorDesc(output, data_type, value)
    if data_type is not DataType.FLOAT64:
        yield dml.FillValueSequenceOperatorDesc(output, data_type, value, value)


def numbers(
    tensor: BufferTensorDesc, random: np.random.Generator, is_lengths: bool = False
) -> np.ndarray:
    """Numbers that 32 bits do not hold, or lengths."""
    most = 2**51 if not is_lengths else 5
    values = random.integers(is_lengths - most, most, buffer_size(tensor))
    return np.abs(values).astype(tensor.data_type.dtype)


def arrays_of(desc: dml.OperatorDesc, random: np.random.Generator) -> list[np.ndarray]:
    return [numbers(t, random, i == 1) for i, t in enumerate(desc.inputs)]


def made(mode: bool, arrays: Any) -> list[jax.Array]:
    """JAX arrays, made in 64-bit mode if they have 64 bits."""
    results = []
    for array in arrays:
        with jax.enable_x64(mode or array.dtype.itemsize == 8):
            results.append(jnp.asarray(array))
    return results


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("data_type", "layout"),
    [
        *[(DataType.INT64, "broadcast"), (DataType.UINT64, "strided")],
        *[(DataType.FLOAT64, layout) for layout in ("packed", "woven")],
    ],
)
def test_operators_keep_the_width(
    data_type: DataType, layout: str, modes: tuple[bool, bool]
) -> None:
    for desc in descs(data_type, layout):
        random = np.random.default_rng(0)
        inputs, previous = arrays_of(desc, random), numbers(desc.output, random)
        arrays = made(modes[0], [*inputs, previous])
        call, expected = with_buffer(desc), expected_of(desc, inputs, previous)
        with jax.enable_x64(modes[1]):
            assert_same_bits(call(*arrays), expected)
            assert_same_bits(jax.jit(call)(*arrays), expected)
            batches = [array.reshape(1, -1) for array in arrays]
            assert_same_bits(jax.vmap(call)(*batches)[0], expected)
            with jax.disable_jit():
                assert_same_bits(call(*arrays), expected)
            if inputs:
                found = dml.compile_operator(desc)(*arrays[:-1])
                assert_same_bits(found, expected_of(desc, inputs))


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["broadcast", "woven"])
def test_derivatives_keep_the_width(layout: str, modes: tuple[bool, bool]) -> None:
    for desc in descs(DataType.FLOAT64, layout):
        if not desc.inputs:
            continue
        random = np.random.default_rng(1)
        inputs, previous = arrays_of(desc, random), numbers(desc.output, random)
        tangents = [numbers(t, random) for t in (desc.inputs[0], desc.output)]
        cotangent = numbers(desc.output, random)
        x, *lengths, buffer = made(modes[0], [*inputs, previous])
        *of_jax, ct = made(modes[0], [*tangents, cotangent])
        operator = with_buffer(desc)

        def call(x: Any, buffer: Any, operator: Any = operator, rest: Any = lengths):
            return operator(x, *rest, buffer)

        expected = adjoint(desc, inputs[1:], cotangent)
        with jax.enable_x64(modes[0]):
            pullback = jax.vjp(call, x, buffer)[1]
        with jax.enable_x64(modes[1]):
            _, tangent = jax.jvp(call, (x, buffer), tuple(of_jax))
            by_jvp = expected_of(desc, [tangents[0], *inputs[1:]], tangents[1])
            assert_same_bits(tangent, by_jvp)
            here = jax.vjp(call, x, buffer)[1]
            transposed = jax.linear_transpose(call, x, buffer)
            mapped = jax.tree.map(lambda y: y[0], jax.vmap(here)(ct[None]))
            for found in (
                pullback(ct),
                jax.jit(pullback)(ct),
                here(ct),
                transposed(ct),
                mapped,
            ):
                jax.tree.map(assert_same_bits, tuple(found), expected)


def test_lengths_of_64_bits_keep_their_values() -> None:
    """2^32 + 1 is longer than any axis; its lower half would be 1."""
    frames = BufferTensorDesc(DataType.FLOAT32, (2, 3))
    lengths = BufferTensorDesc(DataType.UINT64, (2, 1))
    desc = dml.ReverseSubsequencesOperatorDesc(frames, lengths, frames, 1)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    counts = np.array([[2**32 + 1], [2]], np.uint64)
    with jax.enable_x64(True):
        wide = jnp.asarray(counts)
    with jax.enable_x64(False):
        found = dml.compile_operator(desc)(x, wide)
        assert_same_bits(found, expected_of(desc, [x, counts]))
