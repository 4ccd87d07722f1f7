"""A run over the workloads, each one from its arrays to its record."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import candidates, measure, peers, programs
from benchmarks.measure import Candidate, Settings
from benchmarks.workloads import Device, Workload, workloads

BATCH = {"cpu": 0.020, "gpu": 0.005}
ROUNDS, QUICK_ROUNDS, COMPILATIONS = 8, 6, 3


def records(
    selected: Sequence[Workload], device: Device, quick: bool
) -> Iterator[dict[str, Any]]:
    """Measures the workloads in turn, and checks them if `quick`."""
    settings = Settings(QUICK_ROUNDS if quick else ROUNDS, BATCH[device])
    tiny = {workload.name: workload for workload in workloads(device, "tiny")}
    jax.config.update("jax_enable_compilation_cache", False)
    with jax.default_device(jax.devices(device)[0]):
        for workload in _progress(selected):
            if quick and workload.name in tiny:
                check(tiny[workload.name])
            yield _record(workload, device, settings)


def check(workload: Workload) -> None:
    """Raises if dml_jax differs from the reference, which is slow: use tiny workloads.

    A GPU may evaluate the tanh of a pipeline differently where it is fused.
    """
    if workload.operator == "import":
        return
    arrays = programs.arrays(workload)
    function = programs.program(workload, programs.operator(workload))
    candidate = candidates.compiled("dml_jax", function, arrays)
    wanted = programs.expected(workload, arrays)
    result = candidate.host(candidate.call())
    if workload.group == "pipeline":
        tolerance = 4 * float(np.finfo(workload.dtype).eps)
        good = np.allclose(result, wanted, rtol=tolerance, atol=tolerance)
    else:
        good = np.array_equal(result, wanted)
    if not good:
        raise ValueError(f"{workload.name}: dml_jax differs from the reference")


def _record(workload: Workload, device: Device, settings: Settings) -> dict[str, Any]:
    if workload.operator == "import":
        samples, compile_seconds = measure.imports(ROUNDS), None
    elif workload.group == "compile":
        functions = candidates.functions(workload, device)
        arrays = programs.arrays(workload)
        samples = measure.compilations(functions, arrays, COMPILATIONS)
        compile_seconds = float(np.median(samples["dml_jax"]))
    else:
        found = _candidates(workload, device)
        samples = measure.samples(found, settings)
        (compile_seconds,) = (c.compile_seconds for c in found if c.name == "dml_jax")
    return workload.description | dict(
        compile_seconds=compile_seconds,
        candidates=measure.summaries(samples, workload.baseline),
    )


def _candidates(workload: Workload, device: Device) -> list[Candidate]:
    """The baseline, dml_jax, and all others."""
    arrays = programs.arrays(workload)
    if workload.group == "latency":
        found = candidates.small_calls(workload, arrays)
    else:
        functions = candidates.functions(workload, device)
        if workload.group == "scaling":
            del functions["jnp"]
        found = [candidates.baseline(workload, device)]
        found += [candidates.compiled(n, f, arrays) for n, f in functions.items()]
        found += candidates.called(workload, arrays)
    for name, make in peers.peers(workload, arrays, device).items():
        try:
            candidate = make()
            if candidate:
                candidate.wait(candidate.call())
                found.append(candidate)
        except Exception as error:  # a peer that fails costs its column, not the run
            reason = str(error).partition("\n")[0]
            print(f"{workload.name}: without {name}: {reason}", file=sys.stderr)
    return found


def _progress(selected: Sequence[Workload]) -> Iterator[Workload]:
    try:
        from tqdm import tqdm
    except ImportError:
        for number, workload in enumerate(selected, 1):
            print(f"{number} of {len(selected)}: {workload.name}", file=sys.stderr)
            yield workload
    else:
        bar = tqdm(selected, unit="workload")
        for workload in bar:
            bar.set_postfix_str(workload.name)
            yield workload
