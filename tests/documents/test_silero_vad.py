"""The example that fine-tunes silero-vad, in a process of its own."""

import os
import pathlib
import re

import onnx
import pytest
from examples import EXAMPLES, run_example

DOCS = pathlib.Path(__file__).parents[2] / "docs"
MODELS = os.environ.get("DML_JAX_MODELS", "")

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not MODELS, reason="needs DML_JAX_MODELS, as .ci/run sets it"),
]


def test_fine_tuning_of_silero_vad(tmp_path: pathlib.Path) -> None:
    child = run_example(EXAMPLES / "voice_activity.py", MODELS, folder=tmp_path)
    before, after = re.findall(r"(\d+\.\d) %", child.stdout)
    page = (DOCS / "silero-vad.md").read_text()
    assert f"{before} % of the frames" in page
    assert float(after) > 95
    (difference,) = re.findall(r"differs by at most (.*)", child.stdout)
    assert float(difference) < 1e-4
    assert (tmp_path / "voice_activity.png").stat().st_size > 10_000
    onnx.checker.check_model(onnx.load(tmp_path / "voice_activity.onnx"))
