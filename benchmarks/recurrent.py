"""Bidirectional LSTMs over padded sequences: `bidirectional_scan` against others.

First, on a GPU, a fixed network in each dtype, then random networks until the time is
over: 8 to 128 sequences of 50 to 1,500 steps, 40 to 512 features, 64
to 1,024 units and 1 to 3 layers. On a CPU, they are those of less work. Each is run
forward, and in a training step. A record has the time to compile each program, side by
side with the others in threads, and how far its outputs are from ours. The baseline is
dml_jax: a ratio says how many times as long another library takes.

- `two_scans`: one scan for each direction, the backward one between reversals
- `reverse_scan`: the same with a mask and `lax.scan(reverse=True)`
- `flax`: `nnx.Bidirectional` with `seq_lengths`
- `jax.experimental.rnn`: cuDNN, on a GPU in float32
- `torch_packed`, `torch_padded`: `torch.nn.LSTM` with and without
  `pack_padded_sequence`; without, its results depend on the padding
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from benchmarks import recurrent_networks as networks
from benchmarks.measure import Candidate
from benchmarks.workloads import Device, dtype_named

DTYPES = ("float32", "bfloat16", "float16")
MULTIPLICATIONS = {"cpu": 1e9, "gpu": math.inf}  # of a forward pass, at most
STATES = 2**27  # of all steps, at most: a step keeps about ten times as many numbers


class Size(NamedTuple):
    """The sizes of a network and of its batch."""

    batch: int
    steps: int
    features: int
    units: int
    layers: int

    @property
    def multiplications(self) -> int:
        """Of a forward pass, roughly."""
        inputs = self.features + (self.layers - 1) * 2 * self.units
        each = inputs + self.layers * self.units
        return self.batch * self.steps * 2 * 4 * self.units * each


FIXED = Size(37, 777, 80, 256, 2)
QUICK = Size(3, 20, 8, 16, 2)


def records(
    device: Device, seconds: float, seed: int, quick: bool
) -> Iterator[dict[str, Any]]:
    """Two records for each network, forward and step, until the time is over."""
    end = time.monotonic() + seconds
    settings = measure.Settings(2 if quick else 6, 0.0)
    for number, (size, dtype) in enumerate(_sizes(seed, device, quick)):
        parts = number, "x".join(map(str, size)), dtype
        name = "/".join(map(str, parts))
        print(name, file=sys.stderr)
        layers, x, lengths = arrays = _arrays(size, dtype_named(dtype), number)
        try:
            figures = _figures(arrays, device, settings)
        except Exception as error:  # such as too little memory
            _report(name, error)
            figures = dict(forward={}, step={})
        for mode, candidates in figures.items():
            yield dict(
                name=f"{mode}/{name}",
                group=mode,
                baseline="dml_jax",
                dtype=dtype,
                shape=list(x.shape),
                bytes_read=sum(array.nbytes for array in jax.tree.leaves(arrays)),
                bytes_written=sum(array.nbytes for array in jax.tree.leaves(layers)),
                **size._asdict(),
                valid_steps=int(lengths.sum()),
                candidates=candidates,
            )
        if time.monotonic() > end:
            return


def _sizes(seed: int, device: Device, quick: bool) -> Iterator[tuple[Size, str]]:
    """Sizes and dtypes, first those of a fixed network."""
    if quick:
        yield QUICK, "float32"
        return
    if device == "gpu":
        yield from ((FIXED, dtype) for dtype in DTYPES)
    random = np.random.default_rng(seed)
    for dtype in itertools.cycle(DTYPES):
        while True:
            size = _random_size(random)
            states = size.batch * size.steps * size.units * size.layers
            if states <= STATES and size.multiplications <= MULTIPLICATIONS[device]:
                break
        yield size, dtype


def _random_size(random: np.random.Generator) -> Size:
    """Each size with a logarithm that is uniform, and units that tensor cores take."""
    ends = dict(batch=(8, 128), steps=(50, 1500), features=(40, 512), units=(64, 1024))
    found = {
        name: round(math.exp(random.uniform(math.log(least), math.log(most))))
        for name, (least, most) in ends.items()
    }
    found["units"] = 16 * round(found["units"] / 16)
    return Size(**found, layers=int(random.integers(1, 4)))


def _arrays(size: Size, dtype: np.dtype, seed: int) -> Any:
    """Layers, a batch and lengths, of which one fills the batch."""
    random = np.random.default_rng(seed)

    def uniform(*shape: int) -> jax.Array:
        values = random.uniform(-1, 1, shape) / math.sqrt(size.units)
        return jnp.asarray(values, dtype)

    gates, width, layers = 4 * size.units, size.features, []
    for _ in range(size.layers):
        weights = dict(w=uniform(2, width, gates), u=uniform(2, size.units, gates))
        layers.append(weights | dict(b=uniform(2, gates)))
        width = 2 * size.units
    x = random.standard_normal((size.batch, size.steps, size.features))
    lengths = random.integers(size.steps // 4, size.steps + 1, size.batch, np.int32)
    lengths[0] = size.steps
    return layers, jnp.asarray(x, dtype), jnp.asarray(lengths)


def _figures(
    arrays: Any, device: Device, settings: measure.Settings
) -> dict[str, dict[str, Any]]:
    """The summaries of all candidates, forward and in a step."""
    layers, x, lengths = arrays
    programs = _programs(arrays, networks.networks(device, x.dtype))
    candidates: dict[str, list[Candidate]] = dict(forward=[], step=[])
    for (mode, _), (candidate, _) in programs.items():
        candidates[mode].append(candidate)
    outputs: dict[str, Any] = {c.name: c.call() for c in candidates["forward"]}
    for peer in networks.torch_networks(layers, x, lengths, device):
        try:
            peer.wait(peer.step())
        except RuntimeError as error:  # a dtype that torch lacks, or too little memory
            _report(peer.name, error)
            continue
        outputs[peer.name] = peer.outputs()
        for mode, chosen in candidates.items():
            chosen.append(Candidate(peer.name, getattr(peer, mode), peer.wait))
    ours = np.asarray(outputs["dml_jax"], np.float32)
    summaries = {}
    for mode, chosen in candidates.items():
        samples = measure.samples(chosen, settings)
        summaries[mode] = measure.summaries(samples, "dml_jax")
        for name, figures in summaries[mode].items():
            difference = np.abs(np.asarray(outputs[name], np.float32) - ours).max()
            figures["largest_difference"] = float(difference)
            if (mode, name) in programs:
                figures["compile_seconds"] = programs[mode, name][1]
    return summaries


def _programs(
    arrays: Any, found: Mapping[str, networks.Network]
) -> dict[tuple[str, str], tuple[Candidate, float]]:
    """Programs by mode and network, and the seconds that each took to compile."""
    modes = dict(forward=networks.forward, step=networks.step)

    def compiled(mode: str, name: str) -> tuple[Candidate, float] | None:
        start = time.perf_counter()
        program = jax.jit(functools.partial(modes[mode], found[name]))
        try:
            executable = program.lower(*arrays).compile()
        except Exception as error:  # such as a library of CUDA that is missing
            return _report(f"{name}, {mode}", error)
        seconds = time.perf_counter() - start
        return Candidate(name, functools.partial(executable, *arrays)), seconds

    keys = list(itertools.product(modes, found))
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(compiled, *zip(*keys, strict=True)))
    return {key: pair for key, pair in zip(keys, results, strict=True) if pair}


def _report(name: str, error: Exception) -> None:
    print(f"without {name}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
