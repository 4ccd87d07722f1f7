"""The file of a run: its records, the versions and the machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import jax

import dml_jax
from benchmarks.peers import PEERS

SCHEMA = 1

Document = Mapping[str, Any]


def document(
    options: Mapping[str, Any], records: Iterable[Mapping[str, Any]]
) -> Document:
    """The records of a run, with its versions, machine and options."""
    return dict(
        schema=SCHEMA,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=_versions(),
        machine=dict(
            device=_device_kind(options["device"]),
            platform=f"{platform.system()} {platform.machine()}",
            processor=_processor(),
            cpu_count=os.cpu_count(),
        ),
        options=dict(options),
        records=list(records),
    )


def _device_kind(device: str) -> str:
    if device == "tpu":  # programs are compiled for it, but do not run
        return f"libtpu {importlib.metadata.version('libtpu')}"
    return jax.devices(device)[0].device_kind


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = dict(
        python=platform.python_version(),
        dml_jax=dml_jax.__version__,
        jax=jax.__version__,
        jaxlib=importlib.metadata.version("jaxlib"),
    )
    for name in PEERS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return models[0].strip() if models else platform.processor()


def save(found: Document, path: pathlib.Path) -> None:
    """Writes the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            json.dump(found, file, indent=1)
            file.write("\n")
            file.flush()
            os.chmod(file.name, 0o644)  # temporary files are private
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def load(path: pathlib.Path) -> Document:
    """Reads a file that `save` has written, and refuses any other."""
    try:
        found = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"{path}: not a result of schema {SCHEMA}")
    try:
        _check(found)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a whole result: {error!r}") from None
    return found


def _check(found: Document) -> None:
    """Checks every member that is read later."""
    _ = found["options"]["device"], found["options"]["quick"]
    for record in found["records"]:
        for member in ("name", "group", "baseline", "dtype"):
            _require(record[member], str)
        _require(record["shape"], list)
        _require(record["bytes_read"], int)
        _require(record["bytes_written"], int)
        candidates = record["candidates"]
        _ = candidates["dml_jax"], candidates[record["baseline"]]
        for candidate in candidates.values():
            for summary in (candidate["seconds"], candidate["ratio"]):
                for member in ("median", "q1", "q3"):
                    _require(summary[member], float | int)
                    if not summary[member] > 0:
                        raise TypeError(f"{record['name']} takes no time")


def _require(value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of {kind}")


# As text ------------------------------------------------------------------------------


def groups(found: Document) -> dict[str, list[Mapping[str, Any]]]:
    """The records by group."""
    ordered: dict[str, list[Mapping[str, Any]]] = {}
    for record in found["records"]:
        ordered.setdefault(record["group"], []).append(record)
    return ordered


def others(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """The candidates of some records without the baselines, dml_jax first."""
    names = dict.fromkeys(
        name
        for record in records
        for name in record["candidates"]
        if name != record["baseline"]
    )
    return sorted(names, key=lambda name: name != "dml_jax")


def table(found: Document) -> str:
    """For each workload the time of its baseline, and the others as multiples of it."""
    lines = []
    for group, records in groups(found).items():
        names = others(records)
        title = f"{group}, multiples of the baseline"
        lines += ["", f"{title:40}{'baseline':>24}"]
        lines[-1] += "".join(f"{name:>16}" for name in names)
        for record in records:
            base = record["candidates"][record["baseline"]]["seconds"]["median"]
            cells = [f"{record['name']:40}", f"{record['baseline']:>12}", _time(base)]
            for name in names:
                figures = record["candidates"].get(name)
                cells.append(
                    f"{figures['ratio']['median']:16.2f}" if figures else 16 * " "
                )
            lines.append("".join(cells).rstrip())
    return "\n".join(lines[1:])


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:9.3g} ms"
