"""Pictures of random shapes, of networks, and of runs over devices.

Pictures are small, for phones. They have no background, and text in a grey that is read
on white and on black.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks import random_shapes, recurrent_networks, results
from benchmarks.results import Document

_GREY, _BLUE, _ORANGE = "#80868f", "#3f8bdb", "#f28e1c"
_TEXT = "text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"
_STYLE: Any = {
    **dict.fromkeys(_TEXT, _GREY),
    **dict.fromkeys(("savefig.facecolor", "axes.facecolor"), "none"),
    **{"grid.color": _GREY, "legend.facecolor": "none", "savefig.dpi": 150},
    "font.size": 9,
}

Records = Sequence[Mapping[str, Any]]


@matplotlib.rc_context(_STYLE)
def save(found: Document, folder: pathlib.Path) -> pathlib.Path:
    """Draws a PNG of a run of `random`, `recurrent`, `networks` or `scale`."""
    kind, device = found["options"]["kind"], found["options"]["device"]
    if kind == "random":
        figure, name = gains(results.groups(found)["random"]), f"random-{device}.png"
    elif kind == "recurrent":
        figure, name = steps(results.groups(found)), f"recurrent-{device}.png"
    elif kind == "networks":
        records = results.groups(found)["networks"]
        figure, name = shares(records), f"networks-{device}.png"
    elif kind == "scaling":
        figure, name = devices(found["records"]), "devices.png"
    else:
        raise ValueError(f"runs of kind {kind} are not drawn")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / name)
    return folder / name


def gains(records: Records) -> Figure:
    """How many times as fast as plain JAX: a strip for each layout, a dot an array."""
    figure = Figure(figsize=(4.4, 4), layout="constrained")
    axes = figure.subplots()
    forms = {"": ("alone", _BLUE, -0.2), "_between": ("between", _ORANGE, 0.2)}
    random = np.random.default_rng(0)
    for row, kind in enumerate(random_shapes.KINDS):
        of_kind = [r["candidates"] for r in records if r["name"].split("/")[1] == kind]
        for suffix, (label, colour, offset) in forms.items() if of_kind else ():
            plain, ours = (
                np.array(
                    [found[name + suffix]["seconds"]["median"] for found in of_kind]
                )
                for name in ("jnp", "dml_jax")
            )
            rows = row + offset + random.uniform(-0.13, 0.13, len(of_kind))
            style: Any = dict(label=None if row else label, color=colour, linewidth=0)
            axes.scatter(plain / ours, rows, 12, alpha=0.5, **style)
            median = np.median(plain / ours)
            axes.plot(
                [median] * 2,
                row + offset + np.array([-0.19, 0.19]),
                color=_GREY,
                linewidth=2.5,
            )
    axes.axvline(1, color=_GREY, linewidth=1, zorder=0)
    axes.set(xscale="log", xlabel="times as fast as plain JAX (line: median)")
    ticks = [0.5, 1, 2, 5, 10, 20]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(random_shapes.KINDS)), random_shapes.KINDS)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def steps(of_kinds: Mapping[str, Records]) -> Figure:
    """The times of a training step of the first network, a bar for each library."""
    figure = Figure(figsize=(4.4, 4), layout="constrained")
    panels = figure.subplots(len(recurrent_networks.OURS), sharex=True)
    titles = "both directions", "one direction"
    for axes, title, ours in zip(panels, titles, recurrent_networks.OURS, strict=True):
        record = of_kinds[f"{ours}, step"][0]
        found = dict(reversed(record["candidates"].items()))
        times = [1e3 * figures["seconds"]["median"] for figures in found.values()]
        colours = [_BLUE if name == ours else _ORANGE for name in found]
        bars = axes.barh([*found], times, color=colours)
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.margins(x=0.12)
        axes.set_title(f"{title}, {record['dtype']}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set(xlabel="training step, ms")
    return figure


def shares(records: Records) -> Figure:
    """The time of a training step in parts of that of torch.compile, where it runs."""
    figure = Figure(figsize=(4.4, 4), layout="constrained")
    axes = figure.subplots()
    names = [*dict.fromkeys(record["name"].split("/")[1] for record in records)]
    forms = ("float32", _BLUE, -0.2), ("bfloat16", _ORANGE, 0.2)
    for dtype, colour, offset in forms:
        ratios = {
            names.index(record["name"].split("/")[1]) + offset: ours["ratio"]["median"]
            for record in records
            if record["dtype"] == dtype and record["baseline"] == "torch.compile"
            if (ours := record["candidates"].get("dml_jax"))
        }
        bars = axes.barh([*ratios], [*ratios.values()], 0.36, color=colour, label=dtype)
        axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1, color=_GREY, linewidth=1, zorder=0)
    axes.set(xlabel="training step: time, in parts of torch.compile's")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
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
    for (panel, label), line in lines.items():
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
