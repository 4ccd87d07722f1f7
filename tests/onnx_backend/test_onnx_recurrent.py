"""RNN, GRU and LSTM against ONNX Runtime, and their derivatives."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import onnx
import onnx_models
import pytest
from onnx import helper, numpy_helper
from onnx_models import runtime_outputs, runtime_session
from sampling import default_of

from dml_jax import onnx_backend

TIME, BATCH, SIZE, HIDDEN = 5, 3, 2, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
LENGTHS = np.array([5, 0, 3], np.int32)


def random_array(*shape: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(0, 0.7, shape).astype(np.float32)


def model_of(kind: str, opset: int = 14, **options: Any) -> onnx.ModelProto:
    """A node with the inputs X, sequence_lens and initial states, and constant weights.

    The options "bias", "lengths", "initial" and "peepholes" say which inputs there are.
    """
    given = {
        k: options.pop(k, True) for k in ("bias", "lengths", "initial", "peepholes")
    }
    count = 2 if options.get("direction") == "bidirectional" else 1
    gates = GATES[kind]
    weights = {
        "W": random_array(count, gates * HIDDEN, SIZE, seed=1),
        "R": random_array(count, gates * HIDDEN, HIDDEN, seed=2),
    }
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h"]
    if given["bias"]:
        weights["B"] = random_array(count, 2 * gates * HIDDEN, seed=3)
    if kind == "LSTM":
        names += ["initial_c", "P"]
        if given["peepholes"]:
            weights["P"] = random_array(count, 3 * HIDDEN, seed=4)
    infos = [helper.make_tensor_value_info("X", 1, [TIME, BATCH, SIZE])]
    if given["lengths"]:
        infos.append(helper.make_tensor_value_info("sequence_lens", 6, [BATCH]))
    state = [count, BATCH, HIDDEN]
    for name in ("initial_h", "initial_c"):
        if given["initial"] and name in names:
            infos.append(helper.make_tensor_value_info(name, 1, state))
    known = {*weights, *(info.name for info in infos)}
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    inputs = [name if name in known else "" for name in names]
    node = helper.make_node(kind, inputs, outputs, **{"hidden_size": HIDDEN} | options)
    results = [
        helper.make_tensor_value_info(name, 1, [None] * (4 if name == "Y" else 3))
        for name in outputs
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], "recurrent", infos, results, tensors)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    arrays = {}
    for seed, info in enumerate(model.graph.input):
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        arrays[info.name] = random_array(*shape, seed=seed + 10)
    return {
        **arrays,
        **({"sequence_lens": LENGTHS} if "sequence_lens" in arrays else {}),
    }


DIRECTIONS = ["forward", "reverse", "bidirectional"]
CASES: dict[str, dict[str, Any]] = {
    f"{kind} {direction}": {"kind": kind, "direction": direction}
    for kind, direction in itertools.product(GATES, DIRECTIONS)
} | {
    "GRU linear": {"kind": "GRU", "direction": DIRECTIONS[2], "linear_before_reset": 1},
    "GRU linear without a bias": {"kind": "GRU", "linear_before_reset": 1, "bias": 0},
    "GRU without a bias": {"kind": "GRU", "bias": 0, "initial": 0, "lengths": 0},
    "RNN without a bias": {"kind": "RNN", "bias": 0, "initial": 0},
    "LSTM input forget": {"kind": "LSTM", "input_forget": 1},
    "LSTM without peepholes": {"kind": "LSTM", "peepholes": 0, "lengths": 0},
    # ONNX Runtime does not clip the cell, which stays below this.
    "clip": {"kind": "LSTM", "clip": 1.8},
    "GRU clip": {"kind": "GRU", "clip": 0.3, "direction": "reverse"},
    "version 7": {"kind": "GRU", "opset": 9, "direction": "bidirectional"},
    "version 22": {"kind": "LSTM", "opset": 22, "direction": "bidirectional"},
}
# Functions of the two directions, with their alphas and betas.
ACTIVATIONS = [
    (["Relu", "Affine"], [0.7], [0.2]),
    (["LeakyRelu", "ThresholdedRelu"], [0.2, 0.1], []),
    (["ScaledTanh", "HardSigmoid"], [0.8, 0.3], [1.2, 0.4]),
    (["HardSigmoid", "LeakyRelu"], [], []),
    (["Elu", "Softsign"], [0.9], []),
    (["Softplus", "Sigmoid"], [], []),
]
for names, alphas, betas in ACTIVATIONS:
    lists = {"activation_alpha": alphas, "activation_beta": betas}
    CASES[" ".join(names)] = {
        "kind": "RNN",
        "direction": "bidirectional",
        "activations": names,
        **{key: value for key, value in lists.items() if value},
    }
CASES["two alphas"] = {
    "kind": "GRU",
    "direction": "bidirectional",
    "activations": ["HardSigmoid", "LeakyRelu", "Sigmoid", "ScaledTanh"],
    "activation_alpha": [0.3, 0.15, 0.9],
    "activation_beta": [0.4, 1.1],
}
DEFAULTS = "GRU bidirectional", "LSTM bidirectional"


@pytest.mark.parametrize("case", default_of(sorted(CASES), *DEFAULTS))
def test_results_are_those_of_onnx_runtime(case: str) -> None:
    model = model_of(**CASES[case])
    inputs = inputs_of(model)
    wanted = runtime_session(model).run(None, inputs)
    prepared = onnx_backend.prepare(model)
    results = [jax.jit(prepared.jax_fn)(*inputs.values())]
    results += [prepared.run(inputs)] if case in DEFAULTS[:1] else []
    for actual in results:
        for found, array in zip(actual, wanted, strict=True):
            np.testing.assert_allclose(found, array, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", default_of([*GATES]))
def test_derivatives(kind: str) -> None:
    source = model_of(kind, direction="reverse")
    model, inputs = onnx_backend.prepare(source), inputs_of(source)
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
    source = model_of("RNN", direction="bidirectional", lengths=lengths)
    model, inputs = onnx_backend.prepare(source), inputs_of(source)

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
    model = model_of(kind, lengths=False, direction="bidirectional")
    inputs = inputs_of(model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    inputs["X"] = inputs["X"][:0]
    y, *states = onnx_backend.prepare(model).run(inputs)
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
    model = onnx_backend.prepare(model_of(kind, direction=direction))
    zeros = inputs_of(model_of(kind, direction=direction))
    time = np.arange(zeros["X"].shape[0])[:, None]
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
            params, training=direction == "bidirectional", lda_coeff=0.5, **inputs
        )
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(outputs))

    results = []
    for inputs in (zeros, padded):
        floats = {n: jnp.asarray(x) for n, x in inputs.items() if x.dtype.kind == "f"}
        results.append(jax.value_and_grad(loss, (0, 1))(model.params, floats))
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
    source = onnx_models.model_of(text, [FRAMES], **constants)
    onnx_models.add_types(source, runtime_outputs(source, [FRAMES]))
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


def run_of_weights(kind: str, x: Any, w: Any, c: float = 0, **attributes: Any) -> Any:
    """The last state for one step of one unit, whose recurrent weights are zero."""
    names = ["X", "W", "R", "", "", "", "c"][: 7 if kind == "LSTM" else 3]
    node = helper.make_node(kind, names, ["y", "h"], hidden_size=1, **attributes)
    gates = GATES[kind]
    inputs: list[Any] = [
        np.full((1, 1, 1), x, np.float32),
        np.full((1, gates, 1), w, np.float32),
        np.zeros((1, gates, 1), np.float32),
        *[None] * 3,
        np.full((1, 1, 1), c, np.float32),
    ]
    _, h = onnx_backend.run_node(node, inputs[: len(names)])
    return np.asarray(h).item()


def test_clip_applies_to_the_cell_before_its_activation() -> None:
    h = run_of_weights("LSTM", x=0, w=0, c=20, clip=0.5)
    np.testing.assert_allclose(h, 0.5 * np.tanh(0.5), rtol=1e-6)


def test_a_thresholded_relu_keeps_its_threshold() -> None:
    options = {"activations": ["ThresholdedRelu"], "activation_alpha": [0.5]}
    assert run_of_weights("RNN", x=1, w=0.5, **options) == 0.5
    assert run_of_weights("RNN", x=1, w=0.25, **options) == 0
