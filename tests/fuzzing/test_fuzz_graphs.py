"""Graphs with edges between any nodes: the bytes move as in NumPy, or it is refused."""

import dataclasses

import numpy as np
from arguments import pick
from assertions import bits
from hypothesis import given
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of
from test_directml_graph import CHAIN, LENGTHS, LINKS, SLICE1, TURNED, expected, graph

import dml_jax.directml as dml

X = np.arange(1, 33, dtype=np.float32)
CONSTANT = LENGTHS.tobytes()
PARTS = [  # nodes, edges of inputs, of outputs, and between nodes
    (CHAIN, [(0, 2, 1)], [(3, 0)], LINKS),
    (CHAIN, [(0, 2, 1)], [(3, 1), (0, 0)], LINKS),
    ([*CHAIN[:3], TURNED], [(0, 2, 1)], [(3, 0)], LINKS),
    ([*CHAIN, CONSTANT], [], [(3, 0)], [*LINKS, (4, 2, 1)]),
    ([*CHAIN, SLICE1], [(0, 2, 1)], [(3, 0), (4, 1)], [*LINKS, (2, 4, 0)]),
]
COUNTS = ["input_count", "output_count"]


@st.composite
def graphs(draw):
    """What makes a graph, after up to three changes."""
    nodes, *edges = (list(part) for part in pick(draw, PARTS))
    changes = {}
    for _ in range(draw(st.integers(0, 3))):
        kind = pick(draw, ["index", "index", "drop", "again", "count", "node", "bytes"])
        some = pick(draw, edges)
        if kind == "count":
            changes[pick(draw, COUNTS)] = pick(draw, [0, 1, 2, 3, 2**32 - 1, -1, 1.5])
        elif kind == "node":
            nodes[draw(st.integers(0, len(nodes) - 1))] = pick(draw, [*CHAIN, TURNED])
        elif kind == "bytes":
            nodes[-1] = pick(draw, [CONSTANT, CONSTANT[:-1], b"", CONSTANT * 2])
        elif some:
            place = draw(st.integers(0, len(some) - 1))
            edge = list(some.pop(place))
            index = draw(st.integers(0, len(edge) - 1))
            if kind == "index":
                edge[index] = pick(draw, [0, 1, 2, 3, 4, 5, -1, 2**32, None, True])
            if kind != "drop":
                some += [tuple(edge)] * (1 + (kind == "again"))
    return nodes, edges, changes


@given(graphs())
def test_a_graph(parts):
    nodes, edges, changes = parts

    def run():
        desc = graph_of(nodes, edges, changes)
        compiled = dml.compile_graph(desc)
        arrays = [bound_to(tensor) for _, tensor in compiled.inputs]
        return desc, arrays, compiled(*arrays)

    heads = [f"{name}: " for name in ("DML_GRAPH_DESC", "GraphDesc", *EDGES)]
    result = outcome_of(run, *heads)
    if not isinstance(result, Refusal):
        desc, arrays, outputs = result
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for actual, wanted in zip(outputs, expected(desc, *arrays), strict=True):
            count = min(actual.size, wanted.size)
            actual = np.asarray(actual).reshape(-1)[:count]
            np.testing.assert_array_equal(
                bits(actual), bits(wanted.reshape(-1)[:count])
            )


def graph_of(nodes, edges, changes):
    inputs, outputs, others = edges
    indices = [edge[0] for edge in inputs if type(edge[0]) is int]
    return dml.GraphDesc(
        **{
            "input_count": 1 + max(indices, default=-1),
            "output_count": len(outputs),
            "nodes": graph(nodes, [], []).nodes,
            "input_edges": [dml.InputGraphEdgeDesc(*edge) for edge in inputs],
            "output_edges": [dml.OutputGraphEdgeDesc(n, 0, i) for n, i in outputs],
            "intermediate_edges": [
                dml.IntermediateGraphEdgeDesc(start, 0, *end) for start, *end in others
            ],
            **changes,
        }
    )


EDGES = [f"{kind}GraphEdgeDesc" for kind in ("Input", "Output", "Intermediate")]


def bound_to(tensor):
    """The first elements of a tensor, whatever its type is."""
    size = tensor.buffer_size
    if tensor.data_type is dml.DataType.UINT32:
        return np.resize(LENGTHS.reshape(-1), size)
    return np.resize(X, size)


@given(st.data())
def test_members_of_edges_and_nodes(data):
    kind = getattr(dml, data.draw(st.sampled_from([*EDGES, *NODES])))
    fields = [field.name for field in dataclasses.fields(kind)]
    anything = [0, 1, -1, 2**32, 2**70, None, "", "n", 1.0, True, b"1", SLICE1, [], X]
    values = {name: pick(data.draw, anything) for name in fields}
    result = outcome_of(lambda: kind(**values), f"{kind.__name__}: ")
    assert isinstance(result, Refusal) == (not are_right(values))


NODES = ["OperatorGraphNodeDesc", "ConstantDataGraphNodeDesc"]


def are_right(values):
    def is_right(name, value):
        if name == "name":
            return value is None or (isinstance(value, str) and value == "n")
        if name == "operator":
            return value is SLICE1
        if name == "data":
            return isinstance(value, bytes)
        return type(value) is int and 0 <= value < 2**32

    return all(is_right(name, value) for name, value in values.items())
