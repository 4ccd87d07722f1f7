"""Pictures of random shapes, speed against size, and of runs over devices.

Pictures are small, for phones, and on white, for dark pages.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks import random_shapes, results
from benchmarks.results import Document
from benchmarks.workloads import WIDTHS

_STYLE: Any = {"savefig.facecolor": "white", "savefig.dpi": 150, "font.size": 9}

Records = Sequence[Mapping[str, Any]]


@matplotlib.rc_context(_STYLE)
def save(found: Document, folder: pathlib.Path) -> pathlib.Path:
    """Draws a PNG of a run of `random`, `recurrent` or `scale`."""
    kind, device = found["options"]["kind"], found["options"]["device"]
    if kind == "random":
        figure, name = shares(results.groups(found)["random"]), f"random-{device}.png"
    elif kind == "recurrent":
        figure, name = steps(results.groups(found)["step"]), f"recurrent-{device}.png"
    elif kind == "scaling":
        figure, name = devices(found["records"]), "devices.png"
    else:
        raise ValueError(f"runs of kind {kind} are not drawn")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / name)
    return folder / name


def shares(records: Records) -> Figure:
    """The share of a memcpy's speed against size: a panel for each kind.

    Colours tell functions apart, and markers dtypes. Where both functions are as fast,
    plain JAX is a rim around dml_jax.
    """
    figure = Figure(figsize=(4.4, 6.4), layout="constrained")
    panels = list(figure.subplots(3, 2, sharex=True, sharey=True).flat)
    forms = dict(jnp=("plain JAX", 26, "#f28e1c"), dml_jax=("dml_jax", 7, "#1f5fae"))
    for axes, kind in zip(panels, random_shapes.KINDS, strict=True):
        shown = [r for r in records if r["name"].split("/")[1] == kind]
        for name, dtype in itertools.product(forms, WIDTHS):
            chosen = [r for r in shown if r["dtype"] == dtype]
            moved = [r["bytes_read"] + r["bytes_written"] for r in chosen]
            share = [100 / r["candidates"][name]["ratio"]["median"] for r in chosen]
            title, size, colour = forms[name]
            style = dict(color=colour, marker="o^s"[WIDTHS.index(dtype)], linewidth=0)
            axes.scatter(moved, share, size, label=f"{title}, {dtype}", **style)
        axes.axhline(100, color="black", linewidth=1)
        axes.set(title=kind, xscale="log")
        axes.grid(alpha=0.3)
    panels[0].set_ylim(bottom=0)
    for axes in panels[-2:]:
        axes.set_xlabel("bytes moved")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle("random shapes: speed in per cent of a memcpy's", fontsize="large")
    return figure


_NETWORKS = dict(
    dml_jax="bidirectional_scan",
    two_scans="two scans",
    flax="nnx.Bidirectional",
    torch_packed="torch, packed",
)
_NETWORKS["jax.experimental.rnn"] = "cuDNN in JAX"


def steps(records: Records) -> Figure:
    """The times of a training step of the first network, a bar for each library."""
    record = records[0]
    names = [name for name in _NETWORKS if name in record["candidates"]][::-1]
    times = [1e3 * record["candidates"][n]["seconds"]["median"] for n in names]
    figure = Figure(figsize=(4.4, 1.9), layout="constrained")
    axes = figure.subplots()
    colours = ["#1f5fae" if name == "dml_jax" else "#f28e1c" for name in names]
    bars = axes.barh([_NETWORKS[name] for name in names], times, color=colours)
    axes.bar_label(bars, fmt="%.3g", padding=3)
    axes.margins(x=0.12)
    axes.set(xlabel=f"training step, ms ({record['dtype']})")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


_LABELS = dict(dml_jax="dml_jax", xla="plain JAX", link="sending one shard")


def devices(records: Records) -> Figure:
    """The efficiency where the axis is not sharded, and the time where it is."""
    figure = Figure(figsize=(4.4, 7), layout="constrained")
    panels: dict[str, Any]
    panels = dict(zip(("whole", "weak", "strong"), figure.subplots(3), strict=True))
    lines: dict[tuple[str, str], dict[int, float]] = {}
    for record in records:
        figures, mode, count = record["candidates"], record["mode"], record["devices"]
        if record["group"] == "whole-axis":
            line = lines.setdefault(("whole", f"{mode}, {record['direction']}"), {})
            line[count] = 100 / figures["dml_jax"]["ratio"]["median"]
            continue
        for name, label in _LABELS.items():
            line = lines.setdefault((mode, label), {})
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
