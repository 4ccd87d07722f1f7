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

SCRIPT = pathlib.Path(__file__).with_name("run_programs.py")
# Programs of the default run, by kind; others begin at --first-program.
SAMPLE = {"any": 60, "local": 40, "large": 30, "lengths": 20}
BATCH = 250  # programs for a process, which keeps all that it has compiled

Item = tuple[str, int]  # a kind of programs, and a seed
Reports = dict[Item, dict[str, str]]  # the outcome, and why


@pytest.fixture(scope="module")
def sample() -> Reports:
    return run([(kind, seed) for kind, n in SAMPLE.items() for seed in range(n)])


@pytest.fixture(scope="module")
def outcomes(pytestconfig: pytest.Config) -> Reports:
    first = pytestconfig.option.first_program
    seeds = range(first, first + pytestconfig.option.programs)
    items = [("any", seed) for seed in seeds]
    items += [(kind, seed) for kind in [*SAMPLE][1:] for seed in seeds[::4]]
    batches = [items[i : i + BATCH] for i in range(0, len(items), BATCH)]
    return {item: report for batch in batches for item, report in run(batch).items()}


def run(items: Sequence[Item]) -> Reports:
    """Runs the programs in a process, and in others after one that ends it."""
    reports = {}
    for item, report in zip(items, children.answers(SCRIPT, items), strict=True):
        is_end = isinstance(report, children.End)
        reports[item] = dict(outcome="abort", why=report.why) if is_end else report
    return reports


def of_kind(outcomes: Reports, kind: str) -> Reports:
    return {item: report for item, report in outcomes.items() if item[0] == kind}


@pytest.mark.parametrize("kind", SAMPLE)
def test_sample(kind: str, sample: Reports) -> None:
    """Bits, and what devices send and hold in local and in large programs."""
    require_no_failures(of_kind(sample, kind))


def test_local_programs_send_nothing(sample: Reports) -> None:
    """More than a quarter does not; in the others, JAX or Shardy may choose to."""
    found = of_kind(sample, "local").values()
    assert sum(report["outcome"] == "silent" for report in found) > len(found) // 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", SAMPLE)
def test_bits(kind: str, outcomes: Reports) -> None:
    require_no_failures(of_kind(outcomes, kind))


def program_of(item: Item) -> programs.Program:
    kind, seed = item
    return programs.draw(seed, kind)


def require_no_failures(outcomes: Reports) -> None:
    failures = [
        f"{item}: {report['outcome']}: {report['why']}\n{program_of(item)}"
        for item, report in outcomes.items()
        if report["outcome"] not in ("passed", "silent", "skipped")
    ]
    assert not failures, "\n\n".join([f"{len(failures)} programs", *failures])


@pytest.mark.exhaustive
def test_few_programs_are_refused_by_jax(outcomes: Reports) -> None:
    found = of_kind(outcomes, "any").values()
    counts = collections.Counter(report["outcome"] for report in found)
    assert counts["skipped"] * 3 <= counts.total(), counts


@pytest.mark.exhaustive
@pytest.mark.parametrize("explicit", [False, True], ids=["automatic", "explicit"])
@pytest.mark.parametrize("operator", programs.OPERATORS)
def test_every_operator_runs(outcomes: Reports, operator: str, explicit: bool) -> None:
    """In several modes, whatever JAX refuses."""
    ran = [
        program
        for item, report in of_kind(outcomes, "any").items()
        for program in [program_of(item)]
        if report["outcome"] != "skipped"
        and (program.operator, bool(program.explicit)) == (operator, explicit)
    ]
    assert ran
    assert operator.startswith("fill") or len({program.mode for program in ran}) > 1
