"""RNN, GRU and LSTM against ONNX Runtime, and their derivatives."""

import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import onnx
import pytest
from onnx_models import (
    add_types,
    model_of,
    require_close,
    require_same,
    rows,
    runtime_outputs,
)
from sampling import default_of

from dml_jax import onnx_backend

TIME, BATCH, SIZE, HIDDEN = 5, 3, 2, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTHS = np.array([5, 0, 3], np.int32)
DIRECTIONS = "forward", "reverse", "bidirectional"
BOTH = "bidirectional"


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(0, 0.7, shape).astype(np.float32)


def example(
    node: str, steps: int = TIME
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node with constant weights, and its inputs.

    Frames p, lengths q and initial states r and s are inputs; weights w and u, the
    bias b and the peepholes v are constant. A node reads all if it does not say which.
    """
    opset, kind, options, names = NODE.fullmatch(node).groups()  # type: ignore
    is_lstm = kind == "LSTM"
    count, rows = 2 if BOTH in options else 1, GATES[kind] * HIDDEN
    names = names or "(p, w, u, b, q, r, s, v)"
    names = names if is_lstm else names.replace(", s, v", "")
    sizes = {"w": (rows, SIZE), "u": (rows, HIDDEN), "b": [2 * rows], "v": [3 * HIDDEN]}
    weights = {n: random_array(count, *sizes[n], seed=ord(n)) for n in "wubv"}
    weights = {name: array for name, array in weights.items() if name in names}
    states = [random_array(count, BATCH, HIDDEN, seed=n) for n in (1, 2)]
    inputs = [random_array(steps, BATCH, SIZE), LENGTHS, *states[: 1 + is_lstm]]
    results = "y, h, c" if is_lstm else "y, h"
    text = f"{opset}{results} = {kind}<hidden_size = {HIDDEN}, {options}>{names}"
    return model_of(text, inputs, **weights), dict(zip("pqrs", inputs, strict=False))


NODE = re.compile(r"(@\d+ |)(\w+)<(.*)>(.*)", re.DOTALL)
CASES = [
    f'{kind}<direction = "{direction}">'
    for kind, direction in itertools.product(GATES, DIRECTIONS)
]
MORE = rows(
    r"""
GRU<$both, linear_before_reset = 1>
GRU<linear_before_reset = 1>(p, w, u, , q, r)
GRU<direction = "forward">(p, w, u)
RNN<direction = "forward">(p, w, u, , q)
LSTM<input_forget = 1>
LSTM<direction = "forward">(p, w, u, b, , r, s)
LSTM<clip = 1.8>
GRU<clip = 0.3, direction = "reverse">
@9 GRU<$both>
@22 LSTM<$both>
RNN<$both, activations = ["Relu", "Affine"], activation_alpha = [0.7],
  activation_beta = [0.2]>
RNN<$both, activations = ["LeakyRelu", "ThresholdedRelu"],
  activation_alpha = [0.2, 0.1]>
RNN<$both, activations = ["ScaledTanh", "HardSigmoid"],
  activation_alpha = [0.8, 0.3], activation_beta = [1.2, 0.4]>
RNN<$both, activations = ["HardSigmoid", "LeakyRelu"]>
RNN<$both, activations = ["Elu", "Softsign"], activation_alpha = [0.9]>
RNN<$both, activations = ["Softplus", "Sigmoid"]>
GRU<$both, activations = ["HardSigmoid", "LeakyRelu", "Sigmoid", "ScaledTanh"],
  activation_alpha = [0.3, 0.15, 0.9], activation_beta = [0.4, 1.1]>
""",
    both=f'direction = "{BOTH}"',
)
CASES += [node for (node,) in MORE]
DEFAULTS = [f'{kind}<direction = "{BOTH}">' for kind in ("GRU", "LSTM")]


@pytest.mark.parametrize("node", default_of(CASES, *DEFAULTS))
def test_results_are_those_of_onnx_runtime(node: str) -> None:
    """Of which ONNX Runtime does not clip the cell, which stays below 1.8."""
    source, inputs = example(node)
    wanted = runtime_outputs(source, inputs.values())
    model = onnx_backend.prepare(source)
    results = [jax.jit(model.jax_fn)(*inputs.values())]
    results += [model.run(inputs)] if node == DEFAULTS[0] else []
    for actual in results:
        require_close(actual, wanted, 5e-6)


@pytest.mark.parametrize("kind", default_of([*GATES]))
def test_derivatives(kind: str) -> None:
    source, inputs = example(f'{kind}<direction = "reverse">')
    model = onnx_backend.prepare(source)
    lengths = {"q": inputs.pop("q")}

    def total(inputs: Any, params: Any) -> Any:
        outputs = model.apply(params, **inputs, **lengths)
        return sum(jnp.sum(jnp.sin(y)) for y in outputs)

    args = inputs, model.params
    assert len(model.params) == (4 if kind == "LSTM" else 3)
    jax.test_util.check_grads(jax.jit(total), args, 1, ["rev"], rtol=2e-2, atol=2e-2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("names", ["", "(p, w, u, b, , r)"])
def test_training_scales_the_gradient_through_the_reverse_direction(
    names: str,
) -> None:
    """The forward direction has its whole gradient, and the weights have theirs."""
    source, inputs = example(f'RNN<direction = "{BOTH}">{names}')
    model = onnx_backend.prepare(source)

    @functools.partial(jax.jit, static_argnames="training")
    def gradient(coefficient: Any, direction: Any, training: bool) -> Any:
        def total(x: Any, params: Any) -> Any:
            options = {"training": training, "lda_coeff": coefficient}
            (y, _) = model.apply(params, **{**inputs, "p": x}, **options)
            return jnp.sum(jnp.sin(y[:, direction]))

        return jax.grad(total, (0, 1))(inputs["p"], model.params)

    for direction, scale in ((0, 1), (1, 0.25)):
        plain, weights = gradient(0.25, direction, False)
        scaled, same = gradient(0.25, direction, True)
        np.testing.assert_allclose(scaled, scale * plain, rtol=1e-5, atol=1e-6)
        for name, array in weights.items():
            np.testing.assert_allclose(same[name], array, rtol=1e-5, atol=1e-6)
        assert np.abs(plain).max() > 0.01


@pytest.mark.parametrize("kind", GATES)
def test_no_steps(kind: str) -> None:
    """The last states are zeros, as ONNX Runtime has them for an RNN."""
    source, inputs = example(f'{kind}<direction = "{BOTH}">(p, w, u, b, , r, s, v)', 0)
    y, *states = onnx_backend.prepare(source).run(inputs)
    assert y.shape == (0, 2, BATCH, HIDDEN)
    for state in states:
        assert not np.asarray(state).any()


@pytest.mark.parametrize(
    ("kind", "direction"),
    default_of(
        itertools.product(GATES, DIRECTIONS), *zip(GATES, DIRECTIONS, strict=True)
    ),
)
def test_padding_has_no_gradient(kind: str, direction: str) -> None:
    """Outputs and gradients are those of zeros in place of what no sequence reads."""
    source, zeros = example(f'{kind}<direction = "{direction}">')
    model, time = onnx_backend.prepare(source), np.arange(TIME)[:, None]
    zeros["p"][time >= LENGTHS] = 0
    padded = {name: array.copy() for name, array in zeros.items()}
    padded["p"][time >= LENGTHS] = np.nan, -np.inf
    for name in padded:
        if name in "rs":
            zeros[name][:, LENGTHS == 0] = 0
            padded[name][:, LENGTHS == 0] = np.nan

    def loss(params: Any, floats: Any) -> Any:
        inputs = {**floats, "q": LENGTHS}
        outputs = model.apply(
            params, training=direction == BOTH, lda_coeff=0.5, **inputs
        )
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(outputs))

    results, differentiate = [], jax.jit(jax.value_and_grad(loss, (0, 1)))
    for inputs in (zeros, padded):
        floats = {n: jnp.asarray(x) for n, x in inputs.items() if x.dtype.kind == "f"}
        results.append(differentiate(model.params, floats))
    assert len(jax.tree.leaves(results[0])) > 4
    jax.tree.map(np.testing.assert_array_equal, *results)


# Weights of an LSTM in integers, with a scale for all columns or for each.
LSTM = """y, h, c = com.microsoft.DynamicQuantizeLSTM<
  hidden_size = 3, direction = "bidirectional">(p, q, r, s, t, , , , u, v, u, v)"""
FRAMES = random_array(TIME, 2, 4)
RANDOM = np.random.default_rng(0)
OF_LSTM: dict[str, Any] = {
    "q": RANDOM.integers(-128, 128, (2, 4, 12), np.int8),
    "r": RANDOM.integers(-128, 128, (2, 3, 12), np.int8),
    "s": 0.1 * random_array(2, 24),
    "t": np.array([3, 5], np.int32),
}


def lstm_of_integers(*columns: int, lengths: bool = False) -> onnx.ModelProto:
    scales = np.full((2, *columns), 0.004, np.float32), np.zeros((2, *columns), np.int8)
    constants = OF_LSTM | dict(zip("uv", scales, strict=True))
    text = LSTM if lengths else LSTM.replace(" t,", " ,")
    source = model_of(text, [FRAMES], **constants)
    add_types(source, runtime_outputs(source, [FRAMES]))
    return source


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("columns", [(), (12,)])
def test_lstm_of_quantized_weights(columns: tuple[int, ...]) -> None:
    source = lstm_of_integers(*columns)
    found = onnx_backend.prepare(source).run([FRAMES])
    require_close(found, runtime_outputs(source, [FRAMES]), 1e-5)


@pytest.mark.usefixtures("x32", "nans_are_data")
def test_padding_of_a_quantized_lstm() -> None:
    """It may be infinite or no number, and its gradient is zero."""
    model = onnx_backend.prepare(lstm_of_integers(lengths=True))
    is_read = (np.arange(TIME)[:, None] < OF_LSTM["t"])[..., None]
    padding = np.array([np.nan, np.inf, -np.inf, np.nan], np.float32)
    zeros, x = (np.where(is_read, FRAMES, p) for p in (np.float32(0), padding))
    require_same(model.run([x]), model.run([zeros]))
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(model.jax_fn(x)[0])))
    wanted = gradient(zeros)
    assert np.any(wanted)
    np.testing.assert_array_equal(gradient(x), wanted)
