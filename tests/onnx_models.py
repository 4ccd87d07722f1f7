"""ONNX models from text, and a check of the errors that they raise."""

import math
import re
import string
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

import dml_jax
from dml_jax import onnx_backend

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LENGTHS = np.array([1, 2, 3, 0])
F = np.float32
COPY = "float[3] x => float[3] y {y = Identity(x)}"
REVERSAL = "float[3,b] x, int64[4] l => float[3,b] y {y = ReverseSequence(x, l)}"
SLICE = "float[p,q] x, int64[n] s => float[u,v] y {y = Slice"
FILL = "int64[n] s => float[m] y {y = ConstantOfShape"
LOCAL = '<domain: "local", opset_import: ["": 25]> f (p) => (q) {q ='
# Beginnings of models, for `rows`.
TEXTS = {
    "unary": "float[3] x => float[3] y {y =",
    "reverse": REVERSAL.removesuffix("(x, l)}"),
    "slice": SLICE,
    "slice5": "float[p,q] x, int64[i] s, int64[j] e, int64[k] a, int64[l] t => "
    "float[u,v] y {y = Slice(x, s, e, a, t)}",
    "range": "float s, float l, float d => float[n] y {y = Range",
    "fill": FILL,
    "gather_elements": "float[n,m] x, int64[a,b] i => float[c,d] y {y = GatherElements",
    "gather_nd": "float[n,m] x, int64[a,b] i => float[k] y {y = GatherND",
    "scatter_elements": "float[n,m] x, int64[a,b] i, float[c,d] u => float[n,m] y "
    "{y = ScatterElements",
    "scatter_nd": "float[n,m] x, int64[a,b] i, float[k] u => float[n,m] y "
    "{y = ScatterND",
    "gemm": "float[n,m] a, float[m,k] b, float[p,q] c => float[r,s] y {y = Gemm",
    "conv": "float[b,c,n] x, float[d,c,m] w => float[b,d,l] y {y = Conv",
    "batch": "@15 float[n,m] x, float[k] s, float[l] t => float[n,p] y "
    "{y = BatchNormalization",
    "layer": "@17 float[n,m] x, float[k] s, float[l] t => float[n,p] y "
    "{y = LayerNormalization",
    "split": "float[n,m] x => float[a,m] y, float[b,m] i {y, i = Split",
    "branch": "t = Range(zero, time, one) h = ReduceMax<keepdims = 0>(f) "
    "c = Cast<to = 9>(h) m = If(c) <",
    "local": LOCAL,
    "local13": LOCAL.replace("25", "13"),
}


def parse(
    text: str, opset: Any = 25, ir: int = 10, **initializers: Any
) -> onnx.ModelProto:
    """A model in ONNX's textual syntax; "@13 " in front sets the opset.

    All domains other than ONNX's have version 1.
    """
    if text.startswith("@"):
        opset, text = text[1:].split(maxsplit=1)
    signature, body = text.split("{", 1)
    inputs, outputs = signature.split("=>")
    imports = ", ".join(f'"{d}": 1' for d in ("ai.onnx.ml", "com.foo", "local"))
    head = f'<ir_version: {ir}, opset_import: ["": {opset}, {imports}]>'
    model = onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{{body}")
    for name, array in initializers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def external_tensor(size: int, name: str = "w", **entries: Any) -> onnx.TensorProto:
    """A tensor of float32 whose data is in another file."""
    tensor = onnx.TensorProto(
        name=name, data_type=1, dims=[size], data_location="EXTERNAL"
    )
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def with_external_data(size: int, **entries: Any) -> onnx.ModelProto:
    """A model that gives such a tensor."""
    model = parse("=> float[n] y {y = Identity(w)}")
    model.graph.initializer.append(external_tensor(size, **entries))
    return model


def prepared(text: str, **initializers: Any) -> onnx_backend.Model:
    return onnx_backend.prepare(parse(text, **initializers))


def runtime_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """ONNX Runtime on one CPU core, without its log."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])


def require_error(
    error: type[Exception],
    pattern: str,
    call: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Exactly this type, and one line that begins with the pattern."""
    with pytest.raises(error) as raised:  # whose `match` sees JAX's notes, too
        call(*args, **kwargs)
    assert raised.type is error
    message = str(raised.value)
    assert re.match(pattern, message), message
    assert "\n" not in message


def rows(table: str) -> list[tuple[str, ...]]:
    """The rows of a table; $ and a name stand for one of TEXTS."""
    joined = string.Template(table.replace("\n  ", " ")).substitute(TEXTS)
    return [tuple(row.split(" | ")) for row in joined.strip().splitlines()]


def _small(fill: Callable[..., Any]) -> Callable[..., Any]:
    def call(sizes: Any, *arguments: Any) -> Any:
        if math.prod(sizes) > 2**20:
            raise OverflowError("fill: too large for a test")
        return fill(sizes, *arguments)

    return call


# In place of those of `dml_jax`, where a random model may ask for any size.
SMALL_FILLS = {
    name: _small(getattr(dml_jax, name))
    for name in ("fill_value_constant", "fill_value_sequence")
}
