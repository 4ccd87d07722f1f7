"""What arguments of public functions may be; `wrong_calls` has what they may not.

`test_random_calls.py` has arrays of every dtype, and lengths of every dtype, under
every transformation.
"""

import array
import collections
import functools
import struct
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, numbers
from dtypes import INTEGERS, dtype_of
from forms import Arrayed
from sampling import default_of, sampled_x64
from wrong_calls.functions import LENGTHS, X, call

import dml_jax
from dml_jax import reference

# Data ---------------------------------------------------------------------------------


def test_input_in_a_list_of_traced_numbers() -> None:
    reverse = functools.partial(call, "reverse_sequence", sequence_lens=[2, 0])
    y = jax.jit(lambda x: reverse(input=[[x, 2.0], [3.0, 4.0]]))(1.0)
    np.testing.assert_array_equal(y, [[2, 1], [3, 4]])


ROWS = {
    "range": range(1, 4),
    "deque": collections.deque([1, 2, 3]),
    "user": collections.UserList([1, 2, 3]),
    "tuple": (1, 2, 3),
}


@pytest.mark.parametrize("kind", ROWS)
def test_inputs_that_are_no_lists(kind: str, x64: bool) -> None:
    row = ROWS[kind]
    dtype = np.int64 if x64 else np.int32
    whole = np.array([[1, 2, 3]] * 2, dtype)
    assert_same_bits(dml_jax.slice(row, (1,), (2,)), whole[0, 1:])
    rows = (row, collections.deque([1, 2, 3]))
    assert_same_bits(dml_jax.slice1(rows, (0, 1), (2, 2), (1, 1)), whole[:, 1:])
    put = dml_jax.slice_grad(row, (5,), (0,), (5,), (2,))
    assert_same_bits(put, np.array([1, 0, 2, 0, 3], dtype))
    turned = dml_jax.reverse_subsequences(rows, [[2], [3]], 1)
    assert_same_bits(turned, np.array([[2, 1, 3], [3, 2, 1]], dtype))


def test_integers_of_numpy_that_have_no_dtype_in_common(x64: bool) -> None:
    whole = dml_jax.slice([np.uint64(3), 4, np.int8(-1)], (0,), (3,))
    assert_same_bits(whole, np.array([3, 4, -1], np.int64 if x64 else np.int32))


TEXT = [
    np.array([["a", "bc", ""], ["d", "e", "fgh"]]),
    np.array([[b"a", b"bc", b""], [b"d", b"e", b"f"]]),
    np.array([["a", None, 3], [(1,), "e", 2.5]], object),
    np.array([["a", "bc", ""], ["d", "e", "fgh"]], np.dtypes.StringDType()),
]


@pytest.mark.parametrize("text", TEXT, ids=lambda text: text.dtype.kind)
@pytest.mark.parametrize("lens", [[2, 3], [7, -1], np.array([0, 2], np.uint8)])
def test_strings_and_objects_stay_on_the_host(text: np.ndarray, lens: Any) -> None:
    result = dml_jax.reverse_sequence(text, lens, **BATCH_MAJOR)
    assert isinstance(result, np.ndarray)
    assert result.dtype == text.dtype
    expected = reference.reverse_sequence(text, lens, **BATCH_MAJOR)
    assert result.tolist() == expected.tolist()


def test_strings_along_an_axis_longer_than_the_lengths_dtype() -> None:
    text = np.arange(600).reshape(300, 2).astype(str)
    lengths = np.array([3, 4]).astype(dtype_of("int4"))
    expected = reference.reverse_sequence(text, [3, 4])
    assert dml_jax.reverse_sequence(text, lengths).tolist() == expected.tolist()


def test_strings_of_a_list_by_lengths_of_64_bits() -> None:
    with jax.enable_x64(True):
        lengths = jnp.asarray([2**32 + 1, -(2**32) + 2])
    result = dml_jax.reverse_sequence([["a", "b"], ["c", "d"]], lengths)
    assert result.tolist() == [["c", "b"], ["a", "d"]]


# Lengths: they count by value ---------------------------------------------------------

reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR)
COUNT = 24  # of lengths, so that most calls are of one program


def reversed_by(lengths: list[int]) -> np.ndarray:
    return reference.reverse_sequence(numbers(len(lengths), 4), lengths, 0, 1)


def column(lengths: Any) -> Any:
    """One length for each line."""
    if isinstance(lengths, jax.Array):
        return jax.lax.expand_dims(lengths, [1])  # indexing would narrow it
    is_array = isinstance(lengths, np.ndarray)
    return lengths[:, None] if is_array else [[n] for n in lengths]


def require_reversed(lengths: Any, values: list[int]) -> None:
    """By both functions; `checked` names the extremes, if one is wrong."""
    x, expected = numbers(len(values), 4), reversed_by(values)
    assert_same_bits(reverse(x, lengths), expected)
    lines = dml_jax.reverse_subsequences(x, column(lengths), 1)
    assert_same_bits(lines, expected)
    checked = dml_jax.checked(lambda: reverse(x, lengths))
    if all(0 <= n <= 4 for n in values):
        assert_same_bits(checked(), expected)
        return
    with pytest.raises(ValueError, match=f"got {min(values)} to {max(values)}$"):
        checked()


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", INTEGERS[2:])  # int2 has no 4
def test_arrays_of_numbers_at_the_ends_of_every_width(name: str) -> None:
    info = jnp.iinfo(dtype_of(name))
    ends = {-(2**32), -4, -1, 0, 1, 3, 4, 5, info.min, info.max}
    ends |= {2**bits + offset for bits in (31, 32, 63) for offset in (-1, 0, 1, 2)}
    values = [n for n in ends if info.min <= n <= info.max]
    values = (COUNT * values)[:COUNT]
    lengths = np.array(values, object).astype(dtype_of(name))
    require_reversed(lengths, values)
    with jax.enable_x64(True):
        lengths = jnp.asarray(lengths)
    require_reversed(lengths, values)


FAR = [0, 3, 5, 2**31, 2**32 + 1, 2**40, 2**63, 2**64 - 1, -1, -(2**40), -(2**63)]
SEQUENCES = {
    "list": FAR,
    "tuple": tuple(FAR),
    "far": [2**33, 2**63, 2**32 + 1],
    "one": [2**32 + 1],
    "range": range(1, 4),
    "array": array.array("i", [1, 2, 3]),
    "deque": collections.deque([1, 2, 2**40]),
    "user": collections.UserList([1, 2, -3]),
    "none": [],
    **{
        f"beside-{kind.__name__}": [kind(2), 3, other, kind(4)]
        for kind in (np.int8, np.int64, np.uint64, jnp.int32)
        for other in (2**64 - 1, -(2**40))
    },
}


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_of_numbers_of_any_size(name: str) -> None:
    lengths = SEQUENCES[name]
    values = [int(n) for n in lengths]
    if name == "none":
        lengths = np.zeros(0, int)  # as a column too
    require_reversed(lengths, values)


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("other", [3, 300, 2**31, 2**40, 2**63, -(2**40)])
@pytest.mark.parametrize("dtype", default_of(["uint32", "uint8", "int32"], "uint32"))
def test_numbers_beside_traced_ones(dtype: str, other: int) -> None:
    kinds = [kind for kind in (np.int64, np.uint64) if holds(kind, other)]
    for kind in (int, *kinds):
        run = jax.jit(lambda n, kind=kind: reverse(numbers(3, 4), [n, kind(other), 4]))
        expected = reversed_by([2, other, 4])
        assert_same_bits(run(jnp.asarray(2, dtype)), expected)


def holds(kind: Any, number: int) -> bool:
    return np.iinfo(kind).min <= number < 2**63


# Options and scalars ------------------------------------------------------------------


@pytest.mark.parametrize("axes", [{"batch_axis": 0}, {"time_axis": 1}])
def test_one_axis_determines_the_other(axes: dict[str, int]) -> None:
    both = call("reverse_sequence")
    given = {"batch_axis": None, "time_axis": None} | axes
    np.testing.assert_array_equal(call("reverse_sequence", **given), both)
    default = dml_jax.reverse_sequence(X.T, LENGTHS)
    np.testing.assert_array_equal(default.T, both)


def test_strides_beyond_every_axis() -> None:
    far: dict[str, Any] = {"offsets": (1, 2), "sizes": (1, 1)}
    far["strides"] = 2**70, 2**31
    np.testing.assert_array_equal(call("slice", **far), X[1:2, 2:3])
    far = {"input_window_strides": (2**70, -(2**63)), "output_sizes": (1, 1)}
    np.testing.assert_array_equal(call("slice1", **far), X[:1, 3:])
    del far["output_sizes"]
    result = call("slice_grad", input_gradient=X[:1, 1:2], **far)
    np.testing.assert_array_equal(np.argwhere(result), [[0, 3]])


@pytest.mark.parametrize("coefficient", [2**70, np.float64(0.5), np.array(3), 0])
def test_coefficients_of_any_real_kind(coefficient: Any) -> None:
    call("reverse_sequence", lda_coeff=coefficient)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int4", "float16", "complex64"])
def test_traced_python_numbers(dtype: str) -> None:
    result = jax.jit(lambda value: dml_jax.fill_value_constant((1,), dtype, value))(5)
    np.testing.assert_array_equal(result, np.array([5], dtype))


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


def test_a_valid_call_does_not_make_an_equal_one_valid() -> None:
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
