"""Runs the examples of the documents, each in a process of its own."""

import os
import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).parents[1] / "docs/examples"


def run_example(
    path: pathlib.Path, *arguments: str, folder: pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """What an example prints, on CPU, with `folder` as the current one."""
    child = subprocess.run(
        [sys.executable, "-W", "error", path, *arguments],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_JIT": "0",  # with which examples are slow
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr
    return child
