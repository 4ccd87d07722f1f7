"""Weights of ONNX models: taken out, replaced, trained and written back."""

import builtins
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from assertions import assert_same_bits
from onnx_models import (
    LOCAL,
    parse,
    prepared,
    require_error,
    rows,
    runtime_outputs,
    runtime_session,
)

from dml_jax import onnx_backend

# A dense layer; `shape` and `limit` are initializers that are no weights.
TEXT = """float[n,3] x => float[n,2] y {
  p = MatMul(x, w)
  s = Add(p, b)
  r = Reshape(s, shape)
  y = Max(r, limit)
}"""
WEIGHTS: dict[str, Any] = {
    "w": np.arange(6, dtype=np.float32).reshape(3, 2),
    "b": np.array([1, -1], np.float32),
}
OTHERS = {"shape": np.array([-1, 2]), "limit": np.array(-5, np.float32)}
X = np.arange(12, dtype=np.float32).reshape(4, 3) - 3


def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(x @ w + b, -5)


@pytest.fixture
def model() -> onnx_backend.Model:
    return prepared(TEXT, **WEIGHTS, **OTHERS)


def test_apply(model: onnx_backend.Model) -> None:
    assert [*model.params] == ["w", "b"]
    assert all(isinstance(array, jax.Array) for array in model.params.values())
    params = {name: 2 * array for name, array in model.params.items()}
    halves = [{"w": params["w"]}, {"b": params["b"]}, params, {}]
    for given in halves:
        wanted = expected(
            X, **{**WEIGHTS, **{n: np.asarray(a) for n, a in given.items()}}
        )
        assert_same_bits(np.asarray(model.apply(given, X)[0]), wanted)
        assert_same_bits(np.asarray(jax.jit(model.apply)(given, x=X)[0]), wanted)
    assert_same_bits(model.run([X])[0], expected(X, **WEIGHTS))
    limit = {"limit": jnp.float32(100)}
    assert (model.apply(limit, X)[0] == 100).all()


def test_a_step_of_training(model: onnx_backend.Model) -> None:
    target = np.ones((4, 2), np.float32)

    def loss(params: Any) -> Any:
        return jnp.mean((model.apply(params, X)[0] - target) ** 2)

    gradient = jax.jit(jax.grad(loss))(model.params)
    mask = X @ WEIGHTS["w"] + WEIGHTS["b"] > -5
    error = (expected(X, **WEIGHTS) - target) * mask / 4
    np.testing.assert_allclose(gradient["w"], X.T @ error, rtol=1e-5)
    np.testing.assert_allclose(gradient["b"], error.sum(0), rtol=1e-5)
    ensemble = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), model.params)
    (y,) = jax.vmap(model.apply, (0, None))(ensemble, X)
    doubled = {name: 2 * array for name, array in WEIGHTS.items()}
    assert_same_bits(np.asarray(y[1]), expected(X, **doubled))


def test_to_onnx(model: onnx_backend.Model) -> None:
    params = {name: array + 1 for name, array in model.params.items()}
    source = parse(TEXT, **WEIGHTS, **OTHERS)
    assert model.to_onnx({}) == source
    changed = model.to_onnx(params)
    names = [tensor.name for tensor in changed.graph.initializer]
    assert names == [tensor.name for tensor in source.graph.initializer]
    (y,) = runtime_session(changed).run(None, {"x": X})
    np.testing.assert_allclose(y, model.apply(params, X)[0], rtol=1e-6)
    again = onnx_backend.prepare(changed)
    assert_same_bits(again.run([X])[0], np.asarray(model.apply(params, X)[0]))


# Branches with weights of the same name, one of which adds those of the outer graph.
BRANCHES = """bool c, float[3] x => float[3] y {y = If(c) <
  then_branch = g () => (float[3] a) <float[3] w = {1, 2, 3}> {a = Mul(x, w)},
  else_branch = h () => (float[3] b) <float[3] w = {4, 5, 6}> {b = If(c) <
    then_branch = i () => (float[3] p) {p = Identity(x)},
    else_branch = j () => (float[3] q) {s = Add(x, w) q = Add(s, v)}>}>}"""
# Exporters of scripted models write weights as Constant nodes, in branches too.
CONSTANTS = """bool c, float[3] x => float[3] y {
  v = Constant<value = float[3] {1, 1, 1}>()
  limit = Constant<value = float[1] {-1}>()
  count = Constant<value = int64[1] {3}>()
  r = Reshape(x, count)
  m = Max(r, limit)
  y = If(c) <
    then_branch = g () => (float[3] a) {
      w = Constant<value = float[3] {1, 2, 3}>()
      a = Mul(m, w)},
    else_branch = h () => (float[3] b) {
      w = Constant<value = float[3] {4, 5, 6}>()
      s = Add(m, w)
      b = Add(s, v)}>}"""


@pytest.mark.parametrize(
    ("text", "constants"), [(BRANCHES, {"v": np.ones(3, np.float32)}), (CONSTANTS, {})]
)
def test_weights_of_the_same_name_in_branches(text: str, constants: Any) -> None:
    model, x = prepared(text, **constants), np.array([1, -1, 2], np.float32)
    names = ["v", "y.then_branch.w", "y.else_branch.w"]
    assert sorted(model.params) == sorted(names)
    params = {name: 10 * array for name, array in model.params.items()}
    changed = model.to_onnx(params)
    session, again = runtime_session(changed), onnx_backend.prepare(changed)
    for condition, wanted in ((True, [10, -20, 60]), (False, [51, 59, 72])):
        given = np.array(condition), x
        assert model.apply(params, *given)[0].tolist() == wanted
        assert again.run(given)[0].tolist() == wanted
        feeds = dict(zip("cx", given, strict=True))
        assert session.run(None, feeds)[0].tolist() == wanted

    def total(params: Any, condition: Any) -> Any:
        return model.apply(params, condition, x)[0].sum()

    gradient = jax.jit(jax.grad(total))(model.params, True)
    assert gradient["y.then_branch.w"].tolist() == x.tolist()
    assert not gradient["y.else_branch.w"].any()


@pytest.mark.parametrize("name", ["y.then_branch.w", "y.then_branch.w_"])
def test_names_of_weights_are_unique(name: str) -> None:
    text = "bool c, float[1] x => float[1] y {y = If(c) <"
    for branch, number in (("then", 2), ("else", 3)):
        text += f"{branch}_branch = g{number} () => (float[1] a{number}) "
        text += f"<float[1] w = {{{number}}}> {{a{number} = Mul(x, w)}}"
        text += ", " if branch == "then" else ">}"
    model = prepared(text, **{name: np.array([7], np.float32)})
    assert len(model.params) == 3
    for condition, wanted in ((True, 2), (False, 3)):
        assert model.run([condition, np.ones(1, np.float32)])[0] == wanted


# Statistics given to a node, through Identity, and from outside a branch.
STATISTICS = [
    "y = BatchNormalization(x, s, b, m, v)",
    "n = Identity(m) u = Identity(v) y = BatchNormalization(x, s, b, n, u)",
    """c = Constant<value = bool {1}>() u = Identity(v) y = If(c) <
      then_branch = g () => (float[2,3] t) {t = BatchNormalization(x, s, b, m, u)},
      else_branch = h () => (float[2,3] e) {e = Identity(x)}>""",
]


@pytest.mark.parametrize("nodes", STATISTICS)
def test_statistics_are_no_weights(nodes: str) -> None:
    arrays = {name: np.float32([1, 2, 3]) for name in "sbmv"}
    source = parse(f"float[2,3] x => float[2,3] y {{{nodes}}}", **arrays)
    model, x = onnx_backend.prepare(source), X[:2]
    assert [*model.params] == ["s", "b"]
    statistics = {"m": np.float32([0, 1, -1]), "v": np.float32([4, 1, 0.25])}
    (wanted,) = runtime_outputs(model.to_onnx(statistics), [x])
    np.testing.assert_allclose(model.apply(statistics, x)[0], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = BatchNormalization(x, s, b, b, s)",
        "u = Identity(s) v = Identity(u) y = BatchNormalization(x, s, b, b, v)",
        "t = Identity(s) y = BatchNormalization(x, t, b, b, s)",
    ],
)
def test_statistics_that_share_an_array_with_weights(nodes: str) -> None:
    """Weights change alone."""
    old = {"s": np.float32([1, 2, 3]), "b": np.float32([0, 1, 2])}
    new = {"s": np.float32([3, 3, 1]), "b": np.float32([2, 0, 0])}
    model = prepared(f"float[2,3] x => float[2,3] y {{{nodes}}}", **old)
    assert {*model.params} == {"s", "b"}
    text = "float[2,3] x => float[2,3] y {y = BatchNormalization(x, s, b, m, v)}"
    wanted = runtime_outputs(parse(text, **new, m=old["b"], v=old["s"]), [X[:2]])
    np.testing.assert_allclose(model.apply(new, X[:2]), wanted, rtol=1e-5)
    found = runtime_outputs(model.to_onnx(new), [X[:2]])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


# Nodes, and the rows of their weights.
RECURRENT = rows("""
RNN<hidden_size = 2>(x, w, r, , , z) | 2
GRU<hidden_size = 2>(x, w, r, , , z) | 6
LSTM<hidden_size = 2>(x, w, r, , , z, z) | 8
""")


@pytest.mark.parametrize("moved", ["Identity(h)", "Expand(h, n)"])
@pytest.mark.parametrize(("text", "count"), RECURRENT)
def test_initial_states_of_zeros_are_no_weights(
    text: str, count: str, moved: str
) -> None:
    shapes = {"w": (1, int(count), 3), "r": (1, int(count), 2), "h": (1, 4, 2)}
    arrays = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    nodes = f"n = Constant<value_ints = [1, 4, 2]>() z = {moved} y = {text}"
    source = parse(f"float[t,4,3] x => float[t,d,4,2] y {{{nodes}}}", **arrays)
    assert {*onnx_backend.prepare(source).params} == {"w", "r", "h"}
    arrays["h"] *= 0
    source = parse(f"float[t,4,3] x => float[t,d,4,2] y {{{nodes}}}", **arrays)
    model, x = onnx_backend.prepare(source), np.stack([X, X])
    assert {*model.params} == {"w", "r"}
    state = {"h": np.ones((1, 4, 2), np.float32)}
    wanted = runtime_outputs(model.to_onnx(state), [x])
    np.testing.assert_allclose(model.apply(state, x), wanted, rtol=1e-5)


# Two layers whose weights are stored in 8 bits, and the bias in 32.
QUANTIZED = """float[n,3] x => float[n,2] y {
  s = Constant<value = float {0.5}>()
  z = Constant<value = int8 {1}>()
  v = DequantizeLinear(v_q, s, z)
  h = MatMul(x, v)
  w = Cast<to = 1>(w_q)
  u = Mul(w, rows)
  c = DequantizeLinear<axis = 0>(c_q, scales)
  y = Gemm(h, u, c)
}"""
INTEGERS: dict[str, Any] = {
    "v_q": np.arange(-4, 5, dtype=np.int8).reshape(3, 3),
    "w_q": np.arange(6, dtype=np.uint8).reshape(3, 2),
    "rows": np.float32([[1], [2], [-1]]),
    "c_q": np.array([100, -7], np.int32),
    "scales": np.float32([0.25, 0.125]),
}


def test_weights_of_8_bits() -> None:
    source = parse(QUANTIZED, **INTEGERS)
    model = onnx_backend.prepare(source)
    names = "x: float32 -> y"
    assert repr(model) == f"Model({names}; {3 + 9 + 6 + 2} parameters)"
    params = model.params
    assert {*params} == {"rows", "v", "w", "c"}
    wanted = {"v": (INTEGERS["v_q"] - 1.0) / 2, "w": INTEGERS["w_q"], "c": [25, -0.875]}
    for name, array in wanted.items():
        assert_same_bits(np.asarray(params[name]), np.float32(array))
    (y,) = runtime_outputs(source, [X], is_optimized=False)
    assert_same_bits(np.asarray(model.apply(params, X)[0]), y)
    gradient = jax.grad(lambda p: model.apply(p, X)[0].sum())(params)
    ones = np.ones((4, 2), np.float32)
    product = X.T @ ones @ (params["w"] * INTEGERS["rows"]).T
    np.testing.assert_allclose(gradient["v"], product, rtol=1e-6)
    assert gradient["c"].tolist() == [4, 4]
    assert model.to_onnx({}) == source
    changed = {name: array + 1 for name, array in params.items()}
    tuned = model.to_onnx(changed)
    assert [node.output[0] for node in tuned.graph.node] == ["s", "z", "h", "u", "y"]
    part = {"v": changed["v"]}  # the others stay in 8 bits
    for given in (changed, part):
        tuned = model.to_onnx(given)
        (y,) = runtime_outputs(tuned, [X], is_optimized=False)
        np.testing.assert_allclose(model.apply(given, X)[0], y, rtol=1e-6)
        assert {*onnx_backend.prepare(tuned).params} == {*params}


def test_weights_that_stay_integers_are_counted() -> None:
    text = """uint8[n,3] x, int8[2] bias => float[n,2] y {
      p = MatMulInteger(x, w) q = Cast<to = 1>(p) b = Cast<to = 1>(bias)
      k = Constant<value = float[2] {1, 2}>() r = Mul(q, k) y = Add(r, b)}"""
    arrays = {"w": np.ones((3, 2), np.int8), "bias": np.ones(2, np.int8)}
    model = prepared(text, **arrays)
    # `bias` is the default of an input.
    assert repr(model) == "Model(x: uint8 -> y; 2 of 10 parameters)"
    assert {*model.params} == {"k"}


# Constant nodes beside an initializer, such as the frequencies of rotary embeddings.
@pytest.mark.parametrize(
    ("nodes", "name"),
    [
        ("k = Constant<value = float[3] {1, 2, 3}>() p = Mul(x, k) y = Add(p, w)", "k"),
        (
            """c = Constant<value = bool {1}>() y = If(c) <
            then_branch = g () => (float[3] t) {
              k = Constant<value = float[3] {1, 2, 3}>() p = Mul(x, k) t = Add(p, w)},
            else_branch = h () => (float[3] e) {
              k = Constant<value = float[3] {4, 5, 6}>() e = Mul(w, k)}>""",
            "y.then_branch.k",
        ),
    ],
    ids=["in the graph", "in branches"],
)
def test_constant_nodes_beside_initializers_are_no_weights(
    nodes: str, name: str
) -> None:
    model = prepared(f"float[3] x => float[3] y {{{nodes}}}", w=np.float32([1, 1, -1]))
    assert repr(model) == "Model(x: float32 -> y; 3 parameters)"
    assert {*model.params} == {"w"}
    table = {name: np.float32([2, 3, 5])}
    wanted = X[0] * table[name] + [1, 1, -1]
    assert model.apply(table, X[0])[0].tolist() == wanted.tolist()
    (found,) = runtime_outputs(model.to_onnx(table), [X[0]])
    assert found.tolist() == wanted.tolist()


def test_constant_nodes_beside_functions_are_no_weights() -> None:
    """Inlining adds those of the functions, which `to_onnx` does not find."""
    text = "float[3] x => float[3] y {w = Constant<value = float[3] {1, 2, 3}>() "
    text += "p = Mul(x, w) y = local.f(p)} " + LOCAL + " Neg(p)}"
    assert prepared(text).params == {}


def test_to_onnx_refuses_weights_inside_of_functions() -> None:
    text = "bool c, float[1] x => float[1] y {y = local.f(c, x)} "
    text += LOCAL.replace("(p) => (q) {q =", "(c, p) => (q) {q = If(c) <")
    text += "then_branch = g () => (float[1] a) <float[1] w = {2}> {a = Mul(p, w)}, "
    text += "else_branch = h () => (float[1] b) {b = Neg(p)}>}"
    model = prepared(text)
    (name,) = model.params
    message = "to_onnx: `params` must not have initializers of branches inside func"
    require_error(NotImplementedError, message, model.to_onnx, model.params)
    params = {name: model.params[name] + 1}
    assert model.apply(params, True, np.ones(1, np.float32))[0] == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double"])
def test_to_onnx_keeps_dtypes_and_what_a_tensor_has_beside_values(dtype: str) -> None:
    array = np.ones(3).astype(jnp.dtype("float64" if dtype == "double" else dtype))
    source = parse(f"{dtype}[3] x => {dtype}[3] y {{y = Add(x, w)}}", w=array)
    (tensor,) = source.graph.initializer
    tensor.doc_string = "a row"
    tensor.metadata_props.add(key="origin", value="a file")
    model = onnx_backend.prepare(source)
    with jax.enable_x64(True):
        assert model.params["w"].dtype == array.dtype
        (new,) = model.to_onnx({"w": model.params["w"] * 3}).graph.initializer
    assert_same_bits(onnx.numpy_helper.to_array(new), (array * 3).astype(array.dtype))
    assert new.doc_string == tensor.doc_string
    assert new.metadata_props == tensor.metadata_props


WRONG = rows(r"""
None | TypeError | `params` must be a mapping of names to arrays; got NoneType
{"v": X} | ValueError | `params` must have .* initializers .* 'v'\. The nearest are .
{"shape": np.array([1, 2])} | ValueError | `params` must have names .* 'shape'\. The
{"x": X} | ValueError | `params` must have names .*; got str 'x'\. The nearest are .
{"w": X} | ValueError | `params\['w'\]` must be a float32 array of shape \(3, 2\)
{"b": np.zeros(2)} | ValueError | `params\['b'\]` must be a float32 .*; got float64
{"b": [0, 0]} | ValueError | `params\['b'\]` must be a float32 array .*; got list
""")


@pytest.mark.parametrize(("params", "error", "message"), WRONG)
def test_params_that_do_not_match(
    model: onnx_backend.Model, params: str, error: str, message: str
) -> None:
    given, kind = eval(params), getattr(builtins, error)
    require_error(kind, f"apply: {message}", model.apply, given, X)
    require_error(kind, f"to_onnx: {message}", model.to_onnx, given)


def test_options_of_apply() -> None:
    text = "float[3,2] x => float[3,2] y {y = ReverseSequence(x, n)}"
    source = parse(text, n=np.array([3, 2]))
    x = np.ones((3, 2), np.float32)

    def gradient(model: Any, **options: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(model.apply({}, x, **options)[0]))(x)

    plain = onnx_backend.prepare(source)
    training = onnx_backend.prepare(source, training=True, lda_coeff=0.5)
    assert_same_bits(gradient(plain), x)
    assert_same_bits(gradient(plain, training=True), x)
    assert_same_bits(gradient(plain, lda_coeff=0.25), x)
    assert_same_bits(gradient(plain, training=True, lda_coeff=0.25), x / 4)
    assert_same_bits(gradient(training), x / 2)
    assert_same_bits(gradient(training, training=False), x)
    message = "apply: `training` must be a bool; got str 'no'$"
    require_error(TypeError, message, plain.apply, {}, x, training="no")
    message = "apply: `lda_coeff` must be a real scalar; got str"
    require_error(TypeError, message, plain.apply, {}, x, lda_coeff="a")


def test_inputs_of_any_name() -> None:
    """Also those of arguments, and of options of `apply`."""
    names = ["self", "params", "inputs", "training", "lda_coeff"]
    signature = ", ".join(f"float[1] {name}" for name in names)
    model = prepared(
        f"{signature} => float[5] y {{y = Concat<axis = 0>({', '.join(names)})}}"
    )
    given = {name: np.float32([i]) for i, name in enumerate(names)}
    results = model.jax_fn(**given), model.apply({}, **given), model.run(**given)
    for (y,) in results:
        assert y.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("nans_are_data")  # JAX donates nothing while it looks for NaNs
def test_params_may_be_donated(model: onnx_backend.Model) -> None:
    """As in a step of training, which writes to the memory of the weights."""
    wanted = expected(X, **WEIGHTS)
    for _ in range(2):
        params = model.params
        doubled = jax.jit(lambda p: jax.tree.map(lambda x: 2 * x, p), donate_argnums=0)
        doubled(params)
        assert all(array.is_deleted() for array in params.values())
        assert_same_bits(np.asarray(model.apply(model.params, X)[0]), wanted)
        assert_same_bits(model.run([X])[0], wanted)


# Functions for operators --------------------------------------------------------------

CUSTOM = """float[4,3] x => float[4,3] y, float[4,3] z {
  a, b = com.foo.Pair<scale = 2.0, mode = "up">(x, , x)
  y = Frob(a)
  z = Neg(b)
}"""


def pair(attributes: Any, x: Any, omitted: Any, other: Any) -> Any:
    assert omitted is None
    assert attributes == {"scale": 2.0, "mode": "up"}
    return x * attributes["scale"], other + 1


def test_functions_for_operators() -> None:
    operators = {
        ("com.foo", "Pair"): pair,
        "Frob": lambda _, x: jnp.sin(x),
        ("", "Neg"): lambda _, x: 10 * x,
    }
    model = onnx_backend.prepare(parse(CUSTOM), operators=operators)
    y, z = jax.jit(model.jax_fn)(X)
    np.testing.assert_allclose(y, np.sin(2 * X), rtol=1e-5, atol=1e-6)
    assert_same_bits(np.asarray(z), 10 * (X + 1))
    assert_same_bits(model.run([X])[1], 10 * (X + 1))
    node = onnx.helper.make_node("Frob", ["x"], ["y"])
    require_error(NotImplementedError, "onnx: ", onnx_backend.run_node, node, [X])
    (y,) = onnx_backend.run_node(node, [X], operators={"Frob": lambda _, x: -x})
    assert_same_bits(y, -X)


# Names of operators of ONNX, functions, and nodes in which these are called.
NAMESAKES = rows("""
Pad | lambda _, q: q & np.uint8(6) | s = Constant<value_float = 0.5>()
  q = QuantizeLinear(x, s) y = com.foo.Pad(q)
BatchNormalization | lambda _, x, *w: x | y = com.foo.BatchNormalization(x, w, w, w, w)
Size | lambda _, x: np.array([-1]) | s = com.foo.Size(x) y = Reshape(x, s)
Constant | lambda attributes: 2 * attributes["value"] |
  y = com.foo.Constant<value = float[2] {1, 2}>()
""")


@pytest.mark.parametrize(("name", "function", "nodes"), NAMESAKES)
def test_functions_with_names_of_operators(
    name: str, function: str, nodes: str
) -> None:
    """They do what they do by any other name."""
    found = []
    for other in (name, "Blob"):
        text = nodes.replace(f"foo.{name}", f"foo.{other}")
        source = parse(f"float[4,3] x => float[n] y {{{text}}}", w=X[0])
        operators = {("com.foo", other): eval(function)}
        model = onnx_backend.prepare(source, operators=operators)
        (y,) = model.run([X])
        found.append([{*model.params}, model.static_names, y.dtype, y.tolist()])
    assert found[0] == found[1]


@pytest.mark.usefixtures("x32")
def test_functions_see_the_mode_of_the_caller() -> None:
    seen = []
    operators = {"Neg": lambda _, x: (seen.append(jnp.ones(2).dtype), -x)[1]}
    text = "float[3] x => float[3] y {y = Neg(x)}"
    model = onnx_backend.prepare(parse(text), operators=operators)
    jax.jit(model.jax_fn)(X[0])
    assert seen == [np.float32]


@pytest.mark.parametrize(("name", "kept"), [("a", 5), ("b", 7), ("none", None)])
def test_checkpoints_by_name(name: str, kept: int | None) -> None:
    """A policy names tensors of the model; no others are kept for the backward pass."""
    model = prepared(
        """float[n, 3] x => float[n, 2] y {
          p = MatMul(x, u)
          a = Tanh(p)
          q = MatMul(a, v)
          b = Tanh(q)
          y = MatMul(b, w)
        }""",
        **{
            n: np.ones(shape, np.float32)
            for n, shape in {"u": (3, 5), "v": (5, 7), "w": (7, 2)}.items()
        },
    )
    policy = jax.checkpoint_policies.save_only_these_names(name)
    apply = jax.checkpoint(model.apply, policy=policy)
    _, backward = jax.vjp(lambda params: apply(params, X), model.params)
    saved = {x.shape[1] for x in jax.tree.leaves(backward) if len(x) == len(X)}
    assert saved & {5, 7} == ({kept} if kept else set())
