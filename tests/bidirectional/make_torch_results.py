"""Records what torch computes for packed sequences in both directions.

    python tests/bidirectional/make_torch_results.py

writes `torch_results.npz` in this folder, with the versions of Python and torch in it.
There are two layers. The loss is the sum of the squares of all results.
"""

# pyright: reportMissingImports=false

import pathlib
import platform

import numpy as np
import torch
from torch import Tensor, nn

FILE = pathlib.Path(__file__).with_name("torch_results.npz")
TIME, BATCH, FEATURES, STATE = 6, 4, 3, 4
LENGTHS = torch.tensor([3, 6, 1, 4])  # torch refuses 0
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}


class Packed(nn.Module):
    """The outputs, and h_n and c_n, of padded frames [batch, time, features]."""

    def __init__(self, layer: nn.RNNBase):
        super().__init__()
        self.layer = layer

    def forward(self, frames: Tensor, lengths: Tensor) -> list[Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(
            frames, lengths, batch_first=True, enforce_sorted=False
        )
        outputs, last = self.layer(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
        return [padded, *(last if isinstance(last, tuple) else (last,))]


def recorded(kind: type[nn.RNNBase]) -> dict[str, Tensor]:
    """The weights, the results and all gradients."""
    layer = kind(FEATURES, STATE, 2, bidirectional=True, batch_first=True)
    frames = torch.randn(BATCH, TIME, FEATURES, requires_grad=True)
    found = Packed(layer)(frames, LENGTHS)
    torch.stack([result.square().sum() for result in found]).sum().backward()
    arrays = {"frames": frames, **dict(layer.named_parameters())}
    gradients = {f"gradient/{name}": array.grad for name, array in arrays.items()}
    named = zip(("outputs", "h_n", "c_n"), found, strict=False)
    return arrays | dict(named) | gradients


if __name__ == "__main__":
    torch.manual_seed(0)
    arrays = {
        f"{name}/{key}": array.detach().numpy()
        for name, kind in KINDS.items()
        for key, array in recorded(kind).items()
    }
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    np.savez_compressed(
        FILE, versions=np.array(versions), lengths=LENGTHS.numpy(), **arrays
    )
