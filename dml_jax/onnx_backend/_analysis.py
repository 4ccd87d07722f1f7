"""Which values of a graph determine shapes, and which are only indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dml_jax.onnx_backend._evaluation import Graph, Node

# Operators whose outputs depend on the shapes of their inputs only.
_OF_SHAPES = ("Shape", "Size")
# Operators that pass indices from inputs to outputs, with small changes at most.
_MOVES = {
    *("Identity", "Cast", "Add", "Sub", "Min", "Max", "Clip", "Where"),
    *("Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Expand", "Tile"),
    *("Concat", "Split", "Slice", "Gather", "GatherElements", "TopK"),
}
# Of these, those that combine all inputs, and those that keep every element.
_COMBINE = {"Add", "Sub", "Min", "Max", "Clip", "Where", "Concat"}
_KEEP = {"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose"}
_COMPARE = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}


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
    """The values that are used only where 32 bits hold every valid one.

    They are sequence lengths and indices, which ONNX forbids beyond an axis, or are
    compared with a value that 32 bits hold. A length may also have any other use.
    """
    lengths = _lengths(graph)
    small = _small_names(graph, lengths)
    rejected = {*graph.outputs} - lengths
    # From the last node to the first, so that all readers of a value are known.
    for node in reversed(graph.nodes):
        for inner in node.graphs():
            rejected |= captured_names(inner) - lengths
        is_moved = node.kind in _MOVES and not rejected & {*node.outputs[:1]}
        is_compared = node.kind in _COMPARE and small.intersection(node.inputs)
        if not (is_moved or is_compared or node.kind in _OF_SHAPES):
            indices = node.operator.indices
            others = {n for i, n in enumerate(node.inputs) if i not in indices}
            rejected |= others - lengths
    read = {name for node in graph.nodes for name in node.inputs}
    return frozenset(read - rejected)


def _lengths(graph: Graph) -> set[str]:
    """The values all of whose elements are sequence lengths or indices."""
    lengths: set[str] = set()
    for node in reversed(graph.nodes):
        indices = node.operator.indices
        lengths.update(n for i, n in enumerate(node.inputs) if i in indices)
        if node.kind in _KEEP and lengths.intersection(node.outputs):
            lengths.add(node.inputs[0])
    return lengths - {""}


def _small_names(graph: Graph, lengths: set[str]) -> set[str]:
    """The values that 32 bits hold: constants, shapes, lengths, ranges up to these."""
    small = lengths | {name for name, x in graph.constants.items() if _is_small(x)}
    for node in graph.nodes:
        count = len(node.inputs) if node.kind in {"Range", *_COMBINE} else 1
        given = {*node.inputs[:count]} - {""}
        is_moved = node.kind in {"Range", *_MOVES} and given <= small
        is_constant = node.kind == "Constant" and all(
            _is_small(np.asarray(value)) for value in node.attributes.values()
        )
        if is_moved or is_constant or node.kind in (*_OF_SHAPES, "NonZero"):
            small.update(node.outputs)
    return small


def _is_small(x: np.ndarray) -> bool:
    """Whether 32 bits hold all elements of a constant."""
    is_number = x.dtype.kind in "iuf"
    return is_number and bool(np.all(np.abs(x.astype(np.float64)) < 2**31))
