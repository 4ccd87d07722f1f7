"""Random programs over random meshes, compared with NumPy.

They run in processes of their own, since a compiler that aborts ends its process. This
runs the program of one seed again:

    python -m pytest tests/sharded/test_random_programs.py -m exhaustive -k bits \
      --programs=1 --first-program=231
"""

import collections
import itertools
import pathlib
from collections.abc import Sequence

import children
import programs
import pytest

SCRIPT = pathlib.Path(__file__).with_name("run_programs.py")
# Programs of the default run, by kind; others begin at --first-program.
SAMPLE = {"any": 20, "local": 12, "large": 6, "lengths": 4}
BATCH = 250  # programs for a process, which keeps all that it has compiled

Item = tuple[str, int]  # a kind of programs, and a seed
Reports = dict[Item, dict[str, str]]  # the outcome, and why


def run(items: Sequence[Item]) -> Reports:
    """Runs the programs in a process, and in others after one that ends it."""
    reports = {}
    for item, report in zip(items, children.answers(SCRIPT, items), strict=True):
        is_end = isinstance(report, children.End)
        reports[item] = dict(outcome="abort", why=report.why) if is_end else report
    return reports


def first_programs(config: pytest.Config, kind: str) -> Reports:
    """Of the exhaustive run; a quarter of them, if they are of one kind."""
    first = config.option.first_program
    seeds = range(first, first + config.option.programs, 1 if kind == "any" else 4)
    items = [(kind, seed) for seed in seeds]
    batches = [items[i : i + BATCH] for i in range(0, len(items), BATCH)]
    return {item: report for batch in batches for item, report in run(batch).items()}


def test_sample() -> None:
    """Bits, and what devices send and hold in local and in large programs."""
    found = run([(kind, seed) for kind, n in SAMPLE.items() for seed in range(n)])
    require_no_failures(found)
    # In a part of the local ones, JAX or Shardy choose to send.
    local = [
        report["outcome"] for (kind, _), report in found.items() if kind == "local"
    ]
    assert local.count("silent") > len(local) // 4, local


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", SAMPLE)
def test_bits(kind: str, pytestconfig: pytest.Config) -> None:
    found = first_programs(pytestconfig, kind)
    require_no_failures(found)
    if kind == "any" and len(found) >= 160:
        require_variety(found)


def require_no_failures(outcomes: Reports) -> None:
    failures = [
        f"{item}: {report['outcome']}: {report['why']}\n{program_of(item)}"
        for item, report in outcomes.items()
        if report["outcome"] not in ("passed", "silent", "skipped")
    ]
    assert not failures, "\n\n".join([f"{len(failures)} programs", *failures])


def program_of(item: Item) -> programs.Program:
    kind, seed = item
    return programs.draw(seed, kind)


def require_variety(outcomes: Reports) -> None:
    """JAX refuses few programs, and every operator ran in several modes."""
    counts = collections.Counter(report["outcome"] for report in outcomes.values())
    assert counts["skipped"] * 3 <= counts.total(), counts
    ran = [program_of(i) for i, r in outcomes.items() if r["outcome"] != "skipped"]
    for operator, explicit in itertools.product(programs.OPERATORS, (False, True)):
        modes = {
            program.mode
            for program in ran
            if (program.operator, bool(program.explicit)) == (operator, explicit)
        }
        wanted = 1 if operator.startswith("fill") else 2
        assert len(modes) >= wanted, (operator, explicit)
