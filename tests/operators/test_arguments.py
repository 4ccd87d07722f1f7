"""What arguments of public functions may be; `wrong_calls` has what they may not."""

import collections
import struct
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from forms import Arrayed
from wrong_calls.functions import LENGTHS, X, call

import dml_jax


@pytest.mark.parametrize("axes", [{"batch_axis": 0}, {"time_axis": 1}])
def test_one_axis_determines_the_other(axes: dict[str, int]):
    both = call("reverse_sequence")
    given = {"batch_axis": None, "time_axis": None} | axes
    np.testing.assert_array_equal(call("reverse_sequence", **given), both)
    default = dml_jax.reverse_sequence(X.T, LENGTHS)
    np.testing.assert_array_equal(default.T, both)


def test_input_in_a_list_of_traced_numbers():
    result = jax.jit(
        lambda x: call(
            "reverse_sequence", input=[[x, 2.0], [3.0, 4.0]], sequence_lens=[2, 0]
        )
    )(1.0)
    np.testing.assert_array_equal(result, [[2, 1], [3, 4]])


def test_strides_beyond_every_axis():
    far: dict[str, Any] = {
        "offsets": (1, 2),
        "sizes": (1, 1),
        "strides": (2**70, 2**31),
    }
    np.testing.assert_array_equal(call("slice", **far), X[1:2, 2:3])
    far = {"input_window_strides": (2**70, -(2**63)), "output_sizes": (1, 1)}
    np.testing.assert_array_equal(call("slice1", **far), X[:1, 3:])
    del far["output_sizes"]
    result = call("slice_grad", input_gradient=X[:1, 1:2], **far)
    np.testing.assert_array_equal(np.argwhere(result), [[0, 3]])


@pytest.mark.parametrize("coefficient", [2**70, np.float64(0.5), np.array(3), 0])
def test_coefficients_of_any_real_kind(coefficient: Any):
    call("reverse_sequence", lda_coeff=coefficient)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int4", "float16", "complex64"])
def test_traced_python_numbers(dtype: str):
    result = jax.jit(lambda value: dml_jax.fill_value_constant((1,), dtype, value))(5)
    np.testing.assert_array_equal(result, np.array([5], dtype))


SEQUENCES = {
    "range": range(1, 4),
    "deque": collections.deque([1, 2, 3]),
    "user": collections.UserList([1, 2, 3]),
    "tuple": (1, 2, 3),
}


@pytest.mark.parametrize("kind", SEQUENCES)
def test_inputs_that_are_no_lists(kind: str, x64: bool):
    sequence = SEQUENCES[kind]
    dtype = np.int64 if x64 else np.int32
    whole = np.array([[1, 2, 3]] * 2, dtype)
    assert_same_bits(dml_jax.slice(sequence, (1,), (2,)), whole[0, 1:])
    rows = (sequence, collections.deque([1, 2, 3]))
    assert_same_bits(dml_jax.slice1(rows, (0, 1), (2, 2), (1, 1)), whole[:, 1:])
    put = dml_jax.slice_grad(sequence, (5,), (0,), (5,), (2,))
    assert_same_bits(put, np.array([1, 0, 2, 0, 3], dtype))
    turned = dml_jax.reverse_subsequences(rows, [[2], [3]], 1)
    assert_same_bits(turned, np.array([[2, 1, 3], [3, 2, 1]], dtype))


def test_integers_of_numpy_that_have_no_dtype_in_common(x64: bool):
    numbers = [np.uint64(3), 4, np.int8(-1)]
    dtype = np.int64 if x64 else np.int32
    whole = dml_jax.slice(numbers, (0,), (3,))
    assert_same_bits(whole, np.array([3, 4, -1], dtype))


@pytest.mark.usefixtures("x32")
def test_fills_of_python_numbers_that_jax_holds() -> None:
    with jax.enable_x64(True):  # weakly typed: they stand for the numbers
        small = jnp.asarray(1.5)
    filled = dml_jax.fill_value_constant((1,), "float32", small)
    assert_same_bits(filled, np.array([1.5], np.float32))


# Memoized checks ----------------------------------------------------------------------


class Pair(NamedTuple):
    first: int
    second: int


def test_a_valid_call_does_not_make_an_equal_one_valid():
    """(True, 2) equals (1, 2), and so does any tuple class with these elements."""
    for sizes in ((1, 2), Pair(1, 2)):
        assert dml_jax.fill_value_constant(sizes, "int8", 1).shape == (1, 2)
    for sizes in ((True, 2), (1.0, 2), Pair(True, 2), Pair(1.0, 2)):
        with pytest.raises(TypeError, match=r"^fill_value_constant: `sizes.0.` must"):
            dml_jax.fill_value_constant(sizes, "int8", 1)
    x, lengths = X[:2, :2], np.array([[2, 2]])
    dml_jax.reverse_subsequences(x, lengths, 0)
    with pytest.raises(TypeError, match=r"^reverse_subsequences: `axis` must"):
        dml_jax.reverse_subsequences(x, lengths, False)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int4, jnp.float8_e4m3fn])
def test_objects_and_lists_of_narrow_dtypes(dtype: Any):
    array = np.arange(4).astype(dtype)
    for value in (Arrayed(array), list(array)):
        assert_same_bits(dml_jax.slice(value, (1,), (2,)), array[1:3])


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.int4])
def test_constants_of_jax_are_static_inside_of_jit(dtype: Any):
    sizes = jnp.array([2, 3], dtype)
    result = jax.jit(lambda: dml_jax.fill_value_constant(sizes, "int8", 1))()
    assert_same_bits(result, np.ones((2, 3), np.int8))


@pytest.mark.usefixtures("nans_are_data")
def test_a_list_with_a_signalling_nan():
    (nan,) = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000001))
    assert np.isnan(dml_jax.slice([nan], (0,), (1,))).all()  # without a warning
