"""Which values of a graph determine shapes, and which are only indices."""

from __future__ import annotations

from collections.abc import Sequence

from dml_jax.onnx_backend._evaluation import Graph, Node

# Operators whose outputs depend on the shapes of their inputs only.
_OF_SHAPES = ("Shape", "Size")
# Operators that pass indices from inputs to outputs, with small changes at most.
_MOVES = {
    *("Identity", "Cast", "Add", "Sub", "Min", "Max", "Clip", "Where"),
    *("Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Expand", "Tile"),
    *("Concat", "Split", "Slice", "Gather", "GatherElements", "TopK"),
}
_INTEGERS = (6, 7)  # data types, INT32 and INT64


def static_names(nodes: Sequence[Node]) -> frozenset[str]:
    """The values that determine shapes, and all that they are computed from."""
    static: set[str] = set()
    for node in reversed(nodes):
        if static.intersection(node.outputs) and node.kind not in _OF_SHAPES:
            static.update(node.inputs)
            for graph in node.graphs():
                static.update(captured_names(graph))
        indices = node.operator.static
        static.update(node.inputs[i] for i in indices if i < len(node.inputs))
        for graph in node.graphs():
            inner = static_names(graph.nodes)
            static.update(inner & captured_names(graph))
            # An initial value of a loop has the place of the body's input.
            static.update(
                given
                for name, given in zip(graph.inputs, node.inputs, strict=False)
                if name in inner
            )
    return frozenset(static - {""})


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


def index_names(graph: Graph) -> frozenset[str]:
    """The values that are used only as sequence lengths or indices.

    ONNX forbids those beyond an axis, so 32 bits hold every valid one.
    """
    rejected = {*graph.outputs}
    # From the last node to the first, so that all readers of a value are known.
    for node in reversed(graph.nodes):
        for inner in node.graphs():
            rejected |= captured_names(inner)
        is_moved = node.kind in _MOVES and not rejected & {*node.outputs[:1]}
        if node.kind == "Cast" and node.attributes["to"] not in _INTEGERS:
            is_moved = False
        if not is_moved and node.kind not in _OF_SHAPES:
            indices = node.operator.indices
            rejected |= {n for i, n in enumerate(node.inputs) if i not in indices}
    read = {name for node in graph.nodes for name in node.inputs}
    return frozenset(read - rejected)
