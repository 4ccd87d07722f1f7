"""Exports networks of torch for training, and trains them in torch.

    python tests/onnx_backend/exports/make_torch_training.py

writes the files `torch_training_*` in this folder. Those in the repository were made
with Python 3.13.0, torch 2.14.1, onnx 1.23.2 and onnxscript 0.7.2. The networks are
new: their layers of normalization are equal, and the bias of the last layer is 0.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import numpy as np
import torch
from make_torch_exports import FOLDER, without_comments
from torch import Tensor, nn

SEQUENCES, TIME, FEATURES, CLASSES = 3, 6, 4, 2
STEPS, RATE = 20, 0.1


def last_layer(features: int) -> nn.Linear:
    layer = nn.Linear(features, CLASSES)
    nn.init.zeros_(layer.bias)
    return layer


class Packed(nn.Module):
    """Two layers of GRUs, which read each sequence up to its own length."""

    def __init__(self):
        super().__init__()
        self.layers = nn.GRU(FEATURES, 5, num_layers=2, batch_first=True)
        self.head = nn.Sequential(
            nn.LayerNorm(5), nn.Linear(5, 5), nn.LayerNorm(5), last_layer(5)
        )

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            frames, lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.layers(packed)[0], batch_first=True
        )
        return self.head(states)


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8)]
    return {
        "dynamo": nn.Sequential(*layers, nn.LayerNorm(8), nn.GELU(), last_layer(8)),
        "packed_script": Packed(),
    }


def export(name: str, network: nn.Module, inputs: dict[str, Tensor]) -> None:
    path = FOLDER / f"torch_training_{name}.onnx"
    options = {
        "dynamo": dict(dynamo=True, optimize=False, external_data=False),
        "packed_script": dict(
            dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
        ),
    }[name]
    arguments, names = tuple(inputs.values()), [*inputs]
    torch.onnx.export(network, arguments, path, input_names=names, **options)
    without_comments(path)


def train(network: nn.Module, inputs: dict[str, Tensor], classes: Tensor) -> Tensor:
    """The loss before each step of gradient descent."""
    optimizer = torch.optim.SGD(network.parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        logits = network(*inputs.values()).mean(1)
        loss = nn.functional.cross_entropy(logits, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


if __name__ == "__main__":
    for name, network in networks().items():
        inputs = {"frames": torch.randn(SEQUENCES, TIME, FEATURES)}
        if "packed" in name:
            inputs["lengths"] = torch.tensor([4, 6, 2])
        export(name, network, inputs)
        names, classes = [n for n, _ in network.named_parameters()], [0, 1, 1]
        losses = train(network, inputs, torch.tensor(classes))
        arrays = dict(**inputs, classes=classes, names=names, losses=losses)
        np.savez(FOLDER / f"torch_training_{name}.npz", **arrays)
