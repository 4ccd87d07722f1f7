"""The example of long sequences computes the same on one device and on meshes.

Each run is a process of its own, with eight CPU devices.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.exhaustive

EXAMPLE = pathlib.Path(__file__).parents[2] / "docs/examples/long_sequence.py"
EIGHT = "--xla_force_host_platform_device_count=8"
MESHES = ["data=1", "time=8", "data=2,time=4"]


def run(
    folder: pathlib.Path, *options: str, devices: str = EIGHT
) -> subprocess.CompletedProcess[str]:
    # A program that runs once need not be optimized.
    flags = devices, "--xla_backend_optimization_level=0"
    return subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE, *options],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_JIT": "0",  # it compiles ahead of time
            "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *flags]),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_long_sequences(tmp_path: pathlib.Path) -> None:
    # Neither the batch nor the time is a multiple of the sizes of the meshes.
    options = "--batch=3", "--time=1000", "--features=3", "--steps=3"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda mesh: run(tmp_path, *options, f"--mesh={mesh}"), MESHES)
        children = list(runs)
    for child in children:
        assert child.returncode == 0, child.stderr
    outputs = "\n".join(child.stdout for child in children)
    found = re.findall(r"^step \d+: loss (\d+\.\d{5})$", outputs, re.M)
    losses = np.array(found, float).reshape(len(MESHES), 3)
    assert losses[0, -1] < losses[0, 0]
    np.testing.assert_allclose(losses, losses[[0] * len(MESHES)], rtol=1e-3)
    found = re.findall(r"temporary memory +([\d,]+) bytes", outputs)
    memory = [int(number.replace(",", "")) for number in found]
    assert max(memory[1:]) < memory[0] / 2


ERRORS = {
    "data=2": r".* needs 2 devices and JAX has 1: .* XLA_FLAGS=\S+device_count=2",
    "batch=8": r"expected data=2, time=4 or .* got 'batch=8'",
    "data=0": r"expected .* got 'data=0'",
    "data=2,data=4": r"expected .* got 'data=2,data=4'",
}


@pytest.mark.parametrize("mesh", ERRORS)
def test_a_wrong_mesh_is_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, mesh: str
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    child = run(tmp_path, f"--mesh={mesh}", devices="")
    assert child.returncode == 2
    line = rf"long_sequence.py: error: argument --mesh: {ERRORS[mesh]}\n"
    assert re.fullmatch(line, child.stderr), child.stderr
    assert child.stdout == ""
