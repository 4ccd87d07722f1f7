"""What `compile_graph` refuses, and at which feature levels."""

import dataclasses
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from descriptions import copy_of

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, FeatureLevel, ScalarUnion

Input, Output = dml.InputGraphEdgeDesc, dml.OutputGraphEdgeDesc
Between, Node = dml.IntermediateGraphEdgeDesc, dml.OperatorGraphNodeDesc
Constant = dml.ConstantDataGraphNodeDesc

TABLE = BufferTensorDesc(DataType.FLOAT32, (2, 3))
COUNTS = BufferTensorDesc(DataType.UINT32, (2, 1))
PADDED = BufferTensorDesc(DataType.FLOAT32, (2, 3), (4, 1))


def owned(tensor: BufferTensorDesc) -> BufferTensorDesc:
    return dataclasses.replace(tensor, flags=dml.TensorFlags.OWNED_BY_DML)


FILL = Node(
    dml.FillValueConstantOperatorDesc(TABLE, DataType.FLOAT32, ScalarUnion(float32=1))
)
REVERSE = Node(dml.ReverseSubsequencesOperatorDesc(TABLE, COUNTS, TABLE, 1))
OWNING = Node(dml.ReverseSubsequencesOperatorDesc(TABLE, owned(COUNTS), TABLE, 1))
COPY = Node(copy_of(TABLE))
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


def inputs(*edges: Any) -> dict[str, Any]:
    return {"input_edges": edges}


def outputs(*edges: Any) -> dict[str, Any]:
    return {"output_edges": edges}


def between(*edges: Any, nodes: Any = NODES) -> dict[str, Any]:
    return {"intermediate_edges": edges, "nodes": nodes}


# The member that is refused, as in C, and the changes that make it so.
GRAPHS: list[tuple[str, dict[str, Any]]] = [
    ("IntermediateEdges", between(Between(2, 0, 1, 0), LINKS[1])),
    ("IntermediateEdges", between(LINKS[0], Between(2, 0, 2, 0))),
    # Connections
    ("Nodes[2].InputTensor", between(LINKS[0])),
    ("Nodes[1].SequenceLengthsTensor", {"input_count": 0, "input_edges": ()}),
    ("InputEdges", {"input_count": 2}),
    ("OutputEdges", {"output_count": 2}),
    ("OutputCount", {"output_count": 0, "output_edges": ()}),
    ("Nodes[2]", outputs(Output(1, 0, 0))),
    ("Nodes[3]", {"nodes": (*NODES, EIGHT)}),
    ("IntermediateEdges[2]", between(*LINKS, Between(0, 0, 1, 0))),
    ("IntermediateEdges[0]", inputs(Input(0, 1, 1), Input(0, 1, 0))),
    ("InputEdges[1]", inputs(Input(0, 1, 1), Input(0, 1, 1))),
    ("OutputEdges[1]", outputs(Output(2, 0, 0), Output(1, 0, 0))),
    # Sizes
    ("IntermediateEdges[1]", {"nodes": (FILL, REVERSE, Node(copy_of(PADDED, TABLE)))}),
    (
        "IntermediateEdges[0]",
        between(Between(0, 0, 2, 0), nodes=(Node(copy_of(TABLE, PADDED)), FILL, COPY))
        | inputs(Input(0, 0, 0)),
    ),
    (
        "InputEdges[1]",
        inputs(Input(0, 1, 1), Input(0, 2, 0))
        | between(LINKS[0])
        | outputs(Output(2, 0, 0), Output(1, 0, 1))
        | {"output_count": 2},
    ),
    *[
        ("IntermediateEdges[2]", BY_CONSTANT | {"nodes": (*NODES, Constant(bytes(n)))})
        for n in (0, 7, 12)
    ],
    # Indices
    ("InputEdges[0].GraphInputIndex", inputs(Input(1, 1, 1))),
    ("InputEdges[0].ToNodeIndex", inputs(Input(0, 3, 1))),
    ("InputEdges[0].ToNodeInputIndex", inputs(Input(0, 1, 2))),
    ("InputEdges[1].ToNodeInputIndex", inputs(Input(0, 1, 1), Input(0, 0, 0))),
    ("InputEdges[0].GraphInputIndex", {"input_count": 0}),
    (
        "IntermediateEdges[0].FromNodeIndex",
        between(Between(2**32 - 1, 0, 1, 0), LINKS[1]),
    ),
    (
        "IntermediateEdges[0].FromNodeOutputIndex",
        between(Between(0, 1, 1, 0), LINKS[1]),
    ),
    ("IntermediateEdges[1].ToNodeIndex", between(LINKS[0], Between(1, 0, 3, 0))),
    ("IntermediateEdges[1].ToNodeInputIndex", between(LINKS[0], Between(1, 0, 2, 1))),
    ("OutputEdges[0].FromNodeIndex", outputs(Output(3, 0, 0))),
    ("OutputEdges[0].FromNodeOutputIndex", outputs(Output(2, 1, 0))),
    ("OutputEdges[0].GraphOutputIndex", outputs(Output(2, 0, 1))),
    # Constants, and tensors that DirectML owns
    (
        "OutputEdges[1].FromNodeIndex",
        BY_CONSTANT | outputs(Output(2, 0, 0), Output(3, 0, 1)) | {"output_count": 2},
    ),
    (
        "IntermediateEdges[3].ToNodeIndex",
        BY_CONSTANT | {"intermediate_edges": (*BY_CONSTANT_LINKS, Between(0, 0, 3, 0))},
    ),
    (
        "InputEdges[0].ToNodeIndex",
        BY_CONSTANT | inputs(Input(0, 3, 0)) | {"input_count": 1},
    ),
    ("IntermediateEdges[2]", {**BY_CONSTANT, "nodes": (FILL, OWNING, COPY, EIGHT)}),
    (
        "IntermediateEdges[1]",
        {"nodes": (FILL, REVERSE, Node(copy_of(owned(TABLE), TABLE)))},
    ),
]
REFUSED = [(*row, "6_4") for row in GRAPHS]
REFUSED += [
    ("FeatureLevel", {}, "2_0"),
    ("Nodes[3]", BY_CONSTANT, "6_1"),
    ("Nodes[1]", {"nodes": (COPY, REVERSE, COPY)}, "3_1"),
    ("Nodes[2]", {"nodes": (FILL, REVERSE, OUT_OF_BOUNDS)}, "6_4"),
]


def compiled(level: str, **changes: Any) -> dml.CompiledOperator:
    desc = dml.GraphDesc(**{**VALID, **changes})
    return dml.compile_graph(desc, FeatureLevel[f"LEVEL_{level}"])


@pytest.mark.parametrize(("member", "changes", "level"), REFUSED)
def test_graphs_that_are_refused(
    member: str, changes: dict[str, Any], level: str
) -> None:
    start = f"^DML_GRAPH_DESC: `{re.escape(member)}` (must .+; got|is refused:) .+"
    with pytest.raises(ValueError, match=start):
        compiled(level, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            between(LINKS[0], Between(2, 0, 2, 0)),
            "`IntermediateEdges` must have no cycle; got nodes 2 to 2",
        ),
        (
            {"nodes": (FILL, REVERSE, OUT_OF_BOUNDS)},
            "`Nodes[2]` is refused: DML_SLICE_OPERATOR_DESC: `Offsets[0] + Strides[0] "
            "* (Sizes[0] - 1)` must be less than 2, `InputTensor.Sizes[0]`; got 2",
        ),
    ],
    ids=["cycle", "node"],
)
def test_messages_about_graphs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="DML_GRAPH_DESC") as caught:
        compiled("6_4", **changes)
    assert str(caught.value) == f"DML_GRAPH_DESC: {message}"


@pytest.mark.parametrize("level", FeatureLevel, ids=lambda level: level.label)
@pytest.mark.parametrize("changes", [{}, BY_CONSTANT], ids=["operators", "constant"])
def test_levels_that_have_graphs(level: FeatureLevel, changes: dict[str, Any]) -> None:
    """Of rank 4, which all operators support from 2_1 on; constants need 6_2."""
    table = BufferTensorDesc(DataType.FLOAT32, (1, 1, 2, 3))
    counts = BufferTensorDesc(DataType.UINT32, (1, 1, 2, 1))
    fill: Any = dataclasses.replace(FILL.operator, output_tensor=table)  # type: ignore
    reverse = dml.ReverseSubsequencesOperatorDesc(table, counts, table, 3)
    nodes = [*map(Node, (fill, reverse, copy_of(table))), EIGHT][: 4 if changes else 3]
    desc = dml.GraphDesc(**{**VALID, **changes, "nodes": nodes})
    if level >= (0x6200 if changes else 0x2100):
        dml.compile_graph(desc, level)
    else:
        with pytest.raises(ValueError, match=r"^DML_GRAPH_DESC: "):
            dml.compile_graph(desc, level)


def test_tensors_that_DirectML_owns_may_be_inputs() -> None:
    lengths = jnp.array([[2], [3]], jnp.uint32)
    results = [
        compiled(
            "6_4",
            nodes=(COPY, node, COPY),
            **inputs(Input(0, 1, 1), Input(1, 0, 0)),
            input_count=2,
        )(lengths, jnp.arange(6, dtype=np.float32).reshape(2, 3))
        for node in (REVERSE, OWNING)
    ]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("error", "member", "arguments"),
    [
        (TypeError, "desc", (3,)),
        (ValueError, "feature_level", (dml.GraphDesc(**VALID), 5)),
        (TypeError, "feature_level", (dml.GraphDesc(**VALID), "6_4")),
    ],
)
def test_what_is_no_graph_or_no_level(
    error: type[Exception], member: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(error, match=f"^compile_graph: `{member}` must be a .+; got "):
        dml.compile_graph(*arguments)
