"""Random ONNX nodes give what ONNX says; changed models may be refused."""

import os
import warnings
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx.parser
import pytest
from assertions import assert_same_bits, assert_same_sequence
from folders import SECRET, model_folder
from hypothesis import strategies as st
from mutations import changed_bytes
from onnx import helper, numpy_helper
from onnx_models import SMALL_FILLS, external_tensor, with_external_data
from outcomes import Refusal, outcome_of

import dml_jax
from dml_jax import onnx_backend, reference
from dml_jax.cli.verify_cases import random_bits

NEWEST = onnx.defs.onnx_opset_version()
DTYPES = [np.dtype(t) for t in ("f4", "i8", "u1", "?", "f2", "f8")]
TEXT = np.array([["a", "é"], ["", "b"], ["c", "dd"]], object)
FAR = [2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]


# Nodes that give a result: inputs, attributes, and the result -------------------------


def arrays(draw: Any) -> np.ndarray:
    shape = draw(st.sampled_from([(3, 4), (2, 3, 2), (4,), (0, 3), None]))
    if shape is None:
        return TEXT
    return elements(draw, shape)


def elements(draw: Any, shape: Sequence[int]) -> np.ndarray:
    random = np.random.default_rng(draw(st.integers(0, 9)))
    return random_bits(random, draw(st.sampled_from(DTYPES)), shape)


def reversals(draw: Any) -> tuple[Any, ...]:
    x = arrays(draw)
    x = x[None] if x.ndim == 1 else x
    batch = draw(st.integers(0, 1))
    steps = st.integers(0, x.shape[1 - batch])
    lengths = [draw(steps) for _ in range(x.shape[batch])]
    attributes = {"batch_axis": batch, "time_axis": 1 - batch}
    expected = reference.reverse_sequence(x, lengths, **attributes)
    return [x, np.array(lengths, np.int64)], attributes, expected


def slices(draw: Any) -> tuple[Any, ...]:
    x, window = arrays(draw), {}
    for axis in draw(st.permutations(range(x.ndim)))[: draw(st.integers(0, x.ndim))]:
        near = st.sampled_from([*range(-5, 6), *FAR])
        step = draw(st.sampled_from([1, 2, -1, -2, 3, *FAR]))
        window[axis - draw(st.sampled_from([0, x.ndim]))] = draw(near), draw(near), step
    parts = {  # a start before the axis is its first element, unlike NumPy's
        axis % x.ndim: slice(max(start, -x.shape[axis]), end, step)
        for axis, (start, end, step) in window.items()
    }
    expected = x[tuple(parts.get(axis, slice(None)) for axis in range(x.ndim))]
    starts, ends, steps = (np.array([w[i] for w in window.values()]) for i in range(3))
    numbers = [n.astype(np.int64) for n in (starts, ends, np.array([*window]), steps)]
    return [x, *numbers], {}, expected


def ranges(draw: Any) -> tuple[Any, ...]:
    dtype = np.dtype(draw(st.sampled_from(["f4", "f8", "i2", "i4", "i8"])))
    start, count = draw(st.integers(-20, 20)), draw(st.integers(0, 9))
    delta = draw(st.sampled_from([1, 2, -3, 7]))
    start, delta = (
        dtype.type(n) / dtype.type(4) ** (dtype.kind == "f") for n in (start, delta)
    )
    start, delta = dtype.type(start), dtype.type(delta)
    limit = dtype.type(start + count * delta)
    expected = reference.fill_value_sequence((count,), dtype, start, delta)
    return [np.array(n) for n in (start, limit, delta)], {}, expected


def fills(draw: Any) -> tuple[Any, ...]:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    value = elements(draw, [1])
    attributes = {"value": numpy_helper.from_array(value)}
    if draw(st.booleans()):
        attributes, value = {}, np.zeros(1, "f4")
    return [np.array(shape, np.int64)], attributes, np.full(shape, value[0])


NODES = {
    "ReverseSequence": reversals,
    "Slice": slices,
    "Range": ranges,
    "ConstantOfShape": fills,
}


@pytest.mark.parametrize("kind", NODES)
def test_right_nodes_give_what_onnx_says(kind: str, fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        inputs, attributes, expected = NODES[kind](data.draw)
        opset = data.draw(st.sampled_from([11, 13, 21, 25, NEWEST]))
        names = list("abcdef"[: len(inputs)])
        node = helper.make_node(kind, names, ["y"], **attributes)
        (result,) = onnx_backend.run_node(node, inputs, opset_version=opset)
        if expected.dtype == object:
            assert result.tolist() == expected.tolist()
        elif kind == "Range":
            assert_same_sequence(result, expected)
        else:
            assert_same_bits(result, expected)


# Files --------------------------------------------------------------------------------

WEIGHTS = np.arange(8, dtype=np.float32)  # what in.bin holds


def outcome_of_file(data: bytes) -> Any:
    """What a model's file gives, which holds no more than its folder does."""
    with model_folder() as folder, mock.patch.multiple(dml_jax, **SMALL_FILLS):
        path = folder / "model.onnx"
        path.write_bytes(data)
        before = sorted(os.listdir(folder))

        def run() -> Any:
            warnings.filterwarnings("ignore", "Ignoring unknown external")  # by ONNX
            model = onnx_backend.prepare(onnx_backend.load_model(path))
            values = {"x": np.ones((3, 4), "f4"), "l": np.array([1, 2, 3, 0])}
            return model.run([values.get(n, WEIGHTS) for n in model.input_names])

        result = outcome_of(run, "")  # messages begin with any node
        assert sorted(os.listdir(folder)) == before
    if not isinstance(result, Refusal):
        assert not any(SECRET[:4] in np.asarray(y).tobytes() for y in result)
    return result


WITHIN = ["in.bin", "./in.bin", "sub/../in.bin"]
LOCATIONS = [*WITHIN, "../outside.bin", "link.bin", "loop.bin", "up/outside.bin", "sub"]
LOCATIONS += ["", ".", "..", "none.bin", "/etc/passwd", "in.bin/", "~/x", "model.onnx"]
LOCATIONS += ["sub/../../outside.bin"]
NUMBERS = [0, 4, 28, 32, 33, -1, 2**31, 2**63, "x", "", "0x10", 1.5]


def test_data_of_other_files_is_of_the_folder(fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        location = data.draw(st.sampled_from(LOCATIONS))
        numbers = {name: st.sampled_from(NUMBERS) for name in ("offset", "length")}
        entries = data.draw(st.fixed_dictionaries({}, optional=numbers))
        model = with_external_data(8, location=location, **entries)
        result = outcome_of_file(model.SerializeToString())
        if location in WITHIN and not entries:
            assert_same_bits(result[0], WEIGHTS)
        elif not isinstance(result, Refusal):
            assert location in (*WITHIN, "model.onnx")


GRAPH = """<ir_version: 10, opset_import: ["": 25]>
g (float[3,4] x, int64[4] l) => (float[3,b] y, float[k] f, float[8] w)
<int64[1] s = {-1}, int64[1] e = {-9}> {
  r = ReverseSequence<batch_axis = 1, time_axis = 0>(x, l)
  y = Slice(r, s, e, , s)
  three = Constant<value_ints = [3]>()
  f = ConstantOfShape<value: tensor = float[1] {7}>(three)
  w = Identity(v)
}"""


def parsed() -> bytes:
    """The graph above, whose v is in another file."""
    model = onnx.parser.parse_model(GRAPH.replace("Identity(v)", "Identity(y)"))
    model.graph.node[-1].input[0] = "v"
    outside = external_tensor(8, "v", location="in.bin", length=32, offset=0)
    model.graph.initializer.append(outside)
    return model.SerializeToString()


DATA = parsed()
PIECES = [b"\xff" * 9, b"\x80", b"\0", b"in.bin", b"../outside.bin", b"/etc/passwd"]
PIECES += [b"\x0a\x7f", b"offset", b"length", b"\x08\x01", b"\x70\x01", b"Slice", b"If"]


@pytest.mark.parametrize("most", [1, 4])
def test_changed_bytes(most: int, fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        outcome_of_file(data.draw(changed_bytes(DATA, PIECES, most)))


def test_the_file_that_is_changed_is_right() -> None:
    y, f, w = outcome_of_file(DATA)
    assert (y.shape, f.tolist()) == ((3, 4), [7, 7, 7])
    assert_same_bits(w, WEIGHTS)
