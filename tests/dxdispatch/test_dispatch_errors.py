"""What is wrong with a DxDispatch model: one line, status 2, and no file touched.

A message is compared whole. One that begins with "must" is about the place that was
changed, and ends with what it got; one that ends with … goes on in words that are
Python's, NumPy's or the system's.
"""

import json
import os
import pathlib
import pickle
import signal

import jax
import numpy as np
import pytest
from dispatches import MODEL, TEXT, changed, run, run_model
from wrong_dispatches import NAMES, read_rows

from dml_jax import cli


def require_error(result, message):
    """One line with the message, and no command before it."""
    status, out, err = result
    assert (status, out, len(err.splitlines()), err[-1:]) == (2, "", 1, "\n")
    expected = f"dml_jax: model.json: {message}"
    if message.endswith("…"):
        expected = expected[:-1]
        err = err[: len(expected)]
    assert err.rstrip("\n") == expected


def require_rule(place, value, message):
    """The same of a place in the model that gets another value."""
    if message.startswith("must "):
        keys = "".join(f"[{k}]" if k.isdigit() else f".{k}" for k in place.split("."))
        message = f"`{keys[1:]}` {message}"
    if "; got" not in message and "…" not in message:
        message += f"; got {json.dumps(value, ensure_ascii=False)}"
    require_error(run_model(changed(place, value)), message)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the model and what it reads, in one that it must not read."""
    (tmp_path / "inside" / "folder.bin").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside")
    numbers = np.zeros(4, np.uint8)
    np.save("../outside.npy", numbers)
    for name, target in (
        *(("link.npy", "../outside.npy"), ("new.bin", "../new.bin")),
        *(("loop.npy", "loop.npy"), ("up", "..")),
    ):
        os.symlink(target, name)
    os.mkfifo("fifo.bin")
    np.save("pickle.npy", np.array([None]), allow_pickle=True)
    np.savez("zip", numbers)
    os.rename("zip.npz", "zip.npy")
    pathlib.Path("bare.npy").write_bytes(pickle.dumps([None]))
    np.save("short.npy", numbers)
    np.save("complex.npy", numbers.astype(np.complex64))
    np.save("int16.npy", numbers.astype(np.int16))
    pathlib.Path("in.bin").write_bytes(b"abc")
    for name, size in (("empty.bin", 0), ("short.npy", 131), ("large.bin", 2**24 + 1)):
        with open(name, "ab") as file:
            file.truncate(size)


def test_the_model_is_valid(folder):
    assert run_model(MODEL)[::2] == (0, "")
    expected = [[np.nan, 2, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(np.load("out.npy"), expected)


def test_nans_are_data_whatever_the_flag(folder):
    with jax.debug_nans(True):
        assert run_model(MODEL)[::2] == (0, "")


@pytest.mark.parametrize(("place", "value", "message"), list(read_rows()))
def test_values(folder, place, value, message):
    require_rule(place, value, message)


TEXTS = {
    b"": "`line 1, column 1` must be JSON; got …",
    TEXT[:-1].encode(): "`line 26, column 2` must be JSON; got …",
    b'{"a": /* 1}': "`line 1, column …",
    b'["\x01"]': "`line 1, column 3` must be JSON; got …",
    b"[" * 10**5: "`the model` must be JSON; got too many levels",
    b'{"a": 1, "a": 2}': "`a` must be a member once; got it twice",
    b"[NaN]": '`a number` must be finite, or a string like "nan"; got NaN',
    b"[" + b"1" * 401 + b"]": "`a number` must have at most 400 digits; got 401",
    b"{}": "`the model` must have a member `resources`; got {}",
    b'{"a": "\xff"}': "`the model` must be UTF-8…",
    TEXT.replace("[1, 2", "[1e999, 2").encode(): "`resources.A.initialValues[0]` …",
    TEXT.replace('"B"', '"\\ud800"').encode(): "`…",
}


@pytest.mark.parametrize(("text", "message"), list(TEXTS.items()))
def test_texts(folder, text, message):
    require_error(run_model(text), message)


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': %s}"
HEADERS = [
    HEADER % "(1000000000000,)",
    HEADER % "(-1,)",
    HEADER % "(0, 4611686018427387904, 4)",
    HEADER.replace("<f4", "|O") % "(1,)",
    HEADER % "(18446744073709551616,)",
    HEADER % "(1099511627776, 1099511627776)",
    HEADER % "(True,)",
    "{'shape': (1,",
    "{[]: 1}",
    "{1: 1, 'a': 1}",
    "-" * 5000 + "1",
    HEADER.replace("'<f4'", "('<f4',)") % "(1,)",
]


@pytest.mark.parametrize("header", HEADERS)
def test_npy_headers(folder, header):
    size = len(header).to_bytes(2, "little")
    text = b"\x93NUMPY\1\0" + size + header.encode() + bytes(8)
    pathlib.Path("x.npy").write_bytes(text)
    require_rule(NAMES["SOURCE"], "x.npy", NAMES["NUMPY"])


def test_files_of_both_folders_are_allowed(folder):
    pathlib.Path("folder.bin/model.json").write_text(TEXT)
    assert run("folder.bin/model.json")[::2] == (0, "")
    assert pathlib.Path("out.npy").is_file()


PATHS = {
    "none.json": "No such file or directory",
    "folder.bin": "Is a directory",
    "loop.npy": "Too many levels of symbolic links",
    "large.bin": "`the model` must have at most 16777216 bytes; got 16777217",
    "fifo.bin": "`the model` must be a regular file; got another kind",
    "/dev/null": "`the model` must be a regular file; got another kind",
}


@pytest.mark.parametrize(("path", "message"), list(PATHS.items()))
def test_paths_of_models(folder, monkeypatch, path, message):
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(2)
    try:
        assert run(path) == (2, "", f"dml_jax: {path}: {message}\n")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("name", ["numpy.save", "os.replace"])
@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "dml_jax: interrupted\n"),
        (MemoryError(), 2, "dml_jax: MemoryError\n"),
        (OSError(28, "full", "out.npy"), 2, "out.npy: full\n"),
        pytest.param(OSError(28, "full"), 2, "out.npy: full\n", marks=()),
    ],
)
def test_files_are_whole_or_not_there(
    folder, monkeypatch, name, error, status, message
):
    def fail(*arguments, **options):
        raise error

    pathlib.Path("out.npy").write_bytes(b"old")
    monkeypatch.setattr(name, fail)
    given, _, err = run_model(MODEL)
    assert (given, len(err.splitlines()), err[-len(message) :]) == (status, 1, message)


LEAST = "must be an integer from 1 to 10^18; got 0"
ARGUMENTS = {
    "": "the following arguments are required: model",
    "m --iterations 2": "unrecognized arguments: --iterations 2",
    "m -i 0": f"argument -i/--dispatch_iterations: {LEAST}",
    "m -r 0": f"argument -r/--dispatch_repeat: {LEAST}",
    "m --max_bytes 0": f"argument --max_bytes: {LEAST}",
    "m -w=-1": "argument -w/--warmup_samples: must be an integer from 0 to 10^18; "
    "got -1",
    "m -t=-1": "argument -t/--milliseconds_to_run: must be from 0 to 10^12; got -1",
    "m -I nan": "argument -I/--dispatch_interval: must be from 0 to 10^12; got nan",
    "m -v 3": "argument -v/--timing_verbosity: invalid choice: 3 (choose from 0, 1, 2)",
    "m -i 99999999999999999999": f"argument -i/--dispatch_iterations: {LEAST[:-1]}"
    + "9" * 20,
    "m -i 1000000000000000001": f"argument -i/--dispatch_iterations: {LEAST[:-1]}"
    "1000000000000000001",
    "m -t 1000000000001": "argument -t/--milliseconds_to_run: must be from 0 to 10^12; "
    "got 1000000000001",
    "m -i x": f"argument -i/--dispatch_iterations: {LEAST[:-1]}x",
}


@pytest.mark.parametrize(("arguments", "message"), list(ARGUMENTS.items()))
def test_arguments(folder, arguments, message):
    status, out, err = run(*arguments.split())
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].partition(": error: ")[2] == message


def test_the_limits_that_messages_name_are_accepted(folder, monkeypatch):
    timings = []
    monkeypatch.setattr(
        cli, "run_model", lambda _, timing, *rest: timings.append(timing)
    )
    assert run_model(MODEL, "-i", "1" + "0" * 18, "-t", "1e12")[0] == 0
    (timing,) = timings
    assert (timing.iterations, timing.milliseconds) == (10**18, 1e12)


def test_devices(folder):
    names = ", ".join(f"{d.platform}:{d.id} ({d.device_kind})" for d in jax.devices())
    message = f"dml_jax: `--device` must be one of {names}; got cpu:99\n"
    assert run_model(MODEL, "--device", "cpu:99") == (2, "", message)


def test_what_xla_raises(folder, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("no memory\n  is left")

    monkeypatch.setattr(cli, "run_model", fail)
    assert run_model(MODEL)[::2] == (2, "dml_jax: no memory is left\n")
    with pytest.raises(RuntimeError):
        run_model(MODEL, "--debug")
