"""ONNX models from text, and a check of the errors that they raise."""

import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx.shape_inference
import onnxruntime
import pytest
from assertions import assert_same_bits

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
DOMAINS = "ai.onnx.ml", "com.foo", "com.microsoft", "local"
# Beginnings of models, for `rows`.
TEXTS = {
    "unary": "float[3] x => float[3] y {y =",
    "reverse": REVERSAL.removesuffix("(x, l)}"),
    "slice": SLICE,
    "fill": FILL,
    # A model that calls a function; the function's opset is between the two texts.
    "call": 'float[5] x => float[n] y {y = local.f(x)} <domain: "local", '
    'opset_import: ["": ',
    "f": "]> f (p) => (q) {q =",
}
TYPES = {"float32": "float", "float64": "double", "object": "string"}
TYPES |= {"float4_e2m1fn": "float4e2m1", "float8_e8m0fnu": "float8e8m0"}


def type_of(dtype: Any) -> str:
    """The name of a dtype in ONNX's textual syntax."""
    name = np.dtype(dtype).name
    return TYPES.get(name, name.replace("_", ""))


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
    imports = ", ".join(f'"{d}": 1' for d in DOMAINS)
    head = f'<ir_version: {ir}, opset_import: ["": {opset}, {imports}]>'
    model = onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{{body}")
    for name, array in initializers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def model_of(text: str, inputs: Iterable[Any], **initializers: Any) -> onnx.ModelProto:
    """A model of nodes, whose inputs p, q, r, ... have the dtypes and ranks of arrays.

    Its outputs are those of the last node, as ONNX infers them, unless they stand in
    front of the nodes, which are then in braces.
    """
    opset, text = text[1:].split(maxsplit=1) if text[0] == "@" else (25, text)
    infos = []
    for name, array in zip("pqrstuvwx", map(np.asarray, inputs), strict=False):
        dims = ",".join(f"{name}{axis}" for axis in range(array.ndim))
        infos.append(f"{type_of(array.dtype)}{f'[{dims}]' if dims else ''} {name}")
    outputs, nodes = text.split("{", 1) if text[-1] == "}" else ("", f"{text}}}")
    signature = f"{', '.join(infos)} => {outputs}"
    model = parse(f"{signature} {{{nodes}", opset, **initializers)
    if not outputs:
        for name in filter(None, model.graph.node[-1].output):
            model.graph.output.add(name=name)
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        for output, found in zip(
            model.graph.output, inferred.graph.output, strict=True
        ):
            output.CopyFrom(found)
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


def runtime_session(
    model: onnx.ModelProto, is_optimized: bool = True
) -> onnxruntime.InferenceSession:
    """ONNX Runtime on one CPU core, without its log."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not is_optimized:  # which rounds inputs of layers whose weights are quantized
        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.graph_optimization_level = level
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])


def runtime_outputs(
    source: onnx.ModelProto, inputs: Iterable[Any], is_optimized: bool = True
) -> list[Any]:
    session = runtime_session(source, is_optimized)
    names = [value.name for value in session.get_inputs()]
    feeds = dict(zip(names, map(np.asarray, inputs), strict=True))
    return list(session.run(None, feeds))


def add_types(source: onnx.ModelProto, outputs: Iterable[Any]) -> None:
    """Gives the outputs of a model the dtypes and ranks of arrays."""
    for output, array in zip(
        source.graph.output, map(np.asarray, outputs), strict=True
    ):
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        info = onnx.helper.make_tensor_value_info(
            output.name, kind, [None] * array.ndim
        )
        if not output.type.tensor_type.HasField("shape"):
            output.CopyFrom(info)


def require_runtime(
    source: onnx.ModelProto,
    inputs: Sequence[Any],
    static: Iterable[str] | None = None,
    tolerance: float = 0,
) -> list[Any]:
    """The outputs of ONNX Runtime, which the jitted function and `run` give, too.

    Closed over are the inputs that shapes depend on, if `static` does not name others.
    Without them, and with 32 bits or less, `run` is the same program, and not called.
    """
    wanted = runtime_outputs(source, inputs)
    add_types(source, wanted)
    model = onnx_backend.prepare(source)
    named = dict(zip(model.input_names, map(np.asarray, inputs), strict=True))
    static = model.static_names if static is None else static
    traced = {name: named.pop(name) for name in list(named) if name not in static}
    is_wide = any(
        np.asarray(x).dtype.itemsize == 8 for x in (*traced.values(), *wanted)
    )
    if named or is_wide:
        require_close(model.run([*inputs]), wanted, tolerance)
    with jax.enable_x64(is_wide or jax.config.read("jax_enable_x64")):
        found = jax.jit(lambda given: model.jax_fn(**given, **named))(traced)
    require_close(found, wanted, tolerance)
    return wanted


def require_close(
    actual: Iterable[Any], wanted: Iterable[Any], tolerance: float
) -> None:
    """Same dtypes and shapes, and floats that differ by no more than the tolerance."""
    for found, array in zip(actual, map(np.asarray, wanted), strict=True):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        within = tolerance if np.issubdtype(array.dtype, np.floating) else 0
        np.testing.assert_allclose(found, array, within, within)


def require_same(actual: Iterable[Any], wanted: Iterable[Any]) -> None:
    """The same bits of every array."""
    for found, array in zip(actual, wanted, strict=True):
        assert_same_bits(np.asarray(found), np.asarray(array))


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


def rows(table: str, **texts: str) -> list[tuple[str, ...]]:
    """The rows of a table; $ and a name stand for one of TEXTS, or of more texts."""
    joined = string.Template(table.replace("\n  ", " ")).substitute(TEXTS, **texts)
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
