"""Starts the other tests of this folder in a process with eight CPU devices."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__)
OPTIONS = ["-q", "-p", "no:cacheprovider", "--color=no"]
# What runs once need not be optimized: this spares a quarter of the time.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"


@pytest.mark.parametrize(
    "path",
    sorted({*HERE.parent.glob("test_*.py")} - {HERE}),
    ids=lambda path: path.stem,
)
def test_sharded(path):
    child = subprocess.run(
        [sys.executable, "-m", "pytest", path, *OPTIONS],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_JIT": "0",  # they are of programs, or turn it off themselves
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    # Nothing but passes: the summary would name failures, errors and skips as well.
    passed = re.search(r"^(\d+) passed in ", child.stdout, re.MULTILINE)
    assert child.returncode == 0, child.stdout
    assert passed is not None, child.stdout
    assert int(passed[1]) > 0, child.stdout
