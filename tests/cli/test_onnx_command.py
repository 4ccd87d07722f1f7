"""The onnx command: what it prints, reads and writes, and how it fails.

An error is one line on the standard error, status 2, and no file changes. In the
messages here, each … stands for words that are not this command's.
"""

import contextlib
import os
import pathlib
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from assertions import assert_same_bits
from onnx_models import with_external_data

import dml_jax
from dml_jax import onnx_backend
from dml_jax.cli import devices

Command = Callable[..., tuple[Any, str, str]]
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


def save(name: str, text: str) -> None:
    """A model as a file; the text has its nodes alone, or all of it."""
    if not text.startswith("<"):
        text = f'<ir_version: 10, opset_import: ["": 25]> g {text}'
    pathlib.Path(name).write_bytes(onnx.parser.parse_model(text).SerializeToString())


@pytest.fixture
def run(command: Command) -> Command:
    return lambda *words: command("onnx", *words)


def snapshot() -> dict[pathlib.Path, bytes]:
    paths = [path for path in pathlib.Path("..").rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in paths if not path.is_symlink()}


@pytest.fixture
def require_error(run: Command) -> Callable[..., None]:
    """Requires status 2 and a message in one line, after what is printed."""

    def require(words: list[str], message: str, printed: str = "") -> None:
        before = snapshot()
        status, out, err = run(*words)
        assert (status, out, snapshot()) == (2, printed, before)
        pattern = ".*".join(map(re.escape, message.split("…")))
        assert re.fullmatch(f"dml_jax: {pattern}\n", err), err

    return require


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a model and its inputs, in one that the model must not read."""
    (tmp_path / "inside" / "folder.npy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside")
    save("m.onnx", TEXT)
    np.save("x.npy", X)
    np.save("l.npy", LENGTHS)


# What it prints and writes ------------------------------------------------------------


def test_prints(run: Command):
    assert run("m.onnx", *X_AND_L) == (0, IN + OUT, "")
    swapped = "Input 'l': int64[4]\nInput 'x': float32[3,4]\n"
    assert run("m.onnx", *X_AND_L[2:], *X_AND_L[:2]) == (0, swapped + OUT, "")


@pytest.mark.usefixtures("x32")
def test_writes(run: Command):
    old = snapshot()
    targets = ("y=y.npy", "last=folder.npy/last.NPY", "r=./r.npy")
    words = [f"--output={target}" for target in targets]
    assert run("m.onnx", *X_AND_L, *words) == (0, IN + OUT, "")
    assert_same_bits(np.load("y.npy"), REVERSED)
    last = np.load("folder.npy/last.NPY").view(ml_dtypes.bfloat16)
    assert_same_bits(last, REVERSED[::-1].astype(ml_dtypes.bfloat16))
    assert_same_bits(np.load("r.npy"), np.array([7, 7, 7]))
    assert {p.name for p in snapshot().keys() - old} == {"y.npy", "last.NPY", "r.npy"}


def test_bfloat16_is_read_as_it_is_written(run: Command):
    save("b.onnx", "(bfloat16[3,4] x) => (bfloat16[3,4] y) {y = Identity(x)}")
    np.save("b.npy", X.astype(ml_dtypes.bfloat16))
    status, out, err = run("b.onnx", "--input", "x=b.npy", "--output", "y=c.npy")
    lines = ["Input 'x': bfloat16[3,4]", "Output 'y': bfloat16[3,4]"]
    assert (status, out.splitlines(), err) == (0, lines, "")
    assert pathlib.Path("b.npy").read_bytes() == pathlib.Path("c.npy").read_bytes()


def test_strings_are_written_without_pickles(run: Command):
    save("w.onnx", '() => (string[2] y) {y = Constant<value_strings = ["a", "bc"]>()}')
    assert run("w.onnx", "--output", "y=y.npy") == (0, "Output 'y': string[2]\n", "")
    assert np.load("y.npy").tolist() == ["a", "bc"]


def test_scalars_empty_arrays_and_names_with_signs(run: Command):
    text = "(float s, int32[n] e) => (float t, int32[n] u)"
    save("n.onnx", f"{text} {{t = Identity(s) u = Identity(e)}}")
    model = onnx.load("n.onnx")
    model.graph.input[0].name = model.graph.node[0].input[0] = "a=b/c"
    onnx.save(model, "n.onnx")
    np.save("s.npy", np.float32(2.5))
    np.save("e.npy", np.zeros(0, np.int32))
    words = ("--input", "a=b/c=s.npy", "--input", "e=e.npy", "--output", "t=t.npy")
    assert run("n.onnx", *words)[1].splitlines() == [
        "Input 'a=b/c': float32[]",
        "Input 'e': int32[0]",
        "Output 't': float32[]",
        "Output 'u': int32[0]",
    ]
    assert_same_bits(np.load("t.npy"), np.array(2.5, np.float32))


def test_arrays_of_another_byte_order(run: Command):
    np.save("x.npy", X.astype(">f4"))
    np.save("l.npy", LENGTHS.astype(">i8"))
    assert run("m.onnx", *X_AND_L, "--output", "y=y.npy") == (0, IN + OUT, "")
    assert_same_bits(np.load("y.npy"), REVERSED)


def test_negative_sizes_are_unknown(require_error: Callable[..., None]):
    save("n.onnx", "(float[3] x) => (float[n] y) {y = Identity(x)}")
    model = onnx.load("n.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, "n.onnx")
    message = "`--input` must be given for x: float32[?]; got none. Write …"
    require_error(["n.onnx"], message, "")


def test_an_input_file_may_be_replaced(run: Command):
    assert run("m.onnx", *X_AND_L, "--output", "y=x.npy")[0] == 0
    assert_same_bits(np.load("x.npy"), REVERSED)


def test_a_model_with_data_in_another_file(run: Command):
    pathlib.Path("w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    onnx.save(with_external_data(4, location="w.bin"), "data.onnx")
    printed = (0, "Output 'y': float32[4]\n", "")
    assert run("data.onnx", "--output", "y=y.npy") == printed
    assert_same_bits(np.load("y.npy"), np.arange(4, dtype=np.float32))
    os.mkdir("elsewhere")
    with contextlib.chdir("elsewhere"):
        assert run("../data.onnx") == printed


def test_unknown_keys_of_data_in_another_file(
    run: Command, recwarn: pytest.WarningsRecorder
):
    """onnx's warning would be beside the line of an error."""
    pathlib.Path("w.bin").write_bytes(bytes(16))
    onnx.save(with_external_data(4, location="w.bin", unknown="1"), "data.onnx")
    assert run("data.onnx") == (0, "Output 'y': float32[4]\n", "")
    assert not recwarn


# Devices and the process --------------------------------------------------------------


def test_device_is_the_one_that_runs(run: Command, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def note(self: onnx_backend.Model, _: Any) -> list[np.ndarray]:
        seen.append(self.device)
        return [X] * 4

    monkeypatch.setattr(onnx_backend.Model, "run", note)
    monkeypatch.setattr(devices, "first", lambda name: f"device {name}")
    assert run("m.onnx", *X_AND_L, "--device", "any")[0] == 0
    assert seen == ["device any"]


@pytest.mark.exhaustive
def test_process():
    words = ["-m", "dml_jax", "onnx", "m.onnx", *X_AND_L, "--output=y=y.npy"]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, IN + OUT, "")
    assert_same_bits(np.load("y.npy"), REVERSED)


def test_without_onnx(
    require_error: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delitem(sys.modules, "dml_jax.onnx_backend")
    monkeypatch.delattr(dml_jax, "onnx_backend")
    monkeypatch.setitem(sys.modules, "onnx", None)
    how = "dml_jax.onnx_backend: …: pip install '.[onnx]' in a checkout of dml_jax"
    require_error(["m.onnx"], how)
    with pytest.raises(ImportError, match=r"pip install '\.\[onnx\]'"):
        _ = dml_jax.onnx_backend


# Inputs and outputs -------------------------------------------------------------------

NUMPY = (
    "{}.npy: must be an .npy file without pickles, as `numpy.save` writes it; got {}"
)
FILES = {
    "objects": "pickled objects",
    "pickled": "a file of another kind",
    "zipped": "an archive, such as .npz",
    "empty": "an empty file",
    "text": "a file of another kind",
    "short": "a damaged file",
    "pipe": "a pipe or a device",
    "huge": "a damaged file",
    "lying": "pickled objects",
}
BAD = [  # the arguments, the message, and what is printed before
    ("", "`--input` must be given for x: float32[3,b], l: int64[4]; got none. Write "
     "--input x=FILE.npy --input l=FILE.npy", ""),
    ("--input x=x.npy", "`--input` must be given for l: int64[4]; got x. Write …", ""),
    ("$ --input n=x.npy", "`--input` must be one of x, l; got n", ""),
    ("--input x=l.npy --input l=l.npy", "onnx: `x` must …; got int64. Convert it by …",
     "Input 'x': int64[4]\nInput 'l': int64[4]\n"),
    ("--input x=x.npy --input l=long.npy", "ReverseSequence 'y': `sequence_lens` must "
     "be in [0, 3]; got 4", IN),
    ("$ --output z=z.npy", "`--output` must be one of y, last, w, r; got z", ""),
    ("$ --input l=x.npy", "`--input` must be given once for each; got l twice", ""),
    ("$ --output y=y.npy --output r=./y.npy", "`--output` must …", ""),
    ("$ --output r=r.npy --output y=folder.npy", "`--output` must be a regular file; "
     "got folder.npy", ""),
    ("$ --output y=x.npy/y.npy", "`--output` must be in a folder that exists; got "
     "x.npy/y.npy. Write mkdir -p x.npy", ""),
    ("$ --output y=new/y.npy", "`--output` must be in a folder that exists; …", ""),
    ("--input x=none.npy --input l=l.npy", "none.npy: No such file or directory", ""),
    *((f"--input x={name}.npy --input l=l.npy", NUMPY.format(name, kind), "")
      for name, kind in FILES.items()),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message", "printed"), BAD)
def test_inputs_and_outputs(
    require_error: Callable[..., None], arguments: str, message: str, printed: str
):
    np.save("long.npy", LENGTHS + 1)
    np.save("objects.npy", np.array([print]), allow_pickle=True)
    np.savez("zipped", X)
    os.rename("zipped.npz", "zipped.npy")
    data = pathlib.Path("x.npy").read_bytes()
    os.mkfifo("pipe.npy")
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
    require_error(["m.onnx", *words], message, printed)


ESCAPES = "a\x1b[31m\n\u202eb\ud800"


def test_names_have_no_effect_on_a_terminal(run: Command):
    """A name with a lone surrogate is that of a file, which Python decodes."""
    save("s.onnx", "(float[n] x) => (float[n] y) {y = Identity(x)}")
    model = onnx.load("s.onnx")
    size = model.graph.input[0].type.tensor_type.shape.dim[0]
    size.dim_param = ESCAPES[:-1]
    onnx.save(model, "s.onnx")
    np.save("x.npy", X[0])
    status, out, err = run("s.onnx")
    assert (status, out) == (2, "")
    assert r"x: float32[a\x1b[31m" in err
    outcomes = [
        (status, out, err),
        run("s.onnx", "--input", "x=x.npy"),
        run("m.onnx", "--input", f"x={ESCAPES}.npy", *X_AND_L[2:]),
        run("m.onnx", *X_AND_L, "--output", f"y={ESCAPES}/y.npy"),
        run("m.onnx", *X_AND_L, f"--{ESCAPES}"),
        run(f"{ESCAPES}.onnx", "--debug"),
        run(f"{ESCAPES}.json"),
    ]
    assert [outcome[0] for outcome in outcomes] == [2, 0, 2, 2, 2, 2, 2]
    for _, *texts in outcomes:
        assert all(map(str.isprintable, "\n".join(texts).split("\n")))


def test_a_name_of_two_lines_is_one_in_messages(require_error: Callable[..., None]):
    message = "`--output` must be one of y, last, w, r; got a b"
    require_error(["m.onnx", *X_AND_L, "--output", "a\nb=z.npy"], message)


def test_no_memory(require_error: Callable[..., None]):
    save("large.onnx", "(int64[1] s) => (float[n] y) {y = ConstantOfShape(s)}")
    np.save("s.npy", np.array([2**46]))
    words = ["large.onnx", "--input", "s=s.npy"]
    require_error(words, "…RESOURCE_EXHAUSTED: …", "Input 's': int64[1]\n")


# Invalid models -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.onnx", None, "none.onnx: No such file or directory"),
        ("folder.npy", None, "folder.npy: Is a directory"),
        (
            "text.onnx",
            b"This is not a model.",
            "text.onnx: must be an ONNX model; got other bytes",
        ),
        ("empty.onnx", b"", "empty.onnx: must have a graph; got none"),
        ("a\0.onnx", None, "a\\x00.onnx: embedded null byte"),
        ("a\x1b\n.onnx", None, "a\\x1b\\n.onnx: No such file or directory"),
        ("/dev/null", None, "/dev/null: must be an ONNX model; got a device"),
        ("abs.onnx", "(float[3] x) => (float[3] y) {y = Blob(x)}", "onnx: …Blob 'y'…"),
        ("bad.onnx", "(float[3] x) => (float[3] y) {y = Identity(z)}", "onnx: …'z'…"),
    ],
)
def test_invalid_models(
    require_error: Callable[..., None], name: str, content: str | bytes, message: str
):
    if isinstance(content, str):
        save(name, content)
    elif content is not None:
        pathlib.Path(name).write_bytes(content)
    require_error([name], message)


@pytest.mark.parametrize(
    ("location", "more"),
    [
        *((name, {}) for name in ("../out.bin", "/out.bin", "link.bin", "up/out.bin")),
        *((name, {}) for name in ("fifo.bin", "none.bin", "folder.npy", "")),
        *(("w.bin", {"offset": offset}) for offset in ("17", "-4", "4")),
        *(("w.bin", {"length": length}) for length in ("-1", "12")),
    ],
)
def test_data_outside_of_the_folder_or_missing(
    require_error: Callable[..., None], location: str, more: dict[str, str]
):
    for name in ("w.bin", "../out.bin"):
        pathlib.Path(name).write_bytes(bytes(16))
    os.symlink("../out.bin", "link.bin")
    os.symlink("..", "up")
    os.mkfifo("fifo.bin")
    if location == "/out.bin":
        location = str(pathlib.Path("../out.bin").resolve())
    onnx.save(with_external_data(4, location=location, **more), "data.onnx")
    require_error(["data.onnx"], "…w…")
