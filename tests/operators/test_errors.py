"""Every argument of every public function, given wrongly: the whole message it gets.

A row is a function, what is wrong, the arguments that differ from a valid call, the
exception and its message, which is compared whole. A message that ends with … goes on
in words that are JAX's, NumPy's or an address.
"""

import array
from typing import NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from wrong_calls.arrays import ARRAY_ERRORS
from wrong_calls.calls import DATES, KEY, LENGTHS, REVERSALS, VALID, X, call, reverse
from wrong_calls.checked import CHECKED_ERRORS
from wrong_calls.fills import FILL_ERRORS
from wrong_calls.lengths import LENGTH_ERRORS
from wrong_calls.options import OPTION_ERRORS
from wrong_calls.wide import X64_ERRORS
from wrong_calls.windows import SEQUENCE_ERRORS

import dml_jax

ERRORS = [
    *ARRAY_ERRORS,
    *LENGTH_ERRORS,
    *OPTION_ERRORS,
    *SEQUENCE_ERRORS,
    *FILL_ERRORS,
    *CHECKED_ERRORS,
    *X64_ERRORS,
]


def test_every_row_has_a_name_of_its_own():
    assert len({row.id for row in ERRORS}) == len(ERRORS)


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.id)
def test_message(row):
    with pytest.raises(row.error) as raised:
        row.call()
    assert type(raised.value) is row.error
    opening, ellipsis, _ = row.message.partition("…")
    message = str(raised.value)
    assert (message[: len(opening)] if ellipsis else message) == opening


# What must not be an error ------------------------------------------------------------


@pytest.mark.parametrize("function", VALID)
def test_the_call_that_the_table_varies_is_valid(function, x64):
    call(function)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, ml_dtypes.int4])
def test_lengths_of_any_integer_dtype(dtype, x64):
    result = reverse(X, LENGTHS.astype(dtype))
    np.testing.assert_array_equal(result, reverse(X, LENGTHS))


def test_lengths_in_a_list_of_traced_numbers():
    result = jax.jit(lambda n: reverse(X, [n, 4, 3]))(2)
    np.testing.assert_array_equal(result, reverse(X, LENGTHS))


def test_input_in_a_list_of_traced_numbers():
    result = jax.jit(lambda x: reverse([[x, 2.0], [3.0, 4.0]], [2, 0]))(1.0)
    np.testing.assert_array_equal(result, [[2, 1], [3, 4]])


def test_strides_beyond_every_axis():
    far = dict(offsets=(1, 2), sizes=(1, 1), strides=(2**70, 2**31))
    np.testing.assert_array_equal(call("slice", **far), X[1:2, 2:3])
    far = dict(input_window_strides=(2**70, -(2**63)), output_sizes=(1, 1))
    np.testing.assert_array_equal(call("slice1", **far), X[:1, 3:])
    del far["output_sizes"]
    result = call("slice_grad", input_gradient=X[:1, 1:2], **far)
    np.testing.assert_array_equal(np.argwhere(result), [[0, 4]])


@pytest.mark.parametrize("coefficient", [2**70, np.float64(0.5), np.array(3), 0])
def test_coefficients_of_any_real_kind(coefficient):
    call("reverse_sequence", lda_coeff=coefficient)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int4", "float16", "complex64"])
def test_traced_python_numbers(dtype):
    result = jax.jit(lambda value: dml_jax.fill_value_constant((1,), dtype, value))(5)
    np.testing.assert_array_equal(result, np.array([5], dtype))


@pytest.mark.parametrize("sizes", [(2, 2**31), (2, 2, 2**31), (0, 2**40)], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "uint32", "float16", "float32"])
def test_more_elements_than_int32_counts(sizes, dtype):
    result = jax.eval_shape(
        lambda: dml_jax.fill_value_sequence(sizes, dtype, value_start=0, value_delta=1)
    )
    assert (result.shape, result.dtype) == (sizes, dtype)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_fills_of_a_symbolic_size_without_bounds(dtype):
    def like(x):
        return dml_jax.fill_value_sequence(x.shape, dtype, 10, -2)

    shape = jax.export.symbolic_shape("n, m")
    exported = jax.export.export(jax.jit(like))(jax.ShapeDtypeStruct(shape, np.int8))
    np.testing.assert_array_equal(exported.call(np.ones((1, 3), np.int8)), [[10, 8, 6]])


def test_checked_around_a_gradient():
    gradient = dml_jax.checked(jax.grad(lambda x: jnp.sum(reverse(x, LENGTHS) * X)))
    np.testing.assert_array_equal(gradient(X), reverse(X, LENGTHS))


# Anything for anything ----------------------------------------------------------------

# No value makes a large array, whichever argument it becomes.
ODDITIES = [
    *[None, True, 0, 1, -1, 2, 5, 2**31, 2**40, 2**70, -(2**70)],
    *[0.0, 1.5, -1e39, np.nan, np.inf, 1j, "", "abc", "gather", "float32", b"abc"],
    *[[], (), (1,), (0, 0), [1, 1], (2, 1), [0, 2**40], [-1, 1], (1, 1, 1), range(2)],
    *[[1.5, 2.5], [True, False], ["a", "b"], [None, None], [2**70, 1], [np.nan, 1]],
    *[[[1, 2], [3, 4]], [[1, 2], [3]], {1, 2}, {"a": 1}, object(), int, float, len],
    *[X, X[0], X[0, 0], X > 3, X.astype(int), X.astype(float), X.astype(complex)],
    *[X.astype(">f4"), X.astype(np.longdouble), X.astype(object), X.astype(str)],
    *[X.astype(ml_dtypes.bfloat16), X.astype(ml_dtypes.int4), np.ma.array(X)],
    *[LENGTHS, LENGTHS[:, None], LENGTHS.astype(np.uint64), LENGTHS.astype(np.int8)],
    *[np.array([2, 2**40, -3]), np.zeros((0, 3)), np.zeros((3, 0), np.int32)],
    *[np.float16(2), np.int64(2), np.uint8(255), np.bool_(True), np.longdouble(2)],
    *[DATES, DATES[0], np.timedelta64(3, "ns"), np.zeros((3, 4), [("a", np.int32)])],
    *[np.zeros(3, "V4"), np.array(3, object), np.zeros((3, 4), jax.dtypes.float0)],
    *[jnp.asarray(X), jnp.asarray(2), jnp.asarray(300), jnp.asarray(2.5)],
    *[jnp.float32(2), jnp.int8(1), jnp.ones(1), jnp.ones(2, int), jnp.array(True)],
    *[KEY, jax.random.split(KEY, (3, 4)), jax.ShapeDtypeStruct((3, 4), np.float32)],
    *["int8", "uint4", "bool", "int64", "complex64", "float8_e4m3fn", "m8[s]", ">i4"],
    *[np.float16, np.dtype("V4"), KEY.dtype, array.array("d", [1, 2]), memoryview(X)],
]


def message_of(function, changes):
    """What a call says when it fails as it may, None when it does not fail."""
    try:
        call(function, **changes)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        return str(error)
    return None


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("mode", ["x32", "x64"])
@pytest.mark.parametrize("function", VALID)
@hypothesis.settings(max_examples=150)
@hypothesis.given(data=st.data())
def test_anything_gives_a_result_or_one_of_our_errors(function, mode, data):
    names = [*VALID[function]]
    if function in REVERSALS:
        names += ["implementation"]
    if function == "reverse_sequence":
        names += ["lda_coeff", "name", "specified_outputs_name"]
    any_value = st.integers(0, len(ODDITIES) - 1).map(ODDITIES.__getitem__)
    changes = data.draw(
        st.dictionaries(st.sampled_from(names), any_value, min_size=1, max_size=2)
    )
    with jax.enable_x64(mode == "x64"):
        message = message_of(function, changes)
    assert message is None or message.startswith(f"{function}: ")


# What is remembered -------------------------------------------------------------------


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


def test_an_axis_that_changes_is_looked_at_again():
    class Axis:
        value = 0

        def __index__(self):
            return self.value

    axis = Axis()
    dml_jax.reverse_subsequences(X[:2, :2], np.array([[2, 2]]), axis)
    axis.value = 1
    with pytest.raises(ValueError, match=r"^reverse_subsequences: `sequence_lengths`"):
        dml_jax.reverse_subsequences(X[:2, :2], np.array([[2, 2]]), axis)


@pytest.mark.parametrize("name", ["float6_e2m3fn", "float6_e3m2fn", "int1", "uint1"])
def test_dtypes_of_ml_dtypes_that_jax_cannot_compute_with(name):
    dtype = np.dtype(getattr(ml_dtypes, name, "V1"))
    with pytest.raises(TypeError, match=r"^slice: `input` must have a dtype that JAX"):
        dml_jax.slice(np.zeros(3, dtype), (0,), (1,))


def test_an_adjoint_needs_a_zero():
    gradient = np.ones(1, ml_dtypes.float8_e8m0fnu)
    with pytest.raises(TypeError, match="must have a dtype with a zero"):
        dml_jax.slice_grad(gradient, (3,), (1,), (1,), (1,))


def test_one_error_is_one_traceback():
    with pytest.raises(ValueError, match=r"^reverse_sequence") as error:
        reverse(X, LENGTHS[:2])
    assert error.value.__context__ is None
