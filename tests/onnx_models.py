"""ONNX models from text, and the comparison of what they raise.

A model is written in ONNX's textual syntax, where @ and a number set the version of the
operators, and $ and a name stand for the text of that name below. A message is compared
whole; each … in it stands for words that are ONNX's, protobuf's or NumPy's.
"""

import math
import re
import string

import numpy as np
import onnx
import onnx.parser
import pytest

import dml_jax
from dml_jax import onnx_backend

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LENGTHS = np.array([1, 2, 3, 0])
ONE, TWO = np.array([0]), np.array([0, 0])
F = np.float32
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
ONLY = (
    "onnx: the model must be of tensors and ReverseSequence, Slice, Range, "
    "ConstantOfShape, Constant, Identity, Cast; got "
)


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


def rows(text):
    """Its rows, of which the second column is a message and may take more lines."""
    joined = string.Template(text.replace("\n  ", " ")).substitute(TEXTS)
    return [tuple(row.split(" | ")) for row in joined.strip().splitlines()]


def _small(fill):
    def call(sizes, *arguments):
        if math.prod(sizes) > 2**20:
            raise OverflowError("fill: too large for a test")
        return fill(sizes, *arguments)

    return call


# In place of those of `dml_jax`, where a random model may ask for any size.
SMALL_FILLS = {
    name: _small(getattr(dml_jax, name))
    for name in ("fill_value_constant", "fill_value_sequence")
}
