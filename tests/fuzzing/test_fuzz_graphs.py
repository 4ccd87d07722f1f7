"""Graphs with edges between any nodes: the bytes move as in NumPy, or it is refused."""

from typing import Any

import numpy as np
from assertions import assert_same_bits
from graphs import CHAIN, LENGTHS, LINKS, SLICE1, TURNED, expected, graph
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of

import dml_jax.directml as dml

X = np.arange(1, 33, dtype=np.float32)
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
            desc = graph(nodes, *edges, **counts)
            compiled = dml.compile_graph(desc)
            arrays = [bound_to(tensor) for _, tensor in compiled.inputs]
            return desc, arrays, compiled(*arrays)

        heads = [f"{name}: " for name in ("DML_GRAPH_DESC", "GraphDesc", *EDGES)]
        result = outcome_of(run, *heads)
        if not isinstance(result, Refusal):
            desc, arrays, outputs = result
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            for actual, wanted in zip(outputs, expected(desc, *arrays), strict=True):
                assert_same_bits(np.asarray(actual), wanted)


def bound_to(tensor: Any) -> np.ndarray:
    """The first elements of a tensor, whatever its type is."""
    is_lengths = tensor.data_type is dml.DataType.UINT32
    return np.resize(LENGTHS.reshape(-1) if is_lengths else X, tensor.buffer_size)
