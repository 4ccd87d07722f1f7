"""Any call of a public function gives what the reference gives, or is refused."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arguments import choice
from assertions import assert_same_bits, assert_same_floats
from calls import CALLS, expected_of
from hypothesis import given
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of

import dml_jax
from dml_jax import reference


def require(call, run):
    """The result of the reference, or a refusal, whichever the documents have."""
    expected = expected_of(call)
    result = outcome_of(run, f"{call.function}: ")
    if expected is None or isinstance(result, Refusal):
        assert expected is None, result
        assert isinstance(result, Refusal), result
    elif call.function == "fill_value_sequence":
        assert_same_floats(result, expected)
    elif expected.dtype == object:
        np.testing.assert_array_equal(result, expected)
    else:
        assert_same_bits(np.asarray(result), expected)


@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("function", CALLS)
@given(data=st.data())
def test_a_call(function, x64, data):
    with jax.enable_x64(x64):
        call = data.draw(CALLS[function](x64))
        require(call, lambda: run(call, data.draw(st.integers(0, 6))))


def run(call, count):
    """The call with its first arguments by position."""
    function = getattr(dml_jax, call.function)
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    values, positional = call.values, []
    for name in names[:count]:
        if name not in values:
            break
        positional.append(values.pop(name))
    return function(*positional, **values)


# Under transformations ----------------------------------------------------------------

ARRAYS = {"input", "input_gradient", "sequence_lengths", "sequence_lens"}
ARRAYS |= {"value", "value_start", "value_delta"}
PROGRAMS = {}


def parts(call):
    """The call as a function of its arrays, and those."""
    arrays = {name: v for name, v in call.values.items() if name in ARRAYS}
    others = {name: v for name, v in call.values.items() if name not in ARRAYS}
    return lambda arrays: getattr(dml_jax, call.function)(**arrays, **others), arrays


def key_of(call):
    """What programs depend on: they are made once, not in every example."""
    kinds = [
        (v.dtype, v.shape, isinstance(v, jax.Array)) if name in ARRAYS else repr(v)
        for name, v in call.meanings.items()
    ]
    return call.function, *call.meanings, *map(str, kinds)


def jitted(call):
    function, arrays = parts(call)
    jax.eval_shape(function, arrays)  # any call is traced, equal ones are compiled once
    program = PROGRAMS.setdefault(key_of(call), jax.jit(function))
    return program(arrays)


def mapped(call):
    """All arrays are mapped; every entry of the result is the same."""
    function, arrays = parts(call)
    batch = {name: jnp.stack([array] * 2) for name, array in arrays.items()}
    first, second = jax.vmap(function)(batch)
    assert_same_bits(np.asarray(first), np.asarray(second))
    return first


def differentiated(call):
    """The result, which the adjoint takes back to the input it came from."""
    function, arrays = parts(call)
    by = {n: a for n, a in arrays.items() if jnp.issubdtype(a.dtype, jnp.inexact)}
    rest = {n: a for n, a in arrays.items() if n not in by}
    result, pullback = jax.vjp(lambda by: function(by | rest), by)
    for name, cotangent in pullback(result)[0].items():
        expected = adjoint_of(call, np.asarray(result))
        if expected is None:
            assert cotangent.shape == by[name].shape
            assert cotangent.dtype == by[name].dtype
        else:
            assert_same_bits(np.asarray(cotangent), expected)
    return result


def adjoint_of(call, result):
    """What the adjoint makes of the result; None where it computes, not moves."""
    meanings = call.meanings
    x = meanings.pop("input", meanings.pop("input_gradient", None))
    meanings.pop("output_sizes", None)
    match call.function:
        case "reverse_subsequences" | "slice_grad":
            return x
        case "reverse_sequence":
            return x if meanings.get("training") in (False, np.False_) else None
        case "slice1":
            return reference.slice_grad(result, x.shape, *meanings.values())
        case "slice":
            strides = meanings.get("strides") or (1,) * x.ndim
            pairs = zip(result.shape, strides, strict=True)
            windows = [1 + (n - 1) * stride if n else 0 for n, stride in pairs]
            places = meanings["offsets"], windows, strides
            return reference.slice_grad(result, x.shape, *places)


@pytest.mark.parametrize("way", [jitted, mapped, differentiated])
@pytest.mark.parametrize("function", CALLS)
@given(data=st.data())
def test_a_transformed_call(function, way, data):
    call = data.draw(CALLS[function](traced=True))
    require(call, lambda: way(call))


# Traced values where static ones belong -----------------------------------------------

STATIC = [
    (function, name)
    for function in CALLS
    for name in inspect.signature(getattr(dml_jax, function)).parameters
    if name not in ARRAYS | {"lda_coeff", "value_data_type"}
]
TRACED = [
    lambda t: t,
    lambda t: (t,) * 2,
    lambda t: [t.astype("float32"), 1],
    lambda t: jnp.stack([t, t]),
    lambda t: {"t": t},
    lambda t: [t > 0, False],
]


@given(data=st.data())
def test_a_traced_option(data):
    function, name = data.draw(choice(STATIC))
    call = data.draw(CALLS[function](traced=True))
    wrap = data.draw(choice(TRACED))

    def traced(number):
        rest = {n: v for n, v in call.values.items() if n != name}
        return getattr(dml_jax, function)(**rest, **{name: wrap(number)})

    result = outcome_of(lambda: jax.eval_shape(traced, 1), f"{function}: ")
    assert isinstance(result, Refusal), result


# checked ------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["reverse_subsequences", "reverse_sequence"])
@given(data=st.data())
def test_checked(function, data):
    call = data.draw(CALLS[function](traced=True))
    expected = expected_of(call)
    function_of_arrays, arrays = parts(call)
    if expected is not None:
        function_of_arrays = PROGRAMS.setdefault(
            ("checked", *key_of(call)), dml_jax.checked(function_of_arrays)
        )
    else:
        function_of_arrays = dml_jax.checked(function_of_arrays)
    result = outcome_of(lambda: function_of_arrays(arrays), f"{function}: ")
    if expected is None or lengths_outside(call):
        assert isinstance(result, Refusal), result
    else:
        assert_same_bits(np.asarray(result), expected)


def lengths_outside(call):
    meanings = call.meanings
    lengths = meanings.get("sequence_lens", meanings.get("sequence_lengths"))
    axis = meanings.get("time_axis", meanings.get("axis"))
    most = meanings["input"].shape[axis]
    return lengths.size > 0 and (lengths.min() < 0 or lengths.max() > most)


@given(choice([None, 1, "f", np.ones(1), (), jnp.ones(2), b"", 1.5, {}, [len]]))
def test_checked_without_a_function(value):
    result = outcome_of(lambda: dml_jax.checked(value), "checked: ")
    assert isinstance(result, Refusal), result
