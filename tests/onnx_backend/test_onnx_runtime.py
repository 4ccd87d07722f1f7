"""The ONNX backend against ONNX Runtime's CPU provider, on random models.

Results must have the bits of the reference, and those of ONNX Runtime except for
DIFFERENCES. What ONNX Runtime refuses is in test_onnx_invalid.py.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx.printer
import pytest
from assertions import assert_same_bits
from hypothesis import event, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx_models import runtime_session

from dml_jax import onnx_backend, reference

DIFFERENCES = {
    "accumulated": "Range adds delta again and again, and rounds each sum: from 0 by "
    "0.1, its eighth float is 0.70000005.",
    "counted": "Range counts in doubles: none from 2^60 to 2^60 + 3 by 1; and it "
    "refuses limits whose difference overflows.",
    "negative zero": "Range returns a start of -0 unchanged instead of -0 + 0 * delta, "
    "which is 0 where delta is positive.",
    "open end": "Slice takes an end of 2^31 - 1 or 2^63 - 1 for the beginning if the "
    "step is negative; by ONNX's text it is the last element, and nothing is left.",
    "scalar": "Slice refuses scalars, which have no axis to be cut.",
}

# Up to the newest of ONNX Runtime 1.31; those of rare versions of operators more often.
OPSETS = [1, 5, 9, 10, 10, 10, 11, 11, 12, *range(13, 27)]
BOOL, TEXT, I32, I64 = (np.dtype(k) for k in (bool, object, "i4", "i8"))
SIGNED = [np.dtype(k) for k in ("i1", "i2", "i4", "i8", "f2", "f4", "f8")]
NUMBERS = [*SIGNED, *(np.dtype(f"u{size}") for size in (1, 2, 4, 8))]
RANGE_DTYPES = [np.dtype(k) for k in ("f4", "f8", "i2", "i4", "i8")]
LIMITS = {I32: [-(2**31), 2**31 - 1], I64: [-(2**63), 2**63 - 1]}
LIMITS[I64] += [1 - 2**63, 2**63 - 2, *(n + k for n in LIMITS[I32] for k in (-1, 0, 1))]
SOURCES = ["input", "input", "input", "initializer", "constant", "identity", "cast"]
Draw = Callable[[st.SearchStrategy[Any]], Any]


def info(name: str, dtype: np.dtype, dims: Sequence[Any]) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_value_info(name, kind, dims)


class Graph:
    """A random model, its inputs, and what it gives."""

    expected: np.ndarray
    model: onnx.ModelProto

    def __init__(self, draw: Draw, first: int) -> None:
        self.draw = draw
        self.opset = draw(st.sampled_from([n for n in OPSETS if n >= first]))
        self.nodes: list[onnx.NodeProto] = []
        self.infos: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.feeds: dict[str, np.ndarray] = {}
        self.difference: str | None = None

    def __repr__(self) -> str:
        text = onnx.printer.to_text(self.model)
        return f"{text}\n{self.feeds}\n{self.expected!r}\n{self.difference}"

    def name(self) -> str:
        return f"v{len(self.nodes) + len(self.infos) + len(self.initializers)}"

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        output = self.name()
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def cast(self, name: str, dtype: np.dtype) -> str:
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        return self.node("Cast", [name], to=kind)

    def value(self, array: np.ndarray) -> str:
        """Adds an array from a random source, and returns its name."""
        source = self.draw(st.sampled_from(SOURCES))
        if source == "identity":
            return self.node("Identity", [self.value(array)])
        if source == "cast" and array.dtype in LIMITS:
            given = array.astype(self.draw(st.sampled_from(RANGE_DTYPES)))
            if np.array_equal(given.astype(object), array.astype(object)):
                return self.cast(self.value(given), array.dtype)
        if source == "constant" and self.opset >= 9:
            return self.node("Constant", [], value=numpy_helper.from_array(array))
        name = self.name()
        if source == "initializer":
            self.initializers.append(numpy_helper.from_array(array, name))
        else:
            self.feeds[name] = array
        if source != "initializer" or self.draw(st.booleans()):
            dims = [self.draw(st.sampled_from([size, None])) for size in array.shape]
            self.infos.append(info(name, array.dtype, dims))
        return name

    def finish(self, output: str, expected: np.ndarray) -> "Graph":
        outputs = [info(output, expected.dtype, [None] * expected.ndim)]
        graph = helper.make_graph(
            self.nodes, "random", self.infos, outputs, self.initializers
        )
        imports = [helper.make_opsetid("", self.opset)]
        self.model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        self.expected = expected
        return self


def shapes(fewest: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    sizes = st.sampled_from([2, 3, 4, 5, 1, 2, 3, 4, 0])
    return st.lists(sizes, min_size=fewest, max_size=most).map(tuple)


@st.composite
def arrays(
    draw: Draw,
    shape: tuple[int, ...],
    dtypes: Sequence[np.dtype] = (BOOL, TEXT, TEXT, TEXT, *NUMBERS),
) -> np.ndarray:
    """Arrays of random bits, or strings."""
    dtype, count = draw(st.sampled_from(dtypes)), math.prod(shape)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype in (TEXT, BOOL):
        choices: list[Any] = ["", "é", "ab", "日本"] if dtype == TEXT else [False, True]
        return random.choice(np.array(choices, dtype), shape)
    return np.frombuffer(random.bytes(count * dtype.itemsize), dtype).reshape(shape)


Step = tuple[str, np.ndarray]  # the name of a value, and the value


def add_reversal(graph: Graph, name: str, x: np.ndarray) -> Step:
    """A node whose default attributes may be omitted."""
    draw = graph.draw
    batch, time = axes = draw(st.permutations([0, 1]))
    lengths = [draw(st.integers(0, x.shape[time])) for _ in range(x.shape[batch])]
    keys = zip(("batch_axis", "time_axis"), axes, (1, 0), strict=True)
    attributes = {k: v for k, v, default in keys if v != default or draw(st.booleans())}
    given = graph.value(np.array(lengths, I64))
    output = graph.node("ReverseSequence", [name, given], **attributes)
    return output, reference.reverse_sequence(x, np.array(lengths), batch, time)


def selected(size: int, start: int, end: int, step: int) -> range:
    """The indices that Slice-13 specifies."""
    start, end = (k + size if k < 0 else k for k in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def cut(
    x: np.ndarray,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> np.ndarray:
    indices = [range(size) for size in x.shape]
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        indices[axis] = selected(x.shape[axis], start, end, step)
    return x[np.ix_(*map(list, indices))] if x.ndim else x


def add_slice(graph: Graph, name: str, x: np.ndarray) -> Step:
    draw = graph.draw
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
    if graph.opset < 10:
        return graph.node("Slice", [name], **parts), cut(x, **parts)
    keys = ["starts", "ends", "axes", "steps"][: 4 if has_steps else len(parts)]
    names = [
        graph.value(np.array(parts[key], dtype)) if key in parts else "" for key in keys
    ]
    return graph.node("Slice", [name, *names]), cut(x, **parts)


@st.composite
def moves(
    draw: Draw, add: Callable[..., Step], first: int, fewest: int, most: int
) -> Graph:
    graph, x = Graph(draw, first), draw(arrays(draw(shapes(fewest, most))))
    return graph.finish(*add(graph, graph.value(x), x))


def count_of(*numbers: Any) -> int:
    start, limit, delta = (Fraction(number.item()) for number in numbers)
    return max(0, math.ceil((limit - start) / delta))


def difference_of_range(
    start: Any, limit: Any, delta: Any, values: np.ndarray
) -> str | None:
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
def numbers_of_range(draw: Draw, dtype: np.dtype) -> tuple[Any, Any, Any]:
    """Start, limit and delta, with the limit some deltas away from the start."""
    small = st.integers(-99, 99)
    info: Any = np.iinfo(dtype) if dtype.kind == "i" else np.finfo(dtype)
    if dtype.kind == "i":
        number: Any = small | st.integers(int(info.min), int(info.max))
    else:
        number = small | small.map(lambda k: k / 8) | small.map(lambda k: k / 10)
        width = dtype.itemsize * 8
        number |= st.floats(width=width, allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]
    start, delta = dtype.type(draw(number)), dtype.type(draw(number) or 1)
    deltas = Fraction(draw(st.integers(-8, 160)), draw(st.sampled_from([1, 4])))
    limit: Any = Fraction(start.item()) + deltas * Fraction(delta.item())
    least, most = (dtype.type(n).item() for n in (info.min, info.max))
    limit = Fraction(min(max(limit, least), most))
    limit = dtype.type(limit) if dtype.kind == "i" else reference.nearest(limit, dtype)
    return start, limit if count_of(start, limit, delta) <= 200 else start, delta


@st.composite
def ranges(draw: Draw) -> Graph:
    dtype, graph = draw(st.sampled_from(RANGE_DTYPES)), Graph(draw, 11)
    start, _, delta = numbers = draw(numbers_of_range(dtype))
    sizes = [count_of(*numbers)]
    expected = reference.fill_value_sequence(sizes, dtype, start, delta)
    graph.difference = difference_of_range(*numbers, expected)
    names = [graph.value(np.array(number)) for number in numbers]
    return graph.finish(graph.node("Range", names), expected)


def add_fill(graph: Graph, shape: Sequence[int], value: np.ndarray | None) -> str:
    attributes = {} if value is None else {"value": numpy_helper.from_array(value)}
    sizes = graph.value(np.array(shape, I64))
    return graph.node("ConstantOfShape", [sizes], **attributes)


@st.composite
def fills(draw: Draw) -> Graph:
    graph, shape = Graph(draw, 9), draw(shapes(0, 6))
    value = draw(st.none() | arrays((1,), [BOOL, *NUMBERS]))
    expected = np.full(shape, np.float32(0) if value is None else value)
    return graph.finish(add_fill(graph, shape, value), expected)


@st.composite
def chains(draw: Draw) -> Graph:
    """Some nodes in a row, on halves that every signed dtype has or truncates."""
    graph, shape = Graph(draw, 11), draw(shapes(0, 4))
    x = draw(arrays(draw(st.sampled_from([(1,), shape])), SIGNED[:1])) / 2
    x = np.asarray(x, draw(st.sampled_from(SIGNED)))
    name = graph.value(x) if x.shape == shape else add_fill(graph, shape, x)
    x = np.broadcast_to(x.reshape(x.shape[: len(shape)]), shape)
    for _ in range(draw(st.integers(2, 4))):
        kind = draw(st.sampled_from(["Identity", "Cast", "Slice", "ReverseSequence"]))
        if kind == "Slice":
            name, x = add_slice(graph, name, x)
        elif kind == "Cast":
            x = x.astype(draw(st.sampled_from([BOOL, *SIGNED])))
            name = graph.cast(name, x.dtype)
        elif kind == "ReverseSequence" and x.ndim > 1:
            name, x = add_reversal(graph, name, x)
        else:
            name = graph.node("Identity", [name])
    return graph.finish(name, x)


def assert_same(actual: Any, expected: np.ndarray) -> None:
    if expected.dtype == TEXT:
        assert actual.dtype == TEXT
        actual, expected = actual.astype(np.str_), expected.astype(np.str_)
    assert_same_bits(actual, expected)


CASES = {
    "ReverseSequence": moves(add_reversal, 10, 2, 6),
    "Slice": moves(add_slice, 1, 1, 5),
    "Range": ranges(),
    "ConstantOfShape": fills(),
}


@pytest.mark.parametrize(
    "graphs",
    [
        pytest.param(chains(), id="chain"),
        *(
            pytest.param(graphs, id=kind, marks=pytest.mark.exhaustive)
            for kind, graphs in CASES.items()
        ),
    ],
)
@given(data=st.data())
def test_results(graphs: st.SearchStrategy[Graph], data: st.DataObject) -> None:
    graph = data.draw(graphs)
    event(str(graph.difference))
    assert graph.difference is None or graph.difference in DIFFERENCES
    (y,) = onnx_backend.run_model(graph.model, graph.feeds)
    assert_same(y, graph.expected)
    if graph.difference is None:
        session = runtime_session(graph.model)
        assert_same(session.run(None, graph.feeds)[0], graph.expected)
