"""The onnx command: what it prints, reads and writes."""

import functools
import pathlib
import sys
from typing import Any

import command_line
import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from assertions import assert_same_bits
from command_line import Refused, refuse, snapshot
from onnx_models import with_external_data
from wrong_calls.commands import IN, LENGTHS, TEXT, X_AND_L, X, save

import dml_jax
from dml_jax import onnx_backend
from dml_jax.cli import devices

REVERSED = np.array([[0, 5, 10, 3], [4, 1, 6, 7], [8, 9, 2, 11]], np.float32)
OUT = (
    "Output 'y': float32[3,4]\nOutput 'last': bfloat16[3,4]\nOutput 'w': int32[2]\n"
    "Output 'r': int64[3]\n"
)


run = functools.partial(command_line.run, "onnx")


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a model and its inputs, in one that the model must not read."""
    (tmp_path / "inside" / "folder.npy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside")
    save("m.onnx", TEXT)
    np.save("x.npy", X)
    np.save("l.npy", LENGTHS)


# What it prints and writes ------------------------------------------------------------


def test_prints():
    assert run("m.onnx", *X_AND_L) == (0, IN + OUT, "")
    swapped = "Input 'l': int64[4]\nInput 'x': float32[3,4]\n"
    assert run("m.onnx", *X_AND_L[2:], *X_AND_L[:2]) == (0, swapped + OUT, "")


@pytest.mark.usefixtures("x32")
def test_writes():
    old = snapshot()
    targets = ("y=y.npy", "last=folder.npy/last.NPY", "r=./r.npy")
    words = [f"--output={target}" for target in targets]
    assert run("m.onnx", *X_AND_L, *words) == (0, IN + OUT, "")
    assert_same_bits(np.load("y.npy"), REVERSED)
    last = np.load("folder.npy/last.NPY").view(ml_dtypes.bfloat16)
    assert_same_bits(last, REVERSED[::-1].astype(ml_dtypes.bfloat16))
    assert_same_bits(np.load("r.npy"), np.array([7, 7, 7]))
    assert {p.name for p in snapshot().keys() - old.keys()} == {
        "y.npy",
        "last.NPY",
        "r.npy",
    }


def test_strings_are_written_without_pickles():
    save("w.onnx", '() => (string[2] y) {y = Constant<value_strings = ["a", "bc"]>()}')
    assert run("w.onnx", "--output", "y=y.npy") == (0, "Output 'y': string[2]\n", "")
    assert np.load("y.npy").tolist() == ["a", "bc"]


def test_scalars_empty_arrays_and_names_with_signs():
    text = "(float s, int32[n] e) => (float t, int32[n] u)"
    save("n.onnx", f"{text} {{t = Identity(s) u = Identity(e)}}")
    model = onnx.load("n.onnx")
    model.graph.input[0].name = model.graph.node[0].input[0] = "a=b/c"
    onnx.save(model, "n.onnx")
    np.save("s.npy", np.float32(2.5))
    np.save("e.npy", np.zeros(0, np.int32))
    words = ("--input", "a=b/c=s.npy", "--input", "e=e.npy", "--output", "t=t.npy")
    assert run("n.onnx", *words)[1].splitlines() == [
        "Input 'a=b/c': float32[]",
        "Input 'e': int32[0]",
        "Output 't': float32[]",
        "Output 'u': int32[0]",
    ]
    assert_same_bits(np.load("t.npy"), np.array(2.5, np.float32))


def test_unknown_keys_of_data_in_another_file(recwarn: pytest.WarningsRecorder):
    """onnx's warning would be beside the line of an error."""
    pathlib.Path("w.bin").write_bytes(bytes(16))
    onnx.save(with_external_data(4, location="w.bin", unknown="1"), "data.onnx")
    assert run("data.onnx") == (0, "Output 'y': float32[4]\n", "")
    assert not recwarn


# Devices and the process --------------------------------------------------------------


def test_device_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch):
    seen = []

    def note(self: onnx_backend.Model, _: Any) -> list[np.ndarray]:
        seen.append(self.device)
        return [X] * 4

    monkeypatch.setattr(onnx_backend.Model, "run", note)
    monkeypatch.setattr(devices, "first", lambda name: f"device {name}")
    assert run("m.onnx", *X_AND_L, "--device", "any")[0] == 0
    assert seen == ["device any"]


def test_without_onnx(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "dml_jax.onnx_backend")
    monkeypatch.delattr(dml_jax, "onnx_backend")
    monkeypatch.setitem(sys.modules, "onnx", None)
    how = r"^dml_jax.onnx_backend: .*: pip install '\.\[onnx\]' in a checkout"
    with pytest.raises(Refused, match=how):
        refuse("onnx", "m.onnx")
    with pytest.raises(ModuleNotFoundError, match=how):
        _ = dml_jax.onnx_backend
