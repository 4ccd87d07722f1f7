"""Prepared ONNX models: run, transformed, exported, with defaults and static inputs."""

import copy
import pickle
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from assertions import assert_same_bits
from onnx import TensorProto, helper
from onnx_models import parse, prepared, require_same, runtime_session

from dml_jax import onnx_backend, reference

# Reverses frames up to a length each, and takes every second of the last three.
TEXT = """float[4,3,2] x, int64[3] lens => float[2,3,2] y {
  r = ReverseSequence(x, lens)
  y = Slice(r, starts, ends, axes, steps)
}"""
CONSTANTS: dict[str, Any] = {
    "starts": np.array([-1]),
    "ends": np.array([-4]),
    "axes": np.array([0]),
    "steps": np.array([-2]),
}
X = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
LENS = np.array([4, 2, 0])
ROW = np.array([0, 1, 2], np.float32)


def model() -> onnx.ModelProto:
    return parse(TEXT, **CONSTANTS)


def expected(x: np.ndarray, lens: np.ndarray) -> np.ndarray:
    r = reference.reverse_sequence(x, lens, batch_axis=1, time_axis=0)
    return r[:-4:-2]


def test_run_accepts_inputs_by_position_and_by_name() -> None:
    reversing = onnx_backend.prepare(model())
    assert (reversing.input_names, reversing.output_names) == (("x", "lens"), ("y",))
    inputs = [X, LENS], {"lens": LENS, "x": X}, (jnp.asarray(X), LENS)
    results: list[Any] = [*map(reversing.run, inputs), reversing.run(lens=LENS, x=X)]
    results += reversing.run([X], lens=LENS), reversing.run({"x": X}, lens=LENS)
    for outputs in results:
        assert isinstance(outputs.y, np.ndarray)
        assert_same_bits(outputs["y"], expected(X, LENS))
        assert_same_bits(outputs[0], expected(X, LENS))


def test_backend_interface() -> None:
    for device in ("CPU", "CPU:0"):
        assert onnx_backend.supports_device(device)
        (y,) = onnx_backend.run_model(model(), [X, LENS], device)
        assert_same_bits(y, expected(X, LENS))
    node = helper.make_node("Slice", ["x", "starts", "ends", "", "steps"], ["y"])
    (y,) = onnx_backend.run_node(node, [X, np.array([3]), np.array([0]), None, [-1]])
    assert_same_bits(y, X[3:0:-1])
    node = helper.make_node("Slice", ["x"], ["y"], starts=[1], ends=[-1])
    (y,) = onnx_backend.run_node(node, [X], opset_version=1)
    assert_same_bits(y, X[1:-1])
    assert onnx_backend.is_compatible(model())


def test_negative_sizes_are_unknown() -> None:
    """As in ONNX Runtime; older exports of Paddle declare a batch of -1."""
    source = parse("float[b,3] x => float[b,3] y {z = Neg(x) y = Softmax(z)}")
    graph = source.graph
    graph.value_info.append(helper.make_tensor_value_info("z", 1, [-1, 3]))
    for info in (*graph.input, *graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    softmax, session = onnx_backend.prepare(source), runtime_session(source)
    for x in (X[0], X.reshape(8, 3)[:5] / 5):
        x = x.reshape(-1, 3)
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_allclose(softmax.run([x]).y, wanted, 1e-6)  # type: ignore
    with pytest.raises(ValueError, match=r"`x` must have shape \(\?, 3\); got \(3, 2"):
        softmax.run([X[0, :, :]])
    assert softmax.to_onnx({}) == source


def test_a_prepared_model_does_not_change_with_its_source() -> None:
    source = parse("float[3] x => float[3] y {y = Cast<to = 1>(x)}")
    casting = onnx_backend.prepare(source)
    source.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    source.graph.node[0].attribute[0].i = TensorProto.INT64
    assert_same_bits(casting.run([ROW])[0], ROW)


# Transformations ----------------------------------------------------------------------


def test_vmap() -> None:
    batch, lens = np.stack([X, -X]), np.array([[1, 2, 3], [4, 4, 4]])
    with jax.enable_x64(True):
        (y,) = jax.vmap(onnx_backend.prepare(model()).jax_fn)(batch, lens)
    assert_same_bits(y, np.stack(list(map(expected, batch, lens))))


# Values that determine shapes ---------------------------------------------------------


@pytest.mark.parametrize("x64", [False, True])
def test_strings_beside_a_jitted_path(x64: bool) -> None:
    text = (
        "@9 float[3] x => float[3] y "
        "{t = Slice<starts = [0], ends = [1]>(w) y = Identity(x)}"
    )
    with jax.enable_x64(x64):
        (y,) = jax.jit(prepared(text, w=np.array(["a", "b"], object)).jax_fn)(ROW)
    assert_same_bits(y, ROW)


# Defaults -----------------------------------------------------------------------------

A, B, C, D = (np.array(row, np.float32) for row in ([1, 2], [3, 4], [5, 6], [7, 8]))
DEFAULTS = (
    "float[2] a, float[2] x, float[2] b => float[2] i, float[2] j, float[2] k "
    "{i = Identity(a) j = Identity(x) k = Identity(b)}"
)
BOTH = {"a": B, "b": C}
# Initializers, inputs by position and by name, and the outputs.
GIVEN: list[tuple[dict[str, Any], list[Any], dict[str, Any], list[Any]]] = [
    ({}, [A, B, C], {}, [A, B, C]),
    ({}, [A, B], {"b": C}, [A, B, C]),
    ({}, [A], {"x": B, "b": C}, [A, B, C]),
    ({}, [], {"b": C, "x": B, "a": A}, [A, B, C]),
    ({"a": A}, [B, C], {}, [A, B, C]),
    ({"a": A}, [B, C], {"a": D}, [D, B, C]),
    ({"a": A}, [D, B, C], {}, [D, B, C]),
    ({"a": A}, [B], {"b": C}, [A, B, C]),
    (BOTH, [A], {}, [B, A, C]),
    (BOTH, [D, A], {}, [D, A, C]),
    (BOTH, [D, A, B], {}, [D, A, B]),
]


@pytest.mark.parametrize(("constants", "args", "named", "wanted"), GIVEN)
def test_inputs_override_defaults(
    constants: Any, args: Any, named: Any, wanted: Any
) -> None:
    source = parse(DEFAULTS, **constants)
    copying = onnx_backend.prepare(source)
    assert copying.input_names == tuple(n for n in "axb" if n not in constants)
    assert copying.default_names == tuple(constants)
    outputs = dict(zip("axb", wanted, strict=True))
    feeds = {n: x for n, x in outputs.items() if constants.get(n) is not x}
    for found in (
        copying.jax_fn(*args, **named),
        jax.jit(copying.jax_fn)(*args, **named),
        copying.run(feeds),
        runtime_session(source).run(None, feeds),
        *([] if named else [copying.run(args), onnx_backend.run_model(source, args)]),
    ):
        require_same(found, wanted)


@pytest.mark.parametrize("ir", [3, 4])
def test_before_version_4_of_the_ir_initializers_are_constants(ir: int) -> None:
    source = parse(DEFAULTS, ir=ir, b=C, a=B)
    copying = onnx_backend.prepare(source)
    assert copying.default_names == (("a", "b") if ir == 4 else ())
    overridable = runtime_session(source).get_overridable_initializers()
    assert {value.name for value in overridable} == set(copying.default_names)
    for inputs in ({"x": A, "a": D}, [D, A]):
        if ir == 3:
            with pytest.raises(
                TypeError, match=r"^onnx: `inputs` must be arrays for x;"
            ):
                copying.run(inputs)
    assert [y.tolist() for y in copying.run([A])] == [[3, 4], [1, 2], [5, 6]]


def test_defaults_that_shapes_depend_on() -> None:
    text = "float[4] x, int64[1] s, int64[1] e => float[n] y {y = Slice(x, s, e)}"
    slicing = prepared(text, s=np.array([0]), e=np.array([4]))
    assert slicing.static_names == ("s", "e")
    x = np.arange(4, dtype=np.float32)
    assert slicing.run([x])[0].tolist() == [0, 1, 2, 3]
    assert slicing.run([x, np.array([1])])[0].tolist() == [1, 2, 3]
    assert slicing.run({"x": x, "e": np.array([-1])})[0].tolist() == [0, 1, 2]
    y = jax.jit(lambda x: slicing.jax_fn(x, np.array([2]))[0])(x)
    assert y.tolist() == [2, 3]


def scale(attributes: Any, x: Any) -> Any:
    return attributes["factor"] * x


def test_pickles_and_copies() -> None:
    """A pickle has what `prepare` was given; a copy, also of what has it, is itself."""
    text = "float[3,2] x => float[3,2] y {s = com.foo.Scale<factor = 2.0>(x) "
    source = parse(text + "y = ReverseSequence(s, n)}", n=np.array([3, 2]))
    options: Any = dict(training=True, lda_coeff=0.5, operators={"Scale": scale})
    model, x = onnx_backend.prepare(source, "CPU:0", **options), np.ones((3, 2), "f")
    again = pickle.loads(pickle.dumps(model))
    assert again.to_onnx({}) == source
    assert again.device == model.device
    gradients = [
        jax.grad(lambda x, fn=each.jax_fn: fn(x)[0].sum())(x) for each in (model, again)
    ]
    require_same(gradients, [2 * 0.5 * x] * 2)  # by the factor and the coefficient
    assert copy.copy(model) is model
    assert copy.deepcopy({"model": model})["model"] is model
