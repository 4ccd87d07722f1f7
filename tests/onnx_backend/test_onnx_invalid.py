"""Models that `prepare` refuses, and nodes that refuse their inputs."""

import re
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import (
    COPY,
    LENGTHS,
    F,
    X,
    parse,
    prepared,
    require_error,
    rows,
    runtime_session,
)
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[attr-defined]

from dml_jax import onnx_backend
from dml_jax.onnx_backend._operators import OPERATORS

ONLY = "onnx: the model must have only tensors and supported operators; got "
# What follows ONLY, and the operators for which functions can be passed.
UNSUPPORTED = rows(r"""
float[3] x => float[a] y {[n1] a = Bernoulli(x) b = Identity(a) c, d = Blob(b)
  [n2] y = Blob(d)} | Bernoulli 'n1', because random numbers differ between
  implementations, Blob 'c, d', Blob 'n2' | Bernoulli Blob
$unary com.foo.Slice(x)} | com.foo.Slice 'y' | Slice
@1 $unary Upsample<height_scale = 1.>(x)} | Upsample 'y' of opset 1 | Upsample
bool c, $unary If (c) <then_branch = g () => (float[3] a) {a = Blob(x)},
  else_branch = h () => (float[3] b) {b = Frob(x)}>} | Blob 'a', Frob 'b' | Blob Frob
seq(float[3]) x, int64 i => float[3] y {y = SequenceAt(x, i)} |
  'x', which is not a tensor | $$
sparse_tensor(float[3]) x => sparse_tensor(float[3]) y {y = Identity(x)} |
  'x', which is not a tensor, 'y', which is not a tensor | $$
$unary local.f(x)} $local13 Blob(p)} | Blob 'y' | Blob
$unary Frob(x)} | Frob 'y' | Frob
@7 int64 s => int64[n] y {y = Range(s, s, s)} | Range 'y' of opset 7 | Range
@9 $reverse(x, l)} | ReverseSequence 'y' of opset 9 | ReverseSequence
@8 $fill(s)} | ConstantOfShape 'y' of opset 8 | ConstantOfShape
@0 $unary Identity(x)} | Identity 'y' of opset 0 | Identity
""")


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
    of_today = OPERATORS["Identity"]._replace(versions=frozenset({24}))
    with mock.patch.dict(OPERATORS, Identity=of_today):
        message = "onnx: .*; got Identity 'y' of opset 25. Functions"
        require_error(NotImplementedError, message, prepared, COPY)
        onnx_backend.prepare(parse(COPY, 24))


@pytest.mark.parametrize("opset", [onnx.defs.onnx_opset_version() + 1, 999])
def test_future_opsets(opset: int) -> None:
    newest = onnx.defs.onnx_opset_version()
    message = f"onnx: `opset_import` must be at most {newest}; got {opset}$"
    require_error(ValueError, message, onnx_backend.prepare, parse(COPY, opset))


# Part of what ONNX's checker says.
INVALID = rows(r"""
$unary Identity(z)} | sorted, however input 'z' of
float[3] x => float[3] y {z = Identity(x)} | 'y'
$unary Identity(a) a = Identity(y)} | sorted.*'a'
float[3] x, float[3] x => float[3] x {} | 'x'
float[3] x => float[3] y {[first] y = Relu<foo = 1>(x)} | Relu 'first': Unrecognized
float[3] x => int32[3] y {y = Identity(x)} | (1) vs (6)
float[3] x => float[3,3] y {y = Identity(x)} | rank: (1) vs (2)
$unary Identity(x, x)} | size 2
$unary Identity<foo = 1>(x)} | foo
$reverse<time_axis = "a">(x, l)} | time_axis.*INT.*STRING
$unary Cast(x)} | 'to'
=> int64 y {y = Constant<value_int = 1, value_int = 2>()} | value_int
$unary local.f(x)} $local local.f(p)} | local::f
float[3] x, int64[3] l => float[3] y {y = ReverseSequence(x, l)} | rank >= 2
float[3,b] x, int32[4] l => float[3,b] y {y = ReverseSequence(x, l)} | (int32)
float[p,q] x, float[n] s => float[u,v] y {y = Slice(x, s, s)} | (float)
float[3] x => float[u] y {s = Constant<value_ints = [5]>() y = Slice(x, s, s, s)}
  | axis value: 5
@9 $slice<ends = [1]>(x)} | 'starts'
float s, double d => float[n] y {y = Range(s, s, d)} | double
int64[n,m] s => float[m] y {y = ConstantOfShape(s)} | 1D
=> float[n] y {s = Constant<value_ints = [-3]>() y = ConstantOfShape(s)} | negative
int64[n] s => string[m] y {y = ConstantOfShape<value: tensor = string[1] {"a"}>(s)}
  | (string)
$unary Cast<to = 99>(x)} | Cast
$unary Cast<to = 0>(x)} | data type 0
float[3] x => complex64[3] y {y = Cast<to = 14>(x)} | (complex64)
""")


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
g.output[0].ClearField('type') | 'type'
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


@pytest.mark.parametrize("model", [None, 1, [COPY]])
def test_objects_that_are_no_model(model: Any) -> None:
    message = "prepare: `model` must be an onnx.ModelProto, a path or bytes; got "
    require_error(TypeError, message, onnx_backend.prepare, model)


@pytest.mark.parametrize("data", [b"", b"{]"])
def test_bytes_that_are_no_model(data: bytes) -> None:
    require_error(ValueError, "prepare: ", onnx_backend.prepare, data)


ROWS = np.array([[0, 1], [1, 0]])

# Nodes --------------------------------------------------------------------------------

# Models, inputs, and what follows the name of the node in the message.
NODES = rows(r"""
$reverse(x, l)} | X, LENGTHS + 1 |
  `sequence_lens` must be in \[0, 3\]; got 4$$
$reverse(x, l)} | X, -LENGTHS | `sequence_lens` must be in \[0, 3\]; got -1
$reverse(x, l)} | X, LENGTHS + 2**40 |
  `sequence_lens` must be in \[0, 3\]; got 1099511627777
float[3,4] x, int64[n] l => float[3,4] y {y = ReverseSequence(x, l)} | X, LENGTHS[1:] |
  reverse_sequence: `sequence_lens` must have shape \(4,\)
$reverse<time_axis = 1>(x, l)} | X, LENGTHS | reverse_sequence: `batch_axis`
$reverse<batch_axis = 0>(x, l)} | X, LENGTHS | reverse_sequence: `batch_axis`
$reverse<batch_axis = 2, time_axis = 1>(x, l)} | X, LENGTHS |
  reverse_sequence: `batch_axis`
$reverse<batch_axis = 0, time_axis = 2>(x, l)} | X, LENGTHS |
  reverse_sequence: `time_axis`
$slice(x, s, s, s)} | X, [0, 0] | `axes` must be unique; got 0 twice$$
$slice5 | X, [0, 0], [0, 0], [-1, 1], [1, 1] | `axes` must be unique; got 1 twice$$
@9 $slice<starts = [0, 0], ends = [1, 1], axes = [0, 0]>(x)} | X, [0] | `axes`
$slice5 | X, [0], [0], [2], [1] | `axes` must be in \[-2, 2\); got 2$$
@10 $slice5 | X, [0], [0], [-3], [1] | `axes` must be in
@9 $slice<starts = [0], ends = [1], axes = [4]>(x)} | X, [0] | `axes` must be in
$slice(x, s, s)} | X, LENGTHS | `axes` must be in
$slice5 | X, [0], [0], [0], [0] | `steps` must be nonzero; got \[0\]$$
$slice5 | X, [0, 0], [0], [0], [1] | `starts`, `ends`, `axes` and `steps` must have the
  same length; got lengths \(2, 1, 1, 1\)$$
$slice5 | X, [0], [0, 0], [0], [1] | `starts`, `ends`
$slice5 | X, [0], [0], [0, 0], [1] | `starts`, `ends`
$slice5 | X, [0], [0], [0], [1, 1] | `starts`, `ends`
float[3,4] x, int64 s => float[u,v] y {y = Slice(x, s, s)} | X, 0 |
  `starts` must have one dimension; got 0$$
float[3,4] x, int64[n,m] s => float[u,v] y {y = Slice(x, s, s)} | X, [[0, 0]] | `starts`
$range(s, l, d)} | F(1), F(5), F(0) | `delta` must be nonzero; got 0$$
$range(s, l, d)} | F("nan"), F(5), F(1) | `start` must be finite; got nan$$
$range(s, l, d)} | F(0), F("-inf"), F(1) | `limit` must be finite
$range(s, l, d)} | F(0), F(2**60), F(1) | fill_value_sequence: `sizes`
float s, float[n] l => float[m] y {y = Range(s, l, s)} | F(1), X[0] |
  `limit` must be a scalar; got shape \(4,\)$$
$fill(s)} | [-1], | fill_value_constant: `sizes\[0\]`
$fill(s)} | [2**60], | fill_value_constant: `sizes`
$fill<value: tensor = float[2] {1, 2}>(s)} | [0], | `value` must have one element; got 2
$fill<value: tensor = float[0] {}>(s)} | [0], | `value` must have one element; got 0
@1 $unary Cast<to = "FLOTE">(x)} | X[:, 0], | .*FLOTE
@1 $unary Cast<to = "UNDEFINED">(x)} | X[:, 0], | `to` must be a data type; got 0$$
""")
# Shapes that contradict each other.
SHAPES = rows(r"""
$gather_elements(x, i)} | X, ROWS[:, [0] * 5] | `indices` must have rank 2, and at most
  the sizes \(3, 4\) of `data` on axes other than 0; got shape \(2, 5\)$$
$gather_elements<axis = 1>(x, i)} | X, ROWS[[0] * 4] | `indices` must have rank 2, and
float[n,m] x, int64[a] i => float[b] y {y = GatherElements(x, i)} | X, LENGTHS |
  `indices` must have rank 2, .* got shape \(4,\)$$
$gather_nd<batch_dims = 1>(x, i)} | X, ROWS[:, :1] | `indices` must have the sizes
  \(3,\) of `data` on its first axes, and at most 1 on its last axis; got shape
  \(2, 1\)$$
$gather_nd(x, i)} | X, ROWS[:, [0] * 3] | `indices` must have the sizes \(\) of `data`
  on its first axes, and at most 2 on its last axis; got shape \(2, 3\)$$
$scatter_elements(x, i, u)} | X, ROWS, X[:1, :2] |
  `updates` must have shape \(2, 2\); got \(1, 2\)$$
$scatter_elements<axis = 1>(x, i, u)} | X[:1], ROWS, X[:2, :2] | `indices` must have
  rank 2, and at most the sizes \(1, 4\) of `data` on axes other than 1
$scatter_nd(x, i, u)} | X, ROWS, X[:1, 0] | `updates` must have shape \(2,\); got
$scatter_nd(x, i, u)} | X, ROWS[:, :1], X[0] | `updates` must have shape \(2, 4\); got
int64[n] x, int64 d, float[v] v => float[n,m] y {y = OneHot(x, d, v)} |
  LENGTHS, 4, X[0, :3] | `values` must have shape \(2,\); got \(3,\)$$
$gemm(a, b, c)} | X[:1], X.T, X[:, :3] | `C` must broadcast to shape \(1, 3\); got
  \(3, 3\)$$
float[n,m] x => float[k] y {y = Einsum<equation = "ii->i">(x)} | X[:1, :3] | .*
$conv(x, w)} | X[None, :, :2], X[None, :, :3] | `X` must have at least 3 elements with
  padding on each axis of the kernel; got 2$$
$conv<dilations = [2]>(x, w)} | X[None], X[None, :, :3] | `X` must have at least 5
$conv<pads = [1, 0], dilations = [3]>(x, w)} | X[None, :, :2], X[None, :, :2] |
  `X` must have at least 4 .* got 3$$
float[b,c,n] x, float[d,c,m] w, float[k] z => float[b,d,l] y {y = Conv(x, w, z)} |
  X[None], X[None, [0, 1, 2] * 2].reshape(2, 3, 4), X[0, :1] |
  `B` must have shape \(2,\); got \(1,\)$$
$batch(x, s, s, s, s)} | X[:, :1], X[0], X[0] | `scale` must have shape \(1,\); got
$batch(x, s, s, s, t)} | X, X[0], X[0, :1] | `input_var` must have shape \(4,\)
$layer(x, s, s)} | X[:, :1], X[0], X[0] | `Scale` must broadcast to shape \(3, 1\); got
  \(4,\)$$
$layer(x, t, s)} | X[:, :1], X[0], X[0, :1] | `B` must broadcast to shape \(3, 1\)
@23 float[n,m] x, float[k] s => float[n,l] y {y = RMSNormalization(x, s)} |
  X[:, :1], X[0] | `scale` must broadcast to shape \(3, 1\); got \(4,\)$$
@13 $split<axis = 0>(x)} | X | `input` must have equal parts on the axis; got \[2, 1\]$$
@18 float[n,m] x => float[a,m] y, float[b,m] i, float[c,m] z
  {y, i, z = Split<num_outputs = 3>(x)} | X[:1] |
  `split` must be sizes whose sum is 1; got \[1, 1, -1\]$$
$conv<auto_pad = "SAME">(x, w)} | X[None], X[None, :, :3] |
  `auto_pad` must be one of NOTSET, VALID, SAME_UPPER, SAME_LOWER; got 'SAME'$$
$unary Gelu<approximate = "erf">(x)} | X[:, 0] | `approximate` must be one of none, tanh
uint8[n] x => uint8[n] y {y = BitShift<direction = "UP">(x, x)} | np.uint8([1]) |
  `direction` must be one of
float[n,m] x, int64[k] s => float[k,l] y {y = Pad<mode = "symmetric">(x, s)} |
  X, [1, 0, 0, 0] | `mode` must be one of constant, reflect, edge, wrap; got 'symmetric'
float[n,m] x, int64[a,b] s => float[k,l] y {y = ReduceSum(x, s)} | X, [[1]] |
  `axes` must have one dimension; got 2$$
float[n,m] x, int64[a,b] s => float[k] y {y = Squeeze(x, s)} | X[:1], [[0]] | `axes`
""")
# Sequences without the array that is asked for.
SEQUENCES = rows(r"""
float[3] x => float[n] y {s = SequenceEmpty() y = ConcatFromSequence<axis = 0>(s)} |
  X[:, 0], | `input_sequence` must have an array; got an empty sequence$$
float[3] x, int64 i => float[3] y {s = SequenceConstruct(x, x) y = SequenceAt(s, i)} |
  X[:, 0], 2 | `position` must be in \[-2, 2\); got 2$$
float[3] x, int64 i => float[3] y {s = SequenceConstruct(x, x) y = SequenceAt(s, i)} |
  X[:, 0], -3 | `position` must be in \[-2, 2\); got -3$$
""")
# Those that ONNX Runtime does not have, or takes: negative axes, an infinite delta; and
# sizes that no device can hold.
ONLY_HERE = rows(r"""
float[3] x, int64[2] s => float[u,v] y {y = Expand(x, s)} | X[:, 0], [2**60, 3] |
  Expand: `shape` must have at most 2\^48 elements; got 3458764513820540928$$
float[3] x, int64[2] s => float[u,v] y {y = Expand(x, s)} | X[:, 0], [-1, 3] |
  Expand: `shape\[0\]` must be at least 0; got -1$$
float[3] x, int64[1] s => float[u] y {y = Tile(x, s)} | X[:, 0], [2**60] |
  Tile: `repeats` must have at most 2\^48 elements
float[3] x, int64[2] s => float[u] y {y = Pad(x, s)} | X[:, 0], [2**60, 0] |
  Pad: `pads` must have at most 2\^48 elements
float[3] x, int64[2] s => float[u] y {y = Pad(x, s)} | X[:, 0], [-4, 0] |
  Pad: `pads\[0\]` must be at least 0; got -1$$
int64[3] x, int64 s, float[2] v => float[3,u] y {y = OneHot(x, s, v)} |
  [0, 1, 2], 2**60, X[0, :2] | OneHot: `depth` must have at most 2\^48 elements
float[3] x, int64[1] s => float[u] y {y = Gather(x, s)} | X[:, 0], [3] |
  `indices` must be in \[-3, 3\); got 3$$
float[n,m] x, bool[k] c => float[n,l] y {y = Compress<axis = 1>(x, c)} |
  X, np.ones(5, bool) | `condition` must have one dimension of at most 4 elements; got
  shape \(5,\)$$
float[n,m] x, bool[k] c => float[l] y {y = Compress(x, c)} | X, np.ones(13, bool) |
  `condition` must have one dimension of at most 12
$gather_nd<batch_dims = 1>(x, i)} | X[:1], ROWS[:, :1] | `indices` must have the sizes
float[a,b,c] x => float[d,e,f] y {y = MaxPool<kernel_shape = [5]>(x)} | X[None] |
  `X` must have at least 5 elements with padding on each axis of the kernel; got 4$$
$conv<pads = [1, 1, 1]>(x, w)} | X[None], X[None] | `pads` must have 2 elements; got
float[3,4] x, int64[1] s => float[u,v] y, int64[u,v] i {y, i = TopK(x, s)} | X, [5] |
  `K` must be in \[0, 4\]; got 5$$
float[3,4] x, int64[1] s => float[u,v] y {y = ReduceSum(x, s)} | X, [2] |
  `axes` must be in \[-2, 2\); got 2$$
$reverse<batch_axis = 0, time_axis = -1>(x, l)} | X, LENGTHS |
  reverse_sequence: `time_axis`
$reverse<batch_axis = -1, time_axis = 0>(x, l)} | X, LENGTHS |
  reverse_sequence: `batch_axis`
$range(s, l, d)} | F(0), F(1), F("inf") | `delta` must be finite
@28 $range<stash_type = 7>(s, l, d)} | F(1), F(1), F(1) |
  `stash_type` must be 1 \(FLOAT\) or 11 \(DOUBLE\); got 7$$
""")


def arrays(inputs: str) -> tuple[Any, ...]:
    names = {"np": np, "F": F, "X": X, "LENGTHS": LENGTHS, "ROWS": ROWS}
    values = eval(inputs, names)
    return values if isinstance(values, tuple) else (values,)


@pytest.mark.parametrize(
    ("text", "inputs", "message"), NODES + SHAPES + SEQUENCES + ONLY_HERE
)
def test_nodes(text: str, inputs: str, message: str) -> None:
    run = prepared(text).run
    kind = re.findall(r"y(?:, i(?:, z)?)? = (\w+)", text)[0]
    require_error(ValueError, f"{kind} 'y(, i)?(, z)?': {message}", run, arrays(inputs))


@pytest.mark.parametrize(
    ("text", "inputs"), [row[:2] for row in NODES + SHAPES + SEQUENCES]
)
def test_onnx_runtime_refuses_them_too(text: str, inputs: str) -> None:
    kinds = "Fail InvalidArgument InvalidGraph NotImplemented RuntimeException"
    errors = tuple(getattr(onnxruntime_pybind11_state, kind) for kind in kinds.split())
    model, values = parse(text), map(np.asarray, arrays(inputs))

    def run() -> None:
        session = runtime_session(model)
        names = [value.name for value in session.get_inputs()]
        session.run(None, dict(zip(names, values, strict=True)))

    with pytest.raises(errors):
        run()


CASTS = rows(r"""
float[3] x => string[3] y {y = Cast<to = 8>(x)} | float32 | float32 to object
string[3] x => float[3] y {y = Cast<to = 1>(x)} | object | object to float32
float[3] x => float8e8m0[3] y {y = Cast<to = 24>(x)} | float32 |
  float32 to float8_e8m0fnu
""")


@pytest.mark.parametrize(("text", "dtype", "got"), CASTS)
def test_casts_that_are_not_supported(text: str, dtype: str, got: str) -> None:
    message = f"Cast 'y': Cast must not be from or to strings or .*; got {got}$"
    inputs = [X[:, 0].astype(dtype)]
    require_error(NotImplementedError, message, prepared(text).run, inputs)


@pytest.mark.parametrize(
    ("text", "dtype", "argument"),
    [
        ("@28 float[3] x => float6e2m3[3] y {y = Cast<to = 27>(x)}", F, "to"),
        ("@28 float6e2m3[3] x => float[3] y {y = Cast<to = 1>(x)}", None, "input"),
    ],
)
def test_casts_of_dtypes_that_jax_does_not_know(
    text: str, dtype: Any, argument: str
) -> None:
    x = X[:, 0].astype(dtype or "float6_e2m3fn")
    message = f"Cast 'y': Cast: `{argument}` must .* that JAX knows; got float6_e2m3fn$"
    require_error(TypeError, message, prepared(text).run, [x])


def test_a_message_has_the_name_of_its_node() -> None:
    model = prepared("float s => float[n] y {[first] y = Range(s, s, s)}")
    require_error(ValueError, "Range 'first': `delta`", model.run, [F(0)])
