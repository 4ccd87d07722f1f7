"""Starts several processes of `jax.distributed` here, as there are on many hosts.

Each is a run of `processes/worker.py`, with two CPU devices of its own.
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

import dml_jax

WORKER = pathlib.Path(__file__).with_name("worker.py")
# What runs once need not be optimized.
FLAGS = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"

DIED = 13  # as in the worker
HEARTBEAT = 5  # seconds without which JAX takes a process for dead
BOUND = 30  # seconds for all processes to end after one has failed
TIMEOUT = 120  # seconds for all processes to end in any case


def free_port():
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return any_socket.getsockname()[1]


@contextlib.contextmanager
def started(logs, *options):
    """A process for each log. None of them outlives the block."""
    command = [sys.executable, WORKER, f"127.0.0.1:{free_port()}", str(len(logs))]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}",
        "PYTHONPATH": os.pathsep.join(sys.path),  # this directory is in it
    }
    with contextlib.ExitStack() as stack:
        processes = []
        for index, log in enumerate(logs):
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, str(index), *options],
                    env=environment,
                    cwd=log.parent,
                    stdout=stack.enter_context(log.open("w")),
                    stderr=subprocess.STDOUT,
                )
            )
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def run_once(logs, options):
    with started(logs, *options) as processes:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            statuses = [process.poll() for process in processes]
            if None not in statuses:
                break
            if any(statuses):
                deadline = min(deadline, time.monotonic() + BOUND)
            time.sleep(0.05)
    statuses = [process.returncode for process in processes]
    return statuses, [log.read_text(errors="replace") for log in logs]


def run(folder, count, *options):
    """The status and the output of each of the processes.

    A status of -SIGKILL says that the process had not ended in time.
    """
    logs = [folder / f"{index}.txt" for index in range(count)]
    statuses, outputs = run_once(logs, options)
    # Another program may have taken the port before the coordinator did.
    if re.search("Failed to (add port to|start RPC) server", outputs[0]):
        statuses, outputs = run_once(logs, options)
    return statuses, outputs


def report(statuses, outputs):
    return "\n".join(
        f"--- process {index}, status {status}:\n{output}"
        for index, (status, output) in enumerate(zip(statuses, outputs, strict=True))
    )


@pytest.mark.parametrize("count", [2, 4])
def test_every_operator_across_processes(tmp_path, count):
    statuses, outputs = run(tmp_path, count)
    assert statuses == [0] * count, report(statuses, outputs)
    for output in outputs:
        operators = re.findall(r"checking (\w+)-", output)
        assert set(operators) == set(dml_jax.__all__) - {"checked"}


@pytest.mark.parametrize(
    ("victim", "calls"),
    [
        pytest.param(0, 1, id="the-coordinator-between-collectives"),
        pytest.param(1, 1, id="another-between-collectives"),
        pytest.param(1, 0, id="another-before-the-first-collective"),
    ],
)
def test_death_of_a_process_is_an_error_of_the_others(tmp_path, victim, calls):
    options = [f"--victim={victim}", f"--calls={calls}", f"--heartbeat={HEARTBEAT}"]
    statuses, outputs = run(tmp_path, 3, *options)
    text = report(statuses, outputs)
    assert statuses.pop(victim) == DIED, text
    outputs.pop(victim)
    for status, output in zip(statuses, outputs, strict=True):
        assert status not in (0, -signal.SIGKILL), text
        assert re.search("another task died|closed by peer", output), text
        assert "survived" not in output, text
