"""64-bit arrays that are bound outside of the mode in which they were made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import U64, buffer_size, expected_of

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

WIDE = [DataType.FLOAT64, DataType.INT64, DataType.UINT64]
CUBE, PART, LINE = (2, 3, 4), (1, 2, 2), (2, 1, 4)
WINDOW = ((1, 0, 1), (1, 3, 3), (1, -2, 2))
LAYOUTS = {  # strides of a large and of a small input, and of such outputs
    "packed": ((None, None), (None, None)),
    "strided": (((17, 4, 1), (9, 2, 5)), ((2, 8, 40), (9, 2, 5))),
    "broadcast": (((0, 4, 1), (0, 0, 1)), (None, None)),
    "woven": (((1, 1, 2), (1, 1, 1)), ((3, 2, 12), (9, 1, 3))),
}


@pytest.fixture(params=[False, True], ids=["used-in-x32", "used-in-x64"])
def modes(request):
    """The mode in which arrays are made, and the other one, in which they are used."""
    return not request.param, request.param


def descs(data_type, layout):
    (large, small), (large_out, small_out) = LAYOUTS[layout]

    def of(sizes, strides, data_type=data_type):
        return BufferTensorDesc(data_type, sizes, strides)

    lengths = of(LINE, (1, 1, 0), DataType.UINT64)
    value = ScalarUnion.of(data_type, 2**40 + 1)
    whole = of(CUBE, large), of(CUBE, large_out)
    yield dml.ReverseSubsequencesOperatorDesc(whole[0], lengths, whole[1], 1)
    part = of(PART, small_out)
    yield dml.SliceOperatorDesc(whole[0], part, (1, 0, 1), PART, (5, 2, 2))
    yield dml.Slice1OperatorDesc(whole[0], part, *WINDOW)
    yield dml.SliceGradOperatorDesc(of(PART, small), whole[1], *WINDOW)
    yield dml.FillValueConstantOperatorDesc(whole[1], data_type, value)
    if data_type is not DataType.FLOAT64:
        yield dml.FillValueSequenceOperatorDesc(whole[1], data_type, value, value)


def numbers(tensor, random, is_lengths=False):
    """Numbers that 32 bits do not hold, or lengths."""
    most = 2**51 if not is_lengths else 5
    values = random.integers(is_lengths - most, most, buffer_size(tensor))
    return np.abs(values).astype(tensor.data_type.dtype)


def arrays_of(desc, random):
    return [numbers(t, random, i == 1) for i, t in enumerate(desc.inputs)]


def made(mode, arrays):
    """Arrays of JAX, those of 64 bits in 64-bit mode in any case."""
    results = []
    for array in arrays:
        with jax.enable_x64(mode or array.dtype.itemsize == 8):
            results.append(jnp.asarray(array))
    return results


def adjoint(desc, inputs, cotangent):
    """What a cotangent gives for the input, and for the buffer before: sums by place.

    Numbers are traced that say where they come from, those of the buffer below 0.
    """
    x, *lengths = inputs
    places = 1 + np.arange(x.size, dtype=x.dtype)
    before = -1 - np.arange(cotangent.size, dtype=x.dtype)
    by_input, by_buffer = np.zeros_like(x), np.zeros_like(cotangent)
    for place, number in zip(
        expected_of(desc, [places, *lengths], before), cotangent, strict=True
    ):
        if place > 0:
            by_input[int(place) - 1] += number
        if place < 0:
            by_buffer[-int(place) - 1] += number
    return by_input, by_buffer


CASES = [(DataType.FLOAT64, layout) for layout in LAYOUTS]
CASES += [(DataType.INT64, "strided"), (DataType.UINT64, "broadcast")]


@pytest.mark.parametrize(("data_type", "layout"), CASES)
def test_operators_keep_the_width(data_type, layout, modes):
    for desc in descs(data_type, layout):
        random = np.random.default_rng(0)
        inputs, previous = arrays_of(desc, random), numbers(desc.output, random)
        *bound, buffer = made(modes[0], [*inputs, previous])
        compiled = dml.compile_operator(desc)

        def call(*arrays, compiled=compiled):
            return compiled(*arrays[:-1], outputs=arrays[-1:])

        batches = [array.reshape(1, -1) for array in (*bound, buffer)]
        with jax.enable_x64(modes[1]):
            expected = expected_of(desc, inputs, previous)
            assert_same_bits(call(*bound, buffer), expected)
            assert_same_bits(jax.jit(call)(*bound, buffer), expected)
            assert_same_bits(jax.vmap(call)(*batches)[0], expected)
            with jax.disable_jit():
                assert_same_bits(call(*bound, buffer), expected)
            if bound:
                assert_same_bits(compiled(*bound), expected_of(desc, inputs))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_derivatives_keep_the_width(layout, modes):
    for desc in descs(DataType.FLOAT64, layout):
        if not desc.inputs:
            continue
        random = np.random.default_rng(1)
        inputs, previous = arrays_of(desc, random), numbers(desc.output, random)
        tangents = numbers(desc.inputs[0], random), numbers(desc.output, random)
        cotangent = numbers(desc.output, random)
        x, *lengths, buffer = made(modes[0], [*inputs, previous])
        *of_jax, ct = made(modes[0], [*tangents, cotangent])
        compiled = dml.compile_operator(desc)

        def call(x, buffer, compiled=compiled, lengths=lengths):
            return compiled(x, *lengths, outputs=[buffer])

        by_place = adjoint(desc, inputs, cotangent)
        with jax.enable_x64(modes[0]):
            pullbacks = [jax.vjp(call, x, buffer)[1]]
        with jax.enable_x64(modes[1]):
            _, tangent = jax.jvp(call, (x, buffer), tuple(of_jax))
            by_jvp = expected_of(desc, [tangents[0], *inputs[1:]], tangents[1])
            assert_same_bits(tangent, by_jvp)
            pullbacks.append(jax.vjp(call, x, buffer)[1])
            pullbacks.append(jax.linear_transpose(call, x, buffer))
            pullbacks.append(jax.jit(pullbacks[0]))
            for pullback in pullbacks:
                for found, expected in zip(pullback(ct), by_place, strict=True):
                    assert_same_bits(found, expected)
            for found, expected in zip(
                jax.vmap(pullbacks[1])(ct[None]), by_place, strict=True
            ):
                assert_same_bits(found[0], expected)


def test_lengths_of_64_bits_keep_their_values():
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
    assert lengths.data_type in U64


def identity(given, wanted):
    zeros, ones = (0,) * given.dimension_count, (1,) * given.dimension_count
    return dml.SliceOperatorDesc(given, wanted, zeros, given.sizes, ones)


def constant_read_as(data_type):
    tensor = BufferTensorDesc(data_type, (16 * 8 // data_type.bits,))
    nodes = [
        dml.ConstantDataGraphNodeDesc(bytes(range(16))),
        dml.OperatorGraphNodeDesc(identity(tensor, tensor)),
    ]
    edges = [dml.IntermediateGraphEdgeDesc(0, 0, 1, 0)]
    outputs = [dml.OutputGraphEdgeDesc(1, 0, 0)]
    return dml.compile_graph(dml.GraphDesc(0, 1, nodes, [], outputs, edges))


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("data_type", WIDE, ids=lambda t: t.name)
def test_an_output_of_64_bits_needs_the_mode_or_an_array(data_type):
    graph, dtype = constant_read_as(data_type), data_type.dtype
    with pytest.raises(ValueError, match="64-bit mode") as caught:
        graph()
    assert str(caught.value) == (
        f"DML_GRAPH: `output 0` has dtype {dtype}, which needs 64-bit mode; enable it "
        "with `jax.config.update('jax_enable_x64', True)` or inside `with "
        f"jax.enable_x64(True):`, or cast to a narrower dtype than {dtype}"
    )
    with jax.enable_x64(True):
        before = jnp.zeros(2, dtype)
    expected = np.frombuffer(bytes(range(16)), dtype)
    assert_same_bits(graph(outputs=[before]), expected)
