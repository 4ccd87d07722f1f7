"""What all commands share: options, devices and errors."""

import re
from typing import Any
from unittest import mock

import jax
import pytest
from command_line import run as command
from command_line import succeed

import dml_jax
from dml_jax.cli import dispatch_command

OPTIONS = {
    "dispatch": {
        *("--device", "-i", "-r", "-t", "-I", "-w", "-v", "--max_bytes", "-m"),
        *("--input_path", "--output_path", "--print_commands", "--dml_feature_level"),
    },
    "onnx": {"--input", "--output", "--device"},
    "info": set(),
    "verify": {"--device", "--cases", "--seed", "--only"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_help_names_every_option(name: str):
    out = succeed(name, "--help")
    assert OPTIONS[name] | {"--debug"} <= {*re.findall(r" (--?\w+)", out)}


def test_no_device_at_all(monkeypatch: pytest.MonkeyPatch):
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
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    message: str,
):
    load_model = mock.Mock(side_effect=error)
    monkeypatch.setattr(dispatch_command, "load_model", load_model)
    assert command("dispatch", "m") == (status, "", f"dml_jax: {message}\n")


def test_debug_shows_the_traceback():
    status, out, err = command("dispatch", "missing.json", "--debug")
    assert (status, out) == (2, "")
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("FileNotFoundError: ")


def test_without_a_command():
    status, out, err = command()
    assert (status, out) == (2, "")
    assert {*OPTIONS} <= {*err.split()}


def test_version():
    assert command("--version") == (0, f"dml_jax {dml_jax.__version__}\n", "")
