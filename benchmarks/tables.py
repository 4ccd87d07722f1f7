"""Writes figures into Markdown documents, between markers.

    <!-- figures: gpu fill; dml_jax called jnp torch -->
    a table of figures from benchmarks/results/gpu.json
    <!-- end of figures -->

A marker has a line of its own. It names devices, a group, and dtypes or generations of
TPUs, and after a semicolon candidates; how many of each determines the kind of table.
The rest of the document does not change.

Every figure is a speed in per cent of that of the baseline, so larger is better. The
table of gains has multiples of the speed of plain JAX.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import re
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

from benchmarks import predictions, results, sweep
from benchmarks.results import Document
from benchmarks.tpu_compiler import GENERATIONS
from benchmarks.workloads import DTYPES, GROUPS, RANDOM_KINDS, Device

_START, _END = "<!-- figures: ", "<!-- end of figures -->"
_MARKER = re.compile(rf"^({_START}.* -->|{_END})$", re.MULTILINE)

_TITLES = dict(jnp="plain JAX", unreversed="without the reversal")
_TITLES |= dict(numpy="NumPy", onnxruntime="ONNX Runtime")
_IN_SWEEPS = _TITLES | dict(dml_jax="in a program", dml_jax_fused="fused")
_IN_SWEEPS |= dict(jnp_fused="plain JAX, fused")
_IN_TRAINING = _TITLES | dict(unreversed="without reversals", dml_jax="dml_jax")
_EMPTY = "\N{EN DASH}"

Record = Mapping[str, Any]


def rewritten(path: pathlib.Path, folder: pathlib.Path) -> str:
    """The text of a document, with figures from the results in a folder.

    Raises:
      ValueError: a marker has no partner, or names what the results do not have.
    """
    # Prose, a marker, the figures behind it, its end, prose again, and so on.
    parts = _MARKER.split(path.read_text(encoding="utf-8"))
    markers = parts[1::2]
    if not markers:
        raise ValueError(f"{path}: no place for figures is marked")
    load = functools.cache(functools.partial(_load, folder))
    pairs = itertools.zip_longest(markers[::2], markers[1::2])
    for place, (start, end) in enumerate(pairs):
        if start == _END or end != _END:
            raise ValueError(f"{path}: without its partner: {start}")
        try:
            parts[4 * place + 2] = f"\n{_content(start, load)}\n"
        except ValueError as error:
            raise ValueError(f"{path}: {start}: {error}") from None
    return "".join(parts)


def save(text: str, path: pathlib.Path) -> None:
    """Writes a document whole or not at all, and leaves its permissions as they are."""
    path = path.resolve()  # a link stays one
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        shutil.copymode(path, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


# Markers ------------------------------------------------------------------------------


def _content(marker: str, load: Callable[[str], Document]) -> str:
    match _words(marker):
        case [device], ["machine"], [], [], []:
            return _machine(load(device))
        case ["tpu"], ["random"], [], [_, *_] as generations, ["dml_jax"]:
            return _by_kind(load("tpu"), generations)
        case ["tpu"], [group], [], [_, *_] as generations, [_, *_] as candidates:
            return _by_generation(load("tpu"), group, generations, candidates)
        case ["gpu", "cpu", "tpu"], ["gains"], [], [_, *_] as generations, ["dml_jax"]:
            return _gains(load, generations)
        case ["cpu" | "gpu" as device], ["random"], [], [], [_, *_] as candidates:
            return _by_kind_and_dtype(load(f"sweep-{device}"), candidates)
        case [device], ["training"], [], [], [_, *_] as candidates:
            return _by_network(load(f"training-{device}"), candidates)
        case [device], [group], [_, *_] as dtypes, [], [_, *_] as candidates:
            return _by_dtype(load(device), group, dtypes, candidates)
        case [device], [group], [], [], [_, *_] as candidates:
            return _by_workload([load(device)], group, candidates)
        case [_, _, *_] as devices, [group], [], [], [_] as candidates:
            return _by_workload([load(name) for name in devices], group, candidates)
    raise ValueError("no table is made of this, see python -m benchmarks tables --help")


def _words(marker: str) -> list[list[str]]:
    """The devices, groups, dtypes, generations and candidates that a marker names."""
    inside = marker.removeprefix(_START).removesuffix("-->")
    subject, _, candidates = inside.partition(";")
    groups = (*GROUPS, "random", "training", "gains", "machine")
    kinds = [get_args(Device), groups, DTYPES, tuple(GENERATIONS)]
    words = subject.split()
    for word in words:
        if not any(word in kind for kind in kinds):
            raise ValueError(f"{word!r} is not a device, a group, a dtype or a TPU")
    named = [[word for word in words if word in kind] for kind in kinds]
    return [*named, candidates.split()]


def _load(folder: pathlib.Path, name: str) -> Document:
    """A run at full size, with the members that only these tables read."""
    path, device = folder / f"{name}.json", name.rpartition("-")[2]
    found = results.load(path)
    if found["options"]["device"] != device or found["options"]["quick"]:
        raise ValueError(f"{path}: not a run at full size on a {device}")
    try:
        _machine(found)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a whole result: {error!r}") from None
    return found


# Tables -------------------------------------------------------------------------------


def _machine(found: Document) -> str:
    """A sentence: the machine, the versions and the day."""
    name, versions = found["machine"]["device"], found["versions"]
    if found["options"]["device"] == "cpu":
        name = "{cpu_count} cores of an {processor}".format(**found["machine"])
    measured = set().union(*(record["candidates"] for record in found["records"]))
    libraries = [
        f"{_TITLES.get(library, library)} {versions[library]}"
        for library in ("jax", "torch", "onnxruntime", "flax")
        if versions[library] and library in {"jax", *measured}
    ]
    return ", ".join([name, *libraries, found["date"][:10]]) + "."


def _by_dtype(
    found: Document, group: str, dtypes: list[str], candidates: list[str]
) -> str:
    """A row for each layout and dtype, a column for each candidate."""
    records = _records(found, group, *dtypes, *candidates)
    layouts = dict.fromkeys(name.partition("/")[0] for name in records)
    rows = []
    for layout, dtype in itertools.product(layouts, dtypes):
        if record := records.get(f"{layout}/{dtype}"):
            figures = [_figure(record, candidate) for candidate in candidates]
            rows.append([layout, dtype, f"`{record['shape']}`", *figures])
    return _table(["layout", "dtype", "shape", *_titles(candidates)], rows)


def _by_workload(runs: list[Document], group: str, candidates: list[str]) -> str:
    """A row for each workload, a column for each candidate, or for each device."""
    titles = _titles(candidates)
    if len(runs) > 1:
        titles = [_device(found) for found in runs]
    tables = [_records(found, group, *candidates) for found in runs]
    rows = [
        [name]
        + [
            _figure(records.get(name), candidate)
            for records in tables
            for candidate in candidates
        ]
        for name in dict.fromkeys(itertools.chain(*tables))
    ]
    first = "function" if group in ("latency", "compile") else "workload"
    return _table([first, *titles], rows)


def _by_generation(
    found: Document, group: str, generations: list[str], candidates: list[str]
) -> str:
    """A row for each workload, a column for each generation and candidate."""
    records = _records(found, group, *generations, *candidates)
    shapes = {name.rpartition("/")[0]: r["shape"] for name, r in records.items()}
    columns = list(itertools.product(generations, candidates))
    rows = [
        [name, f"`{shape}`"]
        + [_figure(records.get(f"{name}/{g}"), candidate) for g, candidate in columns]
        for name, shape in shapes.items()
    ]
    titles = [f"{g}, {_TITLES.get(candidate, candidate)}" for g, candidate in columns]
    return _table(["workload", "shape", *titles], rows)


def _by_kind(found: Document, generations: list[str]) -> str:
    """A row for each kind of random shapes: the median and the least speed."""
    figures = predictions.summary(found)
    rows = []
    for kind in dict.fromkeys(kind for kind, _ in figures):
        row = [figures.get((kind, generation)) for generation in generations]
        rows.append([kind, *(_speeds(ratios) if ratios else _EMPTY for ratios in row)])
    titles = [f"{generation}: median (least)" for generation in generations]
    return _table(["random shapes", *titles], rows)


def _speeds(ratios: predictions.Ratios) -> str:
    median, least = (
        _speed(ratio, ratios.are_lower_bounds)
        for ratio in (ratios.median, ratios.worst)
    )
    return f"{median} ({least})"


def _by_kind_and_dtype(found: Document, candidates: list[str]) -> str:
    """A row for each kind and dtype of a sweep, a column for each candidate."""
    rows = []
    for (kind, dtype), large in sweep.groups(found, is_large=True).items():
        row = [sweep.shares(large, name) for name in candidates]
        figures = [f"{s.median:.0f} ({s.least:.0f})" if s else _EMPTY for s in row]
        rows.append([kind, dtype, str(len(large)), *figures])
    titles = [_IN_SWEEPS.get(name, name) for name in candidates]
    titles = [f"{title}: median (least)" for title in titles]
    return _table(["random shapes", "dtype", "number", *titles], rows)


def _by_network(found: Document, candidates: list[str]) -> str:
    """A row for each network: the time of a step, and its share in reversals."""
    rows = []
    for name, record in _records(found, "training", *candidates).items():
        cells = []
        for candidate in candidates:
            figures = record["candidates"][candidate]
            time = f"{1e3 * figures['seconds']['median']:.1f} ms"
            share = f" ({100 * figures['reversal']:.1f} %)"
            cells.append(time if candidate == record["baseline"] else time + share)
        rows.append([name, *cells])
    titles = [_IN_TRAINING.get(name, name) for name in candidates]
    return _table(["network", *titles], rows)


# Gains --------------------------------------------------------------------------------

_KINDS = {  # of the layouts in the table of workloads
    **dict.fromkeys(("rows", "rows-of-32", "rows-of-4095"), "rows"),
    **dict.fromkeys(("features-4", "channels-3"), "features"),
    **dict.fromkeys(("features-128", "features-256", "features-512"), "features"),
    **{"time-major": "time-major", "time-major-flat": "flat", "columns": "columns"},
}
_GRADIENT = "gradient of a reversal"
_KNOWN_FILLS = "fills with known start and delta"


def _gains(load: Callable[[str], Document], generations: list[str]) -> str:
    """A row for each kind of workload: how many times as fast as plain JAX."""
    sweeps = [load(f"sweep-{device}") for device in ("gpu", "cpu")]
    columns = [_measured_gains(found) for found in sweeps]
    for device, column in zip(("gpu", "cpu"), columns, strict=True):
        backward = results.groups(load(device)).get("backward", [])
        column[_GRADIENT] = list(filter(None, map(_gain, backward)))
    columns += [_predicted_gains(load("tpu"), g) for g in generations]
    rows = [
        [kind, *(_range(column.get(kind, [])) for column in columns)]
        for kind in (*RANDOM_KINDS[:5], _GRADIENT, *RANDOM_KINDS[5:], _KNOWN_FILLS)
    ]
    titles = [_device(found) for found in sweeps]
    titles += [f"TPU {generation}, predicted" for generation in generations]
    return _table(["layout or operator", *titles], rows)


def _measured_gains(found: Document) -> dict[str, list[float]]:
    """The gains of a sweep by kind, of large arrays."""
    gains: dict[str, list[float]] = {}
    for (kind, _), large in sweep.groups(found, is_large=True).items():
        gains.setdefault(kind, []).extend(filter(None, map(_gain, large)))
        if kind == "fills":
            known = (_gain(record, "_known") for record in large)
            gains.setdefault(_KNOWN_FILLS, []).extend(filter(None, known))
    return gains


def _predicted_gains(found: Document, generation: str) -> dict[str, list[float]]:
    """The gains of the table of workloads by kind."""
    gains: dict[str, list[float]] = {}
    for record in found["records"]:
        group, layout = record["name"].split("/")[:2]
        kind = {"slice": "slices", "fill": "fills"}.get(group) or _KINDS.get(layout)
        gain = _gain(record)
        if kind and gain and record["generation"] == generation and group != "random":
            gains.setdefault(kind, []).append(gain)
    return gains


def _gain(record: Record, suffix: str = "") -> float | None:
    """How many times as fast as plain JAX, at least; None if that is not known."""
    names = f"dml_jax{suffix}", f"jnp{suffix}"
    ours, plain = (record["candidates"].get(name) for name in names)
    if not ours or not plain or ours.get("is_lower_bound", False):
        return None
    return plain["seconds"]["median"] / ours["seconds"]["median"]


def _range(gains: list[float]) -> str:
    if not gains:
        return _EMPTY
    median, least, most = map(
        _short, (statistics.median(gains), min(gains), max(gains))
    )
    return f"{median} ({least} to {most})"


# Figures ------------------------------------------------------------------------------


def _records(found: Document, group: str, *words: str) -> dict[str, Record]:
    """The records of a group by name; each word must name a column with figures."""
    records = {
        record["name"].partition("/")[2]: record
        for record in found["records"]
        if record["group"] == group
    }
    known = {name.rpartition("/")[2] for name in records}
    known.update(*(record["candidates"] for record in records.values()))
    for word in words:
        if word not in known:
            run = f"{found['options']['device']}.json"
            raise ValueError(f"{run} has no {word!r} in {group}")
    return records


def _titles(candidates: Sequence[str]) -> list[str]:
    # Beside the eager call, the title says that the other one is under `jit`.
    ours = "in a program" if "called" in candidates else "dml_jax"
    return [(_TITLES | dict(dml_jax=ours)).get(name, name) for name in candidates]


def _device(found: Document) -> str:
    name = found["machine"]["device"]
    return "CPU" if name == "cpu" else name.removeprefix("NVIDIA ")


def _figure(record: Record | None, candidate: str) -> str:
    """The speed in per cent of that of the baseline."""
    if not record or candidate not in record["candidates"]:
        return _EMPTY
    figures = record["candidates"][candidate]
    return _speed(figures["ratio"]["median"], figures.get("is_lower_bound", False))


def _speed(ratio: float, is_lower_bound: bool) -> str:
    """The speed of what takes `ratio` times as long as the baseline, or longer."""
    sign = "\N{LESS-THAN OR EQUAL TO} " if is_lower_bound else ""
    return sign + _short(100 / ratio)


def _short(figure: float) -> str:
    """Two digits or more."""
    return f"{figure:.0f}" if figure >= 9.95 else f"{figure:#.2g}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
