"""ONNX models as functions: run, transformed, exported; strings, training, devices."""

from fractions import Fraction

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest
from assertions import assert_same_bits
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from dml_jax import onnx_backend, reference


def value(name, dtype, *shape):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes, inputs, outputs, initializers=(), opset=None, functions=()):
    tensors = [
        onnx.numpy_helper.from_array(v, k) for k, v in dict(initializers).items()
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset or onnx.defs.onnx_opset_version())]
    imports += [helper.make_opsetid(f.domain, 1) for f in functions]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions))


def bidirectional():
    """Frames, backwards by a traced length each, every second of the last three."""
    nodes = [
        helper.make_node("ReverseSequence", ["x", "lens"], ["r"], name="backwards"),
        helper.make_node("Slice", ["r", "starts", "ends", "axes", "steps"], ["y"]),
    ]
    constants = {
        "starts": np.array([-1]),
        "ends": np.array([-4]),
        "axes": np.array([0]),
        "steps": np.array([-2]),
    }
    inputs = [value("x", np.float32, 4, 3, 2), value("lens", np.int64, 3)]
    return model_of(nodes, inputs, [value("y", np.float32, 2, 3, 2)], constants)


X = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
LENS = np.array([4, 2, 0])


def expected(x, lens):
    r = reference.reverse_sequence(x, lens, batch_axis=1, time_axis=0)
    return r[:-4:-2]


def test_run_gives_numpy_arrays_by_position_and_by_name():
    model = onnx_backend.prepare(bidirectional())
    assert (model.input_names, model.output_names) == (("x", "lens"), ("y",))
    for inputs in ([X, LENS], {"lens": LENS, "x": X}, (jnp.asarray(X), LENS)):
        outputs = model.run(inputs)
        assert isinstance(outputs.y, np.ndarray)
        assert_same_bits(outputs["y"], expected(X, LENS))
        assert_same_bits(outputs[0], expected(X, LENS))


def test_backend_interface():
    (y,) = onnx_backend.run_model(bidirectional(), [X, LENS])
    assert_same_bits(y, expected(X, LENS))
    node = helper.make_node("Slice", ["x", "starts", "ends", "", "steps"], ["y"])
    (y,) = onnx_backend.run_node(node, [X, np.array([3]), np.array([0]), None, [-1]])
    assert_same_bits(y, X[3:0:-1])
    node = helper.make_node("Slice", ["x"], ["y"], starts=[1], ends=[-1])
    (y,) = onnx_backend.run_node(node, [X], opset_version=1)
    assert_same_bits(y, X[1:-1])
    assert onnx_backend.is_compatible(bidirectional())
    unsupported = model_of(
        [helper.make_node("Abs", ["x"], ["y"])],
        [value("x", np.float32, 2)],
        [value("y", np.float32, 2)],
    )
    assert not onnx_backend.is_compatible(unsupported)


def test_devices():
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.supports_device("CPU:0")
    for device in ("CPU:99", "NPU", "", "CPU:x"):
        assert not onnx_backend.supports_device(device)
    (y,) = onnx_backend.run_model(bidirectional(), [X, LENS], "CPU")
    assert_same_bits(y, expected(X, LENS))


# Transformations ----------------------------------------------------------------------


@pytest.fixture
def fn():
    """The model's function, with lengths of JAX's default width."""
    model = onnx_backend.prepare(bidirectional())
    with jax.enable_x64(True):
        yield model.jax_fn


def test_jit(fn):
    (y,) = jax.jit(fn)(X, LENS)
    assert_same_bits(y, expected(X, LENS))


@pytest.mark.usefixtures("with_caches")
def test_jit_compiles_once(fn):
    jitted = jax.jit(fn)
    for lens in ([4, 2, 0], [0, 0, 0], [1, 2, 3]):
        (y,) = jitted(X, np.array(lens))
        assert_same_bits(y, expected(X, np.array(lens)))
    assert jitted._cache_size() == 1


def test_vmap(fn):
    batch = np.stack([X, -X, X + 100])
    (y,) = jax.vmap(fn, (0, None))(batch, LENS)
    assert_same_bits(y, np.stack([expected(x, LENS) for x in batch]))
    lens = np.array([[1, 2, 3], [4, 4, 4]])
    (y,) = jax.vmap(fn, (None, 0))(X, lens)
    assert_same_bits(y, np.stack([expected(X, n) for n in lens]))


def test_derivatives(fn):
    """The adjoint of a movement puts weights where their elements came from."""
    weights = np.arange(1, 13, dtype=np.float32).reshape(2, 3, 2)

    def loss(x):
        return jnp.sum(fn(x, LENS)[0] * weights)

    source = expected(np.arange(24.0).reshape(4, 3, 2), LENS).astype(int)
    wanted = np.zeros(24, np.float32)
    wanted[source.reshape(-1)] = weights.reshape(-1)
    assert_same_bits(jax.grad(loss)(X), wanted.reshape(X.shape))
    _, tangent = jax.jvp(lambda x: fn(x, LENS)[0], (X,), (2 * X,))
    assert_same_bits(tangent, expected(2 * X, LENS))


def test_export(fn):
    shapes = (
        jax.ShapeDtypeStruct(X.shape, X.dtype),
        jax.ShapeDtypeStruct((3,), np.int64),
    )
    exported = jax.export.export(jax.jit(fn), platforms=["cpu", "cuda", "tpu"])(*shapes)
    (y,) = exported.call(X, LENS)
    assert_same_bits(y, expected(X, LENS))


def test_constants_are_computed_while_tracing():
    """Starts that a graph computes from constants are numbers to jit."""
    nodes = [
        helper.make_node("Range", ["zero", "two", "one"], ["starts32"]),
        helper.make_node("Cast", ["starts32"], ["starts"], to=TensorProto.INT64),
        helper.make_node("Constant", [], ["ends"], value_ints=[9, 9]),
        helper.make_node("Slice", ["x", "starts", "ends"], ["y"]),
    ]
    numbers = {"zero": 0, "one": 1, "two": 2}
    constants = {name: np.array(n, np.int32) for name, n in numbers.items()}
    given = model_of(
        nodes, [value("x", np.float32, 3, 4)], [value("y", np.float32, 3, 3)], constants
    )
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (y,) = jax.jit(onnx_backend.prepare(given).jax_fn)(x)
    assert_same_bits(y, x[0:, 1:])


def test_inputs_that_decide_about_shapes_are_closed_over():
    node = helper.make_node("Slice", ["x", "starts", "ends"], ["y"])
    indices = [value(name, np.int64, 1) for name in ("starts", "ends")]
    given = model_of(
        [node], [value("x", np.float32, 5), *indices], [value("y", np.float32, None)]
    )
    model = onnx_backend.prepare(given)
    assert model.static_names == ("starts", "ends")
    x = np.arange(5, dtype=np.float32)
    (y,) = jax.jit(lambda x: model.jax_fn(x, np.array([1]), np.array([3])))(x)
    assert_same_bits(y, x[1:3])
    assert_same_bits(model.run([x, np.array([-2]), np.array([5])]).y, x[-2:])


def test_training_scales_the_gradient():
    given = model_of(
        [helper.make_node("ReverseSequence", ["x", "lens"], ["y"])],
        [value("x", np.float32, 4, 3, 2)],
        [value("y", np.float32, 4, 3, 2)],
        {"lens": LENS},
    )
    for options, scale in (
        ({}, 1),
        ({"training": True}, 1),
        ({"training": True, "lda_coeff": 0.5}, 0.5),
        ({"lda_coeff": 0.5}, 1),
    ):
        model = onnx_backend.prepare(given, **options)
        (y,), pullback = jax.vjp(model.jax_fn, X)
        wanted = reference.reverse_sequence(X, LENS, batch_axis=1, time_axis=0)
        assert_same_bits(y, wanted)
        assert_same_bits(pullback((wanted,))[0], np.float32(scale) * X)


def test_functions_are_inlined():
    body = [
        helper.make_node(
            "ReverseSequence", ["a", "n"], ["b"], batch_axis=0, time_axis=1
        )
    ]
    imports = [helper.make_opsetid("", onnx.defs.onnx_opset_version())]
    backwards = helper.make_function(
        "mine", "Backwards", ["a", "n"], ["b"], body, imports
    )
    given = model_of(
        [
            helper.make_node("Backwards", ["x", "lens"], ["r"], domain="mine"),
            helper.make_node("Identity", ["r"], ["y"]),
        ],
        [value("x", np.float32, 2, 3)],
        [value("y", np.float32, 2, 3)],
        {"lens": np.array([3, 2])},
        functions=[backwards],
    )
    (y,) = onnx_backend.run_model(given, [np.arange(6, dtype=np.float32).reshape(2, 3)])
    assert_same_bits(y, np.array([[2, 1, 0], [4, 3, 5]], np.float32))


# Where other implementations differ ---------------------------------------------------

RANGES = {
    "rounded once": (np.float32, 0, 1, 0.1),
    "cancelling": (np.float64, 0.1, 0.7, 0.2),
    "beyond doubles": (np.int64, -(2**63), 5 - 2**63, 2),
    "a count beyond doubles": (np.int64, 0, 2**62 + 1, 2**62),
    "a difference that overflows": (np.float64, -1.7e308, 1.7e308, 1e308),
    "half": (np.float16, 0, 3000, 1),
}


@pytest.mark.parametrize("name", RANGES)
def test_range_is_exact(name):
    dtype, *numbers = RANGES[name]
    start, limit, delta = (np.array(number, dtype) for number in numbers)
    node = helper.make_node("Range", ["start", "limit", "delta"], ["y"])
    (y,) = onnx_backend.run_node(node, [start, limit, delta])
    count = -(
        -(Fraction(limit.item()) - Fraction(start.item())) // Fraction(delta.item())
    )
    assert_same_bits(
        y, reference.fill_value_sequence((count,), dtype, start[()], delta[()])
    )


SLICES = {
    "a start before the axis": ([-9], [-99], [-1], [0]),
    "an end after the axis": ([3], [2**63 - 1], [-1], []),
    "an end before the axis": ([3], [-(2**63)], [-2], [3, 1]),
    "a start after the axis": ([99], [0], [-3], [4, 1]),
}


@pytest.mark.parametrize("name", SLICES)
def test_slice_is_clamped_as_the_text_says(name):
    *indices, rows = SLICES[name]
    node = helper.make_node("Slice", ["x", "starts", "ends", "", "steps"], ["y"])
    starts, ends, steps = map(np.array, indices)
    for x in (np.arange(10.0).reshape(5, 2), np.array([["a", "b"]] * 5, object)):
        (y,) = onnx_backend.run_node(node, [x, starts, ends, None, steps])
        np.testing.assert_array_equal(y, x[rows])


# Data types ---------------------------------------------------------------------------

NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
TYPES = [*NAMES.split(), "complex64", "complex128", ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: np.dtype(t).name)
def test_reverse_sequence_of_all_types(dtype):
    x = np.arange(8).reshape(4, 2).astype(dtype)
    node = helper.make_node("ReverseSequence", ["x", "lens"], ["y"])
    (y,) = onnx_backend.run_node(node, [x, np.array([3, 4])])
    order = np.array([[4, 7], [2, 5], [0, 3], [6, 1]])
    assert_same_bits(y, x.reshape(-1)[order])


@pytest.mark.parametrize("data", [object, str], ids=["objects", "fixed"])
def test_strings(data):
    x = np.array([["a", "b"], ["c", ""], ["longer", "ü"]], data)
    texts = value("x", object, 3, 2)
    nodes = [
        helper.make_node("ReverseSequence", ["x", "lens"], ["r"]),
        helper.make_node("Identity", ["r"], ["i"]),
        helper.make_node("Slice", ["i", "starts", "ends"], ["y"]),
    ]
    constants = {"lens": [3, 2], "starts": [1], "ends": [3]}
    arrays = {name: np.array(numbers) for name, numbers in constants.items()}
    given = model_of(nodes, [texts], [value("y", object, 2, 2)], arrays)
    (y,) = onnx_backend.run_model(given, [x])
    assert y.tolist() == [["c", "b"], ["a", "ü"]]


@pytest.mark.usefixtures("x32")
def test_full_width_whatever_the_flag():
    node = helper.make_node("Range", ["start", "limit", "delta"], ["y"])
    numbers = [np.array(n) for n in (2**60, 2**60 + 3, 1)]
    (y,) = onnx_backend.run_node(node, numbers)
    assert_same_bits(y, 2**60 + np.arange(3))
    assert not jax.config.jax_enable_x64


def test_constant_of_shape_keeps_bits():
    payload = np.array([0x7FA00001], np.uint32).view(np.float32)
    tensor = onnx.numpy_helper.from_array(payload)
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=tensor)
    with jax.debug_nans(True):  # they are data all the same
        (y,) = onnx_backend.run_node(node, [np.array([2, 3])])
    assert_same_bits(y, np.broadcast_to(payload, (2, 3)))


CASTS = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("to", [*CASTS, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("given", CASTS)
def test_cast(given, to):
    """Numbers that every type has, but halves for integers, which are cut."""
    x = np.array([0, 1, 2, 100, 7], given)
    if np.dtype(given).kind == "f":
        x = x + np.array([0, 0.5, 0.25, 0, 0.75], given)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    node = helper.make_node("Cast", ["x"], ["y"], to=kind)
    (y,) = onnx_backend.run_node(node, [x])
    graph = model_of([node], [value("x", given, 5)], [value("y", to, 5)])
    assert_same_bits(y, ReferenceEvaluator(graph).run(None, {"x": x})[0])
