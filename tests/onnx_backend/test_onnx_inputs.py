"""What is wrong with the inputs of an ONNX model, and what one node takes."""

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx import helper
from onnx_models import (
    COPY,
    FILL,
    LENGTHS,
    ONE,
    ONLY,
    REVERSAL,
    SLICE,
    F,
    X,
    parse,
    prepared,
    require,
    rows,
)

from dml_jax import onnx_backend

COUNT = "onnx: `inputs` must be arrays for x, l; got "
INPUTS = [
    (
        [X.astype(int), LENGTHS],
        TypeError,
        "onnx: `x` must have dtype float32; got int64",
    ),
    ([X, X[0]], TypeError, "onnx: `l` must have dtype int64; got float32"),
    ([X, ["a"]], TypeError, "onnx: `l` must have dtype int64; got <U1"),
    ([None, LENGTHS], TypeError, "onnx: `x` must have dtype float32; got object"),
    ([X[1:], LENGTHS], ValueError, "onnx: `x` must have shape (3, ?); got (2, 4)"),
    ([X, LENGTHS[1:]], ValueError, "onnx: `l` must have shape (4); got (3,)"),
    ([X[0], LENGTHS], ValueError, "onnx: `x` must have shape (3, ?); got (4,)"),
    ([X], TypeError, COUNT + "1 of them"),
    ([X, LENGTHS, X], TypeError, COUNT + "3 of them"),
    (X, TypeError, COUNT + "float32 array of shape (3, 4)"),
    (None, TypeError, COUNT + "NoneType None"),
    ({}, TypeError, COUNT + "none"),
    ({1: X, "l": LENGTHS}, TypeError, COUNT + "1, l"),
    ({"x": X}, TypeError, COUNT + "x"),
    ({"l": LENGTHS, "z": X}, TypeError, COUNT + "l, z"),
    ({"x": X, "l": LENGTHS, "z": X}, TypeError, COUNT + "x, l, z"),
]


@pytest.mark.parametrize(("inputs", "error", "message"), INPUTS)
def test_inputs(inputs, error, message):
    model = prepared(REVERSAL)
    require(error, message, lambda: model.run(inputs))
    require(error, message, lambda: onnx_backend.run_model(parse(REVERSAL), inputs))
    if isinstance(inputs, list):  # jax_fn takes them one by one
        require(error, message, lambda: model.jax_fn(*inputs))


def test_inputs_of_a_model_without_any():
    model = prepared("=> float y {y = Constant<value_float = 1.>()}")
    message = "onnx: `inputs` must be arrays for none; got 1 of them"
    require(TypeError, message, lambda: model.run([X]))


def test_arguments_that_onnx_has():
    model = prepared(COPY)
    message = "run: `kwargs` must be none; got a, b"
    require(TypeError, message, lambda: model.run([X[:, 0]], a=1, b=2))
    message = "prepare: unknown options a, b"
    require(TypeError, message, lambda: prepared(COPY, options=dict(a=1, b=2)))


@pytest.mark.parametrize("device", ["FOO", "CPU:99", "CPU:-1", "CPU:x", "CPU:0:0", ""])
def test_devices(device):
    names = ", ".join(f"{d.platform.upper()}:{d.id}" for d in jax.devices())
    message = f"onnx: `device` must be one of CPU, {names}; got {device}"
    require(ValueError, message, lambda: prepared(COPY, options=dict(device=device)))
    assert not onnx_backend.supports_device(device)
    assert not onnx_backend.is_compatible(parse(COPY), device)


STATIC = (
    "onnx: `s` must be a constant, since a shape depends on it; got traced int{} array "
    "of shape {}. Close over it instead of passing it to the function that is "
    "transformed"
)
TRACED = {
    SLICE + "(x, s, s)}": (X, ONE),
    "float[3] x, int32[1] s => float[u] y {t = Identity(s) r = Cast<to = 7>(t) "
    "y = Slice(x, r, r)}": (X[:, 0], ONE.astype(np.int32)),
    FILL + "(s)}": (ONE,),
}


@pytest.mark.usefixtures("with_jit")
@pytest.mark.parametrize("text", TRACED)
def test_traced_inputs_that_shapes_depend_on(text, x64):
    *arrays, shape = TRACED[text]
    model = prepared(text)
    width = 64 if x64 and shape.dtype == np.int64 else 32
    for transform, values, got in [
        (jax.jit, [*arrays, shape], (1,)),
        (jax.vmap, [a[None] for a in [*arrays, shape]], (1,)),
    ]:
        call = transform(model.jax_fn)
        require(TypeError, STATIC.format(width, got), lambda c=call, v=values: c(*v))
    jax.jit(lambda *arrays: model.jax_fn(*arrays, shape))(*arrays)


NEEDS_X64 = (
    "has dtype {0}, which needs 64-bit mode; enable it with "
    "`jax.config.update('jax_enable_x64', True)` or inside "
    "`with jax.enable_x64(True):`, or cast to a narrower dtype than {0}"
)
WIDE = rows(r"""
int64[3] x => int64[3] y {y = Identity(x)} | jax_fn: `y` WIDE
int64[3] x => int64[2] y {y = Constant<value_ints = [1, 2]>()} | jax_fn: `y` WIDE
int64[3] x => int64[3] y {l = Constant<value_ints = [2]>() y = Identity(x)
  z = ConstantOfShape<value: tensor = int64[1] {1}>(l)} |
  ConstantOfShape 'z': fill_value_constant: `value_data_type` WIDE
int64[3] x => int64[n] y {l = Constant<value_int = 2>() y = Range(l, l, l)} |
  Range 'y': fill_value_sequence: `value_data_type` WIDE
@9 int64[n] x => int64[m] y {y = Slice<starts = [0], ends = [1]>(x)} |
  Slice 'y': slice1: `input` WIDE
""")


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(("text", "message"), WIDE)
def test_64_bits_without_64_bit_mode(text, message):
    message = message.replace("WIDE", NEEDS_X64.format("int64"))
    model, values = prepared(text), np.arange(3)
    require(ValueError, message, lambda: model.jax_fn(values))
    assert model.run([values])[0].dtype == np.int64
    with jax.enable_x64(True):
        assert model.jax_fn(values)[0].dtype == np.int64


MADE_WIDE = [  # a model, what it is given, and what it gives
    ("double[3] x => double[3] y {y = Identity(x)}", [0.1, 0.2, 1e300], [0.1, 0.2,
     1e300]),
    ("int64[2] x => int64[2] y {y = Identity(x)}", [2**40 + 1, -(2**63)], [2**40 + 1,
     -(2**63)]),
    ("double[3] x => double[n] y {a = Constant<value_ints = [-1]>() b = Constant<"
     "value_ints = [-9]>() y = Slice(x, a, b, , a)}", [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]),
    ("double[2,1] x => double[2,1] y {n = Constant<value_ints = [2]>() "
     "y = ReverseSequence(x, n)}", [[0.1], [0.2]], [[0.2], [0.1]]),
    ("double[2] x => float[2] y {y = Cast<to = 1>(x)}", [0.1, 0.2], [0.1, 0.2]),
    ("int64[1] x => int32[1] y {y = Cast<to = 6>(x)}", [2**40 + 3], [3]),
    ("int64[1] x => double[1] y {y = Cast<to = 11>(x)}", [2**40 + 3], [2.0**40 + 3]),
]  # fmt: skip


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize(("text", "given", "expected"), MADE_WIDE)
def test_arrays_that_were_made_in_64_bit_mode(text, given, expected):
    model = prepared(text)
    with jax.enable_x64(True):
        x = jax.numpy.asarray(given)
        inside = [model.jax_fn(x)[0], jax.jit(model.jax_fn)(x)[0]]
    assert x.dtype.itemsize == 8
    for y in (model.run([x]).y, model.run([given]).y, *inside):
        assert_same_bits(np.asarray(y), np.array(expected, y.dtype))
    message = f"… has dtype {x.dtype}, which needs 64-bit mode; …"
    if "<to = 11>" in text:
        message = "… has dtype float64, which needs 64-bit mode; …"
    require(ValueError, message, lambda: model.jax_fn(x))
    message = f"onnx: `x` has dtype {x.dtype}, which needs 64-bit mode; …"
    require(ValueError, message, lambda: jax.jit(model.jax_fn)(x))
    require(ValueError, message, lambda: jax.vmap(model.jax_fn)(x[None]))


@pytest.mark.usefixtures("x32", "with_jit")
def test_lengths_that_were_made_in_64_bit_mode():
    text = "float[3,2] x, int64[2] n => float[3,2] y {y = ReverseSequence(x, n)}"
    model, x = prepared(text), np.arange(6, dtype=np.float32).reshape(3, 2)
    with jax.enable_x64(True):
        lengths, beyond = jax.numpy.array([3, 2]), jax.numpy.array([3, 2**32 + 1])
    assert model.jax_fn(x, lengths)[0].tolist() == [[4, 3], [2, 1], [0, 5]]
    message = "ReverseSequence 'y': Invalid sequence length: 4294967297. Value must …"
    require(ValueError, message, lambda: model.jax_fn(x, beyond))
    require(ValueError, message, lambda: model.run([x, beyond]))
    message = "onnx: `n` has dtype int64, which needs 64-bit mode; …"
    require(ValueError, message, lambda: jax.jit(model.jax_fn)(x, lengths))


def test_text_is_not_for_jax():
    model = prepared("string[1] x => string[1] y {y = Identity(x)}")
    text = np.array(["a"], object)
    message = "jax_fn: `y` must have a dtype that JAX knows; got object"
    require(TypeError, message, lambda: model.jax_fn(text))
    assert model.run([text]).y.tolist() == ["a"]


# One node -----------------------------------------------------------------------------

ONE_NODE = [
    ("Abs", [X], {}, NotImplementedError, ONLY + "Abs 'y'"),
    ("ReverseSequence", [X[0], LENGTHS], {}, ValueError, "onnx: …rank >= 2"),
    ("ReverseSequence", [X, LENGTHS * F(1)], {}, ValueError, "onnx: …tensor(double)"),
    ("Cast", [X], {}, ValueError, "onnx: …"),
    ("Identity", [X], dict(device="X"), ValueError, "onnx: `device` must be …; got X"),
    ("Identity", [X], dict(a=1), TypeError, "prepare: unknown options a"),
    ("Range", [F(1), F(1), F(0)], {}, ValueError, "Range 'y': `delta` must not be 0; "
     "got 0"),
]  # fmt: skip


@pytest.mark.parametrize("row", ONE_NODE)
def test_one_node(row):
    kind, inputs, options, error, message = row
    node = helper.make_node(kind, "abc"[: len(inputs)], ["y"])
    require(error, message, lambda: onnx_backend.run_node(node, inputs, **options))


INLINED = rows(r"""
$C local.f(x)} $LOCAL Identity(p)} | [0, 4, 8]
$C local.f(x)} $LOCAL local.g(p)} <domain: "local", opset_import: ["": 25, "local": 1]>
  g (p) => (q) {a = Constant<value_ints = [-1]>() b = Constant<value_ints = [-9]>()
  q = Slice(p, a, b, , a)} | [8, 4, 0]
@28 $C Identity(x) z = Identity(x)} | [0, 4, 8]
""")


@pytest.mark.parametrize(("text", "expected"), INLINED)
def test_functions_are_inlined(text, expected):
    assert prepared(text).run([X[:, 0]]).y.tolist() == eval(expected)
    assert onnx_backend.is_compatible(parse(text), "CPU")
    assert onnx_backend.supports_device("CPU")
