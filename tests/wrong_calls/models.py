"""DxDispatch models in which something is wrong, and the files that they name."""

import copy
import functools
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from command_line import Refused, refuse

from wrong_calls.form import Wrong

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


def named(place: str) -> str:
    """A place as messages write it: commands[0].type for commands.0.type."""
    return re.sub(r"\.(\d+)", r"[\1]", place)


def make_folder(parent: pathlib.Path) -> pathlib.Path:
    """The folder of the model and what it reads, in one that it must not read."""
    (parent / "inside" / "folder.bin").mkdir(parents=True)
    folder, numbers = parent / "inside", np.zeros(4, np.uint8)
    np.save(parent / "outside.npy", numbers)
    for name in ("outside.npy", "new.bin"):
        os.symlink(f"../{name}", folder / name)
    os.symlink("..", folder / "up")
    os.mkfifo(folder / "fifo.bin")
    np.save(folder / "folder.bin" / "In.npy", numbers)
    np.save(folder / "pickle.npy", np.array([None]), allow_pickle=True)
    np.save(folder / "complex.npy", numbers.astype(np.complex64))
    np.save(folder / "int16.npy", numbers.astype(np.int16))
    for name, size in {"in.bin": 3, "empty.bin": 0, "large.bin": 2**24 + 1}.items():
        (folder / name).touch()
        os.truncate(folder / name, size)
    return folder


def wrong(name: str, model: Any, message: str) -> Wrong:
    """A model, as an object or bytes, in the current folder."""

    def run() -> None:
        content = model if isinstance(model, bytes) else json.dumps(model).encode()
        pathlib.Path("model.json").write_bytes(content)
        refuse("dispatch", "model.json", "--max_bytes", 65536)

    return Wrong(name, run, Refused, f"model.json: {message}")


# Values -------------------------------------------------------------------------------

A, B, C, D = (f"resources.{name}.initialValues" for name in "ABCD")
SLICE, FILL = "dispatchables.slice", "dispatchables.fill"
DESC = f"{SLICE}.desc"
IN = f"{DESC}.InputTensor"
BIND = "commands.0.bindings"
SOURCE = "resources.E.initialValues.sourcePath"
TARGET = "commands.3.targetPath"

VALUES = {  # wrong values in places of the valid model, which the messages name
    "more": [1],
    "resources": [[]],
    "commands": [{}],
    "commands.0": [7],
    "resources.A": [None],
    A: [[], {"value": 1}],
    f"{A}.1": [1e39],
    "resources.A.initialValuesDataType": ["FLOAT", "UINT4", 1],
    "resources.A.sizeInBytes": [15, -1],
    "resources.A.initialValuesOffsetInBytes": [2**64],
    "resources.A.type": ["texture", None],
    B: [7],
    f"{B}.valueCount": [0],
    f"{B}.value": [{}],
    f"{B}.x": [1],
    f"{C}.valueStart": [2.5],
    f"{C}.valueDelta": [32768],
    f"{D}.0.type": ["UNKNOWN"],
    f"{D}.0.value": [256],
    f"{SLICE}.sourcePath": ["model.onnx"],
    f"{DESC}": [None],
    f"{DESC}.Axis": [1],
    f"{IN}.Type": ["INVALID"],
    f"{IN}.DataType": ["INT4"],
    f"{IN}.DimensionCount": [True, 1.0, None, "1", [], -1, 2**64],
    f"{IN}.Strides": [[1, 1]],
    f"{SLICE}.dmlCompileType": ["DmlCompileAll"],
    f"{SLICE}.executionFlags": ["FAST"],
    f"{SLICE}.bindings": [7],
    f"{FILL}.ValueDataType": ["UNKNOWN"],
    f"{FILL}.Value": [256, {}],
    f"{FILL}.OutputTensor.Sizes": [[4]],
    "commands.0.type": ["run"],
    "commands.0.dispatchable": ["sliced"],
    "commands.0.threadGroup": [[1]],
    BIND: ["A", {"InputTensor": "A"}],
    f"{BIND}.InputTensor": [
        *["Z", "D", ["A", "B"]],
        *[{"name": "B", "elementOffset": 2}, {"name": "D", "elementOffset": 4}],
    ],
    "commands.2.resource": ["D"],
    "commands.2.verbose": [1],
    "commands.3.resource": ["D"],
    "commands.3.dimensions": [[3, 3], [1] * 65],
    SOURCE: [
        *["folder.bin", "fifo.bin", "empty.bin", "large.bin", "../outside.npy"],
        *["up/outside.npy", "/dev/zero", "pickle.npy", "complex.npy", "int16.npy"],
    ],
    TARGET: [
        *["x.txt", "fifo.bin", "../out.npy", "new.bin", "folder.bin/../../out.npy"],
        *["up/out.npy", "/out.npy", "in.bin/out.npy", 1],
    ],
}
ELSEWHERE = [  # changes whose messages name another place
    (A, REMOVED, "resources.A"),
    ("resources.A.sizeInBytes", 2**64 - 1, "resources.A"),
    ("resources.A.initialValuesOffsetInBytes", 2**40, "resources.A"),
    (f"{B}.value", REMOVED, B),
    ("resources.B.initialValuesDataType", REMOVED, "resources.B"),
    (f"{C}.valueCount", 2**32 - 1, f"{C}.valueCount"),
    (f"{C}.valueDelta", REMOVED, C),
    (f"{D}.0", 1, "resources.D"),
    (D, [{"type": "UINT8", "value": 7}, 1], f"{D}[1]"),
    (f"{D}.0.type", REMOVED, f"{D}[0]"),
    ("resources.E.initialValuesDataType", REMOVED, "resources.E"),
    (f"{SLICE}.type", REMOVED, SLICE),
    (f"{SLICE}.Desc", {}, SLICE),
    (IN, REMOVED, DESC),
    (f"{IN}.Flags", ["NONE", "OWNED"], f"{IN}.Flags[1]"),
    (f"{IN}.Flags", "OWNED_BY_DML", f"{SLICE}.bindings"),
    (f"{IN}.Sizes", [2**32], f"{IN}.Sizes[0]"),
    (f"{IN}.Sizes", [2**32 - 1] * 8, IN),  # more than 2^64 bytes
    (IN, {"DataType": "FLOAT32", "Sizes": [200, 200], "Strides": [1, 1]},
     f"{IN}.Strides"),
    (f"{IN}.DimensionCount", 2, f"{IN}.Sizes"),
    (f"{DESC}.DimensionCount", 2, f"{DESC}.InputWindowOffsets"),
    (f"{DESC}.InputWindowStrides", [2**31], f"{DESC}.InputWindowStrides[0]"),
    (f"{SLICE}.bindings", {"InputTensor": "A"}, f"{SLICE}.bindings.InputTensor"),
    (f"{FILL}.Value", {"Float32": 3}, f"{FILL}.Value.Float32"),
    ("commands.0.type", REMOVED, "commands.0"),
    *(
        (f"{BIND}.InputTensor", {"name": "A", "elementOffset": 1, member: value},
         f"{BIND}.InputTensor.{place}")
        for member, value, place in [
            ("elementStride", 2**32, "elementStride"),
            ("elementSizeInBytes", 2**64, "elementSizeInBytes"),
            ("offset", 4, "offset"),
        ]
    ),
    (f"{BIND}.InputTensor", "B", BIND),
    ("commands.3.dimensions", [-1], "commands.3.dimensions[0]"),
]  # fmt: skip
MESSAGES = [
    ("resources.A.size", 1, "`resources.A.size` must be one of the members "
     "initialValues, initialValuesDataType, initialValuesOffsetInBytes, resampleMode, "
     "resampleSize, sizeInBytes, type; got size"),
    (IN, {"DataType": "FLOAT32", "Size": [4]}, f"`{IN}.Size` …; got Size. Write Sizes"),
    (f"{A}.0", None, f'`{A}[0]` must be a number of FLOAT32, "nan", "inf" or "-inf"; '
     "got null"),
    (f"{B}.valueCount", 2**32 - 1, f"`{B}.valueCount` must fit into the 65520 bytes "
     "that are left of `max_bytes`, 65536; got 17179869180 bytes"),
    (SOURCE, "outside.npy", f"`{SOURCE}` must be inside the model's folder, the "
     'current one, `input_path` or `output_path`; got "outside.npy"'),
    (SOURCE, "none.npy", f"`{SOURCE}` must be a file that exists, in the model's "
     'folder or the current one; got "none.npy"'),
    *((SOURCE, path, f"`{SOURCE}` must be a file that …; got {json.dumps(path)}. Write "
       "folder.bin/In.npy: / separates folders, and capitals count")
      for path in ("folder.bin\\In.npy", "Folder.bin/in.npy", "FOLDER.BIN\\IN.NPY")),
    (TARGET, "\ud800", f"`{named(TARGET)}` must be a printable string; got "
     '"\\ud800"'),
    (D, "deferred", f"`{D}` must be known when the model is read: deferred buffers "
     'are not supported; got "deferred"'),
    (A, {"sourcePath": "x.PNG"}, f"`{A}.sourcePath` must be a file of numbers, not an "
     'image; got "x.PNG"'),
    (TARGET, "x.jpeg", f"`{named(TARGET)}` must be a file of numbers, not an image; "
     'got "x.jpeg"'),
    (f"{SLICE}.type", "SLICE2", "`dispatchables.slice.type` must be one of "
     "DML_OPERATOR_REVERSE_SUBSEQUENCES, …; got SLICE2"),
    (f"{DESC}.InputWindowSizes", [5], f"`{SLICE}`: DML_SLICE1_OPERATOR_DESC: "
     "`InputWindowOffsets[0] + InputWindowSizes[0]…"),
    (f"resources.{'a' * 999}", {"initialValues": []},
     f"`resources.{'a' * 197}….initialValues` must have at least one element; got []"),
]  # fmt: skip

# Texts and files ----------------------------------------------------------------------

JSON = "`the model` must be valid JSON;"
TEXTS = [
    (b"", f"{JSON} the file is empty"),
    (b'{"a": True}', f"{JSON} line 1, column 7: Expecting value; got True. JSON writes "
     "true"),
    (TEXT[:-1].encode(), f"{JSON} line 26, column 2: …"),
    (b'{"a": /* 1}', f"{JSON} line 1, column …"),
    (b'{"a": 1, "a": 2}', "`a` must be given once; got it twice"),
    *((TEXT.replace("[1, 2", f"[{text}, 2").encode(),
       f"`{A}[0]` must be a number of …; got {text}…")
      for text in ("NaN", "-Infinity")),
    (TEXT.replace('"A": {', '"A": {"sizeInBytes": 16, "sizeInBytes": 16,', 1).encode(),
     "`resources.A.sizeInBytes` must be given once; got it twice"),
    (b"{}", "`the model` must have a member `resources`; got {}"),
    (b'{"a": "\xff"}', "`the model` must be JSON in UTF-8; got …"),
    (TEXT.replace("[1, 2", "[1e999, 2").encode(), f"`{A}[0]` must be a number of…"),
    (TEXT.replace('"B"', '"\\ud800"').encode(), "`resources` must have printable…"),
]  # fmt: skip
PATHS = {
    "none.json": "No such file or directory",
    "folder.bin": "Is a directory",
    "empty.bin": "`the model` must be valid JSON; the file is empty",
}
FOLDERS = [
    ("input_path", "in.bin", "a folder that exists"),
    ("output_path", "in.bin/new", "a folder"),
]


def of_values() -> Iterator[Wrong]:
    for place, values in VALUES.items():
        for value in values:
            yield wrong(place, changed(place, value), f"`{named(place)}…")
    for place, value, reported in ELSEWHERE:
        yield wrong(place, changed(place, value), f"`{named(reported)}…")
    for place, value, message in MESSAGES:
        yield wrong(place[:80], changed(place, value), message)


def of_texts() -> Iterator[Wrong]:
    for text, message in TEXTS:
        yield wrong(f"text-{message[:40]}", text, message)


def of_paths() -> Iterator[Wrong]:
    for path, message in PATHS.items():
        run = functools.partial(refuse, "dispatch", path)
        yield Wrong(path, run, Refused, f"{path}: {message}")
    for option, path, rule in FOLDERS:
        run = functools.partial(refuse, "dispatch", "model.json", f"--{option}", path)
        yield Wrong(option, run, Refused, f"`{option}` must be {rule}; got {path}")


ROWS = [*of_values(), *of_texts(), *of_paths()]
