"""Compares dml_jax's multiples of the baseline in two runs.

A change is marked where the quartiles of the two runs do not overlap. The exit status
is 1 if any workload is so marked and slower by more than the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.results import Document

Ratio = Mapping[str, float]  # a median and quartiles


class Change(NamedTuple):
    """dml_jax's ratios on one workload in two runs."""

    name: str
    old: Ratio
    new: Ratio

    @property
    def factor(self) -> float:
        """Above 1 is slower."""
        return self.new["median"] / self.old["median"]

    @property
    def mark(self) -> str:
        """Empty where the quartiles of the two runs overlap."""
        if self.new["q1"] > self.old["q3"]:
            return "slower"
        return "faster" if self.new["q3"] < self.old["q1"] else ""


def changes(old: Document, new: Document) -> list[Change]:
    """The workloads that both runs have with the same shape and dtype."""
    for option in ("device", "quick"):
        was, now = old["options"].get(option), new["options"].get(option)
        if was != now:
            raise ValueError(
                f"the runs cannot be compared: {option} is {was} in one and {now} in "
                "the other"
            )
    before, after = _ratios(old), _ratios(new)
    found = [Change(k[0], before[k], after[k]) for k in before if k in after]
    if not found:
        raise ValueError("the runs have no workload in common")
    return found


def _ratios(found: Document) -> dict[tuple[Any, ...], Ratio]:
    return {
        (record["name"], record["dtype"], *record["shape"]): figures["ratio"]
        for record in found["records"]
        if (figures := record["candidates"].get("dml_jax"))
    }


def table(found: list[Change]) -> str:
    lines = [f"{'multiples of the baseline':40}{'old':>10}{'new':>10}{'new/old':>10}"]
    for change in found:
        medians = change.old["median"], change.new["median"], change.factor
        figures = "".join(f"{figure:10.2f}" for figure in medians)
        lines.append(f"{change.name:40}{figures}  {change.mark}".rstrip())
    return "\n".join(lines)
