"""The ONNX backend against ONNX Runtime's CPU provider, bit for bit."""

import itertools
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import F, parse, prepared, runtime_session
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[attr-defined]
from sampling import default_of

from dml_jax import onnx_backend

X = np.arange(30, dtype=np.int32).reshape(5, 3, 2)
DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float double"
MOVED_KINDS = default_of([*DTYPES.split(), "string"], "float", "string")
NAMES = {"float": "float32", "double": "float64", "string": "object"}


def require_same(text: str, cases: Iterable[Any], **initializers: Any) -> None:
    """Compares all outputs of a model for each case of inputs."""
    source = parse(text, **initializers)
    model, session = onnx_backend.prepare(source), runtime_session(source)
    names = [value.name for value in session.get_inputs()]
    for inputs in cases:
        arrays = list(map(np.asarray, inputs))
        wanted = session.run(None, dict(zip(names, arrays, strict=True)))
        for actual, array in zip(model.run(arrays), wanted, strict=True):
            array = np.asarray(array)
            assert actual.dtype == array.dtype
            if array.dtype == object:
                actual, array = actual.astype(np.str_), array.astype(np.str_)
            assert_same_bits(actual, array)


def array_of(kind: str, *shape: int) -> np.ndarray:
    """Random bits of a data type of ONNX, or strings."""
    random, dtype = np.random.default_rng(0), np.dtype(NAMES.get(kind, kind))
    if kind in ("string", "bool"):
        choices: Any = ["", "é", "ab", "日本"] if kind == "string" else [False, True]
        return random.choice(np.array(choices, dtype), shape)
    count = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(random.bytes(count), dtype).reshape(shape)


@pytest.mark.parametrize("kind", MOVED_KINDS)
@pytest.mark.parametrize(("batch", "time"), [(0, 1), (1, 0)])
def test_reverse_sequence(kind: str, batch: int, time: int) -> None:
    for shape in ((3, 4), (4, 3, 2), (2, 0), (0, 3), (3, 2, 1, 2)):
        axes = f"batch_axis = {batch}, time_axis = {time}"
        dims = ",".join("nmpq"[: len(shape)])
        text = f"{kind}[{dims}] x, int64[b] l => {kind}[{dims}] y "
        text += f"{{y = ReverseSequence<{axes}>(x, l)}}"
        lengths = itertools.product(range(shape[time] + 1), repeat=shape[batch])
        x = array_of(kind, *shape)
        require_same(text, [[x, np.array(n, int)] for n in lengths][::7])


INDICES = [-(2**31), -6, -5, -3, -1, 0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("opset", default_of([10, 11, 13, 25], 25))
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_slice(opset: int, index: str) -> None:
    """Every start and end around an axis, and most steps."""
    text = f"@{opset} int32[n,m,2] x, {index}[i] s, {index}[j] e, {index}[k] a, "
    text += f"{index}[l] t => int32[p,q,r] y {{y = Slice(x, s, e, a, t)}}"
    grid = itertools.product(INDICES, INDICES, (0, -2), (1, 2, 7, -1, -2, -(2**31)))
    cases = [[X, *(np.array([number], index) for number in row)] for row in grid]
    require_same(text, cases[:: 97 if index == "int32" else 7])


@pytest.mark.parametrize("kind", MOVED_KINDS)
def test_slice_of_every_dtype(kind: str) -> None:
    text = f"{kind}[n,m] x, int64[i] s, int64[j] e, int64[k] a, int64[l] t => "
    text += f"{kind}[p,q] y {{y = Slice(x, s, e, a, t)}}"
    x = array_of(kind, 4, 5)
    numbers = [[-1, 0], [-9, 3], [1, 0], [-2, 1]], [[0, 9], [9, 9], [0, 1], [1, 1]]
    require_same(text, [[x, *map(np.array, row)] for row in numbers])


ATTRIBUTES = "starts = [1, -2], ends = [9, -1], axes = [1, 0]"


@pytest.mark.parametrize("opset", [7, 9])
def test_slice_with_attributes(opset: int) -> None:
    text = "int32[n,m,2] x => int32[p,q,r] y {y = Slice"
    require_same(f"@{opset} {text}<{ATTRIBUTES}>(x)}}", [[X]])
    require_same(f"@{opset} {text}<starts = [1], ends = [3]>(x)}}", [[X]])


RANGES = {  # whose sums are exact
    "float": [(0, 5, 1), (5, 0, -0.5), (3, 3, 1), (0, 9, -1), (-1.5, 2.25, 0.25)],
    "double": [(0, 5, 1), (2**40, 2**40 + 9, 3), (0.5, -7, -0.75)],
    "int16": [(0, 300, 7), (2**15 - 1, -(2**15), -999)],
    "int32": [(0, 300, 7), (2**31 - 1, 2**31 - 9, -3)],
    "int64": [(0, 300, 7), (-(2**52), 9 - 2**52, 2)],
}


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("opset", default_of([11, 13, 25], 25))
def test_range(kind: str, opset: int) -> None:
    text = (
        f"@{opset} {kind} s, {kind} l, {kind} d => {kind}[n] y {{y = Range(s, l, d)}}"
    )
    dtype = NAMES.get(kind, kind)
    cases = [[np.array(number, dtype) for number in row] for row in RANGES[kind]]
    require_same(text, cases)


@pytest.mark.parametrize("kind", default_of(DTYPES.split(), "float", "int64"))
@pytest.mark.parametrize("opset", default_of([9, 13, 21, 25], 25))
def test_constant_of_shape(kind: str, opset: int) -> None:
    for shape in ((), (3,), (2, 0, 3), (1, 2, 3, 1, 2)):
        dims = f"[{','.join('abcde'[: len(shape)])}]" if shape else ""
        text = f"@{opset} int64[n] s => {kind}{dims} y {{y = ConstantOfShape"
        require_same(
            f"{text}<value: tensor = {kind}[1] {{1}}>(s)}}", [[np.array(shape, int)]]
        )
    require_same("int64[n] s => float[a,b] y {y = ConstantOfShape(s)}", [[[2, 3]]])


CHAINS = [
    """float[4,3] x, int64[3] n => float16[u,3] y, int32[u,3] z, bool[u,3] b {
      r = ReverseSequence(x, n)
      s = Constant<value_ints = [-1]>()
      e = Identity(end)
      c = Slice(r, s, e, , s)
      y = Cast<to = 10>(c)
      z = Cast<to = 6>(c)
      b = Cast<to = 9>(z)
    }""",
    """float[4,3] x, int64[3] n => double[u,v] y, int64[k] k {
      f = Constant<value_float = 2.>()
      one = Constant<value_float = 1.>()
      e = Identity(end)
      k32 = Range(one, f, one)
      k = Cast<to = 7>(k32)
      c = Slice(x, k, n)
      y = Cast<to = 11>(c)
    }""",
]


@pytest.mark.parametrize("text", CHAINS)
def test_chains(text: str) -> None:
    x = np.arange(-6, 6, dtype=np.float32).reshape(4, 3) / 2
    lengths = [0, 1, 4] if "Reverse" in text else [3]
    text = text.replace("int64[3] n", f"int64[{len(lengths)}] n")
    require_same(text, [[x, lengths]], end=np.array([-9]))


RANGE = "{0} s, {0} l, {0} d => {0}[n] y {{y = Range(s, l, d)}}"
SLICE = "int32[n] x, int64[1] s, int64[1] e => int32[m] y {y = Slice(x, s, e, , minus)}"
ROWS = np.array([[1, np.nan, 3], [np.nan, 2, 1]], np.float32)
NAN = float("nan")
REDUCTION = "float[n,m] x, int64[1] a => float[n,k] y {{y = {}(x, a)}}"
INDEX = "float[n,m] x => int64[n,k] y {{y = {}<axis = 1>(x)}}"
RNN = """float[2,1,1] x => float[2,1,1,1] y {{
  one = Constant<value: tensor = float[1,1,1] {{1.0}}>()
  y = RNN<hidden_size = 1, activations = ["{}"]>(x, one, one)
}}"""
STEPS = [[[0.5]], [[0.25]]]
# A model, inputs, and the results of this package and of ONNX Runtime, None if refused.
DIFFERENCES: dict[str, tuple[Any, ...]] = {
    "sums are rounded again and again": (
        RANGE.format("float"),
        [F(0.6), F(0.9), F(0.1)],
        [F(0.6), F(F(0.6) + np.float64(F(0.1))), F(F(0.6) + 2 * np.float64(F(0.1)))],
        [F(0.6), F(0.6) + F(0.1), F(0.6) + F(0.1) + F(0.1)],
    ),
    "elements are counted in doubles": (
        RANGE.format("double"),
        [0.1, 0.4, 0.1],
        [0.1, 0.2, float(Fraction(0.1) * 3)],
        [0.1, 0.2, 0.1 + 0.1 + 0.1, 0.1 + 0.1 + 0.1 + 0.1],
    ),
    "the end beyond the axis is the beginning": (
        SLICE,
        [np.arange(5, dtype=np.int32), [3], [2**63 - 1]],
        [],
        [3, 2, 1, 0],
    ),
    "NaN in ReduceMax": (
        REDUCTION.format("ReduceMax"),
        [ROWS, [1]],
        [[NAN], [NAN]],
        [[3], [NAN]],
    ),
    "NaN in ReduceMin": (
        REDUCTION.format("ReduceMin"),
        [ROWS, [1]],
        [[NAN], [NAN]],
        [[1], [NAN]],
    ),
    "NaN in ArgMax": (INDEX.format("ArgMax"), [ROWS], [[1], [0]], [[2], [0]]),
    "NaN in ArgMin": (INDEX.format("ArgMin"), [ROWS], [[1], [0]], [[0], [0]]),
    "NaN in MaxPool": (
        "float[a,b,n] x => float[a,b,m] y {y = MaxPool<kernel_shape = [2]>(x)}",
        [ROWS[None]],
        [[[NAN, NAN], [NAN, 2]]],
        [[[1, 3], [2, 2]]],
    ),
    "the mean of nothing": (
        REDUCTION.format("ReduceMean"),
        [np.zeros((1, 0), F), [1]],
        [[NAN]],
        [[0]],
    ),
    "Squeeze with empty axes": (
        "float[n,m] x, int64[k] a => float[u,v] y {y = Squeeze(x, a)}",
        [np.ones((1, 2), F), np.zeros(0, int)],
        [[1, 1]],
        [1, 1],
    ),
    "Gemm with a beta of 0": (
        "float[n,m] a, float[n,m] b, float[n,m] c => float[n,m] y "
        "{y = Gemm<beta = 0.0>(a, b, c)}",
        [np.ones((1, 1), F), np.ones((1, 1), F), np.full((1, 1), NAN, F)],
        [[NAN]],
        [[1]],
    ),
    "reflection beyond the axis": (
        'float[n] x, int64[2] p => float[m] y {y = Pad<mode = "reflect">(x, p)}',
        [np.arange(3, dtype=F), [0, 4]],
        [0, 1, 2, 1, 0, 1, 2],
        None,
    ),
    "the scale of zeros": (
        "float[n] x => float s {y, s, z = DynamicQuantizeLinear(x)}",
        [np.zeros(3, F)],
        0,
        1,
    ),
    "default parameters of Affine": (
        RNN.format("Affine"),
        [np.array(STEPS, F)],
        [[[[0.5]]], [[[0.75]]]],
        np.zeros((2, 1, 1, 1)),
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences(name: str) -> None:
    text, inputs, ours, theirs = DIFFERENCES[name]
    constants: dict[str, Any] = {"minus": np.array([-1])} if text == SLICE else {}
    source = parse(text, **constants)
    session, arrays = runtime_session(source), list(map(np.asarray, inputs))
    feeds = dict(zip([v.name for v in session.get_inputs()], arrays, strict=True))
    found = prepared(text, **constants).run(arrays)[0]
    np.testing.assert_array_equal(found, ours)
    assert np.shape(found) == np.shape(ours)
    if theirs is None:
        with pytest.raises(onnxruntime_pybind11_state.InvalidArgument):
            session.run(None, feeds)
    else:
        result = np.asarray(session.run(None, feeds)[0])
        np.testing.assert_array_equal(result, theirs)
        assert result.shape == np.shape(theirs)
