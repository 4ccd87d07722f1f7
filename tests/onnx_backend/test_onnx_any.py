"""ONNX models of any bytes and of any nodes: a result or a refusal."""

import contextlib
import tempfile
import warnings
from unittest import mock

import hypothesis
import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper
from onnx_models import LENGTHS, ONE, SMALL_FILLS, F, X, parse

import dml_jax
from dml_jax import onnx_backend

NEWEST = onnx.defs.onnx_opset_version()
REFUSALS = (ValueError, TypeError, OverflowError, NotImplementedError)
VALUES = {"x": X, "l": LENGTHS, "s": ONE, "f": F(2), "i": np.int32(3)}


def require_result_or_refusal(load):
    """One or the other, in seconds and in little memory."""
    with warnings.catch_warnings(), mock.patch.multiple(dml_jax, **SMALL_FILLS):
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
