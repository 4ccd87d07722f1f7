"""What arguments of public functions may be; `wrong_calls` has what they may not.

`test_random_calls.py` has arrays of every dtype, and lengths of every dtype, under
every transformation.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, numbers
from dtypes import INTEGERS, dtype_of
from sampling import sampled_x64
from wrong_calls.functions import LENGTHS, X, call

import dml_jax
from dml_jax import reference

# Data: as `jnp.asarray` converts it ---------------------------------------------------

with jax.enable_x64(True):
    WIDE = jnp.asarray(np.array([2**40, 1, 2]))  # keeps its dtype in every mode
ARRAYS = {
    "list": [1, 2.5, 3],
    "range": range(1, 4),
    "float64": np.array([0.1, 2, 3]),
    "int64": np.array([2**40 + 1, 2, 3]),
    "scalars": [np.int8(1), np.int8(3), np.int8(2)],
    "jax": [jnp.bfloat16(1), 2.5, jnp.bfloat16(3)],
    "wide": WIDE,
    "bfloat16": list(np.arange(3).astype(jnp.bfloat16)),
}
OF_DATA: dict[str, Any] = {
    "reverse_padded": lambda x: dml_jax.reverse_padded(x, 0, axis=0),
    "reverse_subsequences": lambda x: dml_jax.reverse_subsequences(x, [0], 0),
    "slice": lambda x: dml_jax.slice(x, (0,), (3,)),
    "slice1": lambda x: dml_jax.slice1(x, (0,), (3,), (1,)),
    "slice_grad": lambda x: dml_jax.slice_grad(x, (3,), (0,), (3,), (1,)),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("function", OF_DATA)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_converted(name: str, function: str) -> None:
    converted = jnp.asarray(ARRAYS[name])
    assert_same_bits(OF_DATA[function](ARRAYS[name]), np.asarray(converted))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("x", [((1, 2, 3), (4, 5, 6)), [[0.1, 2, 3]]], ids=str)
def test_arrays_of_a_batch_are_converted(x: Any) -> None:
    y = dml_jax.reverse_sequence(x, [0] * len(x), batch_axis=0)
    assert_same_bits(y, np.asarray(jnp.asarray(x)))


# Lengths: they count by value ---------------------------------------------------------

reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR)
COUNT = 24  # of lengths, so that most calls are of one program


def require_reversed(lengths: Any, values: list[int]) -> None:
    """By every function; `checked` names the extremes, if one is wrong."""
    x = numbers(len(values), 4)
    expected = reference.reverse_sequence(x, values, 0, 1)
    assert_same_bits(reverse(x, lengths), expected)
    assert_same_bits(dml_jax.reverse_padded(x, lengths), expected)
    column = jax.lax.expand_dims(lengths, [1])  # indexing would narrow it
    if isinstance(lengths, np.ndarray):
        column = lengths[:, None]
    assert_same_bits(dml_jax.reverse_subsequences(x, column, 1), expected)
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


def test_lengths_beside_traced_ones() -> None:
    run = jax.jit(lambda n: reverse(numbers(3, 4), [n, 300, 4]))
    expected = reference.reverse_sequence(numbers(3, 4), [2, 300, 4], 0, 1)
    assert_same_bits(run(2), expected)


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


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int4", "float16", "complex64"])
def test_traced_python_numbers(dtype: str) -> None:
    result = jax.jit(lambda value: dml_jax.fill_value_constant((1,), dtype, value))(5)
    np.testing.assert_array_equal(result, np.array([5], dtype))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float16", jnp.float32(1.5)),
        ("float32", jnp.int8(3)),
        ("uint8", jnp.int32(258)),
    ],
)
def test_arrays_are_cast_to_the_dtype_of_a_fill(dtype: str, value: jax.Array) -> None:
    filled = dml_jax.fill_value_constant((2,), dtype, value)
    assert_same_bits(filled, np.full(2, np.asarray(value).astype(dtype)))


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.int4])
def test_constants_of_jax_are_static_inside_of_jit(dtype: Any):
    sizes = jnp.array([2, 3], dtype)
    result = jax.jit(lambda: dml_jax.fill_value_constant(sizes, "int8", 1))()
    assert_same_bits(result, np.ones((2, 3), np.int8))


@pytest.mark.usefixtures("x32", "with_caches")
def test_a_program_of_lengths_in_64_bits_leaves_them_to_others() -> None:
    """JAX may keep the array that it makes of an object of NumPy while it traces."""
    lengths = np.array([2, 0, 3])
    reverse = jax.jit(lambda x: dml_jax.reverse_padded(x, lengths))
    assert reverse(numbers(3, 4)).shape == (3, 4)
    assert jnp.asarray(lengths).dtype == jnp.int32
    assert_same_bits(jax.jit(jnp.negative)(lengths), np.int32([-2, 0, -3]))


# Names in errors ----------------------------------------------------------------------


def raises(*_: Any) -> Any:
    raise ValueError("`x` must be mine")


STEPS = {  # and the errors: what a step raises is not an error of the scan
    "its own error": (raises, "`x` must be mine"),
    "a wrong call": (
        lambda *_: dml_jax.reverse_padded(np.zeros(2), 1),
        "reverse_padded: `axis` 1 is out of bounds",
    ),
    "a wrong result": (lambda *_: 0, "padded_scan: `step` must return a pair"),
}


@pytest.mark.parametrize("name", STEPS)
def test_an_error_begins_with_the_function_that_was_called(name: str) -> None:
    step, message = STEPS[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        dml_jax.padded_scan(step, None, np.zeros(2), np.zeros((2, 3)))
    assert str(caught.value).startswith(message)
