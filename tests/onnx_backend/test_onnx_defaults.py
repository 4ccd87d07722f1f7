"""Inputs of ONNX graphs that are initialised: defaults, or constants before IR 4."""

import contextlib
import io

import jax
import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from assertions import assert_same_bits
from onnx import numpy_helper
from onnx_models import parse, require

from dml_jax import cli, onnx_backend

X, A, B = (np.array(row, np.float32) for row in ([1, 2], [3, 4], [5, 6]))
OTHER = np.array([7, 8], np.float32)
TEXT = (
    "float[2] a, float[2] x, float[2] b => float[2] i, float[2] j, float[2] k "
    "{i = Identity(a) j = Identity(x) k = Identity(b)}"
)
RULE = "onnx: `inputs` must be arrays for x, and may be for a, b; got "


def initialised(text, arrays, ir=10):
    model = parse(text, ir=ir)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def model_of(ir=10):
    return initialised(TEXT, {"b": B, "a": A}, ir)


GIVEN = [  # by position and by name, and the outputs
    ([X], {"x": X}, [A, X, B]),
    ([OTHER, X], {"a": OTHER, "x": X}, [OTHER, X, B]),
    ([OTHER, X, A], {"b": A, "x": X, "a": OTHER}, [OTHER, X, A]),
]


@pytest.mark.parametrize(("inputs", "named", "expected"), GIVEN)
def test_defaults_are_overridden(inputs, named, expected):
    model = onnx_backend.prepare(model_of())
    assert (model.input_names, model.default_names) == (("x",), ("a", "b"))
    session = onnxruntime.InferenceSession(
        model_of().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for outputs in (
        model.run(inputs),
        model.run(named),
        model.jax_fn(*inputs),
        jax.jit(model.jax_fn)(*inputs),
        session.run(None, named),
        onnx_backend.run_model(model_of(), inputs),
    ):
        for actual, wanted in zip(outputs, expected, strict=True):
            assert_same_bits(np.asarray(actual), wanted)
    assert model.run({"x": X, "b": X}).k.tolist() == [1, 2]
    assert model.run([X]).k.tolist() == [5, 6]


@pytest.mark.parametrize("ir", [3, 4])
def test_before_version_4_of_the_ir_they_are_constants(ir):
    model = onnx_backend.prepare(model_of(ir))
    assert model.default_names == (("a", "b") if ir == 4 else ())
    session = onnxruntime.InferenceSession(
        model_of(ir).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_overridable_initializers()]
    assert set(names) == set(model.default_names)
    if ir == 3:
        message = "onnx: `inputs` must be arrays for x; got "
        require(TypeError, f"{message}x, a", lambda: model.run({"x": X, "a": OTHER}))
        require(TypeError, f"{message}2 of them", lambda: model.jax_fn(OTHER, X))
    assert [y.tolist() for y in model.run([X])] == [[3, 4], [1, 2], [5, 6]]


WRONG = [
    ({"a": X}, TypeError, RULE + "a"),
    ({"x": X, "c": X}, TypeError, RULE + "x, c"),
    ({}, TypeError, RULE + "none"),
    ([], TypeError, RULE + "0 of them"),
    ([X] * 4, TypeError, RULE + "4 of them"),
    ({"x": X, "a": X[:1]}, ValueError, "onnx: `a` must have shape (2); got (1,)"),
    ({"x": X, "a": X.astype(int)}, TypeError, "onnx: `a` must have dtype float32; got "
     "int64"),
    ([None, X], TypeError, "onnx: `a` must have dtype float32; got object"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "error", "message"), WRONG)
def test_wrong_inputs(inputs, error, message):
    model = onnx_backend.prepare(model_of())
    require(error, message, lambda: model.run(inputs))
    if isinstance(inputs, list):
        require(error, message, lambda: model.jax_fn(*inputs))


def test_defaults_that_shapes_depend_on():
    text = "float[4] x, int64[1] s, int64[1] e => float[n] y {y = Slice(x, s, e)}"
    zero, four = np.array([0]), np.array([4])
    model = onnx_backend.prepare(initialised(text, {"s": zero, "e": four}))
    assert model.static_names == ("s", "e")
    x = np.arange(4, dtype=np.float32)
    assert model.run([x]).y.tolist() == [0, 1, 2, 3]
    assert model.run([x, np.array([1])]).y.tolist() == [1, 2, 3]
    assert model.run({"x": x, "e": np.array([-1])}).y.tolist() == [0, 1, 2]
    y = jax.jit(lambda x: model.jax_fn(x, np.array([2]))[0])(x)
    assert y.tolist() == [2, 3]
    message = "onnx: `s` must be a constant, since a shape depends on it; got traced …"
    require(TypeError, message, lambda: jax.jit(model.jax_fn)(x, zero))


def test_initializers_that_are_no_inputs_are_constants():
    model = initialised("float[2] x => float[2] y {y = Identity(w)}", {"w": A})
    model = onnx_backend.prepare(model)
    message = "onnx: `inputs` must be arrays for x; got x, w"
    require(TypeError, message, lambda: model.run({"x": X, "w": X}))


def command(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(["onnx", "m.onnx", *arguments])
    return status, out.getvalue(), err.getvalue()


def test_from_the_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("o.npy", OTHER)
    words = ("--input", "x=x.npy", "--output", "k=k.npy", "--output", "i=i.npy")
    (tmp_path / "m.onnx").write_bytes(model_of().SerializeToString())
    assert command(*words)[0] == 0
    assert (np.load("i.npy").tolist(), np.load("k.npy").tolist()) == ([3, 4], [5, 6])
    status, out, err = command(*words, "--input", "b=o.npy")
    assert (status, err) == (0, "")
    assert "Input 'b': float32[2]" in out
    assert (np.load("i.npy").tolist(), np.load("k.npy").tolist()) == ([3, 4], [7, 8])
    (tmp_path / "m.onnx").write_bytes(model_of(ir=3).SerializeToString())
    message = "dml_jax: onnx: `inputs` must be arrays for x; got x, b\n"
    assert command(*words, "--input", "b=o.npy")[::2] == (2, message)


def test_bfloat16_defaults_from_the_shell(tmp_path, monkeypatch):
    """NumPy's files have no name for them."""
    monkeypatch.chdir(tmp_path)
    numbers = X.astype(ml_dtypes.bfloat16)
    text = "bfloat16[2] w => bfloat16[2] y {y = Identity(w)}"
    model = initialised(text, {"w": numbers})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    np.save("w.npy", (2 * X).astype(ml_dtypes.bfloat16))
    status, out, _ = command("--input", "w=w.npy", "--output", "y=y.npy")
    assert (status, out.splitlines()[0]) == (0, "Input 'w': bfloat16[2]")
    assert np.load("y.npy").view(ml_dtypes.bfloat16).astype(int).tolist() == [2, 4]
