"""Fine-tunes a model that torch has exported, and runs the result in ONNX Runtime.

`recogniser.onnx` tells nine speakers apart. It reads an utterance forwards and, through
a ReverseSequence, backwards, with a gated recurrent unit each. `export_recogniser.py`
has trained it in torch, on five utterances of each speaker. Here it learns from all
270 training utterances: `params` are its weights, and `apply` computes the logits with
any others as a pure function, so that JAX and optax do the rest.

`lda_coeff` scales the gradient that comes back through the ReverseSequence: 0 lets the
features learn from the forward reading only, 1 is the true gradient. It is an argument
of the compiled function, and `jax.vmap` trains with all coefficients at the same time.
The number of epochs and the learning rate were not tuned, and the test utterances
decide nothing.

    python docs/examples/fine_tuning.py

needs onnx, onnxruntime and optax, and takes less than a minute on two CPU cores. It
writes `fine_tuned.onnx`, the model that learned with the coefficient 1. The data are in
the package, where `examples/japanese_vowels.txt` says where they are from.
"""

import argparse
import functools
import importlib.resources
import pathlib
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import optax
from jax import Array, lax
from jax.typing import ArrayLike

from dml_jax import onnx_backend

FOLDER = pathlib.Path(__file__).parent
DATA = importlib.resources.files("dml_jax") / "examples" / "japanese_vowels.npz"
LONGEST = 29  # frames
COEFFICIENTS = 0.0, 0.5, 1.0, 2.0
SAVED = 1.0
BATCH_SIZE = 54
LEARNING_RATE = 3e-3

Parameters = dict[str, Array]


class Utterances(NamedTuple):
    frames: ArrayLike  # float32 [utterance, frame, coefficient], zero behind the last
    lengths: ArrayLike  # int32 [utterance]
    speakers: ArrayLike  # int32 [utterance]


def load_utterances(part: str) -> Utterances:
    with DATA.open("rb") as file, np.load(file) as arrays:
        data = {name: arrays[f"{part}_{name}"] for name in Utterances._fields}
    lengths = data["lengths"].astype(np.int32)
    frames = np.zeros((len(lengths), LONGEST, data["frames"].shape[1]), np.float32)
    frames[np.arange(LONGEST) < lengths[:, None]] = data["frames"]
    return Utterances(frames, lengths, data["speakers"].astype(np.int32))


def loss(
    parameters: Parameters,
    batch: Utterances,
    lda_coeff: ArrayLike,
    model: onnx_backend.Model,
) -> Array:
    # The gradients of weights contain 0 times the padding, which must be finite.
    valid = jnp.arange(LONGEST) < jnp.asarray(batch.lengths)[:, None]
    frames = jnp.where(valid[:, :, None], batch.frames, 0)
    (logits,) = model.apply(
        parameters, frames, batch.lengths, training=True, lda_coeff=lda_coeff
    )
    entropy = optax.softmax_cross_entropy_with_integer_labels
    return entropy(logits, jnp.asarray(batch.speakers)).mean()


@functools.partial(jax.jit, static_argnames=("model", "epochs"))
@functools.partial(jax.vmap, in_axes=(None, None, 0, None, None))
def fine_tune(
    parameters: Parameters,
    training: Utterances,
    lda_coeff: ArrayLike,
    model: onnx_backend.Model,
    epochs: int,
) -> Parameters:
    """The weights after a number of visits of every utterance, in random batches."""
    optimiser = optax.adam(LEARNING_RATE)

    def step(state: Any, chosen: Array) -> tuple[Any, None]:
        parameters, moments = state
        batch = jax.tree.map(lambda values: values[chosen], training)
        gradient = jax.grad(loss)(parameters, batch, lda_coeff, model)
        updates, moments = optimiser.update(gradient, moments)
        return (optax.apply_updates(parameters, updates), moments), None

    keys = jax.random.split(jax.random.key(0), epochs)
    order = [jax.random.permutation(key, len(training.lengths)) for key in keys]
    state = parameters, optimiser.init(parameters)
    return lax.scan(step, state, jnp.reshape(jnp.stack(order), (-1, BATCH_SIZE)))[0][0]


def accuracies(
    model: onnx_backend.Model, parameters: Parameters, test: Utterances
) -> tuple[float, float, float]:
    """Those in JAX and in ONNX Runtime, and the largest difference of their logits."""
    (logits,) = model.apply(parameters, test.frames, test.lengths)
    session = onnxruntime.InferenceSession(
        model.to_onnx(parameters).SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    lengths = np.asarray(test.lengths, np.int64)
    (theirs,) = session.run(None, {"frames": test.frames, "lengths": lengths})
    of_jax, of_runtime = (
        100 * float(np.mean(np.argmax(values, axis=1) == test.speakers))
        for values in (logits, theirs)
    )
    return of_jax, of_runtime, float(np.abs(logits - theirs).max())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Fine-tunes recogniser.onnx in JAX.", usage=argparse.SUPPRESS
    )
    parser.add_argument("--epochs", type=int, default=40, help="40 unless told")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default="fine_tuned.onnx",
        help="where to save the model (default: %(default)s)",
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    model = onnx_backend.prepare(onnx_backend.load_model(FOLDER / "recogniser.onnx"))
    training, test = load_utterances("train"), load_utterances("test")
    coefficients = jnp.array(COEFFICIENTS)
    message = f"Training {len(COEFFICIENTS)} networks, {arguments.epochs} epochs"
    print(message, file=sys.stderr, flush=True)
    tuned = fine_tune(model.params, training, coefficients, model, arguments.epochs)
    variants = {"as exported by torch": model.params}
    for i, coefficient in enumerate(COEFFICIENTS):
        parameters = jax.tree.map(lambda values, i=i: values[i], tuned)
        variants[f"fine-tuned with lda_coeff={coefficient:g}"] = parameters
    print(f"Test accuracy in per cent{'JAX':>17}{'ONNX Runtime':>16}{'difference':>14}")
    for name, parameters in variants.items():
        ours, theirs, difference = accuracies(model, parameters, test)
        print(f"{name:34}{ours:8.2f}{theirs:16.2f}{difference:14.1e}")
    saved = variants[f"fine-tuned with lda_coeff={SAVED:g}"]
    onnx.save(model.to_onnx(saved), arguments.output)
    print(f"Saved as {arguments.output}, with lda_coeff={SAVED:g}")


if __name__ == "__main__":
    main()
