"""Networks of torch, torchvision and transformers, their export and their steps."""

from __future__ import annotations

import gc
import importlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.measure import Candidate
from benchmarks.networks import NAMES, Gradient, Program, Record

torch: Any = importlib.import_module("torch")
rnn: Any = importlib.import_module("torch.nn.utils.rnn")
resnet: Any = importlib.import_module("torchvision.models.resnet")
transformers: Any = importlib.import_module("transformers")
whisper: Any = importlib.import_module("transformers.models.whisper.modeling_whisper")

Network = tuple[Any, Sequence[Any]]  # a module, and its inputs

torch.backends.cudnn.benchmark = True  # XLA also looks for the fastest convolutions


def network(name: str, quick: bool) -> Network:
    """A network with random weights, which drops nothing."""
    torch.manual_seed(0)
    makers = _resnet, _bert, _vit, _whisper, _tagger, _packed
    net, inputs = dict(zip(NAMES, makers, strict=True))[name](quick)
    return net.eval(), inputs


def exported(net: Any, inputs: Sequence[Any]) -> Any:
    """A model in ONNX whose weights have the names and shapes of the parameters."""
    if not isinstance(net, _Recurrent):
        options = dict(dynamo=True, optimize=False, verbose=False)
        return torch.onnx.export(net, tuple(inputs), **options).model_proto
    # `dynamo=True` writes nodes for every step, and refuses packed sequences.
    file, options = io.BytesIO(), dict(dynamo=False, do_constant_folding=False)
    mode = torch.onnx.TrainingMode.TRAINING
    torch.onnx.export(net, tuple(inputs), file, training=mode, **options)
    return file.getvalue()


def target_and_gradient(net: Any, inputs: Sequence[Any]) -> tuple[np.ndarray, Gradient]:
    """A random target of the first output, and the gradient in full float32."""
    torch.set_float32_matmul_precision("highest")
    output = _first(net(*inputs))
    target = np.random.default_rng(0).standard_normal(output.shape, np.float32)
    torch.nn.functional.mse_loss(output, torch.asarray(target)).backward()
    torch.set_float32_matmul_precision("high")  # TF32, as is JAX's default
    return target, _gradient(net)


def program(
    net: Any, inputs: Sequence[Any], target: np.ndarray, dtype: str, backend: str = ""
) -> Program:
    """A step on the device of the network, compiled if there is a backend."""
    for part in net.modules():
        part.train(isinstance(part, torch.nn.RNNBase))  # which cuDNN asks for
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

    def facts() -> Record:
        if device.type == "cpu":
            return {}
        net.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return dict(memory_bytes=torch.cuda.max_memory_allocated() - before)

    return Candidate("torch", step, wait), lambda _: _gradient(net), facts


def free() -> None:
    """Forgets what was compiled, and gives unused memory back to the device."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def _first(outputs: Any) -> Any:
    return outputs if torch.is_tensor(outputs) else outputs[0]


def _gradient(net: Any) -> Gradient:
    named = net.named_parameters()
    return {n: np.array(p.grad.cpu()) for n, p in named if p.grad is not None}


# Networks, which are small if `quick` is true -----------------------------------------

# Without these, sizes are those of BERT base and of ViT-B/16.
_SMALL: dict[str, int] = dict(hidden_size=32, intermediate_size=64)
_SMALL |= dict(num_hidden_layers=2, num_attention_heads=2)


def _resnet(quick: bool) -> Network:
    counts, width = ((1, 1, 1, 1), 8) if quick else ((3, 4, 6, 3), 64)
    net = resnet.ResNet(resnet.Bottleneck, counts, width_per_group=width)
    return net, [torch.randn((2, 3, 32, 32) if quick else (32, 3, 224, 224))]


def _bert(quick: bool) -> Network:
    config = transformers.BertConfig(**(_SMALL if quick else {}))
    tokens = torch.randint(config.vocab_size, (2, 8) if quick else (16, 128))
    return transformers.BertForSequenceClassification(config), [tokens]


def _vit(quick: bool) -> Network:
    batch, size, options = (2, 32, _SMALL) if quick else (16, 224, {})
    config = transformers.ViTConfig(image_size=size, num_labels=1000, **options)
    images = torch.randn(batch, 3, size, size)
    return transformers.ViTForImageClassification(config), [images]


def _whisper(quick: bool) -> Network:
    batch, width, count, states = (2, 64, 2, 20) if quick else (8, 512, 6, 1500)
    sizes = dict(d_model=width, encoder_ffn_dim=4 * width, max_source_positions=states)
    counts = dict(encoder_layers=count, encoder_attention_heads=width // 64)
    config = transformers.WhisperConfig(**sizes, **counts)
    frames = torch.randn(batch, config.num_mel_bins, 2 * states)
    return whisper.WhisperEncoder(config), [frames]


class _Recurrent(torch.nn.Module):
    """Recurrent layers between others; with lengths, they read packed sequences."""

    def __init__(self, first: Any, layers: Any, last: Any) -> None:
        super().__init__()
        self.first, self.layers, self.last = first, layers, last

    def forward(self, x: Any, lengths: Any = None) -> Any:
        x = self.first(x)
        if lengths is None:
            return self.last(self.layers(x)[0])
        packed = rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        outputs, _ = self.layers(packed)
        options = dict(batch_first=True, total_length=x.shape[1])
        return self.last(rnn.pad_packed_sequence(outputs, **options)[0])


def _tagger(quick: bool) -> Network:
    words, width, units = (100, 8, 16) if quick else (30000, 128, 256)
    options = dict(batch_first=True, bidirectional=True)
    lstm = torch.nn.LSTM(width, units, 2, **options)
    first, last = torch.nn.Embedding(words, width), torch.nn.Linear(2 * units, 20)
    tokens = torch.randint(words, (2, 12) if quick else (32, 400))
    return _Recurrent(first, lstm, last), [tokens]


def _packed(quick: bool) -> Network:
    batch, steps, width, units = (3, 12, 8, 16) if quick else (32, 400, 80, 256)
    gru = torch.nn.GRU(width, units, 2, batch_first=True)
    lengths = torch.randint(steps // 4, steps + 1, (batch,))
    net = _Recurrent(torch.nn.Identity(), gru, torch.nn.Linear(units, 20))
    return net, [torch.randn(batch, steps, width), lengths]
