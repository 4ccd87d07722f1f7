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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import measure, programs, results, tpu_compiler
from benchmarks.results import Document
from benchmarks.tpu_compiler import GENERATIONS, Case, Outcome
from benchmarks.workloads import RANDOM_KINDS, Workload, random_workloads, workloads

GROUPS = ("reverse", "slice", "fill")
_CASES_OF_A_PROCESS = 16


class RandomShapes(NamedTuple):
    """How many random shapes there are of each kind, and the seed."""

    per_kind: int
    seed: int


def table_of_workloads(random: RandomShapes) -> list[Workload]:
    table = [workload for workload in workloads("tpu") if workload.group in GROUPS]
    count = random.per_kind * len(RANDOM_KINDS)
    return [*table, *itertools.islice(random_workloads(random.seed, "tpu"), count)]


def records(
    selected: Sequence[Workload],
    generations: Sequence[str],
    random: RandomShapes,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """A record for each workload and generation.

    A program of plain JAX that is not compiled within that time has no figures.
    """
    names = {
        "dml_jax": [workload.name for workload in selected],
        "jnp": [each.name for each in selected if each.group != "random"],
    }
    outcomes = _outcomes(names, generations, random, seconds)
    for workload, generation in itertools.product(selected, generations):
        found = {}
        for candidate in ("dml_jax", "jnp"):
            outcome = outcomes.get((workload.name, candidate, generation))
            if outcome and outcome.failed:
                name = f"{workload.name}/{generation}: without {candidate}"
                print(f"{name}: {outcome.failed}: {outcome.error}", file=sys.stderr)
            elif outcome:
                found[candidate] = outcome
        if "dml_jax" in found:
            yield _record(workload, generation, found)


def _outcomes(
    names: Mapping[str, Sequence[str]],
    generations: Sequence[str],
    random: RandomShapes,
    seconds: float,
) -> dict[tuple[str, str, str], Outcome]:
    """Compiles what is named, in as many processes at once as there are cores."""
    count = _CASES_OF_A_PROCESS
    parts = [
        (candidate, named[i : i + count])
        for candidate, named in names.items()
        for i in range(0, len(named), count)
    ]

    def compile_part(job: Any) -> list[tuple[tuple[str, str, str], Outcome]]:
        generation, (candidate, part) = job
        options = [dict(name=n, candidate=candidate, random=random) for n in part]
        made = [Case(o["name"], "benchmarks.predictions:program", o) for o in options]
        limit = seconds if candidate == "jnp" else tpu_compiler.SECONDS
        outcomes = tpu_compiler.compile_cases(
            made, generation, with_costs=True, seconds=limit
        )
        found = list(zip(part, outcomes, strict=True))
        print(f"{generation}, {candidate}: up to {part[-1]}", file=sys.stderr)
        return [((name, candidate, generation), each) for name, each in found]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = itertools.product(generations, parts)
        try:
            return dict(itertools.chain(*pool.map(compile_part, jobs)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def program(
    name: str, candidate: str, random: Sequence[int]
) -> tuple[Callable[..., Any], Sequence[jax.ShapeDtypeStruct]]:
    """The program of a workload, for the child process that compiles it."""
    workload = _by_name(RandomShapes(*random))[name]
    make = programs.operator if candidate == "dml_jax" else programs.idiom
    return make(workload), jax.eval_shape(lambda: programs.arrays(workload))


@functools.cache
def _by_name(random: RandomShapes) -> dict[str, Workload]:
    return {workload.name: workload for workload in table_of_workloads(random)}


def _record(
    workload: Workload, generation: str, outcomes: dict[str, Outcome]
) -> dict[str, Any]:
    described = GENERATIONS[generation]
    moved = workload.bytes_read + workload.bytes_written
    limit = moved / described.bandwidth

    def figures(seconds: float, **others: Any) -> dict[str, Any]:
        ratio = measure.summary([seconds / limit])
        return dict(seconds=measure.summary([seconds]), ratio=ratio, **others)

    candidates = {"limit": figures(limit)}
    for name, outcome in outcomes.items():
        costs = outcome.costs
        clock = described.clock
        seconds = sum(
            max(c.cycles / clock if clock else 0, c.hbm_bytes / described.bandwidth)
            for c in costs
        )
        candidates[name] = figures(
            seconds,
            cycles=sum(c.cycles for c in costs),
            hbm_bytes=sum(c.hbm_bytes for c in costs),
            is_lower_bound=clock is None or any(c.is_lower_bound for c in costs),
            compile_seconds=outcome.seconds,
        )
    return workload.description | dict(
        name=f"{workload.name}/{generation}",
        generation=generation,
        baseline="limit",
        candidates=candidates,
    )


# As text ------------------------------------------------------------------------------


def figure(ratio: float, is_lower_bound: bool = False) -> str:
    """A ratio to the limit, with a sign if it is a lower bound."""
    sign = "\N{GREATER-THAN OR EQUAL TO} " if is_lower_bound else ""
    return sign + (f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}")


def table(found: Document) -> str:
    """The limit, and the cycles and the ratio of each candidate."""
    columns = f"{'limit':>12}{'dml_jax cycles':>18}{'ratio':>10}"
    columns += f"{'plain JAX cycles':>18}{'ratio':>10}"
    lines = ["predicted by TPU's compiler, not run", f"{'':48}{columns}"]
    for record in found["records"]:
        candidates = record["candidates"]
        limit = candidates["limit"]["seconds"]["median"]
        line = f"{record['name']:48}{1e6 * limit:9.1f} us"
        for name in ("dml_jax", "jnp"):
            if name in candidates:
                ratio = candidates[name]["ratio"]["median"]
                shown = figure(ratio, candidates[name]["is_lower_bound"])
                line += f"{candidates[name]['cycles']:18.0f}{shown:>10}"
        lines.append(line)
    for (kind, generation), ratios in summary(found).items():
        median, worst = ratios.texts()
        line = f"random {kind}, {generation}: median {median}, worst {worst}"
        lines.append(f"{line} ({ratios.worst_name})")
    return "\n".join(lines)


class Ratios(NamedTuple):
    """The ratios of a kind of random shapes; lower bounds if one of them is."""

    median: float
    worst: float
    worst_name: str
    are_lower_bounds: bool

    def texts(self) -> list[str]:
        return [figure(x, self.are_lower_bounds) for x in (self.median, self.worst)]


def summary(found: Document) -> dict[tuple[str, str], Ratios]:
    """The ratios of each kind of random shapes, for each generation."""
    named: dict[tuple[str, str], list[tuple[float, str, bool]]] = {}
    for record in results.groups(found).get("random", ()):
        kind, candidate = record["name"].split("/")[1], record["candidates"]["dml_jax"]
        ratio, is_lower_bound = (
            candidate["ratio"]["median"],
            candidate["is_lower_bound"],
        )
        ratios = named.setdefault((kind, record["generation"]), [])
        ratios.append((ratio, record["name"], is_lower_bound))
    return {
        key: Ratios(
            float(np.median([ratio for ratio, *_ in ratios])),
            *max(ratios)[:2],
            any(is_lower_bound for *_, is_lower_bound in ratios),
        )
        for key, ratios in named.items()
    }
