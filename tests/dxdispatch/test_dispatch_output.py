"""What the dispatch command prints, measures and writes, and where it runs."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import tqdm
from assertions import assert_same_bits
from models import bind, buffer, floats, model, reversal, save, show

from dml_jax import cli

ROOT = pathlib.Path(__file__).parents[2]
PROCESS = dict(
    args=[sys.executable, "-m", "dml_jax", "dispatch", "model.json"],
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def dispatch(tmp_path, capsys):
    """Runs a model and gives its lines, after the one that names the device."""

    def run(model, *options):
        (tmp_path / "model.json").write_text(json.dumps(model))
        assert cli.main(["dispatch", "model.json", *options]) == 0
        return capsys.readouterr().out.splitlines()[1:]

    return run


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
    "as many as were given": (
        buffer([1, 2, 3], sizeInBytes=32, initialValuesOffsetInBytes=4),
        "0, 1, 2",
    ),
    "an offset inside of an element": (
        buffer([258, 772, 1286], "UINT16", initialValuesOffsetInBytes=1),
        "512, 1025, 1539",
    ),
    "whole elements only": (
        buffer({"valueCount": 7, "value": 1}, "UINT8", initialValuesOffsetInBytes=3),
        "0, 0, 0, 1, 1, 1, 1",
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_print(dispatch, name):
    resource, text = PRINTED[name]
    assert dispatch(model({"r": resource}, commands=[show("r")])) == [
        f"Resource 'r': {text}"
    ]


def test_print_verbose(dispatch):
    resources = {
        "bytes": buffer([1, 255, 0, 1, 2, 3, 4, 5, 6, 7, 8], "INT16"),
        "float": buffer([1]),
    }
    commands = [show(name, verbose=True) for name in resources]
    assert dispatch(model(resources, commands=commands)) == [
        "Resource 'bytes':",
        "[ 0] 1 (0x0001)",
        "[ 1] 255 (0x00FF)",
        "[ 2] 0 (0x0000)",
        *(f"[{i:2}] {i - 2} (0x000{i - 2})" for i in range(3, 11)),
        "Resource 'float':",
        "[0] 1 (0x3F800000)",
    ]


def test_print_of_what_was_written_at_the_start(dispatch):
    """An operator that is bound without an offset writes from byte 0 on."""
    given = reversal()
    given["resources"]["y"] = buffer(
        [-1] * 6, sizeInBytes=40, initialValuesOffsetInBytes=16
    )
    assert dispatch(given)[-1] == "Resource 'y': 2, 1, 3, 6, 5, 4"
    given["commands"].append(save("y", "y.npy"))
    dispatch(given)
    assert np.load("y.npy").tolist() == [2, 1, 3, 6, 5, 4, -1, -1, -1, -1]


# Files --------------------------------------------------------------------------------


def test_write_numpy(tmp_path, dispatch):
    given = reversal()
    given["commands"] += [
        save("y", "y.npy"),
        save("y", "new/folder/y.NPY", dimensions=[2, 3]),
        save("y", "part.npy", dimensions=[2, 1]),
    ]
    lines = dispatch(given)
    assert lines[-3:] == [
        "Resource 'y' written to 'y.npy'",
        "Resource 'y' written to 'new/folder/y.NPY'",
        "Resource 'y' written to 'part.npy'",
    ]
    expected = np.array([[2, 1, 3], [6, 5, 4]], np.float32)
    assert_same_bits(np.load(tmp_path / "y.npy"), expected.reshape(-1))
    assert_same_bits(np.load(tmp_path / "new" / "folder" / "y.NPY"), expected)
    assert_same_bits(np.load(tmp_path / "part.npy"), expected[:1, :2].T)


def test_write_raw_has_the_padding_and_numpy_has_not(tmp_path, dispatch):
    given = model(
        {
            "r": buffer([1, 2, 3], "UINT8"),
            "longer": buffer([1], "UINT8", sizeInBytes=6),
        },
        commands=[
            save("r", "r.dat"),
            save("r", "r.npy"),
            save("longer", "longer.bin"),
            save("longer", "longer.npy"),
        ],
    )
    dispatch(given)
    assert (tmp_path / "r.dat").read_bytes() == bytes([1, 2, 3, 0])
    assert np.load(tmp_path / "r.npy").tolist() == [1, 2, 3]
    assert (tmp_path / "longer.bin").read_bytes() == bytes([1, 0, 0, 0, 0, 0, 0, 0])
    assert np.load(tmp_path / "longer.npy").tolist() == [1, 0, 0, 0, 0, 0]


def test_written_files_are_read_back(tmp_path, dispatch):
    values = ["nan", "inf", 5e-324, -0.0]
    dispatch(model({"r": buffer(values, "FLOAT64")}, commands=[save("r", "r.npy")]))
    read = model({"r": {"initialValues": {"sourcePath": "r.npy"}}})
    dispatch({**read, "commands": [save("r", "again.npy")]})
    first, second = (tmp_path / name for name in ("r.npy", "again.npy"))
    assert first.read_bytes() == second.read_bytes()


def test_files_are_written_to_the_current_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "models").mkdir()
    (tmp_path / "here").mkdir()
    given = model({"r": buffer([1])}, commands=[save("r", "r.dat")])
    (tmp_path / "models" / "model.json").write_text(json.dumps(given))
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main(["dispatch", "../models/model.json"]) == 0
    assert (tmp_path / "here" / "r.dat").exists()
    assert capsys.readouterr().err == ""


# Times --------------------------------------------------------------------------------

TIME = r"\d+\.\d{4} ms"


def timings(label, samples):
    return (
        rf"CPU Timings \({label}\) +: {samples} samples, {TIME} average, {TIME} min, "
        f"{TIME} median, {TIME} max"
    )


def assert_match(lines, patterns):
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line


def test_median_of_iterations(dispatch):
    lines = dispatch(reversal(), "-i", "5", "-r", "3")
    assert_match(
        lines[:1], [rf"Dispatch 'reverse': 5 iterations, {TIME} median \(CPU\)"]
    )
    assert lines[1] == "Resource 'y': 2, 1, 3, 6, 5, 4"


def test_statistics(dispatch):
    lines = dispatch(reversal(), "-i", "5", "-v", "1", "-w", "2")
    assert_match(
        lines[:4],
        [
            f"Initialize 'reverse': {TIME}",
            "Dispatch 'reverse': 5 iterations",
            timings("Cold", 2),
            timings("Hot", 3),
        ],
    )


def test_every_sample(dispatch):
    lines = dispatch(reversal(), "-i", "2", "-v", "2", "-w", "9")
    assert_match(
        lines[:-1],
        [
            f"Initialize 'reverse': {TIME}",
            "Dispatch 'reverse': 2 iterations",
            timings("Cold", 1),
            timings("Hot", 1),
            "The timings of each iteration:",
            rf"iteration 0: {TIME} \(CPU\)",
            rf"iteration 1: {TIME} \(CPU\)",
        ],
    )


def test_time_to_run_and_interval(dispatch):
    """An interval longer than the time leaves room for one sample."""
    lines = dispatch(reversal(), "-t", "1", "-I", "60000")
    assert lines[0].startswith("Dispatch 'reverse': 1 iterations")


# Devices ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "cpu:0", jax.devices("cpu")[0].device_kind])
def test_device(dispatch, name):
    assert dispatch(reversal(), "--device", name)[1].endswith("2, 1, 3, 6, 5, 4")


@pytest.mark.usefixtures("x32")
def test_data_has_its_full_width(dispatch):
    """64-bit numbers pass operators, whatever JAX's flag says."""
    desc = {
        "InputTensor": {"DataType": "INT64", "Sizes": [2]},
        "OutputTensor": {"DataType": "INT64", "Sizes": [1]},
        "DimensionCount": 1,
        "InputWindowOffsets": [0],
        "InputWindowSizes": [2],
        "InputWindowStrides": [-2],
    }
    given = model(
        {"x": buffer([1, 2**63 - 1], "INT64"), "y": buffer([0], "INT64")},
        {"last": {"type": "SLICE1", "desc": desc}},
        [bind("last", InputTensor="x", OutputTensor="y"), show("y")],
    )
    assert dispatch(given)[-1] == "Resource 'y': 9223372036854775807"
    assert not jax.config.jax_enable_x64


# The process --------------------------------------------------------------------------


def test_process(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps(reversal()))
    done = subprocess.run(**PROCESS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("Resource 'y': 2, 1, 3, 6, 5, 4\n")


@pytest.mark.usefixtures("interrupts_reach_children")
def test_interrupt_leaves_nothing_behind(tmp_path):
    given = reversal()
    given["commands"].append(save("y", "y.npy"))
    (tmp_path / "model.json").write_text(json.dumps(given))
    run = {**PROCESS, "args": [*PROCESS["args"], "-t", "600000"]}
    with subprocess.Popen(**run) as process:
        assert process.stdout.readline().startswith("Running on")
        time.sleep(1)  # into the dispatch, most likely; any place must do
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()  # or it would be waited for
    assert (process.returncode, errors) == (130, "dml_jax: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["dispatch", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for option in ("--device", "-i", "-r", "-t", "-I", "-w", "-v", "--max_bytes"):
        assert option in text


def test_debug_shows_the_traceback():
    with pytest.raises(FileNotFoundError):
        cli.main(["dispatch", "missing.json", "--debug"])


def test_long_runs_show_progress(tmp_path, monkeypatch, capsys):
    """tqdm gets the iterations, their number and the name of the operator."""
    seen = []

    def bar(iterations, **options):
        seen.append((options["desc"], options["total"]))
        return iterations

    monkeypatch.setattr(tqdm, "tqdm", bar)
    (tmp_path / "model.json").write_text(json.dumps(reversal()))
    assert cli.main(["dispatch", "model.json", "-i", "7"]) == 0
    assert cli.main(["dispatch", "model.json", "-t", "0"]) == 0
    assert seen == [("reverse", 7), ("reverse", None)]


def test_fills_need_no_input(dispatch):
    desc = {"OutputTensor": floats(3), "ValueDataType": "FLOAT32", "Value": 2.5}
    given = model(
        {"r": buffer([0] * 3)},
        {"fill": {"type": "FILL_VALUE_CONSTANT", "desc": desc}},
        [bind("fill", OutputTensor="r"), show("r")],
    )
    assert dispatch(given, "-i", "3")[-1] == "Resource 'r': 2.5, 2.5, 2.5"
