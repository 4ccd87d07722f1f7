"""What DirectML's descriptions hold, and what their constructors refuse.

Each error is a row: the whole message, and the call that gets it.
"""

import copy
import pickle

import jax
import numpy as np
import pytest

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

X = BufferTensorDesc(DataType.FLOAT32, (2, 3))
LENGTHS = BufferTensorDesc(DataType.UINT32, (2, 1))
ONE = ScalarUnion(float32=1)
FILL = dml.FillValueConstantOperatorDesc(X, DataType.FLOAT32, ONE)
VALID = {
    dml.SliceOperatorDesc: dict(
        input_tensor=X, output_tensor=X, offsets=(0, 0), sizes=(2, 3), strides=(1, 1)
    ),
    dml.Slice1OperatorDesc: dict(
        input_tensor=X,
        output_tensor=X,
        input_window_offsets=(0, 0),
        input_window_sizes=(2, 3),
        input_window_strides=(1, -1),
    ),
    dml.SliceGradOperatorDesc: dict(
        input_gradient_tensor=X,
        output_gradient_tensor=X,
        input_window_offsets=(0, 0),
        input_window_sizes=(2, 3),
        input_window_strides=(1, -1),
    ),
    dml.ReverseSubsequencesOperatorDesc: dict(
        input_tensor=X, sequence_lengths_tensor=LENGTHS, output_tensor=X, axis=1
    ),
    dml.FillValueSequenceOperatorDesc: dict(
        output_tensor=X, value_data_type=1, value_start=ONE, value_delta=ONE
    ),
    dml.FillValueConstantOperatorDesc: dict(
        output_tensor=X, value_data_type=1, value=ONE
    ),
    BufferTensorDesc: dict(
        data_type=1,
        sizes=(2, 3),
        strides=(3, 1),
        total_tensor_size_in_bytes=24,
        flags=0,
        guaranteed_base_offset_alignment=16,
    ),
    dml.calc_buffer_tensor_size: dict(data_type=1, sizes=(2, 3), strides=(3, 1)),
}
ARGUMENTS = [(make, name) for make, valid in VALID.items() for name in valid]
SEQUENCES = [
    (make, name)
    for make, name in ARGUMENTS
    if name.endswith(("offsets", "sizes", "strides"))
]
WINDOW_STRIDES = "input_window_strides"


def full(make, name, message):
    return f"{make.__name__}: `{name}` {message}"


def for_each(arguments, rows, index=None):
    """The `rows` (value, error, message) of each of the `arguments`."""
    found = []
    for make, name in arguments:
        for value, error, message in rows:
            member = name if index is None else f"{name}[{index}]"
            given = value if index is None else (0, value)[-1 - index :]
            found.append((error, full(make, member, message), make, {name: given}))
    return found


def outside(least, most):
    return [
        (value, ValueError, f"must be {least} to {most}; got {value}")
        for value in (least - 1, most + 1)
    ]


NO_INTEGER = "must be a static integer; got "
NOT_INTEGERS = [
    (2.0, TypeError, NO_INTEGER + "float 2.0"),
    (True, TypeError, NO_INTEGER + "bool True"),
    (None, TypeError, NO_INTEGER + "NoneType None"),
    ("2", TypeError, NO_INTEGER + "str '2'"),
]
COUNTED = [pair for pair in ARGUMENTS if pair[1] in ("axis", "flags")]
COUNTED += [pair for pair in ARGUMENTS if pair[1].endswith("alignment")]
UNSIGNED = [pair for pair in COUNTED if pair[1] != "flags"]
SIGNED = [pair for pair in SEQUENCES if pair[1] == WINDOW_STRIDES]
FIRSTS = [pair for pair in SEQUENCES if pair not in SIGNED]
TOTAL = [(BufferTensorDesc, "total_tensor_size_in_bytes")]
LAYOUTS = [BufferTensorDesc, dml.calc_buffer_tensor_size]
ERRORS = [
    *for_each(COUNTED, NOT_INTEGERS),
    *for_each(TOTAL, [row for row in NOT_INTEGERS if row[0] is not None]),
    *for_each(SEQUENCES, NOT_INTEGERS, index=1),
    *for_each(UNSIGNED, outside(0, 4294967295)),
    *for_each(FIRSTS, outside(0, 4294967295), index=1),
    *for_each(SIGNED, outside(-2147483648, 2147483647), index=1),
    *for_each(TOTAL, outside(0, 18446744073709551615)),
    *for_each(
        SEQUENCES,
        [
            (3, TypeError, "must be a sequence of integers; got int 3"),
            ("12", TypeError, "must be a sequence of integers; got str '12'"),
        ],
    ),
    *for_each(
        [(make, "strides") for make in LAYOUTS],
        [((3,), ValueError, "must have 2 elements, one for each dimension; got 1")],
    ),
    *for_each(
        [(BufferTensorDesc, "flags")],
        [(n, ValueError, f"must be TensorFlags; got {n}") for n in (2, -1)],
    ),
    *for_each(
        [(make, name) for make, name in ARGUMENTS if name.endswith("data_type")],
        [
            (14, ValueError, "must be a DataType; got int 14"),
            (-1, ValueError, "must be a DataType; got int -1"),
            ("FLOAT32", TypeError, "must be a DataType; got str 'FLOAT32'"),
            (None, TypeError, "must be a DataType; got NoneType None"),
        ],
    ),
    *for_each(
        [(make, name) for make, name in ARGUMENTS if name.endswith("_tensor")],
        [
            (None, TypeError, "must be a BufferTensorDesc; got NoneType None"),
            ((2, 3), TypeError, "must be a BufferTensorDesc; got tuple (2, 3)"),
        ],
    ),
    *for_each(
        [(m, n) for m, n in ARGUMENTS if n in ("value", "value_start", "value_delta")],
        [
            (1.0, TypeError, "must be a ScalarUnion; got float 1.0"),
            (b"12345678", TypeError, "must be a ScalarUnion; got bytes b'12345678'"),
        ],
    ),
]
UNION = "bytes, float32, uint32, uint16, uint8, int32, int16, int8, float64, uint64, "
UNION = f"ScalarUnion: `members` must be one of {UNION}int64; got "
RANGE = "ScalarUnion: `{0}` must be in [{1}, {2}], the signed or unsigned range of {0}"
FITS = "ScalarUnion: `float32` must fit float32, whose largest value is "
FITS += "3.4028234663852886e+38; got "
FITS_HALF = "ScalarUnion: `value` must fit float16, whose largest value is 65504.0; got"
NOT_INT8 = "ScalarUnion: `int8` must be an integer or a scalar array of dtype int8; got"
NOT_REAL = "ScalarUnion: `float32` must be a real number or a scalar array of dtype "
EIGHT = b"12345678"
UNIONS = [
    (TypeError, UNION + "int8, uint8", ScalarUnion, dict(int8=1, uint8=1)),
    (TypeError, UNION + "float16", ScalarUnion, dict(float16=1.0)),
    (TypeError, UNION + "bytes, int8", ScalarUnion, dict(bytes=EIGHT, int8=1)),
    (TypeError, f"{NOT_INT8} float 1.5", ScalarUnion, dict(int8=1.5)),
    (TypeError, f"{NOT_INT8} bool True", ScalarUnion, dict(int8=True)),
    (TypeError, NOT_REAL + "float32; got str '1'", ScalarUnion, dict(float32="1")),
    (
        TypeError,
        "ScalarUnion: `bytes` must be bytes; got str '12345678'",
        ScalarUnion,
        dict(bytes="12345678"),
    ),
    *[
        (
            ValueError,
            f"ScalarUnion: `bytes` must be 8 bytes; got {n}",
            ScalarUnion,
            dict(bytes=b"0" * n),
        )
        for n in (0, 7, 9)
    ],
    *[
        (
            OverflowError,
            f"{RANGE.format(name, least, most)}; got {value}",
            ScalarUnion,
            {name: value},
        )
        for bits in (8, 16, 32, 64)
        for name in (f"int{bits}", f"uint{bits}")
        for least, most in [(-(2 ** (bits - 1)), 2**bits - 1)]
        for value in (least - 1, most + 1)
    ],
    (OverflowError, f"{FITS}1e+39", ScalarUnion, dict(float32=1e39)),
    (
        OverflowError,
        f"{FITS_HALF} 65520",
        ScalarUnion.of,
        dict(data_type=DataType.FLOAT16, value=65520),
    ),
]


@pytest.mark.parametrize(
    ("error", "message", "make", "changes"),
    [pytest.param(*row, id=row[1]) for row in ERRORS + UNIONS],
)
def test_what_a_constructor_refuses(error, message, make, changes):
    with pytest.raises(error) as caught:
        make(**{**VALID.get(make, {}), **changes})
    assert type(caught.value) is error
    assert str(caught.value) == message


@pytest.mark.parametrize("make", VALID, ids=lambda make: make.__name__)
def test_valid_arguments_are_accepted(make):
    """So that each row above is refused for what it changes; lists become tuples."""
    lists = {k: list(v) if type(v) is tuple else v for k, v in VALID[make].items()}
    assert make(**lists) == make(**VALID[make])
    assert hash(make(**lists)) == hash(make(**VALID[make]))


# The scalar union ---------------------------------------------------------------------


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
        (ScalarUnion(uint64=2**63), "INT32", 0),
        (ScalarUnion(), "FLOAT64", 0.0),
    ],
)
def test_a_union_is_read_as_another_type(union, data_type, bits):
    found = union.read(DataType[data_type])
    assert found == bits
    assert found.dtype == np.dtype(data_type.lower())
    if data_type != "FLOAT16":
        assert getattr(union, data_type.lower()) == bits


def test_a_half_is_rounded_once():
    value = 1 + 2**-11 + 2**-30  # to float32, and then to float16, would be 1
    assert ScalarUnion.of(DataType.FLOAT16, value).uint16 == 0x3C01


def test_unions_are_equal_by_their_bits():
    one = ScalarUnion(float32=1.0)
    assert one == ScalarUnion(uint32=0x3F800000) == ScalarUnion(uint64=0x3F800000)
    assert hash(one) == hash(ScalarUnion(uint32=0x3F800000))
    assert one != ScalarUnion(float64=1.0)
    assert one != one.bytes
    assert ScalarUnion(float32=0.0) != ScalarUnion(float32=-0.0)
    assert repr(one) == r"ScalarUnion(bytes=b'\x00\x00\x80?\x00\x00\x00\x00')"
    assert eval(repr(one)) == one


def test_a_union_cannot_change():
    one = ScalarUnion(uint8=1)
    for name in ("bytes", "uint8", "other"):
        with pytest.raises(AttributeError, match="cannot assign"):
            setattr(one, name, 2)
    with pytest.raises(AttributeError, match=r"^ScalarUnion has no member 'float16'$"):
        one.float16  # noqa: B018
    assert one.uint8 == 1


def test_descriptions_are_copied_and_pickled():
    for copy_of in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        assert copy_of(FILL) == FILL
        assert copy_of(FILL).value.bytes == FILL.value.bytes


@pytest.mark.usefixtures("x32")  # where the list has the dtype of the message
def test_the_type_of_an_array_is_looked_at_before_its_width():
    tensor = BufferTensorDesc(DataType.FLOAT32, (2,))
    copy_of = dml.compile_operator(dml.SliceOperatorDesc(tensor, tensor, [0], [2], [1]))
    for array, got in (([1, 2], "int32"), (np.ones(2), "float64")):
        with pytest.raises(TypeError) as caught:
            copy_of(array)
        assert str(caught.value) == (
            f"DML_OPERATOR_SLICE: `InputTensor` must have dtype float32; got {got}"
        )


def test_there_is_no_operator_without_a_type():
    with pytest.raises(TypeError):
        dml.OperatorDesc()


@pytest.mark.usefixtures("with_jit")
def test_a_union_is_of_static_numbers():
    with pytest.raises(TypeError) as caught:
        jax.jit(lambda x: ScalarUnion(float32=x).uint32)(np.float32(1))
    assert str(caught.value) == (
        "ScalarUnion: `float32` must be a static number; got traced float32 array of "
        "shape ()"
    )


def test_a_number_of_an_enumeration_is_not_a_bool_or_a_float():
    for number in (True, 1.0):
        with pytest.raises(TypeError, match="`data_type` must be a DataType; got"):
            BufferTensorDesc(number, (1,))


def test_compiled_operators_have_a_name():
    text = jax.jit(dml.compile_operator(FILL)).lower().as_text()
    assert "@jit_DML_OPERATOR_FILL_VALUE_CONSTANT" in text


@pytest.mark.parametrize(
    ("needed", "data_type", "sizes", "strides"),
    [
        (6, DataType.FLOAT16, (3,), None),
        (3, DataType.UINT4, (5,), None),
        (2, DataType.INT4, (2, 2), (2, 1)),
        (7, DataType.INT8, (2, 3), (4, 1)),
        (0, DataType.UNKNOWN, (5,), None),
    ],
)
def test_the_bytes_that_elements_need_are_whole(needed, data_type, sizes, strides):
    assert BufferTensorDesc(data_type, sizes, strides).needed_bytes == needed
