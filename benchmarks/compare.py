"""Compares dml_jax's multiples of the baseline in two runs.

A change is marked where the quartiles of the two runs do not overlap. The exit status
is 1 if any workload is so marked and slower by more than the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.results import Document

Ratio = Mapping[str, float]  # a median and quartiles


def table(old: Document, new: Document) -> tuple[str, float]:
    """The workloads of the same shape and dtype, and how much slower one is at most."""
    for option in ("device", "quick"):
        was, now = old["options"].get(option), new["options"].get(option)
        if was != now:
            raise ValueError(f"{option} is {was} in one run and {now} in the other")
    before, after = _ratios(old), _ratios(new)
    lines = [f"{'multiples of the baseline':40}{'old':>10}{'new':>10}{'new/old':>10}"]
    most = 1.0
    for key in (key for key in before if key in after):
        was, now = before[key], after[key]
        factor, mark = now["median"] / was["median"], ""
        if now["q1"] > was["q3"]:
            mark, most = "slower", max(most, factor)
        elif now["q3"] < was["q1"]:
            mark = "faster"
        figures = f"{was['median']:10.2f}{now['median']:10.2f}{factor:10.2f}"
        lines.append(f"{key[0]:40}{figures}  {mark}".rstrip())
    if len(lines) == 1:
        raise ValueError("the runs have no workload in common")
    return "\n".join(lines), most


def _ratios(found: Document) -> dict[tuple[Any, ...], Ratio]:
    return {
        (record["name"], record["dtype"], *record["shape"]): figures["ratio"]
        for record in found["records"]
        if (figures := record["candidates"].get("dml_jax"))
    }
