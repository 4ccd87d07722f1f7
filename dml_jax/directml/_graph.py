"""Compiles graphs of operators to one program.

An edge between two nodes is a buffer. The node that reads it may describe the same
bytes with another shape, strides or data type than the node that wrote it. Both
descriptions must have the same total size.
"""

from __future__ import annotations

import dataclasses
import graphlib
from typing import Any, TypeAlias

import jax

from dml_jax.directml import _rules
from dml_jax.directml._compile import Binding, CompiledOperator, Source, Step
from dml_jax.directml._graph_descs import (
    ConstantDataGraphNodeDesc,
    FunctionGraphNodeDesc,
    GraphDesc,
    InputGraphEdgeDesc,
    IntermediateGraphEdgeDesc,
)
from dml_jax.directml._members import camel, instance_of, member_of
from dml_jax.directml._operators import OperatorDesc
from dml_jax.directml._tensor import BufferTensorDesc
from dml_jax.directml._types import LATEST, FeatureLevel, TensorFlags


def compile_graph(
    desc: GraphDesc, feature_level: FeatureLevel = LATEST
) -> CompiledOperator:
    """IDMLDevice1.CompileGraph: a graph of operators as one function.

    Every operator is validated. Every function is traced, and its results must have the
    sizes and data types of its outputs. Every input and output must be connected.
    Inputs of nodes and outputs of the graph must be connected exactly once. Both ends
    of an edge must have the same TotalTensorSizeInBytes. If they differ in layout or
    data type, the bytes are reinterpreted; bytes between elements are 0.

    Args:
      desc: the graph.
      feature_level: the level for which it is validated. Graphs need 2_1, and constant
        nodes need 6_2.

    Returns:
      A function of the graph's inputs, which returns its outputs. An input is bound as
      the tensor at the end of its first edge, an output as the tensor of its node. If
      another edge of an input reads bytes after the last whole element of that tensor,
      the input's flat buffer has one element more.

    Raises:
      TypeError: `desc` is not a GraphDesc, or the result of a function is no array.
      ValueError: DirectML would refuse the graph or one of its operators, the graph has
        a cycle, or a function returns other sizes or data types than it declares. What
        a function itself raises is passed on.

    Derivatives and sharding: those of the operators and functions.

    Example:
      >>> from dml_jax import directml as dml
      >>> row = dml.BufferTensorDesc("int32", (8,))
      >>> table = dml.BufferTensorDesc("int32", (2, 4))
      >>> column = dml.BufferTensorDesc("int32", (2, 1))
      >>> fill = dml.FillValueSequenceOperatorDesc(
      ...     row, "int32", dml.ScalarUnion(int32=10), dml.ScalarUnion(int32=1))
      >>> last = dml.SliceOperatorDesc(table, column, (0, 3), (2, 1), (1, 1))
      >>> graph = dml.compile_graph(dml.GraphDesc(
      ...     input_count=0, output_count=1,
      ...     nodes=[dml.OperatorGraphNodeDesc(fill), dml.OperatorGraphNodeDesc(last)],
      ...     input_edges=[], output_edges=[dml.OutputGraphEdgeDesc(1, 0, 0)],
      ...     intermediate_edges=[dml.IntermediateGraphEdgeDesc(0, 0, 1, 0)]))
      >>> graph()
      Array([[13],
             [17]], dtype=int32)

    Source: DirectML, IDMLDevice1::CompileGraph.
    """
    instance_of("desc", desc, GraphDesc)
    level = member_of("feature_level", feature_level, FeatureLevel)
    operators = _operators(desc, level)
    sources = _sources(desc, operators)
    order = _topological_order(sources)
    outputs, inputs = _outputs(desc, operators), _inputs(desc, operators)
    return CompiledOperator(
        name="DML_GRAPH",
        inputs=tuple(inputs),
        outputs=tuple(binding for binding, _ in outputs),
        steps=tuple(
            Step(node, operators[node], sources[node], desc.nodes[node].name)
            for node in order
        ),
        results=tuple(source for _, source in outputs),
        constants=tuple(
            (i, node.data)
            for i, node in enumerate(desc.nodes)
            if isinstance(node, ConstantDataGraphNodeDesc)
        ),
    )


Operators: TypeAlias = dict[int, OperatorDesc | FunctionGraphNodeDesc]
"""The operators and functions of a graph by node; constants are left out."""


def _require(member: str, holds: bool, rule: str, got: object) -> None:
    _rules.require("DML_GRAPH_DESC", [(member, holds, rule, got)])


def _require_index(member: str, index: int, count: int, whose: str) -> None:
    rule = f"be less than {count}, the number of {whose}"
    if not count:
        rule = f"be the index of one of the {whose}, of which there are none"
    _require(member, index < count, rule, index)


def _require_operator(
    desc: GraphDesc, operators: Operators, member: str, index: int
) -> None:
    """Refuses an index that is not the one of an operator."""
    _require_index(member, index, len(desc.nodes), "Nodes")
    _require(member, index in operators, "be an operator", f"the constant {index}")


def _operators(desc: GraphDesc, level: FeatureLevel) -> Operators:
    """The operators of the nodes, each of which is validated."""
    has_graphs = level >= FeatureLevel.LEVEL_2_1
    _require("FeatureLevel", has_graphs, "be 2_1 or later", level.label)
    _require("OutputCount", desc.output_count > 0, "be at least 1", 0)
    operators: Operators = {}
    for i, node in enumerate(desc.nodes):
        if isinstance(node, ConstantDataGraphNodeDesc):
            has_constants = level >= FeatureLevel.LEVEL_6_2
            rule = f"be an operator at feature level {level.label}"
            got = "a constant, allowed from 6_2"
            _require(f"Nodes[{i}]", has_constants, rule, got)
            continue
        is_function = isinstance(node, FunctionGraphNodeDesc)
        operators[i] = node if is_function else node.operator
        try:
            operators[i].validate(level)
        except ValueError as error:
            message = f"DML_GRAPH_DESC: `Nodes[{i}]` is refused: {error}"
            raise ValueError(message) from None
        if is_function:
            _require_declared_results(f"Nodes[{i}].Function", node)
    return operators


def _require_declared_results(member: str, node: FunctionGraphNodeDesc) -> None:
    def described(arrays: Any) -> str:
        return ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)

    with jax.enable_x64(True):
        declared, given = (
            [jax.ShapeDtypeStruct(t.sizes, t.data_type.dtype) for t in tensors]
            for tensors in (node.outputs, node.inputs)
        )
        try:
            results = jax.eval_shape(node.evaluate, *given)
        except Exception as error:
            error.add_note(f"This is from `{member}`, {node.label!r}.")
            raise
    got, rule = described(results), f"return {described(declared)}"
    _require(member, got == described(declared), rule, got or "nothing")


def _sources(desc: GraphDesc, operators: Operators) -> dict[int, tuple[Source, ...]]:
    """For each operator node, the sources of its inputs."""
    outer, inner = enumerate(desc.input_edges), enumerate(desc.intermediate_edges)
    edges: dict[str, Any] = {f"InputEdges[{i}]": edge for i, edge in outer}
    edges |= {f"IntermediateEdges[{i}]": edge for i, edge in inner}
    found: dict[tuple[int, int], Source] = {}
    for name, edge in edges.items():
        node, index = edge.to_node_index, edge.to_node_input_index
        _require_operator(desc, operators, f"{name}.ToNodeIndex", node)
        operator = operators[node]
        whose = f"inputs of {operator.label}"
        _require_index(f"{name}.ToNodeInputIndex", index, len(operator.inputs), whose)
        member = camel(operator.input_members[index])
        rule = f"be the only edge to `{member}` of node {node}"
        _require(name, (node, index) not in found, rule, "a second one")
        tensor = operator.inputs[index]
        found[node, index] = _source(desc, operators, name, edge, tensor)
    sources: dict[int, tuple[Source, ...]] = {}
    for node, operator in operators.items():
        for index, member in enumerate(operator.input_members):
            holds, rule = (node, index) in found, "be connected"
            _require(f"Nodes[{node}].{camel(member)}", holds, rule, "no edge to it")
        sources[node] = tuple(found[node, i] for i in range(len(operator.inputs)))
    return sources


def _source(
    desc: GraphDesc,
    operators: Operators,
    name: str,
    edge: InputGraphEdgeDesc | IntermediateGraphEdgeDesc,
    tensor: BufferTensorDesc,
) -> Source:
    """The source of an edge to `tensor`, which the buffer of a node must fit."""
    if isinstance(edge, InputGraphEdgeDesc):
        index = edge.graph_input_index
        _require_index(f"{name}.GraphInputIndex", index, desc.input_count, "inputs")
        return Source(None, index)
    start, index = edge.from_node_index, edge.from_node_output_index
    _require_index(f"{name}.FromNodeIndex", start, len(desc.nodes), "Nodes")
    node, total = desc.nodes[start], tensor.total_tensor_size_in_bytes
    is_constant = isinstance(node, ConstantDataGraphNodeDesc)
    count = 1 if is_constant else len(operators[start].outputs)
    _require_index(f"{name}.FromNodeOutputIndex", index, count, "outputs of the node")
    is_owned = bool(tensor.flags & TensorFlags.OWNED_BY_DML)
    rule = "come from an input of the graph, since its tensor is OWNED_BY_DML"
    _require(name, not is_owned, rule, f"node {start}")
    if is_constant:
        got, rule = len(node.data), f"have {total} bytes at both ends"
        holds = got in (tensor.needed_bytes, total)
    else:
        got = operators[start].outputs[index].total_tensor_size_in_bytes
        holds, rule = got == total, f"have TotalTensorSizeInBytes {total} at both ends"
    _require(name, holds, rule, f"{got} from node {start}")
    return Source(start, index)


def _topological_order(sources: dict[int, tuple[Source, ...]]) -> list[int]:
    before = {
        node: {source.node for source in inputs if source.node in sources}
        for node, inputs in sources.items()
    }
    try:
        return list(graphlib.TopologicalSorter(before).static_order())
    except graphlib.CycleError as error:
        got, rule = f"nodes {' to '.join(map(str, error.args[1]))}", "have no cycle"
        message = f"DML_GRAPH_DESC: `IntermediateEdges` must {rule}; got {got}"
        raise ValueError(message) from None


def _inputs(desc: GraphDesc, operators: Operators) -> list[Binding]:
    """The inputs of the graph, each with the tensor at the end of its first edge."""
    readers: dict[int, list[tuple[str, Any, BufferTensorDesc]]] = {}
    for i, edge in enumerate(desc.input_edges):
        tensor = operators[edge.to_node_index].inputs[edge.to_node_input_index]
        reader = (f"InputEdges[{i}]", edge, tensor)
        readers.setdefault(edge.graph_input_index, []).append(reader)
    bindings = []
    for index in range(desc.input_count):
        rule = "connect each input of the graph"
        _require("InputEdges", index in readers, rule, f"none for {index}")
        _, edge, first = readers[index][0]
        total = first.total_tensor_size_in_bytes
        for name, _, tensor in readers[index]:
            got = tensor.total_tensor_size_in_bytes
            rule = f"have TotalTensorSizeInBytes {total}, like the input's first edge"
            _require(name, got == total, rule, got)
        needed = max(tensor.needed_bytes for *_, tensor in readers[index])
        itemsize = first.data_type.dtype.itemsize
        if needed > first.buffer_size * itemsize:
            total = -(-total // itemsize) * itemsize
            first = dataclasses.replace(first, total_tensor_size_in_bytes=total)
        bindings.append(Binding(edge.name or f"input {index}", first))
    return bindings


def _outputs(desc: GraphDesc, operators: Operators) -> list[tuple[Binding, Source]]:
    """The outputs of the graph, and their sources."""
    found: dict[int, tuple[Binding, Source]] = {}
    for i, edge in enumerate(desc.output_edges):
        name, index = f"OutputEdges[{i}]", edge.graph_output_index
        _require_index(f"{name}.GraphOutputIndex", index, desc.output_count, "outputs")
        node, output = edge.from_node_index, edge.from_node_output_index
        _require_operator(desc, operators, f"{name}.FromNodeIndex", node)
        tensors = operators[node].outputs
        whose = "outputs of the node"
        _require_index(f"{name}.FromNodeOutputIndex", output, len(tensors), whose)
        rule = f"be the only edge to output {index}"
        _require(name, index not in found, rule, "a second one")
        binding = Binding(edge.name or f"output {index}", tensors[output])
        found[index] = binding, Source(node, output)
    connected = {source.node for _, source in found.values()}
    connected |= {edge.from_node_index for edge in desc.intermediate_edges}
    for node in range(len(desc.nodes)):
        rule = "have a connected output"
        _require(f"Nodes[{node}]", node in connected, rule, "none")
    for index in range(desc.output_count):
        rule = "connect each output of the graph"
        _require("OutputEdges", index in found, rule, f"none for {index}")
    return [found[index] for index in range(desc.output_count)]
