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
    assert not done.stderr, done.stderr
    assert done.returncode == 0
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


IMPORTER = """
import signal
try:
    import dml_jax
    signal.raise_signal(signal.SIGINT)
finally:
    print("cleaned up")
"""


@pytest.mark.usefixtures("interrupts_reach_children")
@pytest.mark.parametrize("words", ["dml-jax.py dml_jax", "-m dml-jax dml_jax"])
def test_an_interrupt_of_another_program_is_left_to_it(
    tmp_path: pathlib.Path, words: str
):
    """Its name and its arguments may be those of the command."""
    (tmp_path / "dml-jax.py").write_text(IMPORTER)
    done = run(*words.split(), cwd=tmp_path)
    assert done.stdout == "cleaned up\n"
    assert done.stderr.endswith("KeyboardInterrupt\n")


# What a command does when a signal comes.
BUSY = {
    "collecting": "gc.callbacks.append(send); gc.collect(); gc.collect()",
    "computing": "threading.Timer(1, send).start(); jax.block_until_ready(endless(0))",
}
COMMAND = """
import gc, signal, sys, threading
import jax
from dml_jax import __main__
def send(*_):
    signal.raise_signal(getattr(signal, sys.argv[1]))
endless = jax.jit(lambda k: jax.lax.while_loop(lambda k: k == k, lambda k: k + 1, k))
__main__.run_command = lambda: exec(sys.argv[2]) or 0
__main__.main()
"""


@pytest.mark.usefixtures("interrupts_reach_children")
@pytest.mark.parametrize(
    ("busy", "name"), [("collecting", "SIGHUP"), ("computing", "SIGTERM")]
)
def test_a_signal_ends_a_command_at_once(busy: str, name: str):
    """Python drops exceptions in a collection, and handles no signal inside XLA."""
    done = run("-c", COMMAND, name, BUSY[busy], timeout=60)
    assert (done.returncode, done.stderr) == (-getattr(signal, name), "")


WRITE = """
import gc, os, signal, sys
from dml_jax.__main__ import main
remove, others = os.unlink, [signal.{}]
def send(*_):
    signal.raise_signal(signal.{})
def replace(*_):
    print(len(os.listdir()), flush=True)
    gc.callbacks.append(send)
    gc.collect()
def unlink(*paths):
    while others:
        signal.raise_signal(others.pop())
    remove(*paths)
os.replace, os.unlink = replace, unlink
words = "run fill_value_constant --sizes 2,3 --value-data-type int8 --value 1"
sys.argv[1:] = [*words.split(), "--output", "y.npy"]
main()
"""


@pytest.mark.usefixtures("interrupts_reach_children")
@pytest.mark.parametrize(
    ("name", "again"), [("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM")]
)
def test_a_signal_during_a_write_leaves_no_file(
    tmp_path: pathlib.Path, name: str, again: str
):
    """A second one, which comes while the file is removed, ends the process."""
    done = run("-c", WRITE.format(again, name), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (-getattr(signal, again), "1\n")
    assert not any(tmp_path.iterdir())
