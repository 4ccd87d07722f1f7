"""Graphs that `compile_graph` refuses."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from descriptions import copy_of
from graphs import graph, tensor

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, FeatureLevel
from wrong_calls.form import Wrong
from wrong_calls.structures import FILL as FILL_DESC
from wrong_calls.structures import LENGTHS as COUNTS
from wrong_calls.structures import X as TABLE
from wrong_calls.structures import gemm

Input, Output = dml.InputGraphEdgeDesc, dml.OutputGraphEdgeDesc
Between, Node = dml.IntermediateGraphEdgeDesc, dml.OperatorGraphNodeDesc
Constant, Function = dml.ConstantDataGraphNodeDesc, dml.FunctionGraphNodeDesc

PADDED = BufferTensorDesc(DataType.FLOAT32, (2, 3), (4, 1))


def owned(tensor: BufferTensorDesc) -> BufferTensorDesc:
    return dataclasses.replace(tensor, flags=dml.TensorFlags.OWNED_BY_DML)


FILL, COPY = Node(FILL_DESC), Node(copy_of(TABLE))
REVERSE = Node(dml.ReverseSubsequencesOperatorDesc(TABLE, COUNTS, TABLE, 1))
OWNING = Node(dml.ReverseSubsequencesOperatorDesc(TABLE, owned(COUNTS), TABLE, 1))
OUT_OF_BOUNDS = Node(dataclasses.replace(copy_of(TABLE), offsets=(1, 0)))
EIGHT = Constant(bytes(8))
# 0: a fill, 1: a reversal by input 0, 2: a copy to output 0; 3, where it is, a constant
VALID: dict[str, Any] = {
    "input_count": 1,
    "output_count": 1,
    "nodes": (FILL, REVERSE, COPY),
    "input_edges": (Input(0, 1, 1),),
    "output_edges": (Output(2, 0, 0),),
    "intermediate_edges": (Between(0, 0, 1, 0), Between(1, 0, 2, 0)),
}
NODES, LINKS = VALID["nodes"], VALID["intermediate_edges"]
BY_CONSTANT_LINKS = (*LINKS, Between(3, 0, 1, 1))
BY_CONSTANT: dict[str, Any] = {
    "input_count": 0,
    "nodes": (*NODES, EIGHT),
    "input_edges": (),
    "intermediate_edges": BY_CONSTANT_LINKS,
}


def compiled(level: str = "6_4", **changes: Any) -> dml.CompiledOperator:
    """The valid graph, except for the changes."""
    desc = dml.GraphDesc(**{**VALID, **changes})
    return dml.compile_graph(desc, FeatureLevel[f"LEVEL_{level}"])


def refused(changes: dict[str, Any], message: str, level: str = "6_4") -> Wrong:
    return Wrong(
        "-".join(["graph", *changes, level]),
        lambda: compiled(level, **changes),
        ValueError,
        f"DML_GRAPH_DESC: {message}",
    )


def inputs(*edges: Any) -> dict[str, Any]:
    return {"input_edges": edges}


def outputs(*edges: Any) -> dict[str, Any]:
    return {"output_edges": edges}


def between(*edges: Any, nodes: Any = NODES) -> dict[str, Any]:
    return {"intermediate_edges": edges, "nodes": nodes}


TO_NODE_2 = inputs(Input(0, 1, 1), Input(0, 2, 0)) | between(LINKS[0])
TWO_OUTPUTS = {"output_count": 2}
# What is changed, and the member that is refused, as in C.
RULES: list[tuple[dict[str, Any], str]] = [
    (between(Between(2, 0, 1, 0), LINKS[1]), "IntermediateEdges"),
    # Connections
    ({"input_count": 0, "input_edges": ()}, "Nodes[1].SequenceLengthsTensor"),
    ({"input_count": 2}, "InputEdges"),
    (TWO_OUTPUTS, "OutputEdges"),
    ({"output_count": 0, "output_edges": ()}, "OutputCount"),
    (outputs(Output(1, 0, 0)), "Nodes[2]"),
    ({"nodes": (*NODES, EIGHT)}, "Nodes[3]"),
    (between(*LINKS, Between(0, 0, 1, 0)), "IntermediateEdges[2]"),
    (inputs(Input(0, 1, 1), Input(0, 1, 0)), "IntermediateEdges[0]"),
    (inputs(Input(0, 1, 1), Input(0, 1, 1)), "InputEdges[1]"),
    (outputs(Output(2, 0, 0), Output(1, 0, 0)), "OutputEdges[1]"),
    # Sizes
    ({"nodes": (FILL, REVERSE, Node(copy_of(PADDED, TABLE)))}, "IntermediateEdges[1]"),
    (between(Between(0, 0, 2, 0), nodes=(Node(copy_of(TABLE, PADDED)), FILL, COPY))
     | inputs(Input(0, 0, 0)), "IntermediateEdges[0]"),
    (TO_NODE_2 | TWO_OUTPUTS | outputs(Output(2, 0, 0), Output(1, 0, 1)),
     "InputEdges[1]"),
    *[(BY_CONSTANT | {"nodes": (*NODES, Constant(bytes(n)))}, "IntermediateEdges[2]")
      for n in (7, 12)],
    # Indices
    (inputs(Input(1, 1, 1)), "InputEdges[0].GraphInputIndex"),
    (inputs(Input(0, 3, 1)), "InputEdges[0].ToNodeIndex"),
    (inputs(Input(0, 1, 2)), "InputEdges[0].ToNodeInputIndex"),
    (inputs(Input(0, 1, 1), Input(0, 0, 0)), "InputEdges[1].ToNodeInputIndex"),
    (between(Between(2**32 - 1, 0, 1, 0), LINKS[1]),
     "IntermediateEdges[0].FromNodeIndex"),
    (between(Between(0, 1, 1, 0), LINKS[1]),
     "IntermediateEdges[0].FromNodeOutputIndex"),
    (between(LINKS[0], Between(1, 0, 3, 0)), "IntermediateEdges[1].ToNodeIndex"),
    (between(LINKS[0], Between(1, 0, 2, 1)), "IntermediateEdges[1].ToNodeInputIndex"),
    (outputs(Output(3, 0, 0)), "OutputEdges[0].FromNodeIndex"),
    (outputs(Output(2, 1, 0)), "OutputEdges[0].FromNodeOutputIndex"),
    (outputs(Output(2, 0, 1)), "OutputEdges[0].GraphOutputIndex"),
    # Constants, and tensors that DirectML owns
    (BY_CONSTANT | TWO_OUTPUTS | outputs(Output(2, 0, 0), Output(3, 0, 1)),
     "OutputEdges[1].FromNodeIndex"),
    (BY_CONSTANT | {"intermediate_edges": (*BY_CONSTANT_LINKS, Between(0, 0, 3, 0))},
     "IntermediateEdges[3].ToNodeIndex"),
    (BY_CONSTANT | inputs(Input(0, 3, 0)) | {"input_count": 1},
     "InputEdges[0].ToNodeIndex"),
    (BY_CONSTANT | {"nodes": (FILL, OWNING, COPY, EIGHT)}, "IntermediateEdges[2]"),
    ({"nodes": (FILL, REVERSE, Node(copy_of(owned(TABLE), TABLE)))},
     "IntermediateEdges[1]"),
]  # fmt: skip
LEVELS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "`FeatureLevel` must …; got …", "2_0"),
    (BY_CONSTANT, "`Nodes[3]` must …; got …", "6_1"),
    ({"nodes": (COPY, REVERSE, COPY)}, "`Nodes[1]` is refused: …", "3_1"),
]

# Functions as nodes -------------------------------------------------------------------

WEIGHTS, PRODUCT = tensor((3, 4)), tensor((2, 4))
OVERLAP = tensor((2, 3), strides=(1, 1))
RETURN = "DML_GRAPH_DESC: `Nodes[0].Function` must return float32[2, 3]; got"
REFUSED = "DML_GRAPH_DESC: `Nodes[0]` is refused: FunctionGraphNodeDesc:"


def same(x: Any) -> Any:
    return x


# The function, its inputs and outputs, the error and the message.
FUNCTIONS: list[tuple[Any, Any, Any, type[Exception], str]] = [
    (lambda x: x.astype(jnp.float16), [TABLE], [TABLE], ValueError,
     f"{RETURN} float16[2, 3]"),
    (lambda x: (x, x), [TABLE], [TABLE], ValueError,
     f"{RETURN} float32[2, 3], float32[2, 3]"),
    (lambda _: (), [TABLE], [TABLE], ValueError, f"{RETURN} nothing"),
    (same, [tensor((1,) * 9)], [TABLE], ValueError,
     f"{REFUSED} `Inputs[0].DimensionCount` must be 1 to 8; got 9"),
    (same, [BufferTensorDesc(DataType.INT4, (8,))], [TABLE], ValueError,
     f"{REFUSED} `Inputs[0].DataType` must have at least 8 bits; got INT4"),
    (same, [TABLE], [tensor((2, 0))], ValueError,
     f"{REFUSED} `Outputs[0].Sizes[1]` must be at least 1; got 0"),
    (same, [TABLE], [OVERLAP], ValueError,
     f"{REFUSED} `Outputs[0].Strides` must give no…"),
    (gemm, [WEIGHTS, TABLE], [PRODUCT], TypeError, "…contracting dimensions…"),
]  # fmt: skip
EDGES: list[tuple[dict[str, Any], str]] = [
    (inputs(Input(0, 0, 0)), "`Nodes[0].Inputs[1]` must be conn…"),
    (inputs(Input(0, 0, 2)),
     "`InputEdges[0].ToNodeInputIndex` must be less than 2, the number of inputs of "
     "gemm; got 2"),
    (outputs(Output(0, 1, 0)),
     "`OutputEdges[0].FromNodeOutputIndex` must be less than 1…"),
]  # fmt: skip


def of_a_function(
    function: Any, inputs: Any, outputs: Any, error: type[Exception], message: str
) -> Wrong:
    node = Function(function, inputs, outputs, "table")
    desc = graph([node], [(i, 0, i) for i in range(len(inputs))], [(0, 0)])
    return Wrong("function", lambda: dml.compile_graph(desc), error, message)


def of_edges(changes: dict[str, Any], message: str) -> Wrong:
    node = Function(gemm, [TABLE, WEIGHTS], [PRODUCT])
    desc = graph([node], [(0, 0, 0), (1, 0, 1)], [(0, 0)])
    desc = dataclasses.replace(desc, **changes)
    return Wrong(
        "-".join(["function", *changes]),
        lambda: dml.compile_graph(desc),
        ValueError,
        f"DML_GRAPH_DESC: {message}",
    )


ROWS = [
    *[refused(changes, f"`{member}` must …; got …") for changes, member in RULES],
    *[refused(*row) for row in LEVELS],
    refused(
        between(LINKS[0], Between(2, 0, 2, 0)),
        "`IntermediateEdges` must have no cycle; got nodes 2 to 2",
    ),
    refused(
        {"nodes": (FILL, REVERSE, OUT_OF_BOUNDS)},
        "`Nodes[2]` is refused: DML_SLICE_OPERATOR_DESC: `Offsets[0] + Strides[0] * "
        "(Sizes[0] - 1)` must be less than 2, `InputTensor.Sizes[0]`; got 2",
    ),
    *[of_a_function(*row) for row in FUNCTIONS],
    *[of_edges(*row) for row in EDGES],
]
