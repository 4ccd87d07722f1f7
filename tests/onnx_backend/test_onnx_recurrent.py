"""RNN, GRU and LSTM against ONNX Runtime, and their derivatives."""

import functools
import itertools
import json
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
    parse,
    runtime_outputs,
    runtime_session,
    type_of,
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
    kind: str,
    opset: int = 14,
    *,
    steps: int = TIME,
    bias: bool = True,
    lengths: bool = True,
    initial: bool = True,
    peepholes: bool = True,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node with constant weights, and its inputs."""
    count = 2 if attributes.get("direction") == BOTH else 1
    rows = GATES[kind] * HIDDEN
    weights = {
        "W": random_array(count, rows, SIZE, seed=1),
        "R": random_array(count, rows, HIDDEN, seed=2),
        "B": random_array(count, 2 * rows, seed=3),
        "P": random_array(count, 3 * HIDDEN, seed=4),
    }
    inputs = {
        "X": random_array(steps, BATCH, SIZE, seed=10),
        "sequence_lens": LENGTHS,
        "initial_h": random_array(count, BATCH, HIDDEN, seed=12),
        "initial_c": random_array(count, BATCH, HIDDEN, seed=13),
    }
    has = {"B": bias, "sequence_lens": lengths, "initial_h": initial}
    has |= {"initial_c": initial, "P": peepholes}
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h"]
    names += ["initial_c", "P"] if kind == "LSTM" else []
    names = [name if has.get(name, True) else "" for name in names]
    weights = {name: array for name, array in weights.items() if name in names}
    inputs = {name: array for name, array in inputs.items() if name in names}
    given = {"hidden_size": HIDDEN, **attributes}
    texts = [f"{k} = {json.dumps(v)}" for k, v in given.items() if v != []]
    types = [f"{type_of(x.dtype)}{[*x.shape]} {n}" for n, x in inputs.items()]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    results = [f"float[{'d,' * (y == 'Y')}a,b,c] {y}" for y in outputs]
    source = parse(
        f"{', '.join(types)} => {', '.join(results)} {{{', '.join(outputs)} = "
        f"{kind}<{', '.join(texts)}>({', '.join(names).rstrip(', ')})}}",
        opset,
        **weights,
    )
    return source, inputs


CASES: list[dict[str, Any]] = [
    *(
        {"kind": kind, "direction": direction}
        for kind, direction in itertools.product(GATES, DIRECTIONS)
    ),
    {"kind": "GRU", "direction": BOTH, "linear_before_reset": 1},
    {"kind": "GRU", "linear_before_reset": 1, "bias": False},
    {"kind": "GRU", "bias": False, "initial": False, "lengths": False},
    {"kind": "RNN", "bias": False, "initial": False},
    {"kind": "LSTM", "input_forget": 1},
    {"kind": "LSTM", "peepholes": False, "lengths": False},
    # ONNX Runtime does not clip the cell, which stays below this.
    {"kind": "LSTM", "clip": 1.8},
    {"kind": "GRU", "clip": 0.3, "direction": "reverse"},
    {"kind": "GRU", "opset": 9, "direction": BOTH},
    {"kind": "LSTM", "opset": 22, "direction": BOTH},
]
# Functions of the two directions, with their alphas and betas.
ACTIVATIONS: list[tuple[str, list[str], list[float], list[float]]] = [
    ("RNN", ["Relu", "Affine"], [0.7], [0.2]),
    ("RNN", ["LeakyRelu", "ThresholdedRelu"], [0.2, 0.1], []),
    ("RNN", ["ScaledTanh", "HardSigmoid"], [0.8, 0.3], [1.2, 0.4]),
    ("RNN", ["HardSigmoid", "LeakyRelu"], [], []),
    ("RNN", ["Elu", "Softsign"], [0.9], []),
    ("RNN", ["Softplus", "Sigmoid"], [], []),
    (
        "GRU",
        ["HardSigmoid", "LeakyRelu", "Sigmoid", "ScaledTanh"],
        [0.3, 0.15, 0.9],
        [0.4, 1.1],
    ),
]
for kind, names, alphas, betas in ACTIVATIONS:
    lists = {"activation_alpha": alphas, "activation_beta": betas}
    CASES.append({"kind": kind, "direction": BOTH, "activations": names, **lists})
DEFAULTS = [{"kind": kind, "direction": BOTH} for kind in ("GRU", "LSTM")]


def name_of(case: dict[str, Any]) -> str:
    return " ".join(map(str, case.values()))


@pytest.mark.parametrize("case", default_of(CASES, *DEFAULTS), ids=name_of)
def test_results_are_those_of_onnx_runtime(case: dict[str, Any]) -> None:
    model, inputs = example(**case)
    wanted = runtime_session(model).run(None, inputs)
    prepared = onnx_backend.prepare(model)
    results = [jax.jit(prepared.jax_fn)(*inputs.values())]
    results += [prepared.run(inputs)] if case == DEFAULTS[0] else []
    for actual in results:
        for found, array in zip(actual, wanted, strict=True):
            np.testing.assert_allclose(found, array, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", default_of([*GATES]))
def test_derivatives(kind: str) -> None:
    source, inputs = example(kind, direction="reverse")
    model = onnx_backend.prepare(source)
    lengths = {"sequence_lens": inputs.pop("sequence_lens")}

    def total(inputs: Any, params: Any) -> Any:
        outputs = model.apply(params, **inputs, **lengths)
        return sum(jnp.sum(jnp.sin(y)) for y in outputs)

    args = inputs, model.params
    assert len(model.params) == (4 if kind == "LSTM" else 3)
    jax.test_util.check_grads(jax.jit(total), args, 1, ["rev"], rtol=2e-2, atol=2e-2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("lengths", [False, True])
def test_training_scales_the_gradient_through_the_reverse_direction(
    lengths: bool,
) -> None:
    """The forward direction has its whole gradient, and the weights have theirs."""
    source, inputs = example("RNN", direction=BOTH, lengths=lengths)
    model = onnx_backend.prepare(source)

    @functools.partial(jax.jit, static_argnames="training")
    def gradient(coefficient: Any, direction: Any, training: bool) -> Any:
        def total(x: Any, params: Any) -> Any:
            options = {"training": training, "lda_coeff": coefficient}
            (y, _) = model.apply(params, **{**inputs, "X": x}, **options)
            return jnp.sum(jnp.sin(y[:, direction]))

        return jax.grad(total, (0, 1))(inputs["X"], model.params)

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
    source, inputs = example(kind, steps=0, lengths=False, direction=BOTH)
    y, *states = onnx_backend.prepare(source).run(inputs)
    assert y.shape == (0, 2, BATCH, HIDDEN)
    for state in states:
        assert not np.asarray(state).any()


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(
    ("kind", "direction"),
    default_of(
        itertools.product(GATES, DIRECTIONS), *zip(GATES, DIRECTIONS, strict=True)
    ),
)
def test_padding_has_no_gradient(kind: str, direction: str) -> None:
    """Outputs and gradients are those of zeros in place of what no sequence reads."""
    source, zeros = example(kind, direction=direction)
    model, time = onnx_backend.prepare(source), np.arange(TIME)[:, None]
    zeros["X"][time >= LENGTHS] = 0
    padded = {name: array.copy() for name, array in zeros.items()}
    padded["X"][time >= LENGTHS] = np.nan, -np.inf
    for name in padded:
        if name.startswith("initial"):
            zeros[name][:, LENGTHS == 0] = 0
            padded[name][:, LENGTHS == 0] = np.nan

    def loss(params: Any, floats: Any) -> Any:
        inputs = {**floats, "sequence_lens": LENGTHS}
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


@pytest.mark.usefixtures("x32", "unoptimized")
@pytest.mark.parametrize("columns", [(), (12,)])
def test_lstm_of_quantized_weights(columns: tuple[int, ...]) -> None:
    source = lstm_of_integers(*columns)
    found = onnx_backend.prepare(source).run([FRAMES])
    for actual, array in zip(found, runtime_outputs(source, [FRAMES]), strict=True):
        np.testing.assert_allclose(actual, array, 1e-5, 1e-5)


@pytest.mark.usefixtures("x32", "nans_are_data", "unoptimized")
def test_padding_of_a_quantized_lstm() -> None:
    """It may be infinite or no number, and its gradient is zero."""
    model = onnx_backend.prepare(lstm_of_integers(lengths=True))
    is_read = (np.arange(TIME)[:, None] < OF_LSTM["t"])[..., None]
    padding = np.array([np.nan, np.inf, -np.inf, np.nan], np.float32)
    zeros, x = (np.where(is_read, FRAMES, p) for p in (np.float32(0), padding))
    for found, wanted in zip(model.run([x]), model.run([zeros]), strict=True):
        np.testing.assert_array_equal(found, wanted)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(model.jax_fn(x)[0])))
    wanted = gradient(zeros)
    assert np.any(wanted)
    np.testing.assert_array_equal(gradient(x), wanted)


THRESHOLD = 'activations = ["ThresholdedRelu"], activation_alpha = [0.5]'


@pytest.mark.parametrize(
    ("node", "x", "w", "c", "wanted"),
    [
        # The cell is clipped before its activation.
        ("LSTM<hidden_size = 1, clip = 0.5>(p, q, r, , , , s)", 0, 0, 20,
         0.5 * np.tanh(0.5)),
        (f"RNN<hidden_size = 1, {THRESHOLD}>(p, q, r)", 1, 0.5, None, 0.5),
        (f"RNN<hidden_size = 1, {THRESHOLD}>(p, q, r)", 1, 0.25, None, 0),
    ],
)  # fmt: skip
def test_one_step_of_one_unit(
    node: str, x: float, w: float, c: float | None, wanted: float
) -> None:
    gates = GATES[node.partition("<")[0]]
    numbers = ([[x]], [[w]] * gates, [[0]] * gates, [[c]])
    inputs = [np.array([n], np.float32) for n in numbers[: 3 if c is None else 4]]
    model = onnx_backend.prepare(model_of(f"y, h = {node}", inputs))
    np.testing.assert_allclose(model.run(inputs)[1].item(), wanted, rtol=1e-6)
