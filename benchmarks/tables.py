"""The figures of results as Markdown: whole runs, and the tables of documents.

`whole` lists every record of a run. A document selects a table by a marker:

    <!-- figures: layouts gpu -->
    a table of figures from benchmarks/results
    <!-- end of figures -->

A marker has a line of its own, with the name of a table in `TABLES` and its devices or
results. The rest of the document does not change. With --check nothing is written, and
the exit status is 1 if a document would change.

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

from benchmarks import random_shapes, recurrent_networks, results
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
_SPOKEN = {
    "rows": "reversals of `[batch, time]`",
    "flat": "reversals of `[time, batch]`",
    "gradient of a reversal": "gradients of reversals",
}
_EMPTY = "\N{EN DASH}"

# Whole runs ---------------------------------------------------------------------------


def whole(found: Document) -> str:
    """A page with every record: the time of its baseline, and the others' speed."""
    options = found["options"]
    sections = [f"# {options['kind']}, {options['device']}", _machine(found)]
    if options["kind"] == "readers":
        return "\n\n".join([*sections, _readers_of(found)]) + "\n"
    sections.append("Speeds in per cent of the baseline's; larger is better.")
    for group, records in results.groups(found).items():
        baselines = {record["baseline"] for record in records}
        names = dict.fromkeys(n for record in records for n in record["candidates"])
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
    """The speed in per cent, and temporary memory in parentheses."""
    if not figures:
        return _EMPTY
    text = _short(_share(figures))
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
    measured = {name.replace("nnx.", "flax.nnx.") for name in measured}
    libraries = [
        f"{_title(library)} {versions[library]}"
        for library in results.LIBRARIES
        if versions.get(library)
        and any(name.startswith(library) for name in {"jax", *measured})
    ]
    return ", ".join([name, *libraries, found["date"][:10]]) + "."


def _recurrent(load: Load, words: Sequence[str]) -> str:
    """A row for each pair of ours and another: how many times as much that takes."""
    (device,) = words
    groups, rows = results.groups(load(f"recurrent-{device}")), []
    for ours in recurrent_networks.OURS:
        forward, step = (
            [record["candidates"] for record in groups[f"{ours}, {mode}"]]
            for mode in ("forward", "step")
        )
        for name in dict.fromkeys(name for found in step for name in found):
            cells = [_times(forward, name, ours, "ratio")]
            for figure in ("ratio", "memory_bytes", "compile_seconds"):
                cells.append(_times(step, name, ours, figure))
            if name != ours:
                rows.append([f"`{ours}`", f"`{name}`", *cells])
    titles = ["ours", "the other", "forward", "training step", "memory", "compilation"]
    return _table(titles, rows)


def _recurrent_gradients(load: Load, words: Sequence[str]) -> str:
    """A row for each network with weights in 16 bits: multiples of ours, and errors."""
    (device,) = words
    ours, rows = "bidirectional_scan", []
    (record,) = results.groups(load(f"recurrent-{device}"))[f"{ours}, gradient"]
    for name, figures in record["candidates"].items():
        cells = [
            _times([record["candidates"]], name, ours, figure)
            for figure in ("ratio", "memory_bytes")
        ]
        rows.append([f"`{name}`", *cells, f"{figures['largest_error']:.1g}"])
    return _table(["", "gradient", "memory", "largest error"], rows)


def _times(records: Sequence[Record], name: str, ours: str, figure: str) -> str:
    """Multiples of a figure of ours."""

    def value(figures: Record) -> float:
        found = figures[figure]
        return found["median"] if isinstance(found, Mapping) else found

    return _spread(
        value(record[name]) / value(record[ours])
        for record in records
        if figure in record.get(name, {}) and figure in record.get(ours, {})
    )


def _networks(load: Load, words: Sequence[str]) -> str:
    """A row for each network and dtype: times, multiples of torch.compile, errors."""
    (device,) = words
    ours, theirs, rows = "dml_jax", "torch.compile", []
    for record in results.groups(load(f"networks-{device}"))["networks"]:
        found = record["candidates"]
        cells = [
            _milliseconds(found[name]) if name in found else _EMPTY
            for name in (ours, theirs, "torch")
        ]
        for figure in ("ratio", "memory_bytes", "first_call"):
            cells.append(_times([found], ours, theirs, figure))
        for name in (ours, theirs):
            error = found.get(name, {}).get("largest_error")
            cells.append(_EMPTY if error is None else f"{error:.0e}")
        rows.append([*record["name"].split("/")[1:], *cells])
    titles = ["network", "dtype", *(f"{n}, ms" for n in (ours, theirs, "torch"))]
    titles += ["time", "memory", "first call", "error", f"error of {theirs}"]
    return _table(titles, rows)


def _data_parallel(load: Load, words: Sequence[str]) -> str:
    """A row for each network and formulation: times, and exchanges in loops."""
    (device,) = words
    rows: dict[tuple[str, str], list[str]] = {}
    for record in load(f"data-parallel-{device}")["records"]:
        for name, figures in record["candidates"].items():
            key = record["name"].split("/")[1], f"`{name}`"
            cells = rows.setdefault(key, [])
            cells.append(_milliseconds(figures))
            if record["devices"] > 1:
                cells.append(str(figures["all_reduces_in_loops"]))
    titles = ["network", "", "one device, ms", "two, ms", "all-reduces in loops"]
    return _table(titles, [[*key, *cells] for key, cells in rows.items()])


def _models(load: Load, words: Sequence[str]) -> str:
    """A row for each model: the times of a call, their ratios, and the difference."""
    (device,) = words
    rows, ratios = [], []
    documents = (load(f"{kind}-{device}") for kind in ("models", "models-synchronous"))
    for record, other in zip(*(found["records"] for found in documents), strict=True):
        theirs, ours = (record["candidates"][n] for n in ("onnxruntime", "dml_jax"))
        found = (ours, other["candidates"]["dml_jax"])
        ratios.append([figures["ratio"]["median"] for figures in found])
        rows.append(
            [
                record["name"].partition("/")[2],
                *(f"{ratio:.2f}" for ratio in ratios[-1]),
                *map(_milliseconds, (ours, theirs)),
                f"{record['first_call']:.1f}",
                f"{record['largest_difference']:.0e}",
                f"`{record['shape']}`",
            ]
        )
    medians = map(statistics.median, zip(*ratios, strict=True))
    rows.append(["median", *(f"{median:.2f}" for median in medians), *[""] * 5])
    titles = ["model", "ratio", "ratio, synchronous", "`run`, ms", "ONNX Runtime, ms"]
    return _table([*titles, "first call, s", "difference", "first input"], rows)


def _readers(load: Load, devices: Sequence[str]) -> str:
    """A row for each reader: models it reads, and ratios of training steps."""
    titles = [f"{d.upper()}, batch {batch}" for d in devices for batch in (1, 16)]
    ratios: dict[tuple[str, str], list[float]] = {}
    for device in devices:
        for record in load(f"model-training-{device}")["records"]:
            _, batch, reader = record["name"].rsplit("/", 2)
            known = ratios.setdefault((reader, f"{device.upper()}, {batch}"), [])
            known.append(record["candidates"]["dml_jax"]["ratio"]["median"])
    found = load("readers-cpu")
    rows = []
    for reader in found["records"][0]["candidates"]:
        outcomes = [record["candidates"][reader] for record in found["records"]]
        count = f"{sum(map(_is_right, outcomes))} of {len(outcomes)}"
        cells = (_spread(ratios.get((reader, title), ())) for title in titles)
        rows.append([reader, count, *cells])
    return _table(["reader", "models", *titles], rows)


def _readers_of(found: Document) -> str:
    """A row for each model: whether each reader has ONNX Runtime's results."""
    names = [*found["records"][0]["candidates"]]

    def cell(outcome: Mapping[str, Any]) -> str:
        wrong = "other results" if "difference" in outcome else "no"
        return "yes" if _is_right(outcome) else wrong

    rows = [
        [
            record["name"].partition("/")[2],
            record["version"],
            *(cell(record["candidates"][name]) for name in names),
        ]
        for record in found["records"]
    ]
    return _table(["model", "version", *names], rows)


def _is_right(outcome: Mapping[str, Any]) -> bool:
    return outcome.get("difference", 1) <= outcome.get("tolerance", 0)


# Tables by layout ---------------------------------------------------------------------


class _Pair(NamedTuple):
    """The share and the gain of dml_jax for one array."""

    share: float
    gain: float


# The arrays of a layout, alone in a program and between elementwise operations.
_Row = tuple[list[_Pair], list[_Pair]]


def _layouts(load: Load, words: Sequence[str]) -> str:
    """A row for each layout: shares and gains, alone and between."""
    (device,) = words
    rows = []
    for name, row in _rows(load, device).items():
        cells = [name, str(len(row[0]))]
        for pairs in row:
            cells += _spread(p.share for p in pairs), _spread(p.gain for p in pairs)
        rows.append(cells)
    titles = ["speed, % of memcpy", "times plain JAX"]
    titles += [f"between: {title}" for title in titles]
    return _table(["layout or operator", "arrays", *titles], rows)


def _gains(load: Load, devices: Sequence[str]) -> str:
    """A list: each median gain of 2 or more, alone, and the range of the others."""
    lines, others = [], []
    for device in devices:
        large = []
        for layout, (pairs, _) in _rows(load, device).items():
            gain = statistics.median(pair.gain for pair in pairs) if pairs else 1.0
            if gain < 2:
                others.append(gain)
            else:
                large.append(f"{_short(gain)} times for {_SPOKEN.get(layout, layout)}")
        lines.append(f"- {_device(load, device)}: {', '.join(large)}")
    least, greatest = map(_short, (min(others), max(others)))
    return "\n".join([*lines, f"- all others: {least} to {greatest} times"])


def _slower(load: Load, devices: Sequence[str]) -> str:
    """A row for each layout: for how many arrays plain JAX is faster by over 10 %."""

    def cell(pairs: Sequence[_Pair]) -> str:
        slower = [pair.gain for pair in pairs if pair.gain < 1 / 1.1]
        text = f"{len(slower)} of {len(pairs)}" if pairs else _EMPTY
        return f"{text}, {_short(1 / min(slower))}" if slower else text

    names = [_device(load, device) for device in devices]
    titles = [title for name in names for title in (name, f"{name}, between")]
    by_device = [_rows(load, device, with_small=True) for device in devices]
    rows = [
        [layout, *(cell(pairs) for rows in by_device for pairs in rows[layout])]
        for layout in by_device[0]
    ]
    return _table(["layout or operator", *titles], rows)


def _device(load: Load, device: str) -> str:
    kind = load(f"random-{device}")["machine"]["device"]
    return "CPU" if kind == "cpu" else kind.removeprefix("NVIDIA ")


def _rows(load: Load, device: str, with_small: bool = False) -> dict[str, _Row]:
    random = results.groups(load(f"random-{device}")).get("random", [])
    fixed = results.groups(load(f"workloads-{device}"))
    least = 0 if with_small else random_shapes.BYTES[device][0]
    rows = {}
    for kind in random_shapes.KINDS:
        of_kind = [
            record
            for record in random
            if record["name"].split("/")[1] == kind
            and record["bytes_read"] + record["bytes_written"] >= least
        ]
        rows[kind] = _pairs(of_kind), _pairs(of_kind, "_between")
    fixed = {group: _pairs(records) for group, records in fixed.items()}
    rows["gradient of a reversal"] = fixed.get("backward", []), []
    rows["fills"] = fixed.get("fill", []), fixed.get("pipeline", [])
    return rows


def _pairs(records: Iterable[Record], suffix: str = "") -> list[_Pair]:
    pairs = []
    for record in records:
        ours, plain = (record["candidates"][n + suffix] for n in ("dml_jax", "jnp"))
        gain = plain["seconds"]["median"] / ours["seconds"]["median"]
        pairs.append(_Pair(_share(ours), gain))
    return pairs


TABLES: dict[str, Callable[[Load, Sequence[str]], str]] = {
    "machine": _machines,
    "layouts": _layouts,
    "gains": _gains,
    "slower": _slower,
    "recurrent": _recurrent,
    "recurrent-gradients": _recurrent_gradients,
    "networks": _networks,
    "data-parallel": _data_parallel,
    "models": _models,
    "readers": _readers,
}

# Cells --------------------------------------------------------------------------------


def _share(figures: Mapping[str, Any]) -> float:
    return 100 / figures["ratio"]["median"]


def _spread(figures: Iterable[float]) -> str:
    """The median, the least and the greatest; a single figure alone."""
    known = list(figures)
    if len(known) < 2:
        return _short(known[0]) if known else _EMPTY
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
