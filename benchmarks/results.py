"""The file of a run: its records, the versions, the machine and the options."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax

import dml_jax

SCHEMA = 2
LIBRARIES = (
    *("jax", "jaxlib", "numpy", "torch", "onnxruntime", "flax"),
    *("onnx2torch", "onnx2pytorch", "jaxonnxruntime", "torchvision", "transformers"),
)

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
            device=jax.devices(options["device"])[0].device_kind,
            platform=f"{platform.system()} {platform.machine()}",
            processor=_processor(),
            cpu_count=cores(),
        ),
        options=dict(options),
        records=list(records),
    )


@functools.cache
def _versions() -> dict[str, str | None]:
    ours = dict(python=platform.python_version(), dml_jax=dml_jax.__version__)
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    return ours | {name: installed.get(name) for name in LIBRARIES}


def _processor() -> str:
    path = pathlib.Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    model = re.search(r"^model name\s*: (.*)", text, re.MULTILINE)
    return model[1] if model else platform.processor()


def cores() -> int | None:
    """The cores that this process may use, as `taskset` restricts them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def save(found: Document, path: pathlib.Path) -> None:
    """Writes a line of what all records share, and then a line for each record."""
    head = json.dumps(dict(found, records=[])).removesuffix("]}")
    lines = ",\n".join(map(json.dumps, found["records"]))
    text = f"{head}\n{lines}\n]}}\n"  # whole before the file is opened
    path.write_text(text, encoding="utf-8")


def load(path: pathlib.Path) -> Document:
    """Reads a file that `save` has written, and refuses any other."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"{path}: not a result of schema {SCHEMA}")
    return found


def groups(found: Document) -> dict[str, list[Mapping[str, Any]]]:
    """The records by group, without those that failed."""
    ordered: dict[str, list[Mapping[str, Any]]] = {}
    for record in found["records"]:
        if record["candidates"]:
            ordered.setdefault(record["group"], []).append(record)
    return ordered
