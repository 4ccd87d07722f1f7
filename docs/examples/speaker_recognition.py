"""Recognises nine speakers by a bidirectional GRU that reads reversed sequences.

Nine men say the Japanese vowels "ae". An utterance is 7 to 29 frames of 12 cepstral
coefficients, and the task is to tell who speaks: 270 utterances to learn from, 370 to
be tested on. Utterances of different length share one array, padded behind their last
frame. A learned layer turns every frame into features x[t], and a gated recurrent unit
reads these and keeps a state h[t]:

    z[t] = sigmoid(x[t] Wz + h[t-1] Uz + bz)           how much of the state to keep
    r[t] = sigmoid(x[t] Wr + h[t-1] Ur + br)           how much of it the news may see
    n[t] = tanh(x[t] Wn + bn + r[t] * (h[t-1] Un))     the news
    h[t] = z[t] * h[t-1] + (1 - z[t]) * n[t]

Two such units read each utterance, and a linear layer names the speaker from their two
states after step L, the length of the utterance. The first unit reads the features as
they come. The three variants differ in what the second unit reads:

    forward only                         the same features once more
    backward over flipped batch          `jnp.flip` of the padded features: the padding
                                         comes first and pushes out the first frames,
                                         or all of them where it is longer than L
    backward over reversed sequences     `dml_jax.reverse_sequence`: x[L-1] to x[0]

The layer below learns from both units, so that the gradient of the second one comes
back through the reversal, which is its own adjoint.

Nothing else differs: the variants have the same number of parameters, start from the
same ones, and draw the same batches and the same noise. Their common settings, all but
the number of features, were chosen by five-fold cross-validation on the training
utterances. The test utterances decide nothing: the accuracy reported is the one after
the last epoch. In the first epochs the reversed sequences are ahead and the flipped
batch is behind. In the end all exceed 98 %: to tell these nine men apart, one good
reading is nearly enough.

    python docs/examples/speaker_recognition.py

trains all seeds of a variant at once under `jax.vmap`, prints a table and draws
`speaker_recognition.png`, in less than a minute on two CPU cores. The data are
described in `japanese_vowels.txt`.

    python docs/examples/speaker_recognition.py --mesh data=2,time=4

does so on eight devices, as `meshes.py` has it: two share the utterances of a batch,
and four the frames of each. Where they do not divide, padding is added, which changes
nothing. Only the mesh and the layout of the batches differ. The features and their
reversal stay divided along time; a unit, which needs one frame after the other, has
each from the device that holds it. So short a sequence is no faster for it: see
`long_sequence.py`. The loss printed agrees between meshes but for rounding, which
training amplifies.
"""

import argparse
import functools
import os
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from japanese_vowels import DATA, LONGEST, SPEAKERS, Utterances, layout, load_utterances
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from matplotlib.figure import Figure
from meshes import add_mesh_option, mesh_of
from speaker_figure import draw_confusion, draw_curves, save_figure
from tqdm import tqdm

from dml_jax import reverse_sequence

FEATURES = 32
STATE_SIZE = 48
BATCH_SIZE = 54
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-2
DROPOUT = 0.5
OFFSET = 0.3  # in standard deviations of the coefficient
LABEL_SMOOTHING = 0.1
REQUIRED_ACCURACY = 0.98


def same_order(features: Array, lengths: Array) -> Array:
    return features


def flipped_batch(features: Array, lengths: Array) -> Array:
    # Padding that only a mesh needs stays behind.
    return jnp.roll(jnp.flip(features, axis=1), LONGEST - features.shape[1], axis=1)


def reversed_sequences(features: Array, lengths: Array) -> Array:
    return reverse_sequence(features, lengths, batch_axis=0, time_axis=1, training=True)


SECOND_READINGS = {
    "forward only": same_order,
    "backward over flipped batch": flipped_batch,
    "backward over reversed sequences": reversed_sequences,
}
REVERSED = "backward over reversed sequences"


class Unit(NamedTuple):
    """W, U and b of a gated recurrent unit, each for z, r and n side by side."""

    input_weights: Array  # [feature, 3 * state]
    state_weights: Array  # [state, 3 * state]
    bias: Array  # [3 * state]


class Parameters(NamedTuple):
    feature_weights: Array  # [coefficient, feature]
    feature_bias: Array  # [feature]
    units: Unit  # both, along a leading axis
    output_weights: Array  # [2 * state, speaker]
    output_bias: Array  # [speaker]


def initial_parameters(key: Array, coefficients: int) -> Parameters:
    feature_key, input_key, state_key, output_key = jax.random.split(key, 4)
    dense = jax.nn.initializers.glorot_uniform(batch_axis=0)
    feature_weights = dense(feature_key, (1, coefficients, FEATURES))[0]
    units = Unit(
        dense(input_key, (2, FEATURES, 3 * STATE_SIZE)),
        dense(state_key, (2, STATE_SIZE, 3 * STATE_SIZE)),
        jnp.zeros((2, 3 * STATE_SIZE)),
    )
    output_weights = dense(output_key, (1, 2 * STATE_SIZE, SPEAKERS))[0]
    return Parameters(
        feature_weights,
        jnp.zeros(FEATURES),
        units,
        output_weights,
        jnp.zeros(SPEAKERS),
    )


def read(unit: Unit, features: Array, lengths: Array) -> Array:
    """Reads a batch and returns each state after as many steps as it has frames."""

    def step(state: Array, frame_and_time: tuple[Array, Array]) -> tuple[Array, None]:
        frame, time = frame_and_time
        from_frame = jnp.split(frame @ unit.input_weights + unit.bias, 3, axis=-1)
        from_state = jnp.split(state @ unit.state_weights, 3, axis=-1)
        keep = jax.nn.sigmoid(from_frame[0] + from_state[0])
        reset = jax.nn.sigmoid(from_frame[1] + from_state[1])
        news = jnp.tanh(from_frame[2] + reset * from_state[2])
        following = keep * state + (1 - keep) * news
        return jnp.where((time < lengths)[:, None], following, state), None

    start = jnp.zeros((len(features), STATE_SIZE))
    by_time = (jnp.swapaxes(features, 0, 1), jnp.arange(features.shape[1]))
    return lax.scan(step, start, by_time)[0]


def last_states(
    parameters: Parameters, frames: Array, lengths: Array, variant: ArrayLike
) -> Array:
    """Returns what both units know in the end, [utterance, 2 * state]."""
    features = jnp.tanh(frames @ parameters.feature_weights + parameters.feature_bias)
    # The variant is a traced number, so that all three share one compilation.
    branches = list(SECOND_READINGS.values())
    readings = jnp.stack([features, lax.switch(variant, branches, features, lengths)])
    first, second = jax.vmap(read, (0, 0, None))(parameters.units, readings, lengths)
    return jnp.concatenate([first, second], axis=-1)


def name_speakers(
    parameters: Parameters, test: Utterances, variant: ArrayLike
) -> Array:
    """Returns the logits, [utterance, speaker]: the highest is the prediction."""
    states = last_states(parameters, test.frames, test.lengths, variant)
    return states @ parameters.output_weights + parameters.output_bias


def loss(
    parameters: Parameters, batch: Utterances, key: Array, variant: ArrayLike
) -> Array:
    """Smoothed cross-entropy, with random offsets of the frames and with dropout."""
    offset_key, dropout_key = jax.random.split(key)
    # One offset per utterance and coefficient, as if the microphone had been moved.
    offsets = OFFSET * jax.random.normal(offset_key, batch.frames[:, :1].shape)
    valid = jnp.arange(batch.frames.shape[1]) < batch.lengths[:, None]
    frames = jnp.where(valid[:, :, None], batch.frames + offsets, 0)
    states = last_states(parameters, frames, batch.lengths, variant)
    kept = jax.random.bernoulli(dropout_key, 1 - DROPOUT, states.shape)
    states = jnp.where(kept, states / (1 - DROPOUT), 0)
    logits = states @ parameters.output_weights + parameters.output_bias
    targets = jax.nn.one_hot(batch.speakers, SPEAKERS)
    smooth_targets = optax.smooth_labels(targets, LABEL_SMOOTHING)
    losses = optax.softmax_cross_entropy(logits, smooth_targets)
    return losses[:BATCH_SIZE].mean()  # what is behind fills the mesh


class State(NamedTuple):
    parameters: Parameters
    moments: optax.OptState


def train_epoch(
    optimiser: optax.GradientTransformation,
    state: State,
    key: Array,
    training: Utterances,
    variant: ArrayLike,
    mesh: Mesh,
) -> State:
    """Visits every training utterance once, in random batches."""

    def step(state: State, batch_and_key: tuple[Utterances, Array]):
        batch, key = batch_and_key
        gradient = jax.grad(loss)(state.parameters, batch, key, variant)
        updates, moments = optimiser.update(gradient, state.moments, state.parameters)
        return State(jax.tree.map(jnp.add, state.parameters, updates), moments), None

    order_key, step_key = jax.random.split(key)
    order = jax.random.permutation(order_key, len(training.lengths))
    order = order.reshape(-1, BATCH_SIZE)
    order = jnp.pad(order, [(0, 0), (0, -BATCH_SIZE % mesh.shape["data"])])
    batches = jax.tree.map(lambda values: values[order], training)
    batches = lax.with_sharding_constraint(batches, layout(mesh, None, "data"))
    return lax.scan(step, state, (batches, jax.random.split(step_key, len(order))))[0]


def train_and_test(
    seeds: int, epochs: int, mesh: Mesh
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Trains a network per variant and seed, those of one variant at the same time.

    Returns the logits of each variant, [epoch, seed, test utterance, speaker], and the
    speakers that they should name.
    """
    training, test = load_utterances(mesh)
    everywhere = NamedSharding(mesh, P())
    steps = epochs * len(training.lengths) // BATCH_SIZE
    schedule = optax.cosine_decay_schedule(LEARNING_RATE, steps)
    optimiser = optax.adamw(schedule, weight_decay=WEIGHT_DECAY)

    @functools.partial(jax.jit, out_shardings=everywhere)
    @jax.vmap
    def start(key: Array) -> State:
        parameters = initial_parameters(key, training.frames.shape[-1])
        return State(parameters, optimiser.init(parameters))

    @functools.partial(jax.jit, out_shardings=everywhere)
    @functools.partial(jax.vmap, in_axes=(0, 0, None, None, None))
    def epoch(
        state: State,
        key: Array,
        training: Utterances,
        test: Utterances,
        variant: ArrayLike,
    ) -> tuple[State, Array]:
        state = train_epoch(optimiser, state, key, training, variant, mesh)
        return state, name_speakers(state.parameters, test, variant)

    start_key, epoch_key = jax.random.split(jax.random.key(0))
    initial_state = start(jax.random.split(start_key, seeds))
    keys = jax.random.split(epoch_key, (epochs, seeds))
    with np.load(DATA) as arrays:
        speakers = arrays["test_speakers"]
    logits: dict[str, np.ndarray] = {}
    with tqdm(total=len(SECOND_READINGS) * epochs, unit="epoch") as progress:
        for variant, name in enumerate(SECOND_READINGS):
            progress.set_description(f"{name:32}")
            state, history = initial_state, []
            for number in range(epochs):
                state, tested = epoch(state, keys[number], training, test, variant)
                history.append(np.asarray(tested)[:, : len(speakers)])
                progress.update()
            logits[name] = np.stack(history)
    return logits, speakers


def print_table(accuracies: dict[str, np.ndarray]) -> None:
    """Prints the accuracy after the last epoch: mean, deviation and range."""
    epochs, seeds = accuracies[REVERSED].shape
    print(f"\nTest accuracy after {epochs} epochs, {seeds} seeds, in per cent")
    print(f"{'':36}{'mean ± std':>12}{'min':>8}{'max':>8}")
    for name, accuracy in accuracies.items():
        last = 100 * accuracy[-1]
        spread = f"{last.mean():.2f} ± {last.std():.2f}"
        print(f"{name:36}{spread:>12}{last.min():8.2f}{last.max():8.2f}")


def print_losses(mesh: Mesh, logits: dict[str, np.ndarray], speakers: np.ndarray):
    """Prints the mean loss after the last epoch, by which meshes can be compared."""
    axes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    print(f"\nTest loss on the mesh {axes}")
    for name, values in logits.items():
        entropy = optax.softmax_cross_entropy_with_integer_labels
        losses = entropy(values[-1], np.broadcast_to(speakers, values.shape[1:3]))
        print(f"{name:36}{losses.mean():12.5f}")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        message = f"expected a whole number above 0, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def picture(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".png" or path.is_dir():
        raise argparse.ArgumentTypeError(
            f"expected a name ending in .png, got {text!r}"
        )
    if not os.access(path.parent, os.W_OK) or not path.parent.is_dir():
        message = f"{str(path.parent)!r} is not a folder that can be written to"
        raise argparse.ArgumentTypeError(message)
    return path


def parse_arguments() -> argparse.Namespace:
    # Without the usage an error is one line.
    parser = argparse.ArgumentParser(
        description="Compares three readings of utterances in speaker recognition.",
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--seeds", type=positive, help="networks per variant")
    parser.add_argument("--epochs", type=positive, help="visits of the training data")
    parser.add_argument(
        "--output",
        type=picture,
        default="speaker_recognition.png",
        help="where to draw the figure (default: %(default)s)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="2 seeds, 3 epochs, any accuracy will do (default: 5 seeds, 40 epochs)",
    )
    add_mesh_option(parser)
    arguments = parser.parse_args()
    arguments.seeds = arguments.seeds or (2 if arguments.quick else 5)
    arguments.epochs = arguments.epochs or (3 if arguments.quick else 40)
    return arguments


def main() -> int:
    arguments = parse_arguments()
    mesh = arguments.mesh or mesh_of("data=1")
    logits, speakers = train_and_test(arguments.seeds, arguments.epochs, mesh)
    predictions = {name: values.argmax(axis=-1) for name, values in logits.items()}
    accuracies = {
        name: (predicted == speakers).mean(axis=-1)
        for name, predicted in predictions.items()
    }
    print_table(accuracies)
    if arguments.mesh:
        print_losses(mesh, logits, speakers)

    figure = Figure(figsize=(13, 5.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_curves(left, accuracies)
    draw_confusion(right, REVERSED, predictions[REVERSED][-1], speakers)
    save_figure(figure, arguments.output)
    print(f"\nDrawn in {arguments.output}")

    accuracy = accuracies[REVERSED][-1].mean()
    if accuracy < REQUIRED_ACCURACY and not arguments.quick:
        print(
            f"{REVERSED}: {accuracy:.2%} is below the required {REQUIRED_ACCURACY:.0%}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nInterrupted: no figure was written.", file=sys.stderr, flush=True)
        # XLA may still be compiling in a thread, and crashes if Python winds down.
        os._exit(130)
