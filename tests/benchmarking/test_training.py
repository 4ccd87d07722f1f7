"""The benchmark of training steps."""

import json
import pathlib

import pytest

from benchmarks import tables
from benchmarks.command import main


@pytest.mark.exhaustive
@pytest.mark.usefixtures("with_jit")
def test_quick_run(tmp_path: pathlib.Path) -> None:
    words = ["train", "--device", "cpu", "--quick", "--output", str(tmp_path)]
    assert main(words) == 0
    (record,) = json.loads((tmp_path / "training-cpu.json").read_text())["records"]
    assert record["candidates"].keys() >= {"unreversed", "jnp", "dml_jax"}
    document = tmp_path / "page.md"
    document.write_text("<!-- figures: training cpu -->\n<!-- end of figures -->\n")
    lines = tables.rewritten(document, tmp_path).splitlines()
    assert lines[1].startswith("| network | without reversals | plain JAX | dml_jax |")
    assert lines[3].startswith("| 2-layer-lstm | ")
