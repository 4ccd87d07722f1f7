"""What the command line's `info` prints: what is installed, and what it can do.

Everything here is read where it is kept: versions from the packages, devices from JAX,
feature levels from `directml`, and the versions of ONNX's operators from the module
that evaluates them, which needs onnx.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import dml_jax
from dml_jax.cli import devices
from dml_jax.directml._levels import TABLE, rows_of
from dml_jax.directml._types import DataType, FeatureLevel, OperatorType

_Rows: TypeAlias = Sequence[Sequence[str]]

OPERATORS = tuple(name for name in dml_jax.__all__ if name != "checked")

_ONNX = {
    "reverse_sequence": "ReverseSequence",
    "slice1": "Slice",
    "fill_value_sequence": "Range",
    "fill_value_constant": "ConstantOfShape",
}


def lines() -> Iterator[str]:
    """The lines of the report, a section after the other."""
    sections = {
        "Versions": _versions(),
        "Devices": _of_devices(),
        "Operators": _operators(),
        "Feature levels of DirectML": _levels(),
    }
    for number, (title, rows) in enumerate(sections.items()):
        yield from ["", title] if number else [title]
        yield from _aligned(rows)


# Sections -----------------------------------------------------------------------------


def _versions() -> _Rows:
    rows = [("dml_jax", dml_jax.__version__)]
    for package in ("jax", "jaxlib", "numpy"):
        rows.append((package, importlib.metadata.version(package)))
    rows.append(("Python", platform.python_version()))
    for package, extra in (("onnx", "onnx"), ("onnxruntime", "test")):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = f"not installed (comes with dml_jax[{extra}])"
        rows.append((package, version))
    return rows


def _of_devices() -> _Rows:
    return [
        (devices.name_of(device), device.device_kind, _memory(device))
        for device in devices.every()
    ]


def _memory(device) -> str:
    """How much memory a device has, if it tells."""
    try:
        statistics = device.memory_stats() or {}
    except (NotImplementedError, RuntimeError):  # some platforms keep none
        statistics = {}
    limit, used = statistics.get("bytes_limit"), statistics.get("bytes_in_use", 0)
    if not limit:
        return ""
    return f"{limit / 2**30:.1f} GiB for JAX, {used / 2**30:.1f} GiB in use"


def _operators() -> _Rows:
    """A row for each function; versions of ONNX's operators only where onnx is."""
    rows = [("function", "DirectML", "from level", "ONNX")]
    versions = _onnx_versions()
    for name in OPERATORS:
        directml = level = "-"
        if name.upper() in OperatorType.__members__:
            operator = OperatorType[name.upper()]
            directml, level = operator.name, rows_of(operator)[0].since.label
        onnx = _ONNX.get(name, "-")
        rows.append((name, directml, level, f"{onnx} {versions.get(onnx, '')}"))
    return rows


def _onnx_versions() -> dict[str, str]:
    """The versions of each operator of ONNX that runs here."""
    try:
        from dml_jax.onnx_backend._operators import OPERATORS as evaluated
    except ImportError:
        return {}
    return {
        name: ", ".join(map(str, sorted(operator.versions)))
        for name, operator in evaluated.items()
    }


def _levels() -> _Rows:
    """What each level brings, by operator: a row holds until that operator's next."""
    rows = [("level", "operator", "rank", "data types", "lengths")]
    for level in FeatureLevel:
        new = [row for row in TABLE if row.since is level]
        for place, row in enumerate(new):
            label = "" if place else level.label
            counts = row.dimension_counts
            rank = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
            types = _types(row.data_types), _types(row.lengths_data_types)
            rows.append((label, row.operator_type.name, rank, *types))
        if not new:
            rows.append((level.label, "-", "", "", ""))
    return rows


def _types(data_types: Iterable[DataType]) -> str:
    """Data types in short: INT8/16 for INT16 and INT8."""
    widths: dict[str, list[int]] = {}
    for data_type in sorted(data_types, key=lambda data_type: data_type.bits):
        kind = data_type.name.rstrip("0123456789")
        widths.setdefault(kind, []).append(data_type.bits)
    return " ".join(
        f"{kind}{'/'.join(map(str, widths[kind]))}" for kind in sorted(widths)
    )


def _aligned(rows: _Rows) -> Iterator[str]:
    """Rows of words as lines, each column as wide as its longest word."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        words = (word.ljust(width) for word, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(words)}".rstrip()
