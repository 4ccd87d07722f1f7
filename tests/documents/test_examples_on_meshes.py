"""The example of long sequences computes the same on one device and on meshes of eight.

Each run is a process of its own, which takes the CPU for eight devices.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "docs/examples/long_sequence.py"
FLAG = "--xla_force_host_platform_device_count=8"
MESHES = ["data=1", "time=8", "data=2,time=4"]

LOSS = re.compile(r"^step \d+: loss (\d+\.\d{5})$", re.M)
MEMORY = re.compile(r"temporary memory +([\d,]+) bytes")


def run(folder, *options, devices=FLAG):
    # What runs once need not be optimized.
    flags = os.environ.get("XLA_FLAGS", ""), devices
    return subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE, *options],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_JIT": "0",  # it compiles ahead of time
            "XLA_FLAGS": " ".join([*flags, "--xla_backend_optimization_level=0"]),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_on_meshes(folder, *options):
    """The outputs and the losses, [mesh, loss]; two run at a time."""

    def run_on(mesh):
        return run(folder, *options, f"--mesh={mesh}")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        children = list(pool.map(run_on, MESHES))
    for child in children:
        assert child.returncode == 0, child.stderr
    outputs = [child.stdout for child in children]
    return outputs, np.array([LOSS.findall(output) for output in outputs], float)


def test_long_sequences(tmp_path):
    # Neither the batch nor the time is a multiple of what the meshes have.
    options = "--batch=3", "--time=1000", "--features=3", "--steps=3"
    outputs, losses = run_on_meshes(tmp_path, *options)
    assert losses.shape == (len(MESHES), 3)
    assert losses[0, -1] < losses[0, 0]
    np.testing.assert_allclose(losses, losses[[0] * len(MESHES)], rtol=1e-3)
    memory = [int(MEMORY.search(out)[1].replace(",", "")) for out in outputs]
    assert max(memory[1:]) < memory[0] / 2


ERRORS = {
    "data=2": r".* needs 2 devices and JAX has 1: .* XLA_FLAGS=\S+device_count=2",
    "batch=8": r"expected data=2, time=4 or .* got 'batch=8'",
    "data=0": r"expected .* got 'data=0'",
    "data=2,data=4": r"expected .* got 'data=2,data=4'",
}


@pytest.mark.parametrize("mesh", ERRORS)
def test_a_wrong_mesh_is_one_line(tmp_path, monkeypatch, mesh):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    child = run(tmp_path, f"--mesh={mesh}", devices="")
    assert child.returncode == 2
    line = rf"long_sequence.py: error: argument --mesh: {ERRORS[mesh]}\n"
    assert re.fullmatch(line, child.stderr), child.stderr
    assert child.stdout == ""
