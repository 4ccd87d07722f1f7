"""The info command: what it prints."""

import importlib.metadata
import re
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import pytest
from command_line import succeed

import dml_jax
from dml_jax import reference
from dml_jax.cli import devices
from dml_jax.directml import FeatureLevel, OperatorType, supported

OPERATORS = [name for name in dml_jax.__all__ if name in reference.__all__]
CPU = jax.devices("cpu")[0]


def section(title: str) -> list[list[str]]:
    """The words of the lines below a title."""
    lines = succeed("info").partition(f"{title}\n")[2].partition("\n\n")[0].splitlines()
    return [re.split(" {2,}", line.strip()) for line in lines]


def test_versions():
    versions = dict(section("Versions"))
    assert versions["dml_jax"] == dml_jax.__version__
    assert versions["jax"] == importlib.metadata.version("jax")


def test_every_device_is_shown_once():
    found = [words[:2] for words in section("Devices")]
    assert [f"cpu:{CPU.id}", CPU.device_kind] in found
    assert len({name for name, _ in found}) == len(found)


def test_memory_of_devices(monkeypatch: pytest.MonkeyPatch):
    def device(number: int, statistics: Callable[[], Any]) -> Any:
        return types.SimpleNamespace(
            platform="gpu", id=number, device_kind="Some GPU", memory_stats=statistics
        )

    memory = {"bytes_limit": 3 * 2**30, "bytes_in_use": 2**29}
    silent = mock.Mock(side_effect=NotImplementedError)
    given = [device(0, lambda: memory), device(1, lambda: None), device(2, silent)]
    monkeypatch.setattr(devices, "every", lambda: given)
    assert section("Devices") == [
        ["gpu:0", "Some GPU", "3.0 GiB for JAX, 0.5 GiB in use"],
        ["gpu:1", "Some GPU"],
        ["gpu:2", "Some GPU"],
    ]


def test_operators():
    operators = {words[0]: words[1:] for words in section("Operators")}
    assert [*operators] == ["function", *OPERATORS]
    assert operators["slice"] == ["SLICE", "1_0", "-"]
    assert operators["slice1"] == ["SLICE1", "2_1", "Slice from opset 1"]
    assert operators["reverse_sequence"] == ["-", "-", "ReverseSequence from opset 10"]


def test_without_onnx(monkeypatch: pytest.MonkeyPatch):
    installed = importlib.metadata.version

    def version(package: str) -> str:
        if package.startswith("onnx"):
            raise importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "dml_jax.onnx_backend._operators", None)
    versions = dict(section("Versions"))
    how = "pip install '.[onnx]' in a checkout of dml_jax"
    assert versions["onnx"] == f"not installed: {how}"
    operators = {words[0]: words[1:] for words in section("Operators")}
    assert operators["slice1"] == ["SLICE1", "2_1", "Slice"]


def test_feature_levels():
    """Every level, and every operator in the level that brought it."""
    levels = section("Feature levels of DirectML")
    named = [words[0] for words in levels if re.match(r"\d", words[0])]
    assert named == [level.label for level in FeatureLevel]
    found = [
        word for words in levels for word in words if word in OperatorType.__members__
    ]
    brought = [
        operator.name
        for operator in OperatorType
        for level in FeatureLevel
        if (support := supported(operator, level)) and support.since is level
    ]
    assert sorted(found) == sorted(brought)
    reversal = ["REVERSE_SUBSEQUENCES", "1-8", "FLOAT16/32/64 INT8/16/32/64 "
                "UINT8/16/32/64", "UINT32/64"]  # fmt: skip
    assert ["5_0", *reversal] in levels
