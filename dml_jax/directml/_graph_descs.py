"""Graph descriptions: nodes, and the edges between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dml_jax.directml import _rules
from dml_jax.directml._members import Struct
from dml_jax.directml._operators import OperatorDesc
from dml_jax.directml._rules import Rule
from dml_jax.directml._tensor import BufferTensorDesc
from dml_jax.directml._types import TENSOR_DIMENSION_COUNT_MAX1, FeatureLevel


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
class FunctionGraphNodeDesc(Struct):
    """A node that runs a Python function instead of an operator.

    It replaces operators that this package does not have, such as GEMM. DirectML has no
    such node.

    Args:
      function: a pure function that JAX can trace. It takes an array for each input and
        returns an array, or a tuple or a list of arrays for several outputs. An array
        has the sizes of its tensor, whatever the strides, and its dtype. The function
        is traced in 64-bit mode if one of the tensors has 64 bits, and outside it
        otherwise. Graphs with the same function object share a compiled program.
      inputs: the tensors that the function reads.
      outputs: the tensors that it computes, at least one.
      name: the name of the node in profiles and messages; None for the function's name.

    Raises:
      TypeError: `function` is not callable or not hashable, a tensor is not a
        BufferTensorDesc, or `name` is not a string.
      ValueError: there is no output, or `name` is empty.
    """

    function: Callable[..., Any]
    inputs: Sequence[BufferTensorDesc]
    outputs: Sequence[BufferTensorDesc]
    name: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _rules.require(
            type(self).__name__, [("outputs", bool(self.outputs), "not be empty", "()")]
        )

    @property
    def input_members(self) -> tuple[str, ...]:
        """The names of the inputs in messages."""
        return tuple(f"inputs[{i}]" for i in range(len(self.inputs)))

    @property
    def label(self) -> str:
        """The name of the node in messages and profiles."""
        return self.name or getattr(self.function, "__name__", "function")

    def validate(self, feature_level: FeatureLevel) -> None:
        """Checks the rules that hold for the tensors of all operators."""
        del feature_level
        _rules.require(type(self).__name__, self._rules())

    def _rules(self) -> Iterator[Rule]:
        outputs = {f"Outputs[{i}]": tensor for i, tensor in enumerate(self.outputs)}
        inputs = {f"Inputs[{i}]": tensor for i, tensor in enumerate(self.inputs)}
        most = TENSOR_DIMENSION_COUNT_MAX1
        for member, tensor in (inputs | outputs).items():
            data_type, count = tensor.data_type, tensor.dimension_count
            name, rule = f"{member}.DataType", "have at least 8 bits"
            yield name, data_type.bits >= 8, rule, data_type.name
            name, rule = f"{member}.DimensionCount", f"be 1 to {most}"
            yield name, 1 <= count <= most, rule, count
            yield from _rules.of_tensor(member, tensor)
        for member, tensor in outputs.items():
            yield from _rules.of_output(member, tensor)

    def evaluate(self, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """The results of the function."""
        tensors = (*self.inputs, *self.outputs)
        # The results must have the same dtypes whether or not the caller is in 64-bit
        # mode.
        with jax.enable_x64(any(tensor.data_type.bits == 64 for tensor in tensors)):
            results = self.function(*operands)
            if not isinstance(results, (tuple, list)):
                results = (results,)
            return tuple(map(jnp.asarray, results))


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
