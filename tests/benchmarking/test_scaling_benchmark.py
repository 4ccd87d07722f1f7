"""The benchmark over numbers of devices, at its quick size on four CPU devices."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from benchmarks import tables
from benchmarks.command import main

pytestmark = pytest.mark.exhaustive

COUNTS = (1, 2, 4)
REPOSITORY = pathlib.Path(__file__).parents[2]


def run(command: str, folder: pathlib.Path) -> str:
    """The output of a quick run, in a process of its own."""
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks", command, "--quick", "--output", folder],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_JIT": "0",  # it compiles ahead of time
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4 "
            "--xla_backend_optimization_level=0",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("scaling")
    assert "strong/backward/4" in run("scale", folder)
    return folder / "scaling-cpu.json"


def test_only_the_loop_of_lax_scan_exchanges_gradients(tmp_path: pathlib.Path) -> None:
    run("data-parallel", tmp_path)
    found = json.loads((tmp_path / "data-parallel-cpu.json").read_text())
    assert [record["devices"] for record in found["records"]] == [1, 2]
    document = tmp_path / "page.md"
    block = "<!-- figures: data-parallel cpu -->\n<!-- end of figures -->\n"
    document.write_text(block)
    ours, scan = tables.rewritten(document, tmp_path).splitlines()[3:5]
    assert ours.startswith("| 4x20x8x16x2 | `bidirectional_scan` | ")
    assert ours.endswith(" | 0 |")
    assert scan.startswith("| 4x20x8x16x2 | `lax.scan of both` | ")
    assert not scan.endswith(" | 0 |")


def test_quick_run_has_every_mode_and_number_of_devices(path: pathlib.Path) -> None:
    found = json.loads(path.read_text())
    assert found["options"] == dict(device="cpu", quick=True, kind="scaling")
    modes = "weak", "strong"
    kinds = [f"whole-axis/{m}/{d}" for m in modes for d in ("forward", "backward")]
    kinds += [f"sharded-axis/{mode}" for mode in modes]
    names = sorted(f"{kind}/{count}" for kind in kinds for count in COUNTS)
    assert sorted(record["name"] for record in found["records"]) == names
    for record in found["records"]:
        check(record)


def check(record: dict[str, Any]) -> None:
    of_whole_axes = ["linear", "dml_jax"]
    of_sharded_ones = ["link", "xla", "dml_jax", "backward"]
    is_whole = record["group"] == "whole-axis"
    expected = of_whole_axes if is_whole else of_sharded_ones
    assert record["candidates"].keys() == {*expected}
    assert record["bytes_read"] == 4 * np.prod(record["shape"])
    assert record["shard_bytes"] == record["bytes_read"] / record["devices"]


def test_runs_can_be_compared_and_drawn(
    path: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(path), str(path)]) == 0
    assert "whole-axis/weak/forward/2" in capsys.readouterr().out
    assert main(["plot", str(path), "--output", str(tmp_path)]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["devices.png"]
