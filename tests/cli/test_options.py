"""What all commands share: options, devices and errors."""

import pathlib
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import pytest

import dml_jax
from dml_jax.cli import dispatch_command

Command = Callable[..., tuple[Any, str, str]]

OPTIONS = {
    "dispatch": {
        *("--device", "-i", "-r", "-t", "-I", "-w", "-v", "--max_bytes", "-m"),
        *("--input_path", "--output_path", "--print_commands", "--dml_feature_level"),
    },
    "onnx": {"--input", "--output", "--device"},
    "info": set(),
    "verify": {"--device", "--cases", "--seed", "--only"},
}
NATURAL = (
    "argument -i/--dispatch_iterations: must be an integer in digits, 1 to 10^18; got "
)
SYNTAX = "argument --{}: must be NAME=FILE.npy; got {}"
ARGUMENTS = {
    "dispatch": "one of the arguments model -m/--model is required",
    "dispatch m -m n": "argument -m/--model: not allowed with argument model",
    "dispatch m --dml_feature_level 7": "argument --dml_feature_level: must be one of ",
    "dispatch -s": "-s is not supported: `python -m dml_jax info` lists the devices",
    "dispatch -S": "-S is not supported: `python -m dml_jax info` shows the versions",
    "dispatch m -d": "-d is not supported: JAX has no debug layers; `--debug` ",
    "dispatch m -q direct": "-q is not supported: it is for DirectX devices",
    "dispatch m -o x": "-o is not supported: it is for PIX",
    "dispatch m -b x:2,2": "-b is not supported: it is for ONNX models",
    "dispatch m --iterations 2": "unrecognized arguments: --iterations 2",
    "dispatch m -i 0": f"{NATURAL}0",
    "dispatch m -i x": f"{NATURAL}x",
    "dispatch m -i 1000000000000000001": NATURAL,
    "dispatch m -i 1e3": f"{NATURAL}1e3",
    "dispatch m -r 0": "argument -r/--dispatch_repeat: ",
    "dispatch m --max_bytes 0": "argument --max_bytes: ",
    "dispatch m -w=-1": "argument -w/--warmup_samples: ",
    "dispatch m -t=-1": "argument -t/--milliseconds_to_run: must be a number from 0 to "
    "10^12; got -1",
    "dispatch m -t 1000000000001": "argument -t/--milliseconds_to_run: ",
    "dispatch m -I nan": "argument -I/--dispatch_interval: ",
    "dispatch m -v 3": "argument -v/--timing_verbosity: ",
    "onnx": "the following arguments are required: model",
    "onnx m --in x=x.npy": "unrecognized arguments: --in x=x.npy",
    "onnx m --input x": SYNTAX.format("input", "x"),
    "onnx m --input =x.npy": SYNTAX.format("input", "=x.npy"),
    "onnx m --input x=": SYNTAX.format("input", "x="),
    "onnx m --input x=.npy": SYNTAX.format("input", "x=.npy"),
    "onnx m --output y=y.txt": SYNTAX.format("output", "y=y.txt"),
    "verify --cases 0": "argument --cases: ",
    "verify --seed -1": "argument --seed: ",
    "verify --only checked": "argument --only: ",
    "verify more": "unrecognized arguments: more",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_help_names_every_option(command: Command, name: str):
    status, out, err = command(name, "--help")
    assert (status, err) == (0, "")
    assert OPTIONS[name] | {"--debug"} <= {*re.findall(r" (--?\w+)", out)}


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_arguments(command: Command, arguments: str):
    status, out, err = command(*arguments.split())
    assert (status, out) == (2, "")
    assert err.startswith(f"usage: python -m dml_jax {arguments.split()[0]} ")
    message = err.splitlines()[-1].partition(": error: ")[2]
    assert message.startswith(ARGUMENTS[arguments])


def test_the_limits_that_messages_name_are_accepted(
    command: Command, monkeypatch: pytest.MonkeyPatch
):
    run_model = mock.Mock()
    monkeypatch.setattr(dispatch_command, "load_model", mock.Mock())
    monkeypatch.setattr(dispatch_command, "run_model", run_model)
    assert command("dispatch", "m", "-i", "1" + "0" * 18, "-t", "1e12")[0] == 0
    timing = run_model.call_args.args[1]
    assert (timing.iterations, timing.milliseconds) == (10**18, 1e12)


def test_no_such_device(command: Command):
    names = ", ".join(f"{d.platform}:{d.id} ({d.device_kind})" for d in jax.devices())
    for text in ("abacus", "cpu:99"):
        message = f"dml_jax: `--device` must be one of {names}; got {text}\n"
        assert command("verify", "--device", text) == (2, "", message)


def test_no_device_at_all(command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "local_devices", mock.Mock(side_effect=AssertionError))
    config: Any = jax.config
    platforms = config.jax_platforms
    message = f"dml_jax: JAX finds no device for JAX_PLATFORMS={platforms}\n"
    assert command("info") == (2, "", message)
    assert command("verify") == (2, "", message)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RuntimeError("no memory\n  is left"), 2, "no memory is left"),
        (MemoryError(), 2, "MemoryError"),
        (OSError(28, "full", "out.npy"), 2, "out.npy: full"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_are_one_line(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    message: str,
):
    load_model = mock.Mock(side_effect=error)
    monkeypatch.setattr(dispatch_command, "load_model", load_model)
    assert command("dispatch", "m") == (status, "", f"dml_jax: {message}\n")


def test_debug_shows_the_traceback(command: Command):
    status, out, err = command("dispatch", "missing.json", "--debug")
    assert (status, out) == (2, "")
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("FileNotFoundError: ")


def test_without_a_command(command: Command):
    status, out, err = command()
    assert (status, out) == (2, "")
    assert {*OPTIONS} <= {*err.split()}


def test_version(command: Command):
    assert command("--version") == (0, f"dml_jax {dml_jax.__version__}\n", "")


def test_a_current_folder_that_has_been_deleted(
    command: Command, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """The system's error has no name."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    message = "dml_jax: the current folder: No such file or directory\n"
    assert command("dispatch", "m.json") == (2, "", message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dispatch m.onnx", "must be a DxDispatch model; ONNX models run with `python"
         " -m dml_jax onnx m.onnx`"),
        ("onnx m.json", "must be an ONNX model; DxDispatch models run with `python -m"
         " dml_jax dispatch m.json`"),
    ],
)  # fmt: skip
def test_a_model_for_the_other_command(command: Command, words: str, message: str):
    model = words.split()[1]
    assert command(*words.split()) == (2, "", f"dml_jax: {model}: {message}\n")
