"""DirectML's descriptions, computed to the last byte."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from descriptions import DESCS, bound, elements, expected_of
from hypothesis import given
from hypothesis import strategies as st

from dml_jax.directml import (
    BufferTensorDesc,
    DataType,
    FillValueConstantOperatorDesc,
    FillValueSequenceOperatorDesc,
    ReverseSubsequencesOperatorDesc,
    ScalarUnion,
    Slice1OperatorDesc,
    SliceGradOperatorDesc,
    SliceOperatorDesc,
    compile_operator,
)

CLASSES = {
    "reverse_subsequences": ReverseSubsequencesOperatorDesc,
    "slice": SliceOperatorDesc,
    "slice1": Slice1OperatorDesc,
    "slice_grad": SliceGradOperatorDesc,
    "fill_value_constant": FillValueConstantOperatorDesc,
    "fill_value_sequence": FillValueSequenceOperatorDesc,
}
VECTORS = [
    vector
    for vector in json.loads(
        (pathlib.Path(__file__).parents[1] / "operators.json").read_text()
    )
    if vector["op"] in CLASSES
]


def array_of(published):
    return np.array(published["data"], published["dtype"]).reshape(published["shape"])


def tensor_of(array):
    return BufferTensorDesc(DataType[array.dtype.name.upper()], array.shape)


def desc_of(operator, inputs, attributes, output):
    target = tensor_of(output)
    members = dict.fromkeys(f.name for f in dataclasses.fields(CLASSES[operator]))
    for name, value in attributes.items():
        if name == "value_data_type":
            members[name] = target.data_type
        elif name.startswith("value"):
            members[name] = ScalarUnion.of(target.data_type, value)
        elif name in members:
            members[name] = value
    for name, tensor in zip(CLASSES[operator].input_members, inputs, strict=True):
        members[name] = tensor_of(tensor)
    members[CLASSES[operator].output_member] = target
    return CLASSES[operator](**members)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['op']}-{v['name']}")
def test_published_vectors(vector):
    inputs = [array_of(published) for published in vector["inputs"].values()]
    output = array_of(vector["output"])
    desc = desc_of(vector["op"], inputs, vector["attributes"], output)
    assert_same_bits(compile_operator(desc)(*inputs), output)


def test_every_operator_has_a_published_vector():
    assert {vector["op"] for vector in VECTORS} == set(CLASSES)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("operator", DESCS)
@given(data=st.data())
def test_every_byte_is_as_in_numpy(operator, data):
    desc = data.draw(DESCS[operator])
    inputs = [
        data.draw(bound(tensor, member == "sequence_lengths_tensor"))
        for member, tensor in zip(desc.input_members, desc.inputs, strict=True)
    ]
    previous = data.draw(st.none() | bound(desc.output))
    expected = expected_of(desc, inputs, previous)
    is_wide = any(t.data_type.bits == 64 for t in (*desc.inputs, desc.output))
    with jax.enable_x64(is_wide or data.draw(st.booleans())):
        result = np.array(compile_operator(desc)(*inputs, outputs=[previous]))
    if isinstance(desc, FillValueSequenceOperatorDesc):
        views = elements(desc.output, result), elements(desc.output, expected)
        assert_same_floats(*views)
        views[0][...] = views[1]  # the payload of a NaN is not defined
    assert_same_bits(result, expected)


@pytest.mark.usefixtures("with_caches")
def test_equal_descriptions_share_a_program(monkeypatch):
    traced = []
    evaluate = SliceOperatorDesc.evaluate

    def counted(desc, *inputs):
        traced.append(desc)
        return evaluate(desc, *inputs)

    def run(stride):
        window = ((0, 0), (3, 7), (stride, 1))
        source, output = (
            BufferTensorDesc(DataType.FLOAT32, sizes) for sizes in ((11, 7), (3, 7))
        )
        desc = SliceOperatorDesc(source, output, *window)
        compile_operator(desc)(np.zeros((11, 7), np.float32))
        return len(traced)

    monkeypatch.setattr(SliceOperatorDesc, "evaluate", counted)
    assert [run(2), run(2), run(3), run(2)] == [1, 1, 2, 2]
