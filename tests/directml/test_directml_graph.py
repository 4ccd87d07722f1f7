"""Graphs of operators, against NumPy that moves bytes from buffer to buffer."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import SPECIAL, copy_of, expected_of
from graphs import CHAIN, FILL, LENGTHS, LINKS, TURNED, expected, graph, tensor
from sampling import default_of
from wrong_calls import graphs

import dml_jax.directml as dml
from dml_jax import reference
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion
from dml_jax.directml._compile import _execute

exhaustive = pytest.mark.exhaustive


BACK = [(3, 2, 0), (2, 1, 0), (1, 0, 0)]


TABLE, FLIPPED = tensor((2, 3)), tensor((2, 3), strides=(1, 2))
FLIP = dml.Slice1OperatorDesc(TABLE, TABLE, (0, 0), (2, 3), (-1, -1))
PAIR = dml.ReverseSubsequencesOperatorDesc(TABLE, tensor((2, 1), "UINT32"), TABLE, 1)
GROW = dml.SliceGradOperatorDesc(
    TABLE, tensor((3, 7), strides=(8, 1)), (0, 1), (3, 5), (-2, 2)
)
THIRTEEN = dml.FillValueConstantOperatorDesc(
    TABLE, DataType.FLOAT32, ScalarUnion(float32=13)
)
X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
TWO = np.array([[2], [3]], np.uint32)
GRAPHS: dict[str, tuple[Any, ...]] = {
    "chain": (graph(CHAIN, [(0, 2, 1)], [(3, 0)], LINKS), LENGTHS),
    "nodes-in-reverse": (graph(CHAIN[::-1], [(0, 1, 1)], [(0, 0)], BACK), LENGTHS),
    "constant-lengths": (
        graph([*CHAIN, LENGTHS.tobytes()], [], [(3, 0)], [*LINKS, (4, 2, 1)]),
    ),
    "constant-of-fewer-bytes": (
        graph([b"abcde", copy_of(tensor((5,), "UINT8"))], [], [(1, 0)], [(0, 1, 0)]),
    ),
    "turned": (graph([*CHAIN[:3], TURNED], [(0, 2, 1)], [(3, 0)], LINKS), LENGTHS),
    "fan-out": (
        graph(
            [THIRTEEN, FLIP, GROW, copy_of(FLIPPED, TABLE)],
            [],
            [(1, 1), (2, 0), (3, 2)],
            [(0, 1, 0), (0, 2, 0), (0, 3, 0)],
        ),
    ),
    "input-to-several": (
        graph(
            [FLIP, copy_of(FLIPPED, TABLE), copy_of(tensor((3, 8), "UINT8"))],
            [(0, 0, 0), (0, 1, 0), (0, 2, 0)],
            [(0, 0), (1, 1), (2, 2)],
        ),
        X,
    ),
    "inputs-swapped": (graph([PAIR], [(1, 0, 0), (0, 0, 1)], [(0, 0)]), TWO, X),
    "one-node-twice": (
        graph([PAIR, PAIR], [(0, 0, 0), (1, 0, 1), (2, 1, 1)], [(1, 0)], [(0, 1, 0)]),
        X,
        TWO,
        TWO - 1,
    ),
}


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda f: f, id="eager"),
        pytest.param(jax.jit, id="jit", marks=exhaustive),
    ],
)
def test_a_graph_is_the_composition_of_its_nodes(
    name: str, wrap: Callable[..., Any]
) -> None:
    desc, *arrays = GRAPHS[name]
    actual = wrap(dml.compile_graph(desc))(*arrays)
    assert isinstance(actual, tuple) == (desc.output_count > 1)
    for found, wanted in zip(as_tuple(actual), expected(desc, *arrays), strict=True):
        assert_same_bits(found, wanted)


def test_the_oracle_is_the_composition_of_functions() -> None:
    table = reference.fill_value_sequence((1, 1, 4, 6), np.float32, 3.0, 2.0)
    lines = reference.reverse_subsequences(table[:, :, 1:], LENGTHS, 3)
    (found,) = expected(*GRAPHS["chain"])
    assert_same_bits(found, lines[:, :, ::-2, 1::2])


def test_names_are_in_messages_and_profiles() -> None:
    nodes = [dml.OperatorGraphNodeDesc(PAIR, "turn round")]
    edges = [dml.InputGraphEdgeDesc(0, 0, 0, "frames"), dml.InputGraphEdgeDesc(1, 0, 1)]
    named = dml.compile_graph(
        dml.GraphDesc(2, 1, nodes, edges, [dml.OutputGraphEdgeDesc(0, 0, 0, "turned")])
    )
    assert [b.name for b in named.inputs + named.outputs] == [
        "frames",
        "input 1",
        "turned",
    ]
    message = (
        r"^DML_GRAPH: `frames` must have dtype float32; got uint32\. Convert it by "
        r"`\.astype\('float32'\)`$"
    )
    with pytest.raises(TypeError, match=message):
        named(TWO, TWO)
    assert "turn round" in jax.jit(named).lower(X, TWO).compile().as_text()


def test_tensors_that_DirectML_owns_may_be_inputs() -> None:
    lengths = jnp.array([[2], [3]], jnp.uint32)
    results = [
        graphs.compiled(
            "6_4",
            nodes=(graphs.COPY, node, graphs.COPY),
            **graphs.inputs(graphs.Input(0, 1, 1), graphs.Input(1, 0, 0)),
            input_count=2,
        )(lengths, jnp.arange(6, dtype=np.float32).reshape(2, 3))
        for node in (graphs.REVERSE, graphs.OWNING)
    ]
    np.testing.assert_array_equal(*results)


# Compiled programs and transformations ------------------------------------------------


def opcodes_of(text: str) -> list[str]:
    """The opcodes of the entry computation, without data and tuples."""
    body = text.split("\nENTRY ")[1].split("\n}")[0]
    opcodes = re.findall(r"^ .*? = .*? ([\w-]+)\(", body, re.MULTILINE)
    rest = {"parameter", "constant", "tuple", "get-tuple-element"}
    return [opcode for opcode in opcodes if opcode not in rest]


@pytest.mark.parametrize("name", ["chain", "turned"])
def test_a_chain_is_one_fusion(name: str) -> None:
    desc, lengths = GRAPHS[name]
    text = jax.jit(dml.compile_graph(desc)).lower(lengths).compile().as_text()
    assert opcodes_of(text) == ["fusion"]
    assert text.count("HloModule") == 1
    if name == "chain":  # both ends of each edge have the same layout
        assert text.count(" gather(") == 1  # the reversal's
    assert " scatter(" not in text


@pytest.mark.usefixtures("with_caches")
def test_equal_graphs_share_a_program() -> None:
    descs = [graph(CHAIN[:2], [], [(1, 0)], [(0, 1, 0)]) for _ in range(2)]
    assert descs[0] == descs[1]
    assert dml.compile_graph(descs[0]) == dml.compile_graph(descs[1])
    dml.compile_graph(descs[0])()
    programs = _execute._cache_size()
    dml.compile_graph(descs[1])()
    assert _execute._cache_size() == programs
    dml.compile_graph(graph([FILL], [], [(0, 0)]))()
    assert _execute._cache_size() == programs + 1


@pytest.mark.parametrize("name", ["chain", "turned"])
def test_vmap_is_a_loop(name: str) -> None:
    desc, _ = GRAPHS[name]
    batch = np.array([[6, 3, 2], [0, 9, 1], [4, 4, 5]], np.uint32).reshape(
        3, 1, 1, 3, 1
    )
    actual = jax.vmap(dml.compile_graph(desc))(batch)
    assert_same_bits(actual, np.stack([expected(desc, row)[0] for row in batch]))


LINEAR = {
    "windows": graph(
        [FLIP, copy_of(tensor((2, 4), strides=(2, 1)), tensor((2, 4)))],
        [(0, 0, 0)],
        [(1, 0)],
        [(0, 1, 0)],
    ),
    "input-twice": graph(
        [FLIP, copy_of(FLIPPED, TABLE), PAIR, TWO.tobytes()],
        [(0, 0, 0), (0, 1, 0)],
        [(0, 0), (2, 1)],
        [(1, 2, 0), (3, 2, 1)],
    ),
}


@pytest.mark.parametrize("name", default_of(LINEAR, "windows"))
def test_derivatives_are_exact(name: str) -> None:
    desc = LINEAR[name]

    def flat(x: Any) -> jax.Array:
        results = as_tuple(dml.compile_graph(desc)(x.reshape(2, 3)))
        return jnp.concatenate([result.ravel() for result in results])

    columns = [
        np.concatenate([y.ravel() for y in expected(desc, e.reshape(2, 3))])
        for e in np.eye(6, dtype=np.float32)
    ]
    for jacobian in (jax.jacrev, jax.jacfwd):
        assert_same_bits(jacobian(flat)(X.ravel()), np.stack(columns, axis=1))


def test_derivatives_through_another_data_type_are_zero() -> None:
    nodes = [FLIP, copy_of(tensor((6,), "INT32")), copy_of(TABLE)]
    links = [(0, 1, 0), (1, 2, 0)]
    there = dml.compile_graph(graph(nodes, [(0, 0, 0)], [(2, 0)], links))
    assert_same_bits(there(X), X[::-1, ::-1])
    assert_same_bits(jax.grad(lambda x: there(x).sum())(X), np.zeros_like(X))


# Random bytes and types ---------------------------------------------------------------

TYPES = [data_type for data_type in DataType if data_type.bits >= 8]
NARROW = [data_type for data_type in TYPES if data_type.bits < 64]


def random_node(
    random: np.random.Generator, data_type: DataType, total: int
) -> dml.OperatorDesc:
    """An operator that moves elements of a type."""
    count = total * 8 // data_type.bits
    half = max(count // 2, 1)

    def of(sizes: tuple[int, ...], strides: Any = None) -> BufferTensorDesc:
        return BufferTensorDesc(data_type, sizes, strides, total)

    whole = of((count,))
    nodes = [copy_of(whole)]
    if count > 1:
        nodes += [
            dml.Slice1OperatorDesc(whole, whole, (0,), (count,), (-1,)),
            copy_of(of((count - 1,))),
            copy_of(of((half,), (2,)), of((half,))),
            copy_of(of((half,)), of((half,), (2,))),
            copy_of(of((2, half), (1, 2)), of((2, half))),
            copy_of(of((2, half), (1, 1)), of((2, half))),
            copy_of(of((2, half), (0, 1)), of((2, half))),
        ]
    return nodes[random.integers(len(nodes))]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("is_constant", [False, True], ids=["input", "constant"])
@pytest.mark.parametrize(
    ("count", "wrap", "mode"),
    [
        (5, jax.jit, False),
        pytest.param(25, jax.jit, True, marks=exhaustive),
        pytest.param(25, lambda f: f, False, marks=exhaustive),
        pytest.param(25, lambda f: f, True, marks=exhaustive),
    ],
)
def test_random_chains_of_types(
    is_constant: bool, count: int, wrap: Callable[..., Any], mode: bool
) -> None:
    """Types of 64 bits are inner ones, which need no 64-bit mode."""
    random = np.random.default_rng([is_constant, mode])
    for _ in range(count):
        total = int(random.choice([8, 12, 16, 20, 28, 32, 44, 48]))
        inner = [TYPES[i] for i in random.integers(len(TYPES), size=random.integers(6))]
        first, last = (NARROW[i] for i in random.integers(len(NARROW), size=2))
        nodes = [random_node(random, t, total) for t in (first, *inner, last)]
        n, data = len(nodes), random.integers(0, 256, total, np.uint8)
        data = np.where(random.random(total) < 0.5, random.choice(SPECIAL, total), data)
        edges = [(i, i + 1, 0) for i in range(n - 1)]
        if is_constant:
            nodes, edges = [*nodes, data.tobytes()], [*edges, (n, 0, 0)]
        desc = graph(nodes, [] if is_constant else [(0, 0, 0)], [(n - 1, 0)], edges)
        arrays = [] if is_constant else [data.view(first.dtype)]
        with jax.enable_x64(mode):
            found = wrap(dml.compile_graph(desc))(*arrays)
        assert_same_bits(np.asarray(found), expected(desc, *arrays)[0])


def two_readers(first: DataType, other: DataType, total: int) -> dml.GraphDesc:
    """A graph whose input is read as one data type and as another."""
    nodes = [
        copy_of(BufferTensorDesc(t, (total * 8 // t.bits,), None, total))
        for t in (first, other)
    ]
    return graph(nodes, [(0, 0, 0), (0, 1, 0)], [(0, 0), (1, 1)])


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("total", default_of([12, 28], 12))
@pytest.mark.parametrize("first", TYPES, ids=lambda t: t.name)
def test_no_byte_of_an_input_is_lost(first: DataType, total: int) -> None:
    size = -(-total * 8 // first.bits)
    content = np.random.default_rng(total).integers(0, 256, 40, np.uint8)
    bound = content[: size * first.bits // 8].view(first.dtype)
    for other in (DataType.UINT8, DataType.INT32):
        desc = two_readers(first, other, total)
        compiled = dml.compile_graph(desc)
        assert compiled.inputs[0].tensor.buffer_size == size
        with jax.enable_x64(True):
            results = compiled(bound)
        for found, wanted in zip(results, expected(desc, bound), strict=True):
            assert_same_bits(np.asarray(found), wanted)


def test_an_input_that_no_other_edge_reads_needs_no_more_elements() -> None:
    given = BufferTensorDesc(DataType.INT64, (3,), None, 28)
    compiled = dml.compile_graph(graph([copy_of(given)], [(0, 0, 0)], [(0, 0)]))
    assert compiled.inputs[0].tensor == given


@pytest.mark.parametrize("total", default_of([24, 28], 28))
@pytest.mark.parametrize("data_type", TYPES, ids=lambda t: t.name)
def test_outputs_keep_the_bytes_between_and_after(
    data_type: DataType, total: int
) -> None:
    strided = BufferTensorDesc(data_type, (2,), (2,), total)
    node = copy_of(BufferTensorDesc(data_type, (2,)), strided)
    desc = graph([node], [(0, 0, 0)], [(0, 0)])
    random = np.random.default_rng(total)
    previous = random.integers(0, 100, 48, np.uint8).view(data_type.dtype)
    x = random.integers(0, 100, 16, np.uint8).view(data_type.dtype)[:2]
    wanted = expected_of(node, [x], previous)
    with jax.enable_x64(True):
        for compiled in (dml.compile_operator(node), dml.compile_graph(desc)):
            found = np.asarray(compiled(x, outputs=[previous]))
            assert_same_bits(found, wanted)


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("name", ["FLOAT64", "INT64", "UINT64"])
def test_an_output_of_64_bits_takes_the_width_of_an_array(name: str) -> None:
    data, given = bytes(range(16)), tensor((2,), name)
    compiled = dml.compile_graph(
        graph([data, copy_of(given)], [], [(1, 0)], [(0, 1, 0)])
    )
    dtype = given.data_type.dtype
    with jax.enable_x64(True):
        before = jnp.zeros(2, dtype)
    assert_same_bits(compiled(outputs=[before]), np.frombuffer(data, dtype))
