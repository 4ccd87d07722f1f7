"""Graphs with edges between any nodes: the bytes move as in NumPy, or it is refused."""

import dataclasses
from typing import Any

import numpy as np
from assertions import bits
from descriptions import buffer_size, elements, expected_of
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

WIDE = BufferTensorDesc(DataType.FLOAT32, (1, 1, 4, 6), (32, 32, 8, 1))
TALL = BufferTensorDesc(DataType.FLOAT32, (1, 1, 3, 6), (18, 18, 1, 3))
ROWS = BufferTensorDesc(DataType.FLOAT32, (1, 1, 3, 6), (24, 24, 8, 1))
COLUMNS = BufferTensorDesc(DataType.FLOAT32, (1, 1, 3, 6), (24, 24, 1, 3), 88)
FOUND = BufferTensorDesc(DataType.FLOAT32, (1, 1, 2, 3))
COUNTS = BufferTensorDesc(DataType.UINT32, (1, 1, 3, 1))
FILL = dml.FillValueSequenceOperatorDesc(
    WIDE, DataType.FLOAT32, ScalarUnion(float32=3), ScalarUnion(float32=2)
)
SLICE = dml.SliceOperatorDesc(WIDE, TALL, (0, 0, 1, 0), (1, 1, 3, 6), (1, 1, 1, 1))
REVERSE = dml.ReverseSubsequencesOperatorDesc(TALL, COUNTS, ROWS, 3)
SLICE1 = dml.Slice1OperatorDesc(ROWS, FOUND, (0, 0, 0, 1), (1, 1, 3, 5), (1, 1, -2, 2))
TURNED = dataclasses.replace(SLICE1, input_tensor=COLUMNS)
CHAIN, LINKS = [FILL, SLICE, REVERSE, SLICE1], [(0, 1, 0), (1, 2, 0), (2, 3, 0)]
LENGTHS, X = np.array([6, 3, 2], np.uint32), np.arange(1, 33, dtype=np.float32)
CONSTANT = LENGTHS.tobytes()
# Nodes; edges (input, node, input of it), (node, output) and (node, node, input of it).
GRAPHS = [
    (CHAIN, [(0, 2, 1)], [(3, 0)], LINKS),
    (CHAIN, [(0, 2, 1)], [(3, 1), (0, 0)], LINKS),
    ([*CHAIN[:3], TURNED], [(0, 2, 1)], [(3, 0)], LINKS),
    ([*CHAIN, CONSTANT], [], [(3, 0)], [*LINKS, (4, 2, 1)]),
    ([*CHAIN, SLICE1], [(0, 2, 1)], [(3, 0), (4, 1)], [*LINKS, (2, 4, 0)]),
]
EDGES = [f"{kind}GraphEdgeDesc" for kind in ("Input", "Output", "Intermediate")]
ARGUMENTS = {
    "input_count": st.sampled_from([0, 1, 2, 3, 2**32 - 1, -1, 1.5]),
    "output_count": st.sampled_from([0, 1, 2, 3, 2**32 - 1, -1, 1.5]),
}


def changed_edges(draw: Any, edges: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The edges, of which one may be dropped, doubled or led elsewhere."""
    place = draw(st.integers(0, len(edges)))
    if place == len(edges):
        return edges
    edge = list(edges[place])
    index = draw(st.integers(0, len(edge) - 1))
    edge[index] = draw(st.sampled_from([0, 1, 2, 3, 4, 5, -1, 2**32, None, True]))
    new = draw(st.sampled_from([[], [edges[place]] * 2, [tuple(edge)]]))
    return [*edges[:place], *new, *edges[place + 1 :]]


def changed_nodes(draw: Any, nodes: list[Any]) -> list[Any]:
    place = draw(st.integers(0, len(nodes)))
    others = [*CHAIN, TURNED, CONSTANT, CONSTANT[:-1], b"", CONSTANT * 2]
    return [*nodes[:place], draw(st.sampled_from(others)), *nodes[place + 1 :]]


def test_changed_graphs_are_refused_or_give_what_numpy_gives(fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        nodes, *edges = (list(part) for part in data.draw(st.sampled_from(GRAPHS)))
        counts = {}
        match data.draw(st.sampled_from(["edges", "edges", "node", "count", "none"])):
            case "edges":
                edges = [changed_edges(data.draw, some) for some in edges]
            case "node":
                nodes = changed_nodes(data.draw, nodes)
            case "count":
                counts = data.draw(st.fixed_dictionaries({}, optional=ARGUMENTS))

        def run() -> Any:
            inputs = [edge[0] for edge in edges[0] if type(edge[0]) is int]
            count = {"input_count": 1 + max(inputs, default=-1), **counts}
            desc = graph(nodes, *edges, **count)
            compiled = dml.compile_graph(desc)
            arrays = [bound_to(tensor) for _, tensor in compiled.inputs]
            return desc, arrays, compiled(*arrays)

        heads = [f"{name}: " for name in ("DML_GRAPH_DESC", "GraphDesc", *EDGES)]
        result = outcome_of(run, *heads)
        if not isinstance(result, Refusal):
            require_bytes(*result)


def graph(
    nodes: list[Any], inputs: Any, outputs: Any, edges: Any, **counts: int
) -> Any:
    return dml.GraphDesc(
        **{"output_count": len(outputs), **counts},
        nodes=[
            dml.ConstantDataGraphNodeDesc(node)
            if isinstance(node, bytes)
            else dml.OperatorGraphNodeDesc(node)
            for node in nodes
        ],
        input_edges=[dml.InputGraphEdgeDesc(*edge) for edge in inputs],
        output_edges=[dml.OutputGraphEdgeDesc(node, 0, i) for node, i in outputs],
        intermediate_edges=[
            dml.IntermediateGraphEdgeDesc(start, 0, *end) for start, *end in edges
        ],
    )


def expected(desc: Any, arrays: list[np.ndarray], index: int) -> np.ndarray:
    """The buffer that a node writes, from those of the nodes before it."""
    node = desc.nodes[index]
    if isinstance(node, dml.ConstantDataGraphNodeDesc):
        return np.frombuffer(node.data, np.uint32)
    inputs = []
    for i, tensor in enumerate(node.operator.inputs):
        for edge in (*desc.input_edges, *desc.intermediate_edges):
            if (edge.to_node_index, edge.to_node_input_index) == (index, i):
                is_input = isinstance(edge, dml.InputGraphEdgeDesc)
                inputs.append(
                    arrays[edge.graph_input_index]
                    if is_input
                    else expected(desc, arrays, edge.from_node_index)
                )
        buffer = np.zeros(buffer_size(tensor), tensor.data_type.dtype)
        bound = inputs[i].reshape(-1)[: buffer.size]
        buffer[: bound.size] = bound
        inputs[i] = buffer
    size = buffer_size(node.operator.output)
    return expected_of(node.operator, inputs, np.zeros(size, np.float32))


def bound_to(tensor: Any) -> np.ndarray:
    """The first elements of a tensor, whatever its type is."""
    is_lengths = tensor.data_type is dml.DataType.UINT32
    return np.resize(LENGTHS.reshape(-1) if is_lengths else X, tensor.buffer_size)


def require_bytes(desc: Any, arrays: list[np.ndarray], outputs: Any) -> None:
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == desc.output_count
    for edge in desc.output_edges:
        actual = outputs[edge.graph_output_index]
        wanted = expected(desc, arrays, edge.from_node_index)
        if actual.ndim > 1:  # a packed output has its shape
            wanted = elements(desc.nodes[edge.from_node_index].operator.output, wanted)
        count = min(actual.size, wanted.size)
        actual, wanted = (np.asarray(a).reshape(-1)[:count] for a in (actual, wanted))
        np.testing.assert_array_equal(bits(actual), bits(wanted))
