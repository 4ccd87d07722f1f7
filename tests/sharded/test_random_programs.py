"""Random programs over random meshes, compared with NumPy.

They run in processes of their own, since a compiler that aborts ends its process. The
seed of a program is all that it takes to run it again:

    PYTHONPATH=. python tests/sharded/run_programs.py SEED
"""

import collections
import json
import os
import pathlib
import subprocess
import sys

import programs
import pytest

SCRIPT = pathlib.Path(__file__).with_name("run_programs.py")
BATCH = 250  # programs for a process, which keeps all that it has compiled


@pytest.fixture(scope="module")
def outcomes(pytestconfig):
    """For each seed what came of its program: outcome, why, and the program."""
    first = pytestconfig.getoption("--first-program", 0)
    count = pytestconfig.getoption("--programs", 250)
    return run(range(first, first + count))


def run(seeds):
    """Runs all programs, in a new process after each that ends its own."""
    found = {}
    while left := [seed for seed in seeds if seed not in found]:
        child = subprocess.run(
            [sys.executable, SCRIPT, *map(str, left[:BATCH])],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
        reports = collections.defaultdict(dict)
        for line in child.stdout.splitlines():
            report = json.loads(line)
            reports[report["seed"]].update(report)
        assert reports, child.stderr
        *_, last = reports.values()
        last.setdefault("outcome", "abort")
        last.setdefault("why", end_of(child))
        found.update(reports)
    return found


def end_of(child):
    """What a process said before it died."""
    lines = child.stderr.splitlines()
    fatal = [line for line in lines if line.startswith("F") or "Timeout" in line]
    said = (fatal or lines[-5:])[:5]
    return "\n".join([f"exit status {child.returncode}", *said])


def test_bits(outcomes):
    failures = [
        f"{report['outcome']}: {report['why']}\n{report['program']}"
        for report in outcomes.values()
        if report["outcome"] not in ("passed", "skipped")
    ]
    assert not failures, "\n\n".join([f"{len(failures)} programs", *failures])


def test_few_programs_are_refused_by_jax(outcomes):
    counts = collections.Counter(report["outcome"] for report in outcomes.values())
    assert counts["skipped"] * 3 <= counts.total(), counts


@pytest.mark.parametrize("explicit", [False, True], ids=["automatic", "explicit"])
@pytest.mark.parametrize("operator", programs.OPERATORS)
def test_every_operator_runs(outcomes, operator, explicit):
    """And not only the same few programs, whatever JAX refuses."""
    ran = [
        program
        for program in map(programs.draw, outcomes)
        if outcomes[program.seed]["outcome"] != "skipped"
        and (program.operator, program.explicit) == (operator, explicit)
    ]
    assert ran
    if not operator.startswith("fill"):
        assert len({program.mode for program in ran}) > 1
