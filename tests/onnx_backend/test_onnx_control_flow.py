"""If, Loop and Scan: run, jitted with constant and traced conditions, refused."""

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import (
    parse,
    prepared,
    require_error,
    require_runtime,
    runtime_outputs,
    runtime_session,
)

from dml_jax import onnx_backend
from dml_jax.onnx_backend._operators import control_flow

X = np.arange(6, dtype=np.float32).reshape(3, 2)
CHOICE = """bool c, float[3,2] x => float[3,2] y {y = If (c) <
  then_branch = g () => (float[3,2] a) {a = Neg(x)},
  else_branch = h () => (float[3,2] b) {b = Add(x, x)}>}"""
# Adds the rows of x, in others up to a condition on what is computed.
ALWAYS = """float[3,2] x, int64 m => float[2] y, float[k,2] rows {
  zero = Constant<value_floats = [0.0, 0.0]>()
  true = Constant<value: tensor = bool {1}>()
  n = Constant<value_int = 2>()
  limit = Constant<value_float = 3.0>()
  y, rows = Loop (m, true, zero) <body = g (int64 i, bool c, float[2] s) =>
    (bool d, float[2] t, float[2] r) {
      row = Gather(x, i)
      t = Add(s, row)
      r = Identity(t)
      d = Identity(c)
    }>}"""
COUNTED = ALWAYS.replace("Identity(c)", "Less(i, n)")
TRACED = ALWAYS.replace(
    "d = Identity(c)",
    """axes = Constant<value_ints = [0]>()
      total = ReduceSum<keepdims = 0>(row, axes)
      d = Less(total, limit)""",
)
WITHOUT_ROWS = (
    TRACED.replace(", float[k,2] rows", "")
    .replace("y, rows =", "y =")
    .replace(", float[2] r)", ")")
    .replace("r = Identity(t)", "")
)
SUMS = X.cumsum(0)
# A loop whose rows are what an inner If gives, or an inner Loop as often as i + 2 says.
ROWS_OF_IF = """float[3,2] x, bool q, int64 m => float[k,3,2] y {
  true = Constant<value: tensor = bool {1}>()
  y = Loop(m, true) <body = g (int64 i, bool c) => (bool d, float[3,2] r) {
    d = Identity(c)
    r = If(q) <then_branch = a () => (float[3,2] u) {u = Neg(x)},
      else_branch = b () => (float[3,2] v) {v = Add(x, x)}>}>}"""
ROWS_OF_LOOP = """float[3,2] x, int64 p, int64 m => float[k,3,2] y {
  true = Constant<value: tensor = bool {1}>()
  axes = Constant<value_ints = [0]>()
  y = Loop(m, true) <body = g (int64 i, bool c) => (bool d, float[3,2] r) {
    d = Identity(c)
    times = Add(p, i)
    s = Loop(times, true) <body = h (int64 j, bool e) => (bool f, float[3,2] t) {
      f = Identity(e)
      t = Neg(x)}>
    r = ReduceSum<keepdims = 0>(s, axes)}>}"""


GROWING = """float[3] x => float[n] y {
  three = Constant<value_int = 3>()
  y = Loop (three, , x) <body = g (int64 i, bool c, float[n] s) =>
    (bool c, float[m] t) {t = Concat<axis = 0>(s, s)}>}"""
SLICED = """float[3] x => float[n,m] y {
  two = Constant<value_int = 2>()
  one = Constant<value_ints = [1]>()
  true = Constant<value: tensor = bool {1}>()
  y = Loop (two, true) <body = g (int64 i, bool c) => (bool c, float[m] t) {
    j = Reshape(i, one)
    k = Add(j, one)
    t = Slice(x, j, k)}>}"""


SCAN = """float[2] s, float[3,2] x, float[2,3] z => float[2] y, float[2,3] a {
  y, a = Scan <num_scan_inputs = 2,
    scan_input_axes = [0, 1], scan_input_directions = [0, 1],
    scan_output_axes = [1], scan_output_directions = [1],
    body = g (float[2] u, float[2] v, float[2] w) => (float[2] t, float[2] r) {
      p = Mul(v, w)
      t = Add(u, p)
      r = Sub(t, v)
    }>(s, x, z)}"""


# The results of a scan over constants are constant, so they may be shapes.
SCANNED = """float[3,2] x => float[u,v] y {
      sizes = Constant<value_ints = [2, 3]>()
      zero = Constant<value_int = 0>()
      sum, rows = Scan<num_scan_inputs = 1, scan_input_directions = [1],
        body = g (int64 s, int64 v) => (int64 t, int64 r) {
          t = Add(s, v)
          r = Identity(v)}>(zero, sizes)
      y = Reshape(x, rows)}"""
NO_ITERATION = [
    # an empty axis
    """float[n,2] x => float[2] y, float[k,2] rows {
      shape = Shape<end = 1>(x)
      n = Squeeze(shape)
      zero = Constant<value_floats = [0.0, 0.0]>()
      y, rows = Loop (n, , zero) <body = g (int64 i, bool c, float[2] s) =>
        (bool c, float[2] t, float[2] r) {
          row = Gather(x, i)
          t = Add(s, row)
          r = Identity(t)
        }>}""",
    # a loop in a loop
    """float[n,2] x => float[k,l] rows {
      shape = Shape<end = 1>(x)
      n = Squeeze(shape)
      true = Constant<value: tensor = bool {1}>()
      rows = Loop (n, true) <body = g (int64 i, bool c) => (bool c, float[m] r) {
          row = Gather(x, i)
          r = Loop (n, c) <body = h (int64 j, bool d) => (bool d, float q) {
            q = Gather(row, j)}>
        }>}""",
    # a false condition
    """float[n,2] x => float[n,2] y, float[k,2] rows {
      m = Constant<value_int = 3>()
      false = Constant<value: tensor = bool {0}>()
      y, rows = Loop (m, false, x) <body = g (int64 i, bool c, float[n,2] s) =>
        (bool c, float[n,2] s, float[2] r) {r = Gather(x, i)}>}""",
    # a negative limit
    """float[n,2] x => float[n,2] y {
      m = Constant<value_int = -1>()
      y = Loop (m, , x) <body = g (int64 i, bool c, float[n,2] s) =>
        (bool c, float[n,2] t) {
          row = Gather(x, i)
          t = Add(s, row)
        }>}""",
]


NO_TIMES = """bool c, float[2] x => float[2] y, float[k,2] rows {
      m = Constant<value_int = 0>()
      y, rows = Loop (m, c, x) <body = g (int64 i, bool d, float[2] s) =>
        (bool d, float[2] t, float[2] r) {
          t = Neg(s)
          r = Identity(s)
        }>}"""
SEQUENCE = """float[3,2] x => float[2] last, float[3,2] y {
  n = Constant<value_int = 3>()
  zero = Constant<value_floats = [0.0, 0.0]>()
  empty = SequenceEmpty()
  last, all = Loop (n, , zero, empty) <body =
    g (int64 i, bool c, float[2] s, seq(float[2]) q) =>
    (bool c, float[2] t, seq(float[2]) r) {
      row = Gather(x, i)
      t = Add(s, row)
      r = SequenceInsert(q, t)
    }>
  y = ConcatFromSequence<axis = 0, new_axis = 1>(all)}"""


# Appends rows of x to a sequence while CONDITION holds, which may read its length n.
COLLECTED = """float[3,2] x => float[k,2] y {
  first = Constant<value_floats = [7.0, 8.0]>()
  given = SequenceConstruct(first)
  three = Constant<value_int = 3>()
  limit = Constant<value_float = 2.0>()
  all = Loop (, , given) <body = g (int64 i, bool c, seq(float[2]) q) =>
    (bool d, seq(float[2]) r) {
      row = Gather(x, i)
      r = SequenceInsert(q, row)
      CONDITION
    }>
  y = ConcatFromSequence<axis = 0, new_axis = 1>(all)}"""


UP_TO_LENGTH = COLLECTED.replace(
    "CONDITION", "n = SequenceLength(Q) d = Less(n, three)"
)
COUNTS = """float[3,2] x => float[k] y {
  one = Constant<value_ints = [1]>()
  COUNT
  sizes = Reshape(n, one)
  y = ConstantOfShape(sizes)}"""
OF_SEQUENCE = "s = SplitToSequence(x) n = SequenceLength(s)"
OF_OPTION = "o = Optional(x) h = OptionalHasElement(o) n = Cast<to = 7>(h)"
# Adds rows up to n, which is traced, under a condition that is false at first.
CONDITION_FALSE = """float[n,3] x, float[3] h, int64 m, bool t => OUTPUTS {
  OUTPUT = Loop(m, t, h) <body = g (int64 i, bool c, float[3] s) =>
    (bool c, float[3] u ROW) {q = Gather(x, i) u = Add(s, q) r = Identity(q)}>}"""


UNREACHED = [
    (
        """float[n,2] x, int64 m => float[2] y {
      zero = Constant<value_floats = [0.0, 0.0]>()
      y = Loop (m, , zero) <body = g (int64 i, bool c, float[2] s) =>
        (bool c, float[2] t) {
          row = Gather(x, i)
          t = Add(s, row)
        }>}""",
        "Loop 'y': Gather 'row': `indices` must have no elements, since the axis has "
        r"none; got shape \(\)\. ",
    ),
    (
        """float[n,2] x, bool c => float[2] y {
      zero = Constant<value_floats = [0.0, 0.0]>()
      y = If (c) <
        then_branch = g () => (float[2] a) {
          i = Constant<value_int = 0>()
          a = If (c) <
            then_branch = p () => (float[2] d) {d = Gather(x, i)},
            else_branch = q () => (float[2] e) {e = Neg(zero)}>
        },
        else_branch = h () => (float[2] b) {b = Abs(zero)}>}""",
        r"If 'y': If 'a': Gather 'd': `indices` must be in \[0, 0\); got 0\. ",
    ),
]


TRUE, FALSE = np.array(True), np.array(False)
ZERO, ONE, TWO, MANY = map(np.array, (0, 1, 2, 99))
TRACED_LIMIT = CONDITION_FALSE.replace("OUTPUTS", "float[3] y").replace("OUTPUT", "y")
TRACED_LIMIT_AND_ROWS = CONDITION_FALSE.replace(
    "OUTPUTS", "float[3] y, float[a,b] z"
).replace("OUTPUT", "y, z")
UNREACHABLE = [np.zeros((0, 3), np.float32), X[:, 0], TWO, FALSE]
# Models, inputs, and the names of those that are closed over.
CASES: list[tuple[str, list[Any], str]] = [
    *[(CHOICE, [c, X], static) for c in (FALSE, TRUE) for static in ("c", "")],
    (ALWAYS, [X, TWO], "m"),
    (COUNTED, [X, MANY], "m"),
    *[(WITHOUT_ROWS, [X, m], static) for m in (ONE, MANY) for static in ("m", "")],
    *[(ROWS_OF_IF, [X, TRUE, m], "qm") for m in (ZERO, ONE)],
    (GROWING, [X[:, 0]], ""),
    (SLICED, [X[:, 0]], ""),
    (SCAN, [X[0] + 1, X, X.T + 2], ""),
    (SCANNED, [X], ""),
    *[(text, [X[:0]], "") for text in NO_ITERATION],
    (NO_TIMES, [TRUE, X[0]], ""),
    (TRACED_LIMIT.replace("ROW", ""), UNREACHABLE, "t"),
    (TRACED_LIMIT_AND_ROWS.replace("ROW", ", float[3] r"), UNREACHABLE, "t"),
    (SEQUENCE, [X], ""),
    *[(UP_TO_LENGTH.replace("Q", name), [X], "") for name in "rq"],
    *[(COUNTS.replace("COUNT", count), [X], "") for count in (OF_SEQUENCE, OF_OPTION)],
    (UNREACHED[0][0], [X[:0], ZERO], "m"),
    (UNREACHED[1][0], [X[:0], FALSE], "c"),
]


@pytest.mark.usefixtures("with_jit", "x32", "unoptimized")
@pytest.mark.parametrize(("text", "inputs", "static"), CASES)
def test_as_onnx_runtime(text: str, inputs: list[Any], static: str) -> None:
    require_runtime(parse(text), inputs, static)


@pytest.mark.parametrize("times", [0, 1])
def test_rows_of_an_inner_loop(times: int) -> None:
    inputs = [X, TWO, np.array(times)]
    (found,) = prepared(ROWS_OF_LOOP).run(inputs)
    assert_same_bits(found, runtime_outputs(parse(ROWS_OF_LOOP), inputs)[0])


@pytest.mark.parametrize(
    ("text", "name", "value"), [(CHOICE, "c", True), (ALWAYS, "m", 2)]
)
def test_closed_over_arrays_of_jax(text: str, name: str, value: Any) -> None:
    model = prepared(text)
    with jax.enable_x64(True):
        fixed = jnp.asarray(value)
    feeds = {"x": X, name: np.asarray(value)}
    wanted: Any = runtime_session(parse(text)).run(None, feeds)
    jitted = jax.jit(lambda x: model.jax_fn(**{"x": x, name: fixed}))
    for found, array in zip(jitted(X), wanted, strict=True):
        assert_same_bits(np.asarray(found), np.asarray(array))


@pytest.mark.usefixtures("with_jit", "x32")
def test_derivatives() -> None:
    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(prepared(ALWAYS).jax_fn(x, np.array(2))[1])

    gradient = jax.jit(jax.grad(total))(X)
    assert gradient.tolist() == [[2, 2], [1, 1], [0, 0]]
    gradient = jax.grad(lambda x: prepared(SEQUENCE).jax_fn(x)[1].sum())(X)
    assert gradient.tolist() == [[3, 3], [2, 2], [1, 1]]


def test_loops_of_concrete_values() -> None:
    """Only `run` gives as many rows as there are iterations."""
    model = prepared(TRACED)
    for most in (0, 1, 99):
        y, states = model.run([X, np.array(most)])
        wanted = runtime_outputs(parse(TRACED), [X, np.array(most)])
        assert_same_bits(y, wanted[0])
        assert_same_bits(states, wanted[1])
    message = (
        "Loop 'y, rows': the number of iterations must not depend on traced values, "
        "since the shape of a scan output depends on it. Close over the inputs that it "
        "depends on instead of passing them to the function that is transformed$"
    )
    fn = jax.jit(lambda x: model.jax_fn(x, np.array(99)))
    require_error(TypeError, message, fn, X)


def test_growing_values_under_a_traced_condition() -> None:
    text = GROWING.replace("float[3] x", "float[3] x, int64 three")
    model = prepared(text.replace("three = Constant<value_int = 3>()", ""))
    x, times = X[:, 0], np.array(3)
    assert_same_bits(model.run([x, times])[0], np.tile(x, 8))
    message = "Loop 'y': values that a loop carries must keep their shapes and dtypes"
    with jax.enable_x64(True):
        require_error(TypeError, message, jax.jit(model.jax_fn), x, times)


@pytest.mark.parametrize("is_known", [True, False])
def test_shapes_of_no_iteration(is_known: bool) -> None:
    """They are those of the graph, or those that ONNX infers."""
    source = parse(NO_ITERATION[0])
    if not is_known:
        (body,) = (a.g for a in source.graph.node[-1].attribute)
        body.output[2].type.tensor_type.ClearField("shape")
    model = onnx_backend.prepare(source)
    for outputs in (model.run([X[:0]]), jax.jit(model.jax_fn)(X[:0])):
        assert [np.shape(y) for y in outputs] == [(2,), (0, 2)]


def test_a_scan_over_nothing() -> None:
    """ONNX Runtime gives the same for `y`, and refuses scan outputs of no iteration."""
    text = """float[2] s, float[n,2] x => float[2] y, float[2,k] rows {
      y, rows = Scan<num_scan_inputs = 1, scan_output_axes = [1],
        body = g (float[2] u, float[2] v) => (float[2] t, float[2] r) {
          t = Add(u, v)
          r = Identity(v)}>(s, x)}"""
    model = prepared(text)
    for y, last in (model.run([X[0], X[:0]]), jax.jit(model.jax_fn)(X[0], X[:0])):
        assert_same_bits(np.asarray(y), X[0])
        assert_same_bits(np.asarray(last), np.zeros((2, 0), np.float32))


def test_growing_sequences_under_a_traced_condition() -> None:
    condition = "m = ReduceMax<keepdims = 0>(row) d = Less(m, limit)"
    model = prepared(COLLECTED.replace("CONDITION", condition))
    assert len(model.run([X])[0]) == 3
    message = (
        "Loop 'all': values that a loop carries must keep their shapes and dtypes if "
        r"the number of iterations depends on traced values; got \(float32\[2\]\), "
        r"then \(float32\[2\], float32\[2\]\). Close over the inputs that it depends on"
    )
    require_error(TypeError, message, jax.jit(model.jax_fn), X)
    with jax.enable_x64(False):
        assert jax.jit(lambda: model.jax_fn(X)[0])().shape == (3, 2)


NESTED = """float[3,2] x, bool c => float[2] y {
  two = Constant<value_int = 2>()
  zero = Constant<value_floats = [0.0, 0.0]>()
  y = Loop (two, , zero) <body = g (int64 i, bool d, float[2] s) =>
    (bool d, float[2] t) {
      row = Gather(x, i)
      part = If (c) <
        then_branch = p () => (float[2] a) {a = Add(s, row)},
        else_branch = q () => (float[2] b) {b = Mul(w, row)}>
      t = Add(part, w)
    }>}"""


def test_bodies_read_the_values_around_them() -> None:
    weight = np.array([10, 20], np.float32)
    model = prepared(NESTED, w=weight)
    source = parse(NESTED, w=weight)
    session = runtime_session(source)
    assert_same_bits(model.params["w"], weight)
    for condition in (False, True):
        inputs = {"x": X, "c": np.array(condition)}
        (wanted,) = session.run(None, inputs)
        assert_same_bits(model.run(inputs)[0], wanted)
        assert_same_bits(np.asarray(jax.jit(model.jax_fn)(**inputs)[0]), wanted)
        (y,) = model.apply({"w": 2 * jnp.asarray(weight)}, **inputs)
        doubled = onnx_session(model.to_onnx({"w": 2 * weight}), inputs)
        assert_same_bits(np.asarray(y), doubled)


def onnx_session(source: Any, inputs: Any) -> Any:
    return runtime_session(source).run(None, inputs)[0]


ENDLESS = """float x => float y {y = Loop (LIMIT, , x) <body =
  g (int64 i, bool c, float s) => (bool c, float t) {t = Neg(s)}>}"""


@pytest.mark.parametrize("limit", ["", "n"])
def test_iterations_are_limited(limit: str) -> None:
    model = prepared(ENDLESS.replace("LIMIT", limit), n=np.array(2**62))
    message = "Loop 'y': must have at most 5 iterations; got "
    with mock.patch.object(control_flow, "MOST_ITERATIONS", 5):
        require_error(ValueError, message, model.run, [X[0, 0]])
        require_error(ValueError, message, jax.jit(model.jax_fn), X[0, 0])


def test_branches_with_other_shapes() -> None:
    text = """bool c, float[3] x => float[n] y {y = If (c) <
      then_branch = g () => (float[3] a) {a = Neg(x)},
      else_branch = h () => (float[6] b) {b = Concat<axis = 0>(x, x)}>}"""
    model, x = prepared(text), X[:, 0]
    assert_same_bits(model.run([np.array(False), x])[0], np.tile(x, 2))
    message = "If 'y': the branches must have outputs of the same shapes and dtypes"
    require_error(TypeError, message, jax.jit(model.jax_fn), np.array(True), x)


def test_nesting_is_limited() -> None:
    source = parse(CHOICE)
    branch = source.graph.node[0].attribute[0].g
    for _ in range(20):
        del branch.node[:]
        branch.node.append(parse(CHOICE).graph.node[0])
        branch = branch.node[0].attribute[0].g
    message = "onnx: graphs must be nested at most 16 levels deep; got more$"
    require_error(ValueError, message, onnx_backend.prepare, source)


@pytest.mark.parametrize(("text", "message"), UNREACHED)
def test_bodies_that_cannot_be_traced(text: str, message: str) -> None:
    """They are left out where their number of iterations or condition is known."""
    model = prepared(text)
    decisive = np.array(0, model.dtypes[model.input_names[1]])
    message += (
        "A body is traced even if it is never reached, where M or the "
        "condition is traced. Close over the inputs that it depends on instead of "
        "passing them to the function that is transformed$"
    )
    with jax.enable_x64(True):
        require_error(ValueError, message, jax.jit(model.jax_fn), X[:0], decisive)


def test_branches_with_and_without_an_optional_value() -> None:
    text = """bool c, float[3] x => bool y {o = If (c) <
      then_branch = g () => (optional(float[3]) u) {u = Optional<type = float[3]>()},
      else_branch = h () => (optional(float[3]) v) {v = Optional(x)}>
      y = OptionalHasElement(o)}"""
    message = "If 'o': the branches must have outputs of the same shapes and dtypes"
    fn = jax.jit(prepared(text).jax_fn)
    require_error(TypeError, message, fn, np.array(True), X[:, 0])


def test_a_scan_keeps_the_shape_of_its_state() -> None:
    """ONNX Runtime refuses another shape, too."""
    text = """float[k] s, float[n,2] x => float[2] y {
      y = Scan<num_scan_inputs = 1, body = g (float[k] u, float[2] v) => (float[2] t) {
        t = Add(u, v)}>(s, x)}"""
    message = (
        "Scan 'y': values that a loop carries must keep their shapes and dtypes; got "
        r"float32\[1\], then float32\[2\]$"
    )
    model = prepared(text)
    require_error(TypeError, message, model.run, [X[0, :1], X])
    require_error(TypeError, message, jax.jit(model.jax_fn), X[0, :1], X)
