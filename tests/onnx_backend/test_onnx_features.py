"""Models whose outputs are other tensors of the graph."""

import builtins
import pickle
from typing import Any

import numpy as np
import pytest
from onnx_models import LOCAL, parse, require_error, require_same, rows, runtime_session

from dml_jax import onnx_backend

WEIGHTS = {"w": np.float32([[1, 2], [3, 4], [5, 6]]), "b": np.float32([1, -1])}
SCORES = """float[n,3] x, float[n,2] wanted => float loss {
  p = MatMul(x, w)
  features = Add(p, b)
  r = Relu(features)
  d = Sub(r, wanted)
  loss = ReduceSumSquare<keepdims = 0>(d)
}"""
# Branches read what is outside them.
BRANCHES = """float[n,3] x, bool c, float[2] u => float[n,2] y {
  p = MatMul(x, w)
  q = Identity(p)
  f = If(c) <then_branch = g () => (float[m,2] t) {t = Add(p, b)},
             else_branch = h () => (float[k,2] e) {e = Identity(p)}>
  y = Add(f, u)
}"""
CALLS = "float[n,3] x => float[n,2] y {p = MatMul(x, w) q = local.f(p) y = Add(q, b)} "
CALLS += LOCAL + " Neg(p)}"
X = np.arange(6, dtype=np.float32).reshape(2, 3)
OTHERS = {"c": np.array(True), "u": X[0, :2], "wanted": X[:, :2]}
# A model, the outputs, the inputs that remain, and the weights.
CASES: list[tuple[str, list[str], dict[str, Any], str]] = [
    (SCORES, ["features"], {"x": X}, "w b"),
    (SCORES, ["p"], {"x": X}, "w"),
    (SCORES, ["r", "p"], {"x": X}, "w b"),
    (SCORES, ["loss"], {"x": X, "wanted": X[:, :2]}, "w b"),
    (BRANCHES, ["f"], {"x": X, "c": np.array(True)}, "w b"),
    (BRANCHES, ["f"], {"x": X, "c": np.array(False)}, "w b"),
    (BRANCHES, ["q"], {"x": X}, "w"),
    (CALLS, ["q"], {"x": X}, "w"),
]


@pytest.mark.parametrize(("text", "outputs", "given", "weights"), CASES)
def test_outputs(
    text: str, outputs: list[str], given: dict[str, Any], weights: str
) -> None:
    source = parse(text, **WEIGHTS)
    model = onnx_backend.prepare(source, outputs=outputs)
    assert (model.output_names, model.input_names) == ((*outputs,), (*given,))
    assert [*model.params] == weights.split()
    cut = model.to_onnx({})
    others = (info for info in cut.graph.output if info not in source.graph.output)
    source.graph.output.extend(others)
    feeds = {info.name: (OTHERS | given)[info.name] for info in source.graph.input}
    wanted = runtime_session(source).run(outputs, feeds)
    require_same(runtime_session(cut).run(None, given), wanted)
    # The part has the types that ONNX's checker wants, and is prepared again.
    for each in (model, onnx_backend.prepare(cut), pickle.loads(pickle.dumps(model))):
        require_same(each.run(given), wanted)
        require_same(each.jax_fn(**given), wanted)


def test_a_part_that_is_not_supported_is_cut_off() -> None:
    text = "float[3] x => float[3] y {h = Neg(x) y = com.foo.Unknown(h)}"
    model = onnx_backend.prepare(parse(text), outputs=["h"])
    assert model.run([X[0]])[0].tolist() == [0, -1, -2]


def test_outputs_that_are_sequences() -> None:
    text = "float[3] x => float[3] y {s = SequenceConstruct(x, x) y = Neg(x)}"
    message = "prepare: `outputs` must be names of tensors; got 's' of sequence_type$"
    given = {"outputs": ["y", "s"]}
    require_error(
        NotImplementedError, message, onnx_backend.prepare, parse(text), **given
    )


WRONG = rows(r"""
["feature"] | ValueError | have names of outputs of nodes; got str 'feature'\. The
  nearest are features, r, p$$
["features", 3] | ValueError | have names of outputs of nodes; got int 3\. The
"features" | TypeError | be a list of names; got str 'features'$$
""")


@pytest.mark.parametrize(("outputs", "error", "message"), WRONG)
def test_outputs_that_the_graph_does_not_have(
    outputs: str, error: str, message: str
) -> None:
    kind, source = getattr(builtins, error), parse(SCORES, **WEIGHTS)
    message = f"prepare: `outputs` must {message}"
    require_error(
        kind, message, onnx_backend.prepare, source, outputs=eval(outputs, {})
    )
