"""Models take no more memory than this, whatever they say."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
MORE = 2**29  # bytes, beyond what JAX and the tests have when they start
CHILD = f"""
import resource, sys
import jax, numpy, onnx, pytest
jax.numpy.zeros(1).block_until_ready()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {MORE}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    numpy.ones({2 * MORE}, numpy.uint8)  # more than was given back since
    sys.exit("there is no limit")
except MemoryError:
    pass
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "tests",
    [
        ["test_fuzz_dispatch.py", "../wrong_calls/test_wrong_calls.py::test_models"],
        ["test_fuzz_onnx.py"],
    ],
    ids=["dispatch", "onnx"],
)
def test_memory_is_bounded(tests: list[str]) -> None:
    command = [
        *[sys.executable, "-c", CHILD, "-q", "-p", "no:cacheprovider", "--color=no"],
        *[str(HERE / name) for name in tests],
    ]
    # A GPU's driver takes addresses for all that it may ever have, and every thread for
    # an arena of its own.
    child = subprocess.run(
        command,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert " passed, " in child.stdout, child.stdout
