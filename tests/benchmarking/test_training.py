"""The benchmark of training steps."""

import json
import pathlib

import pytest

from benchmarks import tables, training
from benchmarks.command import main

HLO = """\
%fused_gather (x: f32[8]) -> f32[8] {
  ROOT %gather.1 = f32[8] gather(%x, %i), metadata={op_name="jit(f)/reversal/gather"}
}

ENTRY %main.2 (x: f32[8]) -> f32[8] {
  %loop_gather.3 = f32[8] fusion(%x), kind=kLoop, calls=%fused_gather
  %while.4 = f32[8] while(%loop_gather.3), condition=%c, body=%b
  ROOT %reverse.5 = f32[8] custom-call(%while.4), metadata={op_name="jvp(reversal)/y"}
}
"""


def test_kernels_that_reverse_are_found_by_their_operations() -> None:
    names = training._reversal_kernels(HLO)
    assert {"loop_gather.3", "loop_gather_3", "reverse.5", "reverse_5"} <= names
    assert not any("while" in name for name in names)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("with_jit")
def test_quick_run(tmp_path: pathlib.Path) -> None:
    words = ["train", "--device", "cpu", "--quick", "--output", str(tmp_path)]
    assert main(words) == 0
    (record,) = json.loads((tmp_path / "training-cpu.json").read_text())["records"]
    assert record["candidates"].keys() >= {"unreversed", "jnp", "dml_jax"}
    for name, figures in record["candidates"].items():
        assert 0 <= figures["reversal"] < 0.5
        assert (figures["reversal"] == 0) == (name == "unreversed")
    document = tmp_path / "page.md"
    document.write_text("<!-- figures: training cpu -->\n<!-- end of figures -->\n")
    lines = tables.rewritten(document, tmp_path).splitlines()
    assert lines[1].startswith("| network | without reversals | plain JAX | dml_jax |")
    assert lines[3].startswith("| 2-layer-lstm | ")
