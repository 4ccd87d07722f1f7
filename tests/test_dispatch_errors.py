"""What is wrong with a DxDispatch model: one line, status 2, and no file touched.

A row of the table is a place in a valid model (none: the one above), the value that it
gets there as JSON (none: it is removed) and the message, which is compared whole. One
that begins with "must" is about that place, and ends with what it got; one that ends
with … goes on in words that are Python's, NumPy's or the system's.
"""

import contextlib
import copy
import io
import json
import os
import pathlib
import pickle
import signal
import string
import tempfile

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from dml_jax import cli

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
REMOVED = object()


def changed(place, value):
    """The valid model with another value in a place."""
    model = copy.deepcopy(MODEL)
    *path, last = [int(k) if k.isdigit() else k for k in place.split(".")]
    parent = model
    for key in path:
        parent = parent[key]
    if value is REMOVED:
        del parent[last]
    else:
        parent[last] = value
    return model


def run(*arguments):
    """The exit status and both outputs, encoded as those of a process."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", "\n", False, True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(["dispatch", *map(str, arguments)])
        except SystemExit as error:
            status = error.code
    return status, *(stream.buffer.getvalue().decode() for stream in (out, err))


def run_model(model, *arguments):
    """The same of a model, an object or bytes; one that fails leaves no trace."""
    text = model if isinstance(model, bytes) else json.dumps(model).encode()
    pathlib.Path("model.json").write_bytes(text)
    before = snapshot()
    result = run("model.json", "--max_bytes", 65536, *arguments)
    if result[0]:
        assert snapshot() == before
    return result


def snapshot():
    """Every name below the parent of the current folder, and what small files hold."""
    paths = [pathlib.Path(root, n) for root, d, f in os.walk("..") for n in d + f]
    sizes = {path: path.lstat().st_size for path in paths}
    files = [p for p in paths if not p.is_symlink() and p.is_file() and sizes[p] < 9999]
    return sizes | {path: path.read_bytes() for path in files}


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


ROWS = string.Template(r"""
more | 1 | $MEMBERS commands, dispatchables, resources; got more
resources | [] | must be an object
commands | {} | must be an array
commands.0 | 7 | must be an object
resources.A | null | must be an object
$A |  | `resources.A` must have a member `initialValues`…
 | [] | must have at least one element
 | {"value": 1} | must have a member `valueCount`
$A.0 | null | $FLOAT
$A.1 | "infinity" | $FLOAT
 | 1e39 | $FLOAT
$A.2 | [[1]] | $FLOAT
resources.A.initialValuesDataType | "FLOAT" | $TYPE
 | "UINT4" | must be a data type of 8 bits or more
resources.A.sizeInBytes | 15 | must be at least 16, which the initial values need
 | -1 | $UINT64
 | 18446744073709551615 | `resources.A` must fit into the 65536 bytes that are left of
  65536; got 18446744073709551615 bytes
resources.A.initialValuesOffsetInBytes | 18446744073709551616 | $UINT64
 | 70000 | `resources.A` must fit into the 65536 bytes that are left of 65536; got 70016
  bytes
resources.A.size | 1 | $MEMBERS initialValues, initialValuesDataType,
  initialValuesOffsetInBytes, resampleMode, resampleSize, sizeInBytes; got size
resources.A.initialValuesDataType | 1 | must be a string
$B.valueCount | 0 | must be an integer from 1 to 4294967295
 | 4294967295 | must fit into the 65520 bytes that are left of 65536; got 17179869180
  bytes
$B.value |  | `resources.B.initialValues` must have one of the members value,
  valueStart, sourcePath…
 | {} | $FLOAT
$B.x | 1 | $MEMBERS value, valueCount; got x
resources.B.initialValuesDataType |  | `resources.B` must have a member
  `initialValuesDataType`…
$C.value | 1 | `resources.C.initialValues` must have one of the members value,
  valueStart, sourcePath…
$C.valueDelta |  | `resources.C.initialValues` must have a member `valueDelta`…
$C.valueStart | 2.5 | $INT16
$C.valueDelta | 32768 | $INT16
$D.0 | 1 | `resources.D` must have an `initialValuesDataType` other than UNKNOWN; got
  {"initialValues": [1]}
$D | [{"type": "UINT8", "value": 7}, 1] | `resources.D.initialValues[1]` must be an
  object; got 1
$D.0.type |  | `resources.D.initialValues[0]` must have a member `type`…
 | "UNKNOWN" | must be a data type other than UNKNOWN
$D.0.value | 256 | must be an integer from 0 to 255
$D | "deferred" | $OTHER a deferred buffer (`resources.D.initialValues`)
resources.E.initialValuesDataType |  | `resources.E` must have a member
  `initialValuesDataType`…
$E.sourcePath | "x.PNG" | $OTHER an image (`resources.E.initialValues`)
$SLICE.type |  | `dispatchables.slice` must have a member `type`…
 | "DML_OPERATOR_GEMM" | $OTHER DML_OPERATOR_GEMM (`dispatchables.slice.type`)
 | "hlsl" | $OTHER hlsl (`dispatchables.slice.type`)
$SLICE.sourcePath | "model.onnx" | $MEMBERS Desc, bindings, desc, dmlCompileType,
  executionFlags, type; got sourcePath
$DESC |  | `dispatchables.slice` must have a member `InputTensor`…
 | null | must be an object
$IN |  | `dispatchables.slice.desc` must have a member `InputTensor`…
$DESC.Axis | 1 | $MEMBERS DimensionCount, InputTensor, InputWindowOffsets,
  InputWindowSizes, InputWindowStrides, OutputTensor; got Axis
$IN.Type | "INVALID" | must be BUFFER
$IN.DataType | "INT4" | must be a data type of 8 bits or more
$IN.Flags | ["NONE", "OWNED"] | `$IN.Flags[1]` must be one of NONE, OWNED_BY_DML; got
  "OWNED"
 | "OWNED_BY_DML" | `dispatchables.slice.bindings` must bind a resource to
  `InputTensor`; got {}
$IN.Sizes | [4294967296] | `$IN.Sizes[0]` $UINT; got 4294967296
$DESC.InputTensor | {"DataType": "FLOAT32", "Sizes": [200, 200], "Strides": [1, 1]} |
  `$IN.Strides` must fit into the 65478 bytes that are left of 65536; got 160000 bytes
$IN.Strides | [1, 1] | must have as many elements as DimensionCount, 1
$IN.DimensionCount | 2 | `$IN.Sizes` must have as many elements as DimensionCount, 2;
  got [4]
$IN.TotalTensorSizeInBytes | 4 | `dispatchables.slice` is refused:
  DML_SLICE1_OPERATOR_DESC: `InputTensor.TotalTensorSizeInBytes` must be at least 16,
  which DataType, Sizes and Strides imply
$DESC.DimensionCount | 2 | `dispatchables.slice.desc.InputWindowOffsets` must have as
  many elements as DimensionCount, 2; got [0]
$DESC.InputWindowSizes | [5] | `dispatchables.slice` is refused:
  DML_SLICE1_OPERATOR_DESC: `InputWindowOffsets[0] + InputWindowSizes[0]` must be at
  most 4, `InputTensor.Sizes[0]`; got 5
$DESC.InputWindowStrides | [2147483648] |
  `dispatchables.slice.desc.InputWindowStrides[0]` must be an integer from -2147483648
  to 2147483647; got 2147483648
$SLICE.dmlCompileType | "DmlCompileAll" | must be DmlCompileOp or DmlCompileGraph
$SLICE.executionFlags | "FAST" | must be one of NONE, ALLOW_HALF_PRECISION_COMPUTATION,
  DISABLE_META_COMMANDS, DESCRIPTORS_VOLATILE
$SLICE.bindings | {"InputTensor": "A"} | `dispatchables.slice.bindings.InputTensor` must
  be the binding of a tensor (none); got InputTensor
$FILL.ValueDataType | "UNKNOWN" | must be a data type other than UNKNOWN
$FILL.Value | 256 | must be an integer from -128 to 255
 | {"Float32": 3} | must have a member `UInt8`
$FILL.OutputTensor.Sizes | [4] | $MEMBERS Desc, Type; got Sizes
$FILL.Valve | 3 | $MEMBERS OutputTensor, Value, ValueDataType; got Valve
commands.0.type |  | `commands[0]` must have a member `type`…
 | "run" | must be dispatch, print or writeFile
commands.0.dispatchable | "sliced" | must be the name of a dispatchable
$BIND | "A" | must be an object
 | {"InputTensor": "A"} | must bind a resource to `OutputTensor`
$BIND.IndicesTensor | "A" | must be the binding of a tensor (InputTensor, OutputTensor);
  got IndicesTensor
$BIND.InputTensor | "Z" | must be the name of a resource
 | "D" | must have 16 bytes for its tensor, not 4
 | ["A", "B"] | must be 1 resource
 | {"name": "B", "elementOffset": 2} | must begin at a multiple of 16 bytes, not at 8
 | {"name": "A", "elementOffset": 4} | must have 16 bytes for its tensor, not 0
 | {"name": "A", "elementOffset": 1, "elementStride": 4294967296} |
  `commands[0].bindings.InputTensor.elementStride` $UINT; got 4294967296
 | {"name": "A", "offset": 4} | `commands[0].bindings.InputTensor.offset` $MEMBERS
  elementCount, elementOffset, elementSizeInBytes, elementStride, format, name, shape;
  got offset
 | "B" | `commands[0].bindings` must not share bytes between `OutputTensor` and
  `InputTensor`; got {"InputTensor": "B", "OutputTensor": "B"}
commands.0.threadGroup | [1] | $MEMBERS bindings, dispatchable, threadGroupCount, type;
  got threadGroup
commands.2.resource | "D" | must be a resource with an `initialValuesDataType`
commands.2.verbose | 1 | must be true or false
commands.3.resource | "D" | must be a resource with an `initialValuesDataType`
commands.3.dimensions | [3, 3] | must have a product of at most 8, its elements
 | [-1] | `commands[3].dimensions[0]` must be an integer from 1 to 4294967295; got -1
commands.3.targetPath | "x.jpeg" | $OTHER an image (`commands[3].targetPath`)
 | "x.txt" | must end in .npy, .dat or .bin
 | ".npy" | must end in .npy, .dat or .bin
$SOURCE | "none.npy" | must be a file that exists
 | "" | must be a regular file
 | "folder.bin" | must be a regular file
 | "fifo.bin" | must be a regular file
 | "empty.bin" | must be a file that is not empty
 | "large.bin" | must fit into the 65481 bytes that are left of 65536; got 16777217
  bytes
 | "../outside.npy" | $BELOW
 | "/dev/zero" | $BELOW
 | "link.npy" | $BELOW
 | "loop.npy" | must be a …
 | "$LONG" | $PATH
 | "a\u0000b" | $PRINTED
 | "\ud800" | $PRINTED; got "\ud800"
 | "pickle.npy" | $NUMPY
 | "zip.npy" | $NUMPY
 | "bare.npy" | $NUMPY
 | "short.npy" | $NUMPY
 | "complex.npy" | must hold a data type of DirectML, not complex64
 | "int16.npy" | must hold UINT8, the `initialValuesDataType`, not INT16
$TARGET | "folder.bin" | must be a regular file
 | "fifo.bin" | must be a regular file
 | "../out.npy" | $BELOW
 | "folder.bin/../../out.npy" | $BELOW
 | "new.bin" | $BELOW
 | "up/out.npy" | $BELOW
 | "/out.npy" | $BELOW
 | "$LONG.npy" | $PATH
 | "a\u0000.npy" | $PRINTED
 | "in.bin/out.npy" | must …
 | 1 | must be a string
$A.0 | 1$ZEROS | must be a number of FLOAT32, "nan", "inf" or "-inf"; got 1000…
$IN.Sizes | [$HUGE] | `$IN…
 | [$HUGE, $HUGE, $HUGE, $HUGE] | `$IN…
commands.3.dimensions | [$ONES 1] | must …
 | [0, 4294967295] | `commands[3].dimensions[0]` must be an integer from 1 to
  4294967295; got 0
""")
NAMES = {
    **{name: f"resources.{name}.initialValues" for name in "ABCDE"},
    "SLICE": "dispatchables.slice",
    "FILL": "dispatchables.fill",
    "DESC": "dispatchables.slice.desc",
    "IN": "dispatchables.slice.desc.InputTensor",
    "BIND": "commands.0.bindings",
    "SOURCE": "resources.E.initialValues.sourcePath",
    "TARGET": "commands.3.targetPath",
    "MEMBERS": "must be one of the members",
    "FLOAT": 'must be a number of FLOAT32, "nan", "inf" or "-inf"',
    "UINT": f"must be an integer from 0 to {2**32 - 1}",
    "UINT64": f"must be an integer from 0 to {2**64 - 1}",
    "INT16": "must be an integer from -32768 to 32767",
    "TYPE": "must be one of UNKNOWN, FLOAT32, FLOAT16, UINT32, UINT16, UINT8, INT32, "
    "INT16, INT8, FLOAT64, UINT64, INT64, UINT4, INT4",
    "OTHER": "`the model` must need no more than DML_OPERATOR_REVERSE_SUBSEQUENCES, "
    "DML_OPERATOR_SLICE, DML_OPERATOR_SLICE1, DML_OPERATOR_SLICE_GRAD, "
    "DML_OPERATOR_FILL_VALUE_CONSTANT, DML_OPERATOR_FILL_VALUE_SEQUENCE on buffers of "
    "numbers and of .npy, .dat and .bin files; got",
    "BELOW": "must stay below the model's folder or the current one",
    "PRINTED": "must be a string that can be printed",
    "PATH": "must be a path that can be read (…",
    "NUMPY": "must be an .npy file without pickles (…",
    "LONG": "x" * 300,
    "ZEROS": "0" * 398,
    "ONES": "1, " * 64,
    "HUGE": "4294967295, " * 400 + "4294967295",
}


def read_rows():
    place = ""
    for row in ROWS.substitute(NAMES).strip().replace("\n  ", " ").splitlines():
        above, value, message = row.split(" | ", 2)
        place = above.strip() or place
        value = json.loads(value) if value else REMOVED
        yield pytest.param(place, value, message, id=row[:40])


def test_the_model_is_valid(folder):
    assert run_model(MODEL)[::2] == (0, "")
    expected = [[np.nan, 2, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(np.load("out.npy"), expected)


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
    "m -i x": f"argument -i/--dispatch_iterations: {LEAST[:-1]}x",
}


@pytest.mark.parametrize(("arguments", "message"), list(ARGUMENTS.items()))
def test_arguments(folder, arguments, message):
    status, out, err = run(*arguments.split())
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].partition(": error: ")[2] == message


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


# Fuzzing ------------------------------------------------------------------------------

PIECES = [
    b'"',
    b",",
    b"{}",
    b"]",
    b"1e9",
    b"null",
    b"//",
    b"/*",
    b"\\",
    b"\xff",
    b"999",
]
EDIT = st.tuples(
    st.integers(0, len(TEXT)),
    st.integers(0, 3),
    st.binary(max_size=3) | st.sampled_from(PIECES),
)
SCALARS = st.sampled_from(
    [2**31, 2**32 - 1, 2**63, 2**64 - 1, "", "A", "nan", "INT8", "../x.bin", "in.bin"]
)
SCALARS |= st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=5
)


def places(value, prefix=()):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*prefix, str(key))
        if isinstance(item, (dict, list)):
            yield from places(item, (*prefix, str(key)))


PLACES = st.sampled_from(list(places(MODEL)))


def require_line(model):
    """Status 0, or one line and nothing written; and no file outside the folder."""
    with tempfile.TemporaryDirectory() as parent:
        os.mkdir(f"{parent}/inside")
        with contextlib.chdir(f"{parent}/inside"):
            pathlib.Path("in.bin").write_bytes(b"abc")
            status, _, err = run_model(model)
            assert os.listdir("..") == ["inside"]
    if status:
        assert (status, len(err.splitlines()), err[-1:]) == (2, 1, "\n")
        assert err.startswith("dml_jax: model.json: ")
    else:
        assert err == ""


@hypothesis.given(st.lists(EDIT, min_size=1))
def test_any_bytes(edits):
    text = TEXT.encode()
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    require_line(text)


@hypothesis.given(PLACES, st.just(REMOVED) | VALUES)
def test_any_values(place, value):
    require_line(changed(".".join(place), value))


@hypothesis.given(PLACES, st.text())
def test_any_names(place, name):
    text = json.dumps(MODEL).replace(f'"{place[-1]}"', json.dumps(name))
    require_line(text.encode())
