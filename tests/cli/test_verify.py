"""The verify and info commands: what they find, print and exit with."""

import importlib.metadata
import math
import re
import subprocess
import sys
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dml_jax
from dml_jax import cli
from dml_jax.cli import devices, verify
from dml_jax.cli.verify_cases import ROWS, Case
from dml_jax.directml import FeatureLevel, OperatorType, supported

OPERATORS = [name for name in dml_jax.__all__ if name != "checked"]
CPU = jax.devices("cpu")[0]
HEADER = ["device", "operator", "cases", "wrong", "ratio", "to", "a", "copy"]


@pytest.fixture
def command(capsys):
    """Runs the command line, and gives its exit status and both outputs."""

    def run(*words):
        try:
            status = cli.main(words)
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def untimed(monkeypatch):
    monkeypatch.setattr(verify, "_ratio", lambda row, device: 1.0)


# verify -------------------------------------------------------------------------------


@pytest.mark.usefixtures("untimed", "x32")
def test_every_operator_is_right(command):
    with jax.debug_nans(True):  # they are among the data
        status, out, err = command("verify", "--device", "cpu:0", "--cases", "9")
    header, *lines, verdict = out.splitlines()
    assert (status, err, header.split()) == (0, "", HEADER)
    names = [*OPERATORS, "reverse_sequence gradient"]
    found = [re.split(" {2,}", line) for line in lines]
    assert sorted(words[1] for words in found) == sorted(names)
    assert all(words[::2] == ["cpu:0", "9", "1.00"] for words in found)
    assert all(words[3] == "0" for words in found)
    assert verdict == "Right: all 72 cases have every bit of the reference."
    assert not jax.config.jax_enable_x64


def test_an_operator_is_timed(command):
    words = ("verify", "--device", "cpu", "--cases", "1", "--only", "slice1")
    status, out, err = command(*words)
    assert (status, err) == (0, "")
    last = re.split(" {2,}", out.splitlines()[-2])[-1]
    assert float(last) > 0


def test_no_device_is_one_line(monkeypatch, capsys):
    def asserts():
        raise AssertionError

    monkeypatch.setattr(jax, "local_devices", asserts)
    platforms = jax.config.jax_platforms
    for command in ("info", "verify"):
        assert cli.main([command]) == 2
        message = f"dml_jax: JAX finds no device for JAX_PLATFORMS={platforms}\n"
        assert capsys.readouterr() == ("", message)


def test_every_device_is_the_default():
    assert devices.every()[: jax.local_device_count()] == jax.local_devices()
    assert CPU in devices.every()
    with mock.patch.object(verify, "verify", return_value=1) as called:
        assert cli.main(["verify", "--seed", "7", "--cases", "2"]) == 1
    assert called.call_args.kwargs["devices"] == devices.every()
    assert called.call_args.kwargs["numbers"] == range(7, 9)


@pytest.mark.usefixtures("nans_are_data")
def test_nans_of_fills_alone_are_alike():
    """A comparison of signalling NaNs warns, and warnings are errors here."""
    row = next(row for row in ROWS if row.function == "fill_value_constant")
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)[0]
    options = dict(sizes=(2,), value_data_type=np.dtype(np.float32))
    case = Case(dict(value=signalling), options)
    assert not verify._problem(row, case, np.dtype(np.float32), CPU, debug=True)
    positive, negative = np.full(2, np.nan), np.full(2, -np.nan)
    assert not verify._difference(positive, negative, nans_are_alike=True)
    assert verify._difference(positive, negative, nans_are_alike=False)
    assert verify._difference(np.zeros(2), -np.zeros(2), nans_are_alike=True)


def flip_a_bit(result):
    array = np.array(result)
    bits = np.atleast_1d(array).reshape(-1, 1).view(np.uint8)
    bits[-1:, -1:] ^= 1
    return array


BREAKAGES = {
    "elements differ": flip_a_bit,
    "of shape": lambda result: jnp.expand_dims(result, 0),
    "instead of": lambda result: result.astype(jnp.complex64),
}


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize(("problem", "breakage"), BREAKAGES.items())
@pytest.mark.parametrize("name", OPERATORS)
def test_a_broken_operator_is_found(command, monkeypatch, name, problem, breakage):
    right = getattr(dml_jax, name)
    row = next(row for row in ROWS if row.function == name)
    monkeypatch.setattr(verify, "ROWS", [row])
    monkeypatch.setattr(dml_jax, name, lambda **given: breakage(right(**given)))
    words = ("verify", "--device", "cpu:0", "--cases", "4")
    status, out, err = command(*words, "--only", name, "--seed", "3")
    *_, line, verdict = out.splitlines()
    assert (status, err) == (1, "")
    assert re.split(" {2,}", line)[1:] == [name, "4", "4", "-"]
    assert verdict.startswith(f"Wrong: 4 of 4 cases; the first is {name} of ")
    assert problem in verdict

    again = verdict.partition("; again with ")[2].split()
    assert again[-1] == "3"
    status, out, err = command("verify", *again)
    assert (status, err) == (1, "")
    repeated = out.splitlines()[-1]
    assert repeated == verdict.replace("4 of 4", "1 of 1")
    monkeypatch.setattr(dml_jax, name, right)
    assert command("verify", *again)[0] == 0


@pytest.mark.usefixtures("untimed")
def test_a_broken_gradient_is_found(command, monkeypatch):
    row = next(row for row in ROWS if row.is_gradient)
    monkeypatch.setattr(verify, "ROWS", [row])
    case = "dml_jax._verify_cases._gradient"
    monkeypatch.setattr(case, lambda input, sequence_lens, **options: input + input)
    status, out, _ = command("verify", "--device", "cpu:0", "--cases", "1")
    assert status == 1
    assert "the first is reverse_sequence gradient of float16 on cpu:0" in out


@pytest.mark.usefixtures("untimed")
def test_an_operator_that_raises_is_wrong(command, monkeypatch):
    def fail(**given):
        raise RuntimeError("no such\ninstruction")

    monkeypatch.setattr(dml_jax, "slice", fail)
    words = ("verify", "--device", "cpu:0", "--cases", "2", "--only", "slice")
    status, out, err = command(*words)
    assert (status, err) == (1, "")
    assert ": RuntimeError: no such instruction; again with " in out.splitlines()[-1]
    with pytest.raises(RuntimeError, match="no such"):
        command(*words, "--debug")


def test_interrupted(command, monkeypatch):
    monkeypatch.setattr(dml_jax, "slice", mock.Mock(side_effect=KeyboardInterrupt))
    status, _, err = command("verify", "--device", "cpu:0", "--only", "slice")
    assert (status, err) == (130, "dml_jax: interrupted\n")


def test_no_such_device(command):
    names = ", ".join(f"{d.platform}:{d.id} ({d.device_kind})" for d in jax.devices())
    message = f"dml_jax: `--device` must be one of {names}; got abacus\n"
    assert command("verify", "--device", "abacus") == (2, "", message)


@pytest.mark.parametrize(
    "words",
    ["--cases 0", "--cases x", "--seed -1", "--only checked", "--only", "more"],
)
def test_usage(command, words):
    status, out, err = command("verify", *words.split())
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("python -m dml_jax")


def test_help_names_every_option(command):
    out = command("verify", "--help")[1]
    options = ("device", "cases", "seed", "only", "debug")
    assert all(f"--{option}" in out for option in options)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_default_run_has_every_layout_in_every_dtype(row):
    assert len(row.dtypes) * len(row.layouts) <= 300
    random, dtype = np.random.default_rng(0), row.dtypes[0]
    cases = [row.make(random, dtype, layout) for layout in row.layouts]
    shapes = [row.expected(case).shape for case in cases]
    assert any(0 in shape for shape in shapes)
    assert any(1 in shape for shape in shapes)
    assert all(math.prod(shape) <= 1000 for shape in shapes)


def test_cases_have_lengths_at_both_ends_and_beyond():
    row = next(row for row in ROWS if row.function == "reverse_subsequences")
    random = np.random.default_rng(0)
    cases = [row.make(random, row.dtypes[0], row.layouts[0]) for _ in range(100)]
    lengths = {int(case.arrays["sequence_lengths"][0]) for case in cases}
    assert {-1, 0, 1, 3, 7, 8, 2**31 - 1} <= lengths


# info ---------------------------------------------------------------------------------


def section(out, title):
    """The words of the lines below a title."""
    lines = out.partition(f"{title}\n")[2].partition("\n\n")[0].splitlines()
    return [re.split(" {2,}", line.strip()) for line in lines]


def test_info(command):
    status, out, err = command("info")
    assert (status, err) == (0, "")
    versions = dict(section(out, "Versions"))
    assert versions["dml_jax"] == dml_jax.__version__
    assert versions["jax"] == importlib.metadata.version("jax")
    assert [f"cpu:{CPU.id}", CPU.device_kind] in [
        words[:2] for words in section(out, "Devices")
    ]
    operators = {words[0]: words[1:] for words in section(out, "Operators")}
    assert [*operators] == ["function", *OPERATORS]
    assert operators["slice"] == ["SLICE", "1_0", "-"]
    levels = section(out, "Feature levels of DirectML")
    named = [words[0] for words in levels if re.match(r"\d", words[0])]
    assert named == [level.label for level in FeatureLevel]
    reversal = ["REVERSE_SUBSEQUENCES", "1-8", "FLOAT16/32/64 INT8/16/32/64 "
                "UINT8/16/32/64", "UINT32/64"]  # fmt: skip
    assert ["5_0", *reversal] in levels


def test_a_device_is_shown_once(command):
    """A CPU that is the default platform, too, which is asked for twice."""
    names = [words[0] for words in section(command("info")[1], "Devices")]
    assert sorted({*names}) == sorted(names)
    assert f"cpu:{CPU.id}" in names


def test_info_has_all_that_a_level_brings(command):
    levels = section(command("info")[1], "Feature levels of DirectML")
    found = [
        word for words in levels for word in words if word in OperatorType.__members__
    ]
    brought = [
        operator.name
        for operator in OperatorType
        for level in FeatureLevel
        if (support := supported(operator, level)) and support.since is level
    ]
    assert sorted(found) == sorted(brought)


def test_info_with_onnx(command):
    pytest.importorskip("onnx")
    operators = {w[0]: w[1:] for w in section(command("info")[1], "Operators")}
    assert operators["slice1"] == ["SLICE1", "2_1", "Slice 1, 10, 11, 13"]
    assert operators["reverse_sequence"] == ["-", "-", "ReverseSequence 10, 28"]


def test_info_without_onnx(command, monkeypatch):
    installed = importlib.metadata.version

    def version(package):
        if package.startswith("onnx"):
            raise importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "dml_jax._onnx_operators", None)
    status, out, err = command("info")
    assert (status, err) == (0, "")
    versions = dict(section(out, "Versions"))
    assert versions["onnx"] == "not installed (comes with dml_jax[onnx])"
    operators = {words[0]: words[1:] for words in section(out, "Operators")}
    assert [*operators] == ["function", *OPERATORS]
    assert operators["slice1"] == ["SLICE1", "2_1", "Slice"]


def test_info_tells_memory(command, monkeypatch):
    def device(number, statistics):
        return types.SimpleNamespace(
            platform="gpu", id=number, device_kind="Some GPU", memory_stats=statistics
        )

    memory = dict(bytes_limit=3 * 2**30, bytes_in_use=2**29)
    silent = mock.Mock(side_effect=NotImplementedError)
    devices = [device(0, lambda: memory), device(1, lambda: None), device(2, silent)]
    monkeypatch.setattr(devices, "every", lambda: devices)
    assert section(command("info")[1], "Devices") == [
        ["gpu:0", "Some GPU", "3.0 GiB for JAX, 0.5 GiB in use"],
        ["gpu:1", "Some GPU"],
        ["gpu:2", "Some GPU"],
    ]


def test_the_commands_are_imported_when_they_run():
    program = "import sys, dml_jax.cli; print(*sys.modules)"
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "dml_jax.cli" in done.stdout.split()
    assert not {"dml_jax._info", "dml_jax._verify"} & {*done.stdout.split()}
