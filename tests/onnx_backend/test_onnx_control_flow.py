"""If, Loop and Scan: run, jitted with constant and traced conditions, refused."""

import re
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from assertions import assert_same_bits
from onnx_models import (
    parse,
    require_error,
    require_runtime,
    require_same,
    runtime_outputs,
)

from dml_jax import onnx_backend
from dml_jax.onnx_backend._operators import control_flow

F = np.float32
X = np.arange(6, dtype=F).reshape(3, 2)
TRUE, FALSE = np.array(True), np.array(False)
ZERO, ONE, TWO, THREE, MANY = map(np.array, (0, 1, 2, 3, 99))
# Initializers of the models that name them.
CONSTANTS: dict[str, Any] = {
    **{"zero": ZERO, "one": ONE, "two": TWO, "three": THREE, "minus": np.array(-1)},
    **{"true": TRUE, "false": FALSE, "axes": np.array([0]), "limit": F(3)},
    "start": F([7, 8]),
}


def source_of(text: str) -> onnx.ModelProto:
    named = {n: x for n, x in CONSTANTS.items() if re.search(rf"\b{n}\b", text)}
    return parse(text, **named)


def prepared(text: str) -> onnx_backend.Model:
    return onnx_backend.prepare(source_of(text))


def adding(
    limit: str, first: str = "", condition: str = "Identity(c)", rows: bool = True
) -> str:
    """A loop that adds rows of x, and also gives every sum if there are to be rows.

    The limit and the first condition are inputs or constants; n is the length of x.
    """
    types, names, row, copy = (
        (", float[k,2] rows", ", rows", ", float[2] r", "r = Identity(t)")
        if rows
        else [""] * 4
    )
    return f"""float[n,2] x, int64 m, bool f => float[2] y{types} {{
      shape = Shape<end = 1>(x)
      n = Squeeze(shape)
      y{names} = Loop ({limit}, {first}, start) <body =
        g (int64 i, bool c, float[2] s) => (bool d, float[2] t{row}) {{
          row = Gather(x, i)
          t = Add(s, row)
          total = ReduceSum<keepdims = 0>(row, axes)
          d = {condition}
          {copy}}}>}}"""


CHOICE = """bool c, float[3,2] x => float[3,2] y {y = If (c) <
  then_branch = g () => (float[3,2] a) {a = Neg(x)},
  else_branch = h () => (float[3,2] b) {b = Add(x, x)}>}"""
ALWAYS = adding("m", "true")
UNTIL = "Less(total, limit)"  # a condition on what is computed
# A loop whose rows are what an inner If gives, or an inner Loop as often as i + 2 says.
ROWS_OF_IF = """float[3,2] x, bool q, int64 m => float[k,3,2] y {
  y = Loop(m, true) <body = g (int64 i, bool c) => (bool d, float[3,2] r) {
    d = Identity(c)
    r = If(q) <then_branch = a () => (float[3,2] u) {u = Neg(x)},
      else_branch = b () => (float[3,2] v) {v = Add(x, x)}>}>}"""
ROWS_OF_LOOP = """float[3,2] x, int64 p, int64 m => float[k,3,2] y {
  y = Loop(m, true) <body = g (int64 i, bool c) => (bool d, float[3,2] r) {
    d = Identity(c)
    times = Add(p, i)
    s = Loop(times, true) <body = h (int64 j, bool e) => (bool f, float[3,2] t) {
      f = Identity(e)
      t = Neg(x)}>
    r = ReduceSum<keepdims = 0>(s, axes)}>}"""
GROWING = """float[2] x, int64 m => float[n] y {
  y = Loop (LIMIT, , x) <body = g (int64 i, bool c, float[n] s) =>
    (bool c, float[p] t) {t = Concat<axis = 0>(s, s)}>}"""
SLICED = """float[3] x => float[n,m] y {
  y = Loop (two, true) <body = g (int64 i, bool c) => (bool c, float[m] t) {
    j = Unsqueeze(i, axes)
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
  sum, rows = Scan<num_scan_inputs = 1, scan_input_directions = [1],
    body = g (int64 s, int64 v) => (int64 t, int64 r) {
      t = Add(s, v)
      r = Identity(v)}>(zero, sizes)
  y = Reshape(x, rows)}"""
LOOP_IN_LOOP = """float[n,2] x => float[k,l] rows {
  shape = Shape<end = 1>(x)
  n = Squeeze(shape)
  rows = Loop (n, true) <body = g (int64 i, bool c) => (bool c, float[m] r) {
    row = Gather(x, i)
    r = Loop (n, c) <body = h (int64 j, bool d) => (bool d, float q) {
      q = Gather(row, j)}>}>}"""
SEQUENCE = """float[3,2] x => float[2] last, float[3,2] y {
  empty = SequenceEmpty()
  last, all = Loop (three, , start, empty) <body =
    g (int64 i, bool c, float[2] s, seq(float[2]) q) =>
    (bool c, float[2] t, seq(float[2]) r) {
      row = Gather(x, i)
      t = Add(s, row)
      r = SequenceInsert(q, t)
    }>
  y = ConcatFromSequence<axis = 0, new_axis = 1>(all)}"""
# Appends rows of x to a sequence while CONDITION holds, which may read its length n.
COLLECTED = """float[3,2] x => float[k,2] y {
  given = SequenceConstruct(start)
  all = Loop (, , given) <body = g (int64 i, bool c, seq(float[2]) q) =>
    (bool d, seq(float[2]) r) {
      row = Gather(x, i)
      r = SequenceInsert(q, row)
      n = SequenceLength(NAME)
      greatest = ReduceMax<keepdims = 0>(row)
      d = CONDITION
    }>
  y = ConcatFromSequence<axis = 0, new_axis = 1>(all)}"""
UP_TO_LENGTH = COLLECTED.replace("CONDITION", "Less(n, three)")
UP_TO_VALUE = COLLECTED.replace("CONDITION", "Less(greatest, limit)")
COUNTS = """float[3,2] x => float[k] y {
  COUNT
  sizes = Unsqueeze(n, axes)
  y = ConstantOfShape(sizes)}"""
OF_SEQUENCE = "s = SplitToSequence(x) n = SequenceLength(s)"
OF_OPTION = "o = Optional(x) h = OptionalHasElement(o) n = Cast<to = 7>(h)"
IF_IN_IF = """float[n,2] x, bool c => float[2] y {
  y = If (c) <
    then_branch = g () => (float[2] a) {
      a = If (c) <
        then_branch = p () => (float[2] d) {d = Gather(x, zero)},
        else_branch = q () => (float[2] e) {e = Neg(start)}>
    },
    else_branch = h () => (float[2] b) {b = Abs(start)}>}"""
# Models, inputs, and the names of those that are closed over.
CASES: list[tuple[str, list[Any], str]] = [
    *[(CHOICE, [c, X], static) for c in (FALSE, TRUE) for static in ("c", "")],
    (ALWAYS, [X, TWO, TRUE], "m"),
    (adding("m", "true", "Less(i, two)"), [X, MANY, TRUE], "m"),
    *[
        (adding("m", "true", UNTIL, rows=False), [X, m, TRUE], static)
        for m in (ONE, MANY)
        for static in ("m", "")
    ],
    *[(ROWS_OF_IF, [X, TRUE, m], "qm") for m in (ZERO, ONE)],
    (GROWING.replace("LIMIT", "three"), [X[0], ONE], ""),
    (SLICED, [X[:, 0]], ""),
    (SCAN, [X[0] + 1, X, X.T + 2], ""),
    (SCANNED, [X], ""),
    # Bodies that are not reached, and that read what an empty array does not have.
    (adding("n"), [X[:0], ONE, TRUE], ""),
    (adding("three", "false"), [X[:0], ONE, TRUE], ""),
    (adding("minus", rows=False), [X[:0], ONE, TRUE], ""),
    (adding("m", rows=False), [X[:0], ZERO, TRUE], "m"),
    *[
        (adding("m", "f", rows=rows), [X[:0], TWO, FALSE], "f")
        for rows in (False, True)
    ],
    (LOOP_IN_LOOP, [X[:0]], ""),
    (IF_IN_IF, [X[:0], FALSE], "c"),
    (adding("zero", "f"), [X, ONE, TRUE], ""),
    (SEQUENCE, [X], ""),
    *[(UP_TO_LENGTH.replace("NAME", name), [X], "") for name in "rq"],
    *[(COUNTS.replace("COUNT", count), [X], "") for count in (OF_SEQUENCE, OF_OPTION)],
]


@pytest.mark.usefixtures("with_jit", "x32")
@pytest.mark.parametrize(("text", "inputs", "static"), CASES)
def test_as_onnx_runtime(text: str, inputs: list[Any], static: str) -> None:
    require_runtime(source_of(text), inputs, static)


@pytest.mark.parametrize("times", [0, 1])
def test_rows_of_an_inner_loop(times: int) -> None:
    inputs = [X, TWO, np.array(times)]
    source = source_of(ROWS_OF_LOOP)
    require_same(prepared(ROWS_OF_LOOP).run(inputs), runtime_outputs(source, inputs))


@pytest.mark.parametrize(
    ("text", "inputs", "name"),
    [(CHOICE, [TRUE, X], "c"), (ALWAYS, [X, TWO, TRUE], "m")],
)
def test_closed_over_arrays_of_jax(text: str, inputs: list[Any], name: str) -> None:
    model = prepared(text)
    given = dict(zip(model.input_names, inputs, strict=True))
    with jax.enable_x64(True):
        given[name] = jnp.asarray(given[name])
    jitted = jax.jit(lambda x: model.jax_fn(**{**given, "x": x}))
    wanted = runtime_outputs(source_of(text), inputs)
    require_same(jitted(X), wanted)


@pytest.mark.usefixtures("with_jit", "x32")
def test_derivatives() -> None:
    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(prepared(ALWAYS).jax_fn(x, TWO, TRUE)[1])

    gradient = jax.jit(jax.grad(total))(X)
    assert gradient.tolist() == [[2, 2], [1, 1], [0, 0]]
    gradient = jax.grad(lambda x: prepared(SEQUENCE).jax_fn(x)[1].sum())(X)
    assert gradient.tolist() == [[3, 3], [2, 2], [1, 1]]


@pytest.mark.parametrize("is_known", [True, False])
def test_shapes_of_no_iteration(is_known: bool) -> None:
    """They are those of the graph, or those that ONNX infers."""
    source = source_of(adding("n"))
    if not is_known:
        (body,) = (a.g for a in source.graph.node[-1].attribute)
        body.output[2].type.tensor_type.ClearField("shape")
    model = onnx_backend.prepare(source)
    jitted = jax.jit(lambda x: model.jax_fn(x, ONE, TRUE))
    for outputs in (model.run([X[:0], ONE, TRUE]), jitted(X[:0])):
        assert [np.shape(y) for y in outputs] == [(2,), (0, 2)]


SCAN_OF_ROWS = """float[k] s, float[n,2] x => float[k] y, float[2,l] rows {
  y, rows = Scan<num_scan_inputs = 1, scan_output_axes = [1],
    body = g (float[k] u, float[2] v) => (float[2] t, float[2] r) {
      t = Add(u, v)
      r = Identity(v)}>(s, x)}"""


def test_a_scan_over_nothing() -> None:
    """ONNX Runtime gives the same for `y`, and refuses scan outputs of no iteration."""
    model = prepared(SCAN_OF_ROWS)
    for y, last in (model.run([X[0], X[:0]]), jax.jit(model.jax_fn)(X[0], X[:0])):
        assert_same_bits(np.asarray(y), X[0])
        assert_same_bits(np.asarray(last), np.zeros((2, 0), F))


def test_a_scan_keeps_the_shape_of_its_state() -> None:
    """ONNX Runtime refuses another shape, too."""
    message = (
        "Scan 'y, rows': values that a loop carries must keep their shapes and dtypes; "
        r"got float32\[1\], then float32\[2\]$"
    )
    model = prepared(SCAN_OF_ROWS)
    for fn in (lambda *inputs: model.run([*inputs]), jax.jit(model.jax_fn)):
        require_error(TypeError, message, fn, X[0, :1], X)


CARRIED = "values that a loop carries must keep their shapes and dtypes"
BRANCHES = "the branches must have outputs of the same shapes and dtypes"
UNREACHED = (
    r"\. A body is traced even if it is never reached, where M or the condition is "
    "traced. Close over the inputs that it depends on instead of passing them to the "
    "function that is transformed$"
)
# What depends on values, inputs and the message of jit: a ValueError where a body that
# is not reached cannot be traced.
VARYING = [
    (
        adding("m", rows=False),
        [X[:0], ZERO, TRUE],
        "Loop 'y': Gather 'row': `indices` must have no elements, since the axis has "
        rf"none; got shape \(\){UNREACHED}",
    ),
    (
        IF_IN_IF,
        [X[:0], FALSE],
        "If 'y': If 'a': Gather 'd': `indices` must have no elements, since the axis "
        rf"has none; got shape \(\){UNREACHED}",
    ),
    *(
        (
            adding("m", "true", UNTIL),
            [X, most, TRUE],
            "Loop 'y, rows': the number of iterations must not depend on traced "
            "values, since the shape of a scan output depends on it. Close over the "
            "inputs that it depends on instead of passing them to the function that is "
            "transformed$",
        )
        for most in (ZERO, ONE, MANY)
    ),
    (GROWING.replace("LIMIT", "m"), [X[0], THREE], f"Loop 'y': {CARRIED}"),
    (
        UP_TO_VALUE.replace("NAME", "q"),
        [X],
        f"Loop 'all': {CARRIED} if the number of iterations depends on traced values; "
        r"got \(float32\[2\]\), then \(float32\[2\], float32\[2\]\). Close over the "
        "inputs that it depends on",
    ),
    (
        """bool c, float[2] x => float[n] y {y = If (c) <
          then_branch = g () => (float[2] a) {a = Neg(x)},
          else_branch = h () => (float[4] b) {b = Concat<axis = 0>(x, x)}>}""",
        [FALSE, X[0]],
        f"If 'y': {BRANCHES}",
    ),
    (
        """bool c, float[2] x => bool y {o = If (c) <
          then_branch = g () => (optional(float[2]) u)
            {u = Optional<type = float[2]>()},
          else_branch = h () => (optional(float[2]) v) {v = Optional(x)}>
          y = OptionalHasElement(o)}""",
        [FALSE, X[0]],
        f"If 'o': {BRANCHES}",
    ),
]


@pytest.mark.parametrize(("text", "inputs", "message"), VARYING)
def test_shapes_that_depend_on_traced_values(
    text: str, inputs: list[Any], message: str
) -> None:
    """They are those of ONNX Runtime for `run`, and for inputs that are closed over."""
    model, wanted = prepared(text), runtime_outputs(source_of(text), inputs)
    with jax.enable_x64(True):
        error = ValueError if UNREACHED in message else TypeError
        require_error(error, message, jax.jit(model.jax_fn), *inputs)
        closed = jax.jit(lambda: model.jax_fn(*inputs))()
    for outputs in (model.run(inputs), closed):
        require_same(outputs, wanted)


def test_bodies_read_the_values_around_them() -> None:
    text = """float[3,2] x, bool c => float[2] y {
      y = Loop (two, , start) <body = g (int64 i, bool d, float[2] s) =>
        (bool d, float[2] t) {
          row = Gather(x, i)
          part = If (c) <
            then_branch = p () => (float[2] a) {a = Add(s, row)},
            else_branch = q () => (float[2] b) {b = Mul(start, row)}>
          t = Add(part, start)
        }>}"""
    source, model = source_of(text), prepared(text)
    params = {"start": 2 * CONSTANTS["start"]}
    assert_same_bits(model.params["start"], CONSTANTS["start"])
    for inputs in ([X, FALSE], [X, TRUE]):
        require_runtime(source, inputs, "")
        doubled = runtime_outputs(model.to_onnx(params), inputs)
        require_same(model.apply(params, *inputs), doubled)


@pytest.mark.parametrize("limit", ["", "n"])
def test_iterations_are_limited(limit: str) -> None:
    text = f"""float x => float y {{y = Loop ({limit}, , x) <body =
      g (int64 i, bool c, float s) => (bool c, float t) {{t = Neg(s)}}>}}"""
    model = onnx_backend.prepare(parse(text, n=np.array(2**62)))
    message = "Loop 'y': must have at most 5 iterations; got "
    with mock.patch.object(control_flow, "MOST_ITERATIONS", 5):
        require_error(ValueError, message, model.run, [X[0, 0]])
        require_error(ValueError, message, jax.jit(model.jax_fn), X[0, 0])


def test_as_many_iterations_as_the_limit() -> None:
    """They are counted while the function is traced."""
    model = prepared(adding("m", "true", "Less(i, one)"))
    with mock.patch.object(control_flow, "MOST_ITERATIONS", 2):
        _, sums = jax.jit(lambda x: model.jax_fn(x, MANY, TRUE))(X)
    assert sums.shape == (2, 2)


def test_an_input_that_a_branch_reads_for_a_shape_is_static() -> None:
    text = """bool c, float[3,2] x, int64[1] n => float[k] y {
      s = If(c) <then_branch = a () => (int64[1] u) {u = Identity(n)},
        else_branch = b () => (int64[1] v) {v = Abs(n)}>
      y = Reshape(x, s)}"""
    assert prepared(text).static_names == ("c", "n")
