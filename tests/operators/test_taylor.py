"""Taylor mode, `jax.experimental.jet`: linear maps take each coefficient by itself."""

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import REVERSALS, SLICES, sampled
from jax.experimental import jet

import dml_jax

LINEAR = [
    case
    for case in [*REVERSALS, *SLICES]
    if case.options.get("lda_coeff", 1) == 1 or not case.options.get("training", True)
]


@pytest.mark.parametrize("through_jit", [False, True], ids=["plain", "jit"])
@pytest.mark.parametrize("case", sampled(LINEAR), ids=str)
def test_each_coefficient_is_moved(case, through_jit):
    (name,) = case.linear
    data = case.arrays[name]
    series = [np.float32(2) * data + 1, -data, data * data]

    def function(x):
        return case.run(**{name: x})

    run = jax.jit(function) if through_jit else function
    primal, terms = jet.jet(run, (data,), (series,), factorial_scaled=False)
    assert_same_bits(primal, case.expected())
    for term, coefficient in zip(terms, series, strict=True):
        assert_same_bits(term, case.expected(**{name: coefficient}))


def test_programs_that_were_compiled_before():
    """A trace that is remembered meets the rule too."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    run = jax.jit(lambda x, n: dml_jax.reverse_subsequences(x, n, 1) * 2)
    lengths = np.array([[2], [9], [-3]], np.int8)
    run(x, lengths)
    _, (term,) = jet.jet(lambda x: run(x, lengths), (x,), ([x + 1],))
    expected = 2 * dml_jax.reference.reverse_subsequences(x + 1, lengths, 1)
    assert_same_bits(term, expected)


def test_between_other_operations():
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)

    def function(x):
        y = dml_jax.slice1(x, (0, 0), (3, 4), (-1, -1))
        return jax.numpy.sin(y) ** 2

    def plainly(x):
        return jax.numpy.sin(x[::-1, ::-1]) ** 2

    ones, zeros = np.ones_like(x), np.zeros_like(x)
    result = jet.jet(function, (x,), ([ones, zeros, zeros],))
    expected = jet.jet(plainly, (x,), ([ones, zeros, zeros],))
    jax.tree.map(assert_same_bits, result, expected)


def test_fills():
    """Coefficients by start and delta are fills of them."""

    def function(start, delta):
        return dml_jax.fill_value_sequence((2, 3), "float32", start, delta)

    start, delta = np.float32(1), np.float32(2)
    series = ([np.float32(3)], [np.float32(5)])
    y, (term,) = jet.jet(function, (start, delta), series)
    assert_same_bits(y, np.arange(1, 13, 2, np.float32).reshape(2, 3))
    assert_same_bits(term, np.arange(3, 33, 5, np.float32).reshape(2, 3))
    constant = jax.tree_util.Partial(dml_jax.fill_value_constant, (2,), "float32")
    _, (term,) = jet.jet(constant, (start,), ([np.float32(3)],))
    assert_same_bits(term, np.full(2, 3, np.float32))


def test_a_scaled_backward_pass_has_none():
    x, lengths = np.ones((3, 2), np.float32), np.array([2, 3])

    def function(x):
        return dml_jax.reverse_sequence(x, lengths, lda_coeff=0.5)

    with pytest.raises(TypeError, match="reverse_sequence: `training` must be False"):
        jet.jet(function, (x,), ([x],))
