"""Everything that makes a graph invalid: the whole message that it gets."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, FeatureLevel, ScalarUnion

Input, Output = dml.InputGraphEdgeDesc, dml.OutputGraphEdgeDesc
Between, Node = dml.IntermediateGraphEdgeDesc, dml.OperatorGraphNodeDesc
Constant = dml.ConstantDataGraphNodeDesc

TABLE = BufferTensorDesc(DataType.FLOAT32, (2, 3))
COUNTS = BufferTensorDesc(DataType.UINT32, (2, 1))
PADDED = BufferTensorDesc(DataType.FLOAT32, (2, 3), (4, 1))


def copy(given, wanted):
    return Node(dml.SliceOperatorDesc(given, wanted, (0, 0), (2, 3), (1, 1)))


def owned(tensor):
    return dataclasses.replace(tensor, flags=dml.TensorFlags.OWNED_BY_DML)


FILL = Node(
    dml.FillValueConstantOperatorDesc(TABLE, DataType.FLOAT32, ScalarUnion(float32=1))
)
REVERSE = Node(dml.ReverseSubsequencesOperatorDesc(TABLE, COUNTS, TABLE, 1))
OWNING = Node(dml.ReverseSubsequencesOperatorDesc(TABLE, owned(COUNTS), TABLE, 1))
COPY = copy(TABLE, TABLE)
OUT_OF_BOUNDS = Node(dataclasses.replace(COPY.operator, offsets=(1, 0)))
EIGHT = Constant(bytes(8))
# 0: a fill, 1: a reversal by input 0, 2: a copy to output 0; 3, where it is, a constant
VALID = dict(
    input_count=1,
    output_count=1,
    nodes=(FILL, REVERSE, COPY),
    input_edges=(Input(0, 1, 1),),
    output_edges=(Output(2, 0, 0),),
    intermediate_edges=(Between(0, 0, 1, 0), Between(1, 0, 2, 0)),
)
NODES, LINKS = VALID["nodes"], VALID["intermediate_edges"]
BY_CONSTANT = dict(
    input_count=0,
    nodes=(*NODES, EIGHT),
    input_edges=(),
    intermediate_edges=(*LINKS, Between(3, 0, 1, 1)),
)


def inputs(*edges):
    return dict(input_edges=edges)


def outputs(*edges):
    return dict(output_edges=edges)


def between(*edges, nodes=NODES):
    return dict(intermediate_edges=edges, nodes=nodes)


GRAPHS = {
    "`IntermediateEdges` must have no cycle; got nodes 1 to 2 to 1": between(
        Between(2, 0, 1, 0), LINKS[1]
    ),
    "`IntermediateEdges` must have no cycle; got nodes 2 to 2": between(
        LINKS[0], Between(2, 0, 2, 0)
    ),
    # Connections
    "`Nodes[2].InputTensor` must be connected; got no edge to it": between(LINKS[0]),
    "`Nodes[1].SequenceLengthsTensor` must be connected; got no edge to it": dict(
        input_count=0, input_edges=()
    ),
    "`InputEdges` must connect each input of the graph; got none for 1": dict(
        input_count=2
    ),
    "`OutputEdges` must connect each output of the graph; got none for 1": dict(
        output_count=2
    ),
    "`Nodes[2]` must have a connected output; got none": outputs(Output(1, 0, 0)),
    "`Nodes[3]` must have a connected output; got none": dict(nodes=(*NODES, EIGHT)),
    "`IntermediateEdges[2]` must be the only edge to `InputTensor` of node 1; got a "
    "second one": between(*LINKS, Between(0, 0, 1, 0)),
    "`IntermediateEdges[0]` must be the only edge to `InputTensor` of node 1; got a "
    "second one": inputs(Input(0, 1, 1), Input(0, 1, 0)),
    "`InputEdges[1]` must be the only edge to `SequenceLengthsTensor` of node 1; got "
    "a second one": inputs(Input(0, 1, 1), Input(0, 1, 1)),
    "`OutputEdges[1]` must be the only edge to output 0; got a second one": outputs(
        Output(2, 0, 0), Output(1, 0, 0)
    ),
    # Sizes
    "`IntermediateEdges[1]` must have TotalTensorSizeInBytes 28 at both ends; got 24 "
    "from node 1": dict(nodes=(FILL, REVERSE, copy(PADDED, TABLE))),
    "`IntermediateEdges[0]` must have TotalTensorSizeInBytes 24 at both ends; got 28 "
    "from node 0": between(Between(0, 0, 2, 0), nodes=(copy(TABLE, PADDED), FILL, COPY))
    | inputs(Input(0, 0, 0))
    | outputs(Output(2, 0, 0)),
    "`InputEdges[1]` must have TotalTensorSizeInBytes 8, as the input's first edge; "
    "got 24": inputs(Input(0, 1, 1), Input(0, 2, 0))
    | between(LINKS[0])
    | outputs(Output(2, 0, 0), Output(1, 0, 1))
    | dict(output_count=2),
    **{
        f"`IntermediateEdges[2]` must have 8 bytes at both ends; got {n} from node 3": {
            **BY_CONSTANT,
            "nodes": (*NODES, Constant(bytes(n))),
        }
        for n in (0, 7, 12)
    },
    # Indices
    "`InputEdges[0].GraphInputIndex` must be less than 1, the number of inputs; got "
    "1": inputs(Input(1, 1, 1)),
    "`InputEdges[0].ToNodeIndex` must be less than 3, the number of Nodes; got "
    "3": inputs(Input(0, 3, 1)),
    "`InputEdges[0].ToNodeInputIndex` must be less than 2, the inputs of "
    "REVERSE_SUBSEQUENCES; got 2": inputs(Input(0, 1, 2)),
    "`InputEdges[1].ToNodeInputIndex` must be less than 0, the inputs of "
    "FILL_VALUE_CONSTANT; got 0": inputs(Input(0, 1, 1), Input(0, 0, 0)),
    "`IntermediateEdges[0].FromNodeIndex` must be less than 3, the number of Nodes; "
    "got 4294967295": between(Between(4294967295, 0, 1, 0), LINKS[1]),
    "`IntermediateEdges[0].FromNodeOutputIndex` must be less than 1, the number of "
    "outputs of the node; got 1": between(Between(0, 1, 1, 0), LINKS[1]),
    "`IntermediateEdges[1].ToNodeIndex` must be less than 3, the number of Nodes; got "
    "3": between(LINKS[0], Between(1, 0, 3, 0)),
    "`IntermediateEdges[1].ToNodeInputIndex` must be less than 1, the inputs of SLICE; "
    "got 1": between(LINKS[0], Between(1, 0, 2, 1)),
    "`OutputEdges[0].FromNodeIndex` must be less than 3, the number of Nodes; got "
    "3": outputs(Output(3, 0, 0)),
    "`OutputEdges[0].FromNodeOutputIndex` must be less than 1, the number of outputs "
    "of the node; got 1": outputs(Output(2, 1, 0)),
    "`OutputEdges[0].GraphOutputIndex` must be less than 1, the number of outputs; got "
    "1": outputs(Output(2, 0, 1)),
    # Constants and tensors that DirectML owns
    "`OutputEdges[1].FromNodeIndex` must be an operator; got the constant 3": {
        **BY_CONSTANT,
        "output_count": 2,
        **outputs(Output(2, 0, 0), Output(3, 0, 1)),
    },
    "`IntermediateEdges[3].ToNodeIndex` must be an operator; got the constant 3": {
        **BY_CONSTANT,
        "intermediate_edges": (
            *BY_CONSTANT["intermediate_edges"],
            Between(0, 0, 3, 0),
        ),
    },
    "`InputEdges[0].ToNodeIndex` must be an operator; got the constant 3": {
        **BY_CONSTANT,
        "input_count": 1,
        **inputs(Input(0, 3, 0)),
    },
    "`IntermediateEdges[2]` must come from an input of the graph, since its tensor is "
    "OWNED_BY_DML; got node 3": {**BY_CONSTANT, "nodes": (FILL, OWNING, COPY, EIGHT)},
    "`IntermediateEdges[1]` must come from an input of the graph, since its tensor is "
    "OWNED_BY_DML; got node 1": dict(nodes=(FILL, REVERSE, copy(owned(TABLE), TABLE))),
}
LEVEL_RULES = {
    "2_0": ("`FeatureLevel` must be 2_1 or later; got 2_0", {}),
    "6_1": (
        "`Nodes[3]` must be an operator at feature level 6_1; got a constant, allowed "
        "from 6_2",
        BY_CONSTANT,
    ),
    "3_1": (
        "`Nodes[1]` is refused: DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC: `InputTensor."
        "DimensionCount` must be 4 to 5 at feature level 3_1; got 2, allowed from 4_0",
        {"nodes": (COPY, REVERSE, COPY)},
    ),
    "6_4": (
        "`Nodes[2]` is refused: DML_SLICE_OPERATOR_DESC: `Offsets[0] + Strides[0] * "
        "(Sizes[0] - 1)` must be less than 2, `InputTensor.Sizes[0]`; got 2",
        {"nodes": (FILL, REVERSE, OUT_OF_BOUNDS)},
    ),
}
REFUSED = [(message, changes, "6_4") for message, changes in GRAPHS.items()]
REFUSED += [(*row, level) for level, row in LEVEL_RULES.items()]


def compiled(level, **changes):
    desc = dml.GraphDesc(**{**VALID, **changes})
    return dml.compile_graph(desc, FeatureLevel[f"LEVEL_{level}"])


@pytest.mark.parametrize(
    ("message", "changes", "level"), [pytest.param(*row, id=row[0]) for row in REFUSED]
)
def test_graphs_that_are_refused(message, changes, level):
    with pytest.raises(ValueError, match=r"^DML_GRAPH_DESC: ") as caught:
        compiled(level, **changes)
    assert str(caught.value) == f"DML_GRAPH_DESC: {message}"


@pytest.mark.parametrize("level", FeatureLevel, ids=lambda level: level.label)
@pytest.mark.parametrize("changes", [{}, BY_CONSTANT], ids=["operators", "constant"])
def test_levels_that_have_graphs(level, changes):
    """Of rank 4, as far down as its operators go, graphs need 2_1 and constants 6_2."""
    table = BufferTensorDesc(DataType.FLOAT32, (1, 1, 2, 3))
    counts = BufferTensorDesc(DataType.UINT32, (1, 1, 2, 1))
    fill = dataclasses.replace(FILL.operator, output_tensor=table)
    reverse = dml.ReverseSubsequencesOperatorDesc(table, counts, table, 3)
    crop = dml.SliceOperatorDesc(table, table, (0,) * 4, (1, 1, 2, 3), (1,) * 4)
    nodes = [*map(Node, (fill, reverse, crop)), EIGHT][: 4 if changes else 3]
    desc = dml.GraphDesc(**{**VALID, **changes, "nodes": nodes})
    if level >= (0x6200 if changes else 0x2100):
        dml.compile_graph(desc, level)
    else:
        with pytest.raises(ValueError, match=r"^DML_GRAPH_DESC: "):
            dml.compile_graph(desc, level)


def test_what_DirectML_owns_may_come_from_outside():
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


# Constructors -------------------------------------------------------------------------

EDGES = {
    Input: ("graph_input_index", "to_node_index", "to_node_input_index"),
    Output: ("from_node_index", "from_node_output_index", "graph_output_index"),
    Between: (
        "from_node_index",
        "from_node_output_index",
        "to_node_index",
        "to_node_input_index",
    ),
}
INDICES = {
    -1: (ValueError, "must be 0 to 4294967295; got -1"),
    4294967296: (ValueError, "must be 0 to 4294967295; got 4294967296"),
    1.5: (TypeError, "must be a static integer; got float 1.5"),
    None: (TypeError, "must be a static integer; got NoneType None"),
    True: (TypeError, "must be a static integer; got bool True"),
}
NAMES = {
    5: (TypeError, "must be a string or None; got int 5"),
    b"a": (TypeError, "must be a string or None; got bytes b'a'"),
    "": (ValueError, "must not be empty; got ''"),
}
BOTH = "OperatorGraphNodeDesc or ConstantDataGraphNodeDesc"
PARTS = {
    "nodes": (BOTH, COPY.operator, COPY),
    "input_edges": ("InputGraphEdgeDesc", Output(0, 0, 0), Input(0, 0, 0)),
    "output_edges": ("OutputGraphEdgeDesc", Input(0, 0, 0), Output(0, 0, 0)),
    "intermediate_edges": ("IntermediateGraphEdgeDesc", (0, 0, 1, 0), LINKS[0]),
}
COUNTS_OF = ("input_count", "output_count")
CALLS = [
    *[
        (edge, {**dict.fromkeys(members, 0), member: value}, member, *refused)
        for edge, members in EDGES.items()
        for rows, those in [(INDICES, members), (NAMES, ["name"])]
        for member in those
        for value, refused in list(rows.items())
    ],
    *[
        (node, {**valid, "name": value}, "name", *refused)
        for node, valid in [(Node, vars(COPY)), (Constant, vars(EIGHT))]
        for value, refused in NAMES.items()
    ],
    *[
        (
            Node,
            dict(operator=value),
            "operator",
            TypeError,
            f"must be the description of an operator; got {text}",
        )
        for value, text in [(None, "NoneType None"), ("SLICE", "str 'SLICE'")]
    ],
    *[
        (Constant, dict(data=value), "data", TypeError, f"must be bytes; got {text}")
        for value, text in [
            ([1, 2], "list [1, 2]"),
            ("ab", "str 'ab'"),
            (np.zeros(2, np.uint8), "uint8 array of shape (2,)"),
        ]
    ],
    *[
        (dml.GraphDesc, {**VALID, member: value}, member, *refused)
        for member in COUNTS_OF
        for value, refused in INDICES.items()
    ],
    *[
        (
            dml.GraphDesc,
            {**VALID, member: value},
            member,
            TypeError,
            f"must be a list or a tuple; got {text}",
        )
        for member in PARTS
        for value, text in [(None, "NoneType None"), ({}, "dict {}"), ("a", "str 'a'")]
    ],
]


@pytest.mark.parametrize(
    ("make", "arguments", "member", "error", "message"),
    [pytest.param(*row, id=f"{row[0].__name__}-{row[2]}-{row[4]}") for row in CALLS],
)
def test_what_a_constructor_refuses(make, arguments, member, error, message):
    with pytest.raises(error) as caught:
        make(**arguments)
    assert type(caught.value) is error
    assert str(caught.value) == f"{make.__name__}: `{member}` {message}"


@pytest.mark.parametrize("member", PARTS)
def test_parts_of_another_class(member):
    expected, other, right = PARTS[member]
    with pytest.raises(TypeError) as caught:
        dml.GraphDesc(**{**VALID, member: [right, other]})
    start = f"GraphDesc: `{member}[1]` must be {expected}; got {type(other).__name__} "
    assert str(caught.value).startswith(start)
    assert len(str(caught.value)) < len(start) + 82
    assert getattr(dml.GraphDesc(**{**VALID, member: [right]}), member) == (right,)


def test_what_is_no_graph():
    with pytest.raises(TypeError) as caught:
        dml.compile_graph(3)
    assert str(caught.value) == "compile_graph: `desc` must be a GraphDesc; got int 3"
    for level in (5, "6_4"):
        with pytest.raises((TypeError, ValueError), match="feature_level") as caught:
            dml.compile_graph(dml.GraphDesc(**VALID), level)
        message = f"must be a FeatureLevel; got {type(level).__name__} {level!r}"
        assert str(caught.value) == f"compile_graph: `feature_level` {message}"
