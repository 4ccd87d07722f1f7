"""LSTMs over padded sequences, in both directions and in one, against other libraries.

First, on a GPU, a fixed network in each dtype, then random networks until the time is
over: 8 to 256 sequences of 50 to 1,500 steps, 40 to 512 features, 64 to 1,024 units and
1 to 3 layers. On a CPU, they are those of less work. Each reads both directions and
then one, forward and in a training step. A cell multiplies its inputs by their weights
in each step. Weights have float32, and the cell casts them to the dtype of the batch;
those of torch have that dtype themselves.

- `bidirectional_scan`, `padded_scan`: ours, the baselines
- `nnx.Bidirectional`, `nnx.RNN`: Flax's, with `seq_lengths`
- `lax.scan, 1 step`: a scan with a mask for each direction; on a GPU also `8 steps` in
  an iteration, which a CPU does not need
- `lax.scan of both`: one such scan of both directions by `jax.vmap`, on a CPU
- `torch, packed`, `torch, padded`: `torch.nn.LSTM` with and without
  `pack_padded_sequence`; without, it reads the padding in the backward direction
- `cuDNN in JAX`: `jax.experimental.rnn`, on a GPU in float32

For each, a record has the ratio to ours, the time to compile it beside the others, and
the memory that a call allocates; `forward` also how far the outputs are from ours. The
fixed network is also run with weights in bfloat16: `gradient` has the largest error of
any weight's gradient against one that is all in float32. Errors are relative to the
largest element.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import measure, results
from benchmarks import recurrent_networks as networks
from benchmarks.measure import Candidate, Settings
from benchmarks.workloads import Device, dtype_named

DTYPES = ("float32", "bfloat16", "float16")
MULTIPLICATIONS = {"cpu": 1e9, "gpu": math.inf}  # of a forward pass, at most
STATES = 2**27  # of all steps, at most: a step keeps about ten times as many numbers
DATA_PARALLEL = """\
A training step of LSTMs in both directions, with the batch on one device and on two of
an automatic axis. `lax.scan of both` is one `lax.scan` of both by `jax.vmap`.
A record has the all-reduces in loops: exchanges of gradients in every iteration.
"""

Record = dict[str, Any]
_MODES = dict(forward=networks.forward, step=networks.step, gradient=networks.gradient)


class Size(NamedTuple):
    """The sizes of a network and of its batch."""

    batch: int
    steps: int
    features: int
    units: int
    layers: int

    @property
    def multiplications(self) -> int:
        """Of a forward pass in both directions, roughly."""
        inputs = self.features + (self.layers - 1) * 2 * self.units
        each = inputs + self.layers * self.units
        return self.batch * self.steps * 2 * 4 * self.units * each


class Case(NamedTuple):
    """What one of ours and others compute, on layers, a batch and lengths."""

    name: str
    ours: str
    modes: Sequence[str]
    networks: Mapping[str, networks.Network]
    arrays: Any
    expected: Any = None  # of the mode `gradient`


FIXED = Size(37, 777, 80, 256, 2)
QUICK = Size(4, 20, 8, 16, 2)
SHARDED = Size(64, 400, 128, 512, 2), Size(32, 400, 80, 256, 2)


def records(device: Device, seconds: float, seed: int, quick: bool) -> Iterator[Record]:
    """Records of networks, until the next one might take more than the time left."""
    end = time.monotonic() + seconds
    settings = Settings(2 if quick else dict(gpu=4, cpu=6)[device], 0.0)
    tasks = [(QUICK, "float32", "float32"), (QUICK, "bfloat16", "bfloat16")]
    for number, task in enumerate(tasks if quick else _tasks(seed, device)):
        start = time.monotonic()
        cases = list(_cases(number, *task, device))
        yield from _records(cases, device, settings)
        if 2 * time.monotonic() - start > end:
            return


def data_parallel_records(device: Device, quick: bool) -> Iterator[Record]:
    """Records on one device and on two, whose programs are all compiled first."""
    cases, devices = [], jax.devices(device)
    if len(devices) < 2:
        raise ValueError("data-parallel: JAX must have two devices; got one")
    for size, count in itertools.product((QUICK,) if quick else SHARDED, (1, 2)):
        mesh = Mesh(devices[:count], ("batch",))
        layers, *batch = arrays(size, 2, 0)
        layers = jax.device_put(layers, NamedSharding(mesh, PartitionSpec()))
        batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("batch")))
        name, named = f"{_by(size)}/{count}", networks.sharded_networks(device)
        operands = layers, *batch
        cases.append(Case(name, "bidirectional_scan", ("step",), named, operands))
    yield from _records(cases, device, Settings(2 if quick else 6, 0.0))


# Networks -----------------------------------------------------------------------------


def _tasks(seed: int, device: Device) -> Iterator[tuple[Size, str, str]]:
    """Sizes, dtypes and dtypes of weights, first those of a fixed network."""
    if device == "gpu":
        yield FIXED, "float32", "float32"
        yield FIXED, "bfloat16", "bfloat16"
        yield from ((FIXED, dtype, "float32") for dtype in DTYPES[1:])
    random = np.random.default_rng(seed)
    for dtype in itertools.cycle(DTYPES):
        while True:
            size = _random_size(random)
            states = size.batch * size.steps * size.units * size.layers
            if states <= STATES and size.multiplications <= MULTIPLICATIONS[device]:
                break
        yield size, dtype, "float32"


def _random_size(random: np.random.Generator) -> Size:
    """Each size with a logarithm that is uniform, and units that tensor cores take."""
    ends = dict(batch=(8, 256), steps=(50, 1500), features=(40, 512), units=(64, 1024))
    found = {
        name: round(math.exp(random.uniform(math.log(least), math.log(most))))
        for name, (least, most) in ends.items()
    }
    found["units"] = 16 * round(found["units"] / 16)
    return Size(**found, layers=int(random.integers(1, 4)))


def _by(size: Size) -> str:
    return "x".join(map(str, size))


def _cases(
    number: int, size: Size, dtype: str, weights: str, device: Device
) -> Iterator[Case]:
    name = f"{number}/{_by(size)}/{dtype}"
    for ours, directions in networks.OURS.items():
        named = networks.networks(ours, device, dtype_named(dtype))
        operands = arrays(size, directions, number, dtype, weights)
        if weights == "float32":
            yield Case(name, ours, ("forward", "step"), named, operands)
        elif directions == 2:
            *narrow, lengths = operands
            wide = jax.tree.map(lambda x: x.astype(jnp.float32), narrow)
            gradient = functools.partial(networks.gradient, named["lax.scan, 1 step"])
            with jax.default_matmul_precision("highest"):  # a GPU rounds operands else
                expected = jax.jit(gradient)(*wide, lengths)
            yield Case(name, ours, ("gradient",), named, operands, expected)


def arrays(
    size: Size,
    directions: int,
    seed: int,
    dtype: str = "float32",
    weights: str = "float32",
) -> Any:
    """Layers, a batch and lengths, of which one fills the batch."""
    random = np.random.default_rng(seed)
    lengths = random.integers(size.steps // 4, size.steps + 1, size.batch, np.int32)
    lengths[0] = size.steps
    x = random.standard_normal((size.batch, size.steps, size.features))

    def uniform(*shape: int) -> jax.Array:
        values = random.uniform(-1, 1, (directions, *shape)) / math.sqrt(size.units)
        return jnp.asarray(values, dtype_named(weights))

    gates, width, layers = 4 * size.units, size.features, []
    for _ in range(size.layers):
        found = dict(w=uniform(width, gates), u=uniform(size.units, gates))
        layers.append(found | dict(b=uniform(gates)))
        width = directions * size.units
    return layers, jnp.asarray(x, dtype_named(dtype)), jnp.asarray(lengths)


# Programs -----------------------------------------------------------------------------


def _records(
    cases: Sequence[Case], device: Device, settings: Settings
) -> Iterator[Record]:
    """A record for each case and mode; the programs of all are compiled first."""
    programs = _compiled(cases)
    for case in cases:
        layers, x, lengths = case.arrays
        with measure.left_out_if_it_fails(case.name, "torch"):
            if "forward" in case.modes:
                of_torch = networks.torch_programs(layers, x, lengths, device)
                programs |= {(case.name, case.ours, *k): p for k, p in of_torch.items()}
        for mode in case.modes:
            group, figures = f"{case.ours}, {mode}", {}
            with measure.left_out_if_it_fails(case.name, group):
                figures = _figures(case, mode, programs, settings)
            yield dict(
                name=f"{group}/{case.name}",
                group=group,
                baseline=case.ours,
                dtype=x.dtype.name,
                weights=layers[0]["u"].dtype.name,
                shape=list(x.shape),
                units=layers[0]["u"].shape[1],
                layers=len(layers),
                valid_steps=int(lengths.sum()),
                devices=len(x.devices()),
                candidates=figures,
            )


def _compiled(cases: Sequence[Case]) -> dict[tuple[str, ...], networks.Program]:
    """Programs by case, ours, mode and network."""

    def timed(function: Callable[..., Any], *arrays: Any) -> tuple[Any, float]:
        start = time.perf_counter()
        return function(*arrays), time.perf_counter() - start

    found, futures = {}, {}
    with ThreadPoolExecutor(results.cores()) as pool:
        for case in cases:
            # Steps first, which take longer.
            for mode, name in itertools.product(case.modes[::-1], case.networks):
                key = case.name, case.ours, mode, name
                program = jax.jit(functools.partial(_MODES[mode], case.networks[name]))
                with measure.left_out_if_it_fails(*key):
                    lowered, seconds = timed(program.lower, *case.arrays)
                    futures[key] = pool.submit(timed, lowered.compile), seconds, case
    for key, (future, seconds, case) in futures.items():
        with measure.left_out_if_it_fails(*key):
            executable, more = future.result()
            sizes, facts = executable.memory_analysis(), {}
            allocated = sizes.temp_size_in_bytes + sizes.output_size_in_bytes
            facts |= dict(memory_bytes=allocated, compile_seconds=seconds + more)
            if len(case.arrays[1].devices()) > 1:
                facts["all_reduces_in_loops"] = _all_reduces(executable.as_text())
            candidate = Candidate(key[-1], functools.partial(executable, *case.arrays))
            found[key] = candidate, functools.partial(dict, facts)
    return found


def _all_reduces(text: str) -> int:
    """How many a compiled module has in its loops, and in what these call."""
    bodies = dict(re.findall(r"^%?([\w.-]+) [^\n]*\{\n(.*?)^\}", text, re.M | re.S))
    waiting, seen = re.findall(r" while\(.*body=%?([\w.-]+)", text), set()
    while waiting:
        name = waiting.pop()
        if name in bodies and name not in seen:
            seen.add(name)
            waiting += re.findall(r"[={ ]%([\w.-]+)", bodies[name])
    return sum(len(re.findall(r" all-reduce(?:-start)?\(", bodies[n])) for n in seen)


def _figures(
    case: Case,
    mode: str,
    programs: Mapping[tuple[str, ...], networks.Program],
    settings: Settings,
) -> Record:
    """The summaries of all candidates that run, with facts and errors of each."""
    candidates, outcomes, facts = [], {}, {}
    for key, (candidate, facts_of) in programs.items():
        if key[:-1] == (case.name, case.ours, mode):
            with measure.left_out_if_it_fails(*key):
                outcome = candidate.call()
                candidate.wait(outcome)
                facts[candidate.name] = facts_of()
                if mode != "step":
                    outcomes[candidate.name] = networks.as_numpy(outcome)
                candidates.append(candidate)
    figures = measure.summaries(measure.samples(candidates, settings), case.ours)
    for name, found in figures.items():
        found |= facts[name]
        if mode != "step":
            expected = case.expected or outcomes[case.ours]
            pairs = zip(*map(jax.tree.leaves, (outcomes[name], expected)), strict=True)
            errors = (np.abs(x - y).max() / np.abs(y).max() for x, y in pairs)
            found["largest_error"] = float(max(errors))
    return figures
