"""Which values of a graph determine shapes, are statistics, or are captured."""

from __future__ import annotations

from collections.abc import Sequence

from dml_jax.onnx_backend._nodes import Graph, Node


def shape_names(nodes: Sequence[Node]) -> frozenset[str]:
    """The values that determine shapes, and all that they are computed from."""
    static: set[str] = set()
    for node in reversed(nodes):
        if static.intersection(node.outputs) and not node.operator.of_shapes:
            static.update(node.inputs)
            for graph in node.graphs():
                static.update(captured_names(graph))
        indices = node.operator.static
        static.update(node.inputs[i] for i in indices if i < len(node.inputs))
        for graph in node.graphs():
            inner = shape_names(graph.nodes)
            static.update(inner & captured_names(graph))
            # An initial value of a loop has the place of the body's input.
            static.update(
                given
                for name, given in zip(graph.inputs, node.inputs, strict=False)
                if name in inner
            )
    return frozenset(static - {""})


def names_of(kind: str, nodes: Sequence[Node]) -> frozenset[str]:
    """Inputs of a kind, "statistics" or "states", and what nodes copy to them."""
    names: set[str] = set()
    for node in reversed(nodes):
        names.update(node.inputs[getattr(node.operator, kind)])
        if node.operator.is_copy and names.intersection(node.outputs):
            names.update(node.inputs)
        for graph in node.graphs():
            names |= names_of(kind, graph.nodes)
    return frozenset(names)


def are_random(nodes: Sequence[Node]) -> bool:
    """Whether nodes may draw random numbers."""
    return any(
        node.operator.is_random or any(are_random(g.nodes) for g in node.graphs())
        for node in nodes
    )


def captured_names(graph: Graph) -> frozenset[str]:
    """The names of outer values that a graph reads."""
    known = {*graph.inputs, *graph.constants, ""}
    captured: set[str] = set()
    for node in graph.nodes:
        read = {*node.inputs}
        for inner in node.graphs():
            read |= captured_names(inner)
        captured |= read - known
        known.update(node.outputs)
    return frozenset(captured | {*graph.outputs} - known)
