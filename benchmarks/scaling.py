"""How reversals of sharded arrays scale with the number of devices.

- `whole-axis`: the batch is sharded, and nothing is communicated. The baseline is
  linear scaling: the time of one device, divided by their number in a strong run.
- `sharded-axis`: the reversed axis is sharded. The baseline is the link: all devices
  send their shard to the next one at the same time. A single device copies it.

In a weak run the size of a shard is fixed, in a strong run that of the whole array.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import measure, programs
from benchmarks.measure import Candidate, Settings
from benchmarks.workloads import BATCH_MAJOR, Device, Workload

# Batches hide the time to dispatch a call to several devices and to wait for them.
FULL, QUICK = Settings(7, batch=0.020), Settings(3, batch=0.002)
SHARDS = 4  # of a weak run, in the array of a strong one
LESS_ON_CPU, LESS_IF_QUICK = 16, 64

Record = dict[str, Any]
Function = Callable[..., Any]
Shape = tuple[int, ...]


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
            yield from _sharded_axis(mesh, mode, less, settings)


def _whole_axis(
    meshes: Sequence[Mesh], mode: str, direction: str, less: int, settings: Settings
) -> Iterator[Record]:
    """Many sequences, 1 GiB in a shard of a weak run; all meshes take turns."""
    found = {}
    for mesh in meshes:
        shape = (mesh.size if mode == "weak" else SHARDS) * 2048 // less, 512, 256
        workload = _workload("whole-axis", "reverse_sequence", shape, BATCH_MAJOR)
        functions = _functions(workload)
        function = functions["dml_jax" if direction == "forward" else direction]
        sharding = NamedSharding(mesh, PartitionSpec("devices"))
        lengths = jax.device_put(_lengths("random", *shape[:2]), sharding)
        arrays = _data(shape, sharding), lengths
        compiled = _compiled(str(mesh.size), function, arrays)
        found[compiled] = workload
    samples = measure.samples(list(found), settings)
    for compiled, workload in found.items():
        count = int(compiled.name)
        linear = np.divide(samples["1"], 1 if mode == "weak" else count)
        times: measure.Samples = dict(linear=linear, dml_jax=samples[compiled.name])
        figures = measure.summaries(times, "linear")
        parts = dict(mode=mode, direction=direction, devices=count)
        ours = compiled._replace(name="dml_jax")
        yield _record(workload, "linear", parts, figures, [ours])


def _sharded_axis(
    mesh: Mesh, mode: str, less: int, settings: Settings
) -> Iterator[Record]:
    """Eight long sequences, 1 GiB in a shard of a weak run."""
    steps = (mesh.size if mode == "weak" else SHARDS) * 2**19 // less
    shape = 8, steps, 64
    workload = _workload("sharded-axis", "reverse_subsequences", shape, dict(axis=1))
    x = _data(shape, NamedSharding(mesh, PartitionSpec(None, "devices")))
    whole, compiled = NamedSharding(mesh, PartitionSpec()), None
    for kind in ("random", "full"):
        lengths = _lengths(kind, 8, steps).reshape(8, 1, 1)
        arrays = x, jax.device_put(lengths, whole)
        compiled = compiled or _candidates(workload, arrays)
        found = [
            c._replace(call=partial(_executable(c.call), *arrays)) for c in compiled
        ]
        found = list(_sound(found, f"sharded-axis/{mode}/{kind}/{mesh.size}"))
        if not {"link", "dml_jax"} <= {candidate.name for candidate in found}:
            continue  # nothing that could be compared
        figures = measure.summaries(measure.samples(found, settings), "link")
        parts = dict(mode=mode, lengths=kind, devices=mesh.size)
        yield _record(workload, "link", parts, figures, found)


def _record(
    workload: Workload,
    baseline: str,
    parts: dict[str, Any],
    figures: Record,
    candidates: Sequence[Candidate],
) -> Record:
    """A record as of `run`, with `parts`; temporary memory is that of a device."""
    shard = workload.bytes_read // parts["devices"]
    for name, call, *_ in candidates:
        temporary = _executable(call).memory_analysis().temp_size_in_bytes / shard
        figures[name]["temporary_shards"] = temporary
    return workload.description | dict(
        name="/".join(map(str, (workload.group, *parts.values()))),
        shard_bytes=shard,
        baseline=baseline,
        candidates=figures,
        **parts,
    )


# Candidates ---------------------------------------------------------------------------


def _executable(call: Any) -> Any:
    """The compiled program of a `functools.partial`."""
    return call.func


@contextlib.contextmanager
def _guarded(name: str) -> Iterator[None]:
    """Reports an error and goes on, without these figures."""
    try:
        yield
    except Exception as error:
        print(f"{name}: {error}".partition("\n")[0], file=sys.stderr)


def _workload(
    group: str, operator: str, shape: Shape, options: Mapping[str, Any]
) -> Workload:
    dtype, nbytes = np.dtype("float32"), 4 * math.prod(shape)
    return Workload(group, group, operator, dtype, shape, options, nbytes, nbytes)


def _functions(workload: Workload) -> dict[str, Function]:
    """The plain idiom, which XLA partitions, and then ours."""
    operator = programs.operator(workload)
    backward = dataclasses.replace(workload, group="backward")
    gradient = programs.program(backward, operator)
    return dict(xla=programs.idiom(workload), dml_jax=operator, backward=gradient)


def _link(sharding: NamedSharding) -> Function:
    count = sharding.mesh.size
    ring = [(device, (device + 1) % count) for device in range(count)]
    send, spec = partial(lax.ppermute, axis_name="devices", perm=ring), sharding.spec
    send = jax.shard_map(send, mesh=sharding.mesh, in_specs=spec, out_specs=spec)
    return lambda x, _: send(x)


def _lengths(kind: str, count: int, longest: int) -> np.ndarray:
    """Random ones are the same fractions of any longest one."""
    shares = np.random.default_rng(0).random(count) if kind == "random" else 1
    return np.full(count, shares * longest, np.int32)


def _data(shape: Shape, sharding: NamedSharding) -> jax.Array:
    def scattered() -> jax.Array:  # whole numbers; each device computes its shard
        i, j, k = jnp.indices(shape, jnp.uint32, sparse=True)
        number = i * 1_000_000_007 + j * 1_500_450_271 + k * 2_038_074_743
        return (number >> 8).astype(jnp.float32)

    return jax.jit(scattered, out_shardings=sharding)()


def _compiled(name: str, function: Function, arrays: programs.Arrays) -> Candidate:
    """With a result that is sharded as the first array is."""
    program = jax.jit(function, out_shardings=arrays[0].sharding)
    return Candidate(name, partial(program.lower(*arrays).compile(), *arrays))


def _candidates(workload: Workload, arrays: programs.Arrays) -> list[Candidate]:
    sharding: Any = arrays[0].sharding
    functions = dict(link=_link(sharding)) | _functions(workload)
    found = []
    for name, function in functions.items():
        with _guarded(f"{workload.group}: without {name}"):
            found.append(_compiled(name, function, arrays))
    return found


def _sound(candidates: Sequence[Candidate], name: str) -> Iterator[Candidate]:
    """Those that run and, if they reverse, agree with the idiom."""
    expected = None
    for candidate in candidates:
        with _guarded(f"{name}: without {candidate.name}"):
            result = candidate.wait(candidate.call())
            if candidate.name != "link":
                expected = result if expected is None else expected
                if not jnp.array_equal(result, expected):
                    raise ValueError("differs from xla")
            yield candidate
