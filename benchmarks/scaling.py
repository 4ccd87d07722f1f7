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
from benchmarks.programs import Arrays, Function
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
        shape = (mesh.size if mode == "weak" else SHARDS) * 2048 // less, 512, 256
        workload = moving("whole-axis/float32", "reverse_sequence", shape, BATCH_MAJOR)
        function = programs.operator(workload)
        if direction == "backward":
            function = programs.gradient(function)
        sharding = NamedSharding(mesh, PartitionSpec("devices"))
        lengths = jax.device_put(_lengths(*shape[:2]), sharding)
        arrays = _data(shape, sharding), lengths
        found[_compiled(str(mesh.size), function, arrays)] = workload
    samples = measure.samples(list(found), settings)
    for compiled, workload in found.items():
        count = int(compiled.name)
        linear = np.divide(samples["1"], 1 if mode == "weak" else count)
        times: measure.Samples = dict(linear=linear, dml_jax=samples[compiled.name])
        parts = dict(mode=mode, direction=direction, devices=count)
        figures = measure.summaries(times, "linear")
        ours = compiled._replace(name="dml_jax")
        yield _record(workload, "linear", parts, figures, [ours])


def _sharded_axis(mesh: Mesh, mode: str, less: int, settings: Settings) -> Record:
    """Eight long sequences, 1 GiB in a shard of a weak run."""
    steps = (mesh.size if mode == "weak" else SHARDS) * 2**19 // less
    shape = 8, steps, 64
    name, options = "sharded-axis/float32", dict(axis=1)
    workload = moving(name, "reverse_subsequences", shape, options)
    sharding = NamedSharding(mesh, PartitionSpec(None, "devices"))
    lengths = _lengths(8, steps).reshape(8, 1, 1)
    lengths = jax.device_put(lengths, NamedSharding(mesh, PartitionSpec()))
    arrays = _data(shape, sharding), lengths
    operator = programs.operator(workload)
    functions = dict(
        link=_link(sharding),
        xla=programs.idiom(workload),
        dml_jax=operator,
        backward=programs.gradient(operator),
    )
    found = [_compiled(name, f, arrays) for name, f in functions.items()]
    _, expected, *others = (candidate.call() for candidate in found)
    if not all(jnp.array_equal(other, expected) for other in others):
        raise ValueError(f"{workload.group}: dml_jax differs from plain JAX")
    figures = measure.summaries(measure.samples(found, settings), "link")
    return _record(workload, "link", dict(mode=mode, devices=mesh.size), figures, found)


def _record(
    workload: Workload,
    baseline: str,
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
        "baseline": baseline,
        "candidates": figures,
    }


# Candidates ---------------------------------------------------------------------------


def _compiled(name: str, function: Function, arrays: Arrays) -> Candidate:
    """With a result that is sharded as the first array is."""
    program = jax.jit(function, out_shardings=arrays[0].sharding)
    executable = program.lower(*arrays).compile()
    return Candidate(name, functools.partial(executable, *arrays))


def _link(sharding: NamedSharding) -> Function:
    """Each device sends its shard to the next one."""
    count = sharding.mesh.size
    ring = [(device, (device + 1) % count) for device in range(count)]
    send = functools.partial(lax.ppermute, axis_name="devices", perm=ring)
    spec = sharding.spec
    send = jax.shard_map(send, mesh=sharding.mesh, in_specs=spec, out_specs=spec)
    return lambda x, _: send(x)


def _lengths(count: int, longest: int) -> np.ndarray:
    """Random ones, the same fractions of any longest one."""
    return (np.random.default_rng(0).random(count) * longest).astype(np.int32)


def _data(shape: Shape, sharding: NamedSharding) -> jax.Array:
    def scattered() -> jax.Array:  # whole numbers; each device computes its shard
        i, j, k = jnp.indices(shape, jnp.uint32, sparse=True)
        number = i * 1_000_000_007 + j * 1_500_450_271 + k * 2_038_074_743
        return (number >> 8).astype(jnp.float32)

    return jax.jit(scattered, out_shardings=sharding)()
