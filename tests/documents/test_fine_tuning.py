"""The example that fine-tunes an ONNX model, in a process of its own."""

import pathlib
import re

import onnx
import pytest
from examples import EXAMPLES, run_example

from dml_jax import onnx_backend

pytestmark = pytest.mark.exhaustive


def test_fine_tuning(tmp_path: pathlib.Path) -> None:
    child = run_example(EXAMPLES / "fine_tuning.py", folder=tmp_path)
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
