"""Writes figures into Markdown documents, between markers.

    <!-- figures: gpu fill; dml_jax called jnp torch -->
    a table of figures from benchmarks/results/gpu.json
    <!-- end of figures -->

A marker has a line of its own. It names devices, a group, and dtypes or generations of
TPUs, and after a semicolon candidates; how many of each determines the kind of table.
The rest of the document does not change.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

from benchmarks import predictions, results, sweep
from benchmarks.results import Document
from benchmarks.tpu_compiler import GENERATIONS
from benchmarks.workloads import DTYPES, GROUPS, Device

_START, _END = "<!-- figures: ", "<!-- end of figures -->"
_MARKER = re.compile(rf"^({_START}.* -->|{_END})$", re.MULTILINE)

_TITLES = dict(jnp="plain JAX", unreversed="without the reversal")
_TITLES |= dict(numpy="NumPy", onnxruntime="ONNX Runtime")
_IN_SWEEPS = _TITLES | dict(dml_jax="in a program", dml_jax_fused="fused")
_IN_SWEEPS |= dict(jnp_fused="plain JAX, fused")
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
        case ["cpu" | "gpu" as device], ["random"], [], [], [_, *_] as candidates:
            return _by_kind_and_dtype(load(f"sweep-{device}"), candidates)
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
    groups = (*GROUPS, "random", "machine")
    kinds = [get_args(Device), groups, DTYPES, tuple(GENERATIONS)]
    words = subject.split()
    for word in words:
        if not any(word in kind for kind in kinds):
            raise ValueError(f"{word!r} is not a device, a group, a dtype or a TPU")
    named = [[word for word in words if word in kind] for kind in kinds]
    return [*named, candidates.split()]


def _load(folder: pathlib.Path, name: str) -> Document:
    """A run at full size, with the members that only these tables read."""
    path, device = folder / f"{name}.json", name.removeprefix("sweep-")
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
    libraries = [
        f"{_TITLES.get(library, library)} {versions[library]}"
        for library in ("jax", "torch", "onnxruntime", "flax")
        if versions[library]
    ]
    return ", ".join([name, *libraries, found["date"][:10]]) + "."


def _by_dtype(
    found: Document, group: str, dtypes: list[str], candidates: list[str]
) -> str:
    """A row for each layout, where a cell has a figure for each candidate."""
    records = _records(found, group, *dtypes, *candidates)
    rows = []
    for layout in dict.fromkeys(name.partition("/")[0] for name in records):
        plain = records.get(f"{layout}/float32")
        shape = f"`{plain['shape']}`" if plain else ""
        shown = [records.get(f"{layout}/{dtype}") for dtype in dtypes]
        cells = [_cell(found, record, candidates) for record in shown]
        rows.append([layout, shape, *cells])
    return _table(["layout", "float32 shape", *dtypes], rows)


def _by_workload(runs: list[Document], group: str, candidates: list[str]) -> str:
    """A row for each workload, a column for each candidate, or for each device."""
    # Beside the eager call, the title says that the other one is under `jit`.
    ours = "in a program" if "called" in candidates else "dml_jax"
    titles = [(_TITLES | dict(dml_jax=ours)).get(name, name) for name in candidates]
    if len(runs) > 1:
        names = [found["machine"]["device"] for found in runs]
        titles = ["CPU" if n == "cpu" else n.removeprefix("NVIDIA ") for n in names]
    tables = [_records(found, group, *candidates) for found in runs]
    rows = [
        [name]
        + [
            _cell(found, records.get(name), [candidate])
            for found, records in zip(runs, tables, strict=True)
            for candidate in candidates
        ]
        for name in dict.fromkeys(itertools.chain(*tables))
    ]
    first = "function" if group in ("latency", "compile") else "workload"
    return _table([first, *titles], rows)


def _by_generation(
    found: Document, group: str, generations: list[str], candidates: list[str]
) -> str:
    """A row for each workload, where a cell has a figure for each candidate."""
    records = _records(found, group, *generations, *candidates)
    shapes = {name.rpartition("/")[0]: r["shape"] for name, r in records.items()}
    rows = []
    for name, shape in shapes.items():
        shown = [records.get(f"{name}/{generation}") for generation in generations]
        rows.append([name, f"`{shape}`"])
        rows[-1] += [_cell(found, record, candidates) for record in shown]
    return _table(["workload", "shape", *generations], rows)


def _by_kind(found: Document, generations: list[str]) -> str:
    """A row for each kind of random shapes: the median and the worst ratio."""
    figures = predictions.summary(found)
    rows = [
        [kind]
        + [
            " · ".join(figures[kind, generation].texts())
            if (kind, generation) in figures
            else _EMPTY
            for generation in generations
        ]
        for kind in dict.fromkeys(kind for kind, _ in figures)
    ]
    return _table(["random shapes", *generations], rows)


def _by_kind_and_dtype(found: Document, candidates: list[str]) -> str:
    """A row for each kind and dtype of a sweep, a column for each candidate."""
    rows = []
    for (kind, dtype), large in sweep.groups(found, is_large=True).items():
        rows.append([kind, dtype, str(len(large))])
        for shares in (sweep.shares(large, name) for name in candidates):
            cell = " · ".join(f"{share:.0f}" for share in shares or ())
            rows[-1].append(cell or _EMPTY)
    titles = [_IN_SWEEPS.get(name, name) for name in candidates]
    return _table(["random shapes", "dtype", "number", *titles], rows)


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


def _cell(found: Document, record: Record | None, candidates: Sequence[str]) -> str:
    if not record:
        return _EMPTY
    return " · ".join(_figure(found, record, name) for name in candidates)


def _figure(found: Document, record: Record, candidate: str) -> str:
    """Per cent of the speed of a GPU's memory, or a multiple of the baseline's time."""
    if candidate not in record["candidates"]:
        return _EMPTY
    ratio = record["candidates"][candidate]["ratio"]["median"]
    of_memory = record["baseline"] in ("memcpy", "memset")
    if of_memory and found["options"]["device"] == "gpu":
        return f"{100 / ratio:.0f}"
    is_lower_bound = record["candidates"][candidate].get("is_lower_bound", False)
    return predictions.figure(ratio, is_lower_bound)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
