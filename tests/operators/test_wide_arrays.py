"""Arrays of JAX that were made in 64-bit mode, inside and outside of it."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import numbers

import dml_jax
from dml_jax import reference

X = numbers(3, 4)
LENGTHS = {
    "int64": np.array([2**32 + 1, -(2**32) + 2, 3]),
    "int64-min-max": np.array([-(2**63), 2**63 - 1, 2]),
    "uint64": np.array([2**63 + 2, 2**32 + 1, 3], np.uint64),
    "int64-fine": np.array([0, 4, 2]),
}


def wide(array):
    with jax.enable_x64(True):
        return jnp.asarray(array)


def reverse(x, lengths, **options):
    return dml_jax.reverse_sequence(x, lengths, batch_axis=0, time_axis=1, **options)


def lines(x, lengths):
    return dml_jax.reverse_subsequences(x, lengths[:, None], 1)


def single(x, length):
    # Indexing would narrow it.
    return reverse(x[None], jax.lax.expand_dims(length, [0]))[0]


def scanned(x, lengths):
    return jax.lax.scan(lambda y, _: (reverse(y, lengths), None), x, length=3)[0]


TRANSFORMED = {
    "plain": reverse,
    "lines": lines,
    "gather": functools.partial(reverse, implementation="gather"),
    "jit": jax.jit(reverse),
    "vmap": jax.vmap(single),
    "jit-of-vmap": jax.jit(jax.vmap(single)),
    "vmap-of-jit": jax.vmap(jax.jit(single)),
    "scan": scanned,
    "remat": jax.checkpoint(reverse),
    "grad": jax.grad(lambda x, n: jnp.sum(reverse(x, n) * X)),
    "jvp": lambda x, n: jax.jvp(lambda x: reverse(x, n, training=False), (X,), (x,))[1],
    "cond": lambda x, n: jax.lax.cond(True, lambda: reverse(x, n), lambda: x),
}


@pytest.fixture(autouse=True)
def without_warnings():
    """JAX warns where it narrows."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_lengths(name, kind, x64):
    function, lengths = TRANSFORMED[name], LENGTHS[kind]
    clamped = np.array([min(max(int(n), 0), 4) for n in lengths])
    expected = reference.reverse_sequence(X, clamped, batch_axis=0, time_axis=1)
    assert_same_bits(function(X, wide(lengths)), expected)
    in_program = jax.jit(lambda x: function(x, wide(lengths)))
    assert_same_bits(in_program(X), expected)
    if kind != "int64-fine":
        extremes = rf"; got {lengths.min()} to {lengths.max()}$"
        with pytest.raises(ValueError, match=extremes):
            dml_jax.checked(function)(X, wide(lengths))
        with pytest.raises(ValueError, match=extremes):
            dml_jax.checked(lambda x: function(x, wide(lengths)))(X)
    else:
        assert_same_bits(dml_jax.checked(function)(X, wide(lengths)), expected)


def test_lengths_of_an_exported_program(x64):
    lengths = wide(LENGTHS["int64"])
    exported = jax.export.export(jax.jit(reverse))(X, lengths)
    expected = reference.reverse_sequence(X, [4, 0, 3], batch_axis=0, time_axis=1)
    assert_same_bits(exported.call(X, lengths), expected)


def test_lengths_of_strings(x64):
    text = np.array([["a", "b", "c", "d"]] * 3)
    expected = reference.reverse_sequence(text, [4, 0, 3], batch_axis=0, time_axis=1)
    result = reverse(text, wide(LENGTHS["int64"]))
    np.testing.assert_array_equal(result, expected)


def test_lists_of_them(x64):
    lengths = [wide(n) for n in LENGTHS["int64"]]
    expected = reference.reverse_sequence(X, [4, 0, 3], batch_axis=0, time_axis=1)
    assert_same_bits(reverse(X, lengths), expected)


@pytest.mark.parametrize(
    ("coefficient", "seed"),
    [(np.float64(1e-50), 1e30), (np.float64(1e50), 1e-30), (np.int64(2**40), 3.0)],
    ids=["small", "large", "int"],
)
@pytest.mark.parametrize("of", ["closed-over", "argument", "vmap"])
def test_coefficients_are_not_narrowed(of, coefficient, seed, x64):
    x = np.full((1, 3), 1, np.float32)

    def gradient(coefficient):
        _, pull_back = jax.vjp(lambda x: reverse(x, [2], lda_coeff=coefficient), x)
        return pull_back(np.full((1, 3), seed, np.float32))[0]

    run = {
        "closed-over": lambda: jax.jit(lambda: gradient(wide(coefficient)))(),
        "argument": lambda: jax.jit(gradient)(wide(coefficient)),
        "vmap": lambda: jax.vmap(gradient)(wide(coefficient[None]))[0],
    }[of]
    expected = np.float32(np.float64(np.float32(seed)) * np.float64(coefficient))
    assert_same_bits(run(), np.full((1, 3), expected, np.float32))


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("value", [np.float64(1e-300), np.int64(2**40 + 1)])
def test_fills_of_another_dtype_are_refused(value, dtype):
    for run in (lambda f: f, jax.jit):
        function = run(lambda v: dml_jax.fill_value_constant((2,), dtype, v))
        with pytest.raises(TypeError, match=r"^fill_value_constant: `value` must be"):
            function(wide(value))
        function = run(lambda v: dml_jax.fill_value_sequence((2,), dtype, v, 1))
        with pytest.raises(TypeError, match=r"^fill_value_sequence: `value_start`"):
            function(wide(value))


@pytest.mark.usefixtures("x32")
def test_fills_of_python_numbers_that_jax_holds():
    with jax.enable_x64(True):  # weakly typed: they stand for the numbers
        small, long = jnp.asarray(1.5), jnp.asarray(2**40)
    filled = dml_jax.fill_value_constant((1,), "float32", small)
    assert_same_bits(filled, np.array([1.5], np.float32))
    with pytest.raises(OverflowError, match=r"^fill_value_constant: `value` must be"):
        dml_jax.fill_value_constant((1,), "int32", long)


# Moves of 64-bit arrays ---------------------------------------------------------------

WIDE = {
    "float64": np.array([[-0.0, 1e300, 5e-324, np.pi], [np.inf, 1, 2, 3]]),
    "complex128": np.array([[1e300 - 0.0j, 2j, -1, 4], [5, 6, 7, 1e-300j]]),
    "int64": np.array([[2**40, -(2**50), 3, 4], [5, 6, 7, 2**63 - 1]]),
    "uint64": np.array([[2**63, 1, 2, 3], [4, 5, 6, 2**64 - 1]], np.uint64),
}
PARTS = np.array([[3], [2]], np.int32)
WINDOW = (0, 1), (2, 3), (1, -2)
MOVES_OF_WIDE = {
    "reverse_subsequences": (
        lambda x: dml_jax.reverse_subsequences(x, PARTS, 1),
        lambda x: reference.reverse_subsequences(x, PARTS, 1),
    ),
    "gather": (
        lambda x: dml_jax.reverse_subsequences(x, PARTS, 1, implementation="gather"),
        lambda x: reference.reverse_subsequences(x, PARTS, 1),
    ),
    "scatter": (
        lambda x: dml_jax.reverse_subsequences(x, PARTS, 1, implementation="scatter"),
        lambda x: reference.reverse_subsequences(x, PARTS, 1),
    ),
    "reverse_sequence": (
        lambda x: reverse(x, PARTS.ravel()),
        lambda x: reference.reverse_subsequences(x, PARTS, 1),
    ),
    "slice": (
        lambda x: dml_jax.slice(x, (0, 1), (2, 2), (1, 2)),
        lambda x: reference.slice(x, (0, 1), (2, 2), (1, 2)),
    ),
    "slice1": (
        lambda x: dml_jax.slice1(x, *WINDOW),
        lambda x: reference.slice1(x, *WINDOW),
    ),
    "slice_grad": (
        lambda x: dml_jax.slice_grad(x, (2, 9), (0, 1), (2, 8), (1, -2)),
        lambda x: reference.slice_grad(x, (2, 9), (0, 1), (2, 8), (1, -2)),
    ),
}
CALLS = {
    "plain": lambda run, x: run(x),
    "jit": lambda run, x: jax.jit(run)(x),
    "vmap": lambda run, x: jax.vmap(run)(jax.lax.expand_dims(x, [0])),
    "scan": lambda run, x: jax.lax.map(run, jax.lax.expand_dims(x, [0])),
}


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", MOVES_OF_WIDE)
def test_moves_keep_their_width(name, call, dtype, x64):
    run, by_reference = MOVES_OF_WIDE[name]
    y = CALLS[call](run, wide(WIDE[dtype]))
    expected = by_reference(WIDE[dtype])
    assert_same_bits(y, expected if call in ("plain", "jit") else expected[None])


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", MOVES_OF_WIDE)
def test_derivatives_keep_their_width(name, dtype, x64):
    """Also where a derivative is taken in one mode and applied in the other."""
    run, by_reference = MOVES_OF_WIDE[name]
    x = wide(WIDE[dtype])
    expected = by_reference(WIDE[dtype])
    assert_same_bits(jax.jvp(run, (x,), (x,))[1], expected)
    y, pull_back = jax.vjp(run, x)
    (here,) = pull_back(y)
    with jax.enable_x64(not x64):
        _, pull_back = jax.vjp(run, x)
        (there,) = pull_back(y)
    assert_same_bits(pull_back(y)[0], here)
    assert_same_bits(there, here)
    assert here.dtype == dtype
    # The adjoint, applied to the result: what is moved and moved back.
    moved_back = by_reference(np.ones_like(WIDE[dtype])) * 0 + 1
    (mask,) = pull_back(jnp.asarray(wide(moved_back)))
    is_kept = np.asarray(mask) != 0
    np.testing.assert_array_equal(np.asarray(here)[is_kept], WIDE[dtype][is_kept])


@pytest.mark.parametrize("options", [{}, {"lda_coeff": 0.5}, {"training": False}])
def test_sums_keep_their_width(options, x64):
    """The cotangent of an input that mapped lengths share."""
    x = wide(np.array([[1e-30, 1.0, 2.0]]))
    lengths = np.array([[1], [3], [2]])
    mapped = jax.vmap(functools.partial(reverse, **options), (None, 0))
    (cotangent,) = jax.vjp(lambda x: mapped(x, lengths), x)[1](
        wide(np.full((3, 1, 3), 1 + 2.0**-40))
    )
    scale = options.get("lda_coeff", 1)
    assert_same_bits(cotangent, np.full((1, 3), 3 * scale * (1 + 2.0**-40)))
