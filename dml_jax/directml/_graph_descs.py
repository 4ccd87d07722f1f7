"""Graph descriptions: nodes, and the edges between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dml_jax.directml._functions import FunctionGraphNodeDesc
from dml_jax.directml._members import Struct
from dml_jax.directml._operators import OperatorDesc


@dataclasses.dataclass(frozen=True)
class OperatorGraphNodeDesc(Struct):
    """DML_OPERATOR_GRAPH_NODE_DESC: a node that runs an operator.

    Args:
      operator: the description of the operator.
      name: the name of the node in profiles; None for the operator's name.

    Raises:
      TypeError: `operator` is not an OperatorDesc, or `name` is not a string.
      ValueError: `name` is empty.

    Source: DirectML, DML_OPERATOR_GRAPH_NODE_DESC.
    """

    operator: OperatorDesc
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class ConstantDataGraphNodeDesc(Struct):
    """DML_CONSTANT_DATA_GRAPH_NODE_DESC: a node of constant data, from 6_2 on.

    Args:
      data: the bytes of a tensor, with or without the padding to a multiple of 4.
      name: the name of the node; None for no name.

    Raises:
      TypeError: `data` is not bytes, or `name` is not a string.
      ValueError: `name` is empty.

    Source: DirectML, DML_CONSTANT_DATA_GRAPH_NODE_DESC.
    """

    data: bytes
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class InputGraphEdgeDesc(Struct):
    """DML_INPUT_GRAPH_EDGE_DESC: from an input of the graph to an input of a node.

    Args:
      graph_input_index: the input of the graph.
      to_node_index: the node.
      to_node_input_index: the input of the node.
      name: the name in error messages; None for no name.

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
class OutputGraphEdgeDesc(Struct):
    """DML_OUTPUT_GRAPH_EDGE_DESC: from an output of a node to an output of the graph.

    Args:
      from_node_index: the node.
      from_node_output_index: the output of the node; 0 unless it is a function with
        several outputs.
      graph_output_index: the output of the graph.
      name: the name in error messages; None for no name.

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
class IntermediateGraphEdgeDesc(Struct):
    """DML_INTERMEDIATE_GRAPH_EDGE_DESC: from an output of a node to another's input.

    Args:
      from_node_index: the node that writes.
      from_node_output_index: its output; 0 unless it is a function with several
        outputs.
      to_node_index: the node that reads.
      to_node_input_index: its input.
      name: the name in error messages; None for no name.

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
class GraphDesc(Struct):
    """DML_GRAPH_DESC: operators, and the edges between them.

    Args:
      input_count: the number of inputs of the graph.
      output_count: the number of its outputs.
      nodes: OperatorGraphNodeDesc, ConstantDataGraphNodeDesc and
        FunctionGraphNodeDesc.
      input_edges: InputGraphEdgeDesc; an input may go to several nodes.
      output_edges: OutputGraphEdgeDesc.
      intermediate_edges: IntermediateGraphEdgeDesc; an output may go to several nodes.

    Raises:
      TypeError: a count is not an integer, or a sequence has an element of another
        class.
      ValueError: a count does not fit a UINT.

    Source: DirectML, DML_GRAPH_DESC.
    """

    input_count: int
    output_count: int
    nodes: Sequence[
        OperatorGraphNodeDesc | ConstantDataGraphNodeDesc | FunctionGraphNodeDesc
    ]
    input_edges: Sequence[InputGraphEdgeDesc]
    output_edges: Sequence[OutputGraphEdgeDesc]
    intermediate_edges: Sequence[IntermediateGraphEdgeDesc] = ()
