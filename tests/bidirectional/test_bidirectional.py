"""Scans in both directions, against torch, and exact integers."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_close, assert_same_bits
from cells import CELLS, layer
from sampling import default_of

from dml_jax import bidirectional_scan, checked

LENGTHS = np.array([3, 6, 0, 1, 4], np.int32)
BATCH, TIME, FEATURES, STATE = len(LENGTHS), 6, 3, 4
GATES = dict(lstm=4, gru=3, tanh=1)
RESULTS = np.load(pathlib.Path(__file__).with_name("torch_results.npz"))

pytestmark = pytest.mark.usefixtures("x32", "rank_promotion")
over_cells = pytest.mark.parametrize("kind", CELLS)


@pytest.fixture
def rank_promotion() -> Iterator[None]:
    """Allows it for the cells."""
    with jax.numpy_rank_promotion("allow"):
        yield


def assert_same(actual: Any, expected: Any) -> None:
    jax.tree.map(assert_same_bits, actual, expected)


def weights_of(kind: str, seed: int = 0, dtype: Any = np.float32) -> Any:
    random, rows = np.random.default_rng(seed), GATES[kind] * STATE
    shapes = dict(ih=(rows, FEATURES), hh=(rows, STATE), b_ih=(rows,), b_hh=(rows,))
    return tuple(
        {k: jnp.asarray(random.normal(0, 0.5, s), dtype) for k, s in shapes.items()}
        for _ in range(2)
    )


def frames(padding: float = 0.0, dtype: Any = np.float32) -> jax.Array:
    x = np.random.default_rng(1).normal(size=(BATCH, TIME, FEATURES))
    valid = np.arange(TIME) < LENGTHS[:, None]
    return jnp.asarray(np.where(valid[..., None], x, padding), dtype)


def loss(kind: str, weights: Any, x: jax.Array, lengths: Any, **options: Any) -> Any:
    """The sum of the squares of all results."""
    found = jax.tree.leaves(layer(kind, weights, x, lengths, **options))
    return sum(jnp.sum(y * y) for y in found)


# Values -------------------------------------------------------------------------------


def torch_layers(kind: str, prefix: str = "") -> Any:
    """The weights of both directions of the two layers, or their gradients."""
    names = dict(ih="weight_ih", hh="weight_hh", b_ih="bias_ih", b_hh="bias_hh")
    return [
        tuple(
            {k: RESULTS[f"{kind}/{prefix}{n}_l{i}{end}"] for k, n in names.items()}
            for end in ("", "_reverse")
        )
        for i in range(2)
    ]


def network(kind: str, layers: Any, x: jax.Array) -> Any:
    """Results as torch has them: the outputs, h_n and c_n."""
    last = []
    for weights in layers:
        carry, ys = layer(kind, weights, x, jnp.asarray(RESULTS["lengths"]))
        x = jnp.concatenate(ys, axis=-1)
        last += carry
    return [x, *map(jnp.stack, zip(*last, strict=True))]


@over_cells
@pytest.mark.usefixtures("x32")
def test_results_and_gradients_are_those_of_torch(kind: str) -> None:
    def loss(layers: Any, x: jax.Array) -> Any:
        found = network(kind, layers, x)
        return sum(jnp.sum(y * y) for y in found), found

    layers, x = torch_layers(kind), RESULTS[f"{kind}/frames"]
    run = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    (_, found), gradients = run(layers, x)
    names = ["outputs", "h_n", "c_n"][: 3 if kind == "lstm" else 2]
    assert_close(found, [RESULTS[f"{kind}/{name}"] for name in names])
    wanted = torch_layers(kind, "gradient/"), RESULTS[f"{kind}/gradient/frames"]
    assert_close(gradients, wanted)


@pytest.mark.parametrize("kind", default_of(CELLS, "tanh"))
def test_an_empty_row_has_no_influence(kind: str) -> None:
    """Torch refuses it. Its results and its gradient are zeros."""

    @jax.jit
    def run(weights: Any, x: jax.Array, lengths: Any) -> Any:
        found = layer(kind, weights, x, lengths)
        return found, jax.grad(partial(loss, kind), (0, 1))(weights, x, lengths)

    weights, x, is_full = weights_of(kind), frames(), LENGTHS > 0
    results, (of_weights, of_x) = run(weights, x, LENGTHS)
    for y in (*jax.tree.leaves(results), of_x):
        assert not np.any(y[~is_full])
    whole = jax.tree.map(lambda y: y[is_full], (results, of_x))
    expected, gradients = run(weights, x[is_full], LENGTHS[is_full])
    assert_close((*whole, of_weights), (expected, *gradients[::-1]))


def running_sum(weight: Any, carry: Any, x: Any) -> Any:
    """Exact, with a carry and outputs of several arrays and dtypes."""
    total, seen = carry["total"] + weight * x["value"], carry["seen"][0] + 1
    return dict(total=total, seen=(seen,)), (total, seen > x["limit"])


def sums(x: Any, lengths: Any, axis: int, **options: Any) -> Any:
    """Sums of integers, where the carry of each sequence is two integers."""
    batch = np.delete(x.shape, axis)
    zeros = dict(total=jnp.zeros(batch, jnp.int32), seen=(jnp.zeros(batch, jnp.int16),))
    xs = dict(value=x, limit=x.astype(jnp.int16))
    weights = jnp.array([1, 10], jnp.int32)
    return bidirectional_scan(
        running_sum, weights, (zeros, zeros), (xs, xs), lengths, axis, **options
    )


NUMBERS = np.random.default_rng(2).integers(1, 5, (BATCH, TIME)).astype(np.int32)


def sums_by_rows(x: np.ndarray, lengths: Any) -> Any:
    """Those of a batch [batch, time], by loops."""
    directions = []
    for weight, step in ((1, 1), (10, -1)):
        totals, larger = np.zeros(x.shape, np.int32), np.zeros(x.shape, np.bool_)
        last, seen = np.zeros(len(x), np.int32), np.zeros(len(x), np.int16)
        for row, length in enumerate(lengths):
            for t in range(x.shape[1])[: max(length, 0)][::step]:
                last[row] += weight * x[row, t]
                seen[row] += 1
                totals[row, t], larger[row, t] = last[row], seen[row] > x[row, t]
        directions.append((dict(total=last, seen=(seen,)), (totals, larger)))
    return tuple(zip(*directions, strict=True))


@pytest.mark.parametrize("lengths", [LENGTHS, [7, -1, 6, 2**31 - 1, 3]], ids=str)
@pytest.mark.parametrize("unroll", [None, 4])
def test_any_carry_and_outputs(lengths: Any, unroll: Any) -> None:
    found = sums(NUMBERS, jnp.array(lengths, jnp.int32), 1, unroll=unroll)
    assert_same(found, sums_by_rows(NUMBERS, lengths))


@pytest.mark.parametrize(
    ("moved", "axis"),
    [(NUMBERS.T, 0), (NUMBERS, -1), (NUMBERS.T, -2)],
)
def test_time_at_any_axis(moved: np.ndarray, axis: int) -> None:
    carry, ys = sums(moved, LENGTHS, axis)
    if axis != -1:
        ys = jax.tree.map(lambda y: y.T, ys)
    assert_same((carry, ys), sums_by_rows(NUMBERS, LENGTHS))


def test_several_batch_dimensions() -> None:
    x = np.stack([NUMBERS, NUMBERS[::-1]])
    for lengths in (np.stack([LENGTHS, LENGTHS[::-1]]), LENGTHS[None, :1], 4):
        found = sums(x, lengths, 2)
        each = np.broadcast_to(lengths, x.shape[:2])
        batches = [sums_by_rows(*pair) for pair in zip(x, each, strict=True)]
        assert_same(found, jax.tree.map(lambda *y: np.stack(y), *batches))


def test_one_sequence() -> None:
    found = sums(NUMBERS[0], 3, 0)
    expected = sums_by_rows(NUMBERS[:1], [3])
    assert_same(found, jax.tree.map(lambda y: y[0, ...], expected))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
def test_lengths_of_any_dtype(dtype: str) -> None:
    """The time does not fit 8 bits."""
    x = np.ones((3, 300), np.int32)
    lengths = np.array([0, 5, jnp.iinfo(dtype).max], dtype)
    assert_same(sums(x, lengths, 1), sums_by_rows(x, lengths.tolist()))


@pytest.mark.parametrize("shape", [(3, 0), (0, 3)], ids=str)
def test_empty_arrays(shape: tuple[int, int]) -> None:
    x, lengths = np.ones(shape, np.int32), np.full(shape[0], 2, np.int32)
    assert_same(sums(x, lengths, 1), sums_by_rows(x, lengths))


def test_weights_carry_and_inputs_as_a_pair_or_stacked() -> None:
    weights, x = weights_of("gru"), frames()
    init = tuple(dict(h=jnp.full((BATCH, STATE), i, x.dtype)) for i in range(2))
    xs = tuple(x @ w["ih"].T for w in weights)

    def step(weights: Any, carry: Any, x: Any) -> Any:
        (h,), y = CELLS["gru"](weights, (carry["h"],), x)
        return dict(h=h), y

    stacked = [jax.tree.map(lambda *a: jnp.stack(a), *a) for a in (weights, init, xs)]
    expected = bidirectional_scan(step, weights, init, xs, LENGTHS)
    assert_same(bidirectional_scan(step, *stacked, LENGTHS), expected)
    for kept, first in zip(expected[0], init, strict=True):
        assert_same_bits(kept["h"][2], first["h"][2])  # that of the empty row


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    default_of([("float16", 5e-3), ("bfloat16", 4e-2)], ("bfloat16", 4e-2)),
)
def test_16_bits(dtype: str, tolerance: float) -> None:
    arrays = weights_of("lstm", dtype=dtype), frames(dtype=dtype)
    run = jax.jit(partial(layer, "lstm"))
    found = run(*arrays, LENGTHS)
    assert {y.dtype.name for y in jax.tree.leaves(found)} == {dtype}
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), arrays)
    expected = run(*wide, LENGTHS)
    found = jax.tree.map(lambda y: y.astype(jnp.float32), found)
    assert_close(found, expected, tolerance)


# Padding ------------------------------------------------------------------------------


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("kind", default_of(CELLS, "lstm"))
def test_padding_has_no_influence(kind: str) -> None:
    def run(weights: Any, x: jax.Array) -> Any:
        found = layer(kind, weights, x, LENGTHS)
        return sum(jnp.sum(y * y) for y in jax.tree.leaves(found)), found

    run = jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))
    expected = run(weights_of(kind), frames())
    for padding in (np.nan, -np.inf, 3.0):
        assert_same(run(weights_of(kind), frames(padding)), expected)


@pytest.mark.usefixtures("nans_are_data")
def test_padding_of_a_step_that_multiplies_its_input() -> None:
    """The function masks what the step reads."""

    def step(weights: Any, carry: Any, x: Any) -> Any:
        h = jnp.tanh(x @ weights + carry)
        return h, h

    def loss(weights: Any, x: Any) -> Any:
        zeros = jnp.zeros((BATCH, STATE))
        _, ys = bidirectional_scan(step, weights, (zeros, zeros), (x, x), LENGTHS)
        return sum(jnp.sum(y * y) for y in ys)

    weights = jnp.asarray(np.random.default_rng(3).normal(size=(2, FEATURES, STATE)))
    run = jax.jit(jax.value_and_grad(loss, (0, 1)))
    expected = run(weights, frames())
    assert np.all(np.isfinite(expected[1][0]))
    assert_same(run(weights, frames(np.nan)), expected)


# Transformations and compilation ------------------------------------------------------


def gradients(kind: str, *arrays: Any) -> Any:
    return jax.value_and_grad(partial(loss, kind), (0, 1))(*arrays)


def over_ensemble(kind: str, weights: Any, x: Any, lengths: Any) -> Any:
    weights = jax.tree.map(lambda w: jnp.stack([2 * w, w]), weights)
    found = jax.vmap(partial(gradients, kind), (0, None, None))(weights, x, lengths)
    return jax.tree.map(lambda y: y[1], found)


def over_batches(kind: str, weights: Any, x: Any, lengths: Any) -> Any:
    x, lengths = jnp.stack([2 * x, x]), jnp.stack([lengths[::-1], lengths])
    found = jax.vmap(partial(gradients, kind), (None, 0, 0))(weights, x, lengths)
    return jax.tree.map(lambda y: y[1], found)


def with_remat(kind: str, *arrays: Any) -> Any:
    return jax.value_and_grad(jax.checkpoint(partial(loss, kind)), (0, 1))(*arrays)


def with_checks(kind: str, *arrays: Any) -> Any:
    return checked(partial(gradients, kind))(*arrays)


ARRAYS = weights_of("tanh"), frames(), jnp.asarray(LENGTHS)
compiled = jax.jit(partial(gradients, "tanh"))


@pytest.mark.parametrize("run", [over_ensemble, over_batches, with_remat])
def test_transformations(run: Any) -> None:
    assert_close(jax.jit(partial(run, "tanh"))(*ARRAYS), compiled(*ARRAYS))


@pytest.mark.parametrize("run", default_of([with_checks, gradients], with_checks))
def test_without_jit(run: Any) -> None:
    assert_close(run("tanh", *ARRAYS), compiled(*ARRAYS))


def test_forward_mode_agrees_with_reverse_mode() -> None:
    arrays, tangents = [(weights_of("tanh", seed), frames()) for seed in (0, 1)]
    run = jax.jit(lambda *arrays: loss("tanh", *arrays, LENGTHS))
    _, forward = jax.jvp(run, arrays, tangents)
    products = jax.tree.map(jnp.vdot, jax.grad(run, (0, 1))(*arrays), tangents)
    assert_close(forward, sum(jax.tree.leaves(products)))


def test_checked_reports_lengths() -> None:
    run = checked(partial(gradients, "tanh"))
    with pytest.raises(ValueError, match=r"`lengths` must be in \[0, 6\]; got 1 to 7"):
        run(weights_of("tanh"), frames(), LENGTHS + 1)


@pytest.mark.usefixtures("with_jit")
def test_gradients_have_no_scatter() -> None:
    run = jax.jit(partial(gradients, "lstm"))
    arrays = weights_of("lstm"), frames(), LENGTHS
    lowered = run.lower(*arrays)
    assert "scatter(" not in lowered.compile().as_text()
    assert "stablehlo.scatter" not in lowered.as_text()


def calls(platform: str, **options: Any) -> int:
    """The number of calls in a program, where each step in an iteration has some."""
    x, lengths = np.ones((3, 20), np.int32), np.array([1, 2, 3], np.int32)
    traced = jax.jit(partial(sums, axis=1, **options)).trace(x, lengths)
    return traced.lower(lowering_platforms=(platform,)).as_text().count("call @")


@pytest.mark.usefixtures("with_jit")
@pytest.mark.parametrize(
    ("platform", "steps"), [("cpu", 1), ("tpu", 1), ("cuda", 8), ("rocm", 8)]
)
def test_loop_is_unrolled_for_the_platform(platform: str, steps: int) -> None:
    counts = {n: calls(platform, unroll=n) for n in (1, 8)}
    assert counts[1] < counts[8]
    assert calls(platform) == counts[steps]


@pytest.mark.usefixtures("with_jit")
@pytest.mark.parametrize("platforms", [["cuda"], ["cpu", "cuda", "rocm", "tpu"]])
@pytest.mark.parametrize("shape", ["batch, 6", "batch, time"])
def test_export_with_symbolic_sizes(platforms: list[str], shape: str) -> None:
    batch, time = jax.export.symbolic_shape(shape)
    x = jax.ShapeDtypeStruct((batch, time, FEATURES), jnp.float32)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
    run = jax.jit(partial(layer, "gru", weights_of("gru")))
    exported = jax.export.export(run, platforms=platforms)(x, lengths)
    if "cpu" in platforms:
        expected = run(frames(), LENGTHS)
        assert_close(exported.call(frames(), LENGTHS), expected)


# Errors -------------------------------------------------------------------------------

STACKED = jnp.zeros((2, BATCH, STATE))
PAIR = STACKED[0], STACKED[1]
GOOD = dict(
    weights=None, init=PAIR, xs=jnp.zeros((2, BATCH, TIME, STATE)), lengths=LENGTHS
)
TWO = "must be a tuple (forward, backward) with equal shapes, or stacked [2, ...]"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            dict(weights=(STACKED,)),
            f"bidirectional_scan: `weights` {TWO}; got the shapes ((2, 5, 4),)",
        ),
        (
            dict(weights=dict(w=jnp.zeros(3), u=jnp.zeros((2, 3)))),
            f"bidirectional_scan: `weights` {TWO}; "
            "got the shapes {'u': (2, 3), 'w': (3,)}",
        ),
        (
            dict(xs=(jnp.zeros((5, 6)), jnp.zeros((5, 7)))),
            f"bidirectional_scan: `xs` {TWO}; got the shapes ((5, 6), (5, 7))",
        ),
        (
            dict(init=(STACKED, STACKED)),  # the states h and c of an LSTM
            "bidirectional_scan: `init` must have arrays [5, ...] in each direction; "
            "got (2, 5, 4)",
        ),
        (
            dict(lengths=LENGTHS[:3]),
            "bidirectional_scan: `lengths` must be a scalar or have shape (5,), the "
            "sizes of `xs` before axis=1, or 1 for any of them; got (3,)",
        ),
        (
            dict(axis=4),
            "bidirectional_scan: `axis` 4 is out of bounds for array of dimension 3",
        ),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    def step(_: Any, carry: Any, x: Any) -> Any:
        return carry + x, x

    bidirectional_scan(step, **GOOD)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        bidirectional_scan(step, **(GOOD | wrong))
