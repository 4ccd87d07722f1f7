"""Every argument of every public function, given wrongly, and what must be accepted."""

import functools
import re
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from wrong_calls.arrays import ARRAY_ERRORS, LENGTH_ERRORS
from wrong_calls.calls import (
    DATES,
    KEY,
    LENGTHS,
    VALID,
    Wrong,
    X,
    call,
    reverse,
)
from wrong_calls.fills import FILL_ERRORS, X64_ERRORS
from wrong_calls.options import OPTION_ERRORS
from wrong_calls.windows import SEQUENCE_ERRORS

import dml_jax

BLOCK = np.ones((3, 4, 5), np.float32)

ERRORS = [
    *ARRAY_ERRORS,
    *LENGTH_ERRORS,
    *OPTION_ERRORS,
    *SEQUENCE_ERRORS,
    *FILL_ERRORS,
    *X64_ERRORS,
]


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.id)
def test_wrong_argument(row: Wrong):
    with pytest.raises(row.error) as raised:
        row.call()
    assert type(raised.value) is row.error
    assert re.match(f"{row.function}: {row.subject}", str(raised.value))


# A few whole messages.


class Tensor:
    """An array of another library, whose conversion fails."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("Use tensor.detach()")

    def __repr__(self) -> str:
        return "tensor([1.], requires_grad=True)"


MESSAGES: list[tuple[str, dict[str, Any], str]] = [
    (
        "reverse_subsequences",
        {"input": {1}},
        "`input` must be an array or convertible to one; got set {1}",
    ),
    (
        "slice",
        {"input": X.astype(np.int64)},
        "`input` has dtype int64, which needs 64-bit mode; enable it with "
        "`jax.config.update('jax_enable_x64', True)` or inside "
        "`with jax.enable_x64(True):`, or use a narrower dtype, such as 'int32'",
    ),
    (
        "slice",
        {"input": [[2**31]]},
        "`input` must fit int32; got list [[2147483648]]. Wider numbers need 64-bit "
        "mode; enable it with `jax.config.update('jax_enable_x64', True)` or inside "
        "`with jax.enable_x64(True):`",
    ),
    (
        "slice1",
        {"input": [[1, 2], np.ones(3)]},
        "`input` must be an array or convertible to one; got list [[1, 2], array([1., "
        "1., 1.])]. Its rows have different sizes: pad them to one size",
    ),
    (
        "reverse_subsequences",
        {"input": Tensor()},
        "`input` must be an array or convertible to one; got Tensor tensor([1.], "
        "requires_grad=True), which cannot be converted: Use tensor.detach()",
    ),
    (
        "reverse_sequence",
        {"sequence_lens": X > 3},
        "`sequence_lens` must have an integer dtype; got bool. The lengths of a mask "
        "[batch, time] are mask.sum(axis=1)",
    ),
    (
        "reverse_sequence",
        {"input": LENGTHS.astype(np.int64), "sequence_lens": X},
        "`sequence_lens` must have an integer dtype; got float32. The array comes "
        "first, then the lengths",
    ),
    (
        "reverse_subsequences",
        {"sequence_lengths": LENGTHS[:, None] / 1.0},
        "`sequence_lengths` must have an integer dtype; got float64. Pass "
        "`jnp.asarray(sequence_lengths, 'int32')`",
    ),
    (
        "reverse_sequence",
        {"sequence_lens": LENGTHS.astype(">i4")},
        "`sequence_lens` must have a dtype that JAX knows; got >i4. Convert it by "
        "`.astype('int32')`",
    ),
    (
        "reverse_padded",
        {"x": X.T},
        "`lengths` must be a scalar or have shape (4,), the sizes of `x` before "
        "axis=1, or 1 for any of them; got (3,). If the time is dimension 0, pass "
        "axis=0",
    ),
    (
        "reverse_padded",
        {"x": X[:, None], "axis": 2},
        "`lengths` must be a scalar or have shape (3, 1), the sizes of `x` before "
        "axis=2, or 1 for any of them; got (3,). Pass `jnp.expand_dims(lengths, 1)`",
    ),
    (
        "reverse_padded",
        {"x": X[0], "lengths": [3], "axis": 0},
        "`lengths` must be a scalar; got (1,). Pass `jnp.reshape(lengths, ())`",
    ),
    (
        "reverse_padded",
        {"lengths": np.ones((4, 2), int), "x": np.ones((3, 4, 2), bool), "axis": 0},
        "`lengths` must be a scalar or have shape (4,), the sizes of `x` in dimension "
        "1, with axis=0, or 1 for any of them; got (4, 2). For one length for each "
        "line, call `reverse_subsequences` with `jnp.expand_dims(lengths, 0)`",
    ),
    (
        "reverse_subsequences",
        {"sequence_lengths": 3},
        "`sequence_lengths` must have shape (3, 1), 1 along axis=1 and the size of "
        "`input` or 1 along every other dimension; got (). For one length, pass shape "
        "(1, 1)",
    ),
    (
        "slice",
        {"input": DATES},
        "`input` must have a dtype that JAX knows; got datetime64[D]. Pass "
        "`x.view('int64')` in 64-bit mode",
    ),
    (
        "slice",
        {"input": np.ma.array(X)},
        "`input` must be an array without a mask; got MaskedArray. Call "
        "`.filled(value)`",
    ),
    (
        "reverse_sequence",
        {"batch_axis": None, "time_axis": None},
        "`sequence_lens` must have shape (4,), the size of `input` along batch_axis=1; "
        "got (3,). If the batch is dimension 0, pass batch_axis=0",
    ),
    (
        "reverse_sequence",
        {"sequence_lens": 3},
        "`sequence_lens` must have shape (3,), the size of `input` along batch_axis=0; "
        "got (). To reverse all lines by one length, call `reverse_subsequences` with "
        "lengths of shape (1, 1)",
    ),
    (
        "reverse_sequence",
        {"time_axis": 2},
        "`time_axis` must be 0 or 1; got 2. `reverse_subsequences` takes any axis",
    ),
    (
        "fill_value_constant",
        {"sizes": 3},
        "`sizes` must be a sequence of integers, one for each dimension; got int 3. "
        "Write (3,)",
    ),
    (
        "fill_value_constant",
        {"value_data_type": "torch.float32"},
        "`value_data_type` must be a dtype, such as 'float32' or jnp.float32; got str "
        "'torch.float32'",
    ),
    (
        "reverse_subsequences",
        {"sequence_lengths": LENGTHS},
        "`sequence_lengths` must have shape (3, 1), 1 along axis=1 and the size of "
        "`input` or 1 along every other dimension; got (3,). Pass "
        "`jnp.expand_dims(sequence_lengths, 1)`",
    ),
    (
        "reverse_subsequences",
        {"input": BLOCK, "sequence_lengths": LENGTHS},
        "`sequence_lengths` must have shape (3, 1, 5), 1 along axis=1 and the size of "
        "`input` or 1 along every other dimension; got (3,). Pass "
        "`jnp.expand_dims(sequence_lengths, (1, 2))`",
    ),
    (
        "reverse_subsequences",
        {"input": BLOCK, "sequence_lengths": LENGTHS[:, None]},
        "`sequence_lengths` must have shape (3, 1, 5), 1 along axis=1 and the size of "
        "`input` or 1 along every other dimension; got (3, 1). Pass "
        "`jnp.expand_dims(sequence_lengths, 2)`",
    ),
    (
        "reverse_subsequences",
        {"input": BLOCK, "sequence_lengths": LENGTHS[:2]},
        "`sequence_lengths` must have shape (3, 1, 5), 1 along axis=1 and the size of "
        "`input` or 1 along every other dimension; got (2,)",
    ),
    (
        "reverse_sequence",
        {"sequence_lens": LENGTHS[:, None]},
        "`sequence_lens` must have shape (3,), the size of `input` along batch_axis=0; "
        "got (3, 1). Pass `jnp.ravel(sequence_lens)`",
    ),
    (
        "reverse_subsequences",
        {"axis": [*range(1000)]},
        "`axis` must be a static integer; got list [0, 1, 2, 3, 4, 5, ...]",
    ),
    (
        "reverse_sequence",
        {"implementation": "cuda"},
        "`implementation` must be 'gather' or 'scatter' or None; got 'cuda'",
    ),
    (
        "reverse_sequence",
        {"lda_coeff": -(10**5000)},
        "`lda_coeff` must fit float32, whose largest value is 3.4028234663852886e+38; "
        "got -2^16609 or more",
    ),
    (
        "slice1",
        {"output_sizes": [1, 1.5]},
        "`output_sizes[1]` must be a static integer; got float 1.5",
    ),
    (
        "slice",
        {"sizes": (1,)},
        "`sizes` must have 2 elements, one for each dimension; got 1",
    ),
    (
        "slice",
        {"offsets": (2**70, 0)},
        "reads of dimension 0 must stay inside its 3 elements; the last index read is "
        f"{2**70}, offsets[0] + strides[0] * (sizes[0] - 1). Sizes are those of the "
        "result, not ends",
    ),
    (
        "slice1",
        {"output_sizes": (2, 3)},
        "`output_sizes[1]` must be 0 to 2, the window's size over the stride, rounded "
        "up; got 3",
    ),
    (
        "slice_grad",
        {"input_gradient": X[:2]},
        "`input_gradient.shape[1]` must be 0 to 2, the window's size over the stride, "
        "rounded up; got 4",
    ),
    (
        "slice_grad",
        {"output_gradient_sizes": (0, 0), "input_window_offsets": (4, 5)},
        "`output_gradient_sizes[0]` must be at least 7: the window reaches index 6, "
        "input_window_offsets[0] + input_window_sizes[0] - 1; got 0. The sizes are the "
        "second argument",
    ),
    (
        "fill_value_constant",
        {"value_data_type": "int8", "value": 256},
        "`value` must be in [-128, 255], the signed or unsigned range of int8; got 256",
    ),
    (
        "fill_value_sequence",
        {"value_delta": KEY},
        "`value_delta` must be a real number or a scalar array of dtype float32; got "
        "key<fry> array of shape ()",
    ),
]


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(("function", "changes", "message"), MESSAGES)
def test_message(function: str, changes: dict[str, Any], message: str):
    with pytest.raises((TypeError, ValueError, OverflowError)) as raised:
        call(function, **changes)
    assert str(raised.value) == f"{function}: {message}"


HINT = (
    "Bind it with `functools.partial`, or, outside of `checked`, name it in the "
    "`static_argnames` of `jax.jit`, so that it is not traced"
)


@pytest.mark.usefixtures("x32", "with_jit")
def test_messages_for_traced_options():
    program = functools.partial(dml_jax.reverse_sequence, X, LENGTHS)
    with pytest.raises(TypeError, match=f"got traced int32 array of .*{HINT}"):
        jax.jit(program)(batch_axis=0)
    with pytest.raises(TypeError, match=HINT):
        dml_jax.checked(program)(batch_axis=0)
    with pytest.raises(TypeError, match=r"`jax.lax.dynamic_slice` takes traced starts"):
        jax.jit(lambda start: dml_jax.slice(X, (start, 0), (1, 1)))(0)
    with pytest.raises(TypeError, match=r"arguments must be arrays; got str 'gather'"):
        dml_jax.checked(program)(implementation="gather")


# Valid calls --------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("function", VALID)
def test_the_call_that_the_tables_vary_is_valid(function: str):
    call(function)


@pytest.mark.parametrize("axes", [{"batch_axis": 0}, {"time_axis": 1}])
def test_one_axis_determines_the_other(axes: dict[str, int]):
    both = call("reverse_sequence")
    given = {"batch_axis": None, "time_axis": None} | axes
    np.testing.assert_array_equal(call("reverse_sequence", **given), both)
    default = dml_jax.reverse_sequence(X.T, LENGTHS)
    np.testing.assert_array_equal(default.T, both)


def test_input_in_a_list_of_traced_numbers():
    result = jax.jit(lambda x: reverse([[x, 2.0], [3.0, 4.0]], [2, 0]))(1.0)
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
    np.testing.assert_array_equal(np.argwhere(result), [[0, 4]])


@pytest.mark.parametrize("coefficient", [2**70, np.float64(0.5), np.array(3), 0])
def test_coefficients_of_any_real_kind(coefficient: Any):
    call("reverse_sequence", lda_coeff=coefficient)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int4", "float16", "complex64"])
def test_traced_python_numbers(dtype: str):
    result = jax.jit(lambda value: dml_jax.fill_value_constant((1,), dtype, value))(5)
    np.testing.assert_array_equal(result, np.array([5], dtype))


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


def test_one_error_is_one_traceback():
    with pytest.raises(ValueError, match=r"^reverse_sequence") as error:
        reverse(X, LENGTHS[:2])
    assert error.value.__context__ is None
