"""The ONNX backend against ONNX Runtime's CPU provider, on random models.

Results are compared bit for bit with what NumPy and exact fractions give by the text of
the operators, and with ONNX Runtime's but for DIFFERENCES. Both refuse what is invalid.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import onnx.printer
import onnxruntime
import pytest
from assertions import assert_same_bits
from hypothesis import event, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.helper import make_tensor_value_info as value_info
from onnx.helper import np_dtype_to_tensor_dtype as type_of
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from dml_jax import onnx_backend, reference

DIFFERENCES = {
    "accumulated": "Range adds delta time and again, and rounds each time: from 0 by "
    "0.1, its eighth float is 0.70000005.",
    "counted": "Range counts in doubles: none from 2^60 to 2^60 + 3 by 1; and it "
    "refuses limits of which the difference overflows.",
    "negative zero": "Range gives a start of -0 as it is, for -0 + 0 * delta, which is "
    "0 where delta is positive.",
    "infinite delta": "Range takes an infinite delta, and gives nothing.",
    "open end": "Slice takes an end of 2^31 - 1 or 2^63 - 1 for the beginning where "
    "the step is negative; by the text it is the last element, and nothing is left.",
    "negative axis": "ReverseSequence takes negative axes, which the text does not "
    "have, and reverses along axis 1 for a time_axis of -1 at any rank.",
    "scalar": "Slice refuses scalars, of which there is nothing to be cut.",
}

# Up to the newest that ONNX Runtime 1.31 has; those of which there are few more often.
OPSETS = [1, 5, 9, 10, 10, 10, 11, 11, 12, *range(13, 27)]
BOOL, TEXT, I32, I64 = (np.dtype(k) for k in (bool, object, "i4", "i8"))
SIGNED = [np.dtype(k) for k in ("i1", "i2", "i4", "i8", "f2", "f4", "f8")]
NUMBERS = [*SIGNED, *(np.dtype(f"u{size}") for size in (1, 2, 4, 8))]
RANGE_DTYPES = [np.dtype(k) for k in ("f4", "f8", "i2", "i4", "i8")]
LIMITS = {I32: [-(2**31), 2**31 - 1], I64: [-(2**63), 2**63 - 1]}
LIMITS[I64] += [1 - 2**63, 2**63 - 2, *(n + k for n in LIMITS[I32] for k in (-1, 0, 1))]
WAYS = ["input", "input", "input", "initializer", "constant", "identity", "cast"]
BAD_AXES = [(1, 1), (0, 0), (0, 2), (2, 1), (0, -1), (-1, 0), (1, -2), (-2, 1)]
REFUSALS = errors.Fail, errors.InvalidArgument, errors.InvalidGraph


class Case(NamedTuple):
    """A model, its inputs, and what it gives, or the words with which it is refused."""

    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    expected: np.ndarray | str
    difference: str | None

    def __repr__(self):
        text = onnx.printer.to_text(self.model)
        return f"{text}\n{self.feeds}\n{self.expected!r}\n{self.difference}"


class Graph:
    """Nodes, one after another, and where their inputs come from."""

    def __init__(self, draw, first):
        self.draw = draw
        self.opset = draw(st.sampled_from([n for n in OPSETS if n >= first]))
        self.nodes, self.infos, self.initializers, self.feeds = [], [], [], {}
        self.difference = None

    def name(self):
        return f"v{len(self.nodes) + len(self.infos) + len(self.initializers)}"

    def node(self, kind, inputs, **attributes):
        output = self.name()
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def place(self, array):
        """The name of a value that comes from somewhere."""
        way = self.draw(st.sampled_from(WAYS))
        if way == "identity":
            return self.node("Identity", [self.place(array)])
        if way == "cast" and array.dtype in LIMITS:
            given = array.astype(self.draw(st.sampled_from(RANGE_DTYPES)))
            if np.array_equal(given.astype(object), array.astype(object)):
                return self.node("Cast", [self.place(given)], to=type_of(array.dtype))
        if way == "constant" and self.opset >= 9:
            return self.node("Constant", [], value=numpy_helper.from_array(array))
        name = self.name()
        if way == "initializer":
            self.initializers.append(numpy_helper.from_array(array, name))
        else:
            self.feeds[name] = array
        if way != "initializer" or self.draw(st.booleans()):
            dims = [self.draw(st.sampled_from([size, None])) for size in array.shape]
            self.infos.append(value_info(name, type_of(array.dtype), dims))
        return name

    def case(self, output, dtype, rank, expected):
        outputs = [value_info(output, type_of(dtype), [None] * rank)]
        graph = helper.make_graph(
            self.nodes, "random", self.infos, outputs, self.initializers
        )
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return Case(model, self.feeds, expected, DIFFERENCES.get(self.difference))


def shapes(fewest, most):
    sizes = st.sampled_from([2, 3, 4, 5, 1, 2, 3, 4, 0])
    return st.lists(sizes, min_size=fewest, max_size=most).map(tuple)


@st.composite
def arrays(draw, shape, dtypes=(BOOL, TEXT, TEXT, TEXT, *NUMBERS)):
    """Arrays of random bits, or texts."""
    dtype, count = draw(st.sampled_from(dtypes)), math.prod(shape)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype in (TEXT, BOOL):
        choices = ["", "é", "ab", "日本"] if dtype == TEXT else [False, True]
        return random.choice(np.array(choices, dtype), shape)
    return np.frombuffer(random.bytes(count * dtype.itemsize), dtype).reshape(shape)


def add_reversal(draw, graph, name, x):
    batch, time = axes = draw(st.permutations([0, 1]))
    length = st.integers(0, x.shape[time])
    lengths = [draw(length) for _ in range(x.shape[batch])]
    output = reversal_node(draw, graph, name, lengths, axes)
    return output, reference.reverse_sequence(x, lengths, batch, time)


def reversal_node(draw, graph, name, lengths, axes):
    """A node, of whose attributes defaults may be left out."""
    keys = zip(("batch_axis", "time_axis"), axes, (1, 0), strict=True)
    attributes = {k: v for k, v, default in keys if v != default or draw(st.booleans())}
    lengths = graph.place(np.array(lengths, I64))
    return graph.node("ReverseSequence", [name, lengths], **attributes)


@st.composite
def refused_reversals(draw):
    x, axes = draw(arrays(draw(shapes(2, 4)))), draw(st.permutations([0, 1]))
    batch, time = (x.shape[axis] for axis in axes)
    length = st.integers(0, time) | st.sampled_from([-1, time + 1, *LIMITS[I64]])
    lengths = [draw(length) for _ in range(batch)]
    outside = [n for n in lengths if not 0 <= n <= time]
    graph, words = Graph(draw, 10), "."
    if outside and draw(st.integers(0, 3)):
        words = f"Invalid sequence length: {outside[0]}. Value must be in range "
        words = rf"{words}\[0,{time}\]"
    elif draw(st.booleans()):
        lengths = [0] * draw(st.integers(0, 5).filter(lambda n: n != batch))
    else:
        axes, lengths = draw(st.sampled_from(BAD_AXES)), [0] * x.shape[0]
        graph.difference = "negative axis" if min(axes) < 0 else None
    output = reversal_node(draw, graph, graph.place(x), lengths, axes)
    return graph.case(output, x.dtype, x.ndim, words)


def selected(size, start, end, step):
    """The indices of a window, as the text of Slice-13 says."""
    start, end = (k + size if k < 0 else k for k in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def cut(x, starts, ends, axes=None, steps=None):
    indices = [range(size) for size in x.shape]
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        indices[axis] = selected(x.shape[axis], start, end, step)
    return x[np.ix_(*map(list, indices))] if x.ndim else x


def slice_node(graph, name, dtype, parts):
    if graph.opset < 10:
        return graph.node("Slice", [name], **parts)
    keys = ["starts", "ends", "axes", "steps"][: 4 if "steps" in parts else len(parts)]
    places = [
        graph.place(np.array(parts[k], dtype)) if k in parts else "" for k in keys
    ]
    return graph.node("Slice", [name, *places])


def add_slice(draw, graph, name, x):
    dtype, fewest = draw(st.sampled_from([I32, I64])), int(graph.opset < 10)
    axes = draw(st.permutations(range(x.ndim)))[: draw(st.integers(fewest, x.ndim))]
    number = st.sampled_from([*[-1, 1, 2, -2, 3, -3, 6, -6] * 2, *LIMITS[dtype]])
    has_steps = graph.opset >= 10 and draw(st.integers(0, 3)) > 0
    steps = [draw(number) if has_steps else 1 for _ in axes]
    parts = {"starts": [draw(st.just(0) | number) for _ in axes]}
    far = [st.just(LIMITS[dtype][step > 0]) for step in steps]
    parts["ends"] = [draw(st.just(0) | number | end | end) for end in far]
    if draw(st.integers(0, 3)):
        parts["axes"] = [axis - draw(st.sampled_from([0, x.ndim])) for axis in axes]
    parts |= {"steps": steps} if has_steps else {}
    pairs = zip(parts["ends"], steps, strict=True)
    if any(end in (2**31 - 1, 2**63 - 1) and step < 0 for end, step in pairs):
        graph.difference = "open end"
    if x.ndim == 0:
        graph.difference = "scalar"
    return slice_node(graph, name, dtype, parts), cut(x, **parts)


@st.composite
def moves(draw, add, first, fewest, most):
    graph, x = Graph(draw, first), draw(arrays(draw(shapes(fewest, most))))
    output, expected = add(draw, graph, graph.place(x), x)
    return graph.case(output, x.dtype, x.ndim, expected)


@st.composite
def refused_slices(draw):
    graph, dtype = Graph(draw, 1), draw(st.sampled_from([I32, I64]))
    x = draw(arrays(draw(shapes(1, 4))))
    count = draw(st.integers(1, x.ndim))
    axes = draw(st.permutations(range(x.ndim)))[:count]
    parts = {"starts": [0] * count, "ends": [1] * count, "axes": axes}
    parts |= {"steps": [1] * count} if graph.opset >= 10 else {}
    at = draw(st.integers(0, count - 1))
    fault = draw(st.sampled_from(["twice", "axis", "size", "step"]))
    if fault == "twice":
        for part in parts.values():
            part.append(part[at])
        parts["axes"][-1] -= draw(st.sampled_from([0, x.ndim]))
    elif fault == "size":
        parts[draw(st.sampled_from(list(parts)))].append(0)
    elif fault == "step" and graph.opset >= 10:
        parts["steps"][at] = 0
    else:
        parts["axes"][at] = draw(st.sampled_from([x.ndim, ~x.ndim]))
    output = slice_node(graph, graph.place(x), dtype, parts)
    return graph.case(output, x.dtype, x.ndim, ".")


def count_of(start, limit, delta):
    start, limit, delta = (Fraction(n.item()) for n in (start, limit, delta))
    return max(0, math.ceil((limit - start) / delta))


def difference_of_range(start, limit, delta, values):
    with np.errstate(over="ignore"):
        count = (np.float64(limit) - np.float64(start)) / np.float64(delta)
    if not np.isfinite(count) or max(0, math.ceil(count)) != len(values):
        return "counted"
    if start == 0 and math.copysign(1, start) < 0 < delta and len(values):
        return "negative zero"
    first, step = Fraction(start.item()), Fraction(delta.item())
    sums = [first + k * step for k in range(len(values))]
    return None if list(map(Fraction, values.tolist())) == sums else "accumulated"


@st.composite
def numbers_of_range(draw, dtype):
    """Start, limit and delta, of which the limit lies some deltas from the start."""
    small = st.integers(-99, 99)
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        number = small | st.integers(int(info.min), int(info.max))
    else:
        info, width = np.finfo(dtype), dtype.itemsize * 8
        number = small | small.map(lambda k: k / 8) | small.map(lambda k: k / 10)
        number |= st.floats(width=width, allow_nan=False, allow_infinity=False)
    start, delta = dtype.type(draw(number)), dtype.type(draw(number) or 1)
    deltas = Fraction(draw(st.integers(-8, 160)), draw(st.sampled_from([1, 4])))
    limit = Fraction(start.item()) + deltas * Fraction(delta.item())
    least, most = (dtype.type(n).item() for n in (info.min, info.max))
    limit = Fraction(min(max(limit, least), most))
    limit = dtype.type(limit) if dtype.kind == "i" else reference.nearest(limit, dtype)
    return start, limit if count_of(start, limit, delta) <= 200 else start, delta


@st.composite
def ranges(draw):
    dtype, graph = draw(st.sampled_from(RANGE_DTYPES)), Graph(draw, 11)
    start, _, delta = numbers = draw(numbers_of_range(dtype))
    sizes = [count_of(*numbers)]
    expected = reference.fill_value_sequence(sizes, dtype, start, delta)
    graph.difference = difference_of_range(*numbers, expected)
    output = graph.node("Range", [graph.place(np.array(n)) for n in numbers])
    return graph.case(output, dtype, 1, expected)


@st.composite
def refused_ranges(draw):
    dtype, graph = draw(st.sampled_from(RANGE_DTYPES)), Graph(draw, 11)
    numbers = [np.array(number) for number in draw(numbers_of_range(dtype))]
    at = draw(st.integers(0, 2))
    fault = draw(st.sampled_from(["step", "size", "infinite"]))
    if fault == "size":
        numbers[at] = numbers[at].repeat(draw(st.sampled_from([0, 2])))
    elif fault == "infinite" and dtype.kind == "f":
        numbers[at][...] = draw(st.sampled_from([math.inf, -math.inf, math.nan]))
        graph.difference = "infinite delta" if np.isinf(numbers[2]) else None
    else:
        numbers[2][...] = 0
    output = graph.node("Range", list(map(graph.place, numbers)))
    return graph.case(output, dtype, 1, ".")


def fill_node(graph, shape, value=None):
    attributes = {} if value is None else {"value": numpy_helper.from_array(value)}
    sizes = graph.place(np.array(shape, I64))
    return graph.node("ConstantOfShape", [sizes], **attributes)


@st.composite
def fills(draw):
    graph, shape = Graph(draw, 9), draw(shapes(0, 6))
    value = draw(st.none() | arrays((1,), [BOOL, *NUMBERS]))
    expected = np.full(shape, np.float32(0) if value is None else value)
    name = fill_node(graph, shape, value)
    return graph.case(name, expected.dtype, len(shape), expected)


@st.composite
def refused_fills(draw):
    graph, shape = Graph(draw, 9), list(draw(shapes(1, 4)))
    count = draw(st.sampled_from([0, 1, 2]))
    if count == 1:
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.integers(-(2**63), -1))
    value = draw(arrays((count,), NUMBERS))
    return graph.case(fill_node(graph, shape, value), value.dtype, len(shape), ".")


@st.composite
def chains(draw):
    """Some nodes in a row, on halves that every signed type has or truncates."""
    graph, shape = Graph(draw, 11), draw(shapes(0, 4))
    x = draw(arrays(draw(st.sampled_from([(1,), shape])), SIGNED[:1])) / 2
    x = np.asarray(x, draw(st.sampled_from(SIGNED)))
    name = graph.place(x) if x.shape == shape else fill_node(graph, shape, x)
    x = np.broadcast_to(x.reshape(x.shape[: len(shape)]), shape)
    for _ in range(draw(st.integers(2, 4))):
        kind = draw(st.sampled_from(["Identity", "Cast", "Slice", "ReverseSequence"]))
        if kind == "Slice":
            name, x = add_slice(draw, graph, name, x)
        elif kind == "Cast":
            x = x.astype(draw(st.sampled_from([BOOL, *SIGNED])))
            name = graph.node("Cast", [name], to=type_of(x.dtype))
        elif kind == "ReverseSequence" and x.ndim > 1:
            name, x = add_reversal(draw, graph, name, x)
        else:
            name = graph.node("Identity", [name])
    return graph.case(name, x.dtype, x.ndim, x)


def theirs(case):
    options, run_options = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = run_options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, case.feeds, run_options)[0]


def assert_same(actual, expected):
    if expected.dtype == TEXT:
        assert actual.dtype == TEXT
        actual, expected = actual.astype(np.str_), expected.astype(np.str_)
    assert_same_bits(actual, expected)


MOVES = [moves(add_reversal, 10, 2, 6), moves(add_slice, 1, 1, 5)]
RESULTS = [*MOVES, ranges(), fills(), chains()]
REFUSED = [refused_reversals(), refused_slices(), refused_ranges(), refused_fills()]
NAMES = ["ReverseSequence", "Slice", "Range", "ConstantOfShape"]


@pytest.mark.parametrize("cases", RESULTS, ids=[*NAMES, "chain"])
@given(data=st.data())
def test_result(cases, data):
    case = data.draw(cases)
    event(str(case.difference))
    assert_same(onnx_backend.run_model(case.model, case.feeds)[0], case.expected)
    if case.difference is None:
        assert_same(theirs(case), case.expected)


@pytest.mark.parametrize("cases", REFUSED, ids=NAMES)
@given(data=st.data())
def test_refusal(cases, data):
    case = data.draw(cases)
    event(str(case.difference))
    with pytest.raises(ValueError, match=case.expected):
        onnx_backend.run_model(case.model, case.feeds)
    if case.difference is None:
        with pytest.raises(REFUSALS, match=case.expected):
            theirs(case)
