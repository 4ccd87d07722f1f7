"""`Model.run` compiles one program for the types and static values of its inputs."""

from typing import Any

import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import parse, prepared, runtime_session

from dml_jax.onnx_backend import _programs

ADDING = "float[n] x => float[n] y, float[n] z { y = Add(x, x) z = Neg(x) }"
SLICING = "float[n] x, int64[1] s, int64[1] e => float[m] y { y = Slice(x, s, e) }"
GATHERING = "float[n] x, int64[k] i => float[k] y { y = Gather(x, i) }"
BRANCHING = """float[n] x, bool c => float[m] y {
  y = If(c) <then_branch = g() => (float[p] a) { a = Concat<axis=0>(x, x) },
             else_branch = h() => (float[q] b) { b = Identity(x) }>
}"""
X = np.arange(4, dtype=np.float32)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    compiled = _programs._compiled

    def counted(*arguments: Any) -> Any:
        made.append(compiled(*arguments))
        return made[-1]

    monkeypatch.setattr(_programs, "_compiled", counted)
    return made


def test_the_same_shapes_compile_nothing_again(compilations: list[Any]) -> None:
    model = prepared(ADDING)
    for x in (X, X + 1, -X):
        assert_same_bits(model.run([x])[0], x + x)
    assert [program is not None for program, _ in compilations] == [True]
    model.run([X[:2]])
    assert len(compilations) == 2


def test_a_new_value_that_determines_shapes_compiles_once(
    compilations: list[Any],
) -> None:
    model = prepared(SLICING)
    for start in (1, 2, 1, 2):
        y = model.run([X, np.array([start]), np.array([4])])[0]
        assert_same_bits(y, X[start:])
    assert len(compilations) == 2


def test_the_programs_that_were_used_last_are_kept(
    compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_programs, "MOST_PROGRAMS", 2)
    model = prepared(ADDING)
    for size in (1, 2, 1, 3, 1, 2):
        model.run([X[:size]])
    assert len(compilations) == 4  # 1, 2, 3, and 2 again
    assert len(model._programs._programs) == 2


def test_a_condition_that_determines_shapes_is_static(compilations: list[Any]) -> None:
    model = prepared(BRANCHING)
    for _ in range(2):
        assert_same_bits(model.run([X, np.array(True)])[0], np.tile(X, 2))
        assert_same_bits(model.run([X, np.array(False)])[0], X)
    assert [program is not None for program, _ in compilations] == [False, True, True]


def test_errors_of_values_name_the_node(compilations: list[Any]) -> None:
    model = prepared(GATHERING)
    assert_same_bits(model.run([X, np.array([3, -4])])[0], X[[3, 0]])
    for index in (4, -5):
        with pytest.raises(ValueError, match=rf"Gather 'y': `indices` .* got {index}"):
            model.run([X, np.array([0, index])])
    assert len(compilations) == 1


@pytest.mark.parametrize("names", [None, ["z"], ["z", "y"]])
def test_run_accepts_the_call_of_onnx_runtime(names: list[str] | None) -> None:
    found = prepared(ADDING).run(names, {"x": X})
    wanted: Any = runtime_session(parse(ADDING)).run(names, {"x": X})
    assert len(found) == len(wanted)
    for actual, array in zip(found, wanted, strict=True):
        assert_same_bits(actual, array)


def test_run_refuses_unknown_outputs() -> None:
    with pytest.raises(ValueError, match="`inputs` must be None or a list of y, z"):
        prepared(ADDING).run(["w"], {"x": X})


def test_inputs_are_not_formatted_without_an_error() -> None:
    class Silent(list[Any]):
        def __repr__(self) -> str:
            raise AssertionError

    assert_same_bits(prepared(ADDING).run(Silent([X]))[1], -X)


def test_repr_has_inputs_outputs_and_parameters() -> None:
    text = "float[3] x => float[3] y { y = Add(x, w) }"
    model = prepared(text, w=np.zeros(3, np.float32))
    assert repr(model) == "Model(x: float32 -> y; 3 parameters)"
