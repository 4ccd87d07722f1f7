"""What is bound to a compiled DirectML operator, and what is not.

Each error is a row: the whole message, and the description and arrays that get it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType, ScalarUnion

X = BufferTensorDesc(DataType.FLOAT32, (2, 3))
LENGTHS = BufferTensorDesc(DataType.UINT32, (2, 1))
REVERSE = dml.ReverseSubsequencesOperatorDesc(X, LENGTHS, X, 1)
PADDED = BufferTensorDesc(DataType.FLOAT32, (2, 3), (4, 1))
STRIDED = dml.SliceOperatorDesc(PADDED, PADDED, (0, 0), (2, 3), (1, 1))
FILL = dml.FillValueConstantOperatorDesc(X, DataType.FLOAT32, ScalarUnion(float32=1))
ARRAY, NUMBERS = jnp.zeros((2, 3), np.float32), jnp.ones((2, 1), jnp.uint32)
BOUND = "must have shape (2, 3) or be a flat buffer of at least 6 elements; got shape "
FLAT = "must be a flat buffer of at least 7 elements; got shape "
WIDE = (
    "has dtype {0}, which needs 64-bit mode; enable it with "
    "`jax.config.update('jax_enable_x64', True)` or inside "
    "`with jax.enable_x64(True):`, or cast to a narrower dtype than {0}"
)


def wide(dtype):
    tensor = BufferTensorDesc(DataType[dtype.upper()], (2, 3))
    return dml.SliceOperatorDesc(tensor, tensor, (0, 0), (2, 3), (1, 1))


TWO = (
    "`inputs` must be an array for each tensor (InputTensor, SequenceLengthsTensor); "
    "got"
)
ONE_OUTPUT = "`outputs` must be an array for each tensor (OutputTensor); got"
BINDING = {  # the message: description, inputs, outputs
    TypeError: {
        f"{TWO} 1": (REVERSE, [ARRAY], None),
        f"{TWO} 3": (REVERSE, [ARRAY, NUMBERS, ARRAY], None),
        f"{ONE_OUTPUT} 0": (FILL, [], []),
        f"{ONE_OUTPUT} 3": (FILL, [], [ARRAY] * 3),
        "`inputs` must be an array for each tensor (none); got 1": (
            FILL,
            [ARRAY],
            None,
        ),
        "`outputs` must be a sequence of arrays; got float32 array of shape (2, 3)": (
            FILL,
            [],
            ARRAY,
        ),
        "`outputs` must be a sequence of arrays; got dict {0: 1}": (FILL, [], {0: 1}),
        "`InputTensor` must have dtype float32; got uint32": (
            REVERSE,
            [NUMBERS] * 2,
            None,
        ),
        "`SequenceLengthsTensor` must have dtype uint32; got int32": (
            REVERSE,
            [ARRAY, np.ones((2, 1), np.int32)],
            None,
        ),
        "`OutputTensor` must have dtype float32; got uint32": (FILL, [], [NUMBERS]),
        "`InputTensor` must be an array or convertible to one; got NoneType None": (
            REVERSE,
            [None, NUMBERS],
            None,
        ),
    },
    ValueError: {
        f"`InputTensor` {BOUND}(3, 2)": (REVERSE, [ARRAY.T, NUMBERS], None),
        f"`InputTensor` {BOUND}(3,)": (REVERSE, [ARRAY[0], NUMBERS], None),
        f"`InputTensor` {BOUND}(1, 9)": (
            REVERSE,
            [jnp.zeros((1, 9), np.float32), NUMBERS],
            None,
        ),
        f"`OutputTensor` {BOUND}(5,)": (FILL, [], [jnp.zeros(5, np.float32)]),
        f"`InputTensor` {FLAT}(2, 3)": (STRIDED, [ARRAY], None),
        f"`InputTensor` {FLAT}(6,)": (STRIDED, [jnp.zeros(6, np.float32)], None),
        f"`OutputTensor` {FLAT}(2, 3)": (STRIDED, [jnp.zeros(7, np.float32)], [ARRAY]),
        **{
            f"`InputTensor` {WIDE.format(k)}": (wide(k), [np.zeros((2, 3), k)], None)
            for k in ("float64", "int64", "uint64")
        },
    },
}


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(
    ("error", "message"),
    [(e, message) for e, row in BINDING.items() for message in row],
)
def test_what_cannot_be_bound(error, message):
    desc, inputs, outputs = BINDING[error][message]
    operator = dml.compile_operator(desc)
    with pytest.raises(error) as caught:
        operator(*inputs, outputs=outputs)
    assert type(caught.value) is error
    assert str(caught.value) == f"DML_OPERATOR_{desc.type.name}: {message}"


def test_wide_tensors_are_bound_in_64_bit_mode():
    value = np.full((2, 3), 1 + 2**-40)
    with jax.enable_x64(True):
        found = dml.compile_operator(wide("float64"))(value)
        assert found.dtype == np.float64
        assert (np.asarray(found) == value).all()


@pytest.mark.usefixtures("x32")
def test_fills_of_wide_types_need_64_bit_mode():
    tensor = BufferTensorDesc(DataType.FLOAT64, (2,))
    desc = dml.FillValueConstantOperatorDesc(tensor, 9, ScalarUnion(float64=1))
    with pytest.raises(ValueError, match="needs 64-bit mode") as caught:
        dml.compile_operator(desc)()
    message = f"fill_value_constant: `value_data_type` {WIDE.format('float64')}"
    assert str(caught.value) == message


def test_what_cannot_be_compiled():
    with pytest.raises(TypeError) as caught:
        dml.compile_operator("SLICE")
    assert str(caught.value) == (
        "compile_operator: `desc` must be the description of an operator; got str "
        "'SLICE'"
    )
    for level in (5, "6_4", None):
        with pytest.raises((TypeError, ValueError), match="feature_level") as caught:
            dml.compile_operator(FILL, level)
        kind = type(level).__name__
        message = f"must be a FeatureLevel; got {kind} {level!r}"
        assert str(caught.value) == f"compile_operator: `feature_level` {message}"
