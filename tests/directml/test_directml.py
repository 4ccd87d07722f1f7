"""Compiled operators: published vectors, and how programs are shared."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import PUBLISHED, array_of
from wrong_calls.structures import FILL

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

CLASSES: dict[str, Any] = {
    "reverse_subsequences": dml.ReverseSubsequencesOperatorDesc,
    "slice": dml.SliceOperatorDesc,
    "slice1": dml.Slice1OperatorDesc,
    "slice_grad": dml.SliceGradOperatorDesc,
    "fill_value_constant": dml.FillValueConstantOperatorDesc,
    "fill_value_sequence": dml.FillValueSequenceOperatorDesc,
}
VECTORS = [vector for vector in PUBLISHED if vector["op"] in CLASSES]


def tensor_of(array: np.ndarray) -> BufferTensorDesc:
    return BufferTensorDesc(DataType[array.dtype.name.upper()], array.shape)


def desc_of(
    operator: str,
    inputs: list[np.ndarray],
    attributes: dict[str, Any],
    output: np.ndarray,
) -> Any:
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
def test_published_vectors(vector: dict[str, Any]) -> None:
    inputs = [array_of(published) for published in vector["inputs"].values()]
    output = array_of(vector["output"])
    desc = desc_of(vector["op"], inputs, vector["attributes"], output)
    assert_same_bits(dml.compile_operator(desc)(*inputs), output)


def test_every_operator_has_a_published_vector() -> None:
    assert {vector["op"] for vector in VECTORS} == set(CLASSES)


@pytest.mark.usefixtures("with_caches")
def test_equal_descriptions_share_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    evaluate = dml.SliceOperatorDesc.evaluate

    def counted(desc: Any, *inputs: Any) -> Any:
        traced.append(desc)
        return evaluate(desc, *inputs)

    def run(stride: int) -> int:
        source, output = (
            BufferTensorDesc(DataType.FLOAT32, sizes) for sizes in ((11, 7), (3, 7))
        )
        desc = dml.SliceOperatorDesc(source, output, (0, 0), (3, 7), (stride, 1))
        dml.compile_operator(desc)(np.zeros((11, 7), np.float32))
        return len(traced)

    monkeypatch.setattr(dml.SliceOperatorDesc, "evaluate", counted)
    assert [run(2), run(2), run(3), run(2)] == [1, 1, 2, 2]


def test_compiled_operators_have_a_name() -> None:
    text = jax.jit(dml.compile_operator(FILL)).lower().as_text()
    assert "@jit_DML_OPERATOR_FILL_VALUE_CONSTANT" in text
