"""The onnx command: what it prints, reads and writes, and how it fails.

What goes wrong is one line on the standard error, status 2, and nothing written. A
message is compared whole, where each … stands for words that are not this package's.
"""

import contextlib
import io
import os
import pathlib
import pickle
import re
import subprocess
import sys
from unittest import mock

import jax
import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from assertions import assert_same_bits
from onnx import TensorProto

import dml_jax
from dml_jax import cli, onnx_backend

ROOT = pathlib.Path(__file__).parents[2]
X = np.arange(12, dtype=np.float32).reshape(3, 4)
LENGTHS = np.array([1, 2, 3, 0])
REVERSED = np.array([[0, 5, 10, 3], [4, 1, 6, 7], [8, 9, 2, 11]], np.float32)
TEXT = """<ir_version: 10, opset_import: ["": 25]>
g (float[3,b] x, int64[4] l) => (float[3,b] y, bfloat16[u,4] last, int32[2] w, T[n] r)
<int64[1] s = {-1}, int64[1] e = {-9}, int32[2] v = {5, 6}> {
  y = ReverseSequence(x, l)
  cut = Slice(y, s, e, , s)
  last = Cast<to = 16>(cut)
  w = Identity(v)
  [counted] three = Constant<value_ints = [3]>()
  r = ConstantOfShape<value: tensor = T[1] {7}>(three)
}""".replace("T", "int64")
X_AND_L = ("--input", "x=x.npy", "--input", "l=l.npy")
IN = "Input 'x': float32[3,4]\nInput 'l': int64[4]\n"
OUT = (
    "Output 'y': float32[3,4]\nOutput 'last': bfloat16[3,4]\nOutput 'w': int32[2]\n"
    "Output 'r': int64[3]\n"
)
UNSUPPORTED = (
    "onnx: the model must be of tensors and ReverseSequence, Slice, Range, "
    "ConstantOfShape, Constant, Identity, Cast; got Abs 'y'"
)


def save(name, text):
    """A model as a file; the text has its nodes alone, or all of it."""
    if not text.startswith("<"):
        text = f'<ir_version: 10, opset_import: ["": 25]> g {text}'
    pathlib.Path(name).write_bytes(onnx.parser.parse_model(text).SerializeToString())


def run(*arguments):
    """The exit status and both outputs."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(["onnx", *map(str, arguments)])
        except SystemExit as error:
            status = error.code
    return status, out.getvalue(), err.getvalue()


def snapshot():
    paths = [path for path in pathlib.Path("..").rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in paths if not path.is_symlink()}


def require_error(arguments, message, printed=""):
    """Status 2 and the message in one line, after what is printed; no file changed."""
    before = snapshot()
    status, out, err = run(*arguments)
    assert (status, out, snapshot()) == (2, printed, before)
    pattern = ".*".join(map(re.escape, message.split("…")))
    assert re.fullmatch(f"dml_jax: {pattern}\n", err), err


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a model and its inputs, in one that the model must not read."""
    (tmp_path / "inside" / "folder.npy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside")
    save("m.onnx", TEXT)
    np.save("x.npy", X)
    np.save("l.npy", LENGTHS)


# What it prints and writes ------------------------------------------------------------


def test_prints():
    assert run("m.onnx", *X_AND_L) == (0, IN + OUT, "")
    swapped = "Input 'l': int64[4]\nInput 'x': float32[3,4]\n"
    assert run("m.onnx", *X_AND_L[2:], *X_AND_L[:2]) == (0, swapped + OUT, "")


@pytest.mark.usefixtures("x32")
def test_writes():
    old = snapshot()
    outputs = {"y": "y.npy", "last": "new/folder/last.NPY", "r": "a=b.npy"}
    words = [w for n, p in outputs.items() for w in ("--output", f"{n}={p}")]
    words[-1] = "r=./r.npy"
    assert run("m.onnx", *X_AND_L, *words) == (0, IN + OUT, "")
    assert_same_bits(np.load("y.npy"), REVERSED)
    last = np.load("new/folder/last.NPY").view(ml_dtypes.bfloat16)
    assert_same_bits(last, REVERSED[::-1].astype(ml_dtypes.bfloat16))
    assert_same_bits(np.load("r.npy"), np.array([7, 7, 7]))
    assert {p.name for p in snapshot().keys() - old} == {"y.npy", "last.NPY", "r.npy"}
    assert not jax.config.jax_enable_x64


def test_bfloat16_is_read_as_it_is_written():
    save("b.onnx", "(bfloat16[3,4] x) => (bfloat16[3,4] y) {y = Identity(x)}")
    np.save("b.npy", X.astype(ml_dtypes.bfloat16))
    status, out, err = run("b.onnx", "--input", "x=b.npy", "--output", "y=c.npy")
    assert (status, out.splitlines()[1:], err) == (0, ["Output 'y': bfloat16[3,4]"], "")
    assert pathlib.Path("b.npy").read_bytes() == pathlib.Path("c.npy").read_bytes()


def test_scalars_empty_arrays_and_names_with_signs():
    save("n.onnx", "(float s, int32[n] e) => (float t, int32[n] u) {t = Identity(s) "
         "u = Identity(e)}")  # fmt: skip
    model = onnx.load("n.onnx")
    model.graph.input[0].name = model.graph.node[0].input[0] = "a=b/c"
    onnx.save(model, "n.onnx")
    np.save("s.npy", np.float32(2.5))
    np.save("e.npy", np.zeros(0, np.int32))
    words = ("--input", "a=b/c=s.npy", "--input", "e=e.npy", "--output", "t=t.npy")
    lines = ["Input 'a=b/c': float32[]", "Input 'e': int32[0]", "Output 't': float32[]"]
    expected = "\n".join([*lines, "Output 'u': int32[0]", ""])
    assert run("n.onnx", *words) == (0, expected, "")
    assert_same_bits(np.load("t.npy"), np.array(2.5, np.float32))


def test_a_file_is_replaced_and_may_be_an_input():
    os.chmod("x.npy", 0o600)
    assert run("m.onnx", *X_AND_L, "--output", "y=x.npy")[0] == 0
    assert_same_bits(np.load("x.npy"), REVERSED)


def test_a_model_with_data_in_another_file():
    model = parsed_with_data("w.bin")
    pathlib.Path("w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    pathlib.Path("data.onnx").write_bytes(model)
    assert run("data.onnx", "--output", "y=y.npy") == (
        0,
        "Output 'y': float32[4]\n",
        "",
    )
    assert_same_bits(np.load("y.npy"), np.arange(4, dtype=np.float32))
    os.mkdir("elsewhere")
    with contextlib.chdir("elsewhere"):
        assert run("../data.onnx") == (0, "Output 'y': float32[4]\n", "")


# Devices and the process --------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu", "cpu:0", jax.devices("cpu")[0].device_kind])
def test_device(name):
    assert run("m.onnx", *X_AND_L, "--device", name) == (0, IN + OUT, "")


def test_device_is_the_one_that_runs():
    devices = []

    def note(self, inputs):
        devices.append(self.device)
        return [X] * 4

    with mock.patch.object(onnx_backend.Model, "run", note):
        with mock.patch.object(devices, "first", lambda name: f"device {name}"):
            assert run("m.onnx", *X_AND_L, "--device", "any")[0] == 0
    assert devices == ["device any"]


def test_no_such_device():
    names = ", ".join(f"{d.platform}:{d.id} ({d.device_kind})" for d in jax.devices())
    message = f"`--device` must be one of {names}; got cpu:99"
    require_error(["m.onnx", *X_AND_L, "--device", "cpu:99"], message)


def test_process():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "dml_jax",
            "onnx",
            "m.onnx",
            *X_AND_L,
            "--output=y=y.npy",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, IN + OUT, "")
    assert_same_bits(np.load("y.npy"), REVERSED)


def test_help_names_every_option():
    out = run("--help")[1]
    assert all(f"--{word}" in out for word in ("input", "output", "device", "debug"))


def test_debug_shows_the_traceback():
    with pytest.raises(FileNotFoundError):
        run("none.onnx", "--debug")


def test_without_onnx():
    with mock.patch.dict(sys.modules, {"dml_jax.onnx_backend": None}):
        with mock.patch.object(dml_jax, "onnx_backend", create=True):
            del dml_jax.onnx_backend
            require_error(["m.onnx"], "…: install dml_jax[onnx]")


# Arguments and inputs -----------------------------------------------------------------

SYNTAX = "argument --{}: must be NAME=FILE.npy; got {}"
ARGUMENTS = {
    "": "the following arguments are required: model",
    "m.onnx --input x": SYNTAX.format("input", "x"),
    "m.onnx --input =x.npy": SYNTAX.format("input", "=x.npy"),
    "m.onnx --input x.npy": SYNTAX.format("input", "x.npy"),
    "m.onnx --input x=": SYNTAX.format("input", "x="),
    "m.onnx --input x=.npy": SYNTAX.format("input", "x=.npy"),
    "m.onnx --output y=y.txt": SYNTAX.format("output", "y=y.txt"),
    "m.onnx --in x=x.npy": "unrecognized arguments: --in x=x.npy",
    "m.onnx m.onnx": "unrecognized arguments: m.onnx",
}


@pytest.mark.parametrize(("arguments", "message"), list(ARGUMENTS.items()))
def test_arguments(arguments, message):
    before = snapshot()
    status, out, err = run(*arguments.split())
    assert (status, out, snapshot()) == (2, "", before)
    assert err.splitlines()[-1].partition(": error: ")[2] == message


NUMPY = "{}.npy: must be .npy without pickles (…)"
BAD = [  # the arguments, the message, and what is printed before
    ("--input x=x.npy", "onnx: `inputs` must be arrays for x, l; got x", IN[:24]),
    ("$ --input z=x.npy", "onnx: `inputs` must be arrays for x, l; got x, l, z",
     IN + "z"),
    ("--input x=l.npy --input l=l.npy", "onnx: `x` must have dtype float32; got int64",
     "Input 'x': int64[4]\nInput 'l': int64[4]\n"),
    ("--input x=x.npy --input l=long.npy", "ReverseSequence 'y': Invalid sequence "
     "length: 4. Value must be in range [0,3]", IN),
    ("--input x=x.npy --input l=l3.npy", "onnx: `l` must have shape (4); got (3,)",
     IN.replace("[4]", "[3]")),
    ("$ --output z=z.npy", "`--output` must be one of y, last, w, r; got z", ""),
    ("$ --output y=folder.npy", "folder.npy: Is a directory", IN + OUT),
    ("$ --output y=x.npy/y.npy", "x.npy/y.npy: …", IN + OUT),
    ("--input x=none.npy", "none.npy: No such file or directory", ""),
    ("--input x=folder.npy", "folder.npy: Is a directory", ""),
    *((f"--input x={name}.npy", NUMPY.format(name), "") for name in
      ("objects", "pickled", "zipped", "empty", "text", "short", "huge", "lying")),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message", "printed"), BAD)
def test_inputs_and_outputs(arguments, message, printed):
    np.save("long.npy", LENGTHS + 1)
    np.save("l3.npy", LENGTHS[1:])
    np.save("objects.npy", np.array([print]), allow_pickle=True)
    np.savez("zipped", X)
    os.rename("zipped.npz", "zipped.npy")
    data = pathlib.Path("x.npy").read_bytes()
    for name, content in {
        "pickled": pickle.dumps(X),
        "empty": b"",
        "text": b"1 2 3\n",
        "short": data[:-1],
        "huge": data.replace(b"(3, 4), }" + b" " * 10, b"(99999999999, 4), }"),
        "lying": data.replace(b"'<f4'", b"'|O' "),
    }.items():
        pathlib.Path(f"{name}.npy").write_bytes(content)
        assert content != data
    words = arguments.replace("$", " ".join(X_AND_L)).split()
    printed = printed.replace("\nz", "\nInput 'z': float32[3,4]\n")
    require_error(["m.onnx", *words], message, printed)


def test_a_name_of_two_lines_is_told_in_one():
    message = "`--output` must be one of y, last, w, r; got a b"
    require_error(["m.onnx", *X_AND_L, "--output", "a\nb=z.npy"], message, "")


def test_a_failing_write_leaves_no_trace():
    def fail(file, *arguments, **options):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    np.save("y.npy", X)
    with mock.patch.object(np, "save", fail):
        require_error(["m.onnx", *X_AND_L, "--output", "y=y.npy"],
                      "y.npy: No space left on device", IN + OUT)  # fmt: skip


def test_no_memory():
    save("large.onnx", "(int64[1] s) => (float[n] y) {y = ConstantOfShape(s)}")
    np.save("s.npy", np.array([2**46]))
    # A GPU runs out after the node's turn.
    node = "ConstantOfShape 'y': " if jax.default_backend() == "cpu" else ""
    require_error(["large.onnx", "--input", "s=s.npy"],
                  f"{node}RESOURCE_EXHAUSTED: …", "Input 's': int64[1]\n")  # fmt: skip


# Models that are none -----------------------------------------------------------------

PROTOBUF = ": Error parsing message…"
OUTSIDE = "data.onnx: …w…"


def parsed_with_data(location, **more):
    """The bytes of a model whose `w` is in another file."""
    text = '<ir_version: 10, opset_import: ["": 25]> g () => (float[4] y) {y = '
    model = onnx.parser.parse_model(text + "Identity(w)}")
    tensor = model.graph.initializer.add(
        name="w", data_type=TensorProto.FLOAT, dims=[4],
        data_location=TensorProto.EXTERNAL,
    )  # fmt: skip
    for key, value in {"location": str(location), **more}.items():
        tensor.external_data.add(key=key, value=value)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.onnx", None, "none.onnx: No such file or directory"),
        ("folder.npy", None, "folder.npy: Is a directory"),
        ("text.onnx", b"This is not a model.", "text.onnx" + PROTOBUF),
        ("half.onnx", ..., "half.onnx" + PROTOBUF),
        ("empty.onnx", b"", "empty.onnx: must have a graph; got none"),
        ("a\0.onnx", None, "a\0.onnx: embedded null byte"),
        ("abs.onnx", "(float[3] x) => (float[3] y) {y = Abs(x)}", UNSUPPORTED),
        ("bad.onnx", "(float[3] x) => (float[3] y) {y = Identity(z)}", "onnx: …'z'…"),
    ],
)
def test_no_models(name, content, message):
    if isinstance(content, str):
        save(name, content)
    elif content is ...:
        pathlib.Path(name).write_bytes(pathlib.Path("m.onnx").read_bytes()[:-5])
    elif content is not None:
        pathlib.Path(name).write_bytes(content)
    require_error([name], message)


@pytest.mark.parametrize(
    ("location", "more"),
    [
        ("../out.bin", {}),
        ("/out.bin", {}),
        ("link.bin", {}),
        ("up/out.bin", {}),
        ("hard.bin", {}),
        ("loop.bin", {}),
        ("fifo.bin", {}),
        ("none.bin", {}),
        ("folder.npy", {}),
        ("", {}),
        ("w.bin", {"offset": "17"}),
        ("w.bin", {"offset": "-4"}),
        ("w.bin", {"length": "-1"}),
    ],
)
def test_data_outside_of_the_folder_or_missing(location, more):
    for name in ("w.bin", "../out.bin"):
        pathlib.Path(name).write_bytes(bytes(16))
    for name, target in (("link", "../out"), ("loop", "loop")):
        os.symlink(f"{target}.bin", f"{name}.bin")
    os.symlink("..", "up")
    os.link("../out.bin", "hard.bin")
    os.mkfifo("fifo.bin")
    data = location
    if location == "/out.bin":
        data = pathlib.Path("../out.bin").resolve()
    pathlib.Path("data.onnx").write_bytes(parsed_with_data(data, **more))
    require_error(["data.onnx"], OUTSIDE)


@pytest.mark.parametrize("more", [{"offset": "4"}, {"length": "12"}])
def test_too_little_data(more):
    pathlib.Path("w.bin").write_bytes(bytes(16))
    pathlib.Path("data.onnx").write_bytes(parsed_with_data("w.bin", **more))
    require_error(["data.onnx"], "onnx: …w…12 bytes…16 bytes…")
