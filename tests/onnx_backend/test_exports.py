"""Models that torch, Keras and TensorFlow have exported, against ONNX Runtime."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import onnx
import pytest
from onnx_models import require_close, runtime_outputs
from sampling import default_of

from dml_jax import onnx_backend

FOLDER = pathlib.Path(__file__).with_name("exports")
NAMES = sorted(path.stem for path in FOLDER.glob("*.onnx"))
TIME_FIRST = ("torch_gru_d", "torch_gru_s", "torch_gru_p", "torch_lstm", "torch_rnn")
PACKED = "torch_gru_packed_script"
TRAINED = "torch_training_dynamo", "torch_training_packed_script"
TOLERANCE = 5e-6
KINDS = "keras_gru", "keras_lstm", "torch_acoustic_dynamo", "torch_rnn_script", PACKED

pytestmark = pytest.mark.usefixtures("x32", "with_jit")


def load(name: str) -> onnx.ModelProto:
    return onnx_backend.load_model(FOLDER / f"{name}.onnx")


def inputs_of(model: onnx.ModelProto, name: str, seed: int) -> list[np.ndarray]:
    """Three sequences of up to six frames, zero behind the last one."""
    random = np.random.default_rng(seed)
    lengths = random.permutation([6, 4, 2])
    frames = random.standard_normal((3, 6, 4)).astype(np.float32)
    frames[np.arange(6) >= lengths[:, None]] = 0
    if name.startswith(TIME_FIRST):
        frames = frames.swapaxes(0, 1)
    kinds = [info.type.tensor_type.elem_type for info in model.graph.input]
    dtypes = map(onnx.helper.tensor_dtype_to_np_dtype, kinds)
    return [x.astype(t) for x, t in zip((frames, lengths), dtypes, strict=False)]


@pytest.mark.parametrize("name", default_of(NAMES, "keras_gru", "tensorflow_reverse"))
def test_results_of_one_program_are_those_of_onnx_runtime(name: str) -> None:
    model = load(name)
    jitted = jax.jit(onnx_backend.prepare(model).jax_fn)
    for seed in range(3):
        inputs = inputs_of(model, name, seed)
        require_close(jitted(*inputs), runtime_outputs(model, inputs), TOLERANCE)
    assert jitted._cache_size() == 1  # type: ignore[attr-defined]


def loss(prepared: onnx_backend.Model, *inputs: Any) -> jax.Array:
    return jnp.sum(prepared.jax_fn(*inputs)[0] ** 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_differences(name: str) -> None:
    """Frames are scaled, so that padding stays 0 and is masked."""
    model = load(name)
    prepared, (frames, *rest) = onnx_backend.prepare(model), inputs_of(model, name, 0)
    jax.test_util.check_grads(
        jax.jit(lambda scale: loss(prepared, scale * frames, *rest)),
        (np.ones_like(frames),),
        order=1,
        modes=["rev"],
        eps=1e-2,
        atol=1e-2,
        rtol=1e-2,
    )


def test_gradients_are_those_of_torch() -> None:
    prepared = onnx_backend.prepare(load(PACKED))
    with np.load(FOLDER / "torch_gru_packed.npz") as arrays:
        frames, lengths, wanted = (arrays[k] for k in ("frames", "lengths", "gradient"))
    actual = jax.jit(jax.grad(lambda x: loss(prepared, x, lengths)))(frames)
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TRAINED)
def test_losses_are_those_of_torch(name: str) -> None:
    """A network that is exported for training has all parameters, by torch's names."""
    model = onnx_backend.prepare(load(name))
    with np.load(FOLDER / f"{name}.npz") as arrays:
        inputs = {name: arrays[name] for name in model.input_names}
        classes, names, wanted = (arrays[k] for k in ("classes", "names", "losses"))
    assert [*model.params] == names.tolist()

    @jax.jit
    @jax.value_and_grad
    def cross_entropy(params: Any) -> jax.Array:
        (logits,) = model.apply(params, **inputs)
        scores = jax.nn.log_softmax(jnp.mean(logits, axis=1))
        return -jnp.mean(scores[np.arange(len(classes)), classes])

    params, losses = model.params, []
    for _ in wanted:
        value, gradient = cross_entropy(params)
        params = jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient)
        losses.append(value)
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
