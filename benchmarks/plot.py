"""Pictures of a run: bars for each group, time against size or number of devices.
Of a sweep: the share of the limit against size, for each kind of random shapes.

A bar is a candidate's speed as a share of the baseline's, which is memory, the compiled
function (small calls) or the plain idiom (compile times). Pictures have no background,
and colours that are read on white and on black.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks import results
from benchmarks.results import Document
from benchmarks.workloads import RANDOM_KINDS

GREY = "#80868f"
_TEXTS = "text.color", "axes.titlecolor", "axes.labelcolor", "legend.labelcolor"
_LINES = "axes.edgecolor", "xtick.color", "ytick.color"
_STYLE: Any = {**dict.fromkeys(_TEXTS + _LINES, GREY), "legend.framealpha": 0}
_STYLE |= {"savefig.transparent": True, "savefig.dpi": 120}


@matplotlib.rc_context(_STYLE)
def save(found: Document, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws a PNG for each group of a run, or one of a run of `scale`."""
    if found["options"]["device"] == "tpu":
        raise ValueError("predictions for TPUs are not drawn")
    folder.mkdir(parents=True, exist_ok=True)
    if found["options"].get("kind") == "scaling":
        devices(found["records"]).savefig(folder / "scaling.png")
        return [folder / "scaling.png"]
    paths = []
    for group, records in results.groups(found).items():
        draw = dict(scaling=scaling, random=shares).get(group)
        figure = draw(records) if draw else bars(group, records)
        paths.append(folder / f"{found['options']['device']}-{group}.png")
        figure.savefig(paths[-1])
    return paths


def bars(group: str, records: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel for each dtype, with the same workloads and candidates from the top."""
    names = results.others(records)
    labels = list(dict.fromkeys(_label(record) for record in records))
    dtypes = list(dict.fromkeys(record["dtype"] for record in records))
    height = 1.8 + 0.1 * len(labels) * (len(names) + 1)
    figure = Figure(figsize=(3 + 3 * len(dtypes), height), layout="constrained")
    panels = figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
    thickness = 0.8 / len(names)
    for axes, dtype in zip(panels, dtypes, strict=True):
        for rank, name in enumerate(names):
            shares = {
                labels.index(_label(r)): 1 / r["candidates"][name]["ratio"]["median"]
                for r in records
                if r["dtype"] == dtype and name in r["candidates"]
            }
            places = [row + (rank + 0.5) * thickness - 0.4 for row in shares]
            axes.barh(places, shares.values(), thickness, color=f"C{rank}", label=name)
        axes.axvline(1, color=GREY, linewidth=1)
        axes.set_title(dtype)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].set_ylim(len(labels) - 0.4, -0.6)
    baselines = " or ".join(dict.fromkeys(record["baseline"] for record in records))
    figure.suptitle(f"{group}: speed as a share of {baselines}")
    handles, _ = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, fontsize="small")
    return figure


def _label(record: Mapping[str, Any]) -> str:
    return record["name"].split("/")[1]


def scaling(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds against bytes that have to move, with lines for the baselines."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        lines.setdefault(_label(record), []).append(record)
    for color, (name, line) in enumerate(lines.items()):
        moved = [r["bytes_read"] + r["bytes_written"] for r in line]
        axes.plot(moved, _seconds(line, "dml_jax"), "o-", color=f"C{color}", label=name)
    # One line each for memcpy and memset, from the first kind of workload that has it.
    for line in {
        line[0]["baseline"]: line for line in reversed(lines.values())
    }.values():
        name = line[0]["baseline"]
        moved = [r["bytes_read"] + r["bytes_written"] for r in line]
        style = ":" if name == "memset" else "--"
        axes.plot(moved, _seconds(line, name), style, color=GREY, label=name)
    axes.set(xscale="log", yscale="log", xlabel="bytes moved", ylabel="seconds")
    axes.set_title("time of a call against size")
    axes.grid(which="both", alpha=0.2)
    axes.legend()
    return figure


def _seconds(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [record["candidates"][name]["seconds"]["median"] for record in records]


def shares(records: Sequence[Mapping[str, Any]]) -> Figure:
    """The share of the limit against size: a panel for each kind of random shapes."""
    figure = Figure(figsize=(7, 11), layout="constrained")
    panels = figure.subplots(4, 2, sharex=True, sharey=True).flat
    dtypes = list(dict.fromkeys(record["dtype"] for record in records))
    forms = (("called", "called", "o"), ("dml_jax", "in a program", "x"))
    for axes, kind in zip(panels, RANDOM_KINDS, strict=False):
        for dtype, (name, title, marker) in itertools.product(dtypes, forms):
            shown = [r for r in records if r["dtype"] == dtype and _label(r) == kind]
            moved = [r["bytes_read"] + r["bytes_written"] for r in shown]
            share = [100 / r["candidates"][name]["ratio"]["median"] for r in shown]
            style = dict(color=f"C{dtypes.index(dtype)}", marker=marker, alpha=0.7)
            axes.scatter(moved, share, 12, label=f"{dtype}, {title}", **style)
        axes.axhline(100, color=GREY, linewidth=1)
        axes.set(title=kind, xscale="log", ylim=(0, None), xlabel="bytes moved")
        axes.grid(alpha=0.3)
    panels[-1].axis("off")
    panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center")
    baselines = " or ".join(dict.fromkeys(record["baseline"] for record in records))
    figure.suptitle(f"random shapes: speed in per cent of that of a {baselines}")
    return figure


_LABELS = dict(dml_jax="dml_jax", xla="plain JAX", link="sending one shard")


def devices(records: Sequence[Mapping[str, Any]]) -> Figure:
    """The efficiency where the axis is not sharded, and the time where it is.

    The time is that of random lengths, which differs little from that of full ones.
    """
    figure = Figure(figsize=(7, 9), layout="constrained")
    panels: dict[str, Any]
    panels = dict(zip(("whole", "weak", "strong"), figure.subplots(3), strict=True))
    lines: dict[tuple[str, str], dict[int, float]] = {}
    for record in records:
        figures, mode, count = record["candidates"], record["mode"], record["devices"]
        if record["group"] == "whole-axis":
            line = lines.setdefault(("whole", f"{mode}, {record['direction']}"), {})
            line[count] = 100 * figures["dml_jax"]["efficiency"]["median"]
        elif record["lengths"] == "random":
            for name in figures.keys() & _LABELS.keys():
                line = lines.setdefault((mode, _LABELS[name]), {})
                line[count] = 1e3 * figures[name]["seconds"]["median"]
    styles = ("o-", "s--", "^:", "d-.")
    for (panel, label), line in sorted(lines.items()):
        style = styles[len(panels[panel].lines)]
        panels[panel].plot(line.keys(), line.values(), style, label=label)
    panels["whole"].set(title="axis not sharded: efficiency (%)", ylim=(80, 110))
    for mode, size in (("weak", "1 GiB per device"), ("strong", "4 GiB in total")):
        panels[mode].set(title=f"sharded axis, {size}: time (ms)")
        panels[mode].set_ylim(bottom=0)
    ticks = sorted({record["devices"] for record in records})
    for axes in panels.values():
        axes.set(xlabel="devices", xscale="log")
        axes.set_xticks(ticks, ticks)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    return figure
