"""The operators of ONNX, as functions of a node and its inputs, by topic.

To support another operator, write its function and add it to the table `OPERATORS` of
its topic, with the opset from which on it is supported. A function has one parameter
for each input; an omitted one is None. Attributes that a node omits have the defaults
in ONNX's schema. Constant inputs, which include those in `Operator.static`, are NumPy
arrays; all others are JAX arrays. A function returns its output, or a list of several.
Its errors get the node as a prefix.
"""

from dml_jax.onnx_backend._nodes import Operator
from dml_jax.onnx_backend._operators import (
    constants,
    control_flow,
    elementwise,
    indexing,
    interpolation,
    linear,
    microsoft,
    normalization,
    own,
    pooling,
    quantization,
    random,
    recurrent,
    reductions,
    schema_functions,
    sequences,
    shapes,
    signals,
)

_TOPICS = (
    *(constants, elementwise, shapes, indexing, reductions, linear, normalization),
    *(pooling, interpolation, recurrent, quantization, signals, schema_functions),
    *(sequences, control_flow, own, random),
)
OPERATORS: dict[str, Operator] = {
    name: operator for topic in _TOPICS for name, operator in topic.OPERATORS.items()
}

# Of the domain com.microsoft.
MICROSOFT: dict[str, Operator] = microsoft.OPERATORS
# Those that ONNX Runtime defines, and the operators of ONNX whose attributes they have.
ATTRIBUTES_OF = microsoft.ATTRIBUTES_OF | normalization.ATTRIBUTES_OF

# Those that are not supported, or their domains, and why.
_REASONS = {
    "JAX has no strings": "RegexFullMatch StringConcat StringNormalizer StringSplit "
    "TfIdfVectorizer",
    "decoding and regions of images are out of scope": "DeformConv ImageDecoder "
    "MaxRoiPool MaxUnpool",
    "its layout is one processor's; optimize at level EXTENDED": "com.microsoft.nchwc",
}
REFUSED: dict[str, str] = {
    name: reason for reason, names in _REASONS.items() for name in names.split()
}
