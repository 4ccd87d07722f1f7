"""Starts several processes of `jax.distributed` on this machine, as on many hosts.

Each runs `worker.py`, with two CPU devices of its own.
"""

import contextlib
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

from dml_jax import reference

pytestmark = pytest.mark.exhaustive

WORKER = pathlib.Path(__file__).with_name("worker.py")
# A program that runs once need not be optimized.
FLAGS = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
TIMEOUT = 120  # seconds
COUNT = 2


def run(folder: pathlib.Path) -> tuple[list[int | None], list[str]]:
    """The statuses and the outputs; a status is None if a process does not end."""
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        port = any_socket.getsockname()[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    logs = [folder / f"{index}.txt" for index in range(COUNT)]
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        for index, log in enumerate(logs):
            process = subprocess.Popen(
                [sys.executable, WORKER, f"127.0.0.1:{port}", str(COUNT), str(index)],
                env=environment,
                cwd=folder,
                stdout=stack.enter_context(log.open("w")),
                stderr=subprocess.STDOUT,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT)
        statuses = [process.poll() for process in processes]
    return statuses, [log.read_text(errors="replace") for log in logs]


def test_every_operator_across_processes(tmp_path: pathlib.Path) -> None:
    statuses, outputs = run(tmp_path)
    # Another program may have taken the port before the coordinator did.
    if re.search("Failed to (add port to|start RPC) server", outputs[0]):
        statuses, outputs = run(tmp_path)
    assert statuses == [0] * COUNT, "\n".join(outputs)
    for output in outputs:
        operators = re.findall(r"^checking (\w+)", output, re.M)
        assert set(operators) == set(reference.__all__) - {"nearest"}
