"""Every case under every transformation gives what the plain call gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import CASES, FILLS, REVERSALS, sampled

import dml_jax


def with_arrays(case):
    """The case as a function of its arrays alone, in their order."""
    return lambda *arrays: case.run(**dict(zip(case.arrays, arrays, strict=True)))


def stacked(case, axis):
    """Three variants of every array of a case, stacked along `axis`."""
    return [np.stack([a, a + 1, a + 2], axis) for a in case.arrays.values()]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_jit(case):
    result = jax.jit(with_arrays(case))(*case.arrays.values())
    assert_same_bits(result, case.expected())


@pytest.mark.parametrize("case", sampled(CASES), ids=str)
def test_eval_shape(case):
    shape = jax.eval_shape(with_arrays(case), *case.arrays.values())
    expected = case.expected()
    assert (shape.shape, shape.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("case", sampled(CASES), ids=str)
def test_vmap_over_all_arrays(case, axis):
    arrays = stacked(case, axis)
    result = jax.vmap(with_arrays(case), axis, axis)(*arrays)
    entries = [
        case.expected(
            **{
                name: np.take(array, i, axis)
                for name, array in zip(case.arrays, arrays, strict=True)
            }
        )
        for i in range(3)
    ]
    assert_same_bits(result, np.stack(entries, axis))


@pytest.mark.parametrize("mapped", [0, 1], ids=["first-alone", "second-alone"])
@pytest.mark.parametrize("case", sampled([*REVERSALS, *FILLS[:-1]]), ids=str)
def test_vmap_over_one_array(case, mapped):
    name = list(case.arrays)[mapped]
    array = case.arrays[name]
    variants = np.stack([array, array + 1])
    axes = [0 if i == mapped else None for i in range(2)]
    arrays = {**case.arrays, name: variants}
    result = jax.vmap(with_arrays(case), axes)(*arrays.values())
    entries = [case.expected(**{name: variant}) for variant in variants]
    assert_same_bits(result, np.stack(entries))


@pytest.mark.parametrize("case", sampled(REVERSALS), ids=str)
def test_vmap_twice(case):
    data, lengths = case.arrays.values()
    function = jax.vmap(jax.vmap(with_arrays(case), (None, 0)), (0, None))
    result = function(np.stack([data, data + 1]), np.stack([lengths, lengths - 1]))
    names = list(case.arrays)
    for i, j in np.ndindex(2, 2):
        arrays = dict(zip(names, (data + i, lengths - j), strict=True))
        assert_same_bits(
            result[i, j],
            case.expected(
                **{k: v.astype(case.arrays[k].dtype) for k, v in arrays.items()}
            ),
        )


@pytest.mark.parametrize("case", sampled(CASES), ids=str)
def test_scan(case):
    arrays = stacked(case, 0)
    _, result = jax.lax.scan(lambda _, a: (None, with_arrays(case)(*a)), None, arrays)
    for i in range(3):
        entry = {
            name: array[i] for name, array in zip(case.arrays, arrays, strict=True)
        }
        assert_same_bits(result[i], case.expected(**entry))


@pytest.mark.parametrize("case", sampled(CASES), ids=str)
def test_remat(case):
    arrays = [jnp.asarray(a) for a in case.arrays.values()]
    function = with_arrays(case)
    expected, pullback = jax.vjp(function, *arrays)
    result, remat_pullback = jax.vjp(jax.checkpoint(function), *arrays)
    assert_same_bits(result, expected)
    for cotangent, expected in zip(
        remat_pullback(result), pullback(result), strict=True
    ):
        assert_same_bits(np.asarray(cotangent), np.asarray(expected))


@pytest.mark.parametrize("case", sampled(CASES), ids=str)
def test_disable_jit(case):
    with jax.disable_jit():
        assert_same_bits(case.run(), case.expected())


@pytest.mark.parametrize("case", sampled(CASES), ids=str)
def test_debug_nans_and_leak_checks(case):
    with jax.debug_nans(True), jax.checking_leaks():
        assert_same_bits(case.run(), case.expected())


NAN = np.full((2, 3), np.nan, np.float32)
OF_NANS = {
    "reverse_subsequences": lambda: dml_jax.reverse_subsequences(NAN, [[1], [2]], 1),
    "reverse_sequence": lambda: dml_jax.reverse_sequence(NAN, [1, 2, 0]),
    "slice": lambda: dml_jax.slice(NAN, (0, 1), (2, 2)),
    "slice1": lambda: dml_jax.slice1(NAN, (0, 0), (2, 3), (-1, 1)),
    "slice_grad": lambda: dml_jax.slice_grad(NAN, (4, 3), (0, 0), (4, 3), (2, 1)),
    "constant": lambda: dml_jax.fill_value_constant((2,), "float32", NAN[0, 0]),
    "sequence": lambda: dml_jax.fill_value_sequence((2,), "float32", 0, NAN[0, 0]),
}


@pytest.mark.parametrize("is_off", [False, True], ids=["jit", "no-jit"])
@pytest.mark.parametrize("name", OF_NANS)
def test_debug_nans_finds_them(name, is_off):
    message = pytest.raises(FloatingPointError, match=r"^invalid value \(nan\)")
    with jax.debug_nans(True), jax.disable_jit(is_off), message:
        OF_NANS[name]()


# Traces -------------------------------------------------------------------------------


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.usefixtures("with_jit")
def test_lda_coeff_and_starts_do_not_retrace_the_callers_jit():
    count = 0

    @jax.jit
    def step(x, coefficient, start):
        nonlocal count
        count += 1
        fill = dml_jax.fill_value_sequence(x.shape, "float32", start, coefficient)
        lengths = jnp.array([1, 2, 0])
        return dml_jax.reverse_sequence(x + fill, lengths, lda_coeff=coefficient)

    for value in (0.5, 2.0, 3.5):
        step(X, value, value)
    assert count == 1


# Names --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", sampled(CASES), ids=str)
def test_operator_is_named_in_the_lowered_text(case):
    lowered = jax.jit(with_arrays(case)).lower(*case.arrays.values())
    assert f"/{case.operator}/" in lowered.as_text(debug_info=True).replace('"', "/")


NODE = functools.partial(
    dml_jax.reverse_sequence, sequence_lens=np.array([1, 2, 0]), name="backwards"
)


def test_name_is_a_scope():
    assert "backwards/" in jax.jit(NODE).lower(X).as_text(debug_info=True)


OUTPUT_NAMES = ["reversed", ["reversed"], ("reversed",), np.array(["reversed"])]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", OUTPUT_NAMES, ids=lambda name: type(name).__name__)
@pytest.mark.parametrize(("policy_name", "saved"), [("reversed", 2), ("other", 1)])
def test_output_name_can_be_saved_by_a_remat_policy(
    policy_name, saved, name, training, capsys
):
    policy = jax.checkpoint_policies.save_only_these_names(policy_name)

    @functools.partial(jax.checkpoint, policy=policy)
    def function(x):
        y = NODE(jnp.sin(x), training=training, specified_outputs_name=name)
        return jnp.sum(jnp.sin(y))

    jax.ad_checkpoint.print_saved_residuals(function, X)
    # The argument is always there; the named output only by the policy that names it.
    assert capsys.readouterr().out.count("[2,3]") == saved
