"""What DirectML's structures hold."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from wrong_calls.structures import ONE, VALID, X

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion


@pytest.mark.parametrize("make", VALID, ids=lambda make: make.__name__)
def test_valid_arguments_are_accepted(make: Any) -> None:
    """So `wrong_calls` has values that are refused for what they change."""
    lists = {k: list(v) if type(v) is tuple else v for k, v in VALID[make].items()}
    assert make(**lists) == make(**VALID[make])
    assert hash(make(**lists)) == hash(make(**VALID[make]))


# Enumerations, constants and sizes ----------------------------------------------------

NUMBERS: dict[Any, str] = {
    DataType: "UNKNOWN=0 FLOAT32=1 FLOAT16=2 UINT32=3 UINT16=4 UINT8=5 INT32=6 INT16=7 "
    "INT8=8 FLOAT64=9 UINT64=10 INT64=11 UINT4=12 INT4=13",
    dml.FeatureLevel: "LEVEL_1_0=0x1000 LEVEL_2_0=0x2000 LEVEL_2_1=0x2100 "
    "LEVEL_3_0=0x3000 LEVEL_3_1=0x3100 LEVEL_4_0=0x4000 LEVEL_4_1=0x4100 "
    "LEVEL_5_0=0x5000 LEVEL_5_1=0x5100 LEVEL_5_2=0x5200 LEVEL_6_0=0x6000 "
    "LEVEL_6_1=0x6100 LEVEL_6_2=0x6200 LEVEL_6_3=0x6300 LEVEL_6_4=0x6400",
    dml.OperatorType: "SLICE=60 FILL_VALUE_CONSTANT=103 FILL_VALUE_SEQUENCE=104 "
    "REVERSE_SUBSEQUENCES=106 SLICE1=111 SLICE_GRAD=135",
    dml.TensorType: "INVALID=0 BUFFER=1",
    dml.TensorFlags: "NONE=0 OWNED_BY_DML=1",
    dml.ExecutionFlags: "NONE=0 ALLOW_HALF_PRECISION_COMPUTATION=1 "
    "DISABLE_META_COMMANDS=2 DESCRIPTORS_VOLATILE=4",
}


@pytest.mark.parametrize("enumeration", NUMBERS, ids=lambda e: e.__name__)
def test_numbers_are_those_of_the_header(enumeration: Any) -> None:
    found = {name: int(number) for name, number in enumeration.__members__.items()}
    pairs = [pair.split("=") for pair in NUMBERS[enumeration].split()]
    assert found == {name: int(number, 0) for name, number in pairs}


def test_constants_are_those_of_the_header() -> None:
    constants = dml.TENSOR_DIMENSION_COUNT_MAX1, dml.MINIMUM_BUFFER_TENSOR_ALIGNMENT
    assert constants == (8, 16)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("float16", "FLOAT16"),
        ("UINT4", "UINT4"),
        ("DML_TENSOR_DATA_TYPE_INT64", "INT64"),
        (np.int8, "INT8"),
        (np.dtype("uint16"), "UINT16"),
        (jnp.float32, "FLOAT32"),
        (jnp.dtype("int4"), "INT4"),
    ],
)
def test_data_types_by_name_or_dtype(value: Any, name: str):
    expected = DataType[name]
    assert BufferTensorDesc(value, (4,)).data_type is expected
    assert dml.FillValueConstantOperatorDesc(X, value, ONE).value_data_type is expected


@pytest.mark.parametrize(
    ("size", "needed", "data_type", "sizes", "strides"),
    [
        (24, 24, "FLOAT32", (2, 3), None),
        (8, 5, "UINT8", (5,), None),
        (8, 6, "FLOAT16", (3,), None),
        (12, 12, "FLOAT32", (2, 3), (0, 1)),
        (28, 28, "FLOAT32", (2, 3), (4, 1)),
        (8, 7, "INT8", (2, 3), (4, 1)),
        (40, 40, "FLOAT64", (3,), (2,)),
        (4, 2, "INT16", (), None),
        (0, 0, "INT32", (2, 0), (7, 1)),
        (2**35, 2**35, "UINT64", (65536, 65536), None),
        (4, 3, "UINT4", (5,), None),
        (8, 5, "UINT4", (9,), None),
        (4, 2, "INT4", (2, 2), (2, 1)),
        (0, 0, "UNKNOWN", (5,), None),
    ],
)
def test_the_size_of_a_buffer(
    size: int, needed: int, data_type: str, sizes: Any, strides: Any
) -> None:
    """In bytes, and the bytes of the elements alone."""
    assert dml.calc_buffer_tensor_size(DataType[data_type], sizes, strides) == size
    desc = BufferTensorDesc(DataType[data_type], list(sizes), strides)  # type: ignore
    assert desc == BufferTensorDesc(DataType[data_type], sizes, strides, size)
    assert desc.needed_bytes == needed


# The scalar union ---------------------------------------------------------------------


def test_halves_are_rounded_once() -> None:
    value = 1 + 2**-11 + 2**-30  # to float32, and then to float16, would be 1
    assert ScalarUnion.of(DataType.FLOAT16, value).uint16 == 0x3C01


@pytest.mark.parametrize(
    ("union", "data_type", "bits"),
    [
        (ScalarUnion(float32=1.0), "UINT32", 0x3F800000),
        (ScalarUnion(int8=-2), "UINT8", 254),
        (ScalarUnion(uint8=254), "INT8", -2),
        (ScalarUnion(uint16=0x3E00), "FLOAT16", 1.5),
        (ScalarUnion.of(DataType.FLOAT16, 1.5), "UINT16", 0x3E00),
        (ScalarUnion.of(DataType.UINT8, -2), "UINT64", 254),
        (ScalarUnion(float64=-2.0), "INT64", -(2**62)),
        (ScalarUnion(int64=-1), "UINT64", 2**64 - 1),
        (ScalarUnion(bytes=bytes(range(1, 9))), "UINT16", 0x0201),
        (ScalarUnion(bytes=bytearray(range(1, 9))), "UINT16", 0x0201),
        (ScalarUnion(float32=np.int8(3)), "FLOAT32", 3.0),
        (ScalarUnion(uint64=2**63), "INT32", 0),
        (ScalarUnion(), "FLOAT64", 0.0),
    ],
)
def test_a_union_is_read_as_another_type(
    union: ScalarUnion, data_type: str, bits: Any
) -> None:
    found = union.read(DataType[data_type])
    assert found == bits
    assert found.dtype == np.dtype(data_type.lower())
    if data_type != "FLOAT16":
        assert getattr(union, data_type.lower()) == bits


def test_unions_are_equal_by_their_bits() -> None:
    one = ScalarUnion(float32=1.0)
    assert one == ScalarUnion(uint32=0x3F800000) == ScalarUnion(uint64=0x3F800000)
    assert hash(one) == hash(ScalarUnion(uint32=0x3F800000))
    assert one != ScalarUnion(float64=1.0)
    assert ScalarUnion(float32=0.0) != ScalarUnion(float32=-0.0)
    assert eval(repr(one)) == one


def test_a_union_cannot_change() -> None:
    one = ScalarUnion(uint8=1)
    for name in ("bytes", "uint8", "other"):
        with pytest.raises(AttributeError, match="cannot assign"):
            setattr(one, name, 2)
    with pytest.raises(AttributeError, match=r"^ScalarUnion has no member 'float16'$"):
        _ = one.float16
    assert one.uint8 == 1
