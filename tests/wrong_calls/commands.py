"""Words that the command line refuses, and what is wrong with the files they name."""

import functools
import os
import pathlib
import pickle

import jax
import numpy as np
import onnx
import onnx.parser
from command_line import Refused, refuse
from onnx_models import with_external_data

from wrong_calls.form import Wrong

# Options ------------------------------------------------------------------------------

NATURAL = "must be an integer in digits, 1 to 10^18; got"
ITERATIONS = f"argument -i/--dispatch_iterations: {NATURAL}"
MILLISECONDS = (
    "argument -t/--milliseconds_to_run: must be a number from 0 to 10^12; got"
)
SYNTAX = "argument --{}: must be NAME=FILE.npy; got {}"
ARGUMENTS = {
    "dispatch": "one of the arguments model -m/--model is required",
    "dispatch m -m n": "argument -m/--model: not allowed with argument model",
    "dispatch m --dml_feature_level 7": "argument --dml_feature_level: must be one …",
    "dispatch m --show_adapters": "unrecognized arguments: --show_adapters",
    "dispatch m -q direct": "unrecognized arguments: -q direct",
    "dispatch m -d": "unrecognized arguments: -d",
    "dispatch m -i 0": f"{ITERATIONS} 0",
    "dispatch m -i x": f"{ITERATIONS} x",
    "dispatch m -i 1000000000000000001": f"{ITERATIONS} …",
    "dispatch m -r 0": "argument -r/--dispatch_repeat: …",
    "dispatch m --max_bytes 0": "argument --max_bytes: …",
    "dispatch m -w=-1": "argument -w/--warmup_samples: …",
    "dispatch m -t=-1": f"{MILLISECONDS} -1",
    "dispatch m -t 1000000000001": f"{MILLISECONDS} …",
    "dispatch m -I nan": "argument -I/--dispatch_interval: …",
    "dispatch m -v 3": "argument -v/--timing_verbosity: …",
    "dispatch m.onnx": "m.onnx: must be a DxDispatch model; ONNX models run with "
    "`dml-jax onnx m.onnx`",
    "onnx m --input x": SYNTAX.format("input", "x"),
    "onnx m --input =x.npy": SYNTAX.format("input", "=x.npy"),
    "onnx m --output y=y.txt": SYNTAX.format("output", "y=y.txt"),
    "onnx m.json": "m.json: must be an ONNX model; DxDispatch models run with `dml-jax "
    "dispatch m.json`",
    "verify --cases 0": "argument --cases: …",
    "verify --seed -1": "argument --seed: …",
    "verify --only checked": "argument --only: …",
}
DEVICES = ", ".join(f"{d.platform}:{d.id} ({d.device_kind})" for d in jax.devices())
ARGUMENTS |= {
    f"verify --device {name}": f"`--device` must be one of {DEVICES}; got {name}"
    for name in ("abacus", "cpu:99")
}
NOT_OF_JAX = {
    "words": np.array([["a", "bc"]]),
    "dates": np.zeros((3, 4), "datetime64[D]"),
    "long-double": np.zeros((3, 4), np.longdouble),
    "long-complex": np.zeros((3, 4), np.clongdouble),
    "records": np.zeros((3, 4), "f4,i4"),
}
OF_RUN = {
    "--lengths n.npy --axis 7": "reverse_padded: `axis` 7 is out of bounds…",
    "--lengths n.npy --axis true": "reverse_padded: `axis` must be a static…",
    "--lengths [1,2] --axis 1": "reverse_padded: `lengths` must be a scalar or…",
    "--lengths z.npy": "z.npy: No such file…",
    "--lengths n.npy --x some": "Value …",
    **{
        f"--lengths n.npy --x {name}.npy": f"{name}.npy: must hold numbers of a dtype "
        f"of JAX; got {array.dtype}"
        for name, array in NOT_OF_JAX.items()
    },
    "--lengths n.npy --x x.txt": "x.txt: must be an .npy file; got the suffix of …",
    "--lengths n.npy --output y.txt": "`--output` must be …",
    "--lengths n.npy --output missing/y.npy": "`--output` must be …",
}

# ONNX models --------------------------------------------------------------------------

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LENGTHS = np.array([1, 2, 3, 0])
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


def save(name: str, text: str) -> None:
    """A model as a file; the text has its nodes alone, or all of it."""
    if not text.startswith("<"):
        text = f'<ir_version: 10, opset_import: ["": 25]> g {text}'
    pathlib.Path(name).write_bytes(onnx.parser.parse_model(text).SerializeToString())


def make_files() -> None:
    """A model and arrays in the current folder, some of which cannot be read."""
    os.mkdir("folder.npy")
    pathlib.Path("x.txt").write_text("0 1 2")
    save("m.onnx", TEXT)
    save("large.onnx", "(int64[1] s) => (float[n] y) {y = ConstantOfShape(s)}")
    arrays = dict(x=X, l=LENGTHS, n=LENGTHS[:3], long=LENGTHS + 1, s=np.array([2**46]))
    for name, array in (arrays | NOT_OF_JAX).items():
        np.save(f"{name}.npy", array)
    np.save("objects.npy", np.array([print]), allow_pickle=True)
    np.savez("zipped", X)
    os.rename("zipped.npz", "zipped.npy")
    os.mkfifo("pipe.npy")
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
NUMPY = "must be an .npy file without pickles, as `numpy.save` writes it; got"
# The words after `onnx m.onnx`, in which $ stands for both inputs, and the message.
OF_ARRAYS = {
    "": "`--input` must be given for x: float32[3,b], l: int64[4]; got none. Write "
    "--input x=FILE.npy --input l=FILE.npy",
    "--input x=x.npy": "`--input` must be given for l: int64[4]; got x. Write …",
    "$ --input n=x.npy": "`--input` must be one of x, l; got n",
    "$ --output z=z.npy": "`--output` must be one of y, last, w, r; got z",
    "$ --input l=x.npy": "`--input` must be given once for each; got l twice",
    "$ --output y=y.npy --output r=./y.npy": "`--output` must …",
    "$ --output r=r.npy --output y=folder.npy": "`--output` must be a regular file; "
    "got folder.npy",
    "$ --output y=x.npy/y.npy": "`--output` must be in a folder that exists; got "
    "x.npy/y.npy. Write mkdir -p x.npy",
    "--input x=none.npy --input l=l.npy": "none.npy: No such file or directory",
    **{
        f"--input x={name}.npy --input l=l.npy": f"{name}.npy: {NUMPY} {kind}"
        for name, kind in FILES.items()
    },
}
# Files, what is in them where they are not those above, and the message.
MODELS: list[tuple[str, str | bytes | None, str]] = [
    ("folder.npy", None, "folder.npy: Is a directory"),
    ("text.onnx", b"Not a model.", "text.onnx: must be an ONNX model; got other bytes"),
    ("empty.onnx", b"", "empty.onnx: must have a graph; got none"),
    ("a\x1b\n.onnx", None, "a\\x1b\\n.onnx: No such file or directory"),
    ("abs.onnx", "(float[3] x) => (float[3] y) {y = Blob(x)}", "onnx: …Blob 'y'…"),
    ("bad.onnx", "(float[3] x) => (float[3] y) {y = Identity(z)}", "onnx: …'z'…"),
]  # fmt: skip
DATA: list[tuple[dict[str, str], str]] = [
    ({"location": "../out.bin"}, "…w…"),
    ({"location": "w.bin", "offset": "4"}, "…w…"),
]


def refuse_model(name: str, content: str | bytes | None) -> None:
    if isinstance(content, str):
        save(name, content)
    elif content is not None:
        pathlib.Path(name).write_bytes(content)
    refuse("onnx", name)


def refuse_data(**where: str) -> None:
    """A tensor whose data is outside the folder, or not there in whole."""
    for name in ("w.bin", "../out.bin"):
        pathlib.Path(name).write_bytes(bytes(16))
    onnx.save(with_external_data(4, **where), "data.onnx")
    refuse("onnx", "data.onnx")


def words(line: str, message: str, printed: str = "") -> Wrong:
    found = line.replace("$", " ".join(X_AND_L)).split()
    run = functools.partial(refuse, *found, printed=printed)
    return Wrong(line, run, Refused, message)


ROWS = [
    *[words(*row) for row in ARGUMENTS.items()],
    *[
        words(f"run reverse_padded --x x.npy {line}", message)
        for line, message in OF_RUN.items()
    ],
    *[words(f"onnx m.onnx {line}", message) for line, message in OF_ARRAYS.items()],
    # What the model refuses comes after what is printed of its inputs.
    words(
        "onnx m.onnx --input x=l.npy --input l=l.npy",
        "onnx: `x` must …; got int64. Convert it by …",
        "Input 'x': int64[4]\nInput 'l': int64[4]\n",
    ),
    words(
        "onnx m.onnx --input x=x.npy --input l=long.npy",
        "ReverseSequence 'y': `sequence_lens` must be in [0, 3]; got 4",
        IN,
    ),
    words(
        "onnx large.onnx --input s=s.npy",
        "…RESOURCE_EXHAUSTED: …",
        "Input 's': int64[1]\n",
    ),
    Wrong(
        "a-name-of-two-lines",
        lambda: refuse("onnx", "m.onnx", *X_AND_L, "--output", "a\nb=z.npy"),
        Refused,
        "`--output` must be one of y, last, w, r; got a b",
    ),
    *[
        Wrong(
            name[:9], functools.partial(refuse_model, name, content), Refused, message
        )
        for name, content, message in MODELS
    ],
    *[
        Wrong(
            "-".join(where), functools.partial(refuse_data, **where), Refused, message
        )
        for where, message in DATA
    ],
]
