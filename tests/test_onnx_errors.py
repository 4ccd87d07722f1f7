"""What is wrong with an ONNX model or its inputs: one error, in one line.

A model is written in ONNX's textual syntax, where @ and a number set the version of the
operators, and $ and a name stand for the text of that name below. A message is compared
whole; each … in it stands for words that are ONNX's, protobuf's or NumPy's. Files that
are no models are in test_onnx_command.py.
"""

import contextlib
import math
import re
import string
import tempfile
import warnings
from unittest import mock

import hypothesis
import jax
import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper

import dml_jax
from dml_jax import onnx_backend
from dml_jax._onnx_operators import OPERATORS

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LENGTHS = np.array([1, 2, 3, 0])
ONE, TWO = np.array([0]), np.array([0, 0])
F = np.float32
NEWEST = onnx.defs.onnx_opset_version()
LOCAL = '<domain: "local", opset_import: ["": 25]> f (p) => (q) {q ='
OTHER = LOCAL.replace("25", "13")
COPY = "float[3] x => float[3] y {y = Identity(x)}"
REVERSAL = "float[3,b] x, int64[4] l => float[3,b] y {y = ReverseSequence(x, l)}"
SLICE = "float[p,q] x, int64[n] s => float[u,v] y {y = Slice"
FILL = "int64[n] s => float[m] y {y = ConstantOfShape"
TEXTS = {
    **{"C": "float[3] x => float[3] y {y =", "R": REVERSAL[:-7], "S": SLICE},
    **{"F": FILL, "LOCAL": LOCAL, "OTHER": OTHER, "I": "Identity(x)"},
    "S4": "float[p,q] x, int64[i] s, int64[j] e, int64[k] a, int64[l] t => "
    "float[u,v] y {y = Slice(x, s, e, a, t)}",
    "G": "float s, float l, float d => float[n] y {y = Range",
    "MOST": "`sizes` must have at most 2^48 elements; got 1152921504606846976",
    "EQUALLY": "`starts`, `ends`, `axes` and `steps` must be equally long; got",
    "CASTS": "Cast must not be from or to strings or float8_e8m0fnu; got",
    "LENGTH": "Value must be in range [0,3]",
    "AXES": "reverse_sequence: `batch_axis` and `time_axis` must be 0 and 1 or 1 and "
    "0; got",
    "ANY": "`reverse_subsequences` takes any axis",
}


def parse(text, opset=25, ir=10):
    """A model; all domains but ONNX's are of version 1."""
    if text.startswith("@"):
        opset, text = text[1:].split(maxsplit=1)
    signature, body = text.split("{", 1)
    inputs, outputs = signature.split("=>")
    imports = ", ".join(f'"{d}": 1' for d in ("ai.onnx.ml", "com.foo", "local"))
    head = f'<ir_version: {ir}, opset_import: ["": {opset}, {imports}]>'
    return onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{{body}")


def prepared(text, options=(), **versions):
    return onnx_backend.prepare(parse(text, **versions), **dict(options))


def require(error, message, call):
    """Exactly the error, in one line."""
    with pytest.raises(error) as raised:  # and warnings are errors, too
        call()
    assert raised.type is error
    pattern = ".*".join(map(re.escape, message.split("…")))
    assert re.fullmatch(pattern, str(raised.value)), str(raised.value)


def fail(message):
    raise ValueError(message)


@pytest.mark.parametrize(
    ("got", "message"), [("a\nb", "a"), ("a\nb", "a…"), ("a\nb", "a…b"), ("ab", "a")]
)
def test_the_comparison_itself(got, message):
    with pytest.raises(AssertionError):
        require(ValueError, message, lambda: fail(got))


def rows(text):
    """Its rows, of which the second column is a message and may take more lines."""
    joined = string.Template(text.replace("\n  ", " ")).substitute(TEXTS)
    return [tuple(row.split(" | ")) for row in joined.strip().splitlines()]


# Models -------------------------------------------------------------------------------

ONLY = (
    "onnx: the model must be of tensors and ReverseSequence, Slice, Range, "
    "ConstantOfShape, Constant, Identity, Cast; got "
)
UNSUPPORTED = rows(r"""
float[3] x => float[a] y {[n1] a = Abs(x) b = Identity(a) c, d = Split(b)
  [n2] y = Neg(d)} | Abs 'n1', Split 'c, d', Neg 'n2'
$C com.foo.Slice(x)} | com.foo.Slice 'y'
$C ai.onnx.ml.Binarizer(x)} | ai.onnx.ml.Binarizer 'y'
@7 $C Upsample<scales = [1.]>(x)} | Upsample 'y'
bool c, $C If (c) <then_branch = g () => (float[3] a) {a = $I}, else_branch = h () =>
  (float[3] b) {b = $I}>} | If 'y'
int64 n, $C Loop (n, , x) <body = g (int64 i, bool c, float[3] p) =>
  (bool d, float[3] q) {d = Identity(c) q = Identity(p)}>} | Loop 'y'
seq(float[3]) x, int64 i => float[3] y {y = SequenceAt(x, i)} |
  SequenceAt 'y', 'x', which is not a tensor
seq(float[3]) x => seq(float[3]) y {y = $I} |
  'x', which is not a tensor, 'y', which is not a tensor
optional(float[3]) x => optional(float[3]) y {y = $I} |
  'x', which is not a tensor, 'y', which is not a tensor
sparse_tensor(float[3]) x => sparse_tensor(float[3]) y {y = $I} |
  'x', which is not a tensor, 'y', which is not a tensor
$C local.f(x)} $LOCAL Abs(p)} | Abs 'y'
$C local.f(x)} $OTHER Abs(p)} | local.f 'y'
$C Frob(x)} | Frob 'y'
$C org.bar.Slice(x)} | org.bar.Slice 'y'
@7 int64 s => int64[n] y {y = Range(s, s, s)} | Range 'y' of opset 7
@9 $R(x, l)} | ReverseSequence 'y' of opset 9
@8 $F(s)} | ConstantOfShape 'y' of opset 8
@0 $C $I} | Identity 'y' of opset 0
$C Upsample(x, x)} | Upsample 'y'
$C local.f(x)} $OTHER Identity(p)} | local.f 'y'
""")


@pytest.mark.parametrize(("text", "got"), UNSUPPORTED)
def test_unsupported(text, got):
    model = parse(text)
    require(NotImplementedError, ONLY + got, lambda: onnx_backend.prepare(model))
    assert not onnx_backend.is_compatible(model)


def test_sparse():
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [2.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [1])
    sparse = helper.make_sparse_tensor(values, indices, [3])
    model = parse("=> float[3] y {y = Constant<value_ints = [1]>()}")
    attribute = helper.make_attribute("sparse_value", sparse)
    model.graph.node[0].attribute[0].CopyFrom(attribute)
    message = ONLY + "Constant 'y' with a sparse value"
    require(NotImplementedError, message, lambda: onnx_backend.prepare(model))
    model = parse("=> float[3] y {y = Identity(s)}")
    model.graph.sparse_initializer.append(sparse)
    message = ONLY + "sparse initializers"
    require(NotImplementedError, message, lambda: onnx_backend.prepare(model))


def test_versions_of_operators_to_come():
    of_today = OPERATORS["Identity"]._replace(versions=frozenset({24}))
    with mock.patch.dict(OPERATORS, Identity=of_today):
        message = ONLY + "Identity 'y' of opset 25"
        require(NotImplementedError, message, lambda: prepared(COPY))
        prepared(COPY, opset=24)


INVALID = rows(r"""
$C Identity(z)} | …sorted…'z'…
float[3] x => float[3] y {z = $I} | …'y'…
$C Identity(a) a = Identity(y)} | …sorted…'a'…
$C Identity(a) a = $I} | …sorted…'a'…
$C $I y = $I} | …'y'…
float[3] x, float[3] x => float[3] x {} | …'x'…
float[3] x => float[3] x {x = $I} | …'x'…
float[3] x => int32[3] y {y = $I} | …(1) vs (6)
float[3] x => float[4] y {y = $I} | …(3) vs (4)
float[3] x => float[3,3] y {y = $I} | …rank: (1) vs (2)
$C Identity(x, x)} | …size 2…
$C Slice(x)} | …size 1…
$C Identity<foo = 1>(x)} | …foo…
$R<time_axis = "a">(x, l)} | …time_axis…INT…STRING…
$C Cast(x)} | …'to'…
=> int64 y {y = Constant<value_int = 1, value_int = 2>()} | …value_int…
=> float[3] y {y = Constant()} | …value…
=> float y {y = Constant<value_int = 1, value_float = 2.>()} | …value…
$C local.f(x)} $LOCAL local.f(p)} | …local::f…
float[3] x, int64[3] l => float[3] y {y = ReverseSequence(x, l)} | …rank >= 2
float[3,b] x, int64[4,1] l => float[3,b] y {y = ReverseSequence(x, l)} | …rank of 1
float[3,b] x, int32[4] l => float[3,b] y {y = ReverseSequence(x, l)} | …(int32)
float[p,q] x, float[n] s => float[u,v] y {y = Slice(x, s, s)} | …(float)
float[3] x => float[u] y {s = Constant<value_ints = [5]>() y = Slice(x, s, s, s)}
  | …axis value: 5…
float[3] x => float[u] y {s = Constant<value_ints = [0]>() y = Slice(x, s, s, s, s)}
  | …'step' cannot be 0…
float[3] x => float[u] y {s = Constant<value_ints = [0, 0]>() y = Slice(x, s, s, s)}
  | …Axis 0…
@9 $S<ends = [1]>(x)} | …'starts'…
@9 $S<starts = [0, 1], ends = [1]>(x)} | …starts…
float s, double d => float[n] y {y = Range(s, s, d)} | …double…
int64[n,m] s => float[m] y {y = ConstantOfShape(s)} | …1D…
=> float[n] y {s = Constant<value_ints = [-3]>() y = ConstantOfShape(s)} | …negative…
int64[n] s => string[m] y {y = ConstantOfShape<value: tensor = string[1] {"a"}>(s)}
  | …(string)
$F<value: tensor = float {2}>(s)} | …one-dim…
$C Cast<to = 99>(x)} | …Cast…
float[3] x => complex64[3] y {y = Cast<to = 14>(x)} | …(complex64)
""")


@pytest.mark.parametrize(("text", "said"), INVALID)
def test_invalid(text, said):
    model = parse(text)
    require(ValueError, "onnx: " + said, lambda: onnx_backend.prepare(model))
    assert not onnx_backend.is_compatible(model)


EDITS = rows(r"""
m.ir_version = 99 | …99…
m.ir_version = 0 | …ir_version…
m.ClearField('opset_import') | …opset_import…
m.ClearField('graph') | …'graph'…
g.node[0].ClearField('output') | …output size 0…
g.node[0].output[0] = '' | …output 0…
g.node[0].output.append('z') | …output size 2…
g.node[0].input[0] = '' | …input 0…
g.output[0].ClearField('type') | …'type'…
g.output[0].type.tensor_type.ClearField('shape') | …'shape'…
w.ClearField('float_data'); w.raw_data = b'123' | …w…3 bytes…
w.float_data.pop() | …w…(3)…
w.ClearField('float_data') | …w…
w.raw_data = bytes(16) | …w…
w.dims[0] = -4 | …w…
w.dims[0] = 2**62 | …w…4611686018427387904…
w.data_type = 0 | …w…
w.data_type = 99 | …w…99
w.data_type = 6 | …'6'…float_data…
g.initializer.append(w) | …w…
w.ClearField('float_data'); w.data_location = 1 | …w…
""")


def with_an_initializer():
    model = parse("=> float[4] y {y = Identity(w)}")
    numbers = helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4])
    model.graph.initializer.append(numbers)
    return model


@pytest.mark.parametrize(("edit", "said"), EDITS)
def test_invalid_objects(edit, said):
    model = with_an_initializer()
    exec(edit, {"m": model, "g": model.graph, "w": model.graph.initializer[0]})
    require(ValueError, "onnx: " + said, lambda: onnx_backend.prepare(model))


# Nodes --------------------------------------------------------------------------------

NODES = rows(r"""
$R(x, l)} | X, LENGTHS + 1 | Invalid sequence length: 4. $LENGTH
$R(x, l)} | X, -LENGTHS | Invalid sequence length: -1. $LENGTH
$R(x, l)} | X, LENGTHS + 2**40 | Invalid sequence length: 1099511627777. $LENGTH
float[3,4] x, int64[n] l => float[3,4] y {y = ReverseSequence(x, l)} | X, LENGTHS[1:] |
  reverse_sequence: `sequence_lens` must have shape (4,), the size of `input` along
  batch_axis=1; got (3,)
$R<time_axis = 1>(x, l)} | X, LENGTHS | $AXES 1 and 1. $ANY
$R<batch_axis = 0>(x, l)} | X, LENGTHS | $AXES 0 and 0. $ANY
$R<batch_axis = 2, time_axis = 1>(x, l)} | X, LENGTHS | $AXES 2 and 1. $ANY
$R<batch_axis = 0, time_axis = 2>(x, l)} | X, LENGTHS | $AXES 0 and 2. $ANY
$R<batch_axis = 0, time_axis = -1>(x, l)} | X, LENGTHS | $AXES 0 and -1. $ANY
$R<batch_axis = -1, time_axis = 0>(x, l)} | X, LENGTHS | $AXES -1 and 0. $ANY
$S(x, s, s, s)} | X, TWO | `axes` must name each axis once; got 0 twice
$S4 | X, TWO, TWO, TWO - [1, -1], TWO + 1 |
  `axes` must name each axis once; got 1 twice
@9 $S<starts = [0, 0], ends = [1, 1], axes = [0, 0]>(x)} | X, ONE |
  `axes` must name each axis once; got 0 twice
$S4 | X, ONE, ONE, ONE + 2, ONE + 1 | `axes` must be in [-2, 2); got 2
@10 $S4 | X, ONE, ONE, ONE - 3, ONE + 1 | `axes` must be in [-2, 2); got -3
@9 $S<starts = [0], ends = [1], axes = [4]>(x)} | X, ONE |
  `axes` must be in [-2, 2); got 4
$S(x, s, s)} | X, LENGTHS | `axes` must be in [-2, 2); got 2
$S4 | X, ONE, ONE, ONE, ONE | `steps` must not be 0; got 0
$S4 | X, TWO, ONE, ONE, ONE | $EQUALLY 2, 1, 1 and 1
$S4 | X, ONE, TWO, ONE, ONE | $EQUALLY 1, 2, 1 and 1
$S4 | X, ONE, ONE, TWO, ONE | $EQUALLY 1, 1, 2 and 1
$S4 | X, ONE, ONE, ONE, TWO | $EQUALLY 1, 1, 1 and 2
float[3,4] x, int64 s => float[u,v] y {y = Slice(x, s, s)} | X, np.int64(0) |
  `starts` must have one dimension; got 0
float[3,4] x, int64[n,m] s => float[u,v] y {y = Slice(x, s, s)} | X, TWO[None] |
  `starts` must have one dimension; got 2
$G(s, l, d)} | F(1), F(5), F(0) | `delta` must not be 0; got 0
$G(s, l, d)} | F("nan"), F(5), F(1) | `start` must be finite; got nan
$G(s, l, d)} | F(0), F("-inf"), F(1) | `limit` must be finite; got -inf
$G(s, l, d)} | F(0), F(1), F("inf") | `delta` must be finite; got inf
$G(s, l, d)} | F(0), F(2**60), F(1) | fill_value_sequence: $MOST
int16 s => int16[n] y {y = Range(s, s, s)} | np.int16(0), | `delta` must not be 0; got 0
float s, float[n] l => float[m] y {y = Range(s, l, s)} | F(1), X[0] |
  `limit` must be a scalar; got shape (4,)
@28 $G<stash_type = 7>(s, l, d)} | F(1), F(1), F(1) |
  `stash_type` must be 1 (FLOAT) or 11 (DOUBLE); got 7
$F(s)} | ONE - 1, | fill_value_constant: `sizes[0]` must be at least 0; got -1
$F(s)} | ONE + 2**60, | fill_value_constant: $MOST
$F<value: tensor = float[2] {1, 2}>(s)} | ONE, | `value` must have one element; got 2
$F<value: tensor = float[0] {}>(s)} | ONE, | `value` must have one element; got 0
float[3] x => string[3] y {y = Cast<to = 8>(x)} | X[:, 0], | $CASTS float32 to object
string[n] x => float[n] y {y = Cast<to = 1>(x)} | np.array(["1"], object), |
  $CASTS object to float32
float[3] x => float8e8m0[3] y {y = Cast<to = 24>(x)} | X[:, 0], |
  $CASTS float32 to float8_e8m0fnu
@1 $C Cast<to = "FLOTE">(x)} | X[:, 0], | …FLOTE…
""")


@pytest.mark.parametrize(("text", "inputs", "message"), NODES)
def test_nodes(text, inputs, message):
    model = prepared(text)
    kind = re.search(r"y = (\w+)", text)[1]
    error = NotImplementedError if message.startswith(TEXTS["CASTS"]) else ValueError
    values = eval(inputs)
    require(error, f"{kind} 'y': {message}", lambda: model.run(values))


def test_a_node_is_named():
    model = prepared("float s => float[n] y {[first] y = Range(s, s, s)}")
    message = "Range 'first': `delta` must not be 0; got 0"
    require(ValueError, message, lambda: model.run([F(0)]))


# Inputs -------------------------------------------------------------------------------

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


@pytest.mark.parametrize(("text", "message"), WIDE)
def test_64_bits_without_64_bit_mode(text, message):
    message = message.replace("WIDE", NEEDS_X64.format("int64"))
    model, values = prepared(text), np.arange(3)
    require(ValueError, message, lambda: model.jax_fn(values))
    assert model.run([values])[0].dtype == np.int64
    with jax.enable_x64(True):
        assert model.jax_fn(values)[0].dtype == np.int64


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


# Fuzzing ------------------------------------------------------------------------------

REFUSALS = (ValueError, TypeError, OverflowError, NotImplementedError)
VALUES = {"x": X, "l": LENGTHS, "s": ONE, "f": F(2), "i": np.int32(3)}


def require_result_or_refusal(load):
    """One or the other, in seconds and in little memory."""

    def small(fill):
        def call(sizes, *arguments):
            if math.prod(sizes) > 2**20:
                raise OverflowError("too large for a test")
            return fill(sizes, *arguments)

        return call

    fills = ("fill_value_constant", "fill_value_sequence")
    patches = {name: small(getattr(dml_jax, name)) for name in fills}
    with warnings.catch_warnings(), mock.patch.multiple(dml_jax, **patches):
        warnings.simplefilter("ignore")
        try:
            model = onnx_backend.prepare(load())
            outputs = model.run([VALUES.get(name, X) for name in model.input_names])
        except REFUSALS as error:
            hypothesis.event(type(error).__name__)
        else:
            assert len(outputs) == len(model.output_names)
            hypothesis.event("result")


BASE = """float[3,b] x, int64[4] l, int64[n] s, float f => float[c,d] y, float[i] r,
bfloat16[j] o, string[1] t {e = Constant<value_ints = [3]>() z = Slice(x, s, e, s, e)
y = ReverseSequence<time_axis = 0>(x, l) r = Range(f, f, f) q = Cast<to = 10>(z)
o = ConstantOfShape<value: tensor = bfloat16[1] {1}>(e)
t = Constant<value: tensor = string[1] {"a"}>()}"""
DATA = parse(BASE).SerializeToString()
ONE_BYTE = st.tuples(st.just(1), st.binary(min_size=1, max_size=1))
CHANGE = ONE_BYTE | st.tuples(st.integers(0, 3), st.binary(max_size=3))
CHANGES = st.lists(st.tuples(st.integers(0, len(DATA)), CHANGE), min_size=1, max_size=4)


@hypothesis.settings(deadline=10_000)
@hypothesis.given(CHANGES)
def test_any_bytes(edits):
    data = DATA
    for start, (length, piece) in edits:
        data = data[:start] + piece + data[start + length :]
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(data)
        file.flush()
        require_result_or_refusal(lambda: onnx_backend.load_model(file.name))


TYPES = {
    "x": "float[3,b]",
    "l": "int64[4]",
    "s": "int64[n]",
    "f": "float",
    "i": "int32",
}
NUMBERS = st.integers(-3, 30) | st.sampled_from([2**31, 2**63 - 1, -(2**63)])
TENSORS = st.builds(
    lambda kind, dims: helper.make_tensor("v", kind, dims, [3]),
    st.sampled_from([1, 7, 10, 16]),
    st.sampled_from([[], [1], [1, 1]]),
)
VALUE = NUMBERS | st.lists(NUMBERS, min_size=1, max_size=3) | TENSORS
VALUE |= st.sampled_from([0.5, "a", b"\xff", "FLOAT", ["b", "c"]])
MEMBERS = {
    "ReverseSequence": "batch_axis time_axis",
    "Slice": "starts ends axes",
    "Range": "stash_type",
    "ConstantOfShape": "value",
    "Constant": "value value_int value_ints value_string",
    "Cast": "to saturate",
}
SEEDS = st.sampled_from(
    [
        ("ReverseSequence", "xl", {}),
        ("Slice", "xss", {}),
        ("Slice", "xssss", {}),
        ("Slice", "x", {"starts": [0], "ends": [-1]}),
        ("Range", "fff", {}),
        ("ConstantOfShape", "s", {}),
        ("Constant", "", {"value_ints": [1]}),
        ("Identity", "a", {}),
        ("Cast", "x", {"to": 10}),
        ("Abs", "x", {}),
    ]
)


@st.composite
def nodes(draw, names):
    """Nodes that are often valid: one each for the names."""
    result = []
    for name in names:
        kind, inputs, members = draw(SEEDS)
        inputs = list(inputs)
        if inputs and draw(st.booleans()):
            changed = draw(st.integers(0, len(inputs) - 1))
            inputs[changed] = draw(st.sampled_from([*TYPES, *names, ""]))
        if draw(st.booleans()):
            member = st.sampled_from(MEMBERS.get(kind, "foo").split())
            members = {**members, draw(member): draw(VALUE)}
        result.append(helper.make_node(kind, inputs, [name], **members))
    return result


@hypothesis.settings(deadline=10_000)
@hypothesis.given(
    nodes("a") | nodes("ab"),
    st.sampled_from([9, 13, 25, NEWEST]) | st.integers(1, NEWEST),
)
def test_any_graphs(nodes, opset):
    inputs = ", ".join(f"{kind} {name}" for name, kind in TYPES.items())
    model = parse(f"{inputs} => float z {{}}", opset=opset)
    model.graph.node.extend(nodes)
    with contextlib.suppress(onnx.shape_inference.InferenceError, ValueError):
        output = helper.make_empty_tensor_value_info(nodes[-1].output[0])
        model.graph.output[0].CopyFrom(output)
        model = onnx.shape_inference.infer_shapes(model)
    require_result_or_refusal(lambda: model)
