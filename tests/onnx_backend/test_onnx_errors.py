"""What is wrong with an ONNX model or one of its nodes: one error, in one line.

Files that are no models are in test_onnx_command.py, and inputs that do not fit a model
in test_onnx_inputs.py.
"""

import re
from unittest import mock

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import (
    COPY,
    LENGTHS,
    ONE,
    ONLY,
    TEXTS,
    TWO,
    F,
    X,
    parse,
    prepared,
    require,
    rows,
)

from dml_jax import onnx_backend
from dml_jax.onnx_backend._operators import OPERATORS

# What a row of nodes may name in its inputs.
ARRAYS = {"np": np, "F": F, "X": X, "LENGTHS": LENGTHS, "ONE": ONE, "TWO": TWO}


def fail(message):
    raise ValueError(message)


@pytest.mark.parametrize(
    ("got", "message"), [("a\nb", "a"), ("a\nb", "a…"), ("a\nb", "a…b"), ("ab", "a")]
)
def test_the_comparison_itself(got, message):
    with pytest.raises(AssertionError):
        require(ValueError, message, lambda: fail(got))


# Models -------------------------------------------------------------------------------

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
$C local.f(x)} $OTHER Abs(p)} | Abs 'y'
$C Frob(x)} | Frob 'y'
$C org.bar.Slice(x)} | org.bar.Slice 'y'
@7 int64 s => int64[n] y {y = Range(s, s, s)} | Range 'y' of opset 7
@9 $R(x, l)} | ReverseSequence 'y' of opset 9
@8 $F(s)} | ConstantOfShape 'y' of opset 8
@0 $C $I} | Identity 'y' of opset 0
$C Upsample(x, x)} | Upsample 'y'
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
    values = eval(inputs, ARRAYS)
    require(error, f"{kind} 'y': {message}", lambda: model.run(values))


def test_a_node_is_named():
    model = prepared("float s => float[n] y {[first] y = Range(s, s, s)}")
    message = "Range 'first': `delta` must not be 0; got 0"
    require(ValueError, message, lambda: model.run([F(0)]))
