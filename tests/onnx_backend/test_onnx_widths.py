"""64-bit inputs of ONNX models, and those that need no 64-bit mode."""

from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import X, prepared, require_error, rows

ROW = X[0, :3]

WIDE = rows(r"""
int64[3] x => int64[3] y {y = Identity(x)}
int64[3] x => int64[n] y {l = Constant<value_int = 2>() y = Range(l, l, l)}
float[3] x => int64[3] y {y = Cast<to = 7>(x)}
float[3] x => double[3] y {y = Cast<to = 11>(x)}
""")


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("text", [text for (text,) in WIDE])
def test_64_bits_need_64_bit_mode(text: str) -> None:
    model = prepared(text)
    x = np.arange(3) + 2**33 if "int64[" in text.split("=>")[0] else ROW
    message = "jax_fn: `y` has dtype (int|float)64, which needs 64-bit mode"
    require_error(ValueError, message, model.jax_fn, x)
    wide = model.run([x])[0]
    with jax.enable_x64(True):
        assert_same_bits(np.asarray(model.jax_fn(x)[0]), wide)


ENDS = "a = Constant<value_ints = [-1]>() b = Constant<value_ints = [-9]>()"
MADE_WIDE: list[tuple[str, list[Any], list[Any]]] = [  # a model, input and output
    ("double[2] x => double[2] y {y = Identity(x)}", [0.1, 1e300], [0.1, 1e300]),
    ("int64[1] x => int64[1] y {y = Identity(x)}", [2**40 + 1], [2**40 + 1]),
    (f"double[2] x => double[n] y {{{ENDS} y = Slice(x, a, b, , a)}}", [0.1, 0.2],
     [0.2, 0.1]),
    ("double[2,1] x => double[2,1] y {n = Constant<value_ints = [2]>() "
     "y = ReverseSequence(x, n)}", [[0.1], [0.2]], [[0.2], [0.1]]),
    ("double[2] x => float[2] y {y = Cast<to = 1>(x)}", [0.1, 0.2], [0.1, 0.2]),
    ("int64[1] x => int32[1] y {y = Cast<to = 6>(x)}", [2**40 + 3], [3]),
    ("int64[1] x => double[1] y {y = Cast<to = 11>(x)}", [2**40 + 3], [2.0**40 + 3]),
]  # fmt: skip


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize(("text", "given", "expected"), MADE_WIDE)
def test_arrays_that_were_made_in_64_bit_mode(
    text: str, given: list[Any], expected: list[Any]
) -> None:
    model = prepared(text)
    with jax.enable_x64(True):
        x = jax.numpy.asarray(given)
        inside = [model.jax_fn(x)[0], jax.jit(model.jax_fn)(x)[0]]
    assert x.dtype.itemsize == 8
    for y in (model.run([x])[0], model.run([given])[0], *inside):
        assert_same_bits(np.asarray(y), np.array(expected, y.dtype))
    if model.run([x])[0].dtype.itemsize == 8:
        message = "jax_fn: `y` has dtype (int|float)64, which needs 64-bit mode"
        require_error(ValueError, message, model.jax_fn, x)
    else:
        assert_same_bits(np.asarray(model.jax_fn(x)[0]), model.run([x])[0])
    message = f"onnx: `x` has dtype {x.dtype}, which needs 64-bit mode"
    require_error(ValueError, message, jax.jit(model.jax_fn), x)
    require_error(ValueError, message, jax.vmap(model.jax_fn), x[None])


@pytest.mark.usefixtures("x32", "with_jit")
def test_lengths_that_were_made_in_64_bit_mode() -> None:
    text = "float[3,2] x, int64[2] n => float[3,2] y {y = ReverseSequence(x, n)}"
    model, x = prepared(text), np.arange(6, dtype=np.float32).reshape(3, 2)
    with jax.enable_x64(True):
        lengths, beyond = jax.numpy.array([3, 2]), jax.numpy.array([3, 2**32 + 1])
    jitted, reversed_rows = jax.jit(model.jax_fn), [[4, 3], [2, 1], [0, 5]]
    assert model.jax_fn(x, lengths)[0].tolist() == reversed_rows
    assert jitted(x, lengths)[0].tolist() == reversed_rows
    assert jitted(x, beyond)[0].tolist() == [[4, 5], [2, 3], [0, 1]]
    message = "ReverseSequence 'y': `sequence_lens` must be in .*; got 4294967297"
    require_error(ValueError, message, model.jax_fn, x, beyond)
    require_error(ValueError, message, model.run, [x, beyond])


# Graphs in which x becomes only lengths or indices: of frames 0 to 5, the results.
INDEX_TEXTS = rows(r"""
y = ReverseSequence(f, x) | [[4, 3], [2, 1], [0, 5]]
a = Identity(x) b = Cast<to = 6>(a) c = Cast<to = 7>(b) y = ReverseSequence(f, c) |
  [[4, 3], [2, 1], [0, 5]]
k = Constant<value_ints = [2]>() v, i = TopK(x, k) y = ReverseSequence(f, v) |
  [[4, 3], [2, 1], [0, 5]]
k = Constant<value_ints = [2]>() v, i = TopK(x, k) r = ReverseSequence(f, v)
  g = Cast<to = 1>(i) y = Add(r, g) | [[4, 4], [2, 2], [0, 6]]
i = Constant<value_ints = [0, 0]>() j = Shape(x) y = Gather<axis = 0>(f, i) |
  [[0, 1], [0, 1]]
u = Unsqueeze(x, axis) v = Squeeze(u, axis) y = ReverseSequence(f, v) |
  [[4, 3], [2, 1], [0, 5]]
""")
# Masks [2, 3] of frames, whose lengths fit 32 bits as the frames' numbers do.
BRANCH = """t = Range(zero, time, one) h = ReduceMax<keepdims = 0>(f)
  c = Cast<to = 9>(h) m = If(c) <"""
MASKS = rows(
    r"""
t = Range(zero, time, one) m = Less(t, n)
t = Range(zero, time, one) s = Sub(n, one) m = LessOrEqual(t, s)
t = Range(zero, time, one) i = Cast<to = 6>(t) k = Cast<to = 6>(n) m = Greater(k, i)
t = Range(zero, time, one) i = Cast<to = 1>(t) k = Cast<to = 1>(n) m = Less(i, k)
s = Shape(f) d = Gather(s, one) t = Range(zero, d, one) m = Less(t, n)
s = Shape(f) e = Expand(three, s) i = NonZero(e) r = Constant<value_ints = [1]>()
  j = Gather(i, r) k = Reshape(j, s) m = Less(k, n)
t = Constant<value_ints = [0, 1, 2]>() k = GreaterOrEqual(t, n) m = Not(k)
$branch then_branch = p () => (bool[2,3] a) {a = Less(t, n)},
  else_branch = q () => (bool[2,3] b) {s = Sub(n, one) b = LessOrEqual(t, s)}>
$branch then_branch = p () => (bool[2,3] a) {k = Cast<to = 6>(n)
    s = Cast<to = 6>(t) a = Less(s, k)},
  else_branch = q () => (bool[2,3] b) {k = Cast<to = 1>(n) s = Cast<to = 1>(t)
    b = Greater(k, s)}>
$branch then_branch = p () => (bool[2,3] a) {a = If(c) <
    then_branch = r () => (bool[2,3] d) {d = Less(t, n)},
    else_branch = s () => (bool[2,3] e) {e = Greater(n, t)}>},
  else_branch = q () => (bool[2,3] b) {b = Less(t, n)}>
t = Range(zero, time, one) h = ReduceMax<keepdims = 0>(f) c = Cast<to = 9>(h)
  k = If(c) <then_branch = p () => (int64[2,1] a) {a = Sub(n, one)},
    else_branch = q () => (int64[2,1] b) {b = Identity(n)}> m = LessOrEqual(t, k)
z, r = Loop(time, , n) <body =
  g (int64 i, bool c, int64[2,1] u) => (bool c, int64[2,1] u, bool[2,1] a) {
    a = Less(i, n)}> s = Squeeze(r, last) m = Transpose(s)
e = Cast<to = 7>(f) k, l = Loop(three, , n, zero) <body =
  g (int64 i, bool c, int64[2,1] u, int64 v) => (bool c, int64[2,1] w, int64 a) {
    w = Identity(u) a = Add(v, one)}>
  t = Range(zero, time, one) j = Add(t, l) o = Add(k, l) m = Less(j, o)
t = Range(zero, time, one) k, r = Scan<num_scan_inputs = 1, body =
  g (int64[2,1] u, int64 v) => (int64[2,1] w, bool[2,1] a) {
    w = Identity(u) a = Less(v, w)}>(n, t) s = Squeeze(r, last) m = Transpose(s)
""".replace("$branch", BRANCH)
)
NUMBERS = {"zero": 0, "one": 1, "time": 3, "three": 3, "axis": [1], "last": [2]}
NUMBERS |= {"zeros": [0], "rate": 16000}
FRAMES = np.arange(6, dtype=np.float32).reshape(3, 2)
# Models, frames, lengths or a rate, and the results.
WITHOUT_64_BITS: list[tuple[str, Any, Any, Any]] = [
    *(
        (f"float[3,2] f, int64[2] x => float[u,v] y {{{body}}}", FRAMES, [3, 2],
         eval(wanted))
        for body, wanted in INDEX_TEXTS
    ),
    *(
        (f"""float[2,3] f, int64[2] x => float[2,3] y {{
           n = Unsqueeze(x, axis) {body} g = Cast<to = 1>(m) y = Mul(f, g)}}""",
         np.ones((2, 3), np.float32), [3, 1], [[1, 1, 1], [1, 0, 0]])
        for (body,) in MASKS
    ),
    # The means of two sequences, whose divisor is a length, and a switch by a rate.
    ("""float[3,2] f, int64[2] x => float[2] y {r = ReverseSequence(f, x)
       k = Cast<to = 1>(x) s = ReduceSum<keepdims = 0>(r, zeros) y = Div(s, k)}""",
     FRAMES, [3, 2], [2, 4.5]),
    ("""float[3,2] f, int64 x => float[3,2] y {c = Equal(x, rate) y = If(c) <
       then_branch = g () => (float[3,2] a) {a = Identity(f)},
       else_branch = h () => (float[3,2] b) {b = Neg(f)}>}""",
     FRAMES, 16000, [[0, 1], [2, 3], [4, 5]]),
]  # fmt: skip


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize(("text", "frames", "number", "wanted"), WITHOUT_64_BITS)
def test_lengths_and_rates_need_no_64_bit_mode(
    text: str, frames: Any, number: Any, wanted: Any
) -> None:
    model = prepared(text, **{n: np.array(x) for n, x in NUMBERS.items()})
    for fn in (model.jax_fn, jax.jit(model.jax_fn)):
        for given in (np.array(number), jax.numpy.asarray(number)):
            assert fn(frames, given)[0].tolist() == wanted


NOT_ONLY_INDICES = rows(r"""
int64[2] x => int64[2] y {y = Identity(x)}
int64[2] x => float[2] y {y = Cast<to = 1>(x)}
int64[2] x => bool[2] y {z = Add(x, x) y = Less(z, x)}
int64[2] x => bool[2] y {z = Constant<value_int = 2147483648>() y = Less(z, x)}
int64[2] x => bool[2] y {z = Constant<value_int = 5>() w = Mul(x, z) y = Less(z, w)}
int64[2] x => bool[2] y {z = Constant<value_int = 5>() v = Less(z, x)
  w = Mod(x, z) y = Less(z, w)}
int64[2] x => float[1] y, bool[1] c {z = Constant<value_int = 5>()
  v, w = Split<num_outputs = 2>(x) c = Less(v, z) y = Cast<to = 1>(w)}
bool c, int64[2] x => bool[2] y {y = If(c) <
  then_branch = g () => (bool[2] a) {z = Mul(x, x) a = Less(z, x)},
  else_branch = h () => (bool[2] b) {z = Constant<value_int = 5>() b = Less(z, x)}>}
bool c, int64[2] x => float[2] y {z = If(c) <
  then_branch = g () => (int64[2] a) {a = Identity(x)},
  else_branch = h () => (int64[2] b) {b = Neg(x)}> y = Cast<to = 1>(z)}
bool c, int64[2] x => bool[n,2] y {m = Constant<value_int = 5>()
  v, w, y = Loop(m, c, x, c) <body =
  g (int64 i, bool a, int64[2] s, bool p) => (bool a, int64[2] u, bool p, bool[2] b) {
    u = Mul(s, s) b = Less(i, u)}>}
bool c, int64 x => bool[n] y {v, y = Loop(x, c, c) <body =
  g (int64 i, bool a, bool p) => (bool a, bool p, bool b) {b = Less(i, x)}>}
int64[2] x => bool[2] y {z = Constant<value_int = 5>() y = Scan<num_scan_inputs = 1,
  body = g (int64 s) => (bool a) {p = Mul(s, z) a = Less(s, p)}>(x)}
bool c, int64 x => bool y {y = Loop(, c, c) <body = g (int64 i, bool a, bool p) =>
  (bool d, bool b) {b = Less(i, x) d = Cast<to = 9>(x)}>}
bool c, int64 x => bool y {d = Cast<to = 9>(x) m = Constant<value_int = 5>()
  y = Loop(m, d, c) <body = g (int64 i, bool a, bool p) => (bool a, bool b) {
    b = Less(i, x)}>}
int64[2] x => bool[n,2] y {m = Constant<value_int = 5>()
  z = Constant<value_ints = [0, 0]>() v, y = Loop(m, , z) <body =
  g (int64 i, bool a, int64[2] s) => (bool a, int64[2] u, bool[2] b) {
    u = Identity(x) t = Identity(s) b = Less(t, x)}>}
int64[2] x => bool[2] y {m = Constant<value_int = 0>() v = Loop(m, , x) <body =
  g (int64 i, bool a, int64[2] s) => (bool a, int64[2] u) {
    u = Constant<value_ints = [0, 0]>()}> y = Less(v, x)}
bool c, int64[2] x => float[2] y {z = If(c) <
  then_branch = g () => (int64[2] a) {a = If(c) <
    then_branch = p () => (int64[2] d) {d = Identity(x)},
    else_branch = q () => (int64[2] e) {e = Identity(x)}>},
  else_branch = h () => (int64[2] b) {b = Constant<value_ints = [0, 0]>()}>
  y = Cast<to = 1>(z)}
float[2] f, int64[2] x => float[2] y {s = SequenceConstruct(f) z = SequenceMap<
  body = g (float[2] d) => (float[2] e) {k = Cast<to = 1>(x) e = Add(d, k)}>(s)
  y = ConcatFromSequence<axis = 0>(z)}
int64 x => float y {c = Cast<to = 9>(x) y = If(c) <
  then_branch = g () => (float a) {a = Constant<value_float = 5.0>()},
  else_branch = h () => (float b) {b = Constant<value_float = 6.0>()}>}
bool c, int64[2] x => float[n] y {y = If(c) <
  then_branch = g () => (float[2] a) {a = Cast<to = 1>(x)},
  else_branch = h () => (float[2] b) {b = Cast<to = 1>(x)}>}
""")


@pytest.mark.usefixtures("x32", "with_jit")
@pytest.mark.parametrize("text", [text for (text,) in NOT_ONLY_INDICES])
def test_other_integers_that_jit_has_narrowed(text: str) -> None:
    message = (
        "onnx: `x` must have dtype int64; got int32, to which JAX narrows it outside "
        "of 64-bit mode. Enable the mode, or close over the NumPy array instead of "
    )
    model = prepared(text)
    inputs = {"c": np.array(True), "f": ROW[:2], "x": np.array([3, 2])}
    values = [inputs[name] for name in model.input_names]
    require_error(TypeError, message, jax.jit(model.jax_fn), *values)


INSIDE = """int32[3] x => float[3] y {
  far = Constant<value_int = 8589934592>()
  wide = Cast<to = 7>(x)
  product = Mul(wide, far)
  near = Constant<value_int = 8589934593>()
  rest = Mod(product, near)
  y = Cast<to = 1>(rest)
}"""


@pytest.mark.usefixtures("x32", "with_jit")
def test_integers_inside_of_a_model_have_64_bits() -> None:
    x = np.array([1, 2, 3], np.int32)
    wanted = (x.astype(np.int64) * 2**33) % (2**33 + 1)
    for fn in (prepared(INSIDE).jax_fn, jax.jit(prepared(INSIDE).jax_fn)):
        assert_same_bits(np.asarray(fn(x)[0]), wanted.astype(np.float32))
    (batch,) = jax.vmap(prepared(INSIDE).jax_fn)(np.stack([x, x]))
    assert_same_bits(np.asarray(batch[1]), wanted.astype(np.float32))


@pytest.mark.usefixtures("x32", "with_jit")
def test_traced_floats_of_64_bits_are_refused() -> None:
    text = "float[3] x => float[3] y {d = Cast<to = 11>(x) y = Cast<to = 1>(d)}"
    message = "Cast 'd': Cast: `d` has dtype float64, which needs 64-bit mode"
    model = prepared(text)
    require_error(ValueError, message, jax.jit(model.jax_fn), ROW)
    assert_same_bits(model.run([ROW])[0], ROW)
    with jax.enable_x64(True):
        assert_same_bits(np.asarray(jax.jit(model.jax_fn)(ROW)[0]), ROW)
