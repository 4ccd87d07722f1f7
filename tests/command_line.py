"""Runs the command line in this process, and tells what it refuses."""

import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
from typing import Any

from dml_jax import cli


def run(*words: Any) -> tuple[Any, str, str]:
    """The exit status and both outputs, encoded as those of a process."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", "\n", False, True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main([*map(str, words)])
        except SystemExit as error:
            status = error.code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore
    return status, texts[0], texts[1]


def succeed(*words: Any) -> str:
    """The output of a command that must not fail, or its error."""
    status, out, err = run(*words)
    assert not err, err
    assert status == 0
    return out


def dispatch(model: Any, *options: Any) -> list[str]:
    """Runs a model, as a path, a text or an object, and returns its lines.

    Times are T, and the first line, which names the device, is missing.
    """
    path = pathlib.Path("model.json")
    if isinstance(model, pathlib.Path):
        path = model
    else:
        path.write_text(model if isinstance(model, str) else json.dumps(model))
    first, *lines = succeed("dispatch", path, *options).splitlines()
    assert re.fullmatch("Running on '.*'", first)
    return [re.sub(r"\d+\.\d{4} ms", "T ms", line) for line in lines]


class Refused(Exception):
    """The line that a command prints before it exits with status 2."""


def refuse(*words: Any, printed: str = "") -> None:
    """Raises what a command refuses, which changes no file."""
    before = snapshot()
    status, out, err = run(*words)
    assert (status, out, err[-1:]) == (2, printed, "\n")
    assert snapshot() == before
    head, _, message = err[:-1].partition(": error: ")
    if message:  # by the parser of the arguments
        assert head.startswith(f"usage: python -m dml_jax {words[0]} ")
    else:
        assert err.startswith("dml_jax: ")
        message = err[:-1].removeprefix("dml_jax: ")
    raise Refused(message)


def snapshot() -> dict[pathlib.Path, Any]:
    """Every name below the parent of the current folder, and what small files hold."""
    paths = [pathlib.Path(root, n) for root, d, f in os.walk("..") for n in d + f]
    sizes = {path: path.lstat().st_size for path in paths}
    files = [p for p in paths if not p.is_symlink() and p.is_file() and sizes[p] < 9999]
    return sizes | {path: path.read_bytes() for path in files}


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status and the errors of a process that gets SIGINT after a second.

    Python drops an interrupt in a callback of its garbage collector, so it comes again.
    """
    try:
        for seconds in (1, 30, 30):  # another one would kill it while it ends
            try:
                _, errors = process.communicate(timeout=seconds)
                return process.returncode, errors
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
        raise AssertionError("the process goes on")
    finally:
        process.kill()
