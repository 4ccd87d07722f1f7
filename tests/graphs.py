"""Graphs of operators, and what they compute, by NumPy on the bytes of buffers.

Edges are written as tuples: an input edge is (graph input, node, node input), an output
edge (node, graph output), an intermediate one (from, to, input).
"""

import dataclasses
from typing import Any

import numpy as np
from descriptions import buffer_size, computed, elements, is_packed

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion


def tensor(
    sizes: tuple[int, ...],
    data_type: str = "FLOAT32",
    strides: Any = None,
    total: Any = None,
) -> BufferTensorDesc:
    return BufferTensorDesc(DataType[data_type], sizes, strides, total)


def graph(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    edges: Any = (),
    **counts: Any,
) -> dml.GraphDesc:
    indices = [edge[0] for edge in inputs if type(edge[0]) is int]
    counts = {
        "input_count": 1 + max(indices, default=-1),
        "output_count": len(outputs),
        **counts,
    }
    return dml.GraphDesc(
        **counts,
        nodes=[
            dml.OperatorGraphNodeDesc(node)
            if isinstance(node, dml.OperatorDesc)
            else dml.ConstantDataGraphNodeDesc(node)
            if isinstance(node, bytes)
            else node
            for node in nodes
        ],
        input_edges=[dml.InputGraphEdgeDesc(*edge) for edge in inputs],
        output_edges=[dml.OutputGraphEdgeDesc(n, 0, i) for n, i in outputs],
        intermediate_edges=[
            dml.IntermediateGraphEdgeDesc(start, 0, *end) for start, *end in edges
        ],
    )


def expected(desc: dml.GraphDesc, *arrays: Any) -> list[np.ndarray]:
    """The outputs of a graph, from the bytes of its buffers."""
    sources: dict[Any, Any] = {
        (edge.to_node_index, edge.to_node_input_index): edge
        for edge in (*desc.input_edges, *desc.intermediate_edges)
    }

    def elements_in(tensor: BufferTensorDesc, data: Any) -> np.ndarray:
        dtype = tensor.data_type.dtype
        count = len(data) // dtype.itemsize
        return elements(tensor, np.frombuffer(data, dtype, count))

    def data_of(edge: Any, total: int) -> bytes:
        if isinstance(edge, dml.InputGraphEdgeDesc):
            data = np.asarray(arrays[edge.graph_input_index]).tobytes()
        else:
            data = written(edge.from_node_index)
        return data.ljust(total, b"\0")

    def written(index: int) -> bytes:
        node = desc.nodes[index]
        if isinstance(node, dml.ConstantDataGraphNodeDesc):
            return node.data
        operands = [
            elements_in(t, data_of(sources[index, i], t.total_tensor_size_in_bytes))
            for i, t in enumerate(node.operator.inputs)
        ]
        output = node.operator.output
        data = bytearray(output.total_tensor_size_in_bytes)
        elements_in(output, data)[...] = computed(node.operator, operands)
        return bytes(data)

    results = {}
    for edge in desc.output_edges:
        node: Any = desc.nodes[edge.from_node_index]
        output, data = node.operator.output, written(edge.from_node_index)
        flat = np.frombuffer(data, output.data_type.dtype, buffer_size(output))
        result = elements(output, flat) if is_packed(output) else flat
        results[edge.graph_output_index] = result
    return [results[index] for index in range(desc.output_count)]


# Values -------------------------------------------------------------------------------

WIDE = tensor((1, 1, 4, 6), strides=(32, 32, 8, 1))
TALL = tensor((1, 1, 3, 6), strides=(18, 18, 1, 3))
ROWS = tensor((1, 1, 3, 6), strides=(24, 24, 8, 1))
FOUND = tensor((1, 1, 2, 3))
COUNTS = tensor((1, 1, 3, 1), "UINT32")
LENGTHS = np.array([6, 3, 2], np.uint32).reshape(1, 1, 3, 1)
FILL = dml.FillValueSequenceOperatorDesc(
    WIDE, DataType.FLOAT32, ScalarUnion(float32=3), ScalarUnion(float32=2)
)
SLICE = dml.SliceOperatorDesc(WIDE, TALL, (0, 0, 1, 0), (1, 1, 3, 6), (1, 1, 1, 1))
REVERSE = dml.ReverseSubsequencesOperatorDesc(TALL, COUNTS, ROWS, 3)
SLICE1 = dml.Slice1OperatorDesc(ROWS, FOUND, (0, 0, 0, 1), (1, 1, 3, 5), (1, 1, -2, 2))
TURNED = dataclasses.replace(  # reads what lies in ROWS column by column
    SLICE1, input_tensor=tensor((1, 1, 3, 6), strides=(24, 24, 1, 3), total=88)
)
CHAIN = [FILL, SLICE, REVERSE, SLICE1]
LINKS = [(0, 1, 0), (1, 2, 0), (2, 3, 0)]
