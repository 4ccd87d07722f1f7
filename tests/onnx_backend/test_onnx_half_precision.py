"""Models of float32 with inputs or weights of 16 bits, in which they are computed."""

import importlib.resources
import pathlib
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx_models import F, model_of, parse, require_error, rows
from sampling import default_of

from dml_jax import onnx_backend

HALVES = [jnp.bfloat16, jnp.float16]
STEPS = 20
RECOGNISER = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "recogniser.onnx"

pytestmark = pytest.mark.usefixtures("x32", "with_jit")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(F)


# Nodes with sums of many terms, which 16 bits do not hold.
SUMS = rows(
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
y = LSTM<hidden_size = 2>(p, q, r) | floats(200, 1, 3), floats(1, 8, 3), floats(1, 8, 2)
"""
)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("text", "inputs"), SUMS)
def test_sums_are_in_float32(text: str, inputs: str, dtype: Any) -> None:
    """The result is that of float32, rounded once."""
    given = [x.astype(dtype) for x in eval(f"[{inputs}]")]
    wide = [x.astype(F) for x in given]
    model = onnx_backend.prepare(model_of(text, wide, a=np.array(0)))
    (found,) = jax.jit(model.jax_fn)(*given)[:1]
    wanted = jax.jit(model.jax_fn)(*wide)[0].astype(dtype)
    assert found.dtype == dtype
    steps = jnp.finfo(dtype).eps * np.abs(wanted.astype(F))
    assert (np.abs(found.astype(F) - wanted.astype(F)) <= steps + 1e-7).all()


def test_what_is_between_the_operators() -> None:
    """Constants, casts and loops are in the dtype of the input; shapes are exact."""
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
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(F), model.run([x])[0], 0.01)


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
    """The loss after some steps is that of float32; weights stay in float32."""
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
            assert logits.dtype == dtype
            logs = jax.nn.log_softmax(logits.astype(F))
            return -jnp.mean(jnp.take_along_axis(logs, classes[:, None], 1))

        params, values = model.params, []
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
    assert model.apply({"w": brain}, x, x)[0].dtype == jnp.bfloat16
