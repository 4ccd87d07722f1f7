"""Scans in one direction, and derivatives, against each sequence alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_close, assert_same_bits
from sampling import default_of

from dml_jax import bidirectional_scan, padded_scan

BATCH, TIME, FEATURES, STATE = 4, 5, 3, 2
RANDOM = np.random.default_rng(0)

pytestmark = pytest.mark.usefixtures("x32", "standard_promotion")


@pytest.fixture
def standard_promotion() -> Any:
    """What the cells of users rely on."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(0, 0.5, shape), jnp.float32)


X = normal(BATCH, TIME, FEATURES)
INIT = normal(BATCH, STATE), normal(BATCH, STATE)
WEIGHTS = dict(w=normal(FEATURES, STATE), u=normal(STATE, STATE), b=normal(STATE))
LENGTHS = np.array([3, 5, 0, 4])
HOLES = np.array([[0, 1, 1, 0, 1], [1] * 5, [0] * 5, [1, 0, 0, 0, 1]], np.int32)
PACKED = np.array([[1, 1, 2, 2, 0], [5, 0, 5, 2, 5], [0] * 5, [0, 1, 0, 1, 3]])
MASKS: dict[str, Any] = dict(
    all={},
    lengths=dict(lengths=LENGTHS),
    one_length=dict(lengths=4),
    holes=dict(segment_ids=HOLES),
    booleans=dict(segment_ids=HOLES != 0),
    packed=dict(segment_ids=PACKED),
)


def cell(weights: Any, carry: Any, x: Any) -> Any:
    """It multiplies its inputs, with weights of any dtype."""
    h, c = carry
    w, u, b = (weights[name].astype(h.dtype) for name in "wub")
    h = jnp.tanh(x @ w + h @ u + b)
    return (h, c * h + x[:, :1]), dict(h=h)


def ids_of(lengths: Any = None, segment_ids: Any = None) -> np.ndarray:
    if segment_ids is not None:
        return np.asarray(segment_ids).astype(int)
    if lengths is None:
        return np.ones((BATCH, TIME), int)
    return (np.arange(TIME) < np.reshape(lengths, (-1, 1)) + np.zeros((BATCH, 1))) * 1


def by_rows(
    step: Any, weights: Any, init: Any, x: Any, reverse: bool = False, **mask: Any
) -> Any:
    """Each row alone, in loops of Python without padding, step by step."""
    step = jax.jit(step)
    carries, outputs = [], []
    starts = zip(*(jnp.split(c, BATCH) for c in init), strict=True)
    frames = [
        [frame[:, 0] for frame in jnp.split(row, TIME, 1)]
        for row in jnp.split(x, BATCH)
    ]
    zeros = jax.tree.map(
        lambda y: jnp.zeros((1, *y.shape[1:]), y.dtype),
        jax.eval_shape(step, weights, init, x[:, 0])[1],
    )
    for start, row, ids in zip(starts, frames, ids_of(**mask), strict=True):
        carry, last, ys = start, 0, {}
        for t in range(TIME)[:: -1 if reverse else 1]:
            if ids[t] == 0:
                continue
            if last not in (0, ids[t]):
                carry = start
            last = ids[t]
            carry, ys[t] = step(weights, carry, row[t])
        every = [ys.get(t, zeros) for t in range(TIME)]
        outputs.append(jax.tree.map(lambda *y: jnp.stack(y, 1), *every))
        carries.append(carry)
    return jax.tree.map(lambda *c: jnp.concatenate(c), *carries), jax.tree.map(
        lambda *y: jnp.concatenate(y), *outputs
    )


def total(found: Any) -> jax.Array:
    return sum((jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(found)), jnp.zeros(()))


def loss(scan: Any, step: Any = cell, **options: Any) -> Callable[..., jax.Array]:
    return lambda *arrays: total(scan(step, *arrays, **options))


# Values and derivatives ---------------------------------------------------------------


@pytest.mark.parametrize("mask", default_of(MASKS, "all", "lengths", "packed"))
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
def test_rows_are_read_as_if_alone(mask: str, reverse: bool) -> None:
    """The results and all gradients; padding is NaN."""
    options = dict(reverse=reverse, **MASKS[mask])
    valid = ids_of(**MASKS[mask])[..., None] != 0
    x = jnp.where(valid, X, jnp.nan)

    def run(scan: Any, x: Any) -> Any:
        return scan(cell, WEIGHTS, INIT, x, **options), jax.grad(
            loss(scan, **options), (0, 1, 2)
        )(WEIGHTS, INIT, x)

    with jax.debug_nans(False):
        found = jax.jit(partial(run, padded_scan))(x)
    assert_close(found, run(by_rows, jnp.where(valid, X, 0)))


@pytest.mark.parametrize("mask", ["lengths", "packed"])
def test_both_directions_are_two_scans(mask: str) -> None:
    backward = jax.tree.map(lambda w: 2 * w, WEIGHTS)
    carry, ys = bidirectional_scan(
        cell, (WEIGHTS, backward), (INIT, INIT), (X, X), **MASKS[mask]
    )
    one = partial(by_rows, cell, init=INIT, x=X, **MASKS[mask])
    forward, second = one(weights=WEIGHTS), one(weights=backward, reverse=True)
    assert_close((carry, ys), tuple(zip(forward, second, strict=True)))


def test_second_derivatives() -> None:
    arrays = WEIGHTS, INIT, X
    tangents = jax.tree.map(jnp.cos, arrays)

    def forward(f: Any) -> Any:
        return lambda arrays: jax.jvp(f, (arrays,), (tangents,))[1]

    def reverse(f: Any) -> Any:
        def product(arrays: Any) -> Any:
            pairs = jax.tree.map(jnp.vdot, jax.grad(f)(arrays), tangents)
            return sum(jax.tree.leaves(pairs))

        return product

    def of(scan: Any) -> Any:
        return lambda arrays: loss(scan, **MASKS["lengths"])(*arrays)

    @jax.jit
    def run(arrays: Any) -> Any:
        f = of(padded_scan)
        return [
            outer(inner(f))(arrays)
            for outer in (forward, reverse)
            for inner in (forward, reverse)
        ]

    wanted = forward(reverse(of(by_rows)))(arrays)
    assert_close(run(arrays), [wanted] * 4, 1e-4)


@pytest.mark.parametrize("mapped", [(0, None), (None, 0)], ids=["float", "integer"])
def test_arrays_that_the_step_closes_over(mapped: Any) -> None:
    """They have gradients, also if `vmap` maps them."""
    scale, shift = jnp.ones((2, STATE)), jnp.arange(2 * STATE).reshape(2, STATE)

    def run(scan: Any, scale: Any, shift: Any) -> Any:
        def step(weights: Any, carry: Any, x: Any) -> Any:
            new, y = cell(weights, carry, x)
            return (new[0] * scale + shift, new[1]), y

        return total(scan(step, WEIGHTS, INIT, X, lengths=LENGTHS))

    arrays = [
        x if m == 0 else x[1] for x, m in zip((scale, shift), mapped, strict=True)
    ]
    gradients = [
        jax.jit(jax.vmap(jax.grad(partial(run, scan)), mapped))(*arrays)
        for scan in (padded_scan, by_rows)
    ]
    assert_close(*gradients)


@jax.custom_vjp
def doubled_in_reverse(x: jax.Array) -> jax.Array:
    return x


doubled_in_reverse.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))


CELLS: dict[str, Any] = {
    "jit": jax.jit(cell),
    "remat": jax.checkpoint(cell),
    "custom_vjp": lambda w, c, x: cell(w, jax.tree.map(doubled_in_reverse, c), x),
    "fori_loop": lambda w, c, x: jax.lax.fori_loop(
        0, 2, lambda _, found: cell(w, found[0], x), cell(w, c, x)
    ),
    "cond": lambda w, c, x: jax.lax.cond(w["b"][0] > 0, cell, cell, w, c, x),
}


@pytest.mark.parametrize("name", default_of(CELLS, "custom_vjp", "cond"))
def test_steps_of_other_transformations(name: str) -> None:
    found = jax.jit(jax.grad(loss(padded_scan, CELLS[name])))(WEIGHTS, INIT, X)
    assert_close(found, jax.grad(loss(by_rows, CELLS[name]))(WEIGHTS, INIT, X))


def test_carries_of_any_kind() -> None:
    def step(_: Any, carry: Any, x: Any) -> Any:
        keys, count, flag, nothing = carry
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys, 1)
        return (keys, count + 1, ~flag, nothing), dict(keys=keys, count=count, x=x)

    keys = jax.random.split(jax.random.key(0), BATCH)
    init = keys, jnp.zeros(BATCH, jnp.int8), jnp.zeros(BATCH, bool), None
    (last, count, flag, _), ys = padded_scan(step, None, init, X, LENGTHS)
    assert_same_bits(count, LENGTHS.astype(np.int8))
    assert_same_bits(flag, LENGTHS % 2 == 1)
    assert_same_bits(jax.random.key_data(last[2]), jax.random.key_data(keys[2]))
    assert_same_bits(
        jax.random.key_data(last[1]), jax.random.key_data(ys["keys"][1, -1])
    )
    gradient = jax.grad(
        lambda x: padded_scan(step, None, init, x, LENGTHS)[1]["x"].sum()
    )
    assert_same_bits(
        gradient(X)[..., 0], (np.arange(TIME) < LENGTHS[:, None]) * np.float32(1)
    )


def test_a_function_is_traced_once_outside_of_jit() -> None:
    traces = []

    def step(weights: Any, carry: Any, x: Any) -> Any:
        traces.append(x)
        return cell(weights, carry, x)

    jax.grad(loss(padded_scan, step))(WEIGHTS, INIT, X)
    count = len(traces)
    jax.grad(loss(padded_scan, step))(WEIGHTS, INIT, X)
    assert len(traces) == count


# The program --------------------------------------------------------------------------


def scans_of(jaxpr: Any) -> list[Any]:
    """The scans of a jaxpr, also those of jaxprs within it."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            found.append(equation)
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(value):
                found += scans_of(getattr(value, "jaxpr", value))
    return found


def is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns")


@pytest.mark.parametrize("scan", [padded_scan, bidirectional_scan])
def test_no_loop_carries_or_returns_gradients_of_weights(scan: Any) -> None:
    arrays = (WEIGHTS, INIT, X)
    if scan is bidirectional_scan:
        arrays = tuple((x, x) for x in arrays)
    gradient = jax.grad(loss(scan, lengths=LENGTHS))
    loops = scans_of(jax.make_jaxpr(gradient)(*arrays).jaxpr)
    assert len(loops) >= 2  # forward and backward
    shapes = {w.shape for w in WEIGHTS.values()}
    shapes |= {shape[::-1] for shape in shapes}
    shapes |= {(2, *shape) for shape in shapes}
    for loop in loops:
        assert not shapes & {v.aval.shape for v in loop.outvars}


# 16 bits ------------------------------------------------------------------------------

STEPS: dict[str, Callable[..., Any]] = {
    "scalar": lambda w, c, x: (c, w * x),
    "vector": lambda w, c, x: (c, (w[None] + x[:, None])[:, 0]),
    "table": lambda w, c, x: (c, w[jnp.zeros_like(x, int)] * x),
    "compiled": jax.jit(lambda w, c, x: (c, w * x)),
}


@pytest.mark.parametrize("dtype", default_of(["bfloat16", "float16"], "bfloat16"))
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_closed_over", [False, True], ids=["passed", "closed-over"])
def test_sums_over_time_are_in_float32(
    step: str, dtype: str, is_closed_over: bool
) -> None:
    """In 16 bits, 4,096 ones are 256 or 2,048."""
    x, init = jnp.ones((1, 4096), dtype), jnp.zeros(1, dtype)
    weight = jnp.ones(() if step in ("scalar", "compiled") else 1, dtype)

    def loss(weight: Any) -> Any:
        function, passed = STEPS[step], weight
        if is_closed_over:
            function, passed = (lambda _, c, x: STEPS[step](weight, c, x)), None
        return padded_scan(function, passed, init, x)[1].astype(jnp.float32).sum()

    assert jax.grad(loss)(weight).sum() == 4096


NARROW = [("bfloat16", 0.01), ("float16", 2e-3)]  # and tolerances


@pytest.mark.parametrize("is_cast", [False, True], ids=["16-bit weights", "cast"])
@pytest.mark.parametrize(("dtype", "tolerance"), default_of(NARROW, ("bfloat16", 0.01)))
def test_gradients_of_many_steps(dtype: str, tolerance: float, is_cast: bool) -> None:
    """The largest error is a part of the largest element; a loop of sums loses half."""
    random = np.random.default_rng(1)
    x = jnp.asarray(random.normal(size=(8, 1500, FEATURES)), dtype)
    lengths = random.integers(700, 1501, 8)

    def gradient(dtype: Any, weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            zeros = jnp.zeros((8, STATE), dtype)
            found = padded_scan(cell, weights, (zeros, zeros), x.astype(dtype), lengths)
            return jnp.sum(found[1]["h"].astype(jnp.float32) ** 2)

        return jax.jit(jax.grad(loss))(weights)

    narrow = jax.tree.map(lambda w: w.astype(dtype), WEIGHTS)
    wide = jax.tree.map(lambda w: w.astype(jnp.float32), narrow)
    found = gradient(dtype, wide if is_cast else narrow)
    for name, expected in gradient("float32", wide).items():
        error = jnp.abs(found[name].astype(jnp.float32) - expected).max()
        assert error <= tolerance * jnp.abs(expected).max(), name


# Errors -------------------------------------------------------------------------------


def of(step: Any = cell, **changes: Any) -> Callable[[], Any]:
    arguments = dict(weights=WEIGHTS, init=INIT, xs=X) | changes
    return lambda: padded_scan(step, **arguments)


def of_both(step: Any = cell, **changes: Any) -> Callable[[], Any]:
    arguments = dict(weights=(WEIGHTS, WEIGHTS), init=(INIT, INIT), xs=(X, X)) | changes
    return lambda: bidirectional_scan(step, **arguments)


def changing(weights: Any, carry: Any, x: Any) -> Any:
    weights["b"] = weights["b"] + 1
    return cell(weights, carry, x)


CARRY = "padded_scan: `step` must return a carry like the one that it gets"
STATES = "The states of an LSTM in both directions are \\(\\(h, c\\), \\(h, c\\)\\)"
WRONG: dict[str, Any] = {
    "weights change": (of(changing), "`step` must not change its weights, as dropout"),
    "no pair": (of(lambda _, c, __: c[0]), r"`step` must return a pair \(carry, y\)"),
    "another structure": (of(lambda _, c, x: (c[0], x)), CARRY),
    "another shape": (
        of(lambda _, c, x: ((c[0].mean(0, keepdims=True), c[1]), x)),
        CARRY + r".*float32\[4,2\].*got .*float32\[1,2\]",
    ),
    "another dtype": (
        of(lambda _, c, x: (jax.tree.map(lambda c: c.astype("bfloat16"), c), x)),
        CARRY + ".*got .*bfloat16",
    ),
    "an output of all": (
        of(lambda _, c, x: (c, x.sum())),
        r"`step` must return outputs \[4, ...\]; got \(\)",
    ),
    "both masks": (
        of(lengths=LENGTHS, segment_ids=HOLES),
        "`lengths` must be None if `segment_ids` are given",
    ),
    "no arrays": (of(xs=()), "`xs` must have arrays; got none"),
    "another time": (
        of(xs=(X, X[:, :1])),
        r"`xs` must have arrays of one batch and 5 steps in dimension 1; got .*4, 1, 3",
    ),
    "ranks": (
        of(xs=(X, X[..., 0]), axis=-2),
        "`axis` must not be negative for arrays of different ranks; got -2",
    ),
    "a mask as lengths": (
        of(lengths=HOLES),
        r"`lengths` must have no time; got .* of a mask. Pass it as `segment_ids`",
    ),
    "another batch": (
        of(xs=(X, X[:3]), lengths=LENGTHS),
        r"`xs` must have arrays of one batch and 5 steps .*; got the shape \(3, 5, 3\)",
    ),
    "directions of two kinds": (
        of_both(weights=(WEIGHTS, [1.0])),
        "bidirectional_scan: `weights` must have two pytrees of one kind; got dict and",
    ),
    "directions of two dtypes": (
        of_both(xs=(X, X.astype("bfloat16"))),
        r"`xs` must be a tuple \(forward, backward\) with equal shapes",
    ),
    "a list of two": (of_both(xs=[X, X]), "`xs` must be a tuple"),
    "traced order": (
        lambda: jax.jit(lambda r: padded_scan(cell, WEIGHTS, INIT, X, reverse=r))(True),
        "`reverse` must be a bool; got traced",
    ),
    "ids of floats": (
        of(segment_ids=HOLES * 1.0),
        "must have an integer dtype or bool",
    ),
    "ids of another shape": (
        of(segment_ids=HOLES.T),
        r"`segment_ids` must have the shape \(4, 5\).*; got \(5, 4\)",
    ),
    "lengths of another batch": (
        of(lengths=LENGTHS[:3]),
        r"padded_scan: `lengths` must be .* shape \(4,\), the sizes of `xs`",
    ),
    "init of another batch": (
        of(init=(INIT[0][:3], INIT[1][:3]), lengths=LENGTHS),
        r"padded_scan: `init` must have arrays \[4, ...\]; got \(3, 2\)",
    ),
    "states of an LSTM": (of_both(init=INIT), STATES),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    run, message = WRONG[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        run()
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert re.search(message, text), text
