"""What the dispatch command prints, measures and writes, and where it runs."""

import contextlib
import functools
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import pytest
import tqdm
from assertions import assert_same_bits
from command_line import dispatch, interrupted
from models import buffer, model, reversal, save, show

import dml_jax
from dml_jax import cli, fill_value_sequence
from dml_jax.directml.dxdispatch import Timing, load_model, run_model
from dml_jax.directml.dxdispatch._files import Folders
from dml_jax.directml.dxdispatch._json import Entry

ROOT = pathlib.Path(__file__).parents[2]

# Printing -----------------------------------------------------------------------------

PRINTED = {
    "six digits": (
        buffer([1 / 3, 123456789, 1e-7, 1e20, -0.0, 100000]),
        "0.333333, 1.23457e+08, 1e-07, 1e+20, -0, 100000",
    ),
    "half": (buffer([65504, 1e-7], "FLOAT16"), "65504, 1.19209e-07"),
    "double": (buffer([1 / 3, 1e300], "FLOAT64"), "0.333333, 1e+300"),
    "special": (buffer(["nan", "inf", "-inf"]), "nan, inf, -inf"),
    "bytes are numbers": (buffer([65, 0, 255], "UINT8"), "65, 0, 255"),
    "signed bytes": (buffer([-128, 127], "INT8"), "-128, 127"),
    "64 bits": (buffer([-(2**63)], "INT64"), "-9223372036854775808"),
    "without padding": (buffer([1, 2, 3], "INT16", sizeInBytes=64), "1, 2, 3"),
    "from byte 0": (buffer([7], sizeInBytes=12, initialValuesOffsetInBytes=4), "0"),
    "an offset inside an element": (
        buffer([258, 772, 1286], "UINT16", initialValuesOffsetInBytes=1),
        "512, 1025, 1539",
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_print(name: str):
    resource, text = PRINTED[name]
    lines = dispatch(model({"r": resource}, commands=[show("r")]))
    assert lines == [f"Resource 'r': {text}"]


def test_print_verbose():
    resources = {
        "shorts": buffer([1, 255, 0, 1, 2, 3, 4, 5, 6, 7, 8], "INT16"),
        "float": buffer([1]),
    }
    commands = [show(name, verbose=True) for name in resources]
    assert dispatch(model(resources, commands=commands)) == [
        "Resource 'shorts':",
        "[ 0] 1 (0x0001)",
        "[ 1] 255 (0x00FF)",
        "[ 2] 0 (0x0000)",
        *(f"[{i:2}] {i - 2} (0x000{i - 2})" for i in range(3, 11)),
        "Resource 'float':",
        "[0] 1 (0x3F800000)",
    ]


@pytest.mark.parametrize("verbose", [False, True])
def test_print_holds_no_string_for_each_element(verbose: bool):
    """It would have about 60 bytes."""
    count, out = 2**16, io.StringIO()
    resource = buffer({"valueCount": count, "value": 101}, "UINT8")
    given = model({"r": resource}, commands=[show("r", verbose=verbose)])
    pathlib.Path("model.json").write_text(json.dumps(given))
    loaded = load_model("model.json")
    tracemalloc.start()
    run_model(loaded, report=functools.partial(print, file=out))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    lines = [f"[{i:5}] 101 (0x65)" for i in range(count)]
    expected = "\n".join(["", *lines]) if verbose else f" {', '.join(['101'] * count)}"
    assert out.getvalue() == f"Resource 'r':{expected}\n"
    assert peak < 50 * count


# Files --------------------------------------------------------------------------------


def test_write_numpy():
    given = reversal()
    given["commands"] += [
        save("y", "y.npy"),
        save("y", "new/folder/y.NPY", dimensions=[2, 3]),
        save("y", "part.npy", dimensions=[2, 1]),
    ]
    assert dispatch(given)[-3:] == [
        "Resource 'y' written to 'y.npy'",
        "Resource 'y' written to 'new/folder/y.NPY'",
        "Resource 'y' written to 'part.npy'",
    ]
    expected = np.array([[2, 1, 3], [6, 5, 4]], np.float32)
    assert_same_bits(np.load("y.npy"), expected.reshape(-1))
    assert_same_bits(np.load("new/folder/y.NPY"), expected)
    assert_same_bits(np.load("part.npy"), expected[:1, :2].T)


def test_raw_files_have_the_padding_and_numpy_files_have_not():
    resource = buffer([1, 2, 3], "UINT8", sizeInBytes=5)
    commands = [save("r", "r.dat"), save("r", "r.npy")]
    dispatch(model({"r": resource}, commands=commands))
    assert pathlib.Path("r.dat").read_bytes() == bytes([1, 2, 3, 0, 0, 0, 0, 0])
    assert np.load("r.npy").tolist() == [1, 2, 3, 0, 0]


def test_initial_values_with_an_offset_are_not_in_the_way():
    """An operator that is bound without an offset writes from byte 0 on."""
    given = reversal()
    given["resources"]["y"] = buffer(
        [-1] * 6, sizeInBytes=40, initialValuesOffsetInBytes=16
    )
    given["commands"].append(save("y", "y.npy"))
    assert "Resource 'y': 2, 1, 3, 6, 5, 4" in dispatch(given)
    assert np.load("y.npy").tolist() == [2, 1, 3, 6, 5, 4, -1, -1, -1, -1]


def test_files_are_written_to_the_current_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "models").mkdir()
    (tmp_path / "here").mkdir()
    given = model({"r": buffer([1])}, commands=[save("r", "r.dat")])
    (tmp_path / "models" / "model.json").write_text(json.dumps(given))
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main(["dispatch", "../models/model.json"]) == 0
    assert (tmp_path / "here" / "r.dat").exists()


def test_folders_of_inputs_and_outputs(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    """As in DxDispatch, the model itself may be in the folder of inputs."""
    for name in ("in", "out", "models"):
        (tmp_path / name).mkdir()
    np.save("in/x.npy", np.array([1, 2], np.float32))
    given = model(
        {"x": {"initialValues": {"sourcePath": "x.npy"}}},
        commands=[show("x"), save("x", "y.npy")],
    )
    for name in ("in/a.json", "models/b.json"):
        (tmp_path / name).write_text(json.dumps(given))
    folders = ["--input_path", "in", "--output_path", "out", "--print_commands"]
    for words in (["a.json"], ["-m", "models/b.json"]):
        assert cli.main(["dispatch", *words, *folders]) == 0
        assert np.load("out/y.npy").tolist() == [1, 2]
        (tmp_path / "out" / "y.npy").unlink()
        assert capsys.readouterr().out.splitlines()[1:] == [
            '[StartCmd][0000]\t: {"type":"print","resource":"x"}',
            "Resource 'x': 1, 2",
            "[EndCmd][0000]\t: hr=0x00000000",
            '[StartCmd][0001]\t: {"type":"writeFile","resource":"x",'
            '"targetPath":"y.npy"}',
            "Resource 'x' written to 'y.npy'",
            "[EndCmd][0001]\t: hr=0x00000000",
        ]


def test_feature_level(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "model.json").write_text(json.dumps(reversal()))
    assert cli.main(["dispatch", "model.json", "--dml_feature_level", "2.1"]) == 2
    assert "must be 4 at feature level 2_1" in capsys.readouterr().err
    assert cli.main(["dispatch", "model.json", "--dml_feature_level", "4.0"]) == 0


TIMINGS = {"iterations": 0, "repeat": 0, "milliseconds": -1.0, "interval": float("nan")}
TIMINGS |= {"warmup_samples": -1, "verbosity": -1}


@pytest.mark.parametrize("name", TIMINGS)
def test_timings_are_checked_before_a_run(name: str):
    least = int(name in ("iterations", "repeat"))
    message = f"Timing: `{name}` must be at least {least}; got {TIMINGS[name]}"
    with pytest.raises(ValueError, match=message):
        Timing(**{name: TIMINGS[name]})


@pytest.mark.parametrize("text", ["//host/share/x", r"\\host\share\x", "d:x"])
def test_a_path_on_another_drive_is_refused_before_any_access(text: str):
    """Windows would send credentials to a host. A pure path cannot be accessed."""

    class Folder(pathlib.PureWindowsPath):
        def resolve(self) -> "Folder":
            return self

    folders: Any = Folders(*[Folder("C:/models")] * 4)
    with pytest.raises(ValueError, match="must be inside the model's folder"):
        folders.source_path(Entry(text, "x"))


def test_no_folder_is_on_a_drive_that_does_not_exist(monkeypatch: pytest.MonkeyPatch):
    pathlib.Path("model.json").write_text(json.dumps(reversal()))
    monkeypatch.setattr(pathlib.Path, "exists", lambda _: False)
    with pytest.raises(ValueError, match="`output_path` must be a folder; got out"):
        load_model("model.json", output_path="out")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_names_are_printed_in_any_encoding(encoding: str):
    """What an output cannot encode does not stop the commands after it."""
    name = "größe→😀"
    given = model({name: buffer([1])}, commands=[show(name), save(name, f"{name}.npy")])
    pathlib.Path("model.json").write_text(json.dumps(given))
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    with contextlib.redirect_stdout(out):
        assert cli.main(["dispatch", "model.json"]) == 0
    shown = name.encode(encoding, "backslashreplace").decode(encoding)
    lines = out.buffer.getvalue().decode(encoding).splitlines()  # type: ignore
    assert lines[1:] == [
        f"Resource '{shown}': 1",
        f"Resource '{shown}' written to '{shown}.npy'",
    ]
    assert np.load(f"{name}.npy").tolist() == [1]


# Times --------------------------------------------------------------------------------


def timings(label: str, samples: int) -> str:
    statistics = "T ms average, T ms min, T ms median, T ms max"
    return f"CPU Timings {label} : {samples} samples, {statistics}"


TIMED = {
    "-i 5 -r 3": ["Dispatch 'reverse': 5 iterations, T ms median (CPU)"],
    "-i 5 -v 1 -w 2": [
        "Initialize 'reverse': T ms",
        "Dispatch 'reverse': 5 iterations",
        timings("(Cold)", 2),
        timings("(Hot) ", 3),
    ],
    "-i 2 -v 2 -w 9": [
        "Initialize 'reverse': T ms",
        "Dispatch 'reverse': 2 iterations",
        timings("(Cold)", 1),
        timings("(Hot) ", 1),
        "The timings of each iteration:",
        "iteration 0: T ms (CPU)",
        "iteration 1: T ms (CPU)",
    ],
    # An interval longer than the time leaves room for one sample.
    "-t 1 -I 60000": ["Dispatch 'reverse': 1 iterations, T ms median (CPU)"],
}


@pytest.mark.parametrize("options", TIMED)
def test_times(options: str):
    lines = dispatch(reversal(), *options.split())
    assert lines == [*TIMED[options], "Resource 'y': 2, 1, 3, 6, 5, 4"]


def test_long_runs_show_progress(monkeypatch: pytest.MonkeyPatch):
    """tqdm gets the iterations, which may have a number, and the operator's name."""
    seen = []

    def bar(iterations: Iterable[int], **options: Any) -> Iterable[int]:
        seen.append((options["desc"], type(iterations)))
        return iterations

    monkeypatch.setattr(tqdm, "tqdm", bar)
    dispatch(reversal(), "-i", "7")
    dispatch(reversal(), "-t", "0")
    assert seen == [("reverse", range), ("reverse", itertools.count)]


@pytest.mark.parametrize("name", ["cpu", "cpu:0", jax.devices("cpu")[0].device_kind])
def test_device(name: str):
    assert dispatch(reversal(), "--device", name)[1].endswith("2, 1, 3, 6, 5, 4")


def test_sequences_are_computed_on_the_device(monkeypatch: pytest.MonkeyPatch):
    """JAX's default device may not exist."""
    used = []

    def fill(*arguments: Any) -> Any:
        used.append(jax.config.jax_default_device)  # type: ignore
        return fill_value_sequence(*arguments)

    monkeypatch.setattr(dml_jax, "fill_value_sequence", fill)
    given = model({"r": buffer({"valueCount": 2, "valueStart": 0, "valueDelta": 1})})
    dispatch(given, "--device", "cpu")
    assert used == [jax.devices("cpu")[0]]


# The process --------------------------------------------------------------------------


def started(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dml_jax", "dispatch", "model.json", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("interrupts_reach_children")
def test_an_interrupt_leaves_nothing_behind(tmp_path: pathlib.Path):
    given = reversal()
    given["commands"].append(save("y", "y.npy"))
    (tmp_path / "model.json").write_text(json.dumps(given))
    with started("-t", "600000") as process:
        assert process.stdout
        assert process.stdout.readline().startswith("Running on")
        status, errors = interrupted(process)
    assert (status, errors.splitlines()[-1]) == (130, "dml_jax: interrupted")
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]
