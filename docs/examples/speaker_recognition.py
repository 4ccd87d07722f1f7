"""Names the speaker of every frame, by recurrent networks that read both directions.

Nine men say the Japanese vowels "ae". An utterance is 7 to 29 frames of 12 cepstral
coefficients, and the task is to tell for every frame who speaks: 270 utterances to
learn from, 370 to be tested on. Utterances of different lengths share one array, padded
behind their last frame. A learned layer turns every frame into features x[t], and a
gated recurrent unit reads these and keeps a state h[t]:

    z[t] = sigmoid(x[t] Wz + h[t-1] Uz + bz)           how much of the state to keep
    r[t] = sigmoid(x[t] Wr + h[t-1] Ur + br)           what the candidate sees of it
    n[t] = tanh(x[t] Wn + bn + r[t] * (h[t-1] Un))     the candidate
    h[t] = z[t] * h[t-1] + (1 - z[t]) * n[t]

Two units read each utterance, and a linear layer names the speaker of frame t from
their two states at frame t. The first unit reads the features in their order. The
variants differ in what the second unit reads:

    forward only      the same features once more
    jnp.flip          the padded features flipped: the padding comes first
    flip_sequences    what Flax has: the last frame first, then the padding, reversed
    reverse_padded    `dml_jax.reverse_padded`: the last frame first, then the padding

The states of the second unit are put back in the order of the frames in the same way.
So all networks that read backwards see the whole utterance at every frame. But the
state of a flipped batch has read the padding before, and its answer depends on how much
of it there is. That amount is a property of the batch, not of the utterance.

All variants have the same number of parameters, start from the same ones, and draw the
same batches and the same noise. They learn with a padding to 29 steps, and are tested
with paddings to 29, 60 and 120. The test utterances decide nothing: the figures are
those after the last epoch.

    python docs/examples/speaker_recognition.py

trains all seeds of a variant at once under `jax.vmap`, prints a table and draws
`speaker_recognition.png`, in less than two minutes on two CPU cores. This file needs no
other: the data are in the package, where `examples/japanese_vowels.txt` says where they
come from.

    export XLA_FLAGS=--xla_force_host_platform_device_count=8
    python docs/examples/speaker_recognition.py --mesh data=2,time=4

does so on eight devices: two share the utterances of a batch, and four the frames of
each. Where they do not divide, padding is added, which changes nothing. The features
and their reversal stay divided along time; a unit, which needs one frame after the
other, has each from the device that holds it. The loss printed agrees between meshes
but for rounding, which training amplifies.
"""

import argparse
import functools
import importlib.resources
import math
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from dml_jax import reverse_padded

DATA = importlib.resources.files("dml_jax") / "examples" / "japanese_vowels.npz"
SPEAKERS = 9
TRAINED_STEPS = 29  # the longest utterance
TESTED_STEPS = (29, 60, 120)

FEATURES = 32
STATE_SIZE = 48
BATCH_SIZE = 54
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-2
DROPOUT = 0.5
OFFSET = 0.3  # in standard deviations of the coefficient
LABEL_SMOOTHING = 0.1
REQUIRED_ACCURACY = 0.98


# Variants -----------------------------------------------------------------------------


def same_order(frames: Array, lengths: Array, steps: int) -> Array:
    return frames


def flipped_batch(frames: Array, lengths: Array, steps: int) -> Array:
    # Steps that only a mesh needs stay behind.
    return jnp.roll(jnp.flip(frames, axis=1), steps - frames.shape[1], axis=1)


def flip_sequences(frames: Array, lengths: Array, steps: int) -> Array:
    """What `flax.nnx.nn.recurrent.flip_sequences` computes."""
    step = jnp.arange(frames.shape[1])
    source = (steps - 1 - step + lengths[:, None]) % steps
    source = jnp.where(step < steps, source, step)
    return jnp.take_along_axis(frames, source[:, :, None], axis=1)


def reversed_sequences(frames: Array, lengths: Array, steps: int) -> Array:
    return reverse_padded(frames, lengths)


FORWARD, FLIPPED = "forward only", "jnp.flip"
FLAX, REVERSED = "flip_sequences", "reverse_padded"
ORDERS = {
    FORWARD: same_order,
    FLIPPED: flipped_batch,
    FLAX: flip_sequences,
    REVERSED: reversed_sequences,
}


# Data ---------------------------------------------------------------------------------


class Utterances(NamedTuple):
    frames: Array  # float32 [utterance, step, coefficient], zero behind the last frame
    lengths: Array  # int32 [utterance]
    speakers: Array  # int32 [utterance]


def load_utterances(part: str, steps: int, mesh: Mesh, axis: str | None) -> Utterances:
    """Returns "train" or "test", normalised by the training frames, as one batch.

    It is divided along time and, where `axis` names one, over an axis of the mesh.
    """
    with DATA.open("rb") as file, np.load(file) as arrays:
        data = dict(arrays)
    mean = data["train_frames"].mean(axis=0)
    deviation = data["train_frames"].std(axis=0)
    lengths = data[f"{part}_lengths"].astype(np.int32)
    speakers = data[f"{part}_speakers"].astype(np.int32)
    frames = np.zeros((len(lengths), steps, len(mean)), np.float32)
    valid = np.arange(steps) < lengths[:, None]
    frames[valid] = (data[f"{part}_frames"] - mean) / deviation
    multiples = mesh.shape[axis] if axis else 1, mesh.shape["time"]
    arrays = [pad(array, *multiples) for array in (frames, lengths, speakers)]
    return jax.device_put(Utterances(*arrays), layout(mesh, axis))


def layout(mesh: Mesh, *parts: str | None) -> Utterances:
    """How utterances are divided, by the parts of the dimensions before the steps."""
    specs = P(*parts, "time"), P(*parts), P(*parts)
    return Utterances(*(NamedSharding(mesh, spec) for spec in specs))


def pad(array: np.ndarray, *multiples: int) -> np.ndarray:
    """Adds zeros behind the leading dimensions, up to multiples of these numbers."""
    widths = [(0, 0)] * array.ndim
    for dimension, multiple in enumerate(multiples[: array.ndim]):
        widths[dimension] = (0, -array.shape[dimension] % multiple)
    return np.pad(array, widths)


# Network ------------------------------------------------------------------------------


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
    units = Unit(
        dense(input_key, (2, FEATURES, 3 * STATE_SIZE)),
        dense(state_key, (2, STATE_SIZE, 3 * STATE_SIZE)),
        jnp.zeros((2, 3 * STATE_SIZE)),
    )
    return Parameters(
        dense(feature_key, (1, coefficients, FEATURES))[0],
        jnp.zeros(FEATURES),
        units,
        dense(output_key, (1, 2 * STATE_SIZE, SPEAKERS))[0],
        jnp.zeros(SPEAKERS),
    )


def read(unit: Unit, features: Array) -> Array:
    """Returns the states of a unit after every step, [utterance, step, state]."""

    def step(state: Array, from_frame: Array) -> tuple[Array, Array]:
        keep_x, reset_x, candidate_x = jnp.split(from_frame, 3, axis=-1)
        keep_h, reset_h, candidate_h = jnp.split(state @ unit.state_weights, 3, axis=-1)
        keep, reset = jax.nn.sigmoid(keep_x + keep_h), jax.nn.sigmoid(reset_x + reset_h)
        candidate = jnp.tanh(candidate_x + reset * candidate_h)
        state = keep * state + (1 - keep) * candidate
        return state, state

    from_frames = features @ unit.input_weights + unit.bias
    start = jnp.zeros((len(features), STATE_SIZE))
    states = lax.scan(step, start, jnp.swapaxes(from_frames, 0, 1))[1]
    return jnp.swapaxes(states, 0, 1)


def states_of(
    parameters: Parameters,
    frames: Array,
    lengths: Array,
    variant: ArrayLike,
    steps: int,
) -> Array:
    """Returns the states of both units, [utterance, step, 2 * state]."""
    features = jnp.tanh(frames @ parameters.feature_weights + parameters.feature_bias)

    def ordered(values: Array) -> Array:
        # The variant is a traced number, so that all share one compilation.
        branches = [functools.partial(order, steps=steps) for order in ORDERS.values()]
        return lax.switch(variant, branches, values, lengths)

    readings = jnp.stack([features, ordered(features)])
    first, second = jax.vmap(read)(parameters.units, readings)
    return jnp.concatenate([first, ordered(second)], axis=-1)


def name_frames(
    parameters: Parameters, data: Utterances, variant: ArrayLike, steps: int
) -> Array:
    """Returns logits, [utterance, step, speaker]: the highest is the decision."""
    states = states_of(parameters, data.frames, data.lengths, variant, steps)
    return states @ parameters.output_weights + parameters.output_bias


def loss(
    parameters: Parameters, batch: Utterances, key: Array, variant: ArrayLike
) -> Array:
    """Smoothed cross-entropy of the frames, with random offsets and with dropout."""
    offset_key, dropout_key = jax.random.split(key)
    # One offset per utterance and coefficient, as if the microphone had been moved.
    offsets = OFFSET * jax.random.normal(offset_key, batch.frames[:, :1].shape)
    valid = jnp.arange(batch.frames.shape[1]) < batch.lengths[:, None]
    frames = jnp.where(valid[:, :, None], batch.frames + offsets, 0)
    states = states_of(parameters, frames, batch.lengths, variant, TRAINED_STEPS)
    # Steps that only a mesh needs draw no noise, which would change that of others.
    shape = (len(states), TRAINED_STEPS, states.shape[2])
    kept = jax.random.bernoulli(dropout_key, 1 - DROPOUT, shape)
    kept = jnp.pad(kept, [(0, 0), (0, states.shape[1] - TRAINED_STEPS), (0, 0)])
    states = jnp.where(kept, states / (1 - DROPOUT), 0)
    logits = states @ parameters.output_weights + parameters.output_bias
    targets = jax.nn.one_hot(batch.speakers, SPEAKERS)
    targets = optax.smooth_labels(targets, LABEL_SMOOTHING)[:, None, :]
    losses = optax.softmax_cross_entropy(
        logits, jnp.broadcast_to(targets, logits.shape)
    )
    counted = valid & (jnp.arange(len(valid)) < BATCH_SIZE)[:, None]  # without padding
    return jnp.mean(losses, where=counted)


# Training and test --------------------------------------------------------------------


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
        return State(optax.apply_updates(state.parameters, updates), moments), None

    order_key, step_key = jax.random.split(key)
    order = jax.random.permutation(order_key, len(training.lengths))
    order = order.reshape(-1, BATCH_SIZE)
    order = jnp.pad(order, [(0, 0), (0, -BATCH_SIZE % mesh.shape["data"])])
    batches = jax.tree.map(lambda values: values[order], training)
    batches = lax.with_sharding_constraint(batches, layout(mesh, None, "data"))
    return lax.scan(step, state, (batches, jax.random.split(step_key, len(order))))[0]


class Tested(NamedTuple):
    """The speakers that the networks of one variant name for all valid frames."""

    history: np.ndarray  # after every epoch, [epoch, seed, frame]
    decisions: dict[int, np.ndarray]  # in the end, by padded steps, [seed, frame]
    speakers: np.ndarray  # who it is, [frame]
    utterances: np.ndarray  # the index of the first frame of each
    loss: float  # in the end, padded as in training

    @property
    def accuracies(self) -> np.ndarray:
        """Of every epoch and seed."""
        return (self.history == self.speakers).mean(axis=-1)

    @property
    def epochs_to_required(self) -> int | None:
        reached = self.accuracies.mean(axis=1) >= REQUIRED_ACCURACY
        return int(reached.argmax()) + 1 if reached.any() else None

    def accuracy(self, steps: int) -> float:
        return float((self.decisions[steps] == self.speakers).mean())

    def changed_frames(self, steps: int) -> np.ndarray:
        """Which decisions are not those at the trained padding."""
        return self.decisions[steps] != self.decisions[TRAINED_STEPS]

    def changed_utterances(self, steps: int) -> np.ndarray:
        """Which utterances have a changed decision, [seed, utterance]."""
        changed = self.changed_frames(steps)
        return np.logical_or.reduceat(changed, self.utterances, axis=1)


def train_and_test(seeds: int, epochs: int, mesh: Mesh) -> dict[str, Tested]:
    """Trains a network per variant and seed, those of one variant at the same time."""
    training = load_utterances("train", TRAINED_STEPS, mesh, None)
    tests = {s: load_utterances("test", s, mesh, "data") for s in TESTED_STEPS}
    everywhere = NamedSharding(mesh, P())
    schedule = optax.cosine_decay_schedule(
        LEARNING_RATE, epochs * len(training.lengths) // BATCH_SIZE
    )
    optimiser = optax.adamw(schedule, weight_decay=WEIGHT_DECAY)

    @functools.partial(jax.jit, out_shardings=everywhere)
    @jax.vmap
    def start(key: Array) -> State:
        parameters = initial_parameters(key, training.frames.shape[-1])
        return State(parameters, optimiser.init(parameters))

    @functools.partial(jax.jit, out_shardings=everywhere)
    @functools.partial(jax.vmap, in_axes=(0, 0, None, None))
    def epoch(state: State, key: Array, training: Utterances, variant: Array) -> State:
        return train_epoch(optimiser, state, key, training, variant, mesh)

    @functools.partial(jax.jit, static_argnames="steps", out_shardings=everywhere)
    def test(state: State, data: Utterances, variant: Array, steps: int) -> Array:
        over_seeds = jax.vmap(name_frames, in_axes=(0, None, None, None))
        return over_seeds(state.parameters, data, variant, steps)

    start_key, epoch_key = jax.random.split(jax.random.key(0))
    initial_state = start(jax.random.split(start_key, seeds))
    keys = jax.random.split(epoch_key, (epochs, seeds))
    found = {}
    # Without a terminal there is no bar, but one line for each variant.
    with tqdm(total=len(ORDERS) * epochs, unit="epoch", disable=None) as progress:
        for variant, name in enumerate(ORDERS):
            progress.set_description(f"{name:18}")
            if progress.disable:
                count = f"variant {variant + 1} of {len(ORDERS)}"
                print(f"Training {count}: {name}", file=sys.stderr, flush=True)
            state, history = initial_state, []
            for number in range(epochs):
                state = epoch(state, keys[number], training, variant)
                logits = test(state, tests[TRAINED_STEPS], variant, TRAINED_STEPS)
                history.append(decide(logits, tests[TRAINED_STEPS]))
                progress.update()
            decisions = {
                steps: decide(test(state, data, variant, steps), data)
                for steps, data in tests.items()
            }
            expected = expectation(logits, tests[TRAINED_STEPS])
            found[name] = Tested(np.stack(history), decisions, *expected)
    return found


def decide(logits: Array, data: Utterances) -> np.ndarray:
    """The speakers that are named for the valid frames, [seed, frame]."""
    return np.asarray(logits)[:, valid_frames(data)].argmax(axis=-1)


def expectation(
    logits: Array, data: Utterances
) -> tuple[np.ndarray, np.ndarray, float]:
    """Who speaks, where utterances begin, and the mean cross-entropy of the logits."""
    valid, lengths = valid_frames(data), np.asarray(data.lengths)
    speakers = np.repeat(np.asarray(data.speakers), lengths)
    lengths = lengths[lengths > 0]  # without the padding of a mesh
    named = np.asarray(logits)[:, valid]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        named, np.broadcast_to(speakers, named.shape[:2])
    )
    return speakers, np.cumsum(lengths) - lengths, float(losses.mean())


def valid_frames(data: Utterances) -> np.ndarray:
    return np.arange(data.frames.shape[1]) < np.asarray(data.lengths)[:, None]


# Results ------------------------------------------------------------------------------


def table(found: dict[str, Tested]) -> str:
    """Accuracy (mean and deviation over the seeds), changed decisions, epochs."""
    epochs, seeds, frames = found[REVERSED].history.shape
    longer = TESTED_STEPS[1:]
    lines = [
        f"After {epochs} epochs, {frames} test frames, {seeds} seeds, in per cent:",
        "",
        f"{'':18}{'frames named right':>29}{'changed by more padding':>32}",
        f"{'':18}{'':29}{'frames':>16}{'utterances':>16}{'epochs':>8}",
        f"{'second unit':18}{TESTED_STEPS[0]:>13}"
        + "".join(f"{steps:>8}" for steps in longer * 3)
        + f"{f'to {100 * REQUIRED_ACCURACY:.0f} %':>8}",
    ]
    for name, tested in found.items():
        trained = 100 * tested.accuracies[-1]
        line = f"{name:18}{f'{trained.mean():.2f} ± {trained.std():.2f}':>13}"
        shares = [tested.accuracy(steps) for steps in longer]
        shares += [tested.changed_frames(steps).mean() for steps in longer]
        shares += [tested.changed_utterances(steps).mean() for steps in longer]
        line += "".join(f"{100 * share:8.2f}" for share in shares)
        lines.append(f"{line}{tested.epochs_to_required or 'never':>8}")
    return "\n".join(lines)


BACKWARD = FLIPPED, FLAX, REVERSED


def findings(found: dict[str, Tested]) -> str:
    """What was found, in sentences that hold for any figures."""
    right = {
        name: f"{test.accuracy(TRAINED_STEPS):.1%}" for name, test in found.items()
    }
    lines = [
        f"Reading forward only names {right[FORWARD]} of the frames right.",
        f"Reading both ways names, and padding to {TESTED_STEPS[-1]} steps changes:",
    ]
    lines += [
        f"{name:18}{right[name]} of the frames, {count_changed(found[name])} utterances"
        for name in BACKWARD
    ]
    return "\n".join(lines)


def count_changed(tested: Tested) -> str:
    """How many utterances of all networks the longest padding changes."""
    changed = tested.changed_utterances(TESTED_STEPS[-1])
    return f"{changed.sum()} of {changed.size}"


GREY = "#80868f"  # is read on white and on black
TEXT = "text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"
GREY_TEXT = {**dict.fromkeys(TEXT, GREY), "axes.facecolor": "none"}
COLOURS = {FLIPPED: "#c8385a", FLAX: "#b57700", REVERSED: "#3f8bdb"}


def draw(found: dict[str, Tested], output: Path) -> None:
    """Writes under a temporary name first: the output is whole or not there."""
    unfinished = output.with_name(f".{output.name}.{os.getpid()}")
    with matplotlib.rc_context({"svg.hashsalt": "dml_jax", **GREY_TEXT}):
        # Small, for a phone, and without a background, for dark pages.
        figure = Figure(figsize=(4.2, 2.8), layout="constrained", facecolor="none")
        changed, total = count_changed(found[FLIPPED]).split(" of ")
        kept = count_changed(found[REVERSED]).split(" of ")[0]
        figure.suptitle(
            f"More padding changes {changed} of {total} answers\n"
            f"after jnp.flip, {kept} after reverse_padded",
            fontsize="medium",
            fontweight="bold",
        )
        draw_changes(figure.subplots(), found)
        try:
            kind = output.suffix.removeprefix(".")
            figure.savefig(unfinished, format=kind, dpi=150)
            os.replace(unfinished, output)
        finally:
            unfinished.unlink(missing_ok=True)


def draw_changes(axes: Axes, found: dict[str, Tested]) -> None:
    """Draws a bar for the mean over the networks, and a point for each of them."""
    for row, name in enumerate(BACKWARD):
        changed = found[name].changed_utterances(TESTED_STEPS[-1])
        shares = 100 * changed.mean(axis=1)
        bar = axes.barh(row, shares.mean(), 0.4, color=COLOURS[name])
        axes.bar_label(bar, [count_changed(found[name])], padding=4)
        rows = row + 0.32 + np.linspace(-0.05, 0.05, len(shares))
        axes.plot(shares, rows, "o", color=GREY, markersize=2.5, clip_on=False)
    axes.set_yticks(range(len(BACKWARD)), BACKWARD)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlim(left=0)
    axes.set_xlabel(
        "utterances with a changed answer (%)\n"
        f"bar: the mean; dots: {len(shares)} networks"
    )
    axes.spines[["top", "right"]].set_visible(False)


def print_losses(mesh: Mesh, found: dict[str, Tested]) -> None:
    """Prints the mean loss after the last epoch, by which meshes can be compared."""
    axes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    print(f"\nTest loss on the mesh {axes}")
    for name, tested in found.items():
        print(f"{name:18}{tested.loss:12.5f}")


# Command line -------------------------------------------------------------------------


def mesh_of(text: str) -> Mesh:
    """The mesh of `data=2,time=4`; an axis that is not named has one device."""
    axes = ("data", "time")
    pairs = [re.fullmatch(r"(\w+)=([1-9]\d{0,5})", part) for part in text.split(",")]
    sizes = {pair[1]: int(pair[2]) for pair in pairs if pair and pair[1] in axes}
    if len(sizes) < len(pairs):
        message = f"expected data=2, time=4 or data=2,time=4, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    shape = tuple(sizes.get(axis, 1) for axis in axes)
    needed, devices = math.prod(shape), jax.devices()
    if needed > len(devices):
        raise argparse.ArgumentTypeError(
            f"{text} needs {needed} devices and JAX has {len(devices)}: ask for fewer, "
            f"or have JAX take a CPU for {needed} by "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={needed}"
        )
    axis_types = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(shape, axes, axis_types=axis_types, devices=devices[:needed])


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        message = f"expected a whole number above 0, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".png", ".svg") or path.is_dir():
        message = f"expected a name ending in .png or .svg, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    try:
        # Before the training and not after it.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        message = f"cannot write in {str(path.parent)!r}: {error.strerror}"
        raise argparse.ArgumentTypeError(message) from None
    return path


def parse_arguments() -> argparse.Namespace:
    # Without the usage an error is one line.
    parser = argparse.ArgumentParser(
        description="Compares readings of padded utterances.",
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--seeds", type=positive, help="networks per variant")
    parser.add_argument("--epochs", type=positive, help="visits of the training data")
    parser.add_argument(
        "--output",
        type=picture,
        default="speaker_recognition.png",
        help="where to draw the figure, .png or .svg (default: %(default)s)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="2 seeds, 3 epochs, any accuracy will do (default: 5 seeds, 30 epochs)",
    )
    parser.add_argument(
        "--mesh",
        type=mesh_of,
        metavar="data=D,time=T",
        help="divide batches over D devices, their time over T (default: one device)",
    )
    arguments = parser.parse_args()
    arguments.seeds = arguments.seeds or (2 if arguments.quick else 5)
    arguments.epochs = arguments.epochs or (3 if arguments.quick else 30)
    return arguments


def main() -> int:
    arguments = parse_arguments()
    mesh = arguments.mesh or mesh_of("data=1")
    found = train_and_test(arguments.seeds, arguments.epochs, mesh)
    print(f"{table(found)}\n\n{findings(found)}")
    if arguments.mesh:
        print_losses(mesh, found)
    draw(found, arguments.output)
    print(f"\nDrawn in {arguments.output}")

    accuracy = found[REVERSED].accuracies[-1].mean()
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
