"""What is wrong with a DxDispatch model: one line, status 2, and no file touched.

Messages name the model and the place in it. Some are compared as a whole; the wording
of the others may change.
"""

import os
import pathlib
import pickle
import re
import signal
from typing import Any

import jax
import numpy as np
import pytest
from dispatches import MODEL, REMOVED, TEXT, changed, run, run_model

pytestmark = pytest.mark.usefixtures("folder")


def require_error(result: tuple[Any, str, str], place: str) -> str:
    """Requires one line that names the place, with no command before it."""
    status, out, err = result
    assert (status, out, len(err.splitlines()), err[-1:]) == (2, "", 1, "\n")
    head = f"dml_jax: model.json: `{place}`"
    assert err.startswith(head), (err, head)
    return err.removeprefix(head).strip()


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the model and what it reads, in one that it must not read."""
    (tmp_path / "inside" / "folder.bin").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside")
    numbers = np.zeros(4, np.uint8)
    np.save("../outside.npy", numbers)
    links = {
        "link.npy": "../outside.npy",
        "new.bin": "../new.bin",
        "loop.npy": "loop.npy",
        "up": "..",
    }
    for name, target in links.items():
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


@pytest.mark.parametrize("flag", [False, True])
def test_the_model_is_valid_with_nans_as_data(flag: bool):
    with jax.debug_nans(flag):
        assert run_model(MODEL)[::2] == (0, "")
    expected = [[np.nan, 2, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(np.load("out.npy"), expected)


# Values -------------------------------------------------------------------------------

A, B, C, D = (f"resources.{name}.initialValues" for name in "ABCD")
SLICE, FILL = "dispatchables.slice", "dispatchables.fill"
DESC = f"{SLICE}.desc"
IN = f"{DESC}.InputTensor"
BIND = "commands.0.bindings"
SOURCE = "resources.E.initialValues.sourcePath"
TARGET = "commands.3.targetPath"

WRONG = {  # wrong values in places of the valid model, which the messages name
    "more": [1],
    "resources": [[]],
    "commands": [{}],
    "commands.0": [7],
    "resources.A": [None],
    A: [[], {"value": 1}],
    f"{A}.0": [None, 10**399],
    f"{A}.1": ["infinity", 1e39],
    f"{A}.2": [[[1]]],
    "resources.A.initialValuesDataType": ["FLOAT", "UINT4", 1],
    "resources.A.sizeInBytes": [15, -1, None],
    "resources.A.initialValuesOffsetInBytes": [2**64],
    "resources.A.size": [1],
    "resources.A.type": ["texture", None],
    B: [7],
    f"{B}.valueCount": [0, 2**32 - 1],
    f"{B}.value": [{}],
    f"{B}.x": [1],
    f"{C}.valueStart": [2.5, "nan"],
    f"{C}.valueDelta": [32768],
    f"{D}.0.type": ["UNKNOWN"],
    f"{D}.0.value": [256],
    f"{SLICE}.sourcePath": ["model.onnx"],
    f"{DESC}": [None],
    f"{DESC}.Axis": [1],
    f"{IN}.Type": ["INVALID"],
    f"{IN}.DataType": ["INT4"],
    f"{IN}.Strides": [[1, 1]],
    f"{SLICE}.dmlCompileType": ["DmlCompileAll"],
    f"{SLICE}.executionFlags": ["FAST"],
    f"{SLICE}.bindings": [7],
    f"{FILL}.ValueDataType": ["UNKNOWN"],
    f"{FILL}.Value": [256, {}],
    f"{FILL}.OutputTensor.Sizes": [[4]],
    f"{FILL}.Valve": [3],
    "commands.0.type": ["run"],
    "commands.0.dispatchable": ["sliced"],
    "commands.0.threadGroup": [[1]],
    BIND: ["A", {"InputTensor": "A"}],
    f"{BIND}.IndicesTensor": ["A"],
    f"{BIND}.InputTensor": [
        *("Z", "D", ["A", "B"]),
        {"name": "B", "elementOffset": 2},
        {"name": "A", "elementOffset": 4},
        {"name": "D", "elementOffset": 4},
    ],
    "commands.2.resource": ["D"],
    "commands.2.verbose": [1],
    "commands.3.resource": ["D"],
    "commands.3.dimensions": [[3, 3], [1] * 65],
    SOURCE: [
        *("none.npy", "", "folder.bin", "fifo.bin", "empty.bin", "large.bin"),
        *("../outside.npy", "/dev/zero", "link.npy", "loop.npy", "x" * 300),
        *("a\0b", "\ud800", "pickle.npy", "zip.npy", "bare.npy", "short.npy"),
        *("complex.npy", "int16.npy"),
    ],
    TARGET: [
        *("x.txt", ".npy", "folder.bin", "fifo.bin", "../out.npy", "new.bin"),
        *("folder.bin/../../out.npy", "up/out.npy", "/out.npy", "in.bin/out.npy"),
        *("x" * 300 + ".npy", "a\0.npy", 1),
    ],
}
ELSEWHERE = [  # changes whose messages name another place
    (A, REMOVED, "resources.A"),
    ("resources.A.sizeInBytes", 2**64 - 1, "resources.A"),
    ("resources.A.initialValuesOffsetInBytes", 70000, "resources.A"),
    (f"{B}.value", REMOVED, B),
    ("resources.B.initialValuesDataType", REMOVED, "resources.B"),
    (f"{C}.value", 1, C),
    (f"{C}.valueDelta", REMOVED, C),
    (f"{D}.0", 1, "resources.D"),
    (D, [{"type": "UINT8", "value": 7}, 1], f"{D}[1]"),
    (f"{D}.0.type", REMOVED, f"{D}[0]"),
    ("resources.E.initialValuesDataType", REMOVED, "resources.E"),
    (f"{SLICE}.type", REMOVED, SLICE),
    (f"{SLICE}.Desc", {}, SLICE),
    (DESC, REMOVED, SLICE),
    (IN, REMOVED, DESC),
    (f"{IN}.Flags", ["NONE", "OWNED"], f"{IN}.Flags[1]"),
    (f"{IN}.Flags", "OWNED_BY_DML", f"{SLICE}.bindings"),
    (f"{IN}.Sizes", [2**32], f"{IN}.Sizes[0]"),
    (f"{IN}.Sizes", [2**32 - 1] * 500, f"{IN}.Sizes"),
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
            ("elementCount", "4", "elementCount"),
            ("format", 41, "format"),
            ("shape", [2.5], "shape[0]"),
            ("offset", 4, "offset"),
            ("counter", "Z", "counter"),
            ("counterOffsetBytes", -1, "counterOffsetBytes"),
        ]
    ),
    (f"{BIND}.InputTensor", "B", BIND),
    ("commands.4.targetPath", "out.npy/a/out.bin", "commands.4.targetPath"),
    (TARGET, "./out.bin/out.npy", TARGET),
    ("commands.3.dimensions", [-1], "commands.3.dimensions[0]"),
    ("commands.3.dimensions", [0, 2**32 - 1], "commands.3.dimensions[0]"),
]  # fmt: skip
UNSUPPORTED = [
    (D, "deferred", f"a deferred buffer (`{D}`)"),
    (f"{A}", {"sourcePath": "x.PNG"}, f"an image (`{A}`)"),
    (TARGET, "x.jpeg", "an image (`commands[3].targetPath`)"),
]


def named(place: str) -> str:
    """A place as messages write it: commands[0].type for commands.0.type."""
    return re.sub(r"\.(\d+)", r"[\1]", place)


@pytest.mark.parametrize("place", WRONG)
def test_values(place: str):
    for value in WRONG[place]:
        require_error(run_model(changed(place, value)), named(place))


@pytest.mark.parametrize(
    ("place", "value", "reported"),
    [pytest.param(*row, id=f"{row[0]}-{row[2]}") for row in ELSEWHERE],
)
def test_values_reported_elsewhere(place: str, value: Any, reported: str):
    require_error(run_model(changed(place, value)), named(reported))


@pytest.mark.parametrize(("place", "value", "feature"), UNSUPPORTED)
def test_unsupported_features(place: str, value: Any, feature: str):
    message = require_error(run_model(changed(place, value)), "the model")
    rule = "must use only buffers of numbers, and .npy, .dat and .bin files"
    assert message == f"{rule}; got {feature}"


@pytest.mark.parametrize("kind", ["DML_OPERATOR_GEMM", "SLICE2", "hlsl"])
def test_unsupported_operators(kind: str):
    place = f"{SLICE}.type"
    message = require_error(run_model(changed(place, kind)), place)
    assert message.startswith("must be one of DML_OPERATOR_REVERSE_SUBSEQUENCES, ")
    assert message.endswith(f"; got {kind}")


MESSAGES = [
    ("resources.A.size", 1, "must be one of the members initialValues, "
     "initialValuesDataType, initialValuesOffsetInBytes, resampleMode, resampleSize, "
     "sizeInBytes, type; got size"),
    (f"{A}.0", None, 'must be a number of FLOAT32, "nan", "inf" or "-inf"; got null'),
    (f"{B}.valueCount", 2**32 - 1, "must fit into the 65520 bytes that are left of "
     "`max_bytes`, 65536; got 17179869180 bytes"),
    (SOURCE, "link.npy", "must be inside the model's folder, the current one, "
     '`input_path` or `output_path`; got "link.npy"'),
    (SOURCE, "none.npy", "must be a file that exists, in the model's folder or the "
     'current one; got "none.npy"'),
    (TARGET, "\ud800", 'must be a printable string; got "\\ud800"'),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "message"), MESSAGES)
def test_messages(place: str, value: Any, message: str):
    assert require_error(run_model(changed(place, value)), named(place)) == message


def test_a_misspelt_member_is_reported_before_the_missing_one():
    tensor = {"DataType": "FLOAT32", "Size": [4]}
    message = require_error(run_model(changed(IN, tensor)), f"{IN}.Size")
    assert message.endswith("; got Size. Write Sizes")


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("desc.InputTensor.TotalTensorSizeInBytes", 4, "InputTensor.Total"),
        ("desc.InputWindowSizes", [5], "InputWindowOffsets[0] + InputWindowSizes[0]"),
    ],
)
def test_rules_of_operators(member: str, value: Any, message: str):
    rest = require_error(run_model(changed(f"{SLICE}.{member}", value)), SLICE)
    assert rest.startswith(f": DML_SLICE1_OPERATOR_DESC: `{message}")


# Texts and files ----------------------------------------------------------------------

TEXTS = [
    (b"", "the model", "must be valid JSON; the file is empty"),
    (
        b'{"a": True}',
        "the model",
        "must be valid JSON; line 1, column 7: Expecting "
        "value; got True. JSON writes true",
    ),
    (TEXT[:-1].encode(), "the model", "must be valid JSON; line 26, column 2: "),
    (b'{"a": /* 1}', "the model", "must be valid JSON; line 1, column "),
    (b'["\x01"]', "the model", "must be valid JSON; line 1, column 3: "),
    (b"[" * 10**5, "the model", "must be valid JSON; got too many levels"),
    (b'{"a": 1, "a": 2}', "a", "must be given once; got it twice"),
    (b"[NaN]", "a number", 'must be finite, or a string like "nan"; got NaN'),
    (b"[" + b"1" * 401 + b"]", "a number", "must have at most 400 digits; got 401"),
    (b"{}", "the model", "must have a member `resources`; got {}"),
    (b'{"a": "\xff"}', "the model", "must be JSON in UTF-8; got "),
    (TEXT.replace("[1, 2", "[1e999, 2").encode(), f"{A}[0]", "must be a number of"),
    (TEXT.replace('"B"', '"\\ud800"').encode(), "resources", "must have printable"),
]


@pytest.mark.parametrize(("text", "place", "message"), TEXTS)
def test_texts(text: bytes, place: str, message: str):
    assert require_error(run_model(text), place).startswith(message)


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': %s}"
SHAPES = [(10**12,), (-1,), (0, 2**62, 4), (2**64,), (2**40, 2**40), (True,)]
HEADERS = [
    *(HEADER % str(shape) for shape in SHAPES),
    *(HEADER.replace("'<f4'", d) % "(1,)" for d in ("'|O'", "('<f4',)")),
    *("{'shape': (1,", "{[]: 1}", "{1: 1, 'a': 1}", "-" * 5000 + "1"),
]


@pytest.mark.parametrize("header", HEADERS)
def test_npy_headers(header: str):
    size = len(header).to_bytes(2, "little")
    text = b"\x93NUMPY\1\0" + size + header.encode() + bytes(8)
    pathlib.Path("x.npy").write_bytes(text)
    message = require_error(run_model(changed(SOURCE, "x.npy")), SOURCE)
    assert message.startswith("must be an .npy file without pickles (")


def test_files_of_both_folders_are_allowed():
    pathlib.Path("folder.bin/model.json").write_text(TEXT)
    assert run("folder.bin/model.json")[::2] == (0, "")
    assert pathlib.Path("out.npy").is_file()


@pytest.mark.parametrize(
    ("option", "path", "rule"),
    [
        ("input_path", "none", "a folder that exists"),
        ("input_path", "in.bin", "a folder that exists"),
        ("output_path", "in.bin", "a folder"),
        ("output_path", "in.bin/new", "a folder"),
    ],
)
def test_the_folders_of_the_options(option: str, path: str, rule: str):
    pathlib.Path("model.json").write_text(TEXT)
    message = f"dml_jax: `{option}` must be {rule}; got {path}\n"
    assert run("model.json", f"--{option}", path) == (2, "", message)


def test_long_names_are_cut():
    """In messages, and in what a run prints."""
    name = "a" * 10**6
    result = run_model(changed(f"resources.{name}", {"initialValues": []}))
    message = require_error(result, f"resources.{'a' * 197}….initialValues")
    assert message == "must have at least one element; got []"
    for place in (f"resources.A.{name}", f"{BIND}.{name}"):
        assert len(run_model(changed(place, 1))[2]) < 1000
    model = changed(f"resources.{name}", MODEL["resources"]["A"])
    model["dispatchables"][name] = model["dispatchables"]["slice"]
    model["commands"][0]["dispatchable"] = name
    for command in model["commands"][2:]:
        command["resource"] = name
    model["commands"][3]["dimensions"] = [4]
    status, out, err = run_model(model, "-v", "1")
    assert (status, err) == (0, "")
    assert out.count(f"{'a' * 197}…'") == 5
    assert len(out) < 5000


PATHS = {
    "none.json": "No such file or directory",
    "folder.bin": "Is a directory",
    "loop.npy": "Too many levels of symbolic links",
    "large.bin": "`the model` must have at most 16777216 bytes; got 16777217",
    "fifo.bin": "`the model` must be a regular file; got another kind",
    "/dev/null": "`the model` must be a regular file; got another kind",
}


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_models(path: str):
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(2)
    try:
        assert run(path) == (2, "", f"dml_jax: {path}: {PATHS[path]}\n")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
