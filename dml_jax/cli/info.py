"""The `info` command: versions, devices, operators and feature levels."""

import argparse
import importlib.metadata
import platform
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import dml_jax
from dml_jax import reference
from dml_jax.cli import devices, printing
from dml_jax.directml import DataType, FeatureLevel, OperatorType
from dml_jax.directml._operators import OPERATORS as DIRECTML

SUMMARY = "show versions, devices, operators and feature levels"
DESCRIPTION = """\
Prints the versions of the installed packages, the devices of JAX, the operators with
their names in DirectML and ONNX, and the additions of each feature level of DirectML.

The versions of the ONNX operators are shown if onnx is installed.
"""

OPERATORS = tuple(name for name in dml_jax.__all__ if name in reference.__all__)

_ONNX = {
    "reverse_sequence": "ReverseSequence",
    "slice1": "Slice",
    "fill_value_sequence": "Range",
    "fill_value_constant": "ConstantOfShape",
}
_Rows: TypeAlias = list[tuple[str, ...]]


def add_options(_: argparse.ArgumentParser) -> None:
    """The command has no options."""


def run(_: argparse.Namespace) -> None:
    """Prints one table below each title."""
    sections = {
        "Versions": _versions(),
        "Devices": _devices(),
        "Operators": _operators(),
        "Feature levels of DirectML": _levels(),
    }
    parts = ("\n".join([title, *_aligned(rows)]) for title, rows in sections.items())
    printing.print_lines("\n\n".join(parts))


def _versions() -> _Rows:
    rows = [("dml_jax", dml_jax.__version__)]
    for package in ("jax", "jaxlib", "numpy"):
        rows.append((package, importlib.metadata.version(package)))
    rows.append(("Python", platform.python_version()))
    for package, extra in (("onnx", "onnx"), ("onnxruntime", "test")):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            how = f"pip install '.[{extra}]' in a checkout of dml_jax"
            version = f"not installed: {how}"
        rows.append((package, version))
    return rows


def _devices() -> _Rows:
    return [
        (devices.name_of(device), device.device_kind, _memory(device))
        for device in devices.every()
    ]


def _memory(device: Any) -> str:
    try:
        statistics = device.memory_stats() or {}
    except (NotImplementedError, RuntimeError):  # some platforms have none
        statistics = {}
    limit, used = statistics.get("bytes_limit"), statistics.get("bytes_in_use", 0)
    if not limit:
        return ""
    return f"{limit / 2**30:.1f} GiB for JAX, {used / 2**30:.1f} GiB in use"


def _operators() -> _Rows:
    """One row for each function; without onnx, ONNX operators have no opset."""
    try:
        from dml_jax.onnx_backend._operators import OPERATORS as onnx_operators
    except ImportError:
        onnx_operators = {}
    rows = [("function", "DirectML", "from level", "ONNX")]
    for name in OPERATORS:
        directml = level = "-"
        if name.upper() in OperatorType.__members__:
            operator = OperatorType[name.upper()]
            directml, level = operator.name, DIRECTML[operator].levels[0].since.label
        onnx = _ONNX.get(name, "-")
        if onnx in onnx_operators:
            onnx += f" from opset {onnx_operators[onnx].since}"
        rows.append((name, directml, level, onnx))
    return rows


def _levels() -> _Rows:
    """What each level adds: a row is valid until the next one of its operator."""
    rows = [("level", "operator", "rank", "data types", "lengths")]
    changes = [row for operator in DIRECTML.values() for row in operator.levels]
    for level in FeatureLevel:
        label = level.label
        for row in changes:
            if row.since is level:
                counts = row.dimension_counts
                rank = "-".join(map(str, sorted({counts[0], counts[-1]})))
                types = _types(row.data_types), _types(row.lengths_data_types)
                rows.append((label, row.operator_type.name, rank, *types))
                label = ""
        if label:
            rows.append((label, "-", "", "", ""))
    return rows


def _types(data_types: Iterable[DataType]) -> str:
    """A short list of data types: INT8/16 for INT8 and INT16."""
    widths: dict[str, list[str]] = {}
    for data_type in sorted(data_types, key=lambda data_type: data_type.bits):
        kind = data_type.name.rstrip("0123456789")
        widths.setdefault(kind, []).append(str(data_type.bits))
    return " ".join(f"{kind}{'/'.join(widths[kind])}" for kind in sorted(widths))


def _aligned(rows: _Rows) -> Iterator[str]:
    """The rows of a table as lines, in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        words = (word.ljust(width) for word, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(words)}".rstrip()
