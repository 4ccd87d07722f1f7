"""The graphs and nodes of an ONNX model at every depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

MOST_LEVELS = 16  # of graphs in graphs


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(
    nodes: Iterable[onnx.NodeProto], level: int = 0
) -> Iterator[onnx.NodeProto]:
    """The nodes, and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from all_nodes(graph.node, _next(level))


def all_graphs(graph: onnx.GraphProto, level: int = 0) -> Iterator[onnx.GraphProto]:
    """A graph, and those in the attributes of its nodes."""
    yield graph
    for node in graph.node:
        for inner in graphs_of(node):
            yield from all_graphs(inner, _next(level))


def _next(level: int) -> int:
    if level == MOST_LEVELS:
        raise ValueError(
            f"onnx: graphs must be nested at most {MOST_LEVELS} levels deep; got more"
        )
    return level + 1
