"""Which values of a graph determine shapes, and which are only indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dml_jax.onnx_backend._evaluation import Graph, Node

# Operators whose outputs depend on the shapes of their inputs only, or on how many
# arrays a sequence or an optional value has.
_OF_SHAPES = ("Shape", "Size", "SequenceLength", "OptionalHasElement")
# Operators that pass indices from inputs to outputs, with small changes at most.
_MOVES = {
    *("Identity", "Cast", "Add", "Sub", "Min", "Max", "Clip", "Where"),
    *("Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Expand", "Tile"),
    *("Concat", "Split", "Slice", "Gather", "GatherElements", "TopK"),
}
# Of these, those that combine all inputs, and those that keep every element.
_COMBINE = {"Add", "Sub", "Min", "Max", "Clip", "Where", "Concat"}
_KEEP = {"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose"}
# Branches and loops, and the numbers of inputs that their bodies do not get.
_FLOW = {"If": 1, "Loop": 2, "Scan": 0}
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
    """The inputs that are used only where 32 bits hold every valid one.

    They are sequence lengths and indices, which ONNX forbids beyond an axis, or are
    compared with a value that 32 bits hold. A length may also have any other use.
    """
    lengths = _lengths(graph)
    wide = _wide_names(graph, lengths, _large_names(graph, lengths))
    return frozenset({*graph.inputs} - wide)


def _lengths(graph: Graph) -> set[str]:
    """The values all of whose elements are sequence lengths or indices.

    Uses in branches and loops do not count, since they may not be reached.
    """
    lengths: set[str] = set()
    for node in reversed(graph.nodes):
        indices = node.operator.indices
        lengths.update(n for i, n in enumerate(node.inputs) if i in indices)
        if node.kind in _KEEP and lengths.intersection(node.outputs):
            lengths.add(node.inputs[0])
    return lengths - {""}


def _large_names(graph: Graph, lengths: set[str]) -> set[str]:
    """The values that 32 bits may not hold.

    They hold small constants, shapes, lengths, counters, and ranges up to these.
    """
    nodes, passed = _flat(graph)
    small = lengths | {name for name, x in graph.constants.items() if _is_small(x)}
    large = {*graph.inputs, *graph.constants} - small
    count = -1
    while len(large) > count:
        count = len(large)
        for node in nodes:
            if _may_be_large(node, large):
                large |= {*node.outputs} - lengths
        large |= {new for old, new in passed if old in large} - lengths
    return large


def _may_be_large(node: Node, large: set[str]) -> bool:
    if node.kind == "Constant":
        return not all(_is_small(np.asarray(x)) for x in node.attributes.values())
    if node.kind in {"Range", *_MOVES}:
        is_combined = node.kind in {"Range", *_COMBINE}
        given = node.inputs if is_combined else node.inputs[:1]
        return not large.isdisjoint(given)
    return node.kind not in {"NonZero", *_OF_SHAPES} and not _is_flow(node)


def _wide_names(graph: Graph, lengths: set[str], large: set[str]) -> set[str]:
    """The values that are used where they may need 64 bits."""
    nodes, passed = _flat(graph)
    wide = {*graph.outputs} - lengths
    count = -1
    while len(wide) > count:
        count = len(wide)
        # From the last node to the first, so that most readers of a value are known.
        for node in reversed(nodes):
            moved = node.outputs[:1] if node.kind == "TopK" else node.outputs
            is_moved = node.kind in _MOVES and wide.isdisjoint(moved)
            is_compared = node.kind in _COMPARE and not large.issuperset(node.inputs)
            if not (is_moved or is_compared or node.kind in _OF_SHAPES):
                wide |= _read(node) - lengths
        wide |= {old for old, new in passed if new in wide} - lengths
    return wide


def _read(node: Node) -> set[str]:
    """What a node reads, other than indices and what its bodies get."""
    bodies = node.graphs()
    if _is_flow(node):
        conditions = {body.outputs[0] for body in bodies if node.kind == "Loop"}
        return conditions.union(node.inputs[: _FLOW[node.kind]])
    indices = node.operator.indices
    given = {name for i, name in enumerate(node.inputs) if i not in indices}
    return given.union(*map(captured_names, bodies))


def _is_flow(node: Node) -> bool:
    return node.kind in _FLOW and bool(node.graphs())


def _flat(graph: Graph) -> tuple[list[Node], list[tuple[str, str]]]:
    """The nodes of a graph, its branches and loops, and the values that these pass on.

    A value has one name where it is given and another one where it is received.
    """
    nodes, passed = [], []
    for node in graph.nodes:
        nodes.append(node)
        for body in node.graphs() if _is_flow(node) else ():
            inner, inner_passed = _flat(body)
            nodes += inner
            passed += [*inner_passed, *_passed(node, body)]
    return nodes, passed


def _passed(node: Node, body: Graph) -> Iterator[tuple[str, str]]:
    is_loop = node.kind == "Loop"  # its condition is no output
    given = node.inputs[_FLOW[node.kind] :]
    received, results = body.inputs[2 * is_loop :], body.outputs[is_loop:]
    carried = len(received) - node.attributes.get("num_scan_inputs", 0)
    yield from zip(given, received, strict=False)
    yield from zip(results, node.outputs, strict=False)
    yield from zip(results, received[:carried], strict=False)
    yield from zip(given, node.outputs[:carried], strict=False)  # of no iterations


def _is_small(x: np.ndarray) -> bool:
    """Whether 32 bits hold all elements of a constant."""
    is_number = x.dtype.kind in "iuf"
    return is_number and bool(np.all(np.abs(x.astype(np.float64)) < 2**31))
