"""Graphs, their nodes, and how their values depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dml_jax.onnx_backend._values import Value


class Operator(NamedTuple):
    """An operator of ONNX."""

    evaluate: Any  # gives the outputs from a node and its inputs
    since: int = 0  # the first version of it that `evaluate` implements
    static: tuple[int, ...] = ()  # inputs whose values determine the outputs' shapes
    is_folded: bool = True  # computed at once if the inputs are constant
    is_elementwise: bool = False  # on single elements, with broadcasting
    of_floats: bool = False  # it can be evaluated on the floats of `Rounded`
    of_images: bool = False  # it computes with the channels last, and transposes
    of_shapes: bool = False  # it reads no values, but shapes or numbers of arrays
    is_copy: bool = False  # of its first input, perhaps in another dtype or shape
    is_random: bool = False  # it may draw random numbers
    statistics: slice = slice(0)  # inputs that are running means and variances
    states: slice = slice(0)  # inputs that are initial states
    # Refuses inputs of an operator that ONNX's body of it computes, not `evaluate`.
    check: Callable[..., None] | None = None

    @property
    def is_custom(self) -> bool:
        """Whether it is a function that was passed in `operators`."""
        return not self.since


class Scope(NamedTuple):
    """What a node can read."""

    values: Mapping[str, Value]
    # `training` and `lda_coeff` of ReverseSequence, and the `key` of random numbers or,
    # in `run`, the `entropy` for nodes without a seed.
    options: Mapping[str, Any]
    is_wide: bool  # whether the caller is in 64-bit mode
    product_dtype: Any = np.float32  # in which products of float32 are computed
    is_expanded: bool = False  # whether nodes stand for one node of the model
    iterations: tuple[Any, ...] = ()  # of the loops that the node is in


class Node(NamedTuple):
    """A node of a graph."""

    kind: str  # the name of its operator
    label: str  # its name in messages
    version: int  # of the operator
    attributes: Mapping[str, Any]  # those that are set, and defaults of others
    inputs: tuple[str, ...]  # names, "" for an optional input that is omitted
    outputs: tuple[str, ...]  # names, "" for an optional output that is omitted
    operator: Operator
    place: int = 0  # among all nodes of the model
    scope: Scope = Scope({}, {}, True)  # while the node is evaluated

    def graphs(self) -> list[Graph]:
        return [value for value in self.attributes.values() if isinstance(value, Graph)]

    def read_names(self) -> set[str]:
        """The names of what the node and its graphs read."""
        return {*self.inputs}.union(*(g.captured_names() for g in self.graphs()))


class Graph(NamedTuple):
    """A graph, or the body of a node."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]
    nodes: tuple[Node, ...]
    types: Mapping[str, jax.ShapeDtypeStruct]  # of outputs; unknown sizes are 0

    def captured_names(self) -> set[str]:
        """The names of outer values that the graph reads."""
        known = {*self.inputs, *self.constants, ""}
        captured: set[str] = set()
        for node in self.nodes:
            captured |= node.read_names() - known
            known.update(node.outputs)
        return captured | {*self.outputs} - known


def shape_names(nodes: Sequence[Node]) -> frozenset[str]:
    """The values that determine shapes, and all that they are computed from."""
    static: set[str] = set()
    for node in reversed(nodes):
        if static.intersection(node.outputs) and not node.operator.of_shapes:
            static |= node.read_names()
        indices = node.operator.static
        static.update(node.inputs[i] for i in indices if i < len(node.inputs))
        for graph in node.graphs():
            inner = shape_names(graph.nodes)
            static.update(inner & graph.captured_names())
            # An initial value of a loop has the place of the body's input.
            pairs = zip(graph.inputs, node.inputs, strict=False)
            static.update(given for name, given in pairs if name in inner)
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
    return any(
        node.operator.is_random or any(are_random(g.nodes) for g in node.graphs())
        for node in nodes
    )
