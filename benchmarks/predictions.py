"""What TPU's compiler predicts for the workloads, for each generation of TPUs.

The limit is the time in which the bytes of a workload can be read and written. The
predicted time of a program is the sum over its instructions of the longer one of two
times: of the cycles in the final schedule, and of the bytes that they copy. Waits for
memory within an instruction, and the start of a program, are not in it. Nothing runs.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from benchmarks import measure, programs, tpu_compiler
from benchmarks.tpu_compiler import GENERATIONS, Case, Outcome
from benchmarks.workloads import Workload, dtype_named, workloads

SECONDS = 60.0  # to compile a program, which otherwise has no figure
_CASES_OF_A_PROCESS = 16

Key = tuple[str, str, str]  # the names of a workload, a candidate and a generation


def table_of_workloads() -> list[Workload]:
    return [
        workload
        for workload in workloads("tpu")
        if workload.group in ("reverse", "slice", "fill")
        and workload.dtype != dtype_named("float64")
    ]


def records(
    selected: Sequence[Workload], generations: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """A record for each workload and generation."""
    outcomes = _outcomes([workload.name for workload in selected], generations)
    for workload, generation in itertools.product(selected, generations):
        found = {}
        for candidate in ("dml_jax", "jnp"):
            outcome = outcomes[workload.name, candidate, generation]
            if outcome.failed:
                name = f"{workload.name}/{generation}: without {candidate}"
                print(f"{name}: {outcome.failed}: {outcome.error}", file=sys.stderr)
            else:
                found[candidate] = outcome
        yield _record(workload, generation, found)


def _outcomes(names: Sequence[str], generations: Sequence[str]) -> dict[Key, Outcome]:
    """Compiles what is named, in as many processes at once as there are cores."""

    def compile_part(job: tuple[str, str, int]) -> list[tuple[Key, Outcome]]:
        generation, candidate, start = job
        part = names[start : start + _CASES_OF_A_PROCESS]
        options = [dict(name=name, candidate=candidate) for name in part]
        cases = [Case(o["name"], "benchmarks.predictions:program", o) for o in options]
        outcomes = tpu_compiler.compile_cases(
            cases, generation, with_costs=True, seconds=SECONDS
        )
        found = [
            ((name, candidate, generation), outcome)
            for name, outcome in zip(part, outcomes, strict=True)
        ]
        print(f"{generation}, {candidate}: up to {part[-1]}", file=sys.stderr)
        return found

    starts = range(0, len(names), _CASES_OF_A_PROCESS)
    jobs = itertools.product(generations, ("dml_jax", "jnp"), starts)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return dict(itertools.chain(*pool.map(compile_part, jobs)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def program(
    name: str, candidate: str
) -> tuple[Callable[..., Any], Sequence[jax.ShapeDtypeStruct]]:
    """The program of a workload, for the child process that compiles it."""
    workload = _by_name()[name]
    make = programs.operator if candidate == "dml_jax" else programs.idiom
    return make(workload), jax.eval_shape(lambda: programs.arrays(workload))


@functools.cache
def _by_name() -> dict[str, Workload]:
    return {workload.name: workload for workload in table_of_workloads()}


def _record(
    workload: Workload, generation: str, outcomes: dict[str, Outcome]
) -> dict[str, Any]:
    """A ratio is a lower bound if a loop runs as often as the data say, or if the clock
    is not published, so that only the bytes are known.
    """
    _, _, _, _, clock, bandwidth = GENERATIONS[generation]
    limit = (workload.bytes_read + workload.bytes_written) / bandwidth

    def figures(seconds: float, **others: Any) -> dict[str, Any]:
        ratio = measure.summary([seconds / limit])
        return dict(seconds=measure.summary([seconds]), ratio=ratio, **others)

    candidates = {"limit": figures(limit)} if outcomes else {}
    for name, outcome in outcomes.items():
        costs = outcome.costs
        seconds = sum(
            max(c.cycles / clock if clock else 0, c.hbm_bytes / bandwidth)
            for c in costs
        )
        candidates[name] = figures(
            seconds,
            cycles=sum(c.cycles for c in costs),
            hbm_bytes=sum(c.hbm_bytes for c in costs),
            is_lower_bound=clock is None or any(c.is_lower_bound for c in costs),
        )
    return workload.description | dict(
        name=f"{workload.name}/{generation}",
        generation=generation,
        baseline="limit",
        candidates=candidates,
    )
