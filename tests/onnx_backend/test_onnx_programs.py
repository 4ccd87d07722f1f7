"""`Model.run` compiles one program for the types and static values of its inputs."""

import concurrent.futures
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import parse, prepared, require_same, runtime_outputs, runtime_session

from dml_jax import onnx_backend
from dml_jax.onnx_backend import _programs
from dml_jax.onnx_backend._operators import control_flow

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


SUBTRACTING = "float[4] x, float[4] z => float[4] y { y = Sub(x, z) }"
NAMED = {"x": X, "z": X + 1}
# Models, the inputs of each run, and whether compilations give a program: those of a
# condition that determines shapes fail, after which it is static.
RUNS: list[tuple[str, list[Any], list[bool]]] = [
    (ADDING, [[X], [X + 1], [jnp.asarray(-X)], [X[:2]]], [True, True]),
    (SLICING, [[X, np.array([s]), np.array([4])] for s in (1, 2, 1, 2)], [True, True]),
    (SUBTRACTING, [NAMED, {"z": X + 1, "x": X}, [*NAMED.values()]], [True]),
    (BRANCHING, [[X, np.array(n)] for n in (True, False) * 2], [False, True, True]),
]


@pytest.mark.parametrize(("text", "runs", "successes"), RUNS)
def test_types_and_static_values_compile_once(
    text: str, runs: list[Any], successes: list[bool], compilations: list[Any]
) -> None:
    model = prepared(text)
    for inputs in runs:
        named = inputs if isinstance(inputs, dict) else None
        values = [named[n] for n in model.input_names] if named else inputs
        require_same(model.run(inputs), runtime_outputs(parse(text), values))
    assert [program is not None for program in compilations] == successes


def test_the_programs_that_were_used_last_are_kept(
    compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_programs, "MOST_PROGRAMS", 2)
    model = prepared(ADDING)
    for size in (1, 2, 1, 3, 1, 2):
        model.run([X[:size]])
    assert len(compilations) == 4  # 1, 2, 3, and 2 again
    assert model._programs._entry.cache_info().currsize == 2


def test_few_programs_of_large_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_programs, "MOST_BYTES", 5 * X.nbytes)
    model = prepared("float[n,1] x => float[n,4] y { y = Mul(x, w) }", w=X)
    for size in range(1, 8):
        model.run([np.ones((size, 1), np.float32)])
    assert model._programs._entry.cache_info().currsize == 5


def test_errors_of_values_name_the_node(compilations: list[Any]) -> None:
    model = prepared(GATHERING)
    assert_same_bits(model.run([X, np.array([3, -4])])[0], X[[3, 0]])
    for index in (4, -5):
        with pytest.raises(ValueError, match=rf"Gather 'y': `indices` .* got {index}"):
            model.run([X, np.array([0, index])])
    assert len(compilations) == 1


# An index within a traced branch, or in the body of a loop or a scan.
IN_BODIES = {
    "If": """float[3] x, int64[2] i, bool c => float[2] y {
      y = If(c) <then_branch = g() => (float[2] a) { a = Gather(x, i) },
                 else_branch = h() => (float[2] b) { b = Slice(x, s, e) }>
    }""",
    "Loop": """float[3] x, int64[2] i, int64 n => float[2] y {
      y = Loop(n, , i0) <body = g(int64 k, bool c, float[2] s) =>
        (bool c, float[2] t) { t = Gather(x, i) }>
    }""",
    "known Loop": """float[3] x, int64[2] i => float[2] y, float[2, 2] z {
      y, z = Loop(two, , i0) <body = g(int64 k, bool c, float[2] s) =>
        (bool c, float[2] t, float[2] u) { t = Gather(x, i) u = Neg(t) }>
    }""",
    "Scan": """float[3] x, int64[2] i => float y, float[2] z {
      y, z = Scan<num_scan_inputs = 1, body = g(float s, int64 j) =>
        (float t, float u) { t = Gather(x, j) u = Add(s, t) }>(zero, i)
    }""",
}
OTHERS = {"If": [np.array(True)], "Loop": [np.array(2)], "known Loop": [], "Scan": []}


@pytest.mark.parametrize("kind", IN_BODIES)
def test_indices_in_bodies_are_checked_in_the_program(
    kind: str, compilations: list[Any]
) -> None:
    model = prepared(
        IN_BODIES[kind],
        i0=np.zeros(2, np.float32),
        zero=np.zeros((), np.float32),
        two=np.array(2),
        s=np.array([0]),
        e=np.array([2]),
    )
    y = model.run([X[:3], np.array([2, -3]), *OTHERS[kind]])[0]
    assert_same_bits(y, X[0] if kind == "Scan" else X[[2, 0]])
    with pytest.raises(ValueError, match=r"`indices` must be in \[-3, 2\]; got 3"):
        model.run([X[:3], np.array([0, 3]), *OTHERS[kind]])
    assert [program is not None for program in compilations] == [True]


def test_a_loop_of_as_many_iterations_as_an_input_says_is_compiled(
    compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """float[4] x, int64 n => float[4] y {
      y = Loop(n, , x) <body = g(int64 k, bool c, float[4] s) =>
        (bool c, float[4] t) { t = Add(s, x) }>
    }"""
    monkeypatch.setattr(control_flow, "MOST_ITERATIONS", 3)
    model = prepared(text)
    for times in (3, 0, 2):
        assert_same_bits(model.run([X, np.array(times)])[0], (1 + times) * X)
    with pytest.raises(ValueError, match="must have at most 3 iterations; got 4"):
        model.run([X, np.array(4)])
    assert [program is not None for program in compilations] == [True]


def test_a_passing_lack_of_memory_is_not_kept(
    compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")]
    model = prepared(ADDING)
    compiled = _programs._compiled

    def short_of_memory(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return compiled(*arguments)

    monkeypatch.setattr(_programs, "_compiled", short_of_memory)
    for _ in range(4):
        assert_same_bits(model.run([X])[1], -X)
    assert [program is not None for program in compilations] == [True]


@pytest.mark.usefixtures("with_caches")
def test_threads_wait_for_one_program() -> None:
    """A function for an operator is called by the first call alone, with a tracer."""
    traces, everyone = [], threading.Barrier(4)

    def doubled(_: Any, x: Any) -> Any:
        traces.append(x)
        return 2 * x

    source = parse("float[n] x => float[n] y { y = com.foo.Double(x) }")
    model = onnx_backend.prepare(source, operators={"Double": doubled})

    def run(_: int) -> Any:
        everyone.wait()
        return model.run([X])[0]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for y in pool.map(run, range(4)):
            assert_same_bits(y, 2 * X)
    assert [isinstance(x, jax.core.Tracer) for x in traces] == [True]


def test_outputs_may_be_written_to() -> None:
    text = "float[4] x => float[4] y, float[4] z, float[4] v "
    model = prepared(text + "{ y = Identity(x) z = Neg(x) v = Identity(w) }", w=X)
    x = X.copy()
    for output in model.run([x]):
        output[:] = 7
    require_same(model.run([x]), (X, -X, X))


@pytest.mark.parametrize("names", [None, ["z"], ["z", "y"]])
def test_run_accepts_the_call_of_onnx_runtime(names: list[str] | None) -> None:
    found = prepared(ADDING).run(names, {"x": X})
    wanted: Any = runtime_session(parse(ADDING)).run(names, {"x": X})
    require_same(found, wanted)


def test_inputs_are_not_formatted_without_an_error() -> None:
    class Silent(list[Any]):
        def __repr__(self) -> str:
            raise AssertionError

    assert_same_bits(prepared(ADDING).run(Silent([X]))[1], -X)


def test_repr_has_inputs_outputs_and_parameters() -> None:
    text = "float[3] x => float[3] y { y = Add(x, w) }"
    model = prepared(text, w=np.zeros(3, np.float32))
    assert repr(model) == "Model(x: float32 -> y; 3 parameters)"
