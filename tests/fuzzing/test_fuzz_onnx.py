"""ONNX nodes and models, changed: the result is what ONNX says, or they are refused."""

import contextlib
import math
import os
import pathlib
import tempfile
import warnings
from fractions import Fraction
from unittest import mock

import numpy as np
import onnx
import pytest
from accesses import only_below
from arguments import choice, content, pick
from assertions import assert_same_bits, assert_same_floats
from hypothesis import given
from hypothesis import strategies as st
from mutations import changed_bytes
from onnx import TensorProto, helper, numpy_helper
from onnx_models import SMALL_FILLS
from outcomes import Refusal, outcome_of

import dml_jax
from dml_jax import onnx_backend, reference

NEWEST = onnx.defs.onnx_opset_version()
DTYPES = [np.dtype(t) for t in ("f4", "f4", "i8", "u1", "?", "f2", "f8")]
TEXT = np.array([["a", "é"], ["", "b"], ["c", "dd"]], object)
REFUSED = object()
FAR = [2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]


# Nodes, and what they give ------------------------------------------------------------


def arrays(draw, shapes=((3, 4), (2, 3, 2), (4,), (0, 3), ())):
    if draw(st.integers(0, 9)) == 0:
        return TEXT
    return content(pick(draw, shapes), pick(draw, DTYPES), draw(st.integers(0, 1)))


def reversals(draw):
    x = arrays(draw, ((3, 4), (2, 3, 2), (3, 4), (4,)))
    batch, time = pick(draw, [(0, 1), (1, 0), (0, 1), (1, 1), (0, 2), (-1, 0)])
    has_axes = x.ndim >= 2 and {batch, time} == {0, 1}
    count = x.shape[batch] if has_axes else 3
    most = x.shape[time] if has_axes else 3
    count += pick(draw, [0, 0, 0, 0, 1])
    numbers = [*range(most + 1)] * 4 + [-1, most + 1, 2**40]
    lengths = [pick(draw, numbers) for _ in range(count)]
    fits = has_axes and count == x.shape[batch]
    expected = REFUSED
    if fits and all(0 <= n <= most for n in lengths):
        expected = reference.reverse_sequence(x, lengths, batch, time)
    attributes = {"batch_axis": batch, "time_axis": time}
    return [x, np.array(lengths, np.int64)], attributes, expected


def slices(draw):
    # ONNX infers no shape for what is cut from a scalar, so that it cannot be checked.
    x = arrays(draw, ((3, 4), (2, 3, 2), (4,), (0, 3)))
    count = draw(st.integers(0, x.ndim))
    axes = draw(st.permutations(range(x.ndim)))[:count]
    axes = [axis - pick(draw, [0, x.ndim]) for axis in axes]
    if axes and draw(st.integers(0, 9)) == 0:
        axes[0] = pick(draw, [x.ndim, -x.ndim - 1, axes[-1], 2**40])
    near = [*range(-5, 6), *FAR]
    starts, ends = ([pick(draw, near) for _ in axes] for _ in range(2))
    steps = [pick(draw, [1, 2, -1, -2, 3, 1, 2, -1, 0, *FAR]) for _ in axes]
    dtype = pick(draw, [np.int64, np.int64, np.int32])
    numbers = [starts, ends, axes, steps]
    if dtype is np.int32:
        numbers = [[n for n in map(cut, part)] for part in numbers]
    inputs = [np.array(part, dtype) for part in numbers]
    return [x, *inputs], {}, sliced(x, *numbers)


def cut(number):
    return min(max(number, -(2**31)), 2**31 - 1)


def sliced(x, starts, ends, axes, steps):
    """What the text of ONNX's Slice says."""
    rank = x.ndim
    if any(not -rank <= axis < rank for axis in axes) or 0 in steps:
        return REFUSED
    if len({axis % rank for axis in axes}) != len(axes):
        return REFUSED
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        n = x.shape[axis]
        low, high = (0, n) if step > 0 else (-1, n - 1)
        start, end = (k + n if k < 0 else k for k in (start, end))
        start = min(max(start, 0), high)
        indices = range(start, min(max(end, low), high), step) if n else []
        x = np.take(x, [*indices], axis % rank)
    return x


def ranges(draw):
    dtype = np.dtype(pick(draw, ["f4", "f8", "i2", "i4", "i8"]))
    choices = [-3, 0, 1, 2, 7, 20, -20]
    if dtype.kind == "f":
        choices += [0.1, -2.5, math.nan, math.inf, 1e-3 + 19]
    start, limit, delta = (dtype.type(pick(draw, choices)) for _ in range(3))
    expected = REFUSED
    if np.isfinite([start, limit, delta]).all() and delta:
        exact = [Fraction(n.item()) for n in (start, limit, delta)]
        count = max(0, math.ceil((exact[1] - exact[0]) / exact[2]))
        expected = reference.fill_value_sequence((count,), dtype, start, delta)
    return [np.array(n) for n in (start, limit, delta)], {}, expected


def fills(draw):
    shape = [pick(draw, [0, 1, 2, 3, 2, 3]) for _ in range(draw(st.integers(0, 3)))]
    if draw(st.integers(0, 5)) == 0:
        shape.append(pick(draw, [-1, 2**50, -(2**63)]))
    value = content((1,), pick(draw, DTYPES), 0)
    is_right = all(n >= 0 for n in shape) and math.prod(n for n in shape if n) < 2**48
    expected = np.full(shape, value[0]) if is_right else REFUSED
    attributes = {"value": numpy_helper.from_array(value)}
    if draw(st.integers(0, 5)) == 0:
        attributes, expected = {}, np.zeros(shape, "f4") if is_right else REFUSED
    return [np.array(shape, np.int64)], attributes, expected


def constants(draw):
    value = arrays(draw)
    return [], {"value": numpy_helper.from_array(value)}, value


def identities(draw):
    x = arrays(draw)
    return [x], {}, x


def casts(draw):
    x = np.array(
        [[0, 1, 2], [3, 100, 7]], pick(draw, ["f4", "i4", "i8", "u1", "f8", "f2"])
    )
    to = np.dtype(pick(draw, ["f4", "i4", "i8", "u1", "f8", "?", "f2", "i2"]))
    return [x], {"to": helper.np_dtype_to_tensor_dtype(to)}, x.astype(to)


NODES = {
    "ReverseSequence": reversals,
    "Slice": slices,
    "Range": ranges,
    "ConstantOfShape": fills,
    "Constant": constants,
    "Identity": identities,
    "Cast": casts,
}
HEADS = "onnx: ", "prepare: ", "run: ", "run_node: ", *(f"{kind} '" for kind in NODES)


@st.composite
def nodes(draw, kind):
    """A node, its inputs, the version of its operator, and what it gives."""
    inputs, attributes, expected = NODES[kind](draw)
    names, opset = list("abcde"[: len(inputs)]), pick(draw, [13, 21, 25, NEWEST])
    if draw(st.integers(0, 2)) == 0:
        expected = REFUSED
        change = pick(
            draw, ["name", "kind", "type", "extra", "domain", "opset", "dtype"]
        )
        if change == "name":
            attributes = {**attributes, pick(draw, ["foo", "axis", ""]): 1}
        elif change == "type" and attributes:
            name = pick(draw, sorted(attributes))
            attributes = {**attributes, name: pick(draw, [0.5, "a", [1, 2], [0.5]])}
        elif change == "dtype" and len(inputs) > 1:
            others = [
                np.ones(2, "c8"),
                np.ones((), "u1"),
                TEXT,
                np.ones((1, 1, 1), "f4"),
            ]
            inputs[draw(st.integers(1, len(inputs) - 1))] = pick(draw, others)
        elif change == "opset":
            opset = pick(draw, [NEWEST + 1, 2**31, 2**64, 0, -(2**40), None, "x", True])
        elif change == "extra":
            names += ["x"] * (6 - len(names))
            inputs = inputs + [np.ones(1, "f4")] * (6 - len(inputs))
        elif change == "domain":
            attributes = {**attributes, "domain": "d"}
        else:
            kind = pick(draw, [kind.lower(), "Abs", "", f"{kind}\n", "If"])
    return helper.make_node(kind, names, ["y"], **attributes), inputs, opset, expected


@pytest.mark.parametrize("kind", NODES)
@given(data=st.data())
def test_a_node(kind, data):
    node, inputs, opset, expected = data.draw(nodes(kind))
    result = outcome_of(
        lambda: onnx_backend.run_node(node, inputs, opset_version=opset),
        *HEADS,
        f"{node.op_type} '",
        "Cast",
    )
    if expected is REFUSED:
        assert isinstance(result, Refusal), result
    else:
        assert not isinstance(result, Refusal), result
        require_same(result[0], expected)


def require_same(actual, expected):
    if expected.dtype == object:
        assert actual.tolist() == expected.tolist()
    elif expected.dtype.kind == "f":
        assert_same_floats(actual, expected)
    else:
        assert_same_bits(actual, expected)


# Files --------------------------------------------------------------------------------

SECRET = b"\xa5\x5a\xc3\x3c" * 8
WEIGHTS = np.arange(8, dtype=np.float32)


@contextlib.contextmanager
def folders():
    """The folder of a model, in one with a file that is not the model's."""
    with tempfile.TemporaryDirectory() as parent:
        outside, inside = pathlib.Path(parent), pathlib.Path(parent, "inside")
        (inside / "sub").mkdir(parents=True)
        (outside / "outside.bin").write_bytes(SECRET)
        (inside / "in.bin").write_bytes(WEIGHTS.tobytes())
        (inside / "link.bin").symlink_to("../outside.bin")
        (inside / "up").symlink_to("..")
        (inside / "loop").symlink_to("loop")
        yield outside, inside


def with_data_outside(**entries):
    """A model of an initializer whose data is in another file."""
    tensor = TensorProto(name="w", data_type=1, dims=[8], data_location=1)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    output = helper.make_tensor_value_info("y", 1, [None])
    node = helper.make_node("Identity", ["w"], ["y"])
    graph = helper.make_graph([node], "g", [], [output], [tensor])
    imports = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def outcome_of_file(data):
    """What a model's file gives, which holds no more than its folder does."""
    with folders() as (outside, inside), mock.patch.multiple(dml_jax, **SMALL_FILLS):
        path = inside / "model.onnx"
        path.write_bytes(data)

        def run():
            warnings.filterwarnings("ignore", "Ignoring unknown external")  # by ONNX
            model = onnx_backend.prepare(onnx_backend.load_model(path))
            values = {"x": np.ones((3, 4), "f4"), "l": np.array([1, 2, 3, 0])}
            return model.run([values.get(n, WEIGHTS) for n in model.input_names])

        with only_below(inside):
            result = outcome_of(run, f"{path}: ", "fill: ", "", *HEADS)
        assert (outside / "outside.bin").read_bytes() == SECRET
        assert sorted(os.listdir(outside)) == ["inside", "outside.bin"]
        names = ["in.bin", "link.bin", "loop", "model.onnx", "sub", "up"]
        assert sorted(os.listdir(inside)) == names
    if not isinstance(result, Refusal):
        assert not any(SECRET[:4] in np.asarray(y).tobytes() for y in result)
    return result


LOCATIONS = [
    "in.bin",
    "./in.bin",
    "sub/../in.bin",
    "../outside.bin",
    "link.bin",
    "loop",
]
LOCATIONS += [
    "up/outside.bin",
    "sub",
    "",
    ".",
    "..",
    "none.bin",
    "/etc/passwd",
    "in.bin/",
]
LOCATIONS += [
    "sub/../../outside.bin",
    "in.bin\0",
    "é" * 300,
    "model.onnx",
    "~/x",
    "\\x",
]
NUMBERS = [0, 4, 28, 32, 33, -1, 2**31, 2**63, 2**64, 10**400, "x", "", "0x10", 1.5]


@given(choice(LOCATIONS), choice(NUMBERS) | st.none(), choice(NUMBERS) | st.none())
def test_data_in_other_files(location, offset, length):
    numbers = {"offset": offset, "length": length}
    entries = {key: value for key, value in numbers.items() if value is not None}
    model = with_data_outside(location=location, **entries)
    result = outcome_of_file(model.SerializeToString())
    if location in LOCATIONS[:3] and offset in (None, 0) and length in (None, 32):
        assert_same_bits(result[0], WEIGHTS)
    elif not isinstance(result, Refusal):
        assert location in (*LOCATIONS[:3], "model.onnx", "in.bin\0")


GRAPH = """<ir_version: 10, opset_import: ["": 25]>
g (float[3,4] x, int64[4] l) => (float[3,b] y, float[k] f, float[8] w)
<int64[1] s = {-1}, int64[1] e = {-9}> {
  r = ReverseSequence<batch_axis = 1, time_axis = 0>(x, l)
  y = Slice(r, s, e, , s)
  three = Constant<value_ints = [3]>()
  f = ConstantOfShape<value: tensor = float[1] {7}>(three)
  w = Identity(v)
}"""


def parsed():
    model = onnx.parser.parse_model(GRAPH.replace("Identity(v)", "Identity(y)"))
    model.graph.node[-1].input[0] = "v"
    outside = with_data_outside(location="in.bin", length=32, offset=0)
    tensor = outside.graph.initializer[0]
    tensor.name = "v"
    model.graph.initializer.append(tensor)
    return model.SerializeToString()


DATA = parsed()
PIECES = [b"\xff" * 9, b"\x80", b"\0", b"in.bin", b"../outside.bin", b"/etc/passwd"]
PIECES += [b"\x0a\x7f", b"offset", b"length", b"\x08\x01", b"\x70\x01", b"Slice", b"If"]


@pytest.mark.parametrize("most", [1, 4])
@given(data=st.data())
def test_changed_bytes(most, data):
    outcome_of_file(data.draw(changed_bytes(DATA, PIECES, most)))


def test_the_file_that_is_changed_is_right():
    y, f, w = outcome_of_file(DATA)
    assert (y.shape, f.tolist()) == ((3, 4), [7, 7, 7])
    assert_same_bits(w, WEIGHTS)
