"""The example that fine-tunes an ONNX model, in a process of its own."""

import os
import pathlib
import re
import subprocess
import sys

import onnx
import pytest

from dml_jax import onnx_backend

EXAMPLES = pathlib.Path(__file__).parents[2] / "docs/examples"

pytestmark = pytest.mark.exhaustive


def test_fine_tuning(tmp_path: pathlib.Path) -> None:
    child = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "fine_tuning.py"],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_JIT": "0",  # with which the example is slow
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr
    assert child.stderr == "Training 4 networks, 40 epochs\n"
    rows = re.findall(r"(\d+\.\d\d) +(\d+\.\d\d) +(\d\.\de-\d\d)$", child.stdout, re.M)
    assert len(rows) == 5
    before, *after = [float(ours) for ours, _, _ in rows]
    assert before == 69.19  # what torch has learned is in the file
    assert min(after) > 90
    assert all(ours == theirs for ours, theirs, _ in rows)
    assert all(float(difference) < 1e-4 for *_, difference in rows)
    saved = onnx.load(tmp_path / "fine_tuned.onnx")
    assert saved.graph.node == onnx.load(EXAMPLES / "recogniser.onnx").graph.node
    assert onnx_backend.is_compatible(saved)
