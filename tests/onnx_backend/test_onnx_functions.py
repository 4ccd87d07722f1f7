"""Functions of ONNX models: inlined, each by the opset that it imports."""

import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import TEXTS, parse, prepared, rows, runtime_session

from dml_jax import onnx_backend

X = np.array([5, 1, 4, 2, 3], np.float32)
LOCAL = '<domain: "local", opset_import: ["":'
NESTED = (
    '13, "local": 7]> f (p) => (q) {a = Constant<value_ints = [-1]>() '
    "b = Constant<value_ints = [-9]>() r = Slice(p, a, b, , a) q = local.g(r)} "
    f"{LOCAL} 9]> g (p) => (q) {{q = Slice<starts = [0], ends = [4]>(p)}}"
)
# Models that call functions of x, with an opset for each, and the results.
RESULTS = rows(
    r"""
@21 $call 13$f Identity(p)} | X
@13 $call 21$f Identity(p)} | X
$call 9$f Slice<starts = [1], ends = [4]>(p)} | X[1:4]
@9 $call 13]> f (p) => (q) {a = Constant<value_ints = [1]>()
  b = Constant<value_ints = [4]>() q = Slice(p, a, b)} | X[1:4]
$call 10]> f (p) => (q) {a = Constant<value: tensor = int64[1] {-2}>() b = Identity(a)
  c = Constant<value: tensor = int64[1] {9}>() q = Slice(p, b, c)} | X[-2:]
$call 13]> f (p) => (q) {h = Cast<to = 10>(p) q = Cast<to = 1>(h)} | X
@28 $call 12]> f (p) => (q) {n = Constant<value_ints = [3, 2, 1, 4, 5]>()
  r = Cast<to = 1>(n) q = Identity(r)} | X[[4, 3, 1, 2, 0]]
$call $nested | X[[4, 3, 2, 1]]
@21 float[5] x => float[n] y {z = Identity(x) w = local.h(z) y = local.g(w)} $local 25,
  "local": 7]> h (p) => (q) {q = local.f(p)} $local $nested | X[[4, 3, 2, 1]]
$call 9]> f <s: ints = [3]> (p) => (q) {$slice | X[3:]
@9 $call 9]> f <s: ints = [3]> (p) => (q) {$slice | X[3:]
$passed 9]> f <s> (p) => (q) {$slice | X[3:]
@9 $passed 9]> f <s> (p) => (q) {$slice | X[3:]
$passed 9]> f <s: ints = [1]> (p) => (q) {$slice | X[3:]
@9 $passed 9]> f <s: ints = [1]> (p) => (q) {$slice | X[3:]
""",
    local=LOCAL,
    nested=NESTED,
    passed=TEXTS["call"].replace("f(x)", "f<s = [3]>(x)"),
    slice="q = Slice<starts: ints = @s, ends = [9]>(p)}",
)


@pytest.mark.parametrize(("text", "wanted"), RESULTS)
def test_functions_have_their_own_opsets(text: str, wanted: str) -> None:
    """And attributes, which calls may pass."""
    model = parse(text)
    assert_same_bits(onnx_backend.run_model(model, [X])[0], eval(wanted))
    assert onnx_backend.is_compatible(model)


def test_a_function_comes_before_an_operator_of_its_name() -> None:
    """Unlike in ONNX Runtime, which prefers its operator."""
    text = 'float[5] x => float[5] y {y = Relu(x)} <domain: "", opset_import: ["": '
    model = parse(text + "25]> Relu (p) => (q) {q = Neg(p)}")
    assert_same_bits(onnx_backend.run_model(model, [-X])[0], X)
    assert not np.any(runtime_session(model).run(None, {"x": -X})[0])


def test_a_model_without_an_opset_of_onnx() -> None:
    ((text,),) = rows("$call 9$f Slice<starts = [0], ends = [4]>(p)}")
    model = parse(text)
    del model.opset_import[0]
    assert onnx_backend.run_model(model, [X])[0].tolist() == [5, 1, 4, 2]


def test_defaults_of_nested_calls_override_the_operators() -> None:
    head = '<domain: "local", opset_import: ["": 25, "local": 1]>'
    text = f"""float[2,2] x, int64[2] n => float[2,2] y {{y = local.f(x, n)}}
    {head} f <t: int = 1> (p, l) => (q) {{q = local.g<time: int = @t>(p, l)}}
    {head} g <batch: int = 0, time: int = 0> (p, l) => (q)
    {{q = ReverseSequence<batch_axis: int = @batch, time_axis: int = @time>(p, l)}}"""
    x, n = np.array([[1, 2], [3, 4]], np.float32), np.array([2, 1])
    (y,) = prepared(text).run([x, n])
    assert y.tolist() == [[2, 1], [3, 4]]
    assert_same_bits(y, runtime_session(parse(text)).run(None, {"x": x, "n": n})[0])


@pytest.mark.parametrize("opset", [13, 25])
def test_metadata_of_nodes_is_ignored(opset: int) -> None:
    ((text,),) = rows("$call 13$f Identity(p)}")
    model = parse(text, opset)
    for part in (model.graph, *model.functions):
        for key, value in (("opset", "x"), ("a", "1"), ("opset", "7")):
            part.node[0].metadata_props.add(key=key, value=value)
    assert_same_bits(onnx_backend.run_model(model, [X])[0], X)
