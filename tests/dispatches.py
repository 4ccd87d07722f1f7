"""A valid DxDispatch model, changes of it, and the command line that runs it."""

import contextlib
import copy
import io
import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from dml_jax import cli

Dispatch = Callable[..., list[str]]  # the fixture

TEXT = """{
"resources": {
 "A": {"initialValuesDataType": "FLOAT32", "initialValues": [1, 2, 3, "nan"]},
 "B": {"initialValuesDataType": "FLOAT32", "sizeInBytes": 32,
       "initialValues": {"valueCount": 8, "value": 0}},
 "C": {"initialValuesDataType": "INT16",
       "initialValues": {"valueCount": 3, "valueStart": 5, "valueDelta": 2}},
 "D": {"initialValues": [{"type": "UINT8", "value": 7}]},
 "E": {"initialValuesDataType": "UINT8", "initialValues": {"sourcePath": "in.bin"}}
},
"dispatchables": {
 "slice": {"type": "DML_OPERATOR_SLICE1", "desc": {
  "InputTensor": {"DataType": "FLOAT32", "Sizes": [4]},
  "OutputTensor": {"DataType": "FLOAT32", "Sizes": [2]}, "DimensionCount": 1,
  "InputWindowOffsets": [0], "InputWindowSizes": [4], "InputWindowStrides": [-2]}},
 "fill": {"type": "FILL_VALUE_CONSTANT", "ValueDataType": "UINT8",
  "Value": {"UInt8": 3}, "OutputTensor": {"Desc": {"DataType": "UINT8", "Sizes": [4]}}}
},
"commands": [
 {"type": "dispatch", "dispatchable": "slice",
  "bindings": {"InputTensor": "A", "OutputTensor": "B"}},
 {"type": "dispatch", "dispatchable": "fill", "bindings": {"OutputTensor": ["C"]}},
 {"type": "print", "resource": "B"},
 {"type": "writeFile", "resource": "B", "targetPath": "out.npy", "dimensions": [2, 4]},
 {"type": "writeFile", "resource": "A", "targetPath": "out.bin"}
]}"""
MODEL = json.loads(TEXT)
REMOVED: Any = object()


def changed(place: str, value: Any) -> Any:
    """The valid model with another value in a place, such as commands.0.type."""
    model = copy.deepcopy(MODEL)
    *path, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    parent: Any = model
    for key in path:
        parent = parent[key]
    if value is REMOVED:
        del parent[last]
    else:
        parent[last] = value
    return model


def run(*arguments: Any) -> tuple[Any, str, str]:
    """The exit status and both outputs of `dispatch`, encoded as those of a process."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", "\n", False, True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(["dispatch", *map(str, arguments)])
        except SystemExit as error:
            status = error.code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore
    return status, texts[0], texts[1]


def run_model(model: Any, *arguments: Any) -> tuple[Any, str, str]:
    """The same of a model, an object or bytes; one that fails changes no file."""
    text = model if isinstance(model, bytes) else json.dumps(model).encode()
    pathlib.Path("model.json").write_bytes(text)
    before = snapshot()
    result = run("model.json", "--max_bytes", 65536, *arguments)
    if result[0]:
        assert snapshot() == before
    return result


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
