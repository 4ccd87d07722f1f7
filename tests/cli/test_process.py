"""The process of a command: its scripts, closed pipes and interrupts."""

import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
# What the script runs that an installation makes of `dml-jax` in pyproject.toml.
SCRIPT = "import sys; sys.argv[0] = 'bin/dml-jax'; from dml_jax.__main__ import main"


def run(*words: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(
        [sys.executable, *words], env=ENVIRONMENT, text=True, **streams
    )


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_the_script():
    done = run("-c", f"{SCRIPT}; main()", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: dml-jax ")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("words", "stream", "statuses"),
    [
        ("info", "stdout", {141}),
        ("verify --cases 1 --only slice1", "stdout", {141}),
        ("dispatch --help", "stdout", {0, 141}),
        ("dispatch none.json", "stderr", {2, 141}),
    ],
)
def test_a_closed_pipe_is_no_error(words: str, stream: str, statuses: set[int]):
    pipe = closed_pipe()
    done = run("-m", "dml_jax", *words.split(), **{stream: pipe})
    os.close(pipe)
    assert done.returncode in statuses
    assert not done.stderr


@pytest.mark.exhaustive
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = run("-m", "dml_jax", "info", stdout=full)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("dml_jax: ")


# Interrupts ---------------------------------------------------------------------------


@pytest.fixture
def importing(tmp_path: pathlib.Path) -> str:
    """A program that is interrupted while it imports dml_jax."""
    (tmp_path / "jax.py").write_text("import os; os.kill(os.getpid(), 2)")
    return f"sys.path.insert(0, {str(tmp_path)!r}); import dml_jax"


@pytest.mark.usefixtures("interrupts_reach_children")
@pytest.mark.parametrize("name", ["-m", "bin/dml-jax", "bin/dml-jax.exe"])
def test_an_interrupt_during_the_imports_of_a_command(importing: str, name: str):
    """Python's name for the program is -m while it imports the package."""
    done = run("-c", f"import sys; sys.argv[0] = {name!r}; {importing}", "dml_jax")
    assert (done.returncode, done.stderr) == (130, "dml_jax: interrupted\n")


@pytest.mark.usefixtures("interrupts_reach_children")
def test_an_interrupt_of_another_program_is_left_to_it(importing: str):
    assert "KeyboardInterrupt" in run("-c", f"import sys; {importing}").stderr


@pytest.mark.exhaustive
@pytest.mark.usefixtures("interrupts_reach_children")
def test_an_interrupt_that_python_drops():
    """An exception in a finalizer is dropped; the command ends nevertheless."""
    drop = "type('C', (), {'__del__': lambda _: signal.raise_signal(2)})()"
    command = f"m.run_command = lambda: [{drop}].clear()"
    imports = "import signal, dml_jax.__main__ as m"
    start = f"import sys; sys.argv[0] = 'dml-jax'; {imports}"
    done = run("-c", f"{start}; {command}; m.main()")
    assert (done.returncode, done.stderr) == (130, "dml_jax: interrupted\n")


WRITE = """
import os, pathlib, signal, sys
sys.argv[0] = "dml-jax"
import numpy as np, dml_jax.__main__ as m
from dml_jax import _array_files
remove = os.unlink
def replace(*_, **__):
    print(len(os.listdir()))
    signal.raise_signal({})
def unlink(*paths, **options):
    signal.raise_signal({})
    remove(*paths, **options)
os.replace, os.unlink = replace, unlink
m.run_command = lambda: _array_files.write(pathlib.Path("y.npy"), np.zeros(3))
m.main()
"""


@pytest.mark.usefixtures("interrupts_reach_children")
@pytest.mark.parametrize(
    ("name", "again", "status"),
    [("SIGINT", "0", 130), ("SIGTERM", "SIGHUP", 143), ("SIGHUP", "SIGTERM", 129)],
)
def test_a_signal_during_a_write_leaves_no_file(
    tmp_path: pathlib.Path, name: str, again: str, status: int
):
    """A second one comes while the first one's file is removed."""
    numbers = (getattr(signal, n, 0) for n in (name, again))
    program = WRITE.format(*map(int, numbers))
    program = program.replace("signal.raise_signal(0)", "pass")
    done = run("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "1\n")
    assert not any(tmp_path.iterdir())
