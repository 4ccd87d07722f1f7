"""Compiled operators: published vectors, and what can be bound to them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import PUBLISHED, array_of
from descriptions import copy_of

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


# Binding ------------------------------------------------------------------------------

X = BufferTensorDesc(DataType.FLOAT32, (2, 3))
LENGTHS = BufferTensorDesc(DataType.UINT32, (2, 1))
REVERSE = dml.ReverseSubsequencesOperatorDesc(X, LENGTHS, X, 1)
PADDED = copy_of(BufferTensorDesc(DataType.FLOAT32, (2, 3), (4, 1)))
FILL = dml.FillValueConstantOperatorDesc(X, DataType.FLOAT32, ScalarUnion(float32=1))
ARRAY, NUMBERS = jnp.zeros((2, 3), np.float32), jnp.ones((2, 1), jnp.uint32)


def flat(size: int) -> jax.Array:
    return jnp.zeros(size, np.float32)


def wide(dtype: str) -> dml.OperatorDesc:
    return copy_of(BufferTensorDesc(DataType[dtype.upper()], (2, 3)))


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(
    ("error", "member", "desc", "inputs", "outputs"),
    [
        (TypeError, "inputs", REVERSE, [ARRAY], None),
        (TypeError, "inputs", REVERSE, [ARRAY, NUMBERS, ARRAY], None),
        (TypeError, "inputs", FILL, [ARRAY], None),
        (TypeError, "outputs", FILL, [], []),
        (TypeError, "outputs", FILL, [], [ARRAY] * 3),
        (TypeError, "outputs", FILL, [], ARRAY),
        (TypeError, "outputs", FILL, [], {0: 1}),
        (TypeError, "InputTensor", REVERSE, [NUMBERS] * 2, None),
        (TypeError, "InputTensor", REVERSE, [None, NUMBERS], None),
        (TypeError, "InputTensor", copy_of(X), [[[1, 2, 3], [4, 5, 6]]], None),
        (TypeError, "InputTensor", copy_of(X), [np.ones((2, 3))], None),
        *[
            (TypeError, "InputTensor", copy_of(X), [value], None)
            for value in ("abc", [["a"]], {1, 2}, np.ma.array([[1.0, 2.0]]))
        ],
        (
            TypeError,
            "SequenceLengthsTensor",
            REVERSE,
            [ARRAY, np.ones((2, 1), np.int32)],
            None,
        ),
        (TypeError, "OutputTensor", FILL, [], [NUMBERS]),
        (ValueError, "InputTensor", REVERSE, [ARRAY.T, NUMBERS], None),
        (ValueError, "InputTensor", REVERSE, [ARRAY[0], NUMBERS], None),
        (ValueError, "InputTensor", REVERSE, [flat(9).reshape(1, 9), NUMBERS], None),
        (ValueError, "OutputTensor", FILL, [], [flat(5)]),
        (ValueError, "InputTensor", PADDED, [ARRAY], None),
        (ValueError, "InputTensor", PADDED, [flat(6)], None),
        (ValueError, "OutputTensor", PADDED, [flat(7)], [ARRAY]),
        *[
            (ValueError, "InputTensor", wide(dtype), [np.zeros((2, 3), dtype)], None)
            for dtype in ("float64", "int64", "uint64")
        ],
    ],
)
def test_what_cannot_be_bound(
    error: type[Exception],
    member: str,
    desc: dml.OperatorDesc,
    inputs: list[Any],
    outputs: Any,
) -> None:
    start = f"^DML_OPERATOR_{desc.type.name}: `{member}` "
    with pytest.raises(error, match=start) as caught:
        dml.compile_operator(desc)(*inputs, outputs=outputs)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("desc", "inputs", "message"),
    [
        (
            REVERSE,
            [ARRAY],
            "DML_OPERATOR_REVERSE_SUBSEQUENCES: `inputs` must have 2 arrays, one for "
            "each tensor (InputTensor, SequenceLengthsTensor); got 1",
        ),
        (
            REVERSE,
            [ARRAY.T, NUMBERS],
            "DML_OPERATOR_REVERSE_SUBSEQUENCES: `InputTensor` must have shape (2, 3) "
            "or be a flat buffer of at least 6 elements; got shape (3, 2)",
        ),
    ],
)
def test_messages_about_what_is_bound(
    desc: dml.OperatorDesc, inputs: list[Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        dml.compile_operator(desc)(*inputs)
    assert str(caught.value) == message


def test_wide_tensors_are_bound_in_64_bit_mode() -> None:
    value = np.full((2, 3), 1 + 2**-40)
    with jax.enable_x64(True):
        assert_same_bits(dml.compile_operator(wide("float64"))(value), value)


@pytest.mark.usefixtures("x32")
def test_fills_of_wide_types_need_64_bit_mode() -> None:
    tensor = BufferTensorDesc(DataType.FLOAT64, (2,))
    desc = dml.FillValueConstantOperatorDesc(
        tensor, DataType.FLOAT64, ScalarUnion(float64=1)
    )
    start = "^fill_value_constant: `value_data_type` has dtype float64, which needs 64-"
    with pytest.raises(ValueError, match=start):
        dml.compile_operator(desc)()


@pytest.mark.parametrize(
    ("error", "member", "arguments"),
    [
        (TypeError, "desc", ("SLICE",)),
        (ValueError, "feature_level", (FILL, 5)),
        (TypeError, "feature_level", (FILL, "6_4")),
        (TypeError, "feature_level", (FILL, None)),
    ],
)
def test_what_cannot_be_compiled(
    error: type[Exception], member: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(error, match=f"^compile_operator: `{member}` must be an? .+"):
        dml.compile_operator(*arguments)


def test_compiled_operators_have_a_name() -> None:
    text = jax.jit(dml.compile_operator(FILL)).lower().as_text()
    assert "@jit_DML_OPERATOR_FILL_VALUE_CONSTANT" in text
