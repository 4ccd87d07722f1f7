"""What DirectML's structures hold, and what their constructors refuse."""

import copy
import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

X = BufferTensorDesc(DataType.FLOAT32, (2, 3))
LENGTHS = BufferTensorDesc(DataType.UINT32, (2, 1))
ONE = ScalarUnion(float32=1)
FILL = dml.FillValueConstantOperatorDesc(X, DataType.FLOAT32, ONE)
NODE, DATA = dml.OperatorGraphNodeDesc(FILL), dml.ConstantDataGraphNodeDesc(b"1234")
WINDOW = (0, 0), (2, 3), (1, -1)
ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    dml.SliceOperatorDesc: (X, X, (0, 0), (2, 3), (1, 1)),
    dml.Slice1OperatorDesc: (X, X, *WINDOW),
    dml.SliceGradOperatorDesc: (X, X, *WINDOW),
    dml.ReverseSubsequencesOperatorDesc: (X, LENGTHS, X, 1),
    dml.FillValueSequenceOperatorDesc: (X, 1, ONE, ONE),
    dml.FillValueConstantOperatorDesc: (X, 1, ONE),
    BufferTensorDesc: (1, (2, 3), (3, 1), 24, 0, 16),
    dml.calc_buffer_tensor_size: (1, (2, 3), (3, 1)),
    dml.OperatorGraphNodeDesc: (FILL, "fill"),
    dml.ConstantDataGraphNodeDesc: (b"1234", None),
    dml.InputGraphEdgeDesc: (0, 0, 0, "x"),
    dml.OutputGraphEdgeDesc: (0, 0, 0, None),
    dml.IntermediateGraphEdgeDesc: (0, 0, 1, 0, None),
    dml.GraphDesc: (0, 1, (NODE, DATA), (), (dml.OutputGraphEdgeDesc(0, 0, 0),), ()),
}
VALID: dict[Any, dict[str, Any]] = {
    make: dict(zip(inspect.signature(make).parameters, values, strict=True))
    for make, values in ARGUMENTS.items()
}
NOT_INTEGERS = [(value, TypeError) for value in (2.0, True, None, "2")]
OUTSIDE = {  # by member; all others are UINTs
    "input_window_strides": [(-(2**31) - 1, ValueError), (2**31, ValueError)],
    "total_tensor_size_in_bytes": [(-1, ValueError), (2**64, ValueError)],
    "flags": [(-1, ValueError), (2, ValueError)],
}
UINTS = [(-1, ValueError), (2**32, ValueError)]
NOT_SEQUENCES = [(3, TypeError), ("12", TypeError), ({1}, TypeError)]
WRONG = {  # by the end of the member's name: values, and the errors they get
    "data_type": [
        (14, ValueError),
        (-1, ValueError),
        ("FLOAT", ValueError),
        (float, ValueError),
        (np.floating, ValueError),
        (np.dtype(">f4"), ValueError),
        (np.zeros(1, np.float32), TypeError),
        (None, TypeError),
        (True, TypeError),
        (1.0, TypeError),
    ],
    "_tensor": [(None, TypeError), ((2, 3), TypeError)],
    "value": [(1.0, TypeError), (b"12345678", TypeError)],
    "value_start": [(1.0, TypeError)],
    "value_delta": [(b"12345678", TypeError)],
    "operator": [(None, TypeError), ("SLICE", TypeError)],
    "data": [
        ([1, 2], TypeError),
        ("ab", TypeError),
        (np.zeros(2, np.uint8), TypeError),
    ],
    "name": [(5, TypeError), (b"a", TypeError), ("", ValueError)],
    "nodes": [(None, TypeError), ({}, TypeError)],
    "_edges": [(None, TypeError), ("a", TypeError)],
}


def wrong_values() -> list[tuple[Any, ...]]:
    """For each member: how to make its structure, the values, error, and its name."""
    rows: list[tuple[Any, ...]] = []
    for make, valid in VALID.items():
        for name, value in valid.items():
            outside = OUTSIDE.get(name, UINTS)
            endings = [ending for ending in WRONG if name.endswith(ending)]
            if endings:
                rows += [(make, name, *row, name) for row in WRONG[max(endings)]]
            elif isinstance(value, tuple):
                rows += [(make, name, *row, name) for row in NOT_SEQUENCES]
                for element, error in [*NOT_INTEGERS, *outside]:
                    rows.append((make, name, (0, element), error, f"{name}[1]"))
            else:
                is_default = name == "total_tensor_size_in_bytes"
                for row in [*NOT_INTEGERS, *outside]:
                    if row[0] is not None or not is_default:
                        rows.append((make, name, *row, name))
    for make in (BufferTensorDesc, dml.calc_buffer_tensor_size):
        rows.append((make, "strides", (3,), ValueError, "strides"))
    for name, part in [
        ("nodes", FILL),
        ("input_edges", dml.OutputGraphEdgeDesc(0, 0, 0)),
        ("output_edges", dml.InputGraphEdgeDesc(0, 0, 0)),
        ("intermediate_edges", (0, 0, 1, 0)),
    ]:
        rows.append((dml.GraphDesc, name, [part], TypeError, f"{name}[0]"))
    return rows


@pytest.mark.parametrize(("make", "name", "value", "error", "member"), wrong_values())
def test_what_a_constructor_refuses(
    make: Any, name: str, value: Any, error: type[Exception], member: str
) -> None:
    with pytest.raises(error) as caught:
        make(**{**VALID[make], name: value})
    assert type(caught.value) is error
    start = f"{make.__name__}: `{member}` must "
    assert str(caught.value).startswith(start)
    assert "; got " in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (
            dml.SliceOperatorDesc,
            {"offsets": (0, -1)},
            "must be 0 to 4294967295; got -1",
        ),
        (dml.GraphDesc, {"nodes": [NODE, FILL]}, "must be OperatorGraphNodeDesc or "),
        (
            BufferTensorDesc,
            {"data_type": 14},
            "must be a DataType such as DataType.FLOAT32, its name or its NumPy dtype; "
            "got int 14",
        ),
        (
            BufferTensorDesc,
            {"data_type": np.dtype("bool")},
            "got BoolDType dtype('bool'). DirectML has no bool; use UINT8",
        ),
        (
            BufferTensorDesc,
            {"data_type": np.complex64},
            "got the class complex64. DirectML has no complex type",
        ),
        (
            dml.FillValueConstantOperatorDesc,
            {"value": ScalarUnion},
            "got the class ScalarUnion; make an object of it",
        ),
        (
            dml.FillValueConstantOperatorDesc,
            {"value": 3.0},
            "must be a ScalarUnion such as ScalarUnion(float32=1.0); got float 3.0",
        ),
        (
            BufferTensorDesc,
            {"flags": "OWNED_BY_DML"},
            "must be TensorFlags.NONE or TensorFlags.OWNED_BY_DML; got str "
            "'OWNED_BY_DML'",
        ),
    ],
)
def test_messages_say_what_was_given(
    make: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make(**{**VALID[make], **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize("make", VALID, ids=lambda make: make.__name__)
def test_valid_arguments_are_accepted(make: Any) -> None:
    """So each value above is refused for what it changes; lists become tuples."""
    lists = {k: list(v) if type(v) is tuple else v for k, v in VALID[make].items()}
    assert make(**lists) == make(**VALID[make])
    assert hash(make(**lists)) == hash(make(**VALID[make]))


def test_descriptions_are_copied_and_pickled() -> None:
    for copied in (copy.copy(FILL), copy.deepcopy(FILL)):
        assert copied == FILL
    assert pickle.loads(pickle.dumps(FILL)) == FILL


def test_there_is_no_operator_without_a_type() -> None:
    with pytest.raises(TypeError, match="abstract"):
        dml.OperatorDesc()  # type: ignore[abstract]


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

EIGHT = b"12345678"


@pytest.mark.parametrize(
    ("error", "member", "members"),
    [
        (TypeError, "members", {"int8": 1, "uint8": 1}),
        (TypeError, "members", {"float16": 1.0}),
        (TypeError, "members", {"bytes": EIGHT, "int8": 1}),
        (TypeError, "int8", {"int8": 1.5}),
        (TypeError, "int8", {"int8": True}),
        (TypeError, "float32", {"float32": "1"}),
        (TypeError, "int32", {"int32": [1]}),
        (TypeError, "int32", {"int32": np.ones(1)}),
        (TypeError, "bytes", {"bytes": "12345678"}),
        (ValueError, "bytes", {"bytes": b"0" * 7}),
        (ValueError, "bytes", {"bytes": b"0" * 9}),
        (OverflowError, "float32", {"float32": 1e39}),
        *[
            (OverflowError, name, {name: value})
            for bits in (8, 16, 32, 64)
            for name in (f"int{bits}", f"uint{bits}")
            for value in (-(2 ** (bits - 1)) - 1, 2**bits)
        ],
    ],
)
def test_what_a_union_refuses(
    error: type[Exception], member: str, members: dict[str, Any]
) -> None:
    with pytest.raises(error, match=f"^ScalarUnion: `{member}` must .+; got .+") as e:
        ScalarUnion(**members)
    assert type(e.value) is error


def test_halves_are_rounded_once_and_do_not_overflow() -> None:
    value = 1 + 2**-11 + 2**-30  # to float32, and then to float16, would be 1
    assert ScalarUnion.of(DataType.FLOAT16, value).uint16 == 0x3C01
    with pytest.raises(OverflowError, match=r"^ScalarUnion: `value` must fit float16"):
        ScalarUnion.of(DataType.FLOAT16, 65520)


@pytest.mark.usefixtures("with_jit")
def test_a_union_is_of_static_numbers() -> None:
    with pytest.raises(TypeError, match="`float32` must be a static number; got trac"):
        jax.jit(lambda x: ScalarUnion(float32=x).uint32)(np.float32(1))


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


def test_data_types_below_8_bits_have_no_dtype() -> None:
    with pytest.raises(ValueError, match="at least 8 bits; got INT4"):
        ScalarUnion().read(DataType.INT4)


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
