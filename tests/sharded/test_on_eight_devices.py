"""Runs the other tests of this folder in child processes with eight CPU devices."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__)
FILES = sorted({*HERE.parent.glob("test_*.py")} - {HERE})
OPTIONS = ["-q", "-p", "no:cacheprovider", "--color=no"]
# A program that runs once need not be optimized: this saves a quarter of the time.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"


def run(config: pytest.Config, part: str, *files: pathlib.Path) -> None:
    selected = config.option.markexpr
    expression = f"({selected}) and {part}" if selected else part
    child = subprocess.run(
        [sys.executable, "-m", "pytest", *files, *OPTIONS, "-m", expression],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_JIT": "0",  # the tests compile programs
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    # The summary would name failures, errors and skips as well.
    summary = r"^[1-9]\d* passed(, \d+ deselected)? in "
    assert child.returncode == 0, child.stdout
    assert re.search(summary, child.stdout, re.MULTILINE), child.stdout


def test_default(pytestconfig: pytest.Config) -> None:
    run(pytestconfig, "not exhaustive", *FILES)


@pytest.mark.exhaustive
@pytest.mark.parametrize("half", range(2))
def test_exhaustive(half: int, pytestconfig: pytest.Config) -> None:
    run(pytestconfig, "exhaustive", *FILES[half::2])
