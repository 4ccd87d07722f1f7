"""Graphs that reinterpret bytes as other data types, against NumPy's views."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import buffer_size, copy_of, expected_of, is_packed

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType

TYPES = [data_type for data_type in DataType if data_type.bits >= 8]
NARROW = [data_type for data_type in TYPES if data_type.bits < 64]
TOTALS = (4, 8, 12, 16, 20, 28, 32, 44, 48)


def random_node(
    random: np.random.Generator, data_type: DataType, total: int
) -> dml.OperatorDesc:
    """An operator that moves elements of a type."""
    count = total * 8 // data_type.bits

    def tensor(sizes: tuple[int, ...], strides: Any = None) -> BufferTensorDesc:
        return BufferTensorDesc(data_type, sizes, strides, total)

    whole, half = tensor((count,)), count // 2
    nodes: list[dml.OperatorDesc] = [copy_of(whole)]
    if count > 1:
        reverse = (whole, whole, (0,), (count,), (-1,))
        nodes.append(dml.Slice1OperatorDesc(*reverse))
        nodes.append(copy_of(tensor((count - 1,)), tensor((count - 1,))))
        nodes.append(copy_of(tensor((half,), (2,)), tensor((half,))))
        nodes.append(copy_of(tensor((half,)), tensor((half,), (2,))))
        nodes.append(copy_of(tensor((2, half), (1, 2)), tensor((2, half))))
    return nodes[random.integers(len(nodes))]


def random_chain(random: np.random.Generator, total: int) -> list[dml.OperatorDesc]:
    """Operators, each of which reads what the one before wrote; 64 bits only inside."""
    fitting = [t for t in TYPES if t.bits <= total * 8]
    inner = [fitting[random.integers(len(fitting))] for _ in range(random.integers(6))]
    ends = [NARROW[random.integers(len(NARROW))] for _ in range(2)]
    return [random_node(random, t, total) for t in (ends[0], *inner, ends[1])]


def graph_of(nodes: list[Any], data: bytes | None = None) -> dml.GraphDesc:
    """A graph that runs nodes one after the other, from its input or a constant."""
    edges = [dml.IntermediateGraphEdgeDesc(i, 0, i + 1, 0) for i in range(len(nodes))]
    last = len(nodes) - 1
    parts: list[Any] = [dml.OperatorGraphNodeDesc(node) for node in nodes]
    edges, inputs = edges[:last], [dml.InputGraphEdgeDesc(0, 0, 0)]
    if data is not None:
        parts.append(dml.ConstantDataGraphNodeDesc(data))
        edges.append(dml.IntermediateGraphEdgeDesc(last + 1, 0, 0, 0))
        inputs = []
    outputs = [dml.OutputGraphEdgeDesc(last, 0, 0)]
    return dml.GraphDesc(len(inputs), 1, parts, inputs, outputs, edges)


def bytes_after(node: dml.OperatorDesc, data: bytes) -> bytes:
    """The bytes of the output of a node, from those of its input."""
    given, wanted = node.inputs[0], node.output
    elements = np.frombuffer(data, given.data_type.dtype, buffer_size(given))
    zeros = np.zeros(buffer_size(wanted), wanted.data_type.dtype)
    result = expected_of(node, [elements], zeros).tobytes()
    return result.ljust(wanted.total_tensor_size_in_bytes, b"\0")


def elements_of(tensor: BufferTensorDesc, data: bytes) -> np.ndarray:
    """What a call returns for an output: its elements, or the buffer if it has gaps."""
    buffer = np.frombuffer(data, tensor.data_type.dtype, buffer_size(tensor))
    return buffer[: math.prod(tensor.sizes)] if is_packed(tensor) else buffer


def assert_moves_bytes(
    nodes: list[Any], data: bytes, is_constant: bool, wrap: Callable[..., Any]
) -> None:
    after = data
    for node in nodes:
        after = bytes_after(node, after)
    first, last = nodes[0].inputs[0], nodes[-1].output
    compiled = dml.compile_graph(graph_of(nodes, data if is_constant else None))
    arrays = [] if is_constant else [np.frombuffer(data, first.data_type.dtype)]
    actual = np.asarray(wrap(compiled)(*arrays)).reshape(-1)
    assert_same_bits(actual, elements_of(last, after))


def assert_random_chains(
    count: int, mode: bool, is_constant: bool, wrap: Callable[..., Any]
) -> None:
    """Types of 64 bits are inner ones, which need no 64-bit mode."""
    random = np.random.default_rng([is_constant, mode])
    for _ in range(count):
        total = int(random.choice(TOTALS))
        nodes = random_chain(random, total)
        data = random.integers(0, 256, total, np.uint8).tobytes()
        with jax.enable_x64(mode):
            assert_moves_bytes(nodes, data, is_constant, wrap)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("is_constant", [False, True], ids=["input", "constant"])
def test_a_few_random_chains_of_types(is_constant: bool) -> None:
    assert_random_chains(5, False, is_constant, jax.jit)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("is_constant", [False, True], ids=["input", "constant"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("mode", [False, True], ids=["x32", "x64"])
def test_random_chains_of_types(
    is_constant: bool, wrap: Callable[..., Any], mode: bool
) -> None:
    assert_random_chains(25, mode, is_constant, wrap)


WIDTHS = {bits: [t for t in TYPES if t.bits == bits] for bits in (8, 16, 32, 64)}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("last", WIDTHS)
@pytest.mark.parametrize("middle", WIDTHS)
@pytest.mark.parametrize("first", WIDTHS)
def test_identities_of_three_widths(first: int, middle: int, last: int) -> None:
    """XLA would merge two bitcasts into one of the wrong shape."""
    random = np.random.default_rng([first, middle, last])
    data = random.integers(0, 256, 24, np.uint8).tobytes()
    types = [DataType(random.choice(WIDTHS[bits])) for bits in (first, middle, last)]
    nodes = [copy_of(BufferTensorDesc(t, (192 // t.bits,))) for t in types]
    with jax.enable_x64(True):
        for is_constant in (False, True):
            assert_moves_bytes(nodes, data, is_constant, jax.jit)


def test_derivatives_are_zero_where_bytes_are_read_as_another_type() -> None:
    tensors = [BufferTensorDesc(t, (24 * 8 // t.bits,)) for t in (NARROW[0], NARROW[1])]
    nodes = [copy_of(tensor) for tensor in (*tensors, tensors[0])]
    compiled = dml.compile_graph(graph_of(nodes))
    x = np.arange(6, dtype=np.float32)
    jacobians = jax.jacrev(compiled)(x), jax.jacfwd(compiled)(x)
    for jacobian in jacobians:
        assert_same_bits(jacobian, np.zeros((6, 6), np.float32))


# The last bytes of a buffer -----------------------------------------------------------


def two_readers(first: DataType, other: DataType, total: int) -> dml.CompiledOperator:
    """A graph whose input is read as one data type and as another."""
    tensors = [
        BufferTensorDesc(t, (total * 8 // t.bits,), None, total) for t in (first, other)
    ]
    nodes = [dml.OperatorGraphNodeDesc(copy_of(t)) for t in tensors]
    inputs = [dml.InputGraphEdgeDesc(0, i, 0) for i in range(2)]
    outputs = [dml.OutputGraphEdgeDesc(i, 0, i) for i in range(2)]
    return dml.compile_graph(dml.GraphDesc(1, 2, nodes, inputs, outputs))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("total", [12, pytest.param(28, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("first", TYPES, ids=lambda t: t.name)
def test_no_byte_of_an_input_is_lost(first: DataType, total: int) -> None:
    size = -(-total * 8 // first.bits)
    content = np.random.default_rng(total).integers(0, 256, 40, np.uint8)
    bound = content[: size * first.bits // 8].view(first.dtype)
    with jax.enable_x64(True):
        for other in (DataType.UINT8, DataType.INT32):
            graph = two_readers(first, other, total)
            assert graph.inputs[0].tensor.buffer_size == size
            results = graph(bound)
            for found, data_type in zip(results, (first, other), strict=True):
                count = total * 8 // data_type.bits
                view = content.view(data_type.dtype)[:count]
                assert_same_bits(np.asarray(found), view)


def test_a_buffer_without_the_last_bytes_is_refused() -> None:
    graph = two_readers(DataType.INT64, DataType.INT32, 28)
    with (
        jax.enable_x64(True),
        pytest.raises(
            ValueError, match=r"^DML_GRAPH: `input 0` must .+ of at least 4 "
        ),
    ):
        graph(np.zeros((1, 3), np.int64))


def test_an_input_that_no_other_edge_reads_needs_no_more_elements() -> None:
    tensor = BufferTensorDesc(DataType.INT64, (3,), None, 28)
    graph = dml.compile_graph(graph_of([copy_of(tensor)]))
    assert graph.inputs[0].tensor == tensor


@pytest.mark.parametrize("total", [pytest.param(24, marks=pytest.mark.exhaustive), 28])
@pytest.mark.parametrize("data_type", TYPES, ids=lambda t: t.name)
def test_outputs_keep_the_bytes_between_and_after(
    data_type: DataType, total: int
) -> None:
    node = copy_of(
        BufferTensorDesc(data_type, (2,)),
        BufferTensorDesc(data_type, (2,), (2,), total),
    )
    random = np.random.default_rng(total)
    previous = random.integers(0, 100, 48, np.uint8).view(data_type.dtype)
    x = random.integers(0, 100, 16, np.uint8).view(data_type.dtype)[:2]
    expected = expected_of(node, [x], previous)
    with jax.enable_x64(True) if data_type.bits == 64 else contextlib.nullcontext():
        for compiled in (
            dml.compile_operator(node),
            dml.compile_graph(graph_of([node])),
        ):
            result = np.asarray(compiled(x, outputs=[previous]))
            assert_same_bits(result, expected)
