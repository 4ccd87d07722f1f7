"""Single operators of ONNX: exact ranges, clamped slices, and every data type."""

from fractions import Fraction
from typing import Any

import jax
import ml_dtypes
import numpy as np
import onnx
import pytest
from assertions import assert_same_bits
from onnx import helper
from onnx_models import parse, prepared, runtime_session

from dml_jax import onnx_backend, reference

RANGE = helper.make_node("Range", ["start", "limit", "delta"], ["y"])
RANGES = {
    "rounded once": (np.float32, 0, 1, 0.1),
    "cancelling": (np.float64, 0.1, 0.7, 0.2),
    "beyond doubles": (np.int64, -(2**63), 5 - 2**63, 2),
    "a count beyond doubles": (np.int64, 0, 2**62 + 1, 2**62),
    "a difference that overflows": (np.float64, -1.7e308, 1.7e308, 1e308),
    "half": (np.float16, 0, 3000, 1),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_are_exact(name: str) -> None:
    dtype, *numbers = RANGES[name]
    start, limit, delta = (np.array(number, dtype) for number in numbers)
    (y,) = onnx_backend.run_node(RANGE, [start, limit, delta])
    span = Fraction(limit.item()) - Fraction(start.item())
    count = -(-span // Fraction(delta.item()))
    wanted = reference.fill_value_sequence((count,), dtype, start[()], delta[()])
    assert_same_bits(y, wanted)


@pytest.mark.usefixtures("x32")
def test_full_width_outside_of_64_bit_mode() -> None:
    numbers = [np.array(n) for n in (2**60, 2**60 + 3, 1)]
    (y,) = onnx_backend.run_node(RANGE, numbers)
    assert_same_bits(y, 2**60 + np.arange(3))
    assert not jax.config.jax_enable_x64  # type: ignore[attr-defined]


SLICES = {
    "a start before the axis": ([-9], [-99], [-1], [0]),
    "an end after the axis": ([3], [2**63 - 1], [-1], []),
    "an end before the axis": ([3], [-(2**63)], [-2], [3, 1]),
    "a start after the axis": ([99], [0], [-3], [4, 1]),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_are_clamped(name: str) -> None:
    *indices, rows = SLICES[name]
    node = helper.make_node("Slice", ["x", "starts", "ends", "", "steps"], ["y"])
    starts, ends, steps = map(np.array, indices)
    for x in (np.arange(10.0).reshape(5, 2), np.array([["a", "b"]] * 5, object)):
        (y,) = onnx_backend.run_node(node, [x, starts, ends, None, steps])
        np.testing.assert_array_equal(y, x[rows])


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "bfloat16"])
def test_reversals_of_dtypes_that_onnx_runtime_has_not(dtype: str) -> None:
    x = np.arange(8).reshape(4, 2).astype(getattr(ml_dtypes, dtype, dtype))
    node = helper.make_node("ReverseSequence", ["x", "lens"], ["y"])
    (y,) = onnx_backend.run_node(node, [x, np.array([3, 4])])
    order = np.array([[4, 7], [2, 5], [0, 3], [6, 1]])
    assert_same_bits(y, x.reshape(-1)[order])


@pytest.mark.parametrize("dtype", [object, str])
def test_strings(dtype: Any) -> None:
    x = np.array([["a", "b"], ["c", ""], ["longer", "ü"]], dtype)
    text = """string[3,2] x => string[2,2] y {
      r = ReverseSequence(x, lens)
      i = Identity(r)
      y = Slice(i, starts, ends)
    }"""
    constants = {"lens": [3, 2], "starts": [1], "ends": [3]}
    arrays = {name: np.array(numbers) for name, numbers in constants.items()}
    assert prepared(text, **arrays).run([x])[0].tolist() == [["c", "b"], ["a", "ü"]]


@pytest.mark.parametrize(
    ("kind", "attribute", "expected"),
    [
        ("string[1]", 'value_strings = ["a"]', ["a"]),
        ("string[1]", 'value: tensor = string[1] {"a"}', ["a"]),
        ("string", 'value_string = "ü"', "ü"),
        ("float", "value_float = 1.5", 1.5),
        ("float[1]", "value_floats = [1.5]", [1.5]),
        ("int64", "value_int = 7", 7),
        ("int64[1]", "value_ints = [7]", [7]),
    ],
)
def test_constants(kind: str, attribute: str, expected: Any) -> None:
    text = f"=> {kind} y {{y = Constant<{attribute}>()}}"
    assert prepared(text).run([])[0].tolist() == expected


def test_constant_of_shape_keeps_bits() -> None:
    payload = np.array([0x7FA00001], np.uint32).view(np.float32)
    tensor = onnx.numpy_helper.from_array(payload)
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=tensor)
    with jax.debug_nans(True):
        (y,) = onnx_backend.run_node(node, [np.array([2, 3])])
    assert_same_bits(y, np.broadcast_to(payload, (2, 3)))


# Models whose results are those of ONNX Runtime, eagerly and jitted -------------------

M = np.array([[1, 5, 5], [7, 2, 7]], np.float32)
LOOKUP = "{d = Constant<value_floats = [5.0, 6.0, 7.0]>() y ="
KEPT = "{c = Constant<value: tensor = bool[3] {1, 0, 1}>() y = Compress"
NORMALIZED = "BatchNormalization(x, s, s, s, s)}"
# Text and inputs.
MODELS: dict[str, tuple[Any, ...]] = {
    **{
        f"{kind} used as an index": (
            f"float[2,3] x => float[2,k] y {{i = {kind}<axis = 1>(x) "
            "y = GatherElements<axis = 1>(x, i)}",
            M,
        )
        for kind in ("ArgMax", "ArgMin")
    },
    "the last one of equal elements": (
        "float[2,3] x => int32[2,1] y {i = ArgMax<axis = 1, select_last_index = 1>(x) "
        "y = Cast<to = 6>(i)}",
        M,
    ),
    "Hardmax": ("float[2,3] x => float[2,3] y {y = Hardmax(x)}", M),
    "Hardmax of nothing": (
        "float[2,n] x => float[2,n] y {y = Hardmax(x)}",
        np.zeros((2, 0), np.float32),
    ),
    "a table of elements": (
        f"int32[2] i => float[2] y {LOOKUP} GatherElements(d, i)}}",
        np.array([2, 0], np.int32),
    ),
    "a table of slices": (
        "int32[2,1] i => float[2] y {d = Constant<value_floats = [5.0, 6.0, 7.0]>() "
        "j = Cast<to = 7>(i) y = GatherND(d, j)}",
        np.array([[2], [0]], np.int32),
    ),
    "columns": (f"float[2,3] x => float[2,k] y {KEPT}<axis = 1>(x, c)}}", M),
    "columns from the end": (
        f"float[2,3] x => float[2,k] y {KEPT}<axis = -1>(x, c)}}",
        M,
    ),
    "elements": (f"float[2,3] x => float[k] y {KEPT}(x, c)}}", M),
    "statistics of a batch": (
        f"@9 float[2,3] x, float[3] s => float[2,3] y, float[3] m, float[3] v "
        f"{{y, m, v, n, w = {NORMALIZED}",
        M,
        np.array([1, 2, 3], np.float32),
    ),
    "a scale for each element": (
        f"@7 float[2,2,3] x, float[2,3] s => float[2,2,3] y {{y = {NORMALIZED}".replace(
            "Normalization(", "Normalization<spatial = 0>("
        ),
        np.stack([M, -M]),
        M,
    ),
    "a power beyond 24 bits": (
        "int32[2] a, float[2] b => int32[2] y {y = Pow(a, b)}",
        np.array([2**24 + 1, 2053], np.int32),
        np.array([1, 2], np.float32),
    ),
    "powers of integers": (
        "int32[6] a, int32[6] b => int32[6] y {y = Pow(a, b)}",
        np.array([2, 1, -1, 3, -1, -2], np.int32),
        np.array([-1, -1, -1, -2, -2, 3], np.int32),
    ),
    "a mean of integers beyond 24 bits": (
        "int32[2] x => int32[1] y {y = ReduceMean(x)}",
        np.array([1000000001, 1000000003], np.int32),
    ),
    "a mean that is truncated": (
        "int32[2] x => int32[1] y {y = ReduceMean(x)}",
        np.array([-3, -4], np.int32),
    ),
    "a norm of integers beyond 24 bits": (
        "int32[2] x => int32[1] y {y = ReduceL2(x)}",
        np.array([1000000001, 1000000003], np.int32),
    ),
    "a LogSumExp of integers beyond 24 bits": (
        "int32[2] x => int32[1] y {y = ReduceLogSumExp(x)}",
        np.array([1000000001, 1000000003], np.int32),
    ),
    "slices at indices without elements": (
        "float[2,3] x, int32[2,0] i => float[2,2,3] y {j = Cast<to = 7>(i) "
        "y = GatherND(x, j)}",
        M,
        np.zeros((2, 0), np.int32),
    ),
    "updates at indices without elements": (
        "float[2,3] x, int32[2,0] i, float[2,2,3] u => float[2,3] y "
        '{j = Cast<to = 7>(i) y = ScatterND<reduction = "add">(x, j, u)}',
        M,
        np.zeros((2, 0), np.int32),
        np.stack([M, -2 * M]),
    ),
    "finite bounds": (
        "@9 float[3] x => float[3] y {y = Clip(x)}",
        np.array([np.inf, -np.inf, 1], np.float32),
    ),
    "a finite bound": (
        "@9 float[3] x => float[3] y {y = Clip<min = 0.0>(x)}",
        np.array([np.inf, -np.inf, 1], np.float32),
    ),
}


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("name", MODELS)
def test_models_as_in_onnx_runtime(name: str) -> None:
    text, *inputs = MODELS[name]
    model = prepared(text)
    feeds = dict(zip(model.input_names, inputs, strict=True))
    wanted: Any = runtime_session(parse(text)).run(None, feeds)
    for outputs in (model.run(inputs), jax.jit(model.jax_fn)(*inputs)):
        for found, array in zip(outputs, wanted, strict=True):
            assert found.dtype == array.dtype
            # Statistics are sums in another order.
            tolerance = 1e-6 if np.issubdtype(array.dtype, np.floating) else 0
            np.testing.assert_allclose(found, array, tolerance, tolerance)


def outputs_of(node: onnx.NodeProto, *inputs: Any) -> list[Any]:
    """The output of a node for inputs, and for constants."""
    (y,) = onnx_backend.run_node(node, list(map(np.asarray, inputs)))
    info = helper.make_tensor_value_info("y", TYPES[y.dtype.name], y.shape)
    constants = [
        onnx.numpy_helper.from_array(np.asarray(x), name)
        for x, name in zip(inputs, node.input, strict=True)
    ]
    graph = helper.make_graph([node], "constants", [], [info], constants)
    return [y, onnx_backend.prepare(helper.make_model(graph)).run([]).y]


LARGEST = 2**63 - 1
TYPES = {"int32": 6, "int64": 7, "uint32": 12, "uint64": 13, "float32": 1}
# Operators, dtypes, inputs and results that ONNX Runtime has not, or not exactly.
INTEGERS: list[tuple[str, str, Any, Any]] = [
    ("ReduceMean", "uint32", [[4000000001, 4000000003]], [4000000002]),
    ("ReduceMean", "int64", [[LARGEST, LARGEST - 1, LARGEST - 2]], [LARGEST - 1]),
    ("ReduceMean", "int64", [[-LARGEST, -LARGEST, 1 - LARGEST]], [1 - LARGEST]),
    ("ReduceMean", "uint64", [[2**64 - 1, 2**64 - 3]], [2**64 - 2]),
    ("Pow", "int32", [[0, 3, -1], [-1, -1, -3]], [0, 0, -1]),
    ("Pow", "int64", [[-1, 1, 3], [-(2**63), -(2**63), 39]], [1, 1, 3**39]),
]


@pytest.mark.parametrize(("kind", "dtype", "inputs", "wanted"), INTEGERS)
def test_integers_are_exact(kind: str, dtype: str, inputs: Any, wanted: Any) -> None:
    node = helper.make_node(kind, [*"ab"[: len(inputs)]], ["y"])
    for y in outputs_of(node, *(np.array(x, dtype) for x in inputs)):
        assert_same_bits(y, np.array(wanted, dtype))


def test_elements_of_a_scalar_that_are_not_zero() -> None:
    node = helper.make_node("NonZero", ["x"], ["y"])
    for number, count in ((3, 1), (0, 0)):
        for y in outputs_of(node, np.float32(number)):
            assert_same_bits(y, np.zeros((0, count), np.int64))


def test_one_hot_of_floats_truncates() -> None:
    node = helper.make_node("OneHot", ["i", "d", "v"], ["y"])
    inputs = np.array([1.5, -0.5, -1.5, 3.0], np.float32), np.array(3), np.arange(2)
    for y in outputs_of(node, *inputs):
        assert_same_bits(y, np.eye(4, 3, dtype=int)[[1, 0, 2, 3]])


def test_one_hot_of_indices_beyond_int64() -> None:
    node = helper.make_node("OneHot", ["i", "d", "v"], ["y"])
    indices = np.array([2**64 - 1, 1], np.uint64)
    for y in outputs_of(node, indices, np.array(2), np.arange(2)):
        assert_same_bits(y, np.array([[0, 0], [0, 1]]))


@pytest.mark.parametrize(("dtype", "last"), [("uint8", 255), ("int8", -1)])
def test_one_hot_of_narrow_indices(dtype: str, last: int) -> None:
    """ONNX Runtime has no kernel for these."""
    node = helper.make_node("OneHot", ["i", "d", "v"], ["y"])
    indices, depth = np.array([1, 100, last], dtype), 400
    (y,) = onnx_backend.run_node(node, [indices, np.array(depth), np.array([0, 1])])
    wanted = np.zeros((3, depth), int)
    wanted[range(3), indices.astype(int)] = 1
    assert_same_bits(np.asarray(y), wanted)
