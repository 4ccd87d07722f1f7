"""Models of float32 with inputs or weights of 16 bits, in which products are."""

import importlib.resources
import pathlib
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx_models import F, model_of, parse, prepared, require_error, rows
from sampling import default_of

from dml_jax import onnx_backend

HALVES = [jnp.bfloat16, jnp.float16]
NAMES = {F: "f32", jnp.bfloat16: "bf16", jnp.float16: "f16"}
STEPS = 20
RECOGNISER = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "recogniser.onnx"

pytestmark = pytest.mark.usefixtures("x32", "with_jit")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(F)


def factor_dtypes(lowered: jax.stages.Lowered) -> set[str]:
    """The dtypes of what the products of a program multiply."""
    lines = lowered.as_text().splitlines()
    names = "stablehlo.dot_general", "stablehlo.convolution"
    types = [line.split(" : (")[1] for line in lines if any(n in line for n in names)]
    assert types
    return {
        t for text in types for t in re.findall(r"x([^x>]+)>", text.split(" -> ")[0])
    }


# Nodes whose results 16 bits do not hold: sums, and small numbers beside large ones.
OTHERS = rows(
    """
y = Softmax(p) | floats(2, 3000)
y = LogSoftmax(p) | floats(2, 3000)
y = ReduceSum(p) | 1 + floats(2, 3000)
y = ReduceMean(p) | 1 + floats(2, 3000)
y = CumSum(p, a) | 1 + floats(3000)
y = GlobalAveragePool(p) | 1 + floats(1, 2, 3000)
y = MeanVarianceNormalization<axes = [2]>(p) | 1 + floats(1, 2, 3000)
y = LayerNormalization(p, q) | 1 + floats(2, 3000), np.ones(3000, F)
y = InstanceNormalization(p, q, r) | 1 + floats(1, 2, 3000), F([1, 1]), F([0, 0])
y = Add(p, q) | F([0.5]), F([1e-7])
"""
)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("text", "inputs"), OTHERS)
def test_others_than_products(text: str, inputs: str, dtype: Any) -> None:
    """The result is that of inputs of float32."""
    given = [x.astype(dtype) for x in eval(f"[{inputs}]")]
    wide = [x.astype(F) for x in given]
    model = onnx_backend.prepare(model_of(text, wide, a=np.array(0)))
    found = jax.jit(model.jax_fn)(*given)
    for x, y in zip(found, jax.jit(model.jax_fn)(*wide), strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-6)  # sums of another order


# Of each dtype, 3000 products of numbers that it has, and a bias of float32.
PRODUCTS = rows(
    """
y = MatMul(p, q) | floats(2, 3000), floats(3000, 4)
y = Gemm(p, q, r) | floats(2, 3000), floats(3000, 4), floats(4)
y = Einsum<equation = "ab,cb->ac">(p, q) | floats(2, 3000), floats(4, 3000)
y = Conv<kernel_shape = [9]>(p, q, r) | floats(2, 300, 9), floats(5, 300, 9), floats(5)
y = ConvTranspose<kernel_shape = [1]>(p, q) | floats(2, 3000, 2), floats(3000, 5, 1)
"""
)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("text", "inputs"), PRODUCTS)
def test_products(text: str, inputs: str, dtype: Any) -> None:
    """Sums are rounded once, and a bias is added in float32."""
    first, *others = (jnp.asarray(x).astype(dtype) for x in eval(f"[{inputs}]"))
    wide = [np.asarray(x.astype(F)) for x in (first, *others)]
    fn = jax.jit(onnx_backend.prepare(model_of(text, wide)).jax_fn)
    found, wanted = fn(first, *wide[1:])[0], np.asarray(fn(*wide)[0])
    biases = [np.reshape(x, (-1, *[1] * (wanted.ndim - 2))) for x in wide[2:]]
    assert found.dtype == F
    error = np.abs(np.asarray(found) - wanted)
    assert (error <= jnp.finfo(dtype).eps * np.abs(wanted - sum(biases)) + 1e-4).all()
    assert factor_dtypes(fn.lower(first, *wide[1:])) == {NAMES[dtype]}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_products(kind: str, gates: int, dtype: Any) -> None:
    """States are in float32, so that no error grows with the number of steps."""
    # With fewer units, jaxlib 0.10 cannot compile a bfloat16 product in a loop.
    text = f"y = {kind}<hidden_size = 16>(p, q, r)"
    wide = [floats(400, 2, 3), floats(1, 16 * gates, 3), floats(1, 16 * gates, 16) / 4]
    fn = jax.jit(onnx_backend.prepare(model_of(text, wide)).jax_fn)
    given = [x.astype(dtype) for x in wide]
    found, wanted = fn(*given)[0], fn(*(x.astype(F) for x in given))[0]
    assert found.dtype == F
    np.testing.assert_allclose(found, wanted, atol=jnp.finfo(dtype).eps)
    assert factor_dtypes(fn.lower(*given)) == {NAMES[dtype]}


def test_positions() -> None:
    """Products without sums are exact, such as the angles of rotary embeddings."""
    text = """int64[n,1] p, float[1,3] f => float[n,3] y {
      x = Cast<to = 1>(p) y = MatMul(x, f)}"""
    positions, frequencies = np.arange(1000)[:, None], floats(1, 3).astype(jnp.bfloat16)
    (found,) = jax.jit(prepared(text).jax_fn)(positions.astype(np.int32), frequencies)
    np.testing.assert_allclose(found, positions * frequencies.astype(F), 1e-6)


def test_what_is_between_the_operators() -> None:
    """Constants, casts and loops are in float32."""
    source = parse(
        """float[n] x => float[m] y {
          c = Constant<value_float = 0.1>()
          i = Cast<to = 7>(x)
          f = Cast<to = 1>(i)
          s = Sum(x, f, c)
          l = Loop(three, , s) <body = b (int64 n, bool t, float[m] v) =>
                                          (bool t2, float[m] w)
            { t2 = Identity(t) w = Mul(v, two) }>
          y = Resize(l, , scales)
        }""",
        three=np.array(3),
        two=F(2),
        scales=F([1.3]),
    )
    model, x = onnx_backend.prepare(source), np.arange(10, dtype=F)
    (found,) = jax.jit(model.jax_fn)(x.astype(jnp.bfloat16))
    assert found.dtype == F
    np.testing.assert_allclose(found, model.run([x])[0], 1e-6)


# Fine-tuning --------------------------------------------------------------------------


# A model, its inputs, the classes, and a rate of learning.
Task: TypeAlias = tuple[onnx.ModelProto, list[np.ndarray], np.ndarray, float]


def recogniser() -> Task:
    """GRUs, on utterances."""
    path = importlib.resources.files("dml_jax") / "examples" / "japanese_vowels.npz"
    with path.open("rb") as file, np.load(file) as arrays:
        lengths = arrays["train_lengths"].astype(np.int64)
        x = np.zeros((len(lengths), 29, 12), F)
        x[np.arange(29) < lengths[:, None]] = arrays["train_frames"]
        speakers = arrays["train_speakers"]
    return onnx.load(RECOGNISER), [x, lengths.astype(np.int32)], speakers, 0.02


def images() -> Task:
    """Convolutions with batch normalization, on noise with a mean."""
    source = parse(
        """float[n, 1, 12, 12] x => float[n, 4] y {
          c = Conv<pads = [1, 1, 1, 1]>(x, k1)
          b = BatchNormalization(c, one, zero, zero, one)
          r = Relu(b)
          d = Conv<strides = [2, 2]>(r, k2)
          s = Sigmoid(d)
          g = GlobalAveragePool(s)
          f = Flatten(g)
          y = Gemm(f, w, bias)
        }""",
        k1=floats(8, 1, 3, 3) / 3,
        k2=floats(8, 8, 3, 3) / 8,
        w=floats(8, 4),
        bias=np.zeros(4, F),
        one=np.ones(8, F),
        zero=np.zeros(8, F),
    )
    classes = np.arange(32) % 4
    x = floats(32, 1, 12, 12) + classes.reshape(-1, 1, 1, 1)
    return source, [x.astype(F)], classes, 0.05


def tokens() -> Task:
    """Attention and layer normalization, on tokens; the weights say the dtype."""
    source = parse(
        """int64[n, 6] t => float[n, 3] y {
          x = Gather(table, t)
          q = MatMul(x, wq)
          k = MatMul(x, wk)
          a = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, x)
          s = Add(x, a)
          l = LayerNormalization(s, scale)
          m = ReduceMean<keepdims = 0>(l, axis)
          y = MatMul(m, w)
        }""",
        table=floats(20, 8),
        wq=floats(8, 8) / 3,
        wk=floats(8, 8).T / 3,
        scale=np.ones(8, F),
        axis=np.array([1]),
        w=floats(8, 3),
    )
    given = np.random.default_rng(1).integers(0, 20, (32, 6), np.int32)
    return source, [given], given[:, 0] % 3, 0.05


@pytest.mark.parametrize(
    "task", default_of([recogniser, images, tokens], images, tokens)
)
def test_fine_tuning(task: Callable[[], Task]) -> None:
    """The loss is that of float32, weights stay so, and products do not."""
    source, inputs, classes, rate = task()
    model = onnx_backend.prepare(source)

    def losses(dtype: Any) -> list[float]:
        given = [x.astype(dtype) if x.dtype == F else x for x in inputs]
        is_told = any(x.dtype == dtype for x in given)

        @jax.jit
        @jax.value_and_grad
        def loss(params: Any) -> Any:
            if not is_told:
                params = jax.tree.map(lambda w: w.astype(dtype), params)
            (logits,) = model.apply(params, *given)
            assert logits.dtype == F
            logs = jax.nn.log_softmax(logits)
            return -jnp.mean(jnp.take_along_axis(logs, classes[:, None], 1))

        params, values = model.params, []
        if task is not recogniser:  # whose products are in a recurrent layer, too
            assert factor_dtypes(loss.lower(params)) == {NAMES[dtype]}
        for _ in range(STEPS + 1):
            value, gradient = loss(params)
            assert all(g.dtype == F for g in jax.tree.leaves(gradient))
            params = jax.tree.map(lambda w, g: w - rate * g, params, gradient)
            values.append(float(value))
        return values

    wanted, found = losses(F), losses(jnp.bfloat16)
    assert wanted[-1] < 0.95 * wanted[0]
    assert abs(found[-1] - wanted[-1]) < 0.02 * wanted[-1]


def test_what_is_refused() -> None:
    model = onnx_backend.prepare(
        parse(
            "float[n] x, float[n] z => float[n] y {s = Add(x, z) y = Mul(s, w)}",
            w=F([2, 3]),
        )
    )
    x, half, brain = np.zeros(2, F), np.zeros(2, np.float16), jnp.zeros(2, jnp.bfloat16)
    require_error(
        TypeError,
        "onnx: inputs and `params` of 16 bits for float32 must have one dtype; got "
        "bfloat16 and float16",
        lambda: model.jax_fn(half, brain),
    )
    with pytest.raises(TypeError, match="must have dtype float32; got float64"):
        model.jax_fn(x.astype(np.float64), brain)
    with pytest.raises(TypeError, match="must have dtype float32; got float16"):
        model.run([half, half])
    assert model.apply({"w": brain}, x, x)[0].dtype == F
