"""The example of speaker recognition shows its progress, in a process of its own."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "docs/examples/speaker_recognition.py"

pytestmark = pytest.mark.exhaustive


def test_a_log_file_has_a_line_for_each_variant(tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLE, tmp_path)  # which needs no other file
    options = "--quick", "--seeds=1", "--epochs=1"
    child = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE.name, *options],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_JIT": "0",  # with which the example is slow
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr
    assert child.stderr.splitlines() == [
        "Training variant 1 of 4: forward only",
        "Training variant 2 of 4: jnp.flip",
        "Training variant 3 of 4: flip_sequences",
        "Training variant 4 of 4: reverse_padded",
    ]
    assert child.stdout.endswith("Drawn in speaker_recognition.png\n")
