"""Models that `prepare` refuses."""

import re
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import COPY, parse, prepared, require_error, rows

from dml_jax import onnx_backend
from dml_jax.onnx_backend import _validation

NEWEST = onnx.defs.onnx_opset_version()
ONLY = "onnx: the model must have only tensors and supported operators; got "
# What follows ONLY, and the operators for which functions can be passed.
UNSUPPORTED = rows(
    r"""
float[3] x => float[a] y {[n1] a = ImageDecoder(x) b = Identity(a) c, d = Blob(b)
  [n2] y = Blob(d)} |
  ImageDecoder 'n1', because decoding and regions of images are out of scope,
  Blob 'c, d', Blob 'n2' | ImageDecoder Blob
$unary com.foo.Slice(x)} | com.foo.Slice 'y' | Slice
@1 $unary Upsample<height_scale = 1.>(x)} | Upsample 'y' of opset 1 | Upsample
bool c, $unary If (c) <then_branch = g () => (float[3] a) {a = Blob(x)},
  else_branch = h () => (float[3] b) {b = Frob(x)}>} | Blob 'a', Frob 'b' | Blob Frob
seq(float[3]) x, int64 i => float[3] y {y = SequenceAt(x, i)} |
  'x', which is not a tensor | $$
sparse_tensor(float[3]) x => sparse_tensor(float[3]) y {y = Identity(x)} |
  'x', which is not a tensor, 'y', which is not a tensor | $$
$unary Frob(x)} | Frob 'y' | Frob
$unary com.microsoft.nchwc.Conv(x)} | com.microsoft.nchwc.Conv 'y', because its
  layout is one processor's; optimize at level EXTENDED | Conv
@7 int64 s => int64[n] y {y = Range(s, s, s)} | Range 'y' of opset 7 | Range
@9 $reverse(x, l)} | ReverseSequence 'y' of opset 9 | ReverseSequence
@8 $fill(s)} | ConstantOfShape 'y' of opset 8 | ConstantOfShape
@0 $unary Identity(x)} | Identity 'y' of opset 0 | Identity
$call 13$f Blob(p)} | Blob 'y' | Blob
$call 7$f Range(p, p, p)} | Range 'y' of opset 7 | Range
$call 0$f Identity(p)} | Identity 'y' of opset 0 | Identity
""",
)


def hint(kinds: str) -> str:
    if kinds == "$":
        return ""
    names = ", ".join(f"{kind!r}: function" for kind in kinds.split())
    return f". Functions for operators can be passed: operators={{{names}}}"


@pytest.mark.parametrize(("text", "got", "kinds"), UNSUPPORTED)
def test_unsupported(text: str, got: str, kinds: str) -> None:
    model = parse(text)
    message = re.escape(ONLY + got + hint(kinds)) + "$"
    require_error(NotImplementedError, message, onnx_backend.prepare, model)
    assert not onnx_backend.is_compatible(model)


def test_sparse_tensors() -> None:
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [2.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [1])
    sparse = helper.make_sparse_tensor(values, indices, [3])
    constant = parse("=> float[3] y {y = Constant<value_ints = [1]>()}")
    attribute = helper.make_attribute("sparse_value", sparse)
    constant.graph.node[0].attribute[0].CopyFrom(attribute)
    initializer = parse("=> float[3] y {y = Identity(s)}")
    initializer.graph.sparse_initializer.append(sparse)
    for model, got in (
        (constant, f"Constant 'y' with a sparse value{re.escape(hint('Constant'))}"),
        (initializer, "sparse initializers"),
    ):
        message = f"onnx: .*; got {got}$"
        require_error(NotImplementedError, message, onnx_backend.prepare, model)


def test_future_versions_of_operators() -> None:
    with mock.patch.object(_validation, "NEWEST_OPSET", 24):
        message = "onnx: .*; got Identity 'y' of opset 25. Functions"
        require_error(NotImplementedError, message, prepared, COPY)
        onnx_backend.prepare(parse(COPY, 24))


# Part of what ONNX's checker and its inference of shapes say.
INVALID = rows(
    r"""
$unary Identity(z)} | sorted, however input 'z' of
$unary Identity(a) a = Identity(y)} | sorted.*'a'
float[3] x, float[3] x => float[3] x {} | 'x'
float[3] x => float[3] y {[first] y = Relu<foo = 1>(x)} | Relu 'first': Unrecognized
float[3] x => int32[3] y {y = Identity(x)} | (1) vs (6)
float[3] x => float[3,3] y {y = Identity(x)} | rank: (1) vs (2)
$unary Identity(x, x)} | size 2
$reverse<time_axis = "a">(x, l)} | time_axis.*INT.*STRING
float[3,b] x, int32[4] l => float[3,b] y {y = ReverseSequence(x, l)} | (int32)
float[3] x => float[u] y {s = Constant<value_ints = [5]>() y = Slice(x, s, s, s)}
  | axis value: 5
@9 $slice<ends = [1]>(x)} | 'starts'
=> float[n] y {s = Constant<value_ints = [-3]>() y = ConstantOfShape(s)} | negative
$unary Cast<to = 0>(x)} | data type 0
@$after $unary Identity(x)} | `opset_import` must be at most $newest; got $after$$
@999 $unary Identity(x)} | `opset_import` must be at most $newest; got 999$$
$call 99$f Identity(p)} | `opset_import` must be at most $newest; got 99$$
$call 9$f Slice(p, p, p)} | .
@9 $call 13$f Slice<starts = [0], ends = [1]>(p)} | .
$call 13$f Cast<to = 7>(p)} | (7).*(1)
$call 13$f local.f(p)} | local::f
$call 9]> f <s> (p) => (q) {q = Slice<starts: ints = @s, ends = [9]>(p)} | .
@9 $call 9]> f <s> (p) => (q) {q = Slice<starts: ints = @s, ends = [9]>(p)} | .
""",
    newest=str(NEWEST),
    after=str(NEWEST + 1),
)


@pytest.mark.parametrize(("text", "said"), INVALID)
def test_invalid(text: str, said: str) -> None:
    model = parse(text)
    said = said.replace("(", r"\(").replace(")", r"\)")
    require_error(ValueError, f"onnx: .*{said}", onnx_backend.prepare, model)
    assert not onnx_backend.is_compatible(model)


# Of a model m with a graph g and an initializer w.
EDITS = rows(r"""
m.ir_version = 0 | ir_version
m.ClearField('opset_import') | opset_import
m.ClearField('graph') | 'graph'
g.node[0].ClearField('output') | output size 0
g.node[0].input[0] = '' | input 0
g.output[0].ClearField('type') | `y` must have a type; got none
g.input.add(name='z') | `z` must have a type; got none
g.output[0].type.tensor_type.ClearField('shape') | `y` must have a shape, whose sizes
  may be unknown; got none
w.ClearField('float_data'); w.raw_data = b'123' | w.*3 bytes
w.ClearField('float_data'); w.raw_data = bytes(20) | w
w.ClearField('float_data') | w
w.dims[0] = -4 | w
w.dims[0] = 2**62 | w.*4611686018427387904
w.data_type = 99 | w.*99
g.initializer.append(w) | w
g.input.append(z(0)) | `z` must be a data type; got
g.input.append(z(99)) | `z` must be a data type; got
""")


def with_initializer() -> onnx.ModelProto:
    return parse("=> float[4] y {y = Identity(w)}", w=np.arange(4, dtype=np.float32))


@pytest.mark.parametrize(("edit", "said"), EDITS)
def test_invalid_messages(edit: str, said: str) -> None:
    model = with_initializer()
    w = helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4])
    model.graph.initializer[0].CopyFrom(w)
    z = partial(helper.make_tensor_value_info, "z", shape=[3])
    exec(edit, {"m": model, "g": model.graph, "w": model.graph.initializer[0], "z": z})
    require_error(ValueError, f"onnx: .*{said}", onnx_backend.prepare, model)


def test_strings_that_are_not_utf8() -> None:
    model = parse('=> string[1] y {y = Constant<value: tensor = string[1] {"a"}>()}')
    model.graph.node[0].attribute[0].t.string_data[0] = b"\xff"
    require_error(ValueError, "Constant 'y': ", onnx_backend.prepare, model)
    model = with_initializer()
    texts: Any = [b"\xff"] * 4
    model.graph.initializer[0].CopyFrom(helper.make_tensor("w", 8, [4], texts))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    require_error(ValueError, "onnx: `w`: ", onnx_backend.prepare, model)
