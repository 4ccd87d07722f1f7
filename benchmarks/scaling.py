"""How reversals of sharded arrays scale with the number of devices: 1, 2, 4, ...

- `whole-axis`: the batch is sharded, and nothing is communicated. The baseline is
  linear scaling: the time of one device, divided by their number in a strong run.
- `sharded-axis`: the reversed axis is sharded. The baseline is the link: all devices
  send their shard to the next one at the same time. A single device copies it.

In a weak run the size of a shard is fixed, in a strong run that of the whole array.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import measure, programs
from benchmarks.measure import Candidate, Settings
from benchmarks.programs import Function
from benchmarks.workloads import BATCH_MAJOR, Device, Shape, Workload, moving

# Batches hide the time to dispatch a call to several devices and to wait for them.
FULL, QUICK = Settings(7, batch=0.020), Settings(3, batch=0.002)
SHARDS = 4  # of a weak run, in the array of a strong one
LESS_ON_CPU, LESS_IF_QUICK = 16, 64

Record = dict[str, Any]


def records(device: Device, quick: bool) -> Iterator[Record]:
    """Measures on the first 1, 2, 4, 8, ... devices."""
    devices = jax.devices(device)
    counts = [2**power for power in range(len(devices).bit_length())]
    meshes = [Mesh(devices[:count], ("devices",)) for count in counts]
    less = (LESS_ON_CPU if device == "cpu" else 1) * (LESS_IF_QUICK if quick else 1)
    settings = QUICK if quick else FULL
    for mode in ("weak", "strong"):
        for direction in ("forward", "backward"):
            yield from _whole_axis(meshes, mode, direction, less, settings)
        for mesh in meshes:
            yield _sharded_axis(mesh, mode, less, settings)


def _whole_axis(
    meshes: Sequence[Mesh], mode: str, direction: str, less: int, settings: Settings
) -> Iterator[Record]:
    """Many sequences, 1 GiB in a shard of a weak run; all meshes take turns."""
    found = {}
    for mesh in meshes:
        batch = (mesh.size if mode == "weak" else SHARDS) * 2048 // less
        workload = _reversal("whole-axis", (batch, 512, 256))
        function = programs.operator(workload)
        if direction == "backward":
            function = programs.gradient(function)
        shardings = [NamedSharding(mesh, PartitionSpec("devices"))] * 2
        (ours,) = _compiled(dict(dml_jax=function), workload, shardings)
        found[str(mesh.size)] = workload, ours
    turns = [ours._replace(name=count) for count, (_, ours) in found.items()]
    samples = measure.samples(turns, settings)
    for name, (workload, ours) in found.items():
        count = int(name)
        linear = np.divide(samples["1"], 1 if mode == "weak" else count)
        times = dict(linear=linear, dml_jax=samples[name])
        parts = dict(mode=mode, direction=direction, devices=count)
        yield _record(workload, parts, measure.summaries(times, "linear"), [ours])


def _sharded_axis(mesh: Mesh, mode: str, less: int, settings: Settings) -> Record:
    """Eight long sequences, 1 GiB in a shard of a weak run."""
    steps = (mesh.size if mode == "weak" else SHARDS) * 2**19 // less
    workload = _reversal("sharded-axis", (8, steps, 64))
    specs = PartitionSpec(None, "devices"), PartitionSpec()
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    operator = programs.operator(workload)
    functions = dict(
        link=_link(shardings[0]),
        xla=programs.idiom(workload),
        dml_jax=operator,
        backward=programs.gradient(operator),
    )
    found = _compiled(functions, workload, shardings)
    _, expected, *others = (candidate.call() for candidate in found)
    if not all(jnp.array_equal(other, expected) for other in others):
        raise ValueError(f"{workload.group}: dml_jax differs from plain JAX")
    figures = measure.summaries(measure.samples(found, settings), "link")
    return _record(workload, dict(mode=mode, devices=mesh.size), figures, found)


def _record(
    workload: Workload,
    parts: Mapping[str, Any],
    figures: Record,
    candidates: Sequence[Candidate],
) -> Record:
    """A record as of `run`, with `parts`; temporary memory is that of a device."""
    shard = workload.bytes_read // parts["devices"]
    for name, call, *_ in candidates:
        program: Any = call
        temporary = program.func.memory_analysis().temp_size_in_bytes
        figures[name]["temporary_shards"] = temporary / shard
    return {
        **workload.description,
        **parts,
        "name": "/".join(map(str, (workload.group, *parts.values()))),
        "shard_bytes": shard,
        "baseline": next(iter(figures)),
        "candidates": figures,
    }


def _reversal(group: str, shape: Shape) -> Workload:
    return moving(f"{group}/float32", "reverse_sequence", shape, BATCH_MAJOR)


def _compiled(
    functions: Mapping[str, Function],
    workload: Workload,
    shardings: Sequence[NamedSharding],
) -> list[Candidate]:
    """On sharded data and lengths, of which each device computes its shard."""
    make = jax.jit(lambda: programs.arrays(workload), out_shardings=tuple(shardings))
    return measure.compiled(functions, make(), out_shardings=shardings[0])


def _link(sharding: NamedSharding) -> Function:
    """Each device sends its shard to the next one."""
    count = sharding.mesh.size
    ring = [(device, (device + 1) % count) for device in range(count)]
    send = functools.partial(lax.ppermute, axis_name="devices", perm=ring)
    spec = sharding.spec
    send = jax.shard_map(send, mesh=sharding.mesh, in_specs=spec, out_specs=spec)
    return lambda x, _: send(x)
