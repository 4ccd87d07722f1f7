"""Faults from outside: too little memory, a full disk, an interrupt.

The error is one line, no file is left half written, and the next call is right.
"""

import concurrent.futures
import functools
import pathlib
import signal
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

import dml_jax
from dml_jax import cli, reference

HUGE = 2**47  # elements of four bytes, which no address space holds
ONE = np.ones(1, np.float32)
REQUESTS = {
    "reverse_subsequences": lambda: dml_jax.reverse_subsequences(
        np.broadcast_to(ONE, (2**20, HUGE // 2**20)), np.ones((1, 1), np.int32), 0
    ),
    "slice_grad": lambda: dml_jax.slice_grad(ONE, (HUGE,), (3,), (1,), (-1,)),
    "fill_value_sequence": lambda: dml_jax.fill_value_sequence(
        (2**24, HUGE // 2**24), "float32", 1, 0.5
    ),
    "checked": lambda: dml_jax.checked(
        lambda x: dml_jax.slice_grad(x, (HUGE,), (3,), (1,), (-1,))
    )(ONE),
}


# Operation by operation, a process may be killed before it asks for too much, and JAX
# aborts if it looks for NaNs in a result that it had no memory for.
@pytest.mark.usefixtures("with_jit", "nans_are_data")
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_no_memory_for_a_huge_result(request_: Callable[[], Any]):
    with pytest.raises(RuntimeError, match="Out of memory"):
        jax.block_until_ready(request_())
    y = dml_jax.fill_value_sequence((3,), "float32", 1, 0.5)
    np.testing.assert_array_equal(
        y, reference.fill_value_sequence((3,), np.float32, 1, 0.5)
    )


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def run_out_of_space(*names: str) -> None:
    raise OSError(28, "full", *names)


@pytest.mark.usefixtures("interrupts_reach_children")
@pytest.mark.parametrize(
    ("fail", "status", "message"),
    [
        (interrupt, 130, "dml_jax: interrupted\n"),
        (run_out_of_space, 2, "out.npy: full\n"),
        (functools.partial(run_out_of_space, "temporary"), 2, "out.npy: full\n"),
    ],
    ids=["interrupt", "full", "full-with-a-name"],
)
@pytest.mark.parametrize("function", ["dml_jax._array_files._write", "os.replace"])
def test_a_write_that_fails_leaves_the_file_as_it_was(
    function: str,
    fail: Callable[[], None],
    status: int,
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def instead(file: Any, *_: object, **__: object) -> None:
        if function.endswith("_write"):
            file.write(b"half")
        fail()

    monkeypatch.chdir(tmp_path)
    options = "--sizes 3 --value-data-type float32 --value 5 --output out.npy"
    words = ["run", "fill_value_constant", *options.split()]
    pathlib.Path("out.npy").write_bytes(b"as it was")
    with mock.patch(function, instead):
        assert cli.main(words) == status
    error = capsys.readouterr().err
    assert error.endswith(message)
    assert len(error.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]
    assert pathlib.Path("out.npy").read_bytes() == b"as it was"
    assert cli.main(words) == 0
    np.testing.assert_array_equal(np.load("out.npy"), np.full(3, 5, np.float32))


def test_a_command_runs_in_a_thread():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(cli.main, ["info"]).result() == 0
