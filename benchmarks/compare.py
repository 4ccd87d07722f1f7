"""Compares dml_jax's ratios to the baseline in two runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.results import Document


class Change(NamedTuple):
    """dml_jax's ratio on one workload in both runs; a factor above 1 is slower.

    `mark` is empty where the quartiles of the two runs overlap.
    """

    name: str
    old: float
    new: float
    mark: str

    @property
    def factor(self) -> float:
        return self.new / self.old


def changes(old: Document, new: Document) -> list[Change]:
    """The workloads that both runs have with the same shape and dtype.

    Raises:
      ValueError: the runs are of different devices or sizes, or have nothing in common.
    """
    for option in ("device", "quick"):
        was, now = old["options"][option], new["options"][option]
        if was != now:
            raise ValueError(
                f"the runs cannot be compared: {option} is {was} in one and {now} in "
                "the other"
            )
    before, after = _ratios(old), _ratios(new)
    found = [
        Change(
            key[0],
            before[key]["median"],
            after[key]["median"],
            _mark(before[key], after[key]),
        )
        for key in before
        if key in after
    ]
    if not found:
        raise ValueError("the runs have no workload in common")
    return found


def _ratios(found: Document) -> dict[tuple[Any, ...], Mapping[str, float]]:
    return {
        (record["name"], record["dtype"], *record["shape"]): figures["ratio"]
        for record in found["records"]
        if (figures := record["candidates"].get("dml_jax"))
    }


def _mark(old: Mapping[str, float], new: Mapping[str, float]) -> str:
    if new["q1"] > old["q3"]:
        return "slower"
    return "faster" if new["q3"] < old["q1"] else ""


def table(found: list[Change]) -> str:
    lines = [f"{'multiples of the baseline':40}{'old':>10}{'new':>10}{'new/old':>10}"]
    for change in found:
        figures = f"{change.old:10.2f}{change.new:10.2f}{change.factor:10.2f}"
        lines.append(f"{change.name:40}{figures}  {change.mark}".rstrip())
    return "\n".join(lines)


def regressions(found: list[Change], tolerance: float) -> list[Change]:
    """The changes that are slower beyond the spread and the tolerance."""
    return [c for c in found if c.mark == "slower" and c.factor > tolerance]
