"""Starts several processes of `jax.distributed` on this machine, as on many hosts.

Each runs `worker.py`, with two CPU devices of its own.
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from dml_jax import reference

pytestmark = pytest.mark.exhaustive

WORKER = pathlib.Path(__file__).with_name("worker.py")
# A program that runs once need not be optimized.
FLAGS = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"

DIED = 13  # as in the worker
HEARTBEAT = 5  # seconds without which JAX considers a process dead
BOUND = 30  # seconds for all processes to end after one has failed
TIMEOUT = 120  # seconds for all processes to end in any case

Ends = tuple[list[int], list[str]]  # the statuses and the outputs


def run_once(folder: pathlib.Path, count: int, options: tuple[str, ...]) -> Ends:
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        port = any_socket.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    logs = [folder / f"{index}.txt" for index in range(count)]
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        for index, log in enumerate(logs):
            numbers = str(count), str(index)
            process = subprocess.Popen(
                [sys.executable, WORKER, f"127.0.0.1:{port}", *numbers, *options],
                env=environment,
                cwd=folder,
                stdout=stack.enter_context(log.open("w")),
                stderr=subprocess.STDOUT,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            polled = [process.poll() for process in processes]
            if None not in polled:
                break
            if any(polled):
                deadline = min(deadline, time.monotonic() + BOUND)
            time.sleep(0.05)
    statuses = [process.returncode for process in processes]
    return statuses, [log.read_text(errors="replace") for log in logs]


def run(folder: pathlib.Path, count: int, *options: str) -> Ends:
    """A status of -SIGKILL means that the process did not end in time."""
    statuses, outputs = run_once(folder, count, options)
    # Another program may have taken the port before the coordinator did.
    if re.search("Failed to (add port to|start RPC) server", outputs[0]):
        statuses, outputs = run_once(folder, count, options)
    for index, (status, output) in enumerate(zip(statuses, outputs, strict=True)):
        print(f"--- process {index}, status {status}:\n{output}")  # if the test fails
    return statuses, outputs


@pytest.mark.parametrize("count", [2, 4])
def test_every_operator_across_processes(tmp_path: pathlib.Path, count: int) -> None:
    statuses, outputs = run(tmp_path, count)
    assert statuses == [0] * count
    for output in outputs:
        operators = re.findall(r"^checking (\w+)", output, re.M)
        assert set(operators) == set(reference.__all__) - {"nearest"}


@pytest.mark.parametrize(
    ("victim", "calls"),
    [
        pytest.param(0, 1, id="the-coordinator-between-collectives"),
        pytest.param(1, 1, id="another-between-collectives"),
        pytest.param(1, 0, id="another-before-the-first-collective"),
    ],
)
def test_death_of_a_process_is_an_error_of_the_others(
    tmp_path: pathlib.Path, victim: int, calls: int
) -> None:
    options = [f"--victim={victim}", f"--calls={calls}", f"--heartbeat={HEARTBEAT}"]
    statuses, outputs = run(tmp_path, 3, *options)
    assert statuses.pop(victim) == DIED
    outputs.pop(victim)
    for status, output in zip(statuses, outputs, strict=True):
        assert status not in (0, -signal.SIGKILL)
        assert re.search("another task died|closed by peer", output)
        assert "survived" not in output
