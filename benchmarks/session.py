"""A run over workloads, each one from its arrays to its record.

The memcpy is NumPy's on a CPU, on one thread and into memory that has been touched
before, and XLA's copy of float32 on a GPU. The memset is `ndarray.fill` on a CPU, and
XLA's fastest of three constant fills on a GPU.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure, peers, programs
from benchmarks.measure import Candidate, Settings
from benchmarks.workloads import Device, Workload

Record = dict[str, Any]

_MEMSET_WORDS = 16  # XLA stores single elements of arrays of other sizes


def records(
    selected: Iterable[Workload], device: Device, settings: Settings, seconds: float
) -> Iterator[Record]:
    """Measures the workloads in turn until the time is over, and at least one.

    A workload that fails, or whose result is not that of plain JAX, gives a line on the
    standard error and a record without candidates.
    """
    end = time.monotonic() + seconds
    for workload in selected:
        print(workload.name, file=sys.stderr)
        with jax.enable_x64(workload.dtype.itemsize == 8):
            try:
                figures = _figures(workload, device, settings)
            except Exception as error:  # one workload of hundreds
                reason = str(error).partition("\n")[0]
                print(f"{workload.name}: {reason}", file=sys.stderr)
                figures = {}
        yield workload.description | dict(candidates=figures)
        if time.monotonic() > end:
            return


def _figures(workload: Workload, device: Device, settings: Settings) -> Record:
    arrays = programs.arrays(workload)
    ours = measure.compiled(programs.functions(workload), arrays)
    if workload.operator != "fill_value_sequence":  # plain JAX rounds differently
        _check(ours)
    baseline = _baseline(workload, device)
    found = [baseline, *ours, *peers.peers(workload, arrays, device)]
    return measure.summaries(measure.samples(found, settings), workload.baseline)


def _check(found: list[Candidate]) -> None:
    made = {candidate.name: candidate.call() for candidate in found}
    for name in made:
        plain = made[name.replace("dml_jax", "jnp")]
        if not jnp.array_equal(made[name], plain):
            raise ValueError(f"{name} differs from plain JAX")


# Baselines ----------------------------------------------------------------------------


def _baseline(workload: Workload, device: Device) -> Candidate:
    """A memcpy of the bytes that the workload has to move, or a memset."""
    if workload.baseline == "memcpy":
        nbytes = (workload.bytes_read + workload.bytes_written) // 2
        return _memcpy(max(1, nbytes // 4), device)
    words = workload.bytes_written // 4
    return _memset(-(-words // _MEMSET_WORDS) * _MEMSET_WORDS, device)


@functools.lru_cache(maxsize=1)  # the next workload often has as many bytes
def _memcpy(count: int, device: Device) -> Candidate:
    if device == "gpu":
        source = jnp.ones(count, jnp.float32)
        return measure.compiled(dict(memcpy=jnp.copy), (source,))[0]
    source, target = _aligned(count, 0), _aligned(count, 2048)

    def call() -> np.ndarray:
        np.copyto(target, source)
        return target

    return Candidate("memcpy", call)


@functools.lru_cache(maxsize=1)
def _memset(count: int, device: Device) -> Candidate:
    if device == "gpu":
        fills = dict(
            zeros=lambda _: jnp.zeros(count, jnp.float32),
            full=lambda x: jnp.full(count, x),
            quarters=lambda _: _in_quarters(count),
        )
        candidates = measure.compiled(fills, (jnp.float32(1),))
        times = measure.samples(candidates, measure.QUICK)
        return min(candidates, key=lambda c: min(times[c.name]))._replace(name="memset")
    target = _aligned(count, 0).view(np.uint8)  # filled faster than float32

    def call() -> np.ndarray:
        target.fill(1)
        return target

    return Candidate("memset", call)


def _aligned(count: int, offset: int) -> np.ndarray:
    """Ones that start `offset` bytes after the start of a page.

    A CPU may copy at a tenth of its speed if the target starts a few bytes after the
    source within a page. Half a page apart, it does not.
    """
    page, nbytes = 4096, 4 * count
    memory = np.empty(nbytes + 2 * page, np.uint8)
    start = -memory.ctypes.data % page + offset
    values = memory[start : start + nbytes].view(np.float32)
    values.fill(1)
    return values


def _in_quarters(count: int) -> jax.Array:
    """Four constants in one kernel, the fastest stores of XLA on an H200."""
    sizes = [count * (i + 1) // 4 - count * i // 4 for i in range(4)]
    return jnp.concatenate([jnp.full(n, i, jnp.float32) for i, n in enumerate(sizes)])
