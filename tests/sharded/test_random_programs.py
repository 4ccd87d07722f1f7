"""Random programs over random meshes, compared with NumPy.

They run in processes of their own, since a compiler that aborts ends its process. This
runs the program of one seed again:

    python -m pytest tests/sharded/test_random_programs.py -m exhaustive -k bits \
      --programs=1 --first-program=231
"""

import collections
import pathlib
from collections.abc import Sequence

import children
import programs
import pytest
from sampling import default_of

SCRIPT = pathlib.Path(__file__).with_name("run_programs.py")
SAMPLE = 60  # programs of the default run
BATCH = 250  # programs for a process, which keeps all that it has compiled

Reports = dict[int, dict[str, str]]  # by seed: the outcome, and why


@pytest.fixture(scope="module")
def outcomes(pytestconfig: pytest.Config) -> Reports:
    first = pytestconfig.option.first_program
    seeds = range(first, first + pytestconfig.option.programs)
    batches = [seeds[i : i + BATCH] for i in range(0, len(seeds), BATCH)]
    return {seed: report for batch in batches for seed, report in run(batch).items()}


def run(seeds: Sequence[int], kind: str = "any") -> Reports:
    """Runs the programs in a process, and in others after one that ends it."""
    reports = {}
    for seed, report in zip(seeds, children.answers(SCRIPT, seeds, kind), strict=True):
        is_end = isinstance(report, children.End)
        reports[seed] = dict(outcome="abort", why=report.why) if is_end else report
    return reports


def test_bits_of_a_sample() -> None:
    require_no_failures(run(range(SAMPLE)))


@pytest.mark.parametrize("count", default_of([40, 400], 40))
def test_local_programs_send_nothing(count: int) -> None:
    """Their compiled text has no collectives, and no array larger than two shards."""
    found = run(range(count), "local")
    require_no_failures(found, are_local=True)
    silent = [report for report in found.values() if report["outcome"] == "silent"]
    assert len(silent) > count // 4


@pytest.mark.exhaustive
def test_bits(outcomes: Reports) -> None:
    require_no_failures(outcomes)


def require_no_failures(outcomes: Reports, *, are_local: bool = False) -> None:
    failures = [
        f"{report['outcome']}: {report['why']}\n{programs.draw(seed, are_local)}"
        for seed, report in outcomes.items()
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
