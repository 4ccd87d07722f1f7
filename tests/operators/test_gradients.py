"""Derivatives: by finite differences, by the adjoint, and in compiled text."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import CASES, EXAMPLES, MOVES, REVERSALS, numbers, sampled
from jax.test_util import check_grads

import dml_jax
from dml_jax import reference


def of_linear_arrays(case):
    """The case as a function of the arrays in which it is linear, and these arrays."""

    def function(*arrays):
        return case.run(**dict(zip(case.linear, arrays, strict=True)))

    return function, [jnp.asarray(case.arrays[name]) for name in case.linear]


@pytest.mark.parametrize("case", sampled(CASES), ids=str)
def test_finite_differences_to_order_2(case):
    function, arrays = of_linear_arrays(case)
    # The operators are linear: a step of 1 makes finite differences exact.
    check_grads(function, arrays, order=2, modes=["fwd", "rev"], eps=1.0)


@pytest.mark.parametrize("case", sampled(MOVES), ids=str)
def test_adjoint(case):
    """<f(x), y> = <x, f'(y)>, in whole numbers, so that the sums are exact."""
    function, (x,) = of_linear_arrays(case)
    result, pullback = jax.vjp(function, x)
    y = jnp.asarray(1 + np.arange(result.size) % 7, x.dtype).reshape(result.shape)
    (cotangent,) = pullback(y)
    assert jnp.vdot(result, y) == jnp.vdot(x, cotangent)


@pytest.mark.parametrize("case", sampled(MOVES), ids=str)
def test_linear_transpose_equals_vjp(case):
    function, (x,) = of_linear_arrays(case)
    y, pullback = jax.vjp(function, x)
    (transposed,) = jax.linear_transpose(function, x)(y)
    assert_same_bits(transposed, pullback(y)[0])


@pytest.mark.parametrize("training", [True, False])
def test_cotangent_of_an_input_that_many_lengths_share(training):
    """It is the sum over them."""
    x, lengths = numbers(2, 4), np.array([[4, 2], [0, 3], [1, 4]])
    options = dict(batch_axis=0, time_axis=1, training=training)
    reverse = functools.partial(dml_jax.reverse_sequence, **options)
    y, pullback = jax.vjp(lambda x: jax.vmap(lambda n: reverse(x, n))(lengths), x)
    expected = sum(
        reference.reverse_sequence(of_y, n, batch_axis=0, time_axis=1)
        for of_y, n in zip(np.asarray(y), lengths, strict=True)
    )
    assert_same_bits(pullback(y)[0], expected)


def test_linear_transposes_of_fills():
    constant = functools.partial(dml_jax.fill_value_constant, (2, 3), "float32")
    (transposed,) = jax.linear_transpose(constant, jnp.float32(1))(numbers(2, 3))
    assert transposed == numbers(2, 3).sum()
    values = jnp.ones(4, jnp.float32)
    (transposed,) = jax.linear_transpose(jax.vmap(constant), values)(numbers(4, 2, 3))
    assert_same_bits(transposed, numbers(4, 2, 3).sum((1, 2)))
    sequence = functools.partial(dml_jax.fill_value_sequence, (2, 3), "float32", 1.0)
    with pytest.raises(NotImplementedError, match="rounds, and is not linear"):
        jax.linear_transpose(sequence, jnp.float32(1))(numbers(2, 3))


@pytest.mark.parametrize("case", sampled(REVERSALS), ids=str)
def test_forward_over_reverse_and_back(case):
    function, (x,) = of_linear_arrays(case)
    jacobian = jax.jacfwd(function)(x)
    assert_same_bits(jacobian, jax.jacrev(function)(x))
    assert jnp.all(jax.hessian(lambda x: jnp.sum(function(x)))(x) == 0)


def test_slice_grad_is_the_gradient_of_slice1():
    x = numbers(5, 12)
    window = ((1, 2), (4, 9), (-2, 3))
    y, pullback = jax.vjp(lambda x: dml_jax.slice1(x, *window), x)
    assert_same_bits(pullback(y)[0], dml_jax.slice_grad(y, x.shape, *window))


def assert_narrow_floats_are_moved_in_both_modes(case, dtype):
    case = case.astype(dtype)
    function, (x,) = of_linear_arrays(case)
    primal, tangent = jax.jvp(function, (x,), (x,))
    assert_same_bits(tangent, primal)
    (wide,) = jax.vjp(
        lambda x: function(x.astype(dtype)).astype(jnp.float32),
        jnp.ones(x.shape, jnp.float32),
    )[1](jnp.ones(primal.shape, jnp.float32))
    (narrow,) = jax.vjp(function, x)[1](jnp.ones_like(primal))
    assert_same_bits(narrow.astype(jnp.float32), wide)


@pytest.mark.parametrize("case", sampled(MOVES), ids=str)
def test_bfloat16_in_both_modes(case):
    assert_narrow_floats_are_moved_in_both_modes(case, jnp.bfloat16)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float8_e4m3fn])
@pytest.mark.parametrize("case", [c for c in MOVES if c in EXAMPLES], ids=str)
def test_other_narrow_floats_in_both_modes(case, dtype):
    assert_narrow_floats_are_moved_in_both_modes(case, dtype)


# The coefficient ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["jvp", "jit", "linearize", "jacfwd", "hessian"])
def test_forward_mode_knows_no_coefficient(mode):
    x = jnp.asarray(numbers(3, 4))

    def function(x):
        y = dml_jax.reverse_sequence(x, [2, 0, 3, 1], lda_coeff=0.5)
        return jnp.sum(y * y)

    derivatives = {
        "jvp": lambda: jax.jvp(function, (x,), (x,)),
        "jit": lambda: jax.jit(lambda x: jax.jvp(function, (x,), (x,)))(x),
        "linearize": lambda: jax.linearize(function, x)[1](x),
        "jacfwd": lambda: jax.jacfwd(function)(x),
        "hessian": lambda: jax.hessian(function)(x),
    }
    message = "reverse_sequence: `training` must be False for derivatives in forward"
    with pytest.raises(TypeError, match=message):
        derivatives[mode]()


def test_coefficients_that_are_mapped():
    """Each one scales the cotangent of its own result."""
    x = jnp.asarray(numbers(3, 4))

    def loss(x, coefficient):
        y = dml_jax.reverse_sequence(x, [2, 0, 3, 1], lda_coeff=coefficient)
        return jnp.sum(y * x)

    def losses(x):
        return jnp.sum(jax.vmap(loss, (None, 0))(x, jnp.array([0.5, 2.0])))

    by_one = [jax.grad(loss)(x, coefficient) for coefficient in (0.5, 2.0)]
    assert_same_bits(jax.grad(losses)(x), np.asarray(by_one[0] + by_one[1]))


# Sums ---------------------------------------------------------------------------------

NARROW = [(jnp.bfloat16, 50_000), (jnp.float16, 4097), (jnp.float8_e5m2, 1000)]


def rounded(number, dtype):
    return np.asarray(np.float32(number)).astype(dtype)


@pytest.mark.parametrize(("dtype", "count"), NARROW)
def test_sums_over_constants(dtype, count):
    """A running sum in the dtype stops growing long before."""
    fill = functools.partial(dml_jax.fill_value_constant, (count,), dtype)
    ones = jnp.ones((count,), dtype)
    (cotangent,) = jax.vjp(fill, jnp.ones((), dtype))[1](ones)
    assert_same_bits(cotangent, rounded(count, dtype))
    (cotangent,) = jax.vjp(jax.vmap(fill), jnp.ones(2, dtype))[1](jnp.stack([ones] * 2))
    assert_same_bits(cotangent, np.stack([rounded(count, dtype)] * 2))


@pytest.mark.parametrize(("dtype", "count"), NARROW)
def test_sums_over_sequences(dtype, count):
    fill = functools.partial(dml_jax.fill_value_sequence, (count,), dtype)
    zero = jnp.zeros((), dtype)
    by_start, _ = jax.vjp(fill, zero, zero)[1](jnp.ones((count,), dtype))
    assert_same_bits(by_start, rounded(count, dtype))


@pytest.mark.parametrize("options", [{}, {"lda_coeff": 0.5}, {"training": False}])
@pytest.mark.parametrize(("dtype", "count"), NARROW)
def test_sums_over_mapped_lengths(dtype, count, options):
    reverse = functools.partial(dml_jax.reverse_sequence, **BATCH_MAJOR, **options)
    lengths = jnp.arange(count).reshape(count, 1) % 4
    mapped = jax.vmap(reverse, (None, 0))
    x = jnp.ones((1, 3), dtype)
    (cotangent,) = jax.vjp(lambda x: mapped(x, lengths), x)[1](
        jnp.ones((count, 1, 3), dtype)
    )
    scale = options.get("lda_coeff", 1)
    assert_same_bits(cotangent, np.full((1, 3), rounded(scale * count, dtype)))


X = numbers(3, 4)
LENGTHS = np.array([4, 2, 3])
BATCH_MAJOR = dict(batch_axis=0, time_axis=1)


def reverse(x, coefficient=1.0, **options):
    return dml_jax.reverse_sequence(
        x, LENGTHS, lda_coeff=coefficient, **BATCH_MAJOR, **options
    )


@pytest.mark.parametrize("coefficient", [0, 0.5, 1, 3.5, -2])
def test_coefficient_scales_the_cotangent_alone(coefficient):
    result, pullback = jax.vjp(lambda x: reverse(x, coefficient), X)
    assert_same_bits(result, reference.reverse_sequence(X, LENGTHS, **BATCH_MAJOR))
    expected = reference.reverse_sequence(X, LENGTHS, **BATCH_MAJOR)
    assert_same_bits(pullback(X)[0], np.float32(coefficient) * expected)


def test_coefficient_has_no_effect_on_inference():
    (cotangent,) = jax.vjp(lambda x: reverse(x, 0.0, training=False), X)[1](X)
    assert_same_bits(cotangent, reference.reverse_sequence(X, LENGTHS, **BATCH_MAJOR))


@pytest.mark.parametrize("coefficient", [0.5, 3.0, np.nan, np.inf])
def test_traced_coefficient_never_touches_the_result(coefficient):
    result = jax.jit(reverse)(X, jnp.float32(coefficient))
    assert_same_bits(result, reference.reverse_sequence(X, LENGTHS, **BATCH_MAJOR))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
def test_traced_coefficient_of_any_real_dtype(dtype):
    coefficient = jnp.asarray(2, dtype)
    (cotangent,) = jax.vjp(lambda x: reverse(x, coefficient), X)[1](X)
    assert_same_bits(
        cotangent, 2 * reference.reverse_sequence(X, LENGTHS, **BATCH_MAJOR)
    )


@pytest.mark.parametrize(
    ("dtype", "of_coefficient"),
    [("float16", "bfloat16"), ("bfloat16", "float16"), ("float8_e4m3fn", "float16")],
)
def test_coefficient_and_input_need_no_common_dtype(dtype, of_coefficient):
    x = jnp.asarray(X, dtype)
    coefficient = jnp.asarray(0.5, of_coefficient)
    (cotangent,) = jax.vjp(lambda x: reverse(x, coefficient), x)[1](x)
    expected = reference.reverse_sequence(X, LENGTHS, **BATCH_MAJOR) / 2
    assert_same_bits(cotangent, expected.astype(x.dtype))


def test_large_integer_coefficient_in_64_bits():
    with jax.enable_x64(True):
        x = jnp.ones((3, 4), "float64")
        coefficient = jnp.asarray(2**24 + 1)
        (cotangent,) = jax.vjp(lambda x: reverse(x, coefficient), x)[1](x)
        assert jnp.all(cotangent == 2**24 + 1)


def test_training_without_jit():
    with jax.disable_jit():
        gradient = jax.grad(lambda x: jnp.sum(reverse(x, 0.5)))(jnp.asarray(X))
    assert jnp.all(gradient == 0.5)


def test_nothing_flows_to_the_coefficient():
    gradient = jax.grad(lambda c: jnp.sum(reverse(X, c)))(0.5)
    assert gradient == 0


def test_coefficient_enters_once_for_each_backward_pass():
    def loss(x):
        return jnp.sum(reverse(x, 0.5) ** 3)

    def gradient_norm(x):
        return jnp.sum(jax.grad(loss)(x) ** 2) / 2

    # The reversal undoes itself, so all is elementwise: the loss has the derivative
    # 3 x^2, times 0.5 for the first pass; that has the derivative 0.5 * 6 x, times 0.5
    # for the second.
    x = jnp.asarray(X)
    assert_same_bits(jax.grad(loss)(x), 1.5 * x**2)
    np.testing.assert_array_equal(
        jax.grad(gradient_norm)(x), (1.5 * x**2) * (0.5 * 6 * x) * 0.5
    )


def test_low_precision_cotangent_is_rounded_once():
    """0.3 is rounded to float32, and only the product to bfloat16."""
    x = jnp.asarray(X, jnp.bfloat16)
    (cotangent,) = jax.vjp(lambda x: reverse(x, 0.3), x)[1](x)
    exact = np.float32(0.3) * reference.reverse_sequence(X, LENGTHS, **BATCH_MAJOR)
    assert_same_bits(cotangent, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("dtype", ["complex64", "float8_e5m2"])
def test_training_mode_of_other_inexact_dtypes(dtype):
    x = X.astype(np.dtype(getattr(jnp, dtype)))
    (cotangent,) = jax.vjp(lambda x: reverse(x, 0.5), x)[1](jnp.asarray(x))
    expected = reference.reverse_sequence(X, LENGTHS, **BATCH_MAJOR) / 2
    assert_same_bits(cotangent, expected.astype(x.dtype))


# What is saved and compiled -----------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_only_the_lengths_are_saved(training, capsys):
    jax.ad_checkpoint.print_saved_residuals(
        lambda x, lengths: dml_jax.reverse_sequence(
            jnp.exp(x), lengths, training=training, **BATCH_MAJOR
        ),
        X,
        LENGTHS.astype(np.int32),
    )
    saved = capsys.readouterr().out.splitlines()
    big = [line for line in saved if "[3,4]" in line]
    assert len(big) == 1  # the result of exp, which exp itself keeps
    assert "exp" in big[0]


@pytest.mark.parametrize("case", [c for c in MOVES if c.expected().size > 1], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_compiled_backward_pass_has_no_scatter(case, dtype):
    function, (x,) = of_linear_arrays(case.astype(dtype))

    def backward(x, cotangent):
        return jax.vjp(function, x)[1](cotangent)

    compiled = jax.jit(backward).lower(x, function(x)).compile().as_text()
    assert not re.search(r"\bscatter\(", compiled)


def test_the_scatter_formulation_does_scatter():
    """The test above can fail: the text does say scatter where there is one."""
    function = functools.partial(reverse, implementation="scatter", training=False)
    compiled = jax.jit(function).lower(X).compile().as_text()
    assert re.search(r"\bscatter\(", compiled)


@pytest.mark.parametrize("training", [True, False])
def test_forward_pass_is_one_fusion(training):
    """No copy, no transpose, no second pass over the data."""
    x = jnp.zeros((8, 128, 16))
    lengths = jnp.arange(8)

    def pipeline(x, lengths):
        y = dml_jax.reverse_sequence(2 * x, lengths, training=training, **BATCH_MAJOR)
        return jnp.tanh(y) + 1

    text = jax.jit(pipeline).lower(x, lengths).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert len(re.findall(r"\bfusion\(", entry)) == 1, entry
    assert not re.search(r"\b(copy|transpose|gather|while)\(", entry), entry
