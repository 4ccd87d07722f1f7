"""Random programs over random meshes, compared with NumPy.

They run in processes of their own, since a compiler that aborts ends its process. This
runs the program of one seed again:

    python -m pytest tests/sharded/test_random_programs.py -m exhaustive -k bits \
      --programs=1 --first-program=231
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import programs
import pytest
from sampling import default_of

SCRIPT = pathlib.Path(__file__).with_name("run_programs.py")
SAMPLE = 60  # programs of the default run
BATCH = 250  # programs for a process, which keeps all that it has compiled

Reports = dict[int, dict[str, str]]  # by seed: outcome, why, and the program


@pytest.fixture(scope="module")
def outcomes(pytestconfig: pytest.Config) -> Reports:
    first = pytestconfig.option.first_program
    seeds = range(first, first + pytestconfig.option.programs)
    found: Reports = {}
    while left := [seed for seed in seeds if seed not in found]:
        found |= run(left[:BATCH])
    return found


def run(seeds: Sequence[int], kind: str = "any") -> Reports:
    """Runs the programs in a process, up to one that ends it."""
    child = subprocess.run(
        [sys.executable, SCRIPT, kind, *map(str, seeds)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    reports: Reports = collections.defaultdict(dict)
    for line in child.stdout.splitlines():
        report = json.loads(line)
        reports[report["seed"]].update(report)
    assert reports, child.stderr
    *_, last = reports.values()
    if "outcome" not in last:
        lines = child.stderr.splitlines()
        fatal = [line for line in lines if line.startswith("F") or "Timeout" in line]
        why = [f"exit status {child.returncode}", *(fatal or lines[-5:])[:5]]
        last.update(outcome="abort", why="\n".join(why))
    return reports


def test_bits_of_a_sample() -> None:
    require_no_failures(run(range(SAMPLE)))


@pytest.mark.parametrize("count", default_of([40, 400], 40))
def test_local_programs_send_nothing(count: int) -> None:
    """Their compiled text has no collectives, and no array larger than two shards."""
    found = run(range(count), "local")
    require_no_failures(found)
    silent = [report for report in found.values() if report["outcome"] == "silent"]
    assert len(silent) > count // 4


@pytest.mark.exhaustive
def test_bits(outcomes: Reports) -> None:
    require_no_failures(outcomes)


def require_no_failures(outcomes: Reports) -> None:
    failures = [
        f"{report['outcome']}: {report['why']}\n{report['program']}"
        for report in outcomes.values()
        if report["outcome"] not in ("passed", "silent", "skipped")
    ]
    assert not failures, "\n\n".join([f"{len(failures)} programs", *failures])


@pytest.mark.exhaustive
def test_few_programs_are_refused_by_jax(outcomes: Reports) -> None:
    counts = collections.Counter(report["outcome"] for report in outcomes.values())
    assert counts["skipped"] * 3 <= counts.total(), counts


@pytest.mark.exhaustive
@pytest.mark.parametrize("explicit", [False, True], ids=["automatic", "explicit"])
@pytest.mark.parametrize("operator", programs.OPERATORS)
def test_every_operator_runs(outcomes: Reports, operator: str, explicit: bool) -> None:
    """In several modes, whatever JAX refuses."""
    ran = [
        program
        for program in map(programs.draw, outcomes)
        if outcomes[program.seed]["outcome"] != "skipped"
        and (program.operator, bool(program.explicit)) == (operator, explicit)
    ]
    assert ran
    assert operator.startswith("fill") or len({program.mode for program in ran}) > 1
