"""Derivatives where a function has a corner, or is NaN without care."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from jax.test_util import check_grads
from onnx_models import F, add_types, model_of, rows

from dml_jax import onnx_backend

NAN, INF = np.nan, np.inf
ONES = np.ones((1, 1, 2, 2), F)
LINE = F([[[[0, 1, 2]]]])  # an image
NAMES = {"F": F, "np": np, "NAN": NAN, "INF": INF, "ONES": ONES, "LINE": LINE}
# Nodes, the inputs p, q, ..., the one of the derivatives, and those of the sum of y:
# the slopes to the right where two differ, as of torch's grid_sample; 0 for zeros, as
# of jax.numpy.linalg.norm and torch's pow; 0 where all is masked.
CORNERS = rows(r"""
y = GridSample<align_corners = 1>(p, q) | LINE, F([[[[-1, 0], [0, 0]]]]) | 1 |
  [[[[1, 0], [1, 0]]]]
y = GridSample<align_corners = 0>(p, q) | LINE, F([[[[0, 0]]]]) | 1 | [[[[1.5, -0.5]]]]
y = GridSample<align_corners = 1, mode = "cubic">(p, q) | LINE, F([[[[0, 0]]]]) | 1 |
  [[[[1.5, 0]]]]
y = GridSample<align_corners = 1, padding_mode = "border">(p, q) | LINE,
  F([[[[1, 0]]]]) | 1 | [[[[0, 0]]]]
y = LpPool<kernel_shape = [2]>(p) | F([[[0, 0, 4]]]) | 0 | [[[0, 0, 1]]]
y = LpPool<kernel_shape = [2], p = 3>(p) | F([[[0, 0]]]) | 0 | [[[0, 0]]]
y = GlobalLpPool(p) | F([[[0, 0]]]) | 0 | [[[0, 0]]]
y = GlobalLpPool<p = 1>(p) | F([[[2, -3]]]) | 0 | [[[1, -1]]]
y = ReduceL2(p) | F([0, 0]) | 0 | [0, 0]
y = ReduceL2(p) | F([3, -4]) | 0 | F([0.6, -0.8])
y = LpNormalization(p) | F([0, 0]) | 0 | [1, 1]
y = MeanVarianceNormalization<axes = [0]>(p) | F([2, 2]) | 0 | [0, 0]
y = ReduceLogSumExp(p) | F([-INF, -INF]) | 0 | [0, 0]
y = ReduceLogSumExp(p) | F([-INF, 0]) | 0 | [0, 1]
y = Celu(p) | F([-100, 0, 100]) | 0 | F([np.exp(-100), 1, 1])
y = Pow(p, q) | F([0, 2]), F([0]) | 0 | [0, 0]
y = Pow(p, q) | F([0, 2]), F([0, 0]) | 1 | [0, np.log(2)]
s = Softmax(p) n = IsNaN(s) z = Constant<value_float = 0.0>() y = Where(n, z, s) |
  F([-INF, -INF]) | 0 | [0, 0]
s = LogSoftmax(p) n = IsNaN(s) z = Constant<value_float = 0.0>() y = Where(n, z, s) |
  F([-INF, -INF]) | 0 | [0, 0]
y = Attention(p, q, r, s) | ONES, ONES, ONES, np.zeros((2, 2), bool) | 0 | 0 * ONES
y = Attention(p, q, r, s) | ONES, ONES, ONES, np.zeros((2, 2), bool) | 1 | 0 * ONES
y = Attention(p, q, r, s) | ONES, ONES, ONES, F([[-INF, -INF], [0, 0]]) | 1 | 0 * ONES
y = Attention(p, q, r, s) | ONES, ONES, ONES, F([[-INF, -INF], [0, 0]]) | 2 | ONES / 2
y = Attention(p, q, r, , , , s) | ONES, ONES, ONES, np.array([0]) | 0 | 0 * ONES
""")


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(("text", "inputs", "place", "wanted"), CORNERS)
def test_corners(text: str, inputs: str, place: str, wanted: str) -> None:
    given, number = list(map(np.asarray, eval(f"[{inputs}]", NAMES))), int(place)
    model = onnx_backend.prepare(model_of(text, given))

    def total(x: Any) -> Any:
        return jnp.sum(model.jax_fn(*given[:number], x, *given[number + 1 :])[0])

    def both(x: Any) -> Any:
        """The derivatives of both modes."""
        return jax.grad(total)(x), jax.jvp(total, (x,), (jnp.ones_like(x),))[1]

    slopes = eval(wanted, NAMES)
    with jax.enable_x64(True):
        gradient, slope = jax.jit(both)(given[number])
    np.testing.assert_allclose(gradient, slopes, 1e-6, 1e-6)
    np.testing.assert_allclose(slope, np.sum(slopes), 1e-6, 1e-6)


def convolution(attributes: str, given: Any) -> onnx_backend.Model:
    source = model_of(f"y = Conv<{attributes}>(p, q)".replace("<>", ""), given)
    add_types(source, given[:1])
    return onnx_backend.prepare(source)


def gradients_of(model: onnx_backend.Model) -> Any:
    return jax.grad(lambda *given: jnp.sum(model.jax_fn(*given)[0] ** 2), (0, 1))


@pytest.mark.parametrize(
    ("attributes", "x", "weight"),
    [
        ("", (2, 3, 7, 5), (4, 3, 7, 5)),
        ("dilations = [3]", (2, 3, 7), (4, 3, 3)),
        ("strides = [4]", (2, 3, 17), (4, 3, 4)),
        ("strides = [3], pads = [1, 1]", (2, 3, 17), (4, 3, 1)),
        ("strides = [4, 1]", (2, 3, 17, 6), (4, 3, 3, 6)),
    ],
)
def test_convolutions_that_are_products(attributes: str, x: Any, weight: Any) -> None:
    """Where places of the kernel do not overlap, gradients are products of matrices."""
    given = np.zeros(x, F), np.zeros(weight, F)
    gradients = gradients_of(convolution(attributes, given))
    program = str(jax.make_jaxpr(gradients)(*given))
    assert "dot_general" in program
    assert "conv_general_dilated" not in program


@pytest.mark.parametrize(
    ("attributes", "x", "weight"),
    [
        ("strides = [2]", (2, 3, 41), (4, 3, 16)),
        ("strides = [9, 1], pads = [1, 0, 0, 2]", (2, 3, 47, 6), (4, 3, 18, 5)),
        ("strides = [4, 8]", (2, 1, 33, 40), (4, 1, 20, 16)),
    ],
)
def test_strides_that_divide_long_kernels(attributes: str, x: Any, weight: Any) -> None:
    """Gradients are convolutions without strides and dilations."""
    given = np.zeros(x, F), np.zeros(weight, F)
    gradients = gradients_of(convolution(attributes, given))
    program = str(jax.make_jaxpr(gradients)(*given))
    steps = re.findall(r"(?:window_strides|[lr]hs_dilation)=\(([^)]*)\)", program)
    assert {*re.findall(r"\d+", " ".join(steps))} == {"1"}


def test_channels_are_last_between_convolutions() -> None:
    """XLA's program of a training step has no image with channels before its axes."""
    text = """a = Conv<pads = [1, 1, 1, 1]>(p, q) b = Mul(a, r)
    c = BatchNormalization(b, s, s, s, s) d = HardSwish(c)
    e = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d) y = Conv(e, t)"""
    shapes = (2, 3, 12, 10), (5, 3, 3, 3), (5, 1, 1), (5,), (7, 5, 2, 2)
    x, *weights = given = [np.ones(shape, F) for shape in shapes]
    source = model_of(text, given)
    add_types(source, given[:1])
    model = onnx_backend.prepare(source)

    def loss(*weights: Any) -> Any:
        return jnp.sum(model.jax_fn(x, *weights)[0] ** 2)

    step = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
    program = step.lower(*weights).compile().as_text()
    assert re.search(r"f32\[2,(12|6),(10|5),5\]", program)
    assert not re.search(r"f32\[2,5,(12|6),(10|5)\]", program)


GAPS = [
    ("dilations = [2, 2]", (2, 1, 12, 9), (8, 1, 3, 3)),
    ("dilations = [2, 1], strides = [1, 2], pads = [1, 0, 2, 1]", (2, 2, 12, 9),
     (16, 2, 3, 3)),
    ("strides = [3]", (2, 1, 29), (8, 1, 8)),
    ("strides = [2], dilations = [3]", (2, 3, 29), (8, 3, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("attributes", "x", "weight"), GAPS)
def test_convolutions_with_gaps_on_a_gpu(attributes: str, x: Any, weight: Any) -> None:
    """The program for GPUs has products of matrices, that for CPUs convolutions."""
    given = np.zeros(x, F), np.zeros(weight, F)
    gradients = gradients_of(convolution(attributes, given))
    traced = jax.jit(gradients).trace(*given)
    for platform, has_convolutions in (("cuda", False), ("cpu", True)):
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("stablehlo.convolution" in program) == has_convolutions


@pytest.mark.parametrize(("attributes", "x", "weight"), GAPS)
def test_results_on_a_gpu(
    attributes: str, x: Any, weight: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The formulation for GPUs, run here, has the results and derivatives of XLA's."""
    random = np.random.default_rng(0)
    given = [random.standard_normal(shape).astype(F) for shape in (x, weight)]
    model = convolution(attributes, given)

    def run(*given: Any) -> Any:
        y, backward = jax.vjp(lambda *given: model.jax_fn(*given)[0], *given)
        return y, backward(y)

    wanted, expected = jax.jit(run)(*given)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, cuda, **_: cuda(*x))
    found, ours = jax.jit(lambda *given: run(*given))(*given)
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
    for y, z in zip(ours, expected, strict=True):
        np.testing.assert_allclose(y, z, 1e-4, 1e-4)


# Updates of different elements, of one element, and with zeros.
PRODUCTS = rows("""
[[0], [2]] | [5, 7]
[[0], [0]] | [5, 7]
[[0], [0]] | [5, 0]
[[0], [0]] | [0, 0]
""")


@pytest.mark.parametrize("kind", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize(("places", "updates"), PRODUCTS)
def test_products_of_updates(places: str, updates: str, kind: str) -> None:
    x, u, n = np.array([1.0, -2, 3]), np.array(eval(updates), float), eval(places)
    index = np.array(n) if kind == "ScatterND" else np.ravel(n)
    source = model_of(f'y = {kind}<reduction = "mul">(p, q, r)', [x, index, u])
    model = onnx_backend.prepare(source)

    def result(x: Any, updates: Any) -> Any:
        return model.jax_fn(x, index, updates)[0]

    with jax.enable_x64(True):
        check_grads(result, (x, u), 1, eps=1e-4)


# Nodes whose results are elements of p, each of them some thousand times.
REPEATED = rows("""
y = Gather(p, q) | np.zeros(4096, int)
y = GatherElements(p, q) | np.zeros(4096, int)
float16[k] y {y = GatherND(p, q)} | np.zeros((4096, 1), int)
n = Constant<value_ints = [8191]>() y = Resize<mode = "nearest">(p, , , n) | 0
y = DequantizeLinear<axis = 0, block_size = 4096>(q, p) | np.ones(8192, np.int8)
""")


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
@pytest.mark.parametrize(("text", "inputs"), REPEATED)
def test_gradients_of_repeated_elements(text: str, inputs: str, dtype: Any) -> None:
    """They are counts, which sums of 16 bits do not reach."""
    given = [np.array([0, 1], dtype), *eval(f"[{inputs}]")]
    text = text.replace("float16", np.dtype(dtype).name)
    model = onnx_backend.prepare(model_of(text, given))

    def total(x: Any) -> Any:
        return jnp.sum(model.jax_fn(x, *given[1:])[0].astype(F)) / 64

    (places,) = model.run(given)
    wanted = np.bincount(places.astype(int), minlength=2) / 64
    gradient = jax.jit(jax.grad(total))(given[0])
    assert_same_bits(np.asarray(gradient), wanted.astype(dtype))
