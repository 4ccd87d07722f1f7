"""Dropout in training mode, and operators that draw random numbers.

The oracles are distribution functions, probabilities, and what is dropped.
"""

import math
from statistics import NormalDist
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import F, model_of, parse, prepared, rows
from sampling import sampled_x64

from dml_jax import onnx_backend

KEY = jax.random.key(0)
X = np.ones((50, 100), F)
SHARES = np.repeat(F([[0], [0.25], [0.9], [1]]), 5000, 1)
PARTS = F([[0.2, 0.3, 0.5], [0.1, 0.85, 0.05]])
ON = "t = Constant<value: tensor = bool {1}>()"
DROPPING = f"{ON} y, m = Dropout(p, q, t)"


def model(text: str, *inputs: Any) -> onnx_backend.Model:
    return onnx_backend.prepare(model_of(text, inputs))


def normal(mean: float, scale: float) -> Any:
    return np.vectorize(NormalDist(mean, scale).cdf)


def uniform(low: float, high: float) -> Any:
    return lambda x: (x - low) / (high - low)


# Nodes, inputs, distribution function and dtype.
CONTINUOUS = rows("""
y = RandomNormal<shape = [50, 100]>() | *[] | normal(0, 1) | F
y = RandomNormal<shape = [50, 100], mean = -3.0, scale = 0.5>() | *[] |
  normal(-3, 0.5) | F
@22 y = RandomNormal<shape = [50, 100], dtype = 11>() | *[] | normal(0, 1) | float
y = RandomNormalLike<mean = 2.0, scale = 3.0>(p) | X | normal(2, 3) | F
@9 y = RandomNormalLike<dtype = 10>(p) | X | normal(0, 1) | np.float16
y = RandomUniform<shape = [50, 100]>() | *[] | uniform(0, 1) | F
y = RandomUniform<shape = [50, 100], low = -1.0, high = 3.0>() | *[] |
  uniform(-1, 3) | F
y = RandomUniformLike<low = 5.0, high = 7.0>(p) | X.astype(np.float16) | uniform(5, 7) |
  np.float16
y = RandomUniformLike<dtype = 16>(p) | X | uniform(0, 1) | jnp.bfloat16
""")


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("text", "inputs", "distribution", "dtype"), CONTINUOUS)
def test_continuous(text: str, inputs: str, distribution: str, dtype: str) -> None:
    """By Kolmogorov's statistic, which exceeds 2.7 once in a million times."""
    given = eval(f"[{inputs}]")
    (y,) = model(text, *given).jax_fn(*given, key=KEY)
    assert y.dtype == jax.dtypes.canonicalize_dtype(eval(dtype))
    assert y.shape == X.shape
    shares = eval(distribution)(np.sort(np.asarray(y, float), None))
    distance = np.max(np.abs(shares - np.arange(y.size) / y.size))
    assert distance < 2.7 / math.sqrt(y.size) + float(jnp.finfo(y.dtype).eps)
    assert shares.min() >= 0
    assert shares.max() <= 1


# Nodes, inputs, events in rows of y, their probabilities, and the dtype.
DISCRETE = rows("""
y = Bernoulli(p) | SHARES | [1] | SHARES[:, :1] | F
y = Bernoulli<dtype = 6>(p) | SHARES.astype(np.float16) | [1] | SHARES[:, :1] | np.int32
y = Bernoulli<dtype = 9>(p) | SHARES.astype(float) | [True] | SHARES[:, :1] | bool
y = Multinomial<sample_size = 5000>(p) | np.log(PARTS) + 7 | [0, 1, 2] | PARTS |
  np.int32
@7 y = Multinomial<sample_size = 5000, dtype = 7>(p) |
  np.log(PARTS).astype(np.float16) | [0, 1, 2] | PARTS | np.int64
""")


@sampled_x64
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("text", "inputs", "events", "shares", "dtype"), DISCRETE)
def test_discrete(text: str, inputs: str, events: str, shares: str, dtype: str) -> None:
    x, wanted = eval(inputs), eval(shares)
    (y,) = model(text, x).apply({}, x, key=KEY)
    assert y.dtype == jax.dtypes.canonicalize_dtype(eval(dtype))
    assert y.shape == (len(x), 5000)
    are_equal = np.asarray(y)[:, None] == np.array(eval(events))[:, None]
    deviation = np.sqrt(wanted * (1 - wanted) / 5000)
    assert np.all(np.abs(are_equal.mean(-1) - wanted) <= 5 * deviation)


@pytest.mark.parametrize(
    ("opset", "dtype", "rate"), [(12, F, 0.25), (13, np.float16, 0.9), (22, float, 0.6)]
)
def test_dropout(opset: int, dtype: Any, rate: float) -> None:
    x = np.arange(1, 5001).astype(dtype)
    with jax.enable_x64(True):
        dropping = model(f"@{opset} {DROPPING}", x, F(rate))
        y, mask = map(np.asarray, dropping.jax_fn(x, F(rate), key=KEY))
    assert (y.dtype, mask.dtype) == (dtype, bool)
    assert abs(mask.mean() - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / mask.size)
    wanted = np.where(mask, x / (1 - float(F(rate))), 0).astype(dtype)
    np.testing.assert_allclose(y, wanted, rtol=2 * np.finfo(dtype).eps)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    "text",
    [
        f"{ON} r = Constant<value_float = 0.0>() y, m = Dropout(p, r, t)",
        "y, m = Dropout(p)",
        "@7 float16[n] y, float16[n] m {y, m = Dropout<ratio = 0.5>(p)}",
    ],
)
def test_nothing_is_dropped(text: str) -> None:
    """Every bit is kept, and no key is needed."""
    bits = np.arange(2**16, dtype=np.uint16).view(np.float16)
    y, mask = model(text, bits).jax_fn(bits)
    assert_same_bits(np.asarray(y), bits)
    assert np.all(mask)


def test_a_rate_of_zero_that_is_traced() -> None:
    y, _ = jax.jit(model(DROPPING, X, F(0)).jax_fn)(X, F(0), key=KEY)
    assert_same_bits(np.asarray(y), X)


TWO = prepared(f"""float[50,100] x => float[50,100] y {{{ON}
  r = Constant<value_float = 0.5>() a = Dropout(x, r, t) b = RandomNormalLike(x)
  y = Mul(a, b)}}""")


def test_a_key_decides() -> None:
    """Under each transformation, and in both forms of keys and modes of JAX."""

    def draw(x: Any, key: Any) -> Any:
        return TWO.jax_fn(x, key=key)[0]

    wanted = np.asarray(draw(X, KEY))
    keys = jnp.stack([jax.random.key(1), KEY])
    exported = jax.export.export(jax.jit(draw))(X, KEY)
    for other in (
        jax.jit(draw)(X, KEY),
        jax.vmap(draw, (None, 0))(X, keys)[1],
        jax.checkpoint(draw)(X, KEY),
        exported.call(X, KEY),
        jax.grad(lambda x: jnp.sum(draw(x, KEY)))(X),  # x is multiplied
        draw(X, jax.random.key_data(KEY)),
        TWO.apply({}, X, key=KEY)[0],
    ):
        np.testing.assert_allclose(other, wanted, rtol=1e-6)
    for flag in (False, True):
        with jax.enable_x64(flag):
            np.testing.assert_allclose(draw(X, KEY), wanted, rtol=1e-6)
    assert not np.any(draw(X, jax.random.key(1))[wanted != 0] == wanted[wanted != 0])


LOOP = "(int64 i, bool c, float[n] a) => (bool c, float[n] a, float[n] d)"
# Nodes whose output y has rows of 100 normal numbers.
ROWS = rows("""
a = RandomNormalLike(p) b = RandomNormalLike(p) y = Concat<axis = 0>(a, b)
a = RandomNormalLike(p) c = Constant<value: tensor = bool {1}>()
  b = If(c) <then_branch = g () => (float[k,n] d) {d = RandomNormalLike(p)},
    else_branch = h () => (float[k,n] e) {e = Identity(p)}>
  y = Concat<axis = 0>(a, b)
o = Constant<value_ints = [0]>() s = Squeeze(p, o)
  m = Constant<value_int = 5>() l, y = Loop(m, , s) <body = g $loop {
    d = RandomNormalLike(a)}>
m = Constant<value_int = 2>() c = Constant<value_float = 0.0>()
  l, z = Loop(m, , c) <body = g (int64 i, bool c, float a) =>
    (bool c, float a, float[k,n] r) {
    s, r = Scan<num_scan_inputs = 1, body = h
    (float u, float v) => (float u, float[n] w)
      {w = RandomNormal<shape = [100]>()}>(a, q)}>
  o = Constant<value_ints = [-1, 100]>() y = Reshape(z, o)
s = SequenceConstruct(p, p, p) z = SequenceMap(s) <body = g (float[k,n] a) =>
  (float[k,n] d) {d = RandomNormalLike(a)}> y = ConcatFromSequence<axis = 0>(z)
""", loop=LOOP)  # fmt: skip


@pytest.mark.parametrize("text", [row for (row,) in ROWS])
def test_nodes_and_iterations_are_independent(text: str) -> None:
    given = [np.zeros((1, 100), F), np.zeros(3, F)][: 1 + ("q)" in text)]
    drawing = model(f"float[k,n] y {{{text}}}", *given)
    (y,) = jax.jit(drawing.jax_fn)(*given, key=KEY)
    np.testing.assert_allclose(y, drawing.jax_fn(*given, key=KEY)[0], rtol=1e-6)
    for drawn in (y, drawing.run(given).y):
        correlations = np.corrcoef(drawn) - np.eye(len(drawn))
        assert len(drawn) > 1
        assert np.max(np.abs(correlations)) < 0.5


def test_functions_of_a_model_are_independent() -> None:
    source = parse("""float[1,100] p => float[k,n] y {a = local.f(p) b = local.f(p)
      y = Concat<axis = 0>(a, b)} <domain: "local", opset_import: ["": 25]>
      f (p) => (q) {q = RandomNormalLike(p)}""")
    (y,) = onnx_backend.prepare(source).jax_fn(np.zeros((1, 100), F), key=KEY)
    assert abs(np.corrcoef(y)[0, 1]) < 0.5


def test_a_loop_ends_by_a_random_number() -> None:
    """The number of iterations until a uniform number exceeds 0.9."""
    drawing = prepared("""=> int64 y {zero = Constant<value_int = 0>()
      y = Loop(, , zero) <body = g (int64 i, bool c, int64 n) => (bool d, int64 m) {
        u = RandomUniform<shape = [1]>() b = Constant<value_float = 0.9>()
        e = Less(u, b) o = Constant<value_ints = [0]>() d = Squeeze(e, o)
        one = Constant<value_int = 1>() m = Add(n, one)}>}""")
    keys = jax.random.split(KEY, 1000)
    (counts,) = jax.jit(jax.vmap(lambda key: drawing.jax_fn(key=key)))(keys)
    assert abs(np.mean(counts) - 10) < 5 * math.sqrt(90 / 1000)
    assert int(drawing.jax_fn(key=keys[0])[0]) == counts[0]
    assert len({int(drawing.run().y) for _ in range(9)}) > 1


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_derivatives_of_a_loop_draw_the_same(kind: str) -> None:
    """Each iteration doubles an element, or makes it zero."""
    dropping = prepared(f"""float[99] x, int64 n => float[99] y {{y = Loop(n, , x) <
      body = g (int64 i, bool c, float[99] a) => (bool c, float[99] d) {{{ON}
        d = Dropout(a, , t)}}>}}""")
    x, key = np.ones(99, F), jax.random.key(0, impl=kind)

    def total(x: Any) -> Any:
        (y,) = dropping.jax_fn(x, np.array(3), key=key)
        return jnp.sum(y), y

    gradient, y = jax.jit(jax.grad(total, has_aux=True))(x)
    assert {*np.asarray(y)} == {0, 8}
    assert_same_bits(np.asarray(gradient), np.asarray(y))


SEEDED = "y = RandomNormal<shape = [9], seed = 2.0>()"


def test_seeds_are_those_of_run() -> None:
    (first,), (second,) = (model(text).run() for text in (SEEDED, f"@9 {SEEDED}"))
    assert_same_bits(first, second)
    other = model(SEEDED.replace("2.0", "2.5"))
    assert not np.any(first == other.run().y)
    by_key = [other.jax_fn(key=jax.random.key(i))[0] for i in (0, 1)]
    assert not np.any(by_key[0] == by_key[1])
    (node,) = model_of(SEEDED, []).graph.node
    assert_same_bits(onnx_backend.run_node(node, []).y, first)


def test_without_a_seed_runs_differ() -> None:
    """Also of one program."""
    for drawing, x in ((TWO, [X]), (model(SEEDED.replace(", seed = 2.0", "")), [])):
        first, second = drawing.run(x).y, drawing.run(x).y
        assert not np.any((first == second) & (first != 0))


def test_inputs_called_key() -> None:
    attending = prepared(f"""float[9] query, float[9] key => float[9] y {{{ON}
      a = Add(query, key) y = Dropout(a, , t)}}""")
    x = np.arange(1, 10, dtype=F)
    y = attending.jax_fn(x, 2 * x, key=KEY)[0]
    assert {*np.asarray(y / x)} == {0, 6}
    assert_same_bits(np.asarray(attending.apply({}, x, 2 * x, key=KEY)[0]), y)
    with pytest.raises(TypeError, match=r"`key` must be a PRNG key"):
        attending.jax_fn(x, key=2 * x)
    copying = prepared("float[9] key => float[9] y {y = Identity(key)}")
    assert_same_bits(np.asarray(copying.jax_fn(key=x)[0]), x)


def test_training_with_dropout() -> None:
    """A weight is fitted through dropped inputs, and the node is kept."""
    source = parse(f"""float[64,8] x => float[64,1] y {{{ON}
      r = Constant<value_float = 0.1>() d = Dropout(x, r, t) y = MatMul(d, w)}}""",
      w=np.zeros((8, 1), F))  # fmt: skip
    dropping = onnx_backend.prepare(source)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype(F)
    wanted = x @ np.arange(8, dtype=F)[:, None]

    @jax.jit
    def step(params: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((dropping.apply(params, x, key=key)[0] - wanted) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    params = dropping.params
    for key in jax.random.split(KEY, 100):
        params = step(params, key)
    # Dropout acts as a penalty, which makes weights smaller by about the rate.
    np.testing.assert_allclose(np.ravel(params["w"]), np.arange(8), atol=1.5)
    tuned = dropping.to_onnx(params)
    assert [node.op_type for node in tuned.graph.node].count("Dropout") == 1
