"""Faults from outside: too little memory, an interrupt, several writers of a file.

The error is one line, no file is left half written, and the next call is right.
"""

import concurrent.futures
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import pytest
from command_line import interrupted
from models import bind, buffer, floats, model, save

import dml_jax
from dml_jax import cli, reference

pytestmark = pytest.mark.usefixtures("interrupts_reach_children")

ROOT = pathlib.Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


# Memory -------------------------------------------------------------------------------

HUGE = 2**47  # elements of four bytes, which no address space holds
ONE = np.ones(1, np.float32)


def expanded(array: Any, *shape: int) -> np.ndarray:
    """An array that takes no memory until it is copied."""
    return np.broadcast_to(array, shape)


def reverse_each(count: int) -> jax.Array:
    """One line, reversed with many lengths at once."""
    x = jnp.ones((2**20, 8))
    reverse = jax.vmap(lambda n: dml_jax.reverse_subsequences(x, n[None, None], 0))
    return reverse(jnp.zeros(count // x.size, jnp.int32))


REQUESTS = {
    "reverse_subsequences": lambda: dml_jax.reverse_subsequences(
        expanded(ONE, 2**20, HUGE // 2**20), np.ones((1, 1), np.int32), 0
    ),
    "reverse_sequence": lambda: dml_jax.reverse_sequence(
        expanded(ONE, 2**31, 2, HUGE // 2**32), np.ones(2, np.int32)
    ),
    "reverse_subsequences of many lengths": lambda: reverse_each(HUGE),
    "slice": lambda: dml_jax.slice(expanded(ONE, HUGE), (3,), (HUGE // 2,)),
    "slice1": lambda: dml_jax.slice1(expanded(ONE, HUGE), (0,), (HUGE,), (-1,)),
    "slice_grad": lambda: dml_jax.slice_grad(ONE, (HUGE,), (3,), (1,), (-1,)),
    "fill_value_constant": lambda: dml_jax.fill_value_constant((HUGE,), "float32", 1),
    "fill_value_sequence": lambda: dml_jax.fill_value_sequence(
        (2**24, HUGE // 2**24), "float32", 1, 0.5
    ),
    "derivative of a fill": lambda: jax.jvp(
        lambda x: dml_jax.fill_value_sequence((HUGE,), "float32", x, x), (1.0,), (1.0,)
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


@pytest.mark.exhaustive
def test_requests_beyond_a_limit_leave_a_process_usable():
    worker = ROOT / "tests" / "processes" / "limited.py"
    done = subprocess.run(
        [sys.executable, worker],
        env=ENVIRONMENT | {"JAX_DISABLE_JIT": "0", "JAX_DEBUG_NANS": "0"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        "slice_grad Out of memory",
        "slice_grad 1",
        "fill_value_sequence Out of memory",
        "fill_value_sequence 1024",
        "fill_value_constant Out of memory",
        "fill_value_constant 1024",
        "dispatch 2 0",
        "dispatch 0 1024",
    ], done.stderr
    errors = [line for line in done.stderr.splitlines() if "dml_jax:" in line]
    assert len(errors) == 1
    assert errors[0].startswith("dml_jax: Unable to allocate 2.00 GiB for an array")


# Interrupts ---------------------------------------------------------------------------

INTERRUPTED = "dml_jax: interrupted\n"


def write_models(value: int, count: int) -> dict[str, list[str]]:
    """Writes models whose result is `count` times `value`; how to run and save each."""
    desc = {
        "OutputTensor": floats(count),
        "ValueDataType": "FLOAT32",
        "Value": value,
    }
    given = model(
        {"r": buffer([0] * count)},
        {"fill": {"type": "FILL_VALUE_CONSTANT", "desc": desc}},
        [bind("fill", OutputTensor="r"), save("r", "out.npy")],
    )
    pathlib.Path(f"{value}.json").write_text(json.dumps(given))
    text = f"""<ir_version: 10, opset_import: ["": 25]> g () => (float[n] y) {{
      s = Constant<value_ints = [{count}]>()
      y = ConstantOfShape<value: tensor = float[1] {{{value}}}>(s)
    }}"""
    onnx_model = onnx.parser.parse_model(text)
    pathlib.Path(f"{value}.onnx").write_bytes(onnx_model.SerializeToString())
    return {
        "dispatch": ["dispatch", f"{value}.json"],
        "onnx": ["onnx", f"{value}.onnx", "--output", "y=out.npy"],
    }


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def run_out_of_space(*names: str) -> None:
    raise OSError(28, "full", *names)


@pytest.mark.parametrize(
    ("fail", "status", "message"),
    [
        (interrupt, 130, INTERRUPTED),
        (run_out_of_space, 2, "out.npy: full\n"),
        (functools.partial(run_out_of_space, "temporary"), 2, "out.npy: full\n"),
    ],
    ids=["interrupt", "full", "full-with-a-name"],
)
@pytest.mark.parametrize("function", ["dml_jax._array_files._write", "os.replace"])
@pytest.mark.parametrize("command", ["dispatch", "onnx"])
def test_a_write_that_fails_leaves_no_trace(
    command: str,
    function: str,
    fail: Callable[[], None],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
):
    def instead(file: Any, *_: object, **__: object) -> None:
        if function.endswith("_write"):
            file.write(b"half")
        fail()

    words = write_models(5, 3)[command]
    pathlib.Path("out.npy").write_bytes(b"as it was")
    before = sorted(pathlib.Path().iterdir())
    with mock.patch(function, instead):
        assert cli.main(words) == status
    error = capsys.readouterr().err
    assert error.endswith(message)
    assert len(error.splitlines()) == 1
    assert sorted(pathlib.Path().iterdir()) == before
    assert pathlib.Path("out.npy").read_bytes() == b"as it was"
    assert cli.main(words) == 0
    np.testing.assert_array_equal(np.load("out.npy"), np.full(3, 5, np.float32))


def test_a_command_runs_in_a_thread():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(cli.main, ["info"]).result() == 0


@pytest.mark.exhaustive
def test_verify_can_be_interrupted():
    words = [sys.executable, "-m", "dml_jax", "verify", "--cases", "1000000"]
    with subprocess.Popen(
        words,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("device")
        assert interrupted(process) == (130, INTERRUPTED)


# Several writers ----------------------------------------------------------------------

WRITER = """
import sys
from dml_jax import cli
for _ in range(30):
    assert cli.main(sys.argv[1:]) == 0
"""


@pytest.mark.exhaustive
def test_every_read_of_a_file_with_several_writers_is_of_a_whole_file():
    """Each writer has its own value and its own number of elements."""
    counts = {3: 30000, 4: 400, 5: 50000}
    models = {value: write_models(value, count) for value, count in counts.items()}
    words = [models[3]["dispatch"], models[4]["onnx"], models[5]["onnx"]]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, *arguments],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
        )
        for arguments in words
    ]
    seen = set()
    try:
        while any(writer.poll() is None for writer in writers):
            if pathlib.Path("out.npy").exists():
                found = np.load("out.npy")
                value = int(found[0])
                assert found.shape == (counts[value],)
                assert (found == value).all()
                seen.add(value)
    finally:
        for writer in writers:
            writer.kill()
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert len(seen) > 1
    assert not [path for path in pathlib.Path().iterdir() if path.name[0] == "."]
