"""Graphs of operators, compiled into one program.

A tensor that connects two nodes is a buffer. The node that reads it may describe it
otherwise than the one that wrote it, with another shape, other strides, another data
type: it sees the same bytes, as long as both say that there are equally many.
"""

from __future__ import annotations

import dataclasses
import graphlib
from typing import Any, NamedTuple

from dml_jax._shared import arguments
from dml_jax.directml._compile import Binding, CompiledOperator, Source, Step
from dml_jax.directml._graph_descs import (
    ConstantDataGraphNodeDesc,
    GraphDesc,
    OperatorGraphNodeDesc,
)
from dml_jax.directml._operators import camel
from dml_jax.directml._tensor import BufferTensorDesc
from dml_jax.directml._types import LATEST, FeatureLevel, TensorFlags, member_of


def compile_graph(
    desc: GraphDesc, feature_level: FeatureLevel = LATEST
) -> CompiledOperator:
    """IDMLDevice1.CompileGraph: a graph of operators as one function.

    Every operator is validated, every input and output is connected, exactly once where
    it is written, and both ends of an edge have the same TotalTensorSizeInBytes. Where
    they differ in layout or data type, the bytes are read anew; those between elements
    are 0.

    Args:
      desc: the graph.
      feature_level: the level that it is validated against; graphs need 2_1, constant
        nodes 6_2.

    Returns:
      A function of the graph's inputs, which gives its outputs. An input is bound as
      the tensor to which the first of its edges leads, an output as that of its node.
      A flat buffer has one element more than that tensor where another edge reads bytes
      after its last whole element.

    Raises:
      TypeError: `desc` is not a GraphDesc.
      ValueError: DirectML would refuse the graph or one of its operators; a cycle.

    Derivatives and sharding: those of the operators.

    Example:
      >>> from dml_jax.directml import (
      ...     BufferTensorDesc, DataType, FillValueSequenceOperatorDesc, GraphDesc,
      ...     IntermediateGraphEdgeDesc, OperatorGraphNodeDesc, OutputGraphEdgeDesc,
      ...     ScalarUnion, SliceOperatorDesc, compile_graph)
      >>> row = BufferTensorDesc(DataType.INT32, (8,))
      >>> table = BufferTensorDesc(DataType.INT32, (2, 4))
      >>> column = BufferTensorDesc(DataType.INT32, (2, 1))
      >>> fill = FillValueSequenceOperatorDesc(
      ...     row, DataType.INT32, ScalarUnion(int32=10), ScalarUnion(int32=1))
      >>> last = SliceOperatorDesc(table, column, (0, 3), (2, 1), (1, 1))
      >>> graph = compile_graph(GraphDesc(
      ...     input_count=0, output_count=1,
      ...     nodes=[OperatorGraphNodeDesc(fill), OperatorGraphNodeDesc(last)],
      ...     input_edges=[], output_edges=[OutputGraphEdgeDesc(1, 0, 0)],
      ...     intermediate_edges=[IntermediateGraphEdgeDesc(0, 0, 1, 0)]))
      >>> graph()
      Array([[13],
             [17]], dtype=int32)

    Source: DirectML, IDMLDevice1::CompileGraph.
    """
    if not isinstance(desc, GraphDesc):
        raise TypeError(
            f"compile_graph: `desc` must be a GraphDesc; got {arguments.describe(desc)}"
        )
    level = member_of("compile_graph", "feature_level", feature_level, FeatureLevel)
    _validate_nodes(desc, level)
    sources = _sources(desc)
    order = _order(desc, sources)
    place = {node: step for step, node in enumerate(order)}
    steps = tuple(
        Step(
            desc.nodes[node].operator,  # type: ignore[union-attr]
            tuple(_moved(source, place) for source in sources[node]),
            desc.nodes[node].name,
        )
        for node in order
    )
    outputs = _outputs(desc)
    return CompiledOperator(
        name="DML_GRAPH",
        inputs=_inputs(desc),
        outputs=tuple(binding for binding, _ in outputs),
        steps=steps,
        results=tuple(place[node] for _, node in outputs),
        constants=tuple(
            node.data if isinstance(node, ConstantDataGraphNodeDesc) else b""
            for node in desc.nodes
        ),
    )


def _refused(member: str, rule: str, got: object) -> ValueError:
    return ValueError(f"DML_GRAPH_DESC: `{member}` must {rule}; got {got}")


def _validate_nodes(desc, level):
    if level < FeatureLevel.LEVEL_2_1:
        raise _refused("FeatureLevel", "be 2_1 or later", level.label)
    if not desc.output_count:
        raise _refused("OutputCount", "be at least 1", 0)
    for i, node in enumerate(desc.nodes):
        if isinstance(node, OperatorGraphNodeDesc):
            try:
                node.operator.validate(level)
            except ValueError as error:
                raise ValueError(
                    f"DML_GRAPH_DESC: `Nodes[{i}]` is refused: {error}"
                ) from None
        elif level < FeatureLevel.LEVEL_6_2:
            rule = f"be an operator at feature level {level.label}"
            raise _refused(f"Nodes[{i}]", rule, "a constant, allowed from 6_2")


class _End(NamedTuple):
    """The input of a node, and the tensor that its operator has there."""

    node: int
    input: int
    tensor: BufferTensorDesc


def _end(desc, edge, node, index) -> _End:
    """The end of an edge at the input of a node."""
    inputs = _operator(desc, edge, node).inputs
    if index >= len(inputs):
        operator = desc.nodes[node].operator.type.name
        rule = f"be less than {len(inputs)}, the inputs of {operator}"
        raise _refused(f"{edge}.ToNodeInputIndex", rule, index)
    return _End(node, index, inputs[index])


def _operator(desc, edge, node, member="ToNodeIndex") -> Any:
    _require_index(f"{edge}.{member}", node, len(desc.nodes), "Nodes")
    if isinstance(desc.nodes[node], ConstantDataGraphNodeDesc):
        raise _refused(f"{edge}.{member}", "be an operator", f"the constant {node}")
    return desc.nodes[node].operator


def _require_index(member, index, count, whose):
    if not count:
        raise _refused(member, f"be one of the {whose}, which are none", index)
    if index >= count:
        raise _refused(member, f"be less than {count}, the number of {whose}", index)


def _sources(desc) -> dict[int, list[Source]]:
    """For each node with an operator where its inputs come from, step = node."""
    found: dict[tuple[int, int], Source] = {}

    def connect(edge, end, source):
        key = (end.node, end.input)
        if key in found:
            name = camel(desc.nodes[end.node].operator.input_members[end.input])
            rule = f"be the only edge to `{name}` of node {end.node}"
            raise _refused(edge, rule, "a second one")
        found[key] = source

    for i, edge in enumerate(desc.input_edges):
        name = f"InputEdges[{i}]"
        index = edge.graph_input_index
        _require_index(f"{name}.GraphInputIndex", index, desc.input_count, "inputs")
        end = _end(desc, name, edge.to_node_index, edge.to_node_input_index)
        connect(name, end, Source(input=index))
    for i, edge in enumerate(desc.intermediate_edges):
        name = f"IntermediateEdges[{i}]"
        end = _end(desc, name, edge.to_node_index, edge.to_node_input_index)
        connect(name, end, _source(desc, name, edge, end))
    return {
        node: [
            _found(found, node, index, camel(member))
            for index, member in enumerate(part.operator.input_members)
        ]
        for node, part in enumerate(desc.nodes)
        if isinstance(part, OperatorGraphNodeDesc)
    }


def _found(found, node, index, member):
    if (node, index) not in found:
        raise _refused(f"Nodes[{node}].{member}", "be connected", "no edge to it")
    return found[node, index]


def _source(desc, name, edge, end) -> Source:
    """Where an intermediate edge comes from; both of its ends have the same size."""
    start = edge.from_node_index
    _require_index(f"{name}.FromNodeIndex", start, len(desc.nodes), "Nodes")
    _require_only_output(name, edge)
    if end.tensor.flags & TensorFlags.OWNED_BY_DML:
        rule = "come from an input of the graph, since its tensor is OWNED_BY_DML"
        raise _refused(name, rule, f"node {start}")
    total = end.tensor.total_tensor_size_in_bytes
    node = desc.nodes[start]
    if isinstance(node, OperatorGraphNodeDesc):
        got = node.operator.output.total_tensor_size_in_bytes
        if got != total:
            rule = f"have TotalTensorSizeInBytes {total} at both ends"
            raise _refused(name, rule, f"{got} from node {start}")
        return Source(step=start)
    if len(node.data) not in (end.tensor.needed_bytes, total):
        rule = f"have {total} bytes at both ends"
        raise _refused(name, rule, f"{len(node.data)} from node {start}")
    return Source(constant=start)


def _require_only_output(name, edge):
    index = edge.from_node_output_index
    _require_index(f"{name}.FromNodeOutputIndex", index, 1, "outputs of the node")


def _order(desc, sources) -> list[int]:
    """The operators' nodes, each after those it reads from."""
    before = {
        node: {source.step for source in inputs if source.step is not None}
        for node, inputs in sources.items()
    }
    try:
        return list(graphlib.TopologicalSorter(before).static_order())
    except graphlib.CycleError as error:
        cycle = " to ".join(map(str, error.args[1]))
        raise _refused("IntermediateEdges", "have no cycle", f"nodes {cycle}") from None


def _moved(source: Source, place) -> Source:
    if source.step is None:
        return source
    return source._replace(step=place[source.step])


def _inputs(desc) -> tuple[Binding, ...]:
    """The inputs of the graph, as the first edge of each sees them."""
    found: dict[int, Binding] = {}
    totals: dict[int, int] = {}
    for i, edge in enumerate(desc.input_edges):
        index, name = edge.graph_input_index, f"InputEdges[{i}]"
        tensor = _end(desc, name, edge.to_node_index, edge.to_node_input_index).tensor
        first = found.setdefault(index, Binding(edge.name or f"input {index}", tensor))
        total = totals.setdefault(index, tensor.total_tensor_size_in_bytes)
        if tensor.total_tensor_size_in_bytes != total:
            rule = f"have TotalTensorSizeInBytes {total}, as the input's first edge"
            raise _refused(name, rule, tensor.total_tensor_size_in_bytes)
        found[index] = first._replace(tensor=_reaching(first.tensor, tensor))
    return tuple(_all_of(found, desc.input_count, "InputEdges", "input"))


def _reaching(tensor, other):
    """The tensor of an input, with room for the bytes that another one has there."""
    itemsize = tensor.data_type.dtype.itemsize
    if other.needed_bytes <= tensor.buffer_size * itemsize:
        return tensor
    total = -(-tensor.total_tensor_size_in_bytes // itemsize) * itemsize
    return dataclasses.replace(tensor, total_tensor_size_in_bytes=total)


def _outputs(desc) -> list[tuple[Binding, int]]:
    """The outputs of the graph, and the nodes they come from."""
    found: dict[int, tuple[Binding, int]] = {}
    for i, edge in enumerate(desc.output_edges):
        name, index, node = (
            f"OutputEdges[{i}]",
            edge.graph_output_index,
            edge.from_node_index,
        )
        _require_index(f"{name}.GraphOutputIndex", index, desc.output_count, "outputs")
        operator = _operator(desc, name, node, "FromNodeIndex")
        _require_only_output(name, edge)
        if index in found:
            raise _refused(name, f"be the only edge to output {index}", "a second one")
        found[index] = Binding(edge.name or f"output {index}", operator.output), node
    connected = {node for _, node in found.values()}
    connected |= {edge.from_node_index for edge in desc.intermediate_edges}
    for node in range(len(desc.nodes)):
        if node not in connected:
            raise _refused(f"Nodes[{node}]", "have a connected output", "none")
    return list(_all_of(found, desc.output_count, "OutputEdges", "output"))


def _all_of(found, count, member, kind):
    for index in range(count):
        if index not in found:
            raise _refused(
                member, f"connect each {kind} of the graph", f"none for {index}"
            )
        yield found[index]
