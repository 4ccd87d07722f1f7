"""Which libraries read the ONNX models that Python packages ship, and train them.

The packages are wheels in a folder, as for `models`. The readers are dml_jax,
onnx2torch, onnx2pytorch and jaxonnxruntime, which must be installed. A model is read if
its outputs are those of ONNX Runtime.

With --train, a step of gradient descent on the mean square of the first output is
measured in turns with the torch readers, for batches of 1 and 16, where both accept
them. A torch reader takes part if its results on the CPU are those of ONNX Runtime.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import io
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from benchmarks.measure import Candidate
from benchmarks.real_models import (
    MODELS,
    VERSIONS,
    Feeds,
    RealModel,
    Record,
    difference,
    inputs,
    session,
)
from benchmarks.workloads import Device

RATE = 1e-4
BATCHES = 1, 16
TORCH = "onnx2torch", "onnx2pytorch"


def records(folder: pathlib.Path, only: str) -> Iterator[Record]:
    """For each model and reader, the largest difference or the error."""
    for model in _named(only):
        print(model.name, file=sys.stderr)
        data, feeds = model.read(folder), inputs(model.other)
        wanted = session(data).run(None, feeds)
        outcomes = {
            name: _outcome(functools.partial(read, data, feeds), wanted, model)
            for name, read in READERS.items()
        }
        yield dict(
            name=f"readers/{model.name}",
            group="readers",
            version=VERSIONS[model.package],
            candidates=outcomes,
        )


def _named(pattern: str) -> list[RealModel]:
    return [model for model in MODELS if fnmatch.fnmatchcase(model.name, pattern)]


def _outcome(read: Callable[[], Any], wanted: Any, model: RealModel) -> Record:
    try:
        found = [np.asarray(x) for x in read()]
        if [x.shape for x in found] != [x.shape for x in wanted]:
            return dict(error="outputs of other shapes")
        return dict(difference=difference(found, wanted), tolerance=model.tolerance)
    except Exception as error:  # a reader may raise any
        text = " ".join(str(error).split())[:200]
        return dict(error=f"{type(error).__name__}: {text}")


# Readers ------------------------------------------------------------------------------


def _read_dml_jax(data: bytes, feeds: Feeds) -> Any:
    from dml_jax import onnx_backend  # which needs onnx, and nothing else does

    return onnx_backend.prepare(data).run(feeds)


def _read_jaxonnxruntime(data: bytes, feeds: Feeds) -> Any:
    onnx: Any = importlib.import_module("onnx")
    backend: Any = importlib.import_module("jaxonnxruntime.backend")
    config: Any = importlib.import_module("jaxonnxruntime.config_class").config
    # Its message proposes this for shapes that are computed.
    config.update("jaxort_only_allow_initializers_as_static_args", False)
    source = onnx.load(io.BytesIO(data))
    return backend.Backend.prepare(source).run([*_ordered(source, feeds)])


def _module(reader: str, data: bytes) -> tuple[Any, Any]:
    """A model of torch and its source."""
    onnx: Any = importlib.import_module("onnx")
    library: Any = importlib.import_module(reader)
    source = onnx.load(io.BytesIO(data))
    if reader == "onnx2torch":
        return library.convert(source), source
    # Without `experimental`, it refuses batches of more than one.
    return library.ConvertModel(source, experimental=True), source


def _read_torch(reader: str, data: bytes, feeds: Feeds) -> Any:
    torch: Any = importlib.import_module("torch")
    module, source = _module(reader, data)
    with torch.no_grad():
        outputs = module.eval()(*map(torch.asarray, _ordered(source, feeds)))
    return outputs if isinstance(outputs, (list, tuple)) else [outputs]


def _ordered(source: Any, feeds: Feeds) -> Iterator[np.ndarray]:
    """The inputs in the order of the graph."""
    return (feeds[info.name] for info in source.graph.input if info.name in feeds)


READERS: dict[str, Callable[[bytes, Feeds], Any]] = {
    "dml_jax": _read_dml_jax,
    "onnx2torch": functools.partial(_read_torch, "onnx2torch"),
    "onnx2pytorch": functools.partial(_read_torch, "onnx2pytorch"),
    "jaxonnxruntime": _read_jaxonnxruntime,
}

# Training -----------------------------------------------------------------------------


def training_records(
    folder: pathlib.Path, only: str, device: Device
) -> Iterator[Record]:
    """A step of each model, batch and torch reader that has its results."""
    for model in _named(only):
        data = model.read(folder)
        for batch in BATCHES:
            feeds = inputs({n: _of_batch(batch, s) for n, s in model.usual.items()})
            try:
                wanted = session(data).run(None, feeds)
            except Exception:  # the model has another batch, or states it does not have
                continue
            for reader in TORCH:
                read = functools.partial(READERS[reader], data, feeds)
                found = _outcome(read, wanted, model)
                if found.get("difference", 1) > model.tolerance:
                    continue
                print(model.name, batch, reader, file=sys.stderr)
                try:
                    figures = _training_figures(reader, device, data, feeds)
                except Exception as error:  # a reader may raise any
                    print(f"{type(error).__name__}: {error}", file=sys.stderr)
                    continue
                yield dict(
                    name=f"model-training/{model.name}/batch {batch}/{reader}",
                    group="model-training",
                    baseline=reader,
                    dtype="float32",
                    shape=list(next(iter(feeds.values())).shape),
                    **figures,
                )


def _training_figures(reader: str, device: Device, data: bytes, feeds: Feeds) -> Record:
    """The seconds of the first call of each step, and the summaries of further ones."""
    torch_step = functools.partial(_torch_step, reader, device)
    first_calls, candidates = {}, []
    for name, make in {"dml_jax": _jax_step, reader: torch_step}.items():
        start = time.perf_counter()
        candidate = Candidate(name, *make(data, feeds))
        candidate.wait(candidate.call())
        first_calls[name] = time.perf_counter() - start
        candidates.append(candidate)
    samples = measure.samples(candidates, measure.Settings(4, 0.02, pause=0.1))
    summaries = measure.summaries(samples, reader)
    return dict(first_calls=first_calls, candidates=summaries)


def _of_batch(batch: int, sizes: Any) -> Any:
    is_single = isinstance(sizes, tuple) and sizes[0] == 1
    return (batch, *sizes[1:]) if is_single else sizes


Step = tuple[Callable[[], Any], Callable[[Any], Any]]  # `call` and `wait`


def _jax_step(data: bytes, feeds: Feeds) -> Step:
    from dml_jax import onnx_backend

    model = onnx_backend.prepare(data)

    def step(params: Any, given: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean(model.apply(params, **given, **fixed)[0] ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda w, g: w - RATE * g, params, gradient)

    fixed: Any = {n: x for n, x in feeds.items() if x.dtype != np.float32}
    given = {n: jnp.asarray(x) for n, x in feeds.items() if n not in fixed}
    return functools.partial(jax.jit(step), model.params, given), jax.block_until_ready


def _torch_step(reader: str, device: Device, data: bytes, feeds: Feeds) -> Step:
    torch: Any = importlib.import_module("torch")
    module, source = _module(reader, data)
    where = "cuda" if device == "gpu" else "cpu"
    given = [torch.asarray(x).to(where) for x in _ordered(source, feeds)]
    for part in module.eval().to(where).modules():
        part.train(isinstance(part, torch.nn.RNNBase))  # which cuDNN asks for
    weights = [w for w in module.parameters() if w.is_floating_point()]
    optimizer = torch.optim.SGD(weights, RATE)

    def step() -> None:
        optimizer.zero_grad()
        outputs = module(*given)
        first = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
        (first**2).mean().backward()
        optimizer.step()

    def wait(_: None) -> None:
        if device == "gpu":
            torch.cuda.synchronize()

    return step, wait
