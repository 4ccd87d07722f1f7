"""A training step of networks that people export from torch, against torch itself.

Networks have random weights, torch.onnx.export writes them, and dml_jax.onnx_backend
reads them. A step computes the gradients of all parameters, for the mean square of the
distance from a random target. BatchNormalization uses its running mean and variance,
and nothing is dropped.

dml_jax, torch and torch.compile are measured in turns: in float32, with products in
TF32 on a GPU, and in bfloat16. There, our inputs have this dtype, or our weights where
inputs are integers, and torch has autocast. With --quick, networks are small, and on a
CPU torch.compile generates no code.

A record has the time of a step, the memory that it allocates, and the seconds of the
first call, which compiles. `largest_error` is the largest difference from the gradient
that torch computes in float32 on the CPU, relative to the largest element. `matched`
says for how many parameters of torch our gradient has the name.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from benchmarks.measure import Candidate, Settings
from benchmarks.workloads import Device

NAMES = (
    *("ResNet-50", "BERT base", "ViT-B16", "Whisper base encoder"),
    *("BiLSTM tagger", "packed GRU"),
)
PACKAGES = "torch", "torchvision", "transformers", "onnx", "onnxscript"
LABELS = "dml_jax", "torch", "torch.compile"  # the last one that runs is the baseline

Gradient = Mapping[str, np.ndarray]
Record = dict[str, Any]
# A step, the gradient that a call of it returns or leaves, and what is known of it.
Program = tuple[Candidate, Callable[[Any], Gradient], Callable[[], Record]]


def records(device: Device, seconds: float, only: str, quick: bool) -> Iterator[Record]:
    """Records of networks, until the next one might take more than the time left."""
    missing = [name for name in PACKAGES if not importlib.util.find_spec(name)]
    if missing:
        raise ImportError(f"networks: not installed: pip install {' '.join(missing)}")
    end = time.monotonic() + seconds
    for name in fnmatch.filter(NAMES, only):
        start = time.monotonic()
        try:
            yield from _records(name, device, quick)
        except Exception as error:  # an exporter may raise any
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            yield dict(name=f"networks/{name}", group="networks", candidates={})
        if 2 * time.monotonic() - start > end:
            return


def _records(name: str, device: Device, quick: bool) -> Iterator[Record]:
    from benchmarks import torch_networks  # which imports torch
    from dml_jax import onnx_backend  # which needs onnx

    net, inputs = torch_networks.network(name, quick)
    model = onnx_backend.prepare(torch_networks.exported(net, inputs))
    target, expected = torch_networks.target_and_gradient(net, inputs)
    params = {n: w for n, w in model.params.items() if n in expected}
    arrays = [jnp.asarray(x.numpy()) for x in inputs]
    net.to("cuda" if device == "gpu" else "cpu")
    backend = "aot_eager" if quick and device == "cpu" else "inductor"
    settings = Settings(2, 0.0) if quick else Settings(8, 0.1)
    for dtype in ("float32", "bfloat16"):
        ours = functools.partial(program, model, params, arrays, target, dtype)
        theirs = functools.partial(torch_networks.program, net, inputs, target, dtype)
        makers = ours, theirs, functools.partial(theirs, backend)
        figures = _figures(f"{name}, {dtype}", makers, expected, settings)
        yield dict(
            name=f"networks/{name}/{dtype}",
            group="networks",
            baseline=["", *figures][-1],
            dtype=dtype,
            shape=list(inputs[0].shape),
            parameters=len(expected),
            matched=len(params),
            candidates=figures,
        )
        torch_networks.free()
        jax.clear_caches()


def _figures(
    name: str,
    makers: Sequence[Callable[[], Program]],
    expected: Gradient,
    settings: Settings,
) -> Record:
    """The summaries of all that run, with the facts of each."""
    candidates, facts = [], {}
    for label, make in zip(LABELS, makers, strict=True):
        print(f"{name}: {label}", file=sys.stderr)
        with measure.left_out_if_it_fails(name, label):
            start = time.perf_counter()
            candidate, gradient, facts_of = make()
            outcome = candidate.call()
            candidate.wait(outcome)
            found = dict(first_call=time.perf_counter() - start)
            found["largest_error"] = largest_error(gradient(outcome), expected)
            facts[label] = found | facts_of()
            candidates.append(candidate._replace(name=label))
    if not facts:
        return {}
    samples = measure.samples(candidates, settings)
    figures = measure.summaries(samples, candidates[-1].name)
    return {label: found | facts[label] for label, found in figures.items()}


def largest_error(found: Gradient, expected: Gradient) -> float:
    """Over all weights that are in both, relative to the largest element."""
    names = found.keys() & expected
    differences = [np.abs(found[n] - expected[n]).max() for n in names]
    return float(np.max(differences) / max(np.abs(expected[n]).max() for n in names))


def program(
    model: Any,
    params: Mapping[str, jax.Array],
    inputs: Sequence[jax.Array],
    target: np.ndarray,
    dtype: str,
) -> Program:
    """A step of a model of onnx_backend, in mixed precision if the dtype is narrow."""
    has_floats = any(x.dtype == jnp.float32 for x in inputs)

    def narrow(x: jax.Array) -> jax.Array:
        return x.astype(dtype) if x.dtype == jnp.float32 else x

    def loss(params: Any, inputs: Any, target: jax.Array) -> jax.Array:
        weights = params if has_floats else jax.tree.map(narrow, params)
        output = model.apply(weights, *inputs)[0]
        return jnp.mean((output.astype(jnp.float32) - target) ** 2)

    arrays = params, [narrow(x) for x in inputs], jnp.asarray(target)
    step = jax.jit(jax.value_and_grad(loss)).lower(*arrays).compile()
    sizes: Any = step.memory_analysis()
    allocated = sizes.temp_size_in_bytes + sizes.output_size_in_bytes
    candidate = Candidate("dml_jax", functools.partial(step, *arrays))
    facts = functools.partial(dict, memory_bytes=allocated)
    return candidate, lambda outcome: jax.tree.map(np.asarray, outcome[1]), facts
