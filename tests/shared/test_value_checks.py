"""`checked`: messages, batches, and that it is free when unused.

`operators/test_random_calls.py` has it with every function and dtype of lengths.
"""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, numbers

import dml_jax

X = numbers(3, 4)
reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR)


def message(function: str, argument: str, smallest: int, largest: int) -> str:
    text = f"{function}: `{argument}` must be in [0, 4]; got {smallest} to {largest}"
    return f"^{re.escape(text)}$"


GOOD = np.array([0, 4, 2])


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(143)], ids=repr)
def test_a_signal_while_lengths_are_reported(
    raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exception is raised, and not an error of XLA, which calls back."""

    def record(*_: Any) -> None:
        raise raised

    monkeypatch.setattr("dml_jax._shared.value_checks._record", record)
    with pytest.raises(type(raised)) as found:
        dml_jax.checked(lambda x: reverse(x, jnp.asarray(GOOD)))(X)
    assert found.value.args == raised.args


@pytest.mark.parametrize("sizes", [(0,), (0, 3), (3, 0), (2, 0, 2)], ids=str)
def test_vmap_over_nothing(sizes: tuple[int, ...]):
    function = functools.partial(dml_jax.reverse_subsequences, axis=0)
    for _ in sizes:
        function = jax.vmap(function)
    x, lengths = jnp.zeros((*sizes, 5)), jnp.zeros((*sizes, 1), np.int32)
    assert dml_jax.checked(function)(x, lengths).shape == x.shape


def test_no_check_stays_in_programs_that_are_used_again():
    lengths = np.array([0, 1, 2**40])
    with pytest.raises(ValueError, match=str(2**40)):
        dml_jax.checked(lambda x: reverse(x, lengths))(X)
    right = np.array([0, 1, 4], np.uint32)
    assert_same_bits(dml_jax.checked(reverse)(X, right), reverse(X, right))
    with pytest.raises(
        ValueError, match=message("reverse_sequence", "sequence_lens", 0, 5)
    ):
        dml_jax.checked(reverse)(X, np.array([0, 1, 5], np.uint32))


def test_the_extremes_of_a_whole_batch():
    expected = message("reverse_sequence", "sequence_lens", -2, 9)
    for axes in [(0, 0), (None, 0)]:
        function = jax.vmap(reverse, axes)
        # Under disable_jit vmap does not take NumPy's arrays to a custom_vjp.
        x = jnp.stack([X] * 3) if axes[0] == 0 else jnp.asarray(X)
        lengths = jnp.array([[1, 2, 9], [0, 4, 1], [-2, 3, 3]])
        with pytest.raises(ValueError, match=expected):
            dml_jax.checked(function)(x, lengths)
        with pytest.raises(ValueError, match=expected):
            dml_jax.checked(jax.vmap(jax.jit(function)))(x[None], lengths[None])


def test_keywords_and_pytrees_pass_through():
    @dml_jax.checked
    def function(tree: Any, *, lengths: Any) -> Any:
        """Has a docstring."""
        return {"y": reverse(tree["x"], lengths), "n": jnp.sum(lengths)}

    result = function({"x": X}, lengths=GOOD)
    assert_same_bits(result["y"], reverse(X, GOOD))
    assert result["n"] == 6
    assert function.__doc__ == "Has a docstring."


def test_nothing_is_compiled_in_outside_of_checked():
    with_bad_lengths = np.array([-1, 9, 2])
    plain = jax.make_jaxpr(reverse)(X, with_bad_lengths)
    dml_jax.checked(reverse)(X, GOOD)
    again = jax.make_jaxpr(reverse)(X, with_bad_lengths)
    assert str(plain) == str(again)
    assert "callback" not in str(plain)
    assert not plain.effects
    reverse(X, with_bad_lengths)  # no error


@pytest.mark.usefixtures("with_jit")
def test_checked_and_plain_traces_live_side_by_side():
    traces = 0

    @jax.jit
    def counted(x: Any, lengths: Any) -> Any:
        nonlocal traces
        traces += 1
        return reverse(x, lengths)

    checked = dml_jax.checked(counted)
    for _ in range(3):
        counted(X, GOOD)
        checked(X, GOOD)
    assert traces == 2


@pytest.mark.usefixtures("with_jit")
def test_a_failed_run_leaves_no_report():
    def refuse(x: Any) -> Any:
        raise NotImplementedError

    def fail(x: Any) -> Any:
        y = reverse(x, jnp.array([9, 9, 9]))
        return jax.pure_callback(refuse, jax.ShapeDtypeStruct(y.shape, y.dtype), y)

    with pytest.raises(jax.errors.JaxRuntimeError, match="NotImplementedError"):
        dml_jax.checked(fail)(X)
    assert_same_bits(dml_jax.checked(reverse)(X, GOOD), reverse(X, GOOD))
