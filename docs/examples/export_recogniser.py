"""Trains a speaker recogniser in torch, and exports it to `recogniser.onnx`.

    python docs/examples/export_recogniser.py

needs torch, onnxscript, and dml_jax for the data. The file in this folder was made with
torch 2.13.0 and onnxscript 0.7.2. `fine_tuning.py`, which reads it, needs neither.

The recogniser reads utterances of nine speakers forwards and backwards, with a gated
recurrent unit each, and names the speaker from their last states. It learns from the
first five of the thirty training utterances of each speaker.
"""

import importlib.resources
import pathlib

import numpy as np
import onnx
import torch
from onnxscript import opset20
from torch import Tensor, nn

FOLDER = pathlib.Path(__file__).parent
DATA = importlib.resources.files("dml_jax") / "examples" / "japanese_vowels.npz"
SPEAKERS, COEFFICIENTS, LONGEST = 9, 12, 29
FEATURES, STATE_SIZE = 16, 24
UTTERANCES_OF_A_SPEAKER = 5
STEPS, LEARNING_RATE = 200, 1e-2


@torch.library.custom_op("examples::reverse_sequence", mutates_args=())
def reverse_sequence(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverses the first frames of each utterance; torch has no such operator."""
    time = torch.arange(x.shape[1])
    source = torch.where(time < lengths[:, None], lengths[:, None] - 1 - time, time)
    return x.gather(1, source[:, :, None].expand(x.shape))


def save_lengths(ctx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.lengths = inputs[1]


def gradient(ctx, cotangent: Tensor) -> tuple[Tensor, None]:
    return reverse_sequence(cotangent, ctx.lengths), None


reverse_sequence.register_fake(lambda x, _: torch.empty_like(x))
reverse_sequence.register_autograd(gradient, setup_context=save_lengths)


def onnx_reverse_sequence(x, lengths):
    return opset20.ReverseSequence(x, lengths, batch_axis=0, time_axis=1)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Linear(COEFFICIENTS, FEATURES)
        self.forwards = nn.GRU(FEATURES, STATE_SIZE, batch_first=True)
        self.backwards = nn.GRU(FEATURES, STATE_SIZE, batch_first=True)
        self.speakers = nn.Linear(2 * STATE_SIZE, SPEAKERS)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        features = self.features(frames).tanh()
        states = torch.cat(
            [
                self.forwards(features)[0],
                self.backwards(reverse_sequence(features, lengths))[0],
            ],
            dim=2,
        )
        last = (lengths - 1)[:, None, None].expand(-1, 1, 2 * STATE_SIZE)
        return self.speakers(states.gather(1, last)[:, 0])


def utterances() -> tuple[Tensor, Tensor, Tensor]:
    """The first utterances of each speaker: frames, lengths and speakers."""
    with DATA.open("rb") as file, np.load(file) as arrays:
        lengths = arrays["train_lengths"].astype(np.int64)
        speakers = arrays["train_speakers"].astype(np.int64)
        frames = np.zeros((len(lengths), LONGEST, COEFFICIENTS), np.float32)
        frames[np.arange(LONGEST) < lengths[:, None]] = arrays["train_frames"]
    chosen = np.concatenate(
        [
            np.flatnonzero(speakers == s)[:UTTERANCES_OF_A_SPEAKER]
            for s in range(SPEAKERS)
        ]
    )
    return tuple(torch.from_numpy(a[chosen]) for a in (frames, lengths, speakers))


def loss(model: nn.Module, frames: Tensor, lengths: Tensor, speakers: Tensor) -> Tensor:
    # The gradients of weights contain 0 times the padding, which must be finite.
    valid = torch.arange(LONGEST) < lengths[:, None]
    frames = frames.where(valid[:, :, None], 0)
    return nn.functional.cross_entropy(model(frames, lengths), speakers)


def train(model: nn.Module) -> None:
    batch = utterances()
    optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss(model, *batch).backward()
        optimiser.step()


def export(model: nn.Module, path: pathlib.Path) -> None:
    frames, lengths, _ = utterances()
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        model.eval(),
        (frames, lengths),
        input_names=["frames", "lengths"],
        output_names=["logits"],
        opset_version=20,
        dynamo=True,
        dynamic_shapes=({0: batch}, {0: batch}),
        custom_translation_table={
            torch.ops.examples.reverse_sequence.default: onnx_reverse_sequence
        },
    )
    exported = program.model_proto
    graph = exported.graph
    for part in (exported, graph, *graph.node, *graph.input, *graph.value_info):
        del part.metadata_props[:]  # names of modules and lines of source
    onnx.save(exported, path)


if __name__ == "__main__":
    torch.manual_seed(0)
    recogniser = Recogniser()
    train(recogniser)
    export(recogniser, FOLDER / "recogniser.onnx")
