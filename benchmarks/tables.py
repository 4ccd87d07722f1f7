"""The figures of results as Markdown: whole runs, and the tables of documents.

`whole` lists every record of a run. A document selects a table by a marker:

    <!-- figures: layouts gpu -->
    a table of figures from benchmarks/results
    <!-- end of figures -->

A marker has a line of its own, with the name of a table in `TABLES` and its devices or
generations of TPUs. The rest of the document does not change.

Shares are speeds in per cent of that of the baseline, so larger is better. Gains are
multiples of the speed of plain JAX.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import random_shapes, results
from benchmarks.results import Document

Load = Callable[[str], Document]
Record = Mapping[str, Any]

_START, _END = "<!-- figures: ", "<!-- end of figures -->"
_MARKER = re.compile(rf"^({_START}.* -->|{_END})$", re.MULTILINE)
_TITLES = dict(
    jnp="plain JAX",
    dml_jax_between="dml_jax, between",
    jnp_between="plain JAX, between",
    onnxruntime="ONNX Runtime",
    unreversed="without reversals",
)
_EMPTY = "\N{EN DASH}"

# Whole runs ---------------------------------------------------------------------------


def whole(found: Document) -> str:
    """A page with every record: the time of its baseline, and the others' speed."""
    options = found["options"]
    sections = [f"# {options['kind']}, {options['device']}", _machine(found)]
    sections.append("Speeds in per cent of the baseline's; larger is better.")
    for group, records in results.groups(found).items():
        names = dict.fromkeys(n for record in records for n in record["candidates"])
        baselines = {record["baseline"] for record in records}
        names = [name for name in names if name not in baselines]
        rows = [
            [
                record["name"].partition("/")[2],
                f"`{record['shape']}`",
                _milliseconds(record["candidates"][record["baseline"]]),
                *(_speed(record["candidates"].get(name)) for name in names),
            ]
            for record in records
        ]
        first = [group, "shape", f"{' or '.join(sorted(baselines))}, ms"]
        sections.append(_table([*first, *map(_title, names)], rows))
    return "\n\n".join(sections) + "\n"


def _speed(figures: Any) -> str:
    """The speed in per cent, and what else is known in parentheses."""
    if not figures:
        return _EMPTY
    is_lower_bound = figures.get("is_lower_bound", False)
    sign = "\N{LESS-THAN OR EQUAL TO} " if is_lower_bound else ""
    text = sign + _short(100 / figures["ratio"]["median"])
    if "reversal" in figures:
        text += f" ({100 * figures['reversal']:.1f} % in reversals)"
    if "temporary_shards" in figures:
        text += f" (memory {figures['temporary_shards']:.1f})"
    return text


# Documents ----------------------------------------------------------------------------


def rewritten(path: pathlib.Path, folder: pathlib.Path) -> str:
    """The text of a document, with figures from the results in a folder.

    Raises:
      ValueError: a marker has no partner, or names what there is not.
    """
    # Prose, a marker, the figures behind it, its end, prose again, and so on.
    parts = _MARKER.split(path.read_text(encoding="utf-8"))
    markers = parts[1::2]
    load = functools.cache(lambda name: results.load(folder / f"{name}.json"))
    pairs = itertools.zip_longest(markers[::2], markers[1::2])
    for place, (start, end) in enumerate(pairs):
        if start == _END or end != _END:
            raise ValueError(f"{path}: without its partner: {start}")
        table, *words = start.removeprefix(_START).removesuffix(" -->").split()
        if table not in TABLES:
            raise ValueError(f"{path}: {start}: a table is one of {', '.join(TABLES)}")
        parts[4 * place + 2] = f"\n{TABLES[table](load, words)}\n"
    return "".join(parts)


def _machines(load: Load, words: Sequence[str]) -> str:
    return "\n".join(_machine(load(name)) for name in words)


def _machine(found: Document) -> str:
    """A sentence: the machine, the versions and the day."""
    name, versions = found["machine"]["device"], found["versions"]
    if found["options"]["device"] == "cpu":
        name = "{cpu_count} cores of an {processor}".format(**found["machine"])
    measured = set().union(*(record["candidates"] for record in found["records"]))
    libraries = [
        f"{_title(library)} {versions[library]}"
        for library in results.LIBRARIES
        if versions.get(library) and library in {"jax", *measured}
    ]
    return ", ".join([name, *libraries, found["date"][:10]]) + "."


def _layouts(load: Load, words: Sequence[str]) -> str:
    """A row for each layout: shares and gains, alone and between."""
    (device,) = words
    rows = [
        [name, str(len(row.alone) or len(row.between))]
        + [
            _spread(map(figure, samples))
            for samples in (row.alone, row.between)
            for figure in (_share, _gain)
        ]
        for name, row in _rows(load, device).items()
    ]
    titles = ["speed, % of memcpy", "times plain JAX"]
    titles += [f"between: {title}" for title in titles]
    return _table(["layout or operator", "arrays", *titles], rows)


def _gains(load: Load, devices: Sequence[str]) -> str:
    """A row for each layout: gains, two columns for each device."""
    by_device = [_rows(load, device) for device in devices]
    rows = [
        [name] + [_spread(map(_gain, s)) for rows in by_device for s in rows[name]]
        for name in by_device[0]
    ]
    return _table(["layout or operator", *_for_each(load, devices)], rows)


def _slower(load: Load, devices: Sequence[str]) -> str:
    """A row for each layout: for how many arrays plain JAX is faster by over 10 %."""
    by_device = [_rows(load, device, with_small=True) for device in devices]
    rows = []
    for name in by_device[0]:
        cells = []
        for samples in (s for rows in by_device for s in rows[name]):
            gains = [gain for sample in samples if (gain := _gain(sample))]
            slower = [gain for gain in gains if gain < 1 / 1.1]
            text = f"{len(slower)} of {len(gains)}" if gains else _EMPTY
            cells.append(f"{text}, {_short(1 / min(slower))}" if slower else text)
        rows.append([name, *cells])
    return _table(["layout or operator", *_for_each(load, devices)], rows)


def _training(load: Load, words: Sequence[str]) -> str:
    """A row for each network: the time of a step, and its share in reversals."""
    (device,) = words
    records = load(f"training-{device}")["records"]
    names = list(dict.fromkeys(name for r in records for name in r["candidates"]))
    rows = []
    for record in records:
        cells = []
        for name in names:
            figures = record["candidates"][name]
            share = f" ({100 * figures['reversal']:.1f} %)"
            text = f"{_milliseconds(figures)} ms"
            cells.append(text if name == record["baseline"] else text + share)
        rows.append([record["name"].partition("/")[2], *cells])
    return _table(["network", *map(_title, names)], rows)


def _models(load: Load, words: Sequence[str]) -> str:
    """A row for each model: the times of a call, their ratio, and the difference."""
    (device,) = words
    records = load(f"models-{device}")["records"]
    rows, ratios = [], []
    for record in records:
        theirs, ours = (record["candidates"][n] for n in ("onnxruntime", "dml_jax"))
        ratios.append(ours["ratio"]["median"])
        rows.append(
            [
                record["name"].partition("/")[2],
                f"{ratios[-1]:.2f}",
                *(_milliseconds(figures) for figures in (ours, theirs)),
                f"{record['first_call']:.1f}",
                f"{record['largest_difference']:.0e}",
                f"`{record['shape']}`",
            ]
        )
    rows.append(["median", f"{statistics.median(ratios):.2f}", *[""] * 5])
    titles = ["model", "ratio", "`run`, ms", "ONNX Runtime, ms", "first call, s"]
    return _table([*titles, "difference", "first input"], rows)


def _predictions(load: Load, generations: Sequence[str]) -> str:
    """A row for each layout in float32: the speed in per cent of the limit."""
    rows: dict[str, dict[str, Record]] = {}
    for record in load("predictions-tpu")["records"]:
        if (record["group"], record["dtype"]) == ("reverse", "float32"):
            layout = record["name"].split("/")[1]
            rows.setdefault(layout, {})[record["generation"]] = record["candidates"]
    columns = list(itertools.product(generations, ("dml_jax", "jnp")))
    cells = [
        [layout, *(_speed(row.get(g, {}).get(name)) for g, name in columns)]
        for layout, row in rows.items()
    ]
    return _table(["layout", *(f"{g}, {_title(name)}" for g, name in columns)], cells)


TABLES: dict[str, Callable[[Load, Sequence[str]], str]] = {
    "machine": _machines,
    "layouts": _layouts,
    "gains": _gains,
    "slower": _slower,
    "training": _training,
    "models": _models,
    "predictions": _predictions,
}

# Rows of layouts ----------------------------------------------------------------------


class _Sample(NamedTuple):
    """The figures of one array, alone or with a suffix."""

    record: Record
    suffix: str = ""


class _Row(NamedTuple):
    """The arrays of a layout, alone in a program and between elementwise operations."""

    alone: list[_Sample]
    between: list[_Sample]


def _rows(load: Load, device: str, *, with_small: bool = False) -> dict[str, _Row]:
    random = results.groups(load(f"random-{device}")).get("random", [])
    fixed = results.groups(load(f"workloads-{device}"))
    least = 0 if with_small else random_shapes.min_large_bytes(device)
    rows = {}
    for kind in random_shapes.KINDS:
        named = [
            record
            for record in random
            if record["name"].split("/")[1] == kind
            and record["bytes_read"] + record["bytes_written"] >= least
        ]
        between = [_Sample(record, "_between") for record in named]
        rows[kind] = _Row(list(map(_Sample, named)), between)
    backward, fills, pipelines = (
        [_Sample(record) for record in fixed.get(group, [])]
        for group in ("backward", "fill", "pipeline")
    )
    rows["gradient of a reversal"] = _Row(backward, [])
    rows["fills"] = _Row(
        fills, [p for p in pipelines if p.record["operator"].startswith("fill")]
    )
    return rows


def _figures(sample: _Sample, name: str) -> Any:
    return sample.record["candidates"].get(f"{name}{sample.suffix}")


def _share(sample: _Sample) -> float | None:
    ours = _figures(sample, "dml_jax")
    if not ours or ours.get("is_lower_bound"):
        return None
    return 100 / ours["ratio"]["median"]


def _gain(sample: _Sample) -> float | None:
    """How many times as fast as plain JAX, at least."""
    ours, plain = _figures(sample, "dml_jax"), _figures(sample, "jnp")
    if not ours or not plain or ours.get("is_lower_bound"):
        return None
    return plain["seconds"]["median"] / ours["seconds"]["median"]


# Cells --------------------------------------------------------------------------------


def _for_each(load: Load, devices: Sequence[str]) -> list[str]:
    kinds = [load(f"random-{device}")["machine"]["device"] for device in devices]
    names = ["CPU" if k == "cpu" else k.removeprefix("NVIDIA ") for k in kinds]
    return [title for name in names for title in (name, f"{name}, between")]


def _spread(figures: Iterable[float | None]) -> str:
    """The median, the least and the greatest."""
    known = [figure for figure in figures if figure is not None]
    if not known:
        return _EMPTY
    ends = statistics.median(known), min(known), max(known)
    return "{} ({} to {})".format(*map(_short, ends))


def _short(figure: float) -> str:
    """Two digits or more."""
    return f"{figure:.0f}" if figure >= 9.95 else f"{figure:#.2g}"


def _milliseconds(figures: Mapping[str, Any]) -> str:
    return f"{1e3 * figures['seconds']['median']:.3g}"


def _title(name: str) -> str:
    return _TITLES.get(name, name)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
