"""Exports recurrent models of torch, by both of its exporters.

    python tests/onnx_backend/exports/make_torch_exports.py

writes the files `torch_*` in this folder. Those in the repository were made with Python
3.11.7, torch 2.13.0, onnx 1.23.2 and onnxscript 0.7.2. In the names, `script` stands
for `dynamo=False` and `dynamo` for `dynamo=True`, which refuses packed sequences.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import pathlib

import numpy as np
import onnx
import torch
from torch import Tensor, nn

FOLDER = pathlib.Path(__file__).parent
TIME, BATCH, FEATURES, STATE = 6, 3, 4, 5
LENGTHS = torch.tensor([4, 6, 2])


class Packed(nn.Module):
    """A recurrent layer that reads each sequence up to its own length."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(
            frames, lengths, enforce_sorted=False
        )
        states, last = self.layer(packed)
        return nn.utils.rnn.pad_packed_sequence(states)[0], last


class Acoustic(nn.Module):
    """Log-probabilities of six symbols, for a CTC loss."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(FEATURES, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.layer = nn.LSTM(8, STATE, bidirectional=True, batch_first=True)
        self.symbols = nn.Linear(2 * STATE, 6)

    def forward(self, frames: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.convolution(frames.transpose(1, 2))))
        states, _ = self.layer(features.transpose(1, 2))
        return self.symbols(states).log_softmax(-1)


def layer(kind: type[nn.RNNBase], **options: bool) -> nn.RNNBase:
    return kind(FEATURES, STATE, num_layers=2, bidirectional=True, **options)


def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "gru": layer(nn.GRU),
        "gru_batch_first": layer(nn.GRU, batch_first=True),
        "gru_packed": Packed(layer(nn.GRU)),
        "lstm": layer(nn.LSTM),
        "lstm_packed": Packed(layer(nn.LSTM)),
        "rnn": layer(nn.RNN),
        "acoustic": Acoustic(),
    }


def is_batch_first(name: str) -> bool:
    return name in ("gru_batch_first", "acoustic")


def inputs(name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (BATCH, TIME) if is_batch_first(name) else (TIME, BATCH)
    frames = torch.randn(*shape, FEATURES, generator=generator)
    return {"frames": frames} | ({"lengths": LENGTHS} if "packed" in name else {})


def export(name: str, model: nn.Module, *, dynamo: bool) -> None:
    arguments = inputs(name)
    axes = ["batch", "time"] if is_batch_first(name) else ["time", "batch"]
    names = {"frames": dict(enumerate(axes)), "lengths": {0: "batch"}}
    dynamic_axes = {key: names[key] for key in arguments}
    path = FOLDER / f"torch_{name}_{'dynamo' if dynamo else 'script'}.onnx"
    torch.onnx.export(
        model,
        tuple(arguments.values()),
        path,
        input_names=list(arguments),
        opset_version=20,
        dynamo=dynamo,
        dynamic_axes=None if dynamo else dynamic_axes,
        dynamic_shapes=[
            dict.fromkeys(dims, torch.export.Dim.AUTO) for dims in dynamic_axes.values()
        ]
        if dynamo
        else None,
        external_data=False,
        verbose=False,
    )
    without_comments(path)


def without_comments(path: pathlib.Path) -> None:
    """Removes what exporters say about the source, which is most of a small file."""
    exported = onnx.load(path)
    graph = exported.graph
    for part in (exported, graph, *graph.node, *graph.input, *graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""
    onnx.save(exported, path)


def save_gradients(name: str, model: nn.Module) -> None:
    """Saves the gradient of the sum of squares of the first output."""
    arguments = inputs(name)
    arguments["frames"].requires_grad_()
    model(*arguments.values())[0].square().sum().backward()
    arrays = {key: value.detach().numpy() for key, value in arguments.items()}
    gradient = np.asarray(arguments["frames"].grad)
    np.savez(FOLDER / f"torch_{name}.npz", gradient=gradient, **arrays)


if __name__ == "__main__":
    for name, model in models().items():
        if name == "gru_packed":
            save_gradients(name, model.eval())
        export(name, model, dynamo=False)
        if "packed" not in name:
            export(name, model, dynamo=True)
