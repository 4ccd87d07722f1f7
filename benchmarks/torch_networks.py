"""Networks of torch, torchvision and transformers, their export and their steps."""

from __future__ import annotations

import gc
import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.measure import Candidate
from benchmarks.networks import Gradient, Program

torch: Any = importlib.import_module("torch")
onnx: Any = importlib.import_module("torch.onnx")
rnn: Any = importlib.import_module("torch.nn.utils.rnn")
resnet: Any = importlib.import_module("torchvision.models.resnet")
transformers: Any = importlib.import_module("transformers")
whisper: Any = importlib.import_module("transformers.models.whisper.modeling_whisper")

Network = tuple[Any, Sequence[Any]]  # a module, and its inputs

torch.backends.cudnn.benchmark = True  # XLA also looks for the fastest convolutions


def network(name: str, quick: bool) -> Network:
    """A network with random weights, which drops nothing."""
    torch.manual_seed(0)
    net, inputs = _NETWORKS[name](quick)
    for part in net.eval().modules():
        part.train(isinstance(part, torch.nn.RNNBase))  # which cuDNN asks for
    return net, inputs


def exported(net: Any, inputs: Sequence[Any]) -> Any:
    """The network as ONNX, with a name for each of its parameters."""
    if not any(isinstance(part, torch.nn.RNNBase) for part in net.modules()):
        options = dict(dynamo=True, optimize=False, verbose=False)
        return onnx.export(net, tuple(inputs), **options).model_proto
    # `dynamo=True` writes nodes for every step, and refuses packed sequences.
    file, options = io.BytesIO(), dict(dynamo=False, do_constant_folding=False)
    mode = onnx.TrainingMode.TRAINING
    onnx.export(net, tuple(inputs), file, training=mode, **options)
    return file.getvalue()


def target_and_gradient(net: Any, inputs: Sequence[Any]) -> tuple[np.ndarray, Gradient]:
    """A random target of the first output, and the gradient in all of float32."""
    torch.set_float32_matmul_precision("highest")
    output = _first(net(*inputs))
    target = np.random.default_rng(0).standard_normal(output.shape, np.float32)
    torch.nn.functional.mse_loss(output, torch.asarray(target)).backward()
    torch.set_float32_matmul_precision("high")
    return target, _gradient(net)


def program(
    net: Any, inputs: Sequence[Any], target: np.ndarray, dtype: str, backend: str = ""
) -> Program:
    """A step, compiled if a backend is given, on the device of the network."""
    device = next(net.parameters()).device
    run = torch.compile(net, backend=backend) if backend else net
    # `pack_padded_sequence` takes lengths on the CPU.
    inputs = [x if x.ndim == 1 else x.to(device) for x in inputs]
    wanted = torch.asarray(target).to(device)

    def step() -> None:
        net.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, dtype == "bfloat16"):
            output = _first(run(*inputs))
        torch.nn.functional.mse_loss(output.float(), wanted).backward()

    def wait(_: None) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def memory() -> int | None:
        if device.type == "cpu":
            return None
        net.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before

    return Program(Candidate("torch", step, wait), lambda _: _gradient(net), memory)


def free() -> None:
    """Gives memory back to JAX, and forgets what was compiled."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def _first(outputs: Any) -> Any:
    return outputs if torch.is_tensor(outputs) else outputs[0]


def _gradient(net: Any) -> Gradient:
    named = net.named_parameters()
    return {n: np.array(p.grad.cpu()) for n, p in named if p.grad is not None}


# Networks -----------------------------------------------------------------------------


def _resnet(quick: bool) -> Network:
    blocks, width, batch, size = (
        (4 * [1], 8, 2, 32) if quick else ([3, 4, 6, 3], 64, 32, 224)
    )
    net = resnet.ResNet(resnet.Bottleneck, blocks, width_per_group=width)
    return net, [torch.randn(batch, 3, size, size)]


def _bert(quick: bool) -> Network:
    config = transformers.BertConfig(**_sizes(quick))
    tokens = torch.randint(config.vocab_size, (2, 8) if quick else (16, 128))
    return transformers.BertForSequenceClassification(config), [tokens]


def _vit(quick: bool) -> Network:
    batch, size = (2, 32) if quick else (16, 224)
    options = dict(image_size=size, num_labels=1000) | _sizes(quick)
    config = transformers.ViTConfig(**options)
    images = torch.randn(batch, 3, size, size)
    return transformers.ViTForImageClassification(config), [images]


def _sizes(quick: bool) -> Mapping[str, int]:
    """None, where the defaults are those of BERT base and of ViT-B/16."""
    names = "hidden_size", "intermediate_size", "num_hidden_layers"
    sizes = zip((*names, "num_attention_heads"), (32, 64, 2, 2), strict=True)
    return dict(sizes) if quick else {}


def _whisper(quick: bool) -> Network:
    batch, width, count, states = (2, 32, 2, 20) if quick else (8, 512, 6, 1500)
    config = transformers.WhisperConfig(
        d_model=width,
        encoder_layers=count,
        encoder_attention_heads=width // 64 or 1,
        encoder_ffn_dim=4 * width,
        max_source_positions=states,
    )
    frames = torch.randn(batch, config.num_mel_bins, 2 * states)
    return whisper.WhisperEncoder(config), [frames]


class _Tagger(torch.nn.Module):
    def __init__(self, words: int, width: int, units: int) -> None:
        super().__init__()
        options = dict(batch_first=True, bidirectional=True)
        self.embedding = torch.nn.Embedding(words, width)
        self.lstm = torch.nn.LSTM(width, units, 2, **options)
        self.linear = torch.nn.Linear(2 * units, 20)

    def forward(self, tokens: Any) -> Any:
        return self.linear(self.lstm(self.embedding(tokens))[0])


def _tagger(quick: bool) -> Network:
    words, width, units = (100, 8, 16) if quick else (30000, 128, 256)
    tokens = torch.randint(words, (2, 12) if quick else (32, 400))
    return _Tagger(words, width, units), [tokens]


class _Packed(torch.nn.Module):
    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(width, units, 2, batch_first=True)
        self.linear = torch.nn.Linear(units, 20)

    def forward(self, frames: Any, lengths: Any) -> Any:
        options = dict(batch_first=True, enforce_sorted=False)
        outputs, _ = self.gru(rnn.pack_padded_sequence(frames, lengths, **options))
        options = dict(batch_first=True, total_length=frames.shape[1])
        return self.linear(rnn.pad_packed_sequence(outputs, **options)[0])


def _packed(quick: bool) -> Network:
    batch, steps, width, units = (3, 12, 8, 16) if quick else (32, 400, 80, 256)
    lengths = torch.randint(steps // 4, steps + 1, (batch,))
    return _Packed(width, units), [torch.randn(batch, steps, width), lengths]


_NETWORKS: dict[str, Callable[[bool], Network]] = {
    "ResNet-50": _resnet,
    "BERT base": _bert,
    "ViT-B16": _vit,
    "Whisper base encoder": _whisper,
    "BiLSTM tagger": _tagger,
    "packed GRU": _packed,
}
