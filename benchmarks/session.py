"""A run over workloads, each one from its arrays to its record."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import candidates, measure, peers, programs
from benchmarks.measure import Candidate, Settings
from benchmarks.workloads import Device, Workload

Record = dict[str, Any]


def records(
    selected: Iterable[Workload],
    device: Device,
    settings: Settings,
    *,
    seconds: float = math.inf,
) -> Iterator[Record]:
    """Measures the workloads in turn until the time is over, and at least one.

    A workload that fails, or whose result is not that of plain JAX, gives a line on the
    standard error and a record without candidates.
    """
    end = time.monotonic() + seconds
    jax.config.update("jax_enable_compilation_cache", False)
    for workload in selected:
        print(workload.name, file=sys.stderr)
        with (
            jax.default_device(jax.devices(device)[0]),
            jax.enable_x64(workload.dtype.itemsize == 8),
        ):
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
    ours = candidates.all_compiled(programs.functions(workload), arrays)
    if workload.operator != "fill_value_sequence":  # plain JAX rounds differently
        _check(ours)
    baseline = candidates.baseline(workload, device)
    found = [baseline, *ours, *peers.peers(workload, arrays, device)]
    return measure.summaries(measure.samples(found, settings), workload.baseline)


def _check(found: list[Candidate]) -> None:
    made = {candidate.name: candidate.call() for candidate in found}
    for name in ("dml_jax", "dml_jax_between"):
        if name in made and not _are_equal(
            made[name], made[name.replace("dml_jax", "jnp")]
        ):
            raise ValueError(f"{name} differs from plain JAX")


@jax.jit
def _are_equal(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.all(x == y)
