"""Every case under every transformation gives what the reference gives."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import CASES, EXAMPLES, MOVES, REVERSALS, Case, sampled
from dtypes import dtype_of
from jax import export
from jax.experimental import jet
from sampling import default_of

import dml_jax

Pairs = Iterator[tuple[Any, Any]]  # what a transformation gives, and what it must be
PLATFORMS = "cpu", "cuda", "rocm", "tpu"


def with_arrays(case: Case) -> Callable[..., jax.Array]:
    """The case as a function of its arrays alone, in their order."""
    return lambda *arrays: case.run(**dict(zip(case.arrays, arrays, strict=True)))


def stacked(case: Case, axis: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Three variants of every array, stacked along `axis`, and their results."""
    steps = [np.asarray(i).astype(np.int8) for i in range(3)]
    variants = [
        {name: a + step.astype(a.dtype) for name, a in case.arrays.items()}
        for step in steps
    ]
    arrays = [np.stack([v[name] for v in variants], axis) for name in case.arrays]
    return arrays, [case.expected(**variant) for variant in variants]


def jit(case: Case) -> Pairs:
    yield jax.jit(with_arrays(case))(*case.arrays.values()), case.expected()


def eval_shape(case: Case) -> Pairs:
    shape = jax.eval_shape(with_arrays(case), *case.arrays.values())
    yield np.zeros(shape.shape, shape.dtype), np.zeros_like(case.expected())


def vmap(case: Case, axis: int = 0) -> Pairs:
    arrays, results = stacked(case, axis)
    yield jax.vmap(with_arrays(case), axis, axis)(*arrays), np.stack(results, axis)


def vmap_last(case: Case) -> Pairs:
    yield from vmap(case, -1)


def vmap_each_array_alone(case: Case) -> Pairs:
    for name, variants in zip(case.arrays, stacked(case)[0], strict=True):
        axes = [0 if other == name else None for other in case.arrays]
        arrays = {**case.arrays, name: variants}
        results = [case.expected(**{name: variant}) for variant in variants]
        yield jax.vmap(with_arrays(case), axes)(*arrays.values()), np.stack(results)


def scan(case: Case) -> Pairs:
    arrays, results = stacked(case)
    yield jax.lax.map(lambda a: with_arrays(case)(*a), arrays), np.stack(results)


def remat(case: Case) -> Pairs:
    arrays = [jnp.asarray(a) for a in case.arrays.values()]
    function, rematted = with_arrays(case), jax.checkpoint(with_arrays(case))
    yield rematted(*arrays), case.expected()
    if not jnp.issubdtype(case.expected().dtype, jnp.inexact):
        return
    result, pullback = jax.vjp(function, *arrays)
    _, rematted_pullback = jax.vjp(rematted, *arrays)
    for pair in zip(rematted_pullback(result), pullback(result), strict=True):
        yield tuple(map(np.asarray, pair))


def disable_jit(case: Case) -> Pairs:
    with jax.disable_jit():
        yield case.run(), case.expected()


def debug_nans_and_leak_checks(case: Case) -> Pairs:
    with jax.debug_nans(True), jax.checking_leaks():
        yield case.run(), case.expected()


def export_for_every_platform(case: Case) -> Pairs:
    exported = export.export(jax.jit(with_arrays(case)), platforms=PLATFORMS)
    yield exported(*case.arrays.values()).call(*case.arrays.values()), case.expected()


TRANSFORMATIONS = [
    *[jit, eval_shape, vmap, vmap_last, vmap_each_array_alone, scan, remat],
    *[disable_jit, debug_nans_and_leak_checks, export_for_every_platform],
]
OF_ALL_CASES = [jit, vmap, disable_jit, export_for_every_platform]
DEFAULT = [(jit, "float32"), (scan, "float32"), (vmap, "float32"), (vmap, "bfloat16")]
DTYPES = "float32", "bfloat16", "float8_e5m2"


def dtypes_of(case: Case, transform: Callable[[Case], Pairs]) -> Sequence[str]:
    if case not in EXAMPLES:
        return DTYPES[:1]
    return DTYPES if transform in OF_ALL_CASES else DTYPES[:2]


def sampled_dtypes() -> list[Any]:
    """Parameters (case, transformation, dtype); only EXAMPLES have all transformations.

    The default run has EXAMPLES under the transformations in DEFAULT.
    """
    return [
        pytest.param(
            *(case, transform, dtype),
            id=f"{case}-{transform.__name__}-{dtype}",
            marks=()
            if case in EXAMPLES and (transform, dtype) in DEFAULT
            else pytest.mark.exhaustive,
        )
        for case in CASES
        for transform in (TRANSFORMATIONS if case in EXAMPLES else OF_ALL_CASES)
        for dtype in dtypes_of(case, transform)
    ]


@pytest.mark.parametrize(("case", "transform", "dtype"), sampled_dtypes())
def test_transformed_equals_the_reference(
    case: Case, transform: Callable[[Case], Pairs], dtype: str
) -> None:
    for result, expected in transform(case.astype(dtype_of(dtype))):
        assert_same_bits(result, expected)


@pytest.mark.parametrize("case", sampled(REVERSALS), ids=str)
def test_vmap_over_input_and_lengths_apart(case: Case) -> None:
    data, lengths = stacked(case)[0]
    function = jax.vmap(jax.vmap(with_arrays(case), (None, 0)), (0, None))
    result = function(data, lengths)
    names = list(case.arrays)
    for i, j in np.ndindex(3, 3):
        arrays = dict(zip(names, (data[i], lengths[j]), strict=True))
        assert_same_bits(result[i, j], case.expected(**arrays))


# Taylor mode, jax.experimental.jet ----------------------------------------------------


@pytest.mark.parametrize("through_jit", [False, True], ids=["plain", "jit"])
@pytest.mark.parametrize("case", sampled(MOVES), ids=str)
def test_taylor_coefficients_are_moved(case: Case, through_jit: bool) -> None:
    (name,) = case.linear
    data = case.arrays[name]
    series = [np.float32(2) * data + 1, -data, data * data]
    run = jax.jit(with_arrays(case)) if through_jit else with_arrays(case)
    # Only the data has coefficients: the lengths are closed over.
    others = [a for n, a in case.arrays.items() if n != name]
    primal, terms = jet.jet(
        lambda x: run(x, *others), (data,), (series,), factorial_scaled=False
    )
    assert_same_bits(primal, case.expected())
    for term, coefficient in zip(terms, series, strict=True):
        assert_same_bits(term, case.expected(**{name: coefficient}))


def test_taylor_coefficients_of_fills_are_fills() -> None:
    def function(start: jax.Array, delta: jax.Array) -> jax.Array:
        return dml_jax.fill_value_sequence((2, 3), "float32", start, delta)

    start, delta = np.float32(1), np.float32(2)
    series = ([np.float32(3)], [np.float32(5)])
    y, (term,) = jet.jet(function, (start, delta), series)
    assert_same_bits(y, np.arange(1, 13, 2, np.float32).reshape(2, 3))
    assert_same_bits(term, np.arange(3, 33, 5, np.float32).reshape(2, 3))
    constant = functools.partial(dml_jax.fill_value_constant, (2,), "float32")
    _, (term,) = jet.jet(constant, (start,), ([np.float32(3)],))
    assert_same_bits(term, np.full(2, 3, np.float32))


def test_taylor_mode_knows_no_coefficient_of_training() -> None:
    reverse = functools.partial(dml_jax.reverse_sequence, lda_coeff=0.5)
    x = np.ones((3, 2), np.float32)
    with pytest.raises(TypeError, match=r"^reverse_sequence: `training` must be False"):
        jet.jet(lambda x: reverse(x, np.array([2, 3])), (x,), ([x],))


# NaNs ---------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    "is_off", default_of([False, True], False), ids=["jit", "no-jit"]
)
@pytest.mark.parametrize("name", OF_NANS)
def test_debug_nans_finds_them(name: str, is_off: bool) -> None:
    message = pytest.raises(FloatingPointError, match=r"^invalid value \(nan\)")
    with jax.debug_nans(True), jax.disable_jit(is_off), message:
        OF_NANS[name]()


# Names --------------------------------------------------------------------------------

X = np.arange(6, dtype=np.float32).reshape(2, 3)
NODE = functools.partial(
    dml_jax.reverse_sequence, sequence_lens=np.array([1, 2, 0]), name="backwards"
)


@pytest.mark.parametrize("case", EXAMPLES, ids=str)
def test_operator_is_named_in_the_lowered_text(case: Case) -> None:
    lowered = jax.jit(with_arrays(case)).lower(*case.arrays.values())
    assert f"/{case.operator}/" in lowered.as_text(debug_info=True).replace('"', "/")


def test_name_is_a_scope() -> None:
    assert "backwards/" in jax.jit(NODE).lower(X).as_text(debug_info=True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["reversed", ["reversed"], np.array(["reversed"])])
@pytest.mark.parametrize(("policy_name", "saved"), [("reversed", 2), ("other", 1)])
def test_output_name_can_be_saved_by_a_remat_policy(
    policy_name: str,
    saved: int,
    name: Any,
    training: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = jax.checkpoint_policies.save_only_these_names(policy_name)

    @functools.partial(jax.checkpoint, policy=policy)
    def function(x: jax.Array) -> jax.Array:
        y = NODE(jnp.sin(x), training=training, specified_outputs_name=name)
        return jnp.sum(jnp.sin(y))

    jax.ad_checkpoint.print_saved_residuals(function, X)
    # The argument is always there; the named output only by the policy that names it.
    assert capsys.readouterr().out.count("[2,3]") == saved
