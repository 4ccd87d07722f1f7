"""Functions of ONNX models: inlined, each by the opset that it imports."""

from typing import Any

import numpy as np
import pytest
from assertions import assert_same_bits
from onnx.reference import ReferenceEvaluator
from onnx_models import parse, prepared, require_error, runtime_session

from dml_jax import onnx_backend

X = np.array([5, 1, 4, 2, 3], np.float32)
CALL = "float[5] x => float[n] y {y = local.f(x)}"
ENDS = "a = Constant<value_ints = [1]>() b = Constant<value_ints = [4]>()"
SLICE_9 = "q = Slice<starts = [0], ends = [4]>(p)"
NESTED = ', "local": 7'


def function(opset: int, body: str, name: str = "f", imports: str = "") -> str:
    head = f'<domain: "local", opset_import: ["": {opset}{imports}]>'
    return f" {head} {name} (p) => (q) {{{body}}}"


def model_of(opset: int, *functions: str, call: str = CALL) -> str:
    return f"@{opset} {call}{''.join(functions)}"


def run(text: str) -> np.ndarray:
    return prepared(text).run([X])[0]


MIXED = [  # the opsets of the model and of the function
    (21, 13, "q = Identity(p)", X),
    (13, 21, "q = Identity(p)", X),
    (25, 9, "q = Slice<starts = [1], ends = [4]>(p)", X[1:4]),
    (9, 13, f"{ENDS} q = Slice(p, a, b)", X[1:4]),
    (25, 10, "a = Constant<value: tensor = int64[1] {-2}>() b = Identity(a) "
     "c = Constant<value: tensor = int64[1] {9}>() q = Slice(p, b, c)", X[-2:]),
    (25, 13, "h = Cast<to = 10>(p) q = Cast<to = 1>(h)", X),
    (28, 12, "n = Constant<value_ints = [3, 2, 1, 4, 5]>() r = Cast<to = 1>(n) "
     "q = Identity(r)", np.array([3, 2, 1, 4, 5], np.float32)),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "own", "body", "expected"), MIXED)
def test_functions_have_their_own_opsets(
    opset: int, own: int, body: str, expected: np.ndarray
) -> None:
    text = model_of(opset, function(own, body))
    assert_same_bits(run(text), expected)
    reference: Any = ReferenceEvaluator(parse(text)).run(None, {"x": X})
    assert_same_bits(reference[0], expected)
    assert onnx_backend.is_compatible(parse(text))


def test_nested_functions() -> None:
    inner = function(9, SLICE_9, "g")
    body = (
        "a = Constant<value_ints = [-1]>() b = Constant<value_ints = [-9]>() "
        "r = Slice(p, a, b, , a) q = local.g(r)"
    )
    middle = function(13, body, "f", NESTED)
    assert run(model_of(25, middle, inner)).tolist() == [3, 2, 4, 1]
    call = "float[5] x => float[n] y {z = Identity(x) w = local.f(z) y = local.g(w)}"
    outer = function(25, "q = local.f(p)", "h", NESTED)
    text = model_of(21, outer, middle, inner, call=call)
    assert run(text).tolist() == [3, 2, 4, 1]


def test_a_model_without_an_opset_of_onnx() -> None:
    model = parse(model_of(25, function(9, SLICE_9)))
    del model.opset_import[0]
    assert onnx_backend.run_model(model, [X])[0].tolist() == [5, 1, 4, 2]


SLICE = "{q = Slice<starts: ints = @s, ends = [9]>(p)}"
PASSED = f"f <s> (p) => (q) {SLICE}", "local.f<s = [3]>(x)"
DEFAULT = f"f <s: ints = [3]> (p) => (q) {SLICE}", "local.f(x)"
OVERRIDDEN = f"f <s: ints = [1]> (p) => (q) {SLICE}", "local.f<s = [3]>(x)"


def with_attribute(opset: int, texts: tuple[str, str]) -> str:
    f = f'<domain: "local", opset_import: ["": 9]> {texts[0]}'
    return model_of(opset, f, call=CALL.replace("local.f(x)", texts[1]))


@pytest.mark.parametrize("opset", [9, 25])
@pytest.mark.parametrize("texts", [PASSED, DEFAULT, OVERRIDDEN])
def test_attributes_of_calls_and_their_defaults(
    texts: tuple[str, str], opset: int
) -> None:
    assert_same_bits(run(with_attribute(opset, texts)), X[3:])


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


def test_metadata_of_nodes_is_ignored() -> None:
    for own in (25, 13):
        model = parse(model_of(25, function(own, "q = Identity(p)")))
        for part in (model.graph, *model.functions):
            for key, value in (("opset", "x"), ("a", "1"), ("opset", "7")):
                part.node[0].metadata_props.add(key=key, value=value)
        assert_same_bits(onnx_backend.run_model(model, [X])[0], X)


def test_calls_of_functions_are_limited() -> None:
    """25 functions of two calls each have 2^25 nodes."""
    functions = "\n".join(
        f"""<domain: "local", opset_import: ["": 25, "local": 1]> f{i} (p) => (q) {{
          r = {f"local.f{i - 1}" if i else "Neg"}(p)
          q = {f"local.f{i - 1}" if i else "Neg"}(r)
        }}"""
        for i in range(25)
    )
    source = parse(f"float[2] x => float[2] y {{y = local.f24(x)}}\n{functions}")
    message = (
        "onnx: the model must have at most 65536 nodes after its functions are "
        "inlined; got 33554432$"
    )
    require_error(ValueError, message, onnx_backend.prepare, source)
