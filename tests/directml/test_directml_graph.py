"""Graphs of operators, against NumPy that moves bytes from buffer to buffer."""

import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import SPECIAL, copy_of
from graphs import CHAIN, FILL, LENGTHS, LINKS, TURNED, expected, graph, tensor
from sampling import default_of
from wrong_calls import graphs

import dml_jax.directml as dml
from dml_jax import reference
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion
from dml_jax.directml._compile import _execute

TABLE, FLIPPED = tensor((2, 3)), tensor((2, 3), strides=(1, 2))
FLIP = dml.Slice1OperatorDesc(TABLE, TABLE, (0, 0), (2, 3), (-1, -1))
PAIR = dml.ReverseSubsequencesOperatorDesc(TABLE, tensor((2, 1), "UINT32"), TABLE, 1)
X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
TWO = np.array([[2], [3]], np.uint32)
GRAPHS = {
    "chain": graph(CHAIN, [(0, 2, 1)], [(3, 0)], LINKS),
    "turned": graph([*CHAIN[:3], TURNED], [(0, 2, 1)], [(3, 0)], LINKS),
}


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def test_the_oracle_is_the_composition_of_functions() -> None:
    table = reference.fill_value_sequence((1, 1, 4, 6), np.float32, 3.0, 2.0)
    lines = reference.reverse_subsequences(table[:, :, 1:], LENGTHS, 3)
    (found,) = expected(GRAPHS["chain"], LENGTHS)
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
    compiled = dml.compile_graph(GRAPHS[name])
    text = jax.jit(compiled).lower(LENGTHS).compile().as_text()
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


# Random graphs, bytes and types -------------------------------------------------------

TYPES = [data_type for data_type in DataType if data_type.bits >= 8]


def random_operator(
    random: np.random.Generator, data_type: DataType, total: int
) -> dml.OperatorDesc:
    """An operator whose tensors have `total` bytes."""
    count = total * 8 // data_type.bits
    half = max(count // 2, 1)

    def of(sizes: tuple[int, ...], strides: Any = None) -> BufferTensorDesc:
        return BufferTensorDesc(data_type, sizes, strides, total)

    whole, row = of((count,)), of((1, count))
    lengths = BufferTensorDesc(DataType.UINT32, (1, 1), None, total)
    bits = ScalarUnion(bytes=random.bytes(8))
    operators = [
        copy_of(whole),
        dml.FillValueConstantOperatorDesc(whole, data_type, bits),
        dml.ReverseSubsequencesOperatorDesc(row, lengths, row, 1),
    ]
    if count > 1:
        operators += [
            dml.Slice1OperatorDesc(whole, whole, (0,), (count,), (-1,)),
            dml.SliceGradOperatorDesc(of((half,)), whole, (0,), (count,), (-2,)),
            copy_of(of((count - 1,))),
            copy_of(of((half,), (2,)), of((half,))),
            copy_of(of((half,)), of((half,), (2,))),
            copy_of(of((2, half), (1, 2)), of((2, half))),
            copy_of(of((2, half), (1, 1)), of((2, half))),
            copy_of(of((2, half), (0, 1)), of((2, half))),
        ]
    return operators[random.integers(len(operators))]


def random_bytes(random: np.random.Generator, size: int) -> np.ndarray:
    """Special bytes, small numbers of 32 bits, which are lengths, and any others."""
    content = random.integers(0, 256, size, np.uint8)
    is_special = random.random(size) < 0.3
    content = np.where(is_special, random.choice(SPECIAL, size), content)
    words = content[: size // 4 * 4].view(np.uint32)
    words[random.random(words.size) < 0.3] %= 9
    return content


def random_graph(random: np.random.Generator) -> dml.GraphDesc:
    """Nodes in any order, each of which reads inputs, the constant or other nodes.

    All buffers have the same size, so that every edge is valid.
    """
    total = int(random.choice([8, 12, 16, 20, 28, 32, 44, 48]))
    types = random.choice(TYPES, 2).tolist()  # so few that many layouts meet
    nodes: list[Any] = [
        random_operator(random, DataType(types[random.integers(2)]), total)
        for _ in range(random.integers(1, 7))
    ]
    count, inputs, edges = 0, [], []
    for node, operator in enumerate(nodes):
        for index in range(len(operator.inputs)):
            source = random.integers(-2, node)
            if source == -2:  # an input, which other nodes may read
                inputs.append((random.integers(count + 1), node, index))
                count = max(count, inputs[-1][0] + 1)
            else:
                constant = len(nodes)
                edges.append((constant if source == -1 else source, node, index))
    read = {source for source, *_ in edges}
    written = [n for n in range(len(nodes)) if n not in read or random.random() < 0.3]
    if len(nodes) in read:
        nodes.append(random_bytes(random, total).tobytes())
    place, number = random.permutation(len(nodes)), random.permutation(count)
    outputs = list(zip(random.permutation(written), range(len(written)), strict=True))
    for some in (inputs, outputs, edges):
        random.shuffle(some)
    return graph(
        [nodes[node] for node in np.argsort(place)],
        [(number[given], place[node], index) for given, node, index in inputs],
        [(place[node], output) for node, output in outputs],
        [(place[source], place[node], index) for source, node, index in edges],
        input_count=count,
    )


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("seed", default_of(range(120), *range(16)))
def test_a_random_graph_is_the_composition_of_its_nodes(seed: int) -> None:
    """Inner types of 64 bits need no 64-bit mode."""
    random = np.random.default_rng(seed)
    desc = random_graph(random)
    compiled = dml.compile_graph(desc)
    arrays = [
        random_bytes(random, tensor.buffer_size * tensor.data_type.bits // 8).view(
            tensor.data_type.dtype
        )
        for _, tensor in compiled.inputs
    ]
    outer = [tensor for _, tensor in compiled.inputs + compiled.outputs]
    with jax.enable_x64(bool(seed % 2) or any(t.data_type.bits == 64 for t in outer)):
        found = [compiled(*arrays)]
        if arrays:
            batches = [np.stack([array[::-1], array]) for array in arrays]
            batched = jax.jit(jax.vmap(compiled))(*batches)
            found.append(jax.tree.map(lambda x: x[1], batched))
    for results in found:
        assert isinstance(results, tuple) == (desc.output_count > 1)
        for actual, wanted in zip(
            as_tuple(results), expected(desc, *arrays), strict=True
        ):
            assert_same_bits(np.asarray(actual), wanted)


def test_a_constant_may_lack_the_padding() -> None:
    nodes = [b"abcde", copy_of(tensor((5,), "UINT8"))]
    desc = graph(nodes, [], [(1, 0)], [(0, 1, 0)])
    assert_same_bits(dml.compile_graph(desc)(), expected(desc)[0])


def test_a_constant_is_sent_to_the_device_once() -> None:
    nodes = [bytes(8), copy_of(tensor((8,), "UINT8"))]
    compiled = dml.compile_graph(graph(nodes, [], [(1, 0)], [(0, 1, 0)]))
    jax.jit(lambda: compiled())()  # the constant of a traced call is an array, too
    with jax.transfer_guard("disallow"):
        assert_same_bits(np.asarray(compiled()), np.zeros(8, np.uint8))


def test_a_pickle_has_the_fields_alone() -> None:
    """Another process has other hashes of strings, and other devices."""
    nodes = [bytes(8), copy_of(tensor((8,), "UINT8"))]
    compiled = dml.compile_graph(graph(nodes, [], [(1, 0)], [(0, 1, 0)]))
    before = pickle.dumps(compiled)
    compiled()
    assert pickle.dumps(compiled) == before
    loaded = pickle.loads(before)
    assert (loaded, hash(loaded)) == (compiled, hash(compiled))


def test_an_input_that_no_other_edge_reads_needs_no_more_elements() -> None:
    given = BufferTensorDesc(DataType.INT64, (3,), None, 28)
    compiled = dml.compile_graph(graph([copy_of(given)], [(0, 0, 0)], [(0, 0)]))
    assert compiled.inputs[0].tensor == given


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
