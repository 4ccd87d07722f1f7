"""The benchmark of ONNX models, at its quick size."""

import json
import pathlib

import pytest

from benchmarks.command import main


@pytest.mark.exhaustive
@pytest.mark.usefixtures("with_jit")
def test_quick_run_has_every_model(tmp_path: pathlib.Path) -> None:
    assert main(["onnx", "--device", "cpu", "--quick", "-o", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "onnx-cpu.json").read_text())
    names = [record["name"] for record in found["records"]]
    kinds = "gru", "gru-lengths", "lstm", "lstm-lengths", "lstm-acoustic"
    assert names == [f"onnx/{kind}" for kind in kinds]
    for record in found["records"]:
        assert record["candidates"].keys() == {"onnxruntime", "dml_jax"}
        assert record["largest_difference"] < 1e-5
