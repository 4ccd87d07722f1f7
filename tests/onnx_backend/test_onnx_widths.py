"""Outside of 64-bit mode, `jax_fn` and `apply` narrow as JAX does; `run` does not."""

from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import parse, prepared, require_error, runtime_outputs

from dml_jax import onnx_backend

pytestmark = pytest.mark.usefixtures("x32", "with_jit")

ENDS = "a = Constant<value_ints = [-1]>() b = Constant<value_ints = [-9]>()"
FRAMES = np.arange(6, dtype=np.float32).reshape(2, 3)
MODELS: list[tuple[str, list[Any]]] = [
    ("int64[1] x => int64[1] y {y = Identity(x)}", [[2**40 + 1]]),
    ("uint64[1] x => uint64[1] y {y = Identity(x)}", [np.uint64([2**64 - 1])]),
    ("int64[1] x => int32[1] y {y = Cast<to = 6>(x)}", [[2**40 + 3]]),
    ("float[3] x => int64[3] y {y = Cast<to = 7>(x)}", [np.float32([1, 2, 3])]),
    ("float[2,3] x => int64[2] y {y = ArgMax<axis = 1, keepdims = 0>(x)}", [FRAMES]),
    ("double[2] x => double[2] y {y = Identity(x)}", [[0.1, 1e30]]),
    ("double[2] x => float[2] y {y = Cast<to = 1>(x)}", [[0.1, 0.2]]),
    ("float[2] x => double[2] y {y = Cast<to = 11>(x)}", [np.float32([0.1, 0.2])]),
    ("int64[1] x => double[1] y {y = Cast<to = 11>(x)}", [[2**20 + 3]]),
    (f"double[2] x => double[n] y {{{ENDS} y = Slice(x, a, b, , a)}}", [[0.1, 0.2]]),
    ("""double[2] x => double[2] y {
       k = Constant<value = double[2] {0.1, 3.0}>() y = Add(x, k)}""", [[0.5, 0.25]]),
    # The masks of text encoders: additive, and boolean.
    ("""float[2,3] x, int64[2,3] mask => float[2,3] y {
       f = Cast<to = 1>(mask) one = Constant<value_float = 1.0>() g = Sub(one, f)
       low = Constant<value_float = -1000.0>() h = Mul(g, low) y = Add(x, h)}""",
     [FRAMES, [[1, 1, 0], [1, 0, 0]]]),
    ("""float[2,3] x, int64[2,3] mask => float[2,3] y {
       f = Cast<to = 9>(mask) zero = Constant<value_float = 0.0>()
       y = Where(f, x, zero)}""",
     [FRAMES, [[1, 1, 0], [1, 0, 0]]]),
    ("""float[2,3] x, int64[2] labels => float loss {
       loss = NegativeLogLikelihoodLoss<reduction = "sum">(x, labels)}""",
     [FRAMES, [2, 0]]),
    ("""float[1,1,2,4] x, int64[1,2] position_ids => float[1,1,2,4] y {
       c = Constant<value = float[3,2] {1, 0, 0, 1, 0.5, 2}>()
       s = Constant<value = float[3,2] {0, 1, 1, 0, 2, 0.5}>()
       y = RotaryEmbedding(x, c, s, position_ids)}""",
     [np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4), [[2, 0]]]),
    # One key is left, so that the result is its value.
    ("""float[2,1,1,2] q, float[2,1,3,2] k, int64[2] nonpad_kv_seqlen =>
       float[2,1,1,2] y {y = Attention(q, k, k, , , , nonpad_kv_seqlen)}""",
     [np.ones((2, 1, 1, 2), np.float32),
      np.arange(12, dtype=np.float32).reshape(2, 1, 3, 2), [1, 1]]),
    # A mask from lengths, and positions.
    ("""int64[2] n => bool[2,3] m {
       t = Constant<value_ints = [0, 1, 2]>() a = Constant<value_ints = [1]>()
       u = Unsqueeze(n, a) m = Less(t, u)}""", [[3, 1]]),
    ("""float[2,3] x, int64[4] p => float[4,3] y {y = Gather<axis = 0>(x, p)}""",
     [FRAMES, [1, -1, 0, 1]]),
    # Bodies that give integers and doubles, of which some are constants.
    ("""bool c, int64[2] x => int64[2] y {y = If(c) <
       then_branch = g () => (int64[2] a) {a = Neg(x)},
       else_branch = h () => (int64[2] b) {b = Constant<value_ints = [5, 6]>()}>}""",
     [True, [3, 2]]),
    ("""bool c, double[2] x => double[2] y {y = If(c) <
       then_branch = g () => (double[2] a) {a = Neg(x)},
       else_branch = h () => (double[2] b) {
         b = Constant<value = double[2] {0.1, 0.2}>()}>}""", [True, [0.1, 2]]),
    ("""bool c, double[2] x => double[2] y, int64[n] r {
       m = Constant<value_int = 3>() y, r = Loop(m, , x) <body =
       g (int64 i, bool d, double[2] s) => (bool d, double[2] u, int64 j) {
         u = Add(s, s) j = Add(i, i)}>}""", [True, [0.1, 2]]),
    ("""double[2] s, double[3,2] x => double[2] t, double[3,2] y {
       t, y = Scan<num_scan_inputs = 1, body = g (double[2] p, double[2] q) =>
         (double[2] u, double[2] v) {u = Add(p, q) v = Identity(u)}>(s, x)}""",
     [[0.5, 0.25], np.arange(6.0).reshape(3, 2)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "inputs"), MODELS)
def test_64_bits_are_narrowed_as_jax_does(text: str, inputs: list[Any]) -> None:
    inputs = [*map(np.asarray, inputs)]
    wanted = runtime_outputs(parse(text), inputs)
    model = prepared(text)
    for found, array in zip(model.run(inputs), wanted, strict=True):
        assert_same_bits(found, array)
    with jax.enable_x64(True):
        placed = [*map(jax.numpy.asarray, inputs)]
        outputs = jax.jit(model.jax_fn)(*placed)
        for found, array in zip(outputs, wanted, strict=True):
            assert_same_bits(np.asarray(found), array)
    narrowed = [*map(jax.numpy.asarray, inputs)]
    jitted = jax.jit(model.jax_fn)
    calls = (model.jax_fn, inputs), *((jitted, x) for x in (inputs, narrowed, placed))
    for fn, given in calls:
        for found, array in zip(fn(*given), wanted, strict=True):
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            assert_same_bits(np.asarray(found), array.astype(dtype))


def test_derivatives_of_doubles() -> None:
    text = """float[2] x => double[2] y {
      d = Cast<to = 11>(x) k = Constant<value = double[2] {0.5, 3.0}>()
      e = Mul(d, k) y = Mul(e, e)}"""
    model, x = prepared(text), np.float32([1, 2])
    gradient = jax.grad(lambda x: model.jax_fn(x)[0].sum())(x)
    assert_same_bits(np.asarray(gradient), np.float32([0.5, 36]))


def test_weights_of_64_bits() -> None:
    model = prepared("double[2] x => double[2] y {y = Mul(x, w)}", w=np.array([0.1, 3]))
    assert model.params["w"].dtype == np.float32
    (y,) = jax.jit(model.apply)({"w": jax.numpy.ones(2)}, np.array([0.5, 2]))
    assert_same_bits(np.asarray(y), np.float32([0.5, 2]))
    changed = onnx_backend.prepare(model.to_onnx({"w": np.float32([1, 2])}))
    assert_same_bits(changed.run([np.array([0.1, 0.2])])[0], np.array([0.1, 0.4]))


def test_lengths_beyond_32_bits() -> None:
    """Arrays in hand keep their width, so that no length wraps into the axis."""
    text = "float[3,2] x, int64[2] n => float[3,2] y {y = ReverseSequence(x, n)}"
    model, x = prepared(text), np.arange(6, dtype=np.float32).reshape(3, 2)
    with jax.enable_x64(True):
        beyond = jax.numpy.array([3, 2**32 + 1])
    message = "ReverseSequence 'y': `sequence_lens` must be in .*; got 4294967297"
    for call in (model.jax_fn, lambda *inputs: model.run([*inputs])):
        require_error(ValueError, message, call, x, beyond)
    assert jax.jit(model.jax_fn)(x, beyond)[0].tolist() == [[4, 5], [2, 3], [0, 1]]


def test_run_takes_no_narrow_floats() -> None:
    model = prepared("double[2] x => double[2] y {y = Identity(x)}")
    message = "onnx: `x` must have dtype float64; got float32"
    require_error(TypeError, message, model.run, [np.float32([1, 2])])
    with jax.enable_x64(True):
        require_error(TypeError, message, model.jax_fn, np.float32([1, 2]))


INSIDE = """int32[3] x => float[3] y {
  far = Constant<value_int = 8589934592>()
  wide = Cast<to = 7>(x)
  product = Mul(wide, far)
  near = Constant<value_int = 8589934593>()
  rest = Mod(product, near)
  y = Cast<to = 1>(rest)
}"""


def test_integers_inside_of_a_model_have_64_bits() -> None:
    x = np.array([1, 2, 3], np.int32)
    wanted = (x.astype(np.int64) * 2**33) % (2**33 + 1)
    for fn in (prepared(INSIDE).jax_fn, jax.jit(prepared(INSIDE).jax_fn)):
        assert_same_bits(np.asarray(fn(x)[0]), wanted.astype(np.float32))
    (batch,) = jax.vmap(prepared(INSIDE).jax_fn)(np.stack([x, x]))
    assert_same_bits(np.asarray(batch[1]), wanted.astype(np.float32))
