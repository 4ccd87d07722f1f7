"""The descriptions of graphs: nodes, and the edges between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dml_jax._shared import arguments
from dml_jax.directml._compile import require_operator_desc
from dml_jax.directml._operators import OperatorDesc
from dml_jax.directml._tensor import LARGEST_UINT, in_range
from dml_jax.directml._types import settle


@dataclasses.dataclass(frozen=True)
class OperatorGraphNodeDesc:
    """DML_OPERATOR_GRAPH_NODE_DESC: a node that computes.

    Args:
      operator: the description of the operator.
      name: what the node is called in profiles; None for the operator's name.

    Raises:
      TypeError: `operator` is not a description, or `name` not a string.
      ValueError: `name` is empty.

    Source: DirectML, DML_OPERATOR_GRAPH_NODE_DESC.
    """

    operator: OperatorDesc
    name: str | None = None

    def __post_init__(self):
        struct = type(self).__name__
        require_operator_desc(struct, "operator", self.operator)
        arguments.optional_name(struct, "name", self.name)


@dataclasses.dataclass(frozen=True)
class ConstantDataGraphNodeDesc:
    """DML_CONSTANT_DATA_GRAPH_NODE_DESC: a node that holds bytes, from 6_2 on.

    Args:
      data: the bytes of a tensor, with or without those that round its size up to a
        multiple of 4.
      name: what the node is called; None for no name.

    Raises:
      TypeError: `data` is not bytes, or `name` not a string.
      ValueError: `name` is empty.

    Source: DirectML, DML_CONSTANT_DATA_GRAPH_NODE_DESC.
    """

    data: bytes
    name: str | None = None

    def __post_init__(self):
        struct = type(self).__name__
        if not isinstance(self.data, bytes):
            raise TypeError(
                f"{struct}: `data` must be bytes; got {arguments.describe(self.data)}"
            )
        arguments.optional_name(struct, "name", self.name)


class _Edge:
    def __post_init__(self):
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            struct = type(self).__name__
            if field.name == "name":
                arguments.optional_name(struct, "name", value)
            else:
                index = in_range(struct, field.name, value, 0, LARGEST_UINT)
                settle(self, **{field.name: index})


@dataclasses.dataclass(frozen=True)
class InputGraphEdgeDesc(_Edge):
    """DML_INPUT_GRAPH_EDGE_DESC: from an input of the graph to one of a node.

    Args:
      graph_input_index: the input of the graph.
      to_node_index: the node.
      to_node_input_index: the input of the node.
      name: what messages call it; None for no name.

    Raises:
      TypeError: an index is not an integer, or `name` is not a string.
      ValueError: an index does not fit a UINT, or `name` is empty.

    Source: DirectML, DML_INPUT_GRAPH_EDGE_DESC.
    """

    graph_input_index: int
    to_node_index: int
    to_node_input_index: int
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class OutputGraphEdgeDesc(_Edge):
    """DML_OUTPUT_GRAPH_EDGE_DESC: from an output of a node to one of the graph.

    Args:
      from_node_index: the node.
      from_node_output_index: the output of the node, 0 for all operators of this
        package.
      graph_output_index: the output of the graph.
      name: what messages call it; None for no name.

    Raises:
      TypeError: an index is not an integer, or `name` is not a string.
      ValueError: an index does not fit a UINT, or `name` is empty.

    Source: DirectML, DML_OUTPUT_GRAPH_EDGE_DESC.
    """

    from_node_index: int
    from_node_output_index: int
    graph_output_index: int
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class IntermediateGraphEdgeDesc(_Edge):
    """DML_INTERMEDIATE_GRAPH_EDGE_DESC: from an output of a node to an input of one.

    Args:
      from_node_index: the node that writes.
      from_node_output_index: its output, 0 for all operators of this package.
      to_node_index: the node that reads.
      to_node_input_index: its input.
      name: what messages call it; None for no name.

    Raises:
      TypeError: an index is not an integer, or `name` is not a string.
      ValueError: an index does not fit a UINT, or `name` is empty.

    Source: DirectML, DML_INTERMEDIATE_GRAPH_EDGE_DESC.
    """

    from_node_index: int
    from_node_output_index: int
    to_node_index: int
    to_node_input_index: int
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class GraphDesc:
    """DML_GRAPH_DESC: operators, and the edges between them.

    Args:
      input_count: the number of inputs of the graph.
      output_count: the number of its outputs.
      nodes: OperatorGraphNodeDesc and ConstantDataGraphNodeDesc.
      input_edges: InputGraphEdgeDesc; an input may go to several nodes.
      output_edges: OutputGraphEdgeDesc.
      intermediate_edges: IntermediateGraphEdgeDesc; an output may go to several nodes.

    Raises:
      TypeError: a count is not an integer, or a sequence has something of another
        class.
      ValueError: a count does not fit a UINT.

    Source: DirectML, DML_GRAPH_DESC.
    """

    input_count: int
    output_count: int
    nodes: Sequence[OperatorGraphNodeDesc | ConstantDataGraphNodeDesc]
    input_edges: Sequence[InputGraphEdgeDesc]
    output_edges: Sequence[OutputGraphEdgeDesc]
    intermediate_edges: Sequence[IntermediateGraphEdgeDesc] = ()

    def __post_init__(self):
        for name in ("input_count", "output_count"):
            count = in_range("GraphDesc", name, getattr(self, name), 0, LARGEST_UINT)
            settle(self, **{name: count})
        for name, kinds in _PARTS.items():
            parts = getattr(self, name)
            if not isinstance(parts, (list, tuple)):
                raise TypeError(
                    f"GraphDesc: `{name}` must be a list or a tuple; got "
                    f"{arguments.describe(parts)}"
                )
            for i, part in enumerate(parts):
                if not isinstance(part, kinds):
                    expected = " or ".join(kind.__name__ for kind in kinds)
                    raise TypeError(
                        f"GraphDesc: `{name}[{i}]` must be {expected}; got "
                        f"{arguments.describe(part)}"
                    )
            settle(self, **{name: tuple(parts)})


_PARTS = {
    "nodes": (OperatorGraphNodeDesc, ConstantDataGraphNodeDesc),
    "input_edges": (InputGraphEdgeDesc,),
    "output_edges": (OutputGraphEdgeDesc,),
    "intermediate_edges": (IntermediateGraphEdgeDesc,),
}
