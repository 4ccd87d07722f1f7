"""Graphs with Python functions as nodes, against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import copy_of
from graphs import graph, tensor

import dml_jax.directml as dml
from dml_jax import reference
from dml_jax.directml._compile import _execute

Function = dml.FunctionGraphNodeDesc

FRAMES, WEIGHTS, PRODUCT = tensor((2, 3)), tensor((3, 4)), tensor((2, 4))
COUNTS = tensor((2, 1), "UINT32")
REVERSE = dml.ReverseSubsequencesOperatorDesc(FRAMES, COUNTS, FRAMES, 1)
LAST = dml.SliceOperatorDesc(PRODUCT, tensor((2, 2)), (0, 2), (2, 2), (1, 1))
X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
N = np.array([[3], [2]], np.uint32)
W = np.arange(-5, 7, dtype=np.float32).reshape(3, 4)


def gemm(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


GEMM = Function(gemm, [FRAMES, WEIGHTS], [PRODUCT])
PROJECTION = graph(
    [REVERSE, GEMM, LAST],
    [(0, 0, 0), (1, 0, 1), (2, 1, 1)],
    [(2, 0)],
    [(0, 1, 0), (1, 2, 0)],
)


def reversed_lines(x: np.ndarray) -> np.ndarray:
    return reference.reverse_subsequences(x, N, 1)


# Transposed weights, a bias with stride 0, and rows with gaps.
STRIDED = Function(
    lambda a, b, c: a @ b + c.reshape(2, 4),
    [FRAMES, tensor((3, 4), strides=(1, 3)), tensor((2, 4), strides=(0, 1))],
    [tensor((2, 4), strides=(8, 1))],
)
BIAS = np.arange(4, dtype=np.float32)
NO_INPUTS = Function(lambda: np.eye(3, 4, dtype=np.float32), [], [WEIGHTS])
SPLIT = Function(lambda x: [x + 1, 2 * x], [FRAMES], [FRAMES, FRAMES])
# The second output is reversed, and read as integers, too.
TWO_OUTPUTS = dataclasses.replace(
    graph([SPLIT, REVERSE, copy_of(tensor((6,), "INT32"))], [(0, 0, 0), (1, 1, 1)], []),
    output_count=4,
    output_edges=[
        dml.OutputGraphEdgeDesc(node, output, index)
        for index, (node, output) in enumerate([(0, 1), (0, 0), (1, 0), (2, 0)])
    ],
    intermediate_edges=[
        dml.IntermediateGraphEdgeDesc(0, 1, reader, 0) for reader in (1, 2)
    ],
)
GRAPHS = {
    "after an operator": (PROJECTION, [X, N, W], [(reversed_lines(X) @ W)[:, 2:]]),
    "any strides": (
        graph([STRIDED], [(i, 0, i) for i in range(3)], [(0, 0)]),
        [X, W.T.ravel(), BIAS],
        [np.pad(X @ W + BIAS, [(0, 0), (0, 4)]).ravel()[:12]],
    ),
    "several outputs": (
        TWO_OUTPUTS,
        [X, N],
        [2 * X, X + 1, reversed_lines(2 * X), (2 * X).view(np.int32).ravel()],
    ),
    "no inputs": (
        graph([NO_INPUTS, GEMM], [(0, 1, 0)], [(1, 0)], [(0, 1, 1)]),
        [X],
        [np.pad(X, [(0, 0), (0, 1)])],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_function_is_a_node(name: str) -> None:
    desc, arrays, wanted = GRAPHS[name]
    compiled = dml.compile_graph(desc)
    for results in (compiled(*arrays), jax.jit(compiled)(*arrays)):
        found = results if isinstance(results, tuple) else (results,)
        for actual, array in zip(found, wanted, strict=True):
            assert_same_bits(actual, array)


def test_derivatives_pass_through_functions() -> None:
    compiled = dml.compile_graph(PROJECTION)
    scale = np.array([[1, 2], [-1, 3]], np.float32)
    actual = jax.grad(lambda x, w: jnp.sum(scale * compiled(x, N, w)), (0, 1))(X, W)
    padded = np.pad(scale, [(0, 0), (2, 0)])
    assert_same_bits(actual[0], reversed_lines(padded @ W.T))
    assert_same_bits(actual[1], reversed_lines(X).T @ padded)
    _, tangent = jax.jvp(lambda x: compiled(x, N, W), (X,), (X,))
    assert_same_bits(tangent, (reversed_lines(X) @ W)[:, 2:])


def test_vmap_over_functions() -> None:
    batch = np.stack([X, -X, X + 10])
    actual = jax.vmap(dml.compile_graph(PROJECTION), (0, None, None))(batch, N, W)
    wanted = [(reversed_lines(x) @ W)[:, 2:] for x in batch]
    assert_same_bits(actual, np.stack(wanted))


@pytest.mark.usefixtures("x64")
def test_dtypes_do_not_depend_on_the_mode() -> None:
    node = Function(lambda x: x * jnp.arange(3.0)[None], [FRAMES], [FRAMES])
    actual = dml.compile_graph(graph([node], [(0, 0, 0)], [(0, 0)]))(X)
    assert_same_bits(actual, X * np.arange(3, dtype=np.float32))


@pytest.mark.usefixtures("x32")
def test_functions_of_64_bits_run_in_any_mode() -> None:
    wide = tensor((2, 3), "FLOAT64")
    node = Function(lambda x: x + 2.0**-40, [wide], [wide])
    compiled = dml.compile_graph(graph([node], [(0, 0, 0)], [(0, 0)]))
    with jax.enable_x64(True):
        x = jnp.ones((2, 3))
    assert_same_bits(compiled(x), np.full((2, 3), 1 + 2.0**-40))


@pytest.mark.usefixtures("with_caches")
def test_graphs_with_one_function_share_a_program() -> None:
    dml.compile_graph(PROJECTION)(X, N, W)
    programs = _execute._cache_size()
    again = dataclasses.replace(GEMM)
    equal = dataclasses.replace(
        PROJECTION, nodes=(PROJECTION.nodes[0], again, PROJECTION.nodes[2])
    )
    dml.compile_graph(equal)(X, N, W)
    assert _execute._cache_size() == programs


def test_names_of_functions_are_in_profiles() -> None:
    for node, name in (
        (GEMM, "gemm"),
        (dataclasses.replace(GEMM, name="dense"), "dense"),
    ):
        desc = graph([node], [(0, 0, 0), (1, 0, 1)], [(0, 0)])
        text = jax.jit(dml.compile_graph(desc)).lower(X, W).compile().as_text()
        assert f"/{name}/" in text


# Errors -------------------------------------------------------------------------------


def test_an_error_says_which_function_it_is_from() -> None:
    node = Function(lambda x: x @ x, [FRAMES], [FRAMES], "table")
    with pytest.raises(TypeError) as raised:
        dml.compile_graph(graph([node], [(0, 0, 0)], [(0, 0)]))
    assert "This is from `Nodes[0].Function`, 'table'." in raised.value.__notes__
