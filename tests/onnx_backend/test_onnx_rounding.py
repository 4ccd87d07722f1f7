"""Derivatives through quantization: those of the operators that do not round."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx_models import F, parse, require_close, require_same, runtime_outputs

from dml_jax import onnx_backend

pytestmark = pytest.mark.usefixtures("optimized")

RANDOM = np.random.default_rng(1)
X = RANDOM.uniform(-2, 2, (3, 6)).astype(F)
IMAGES = RANDOM.uniform(-2, 2, (2, 2, 4, 3)).astype(F)
WEIGHTS: dict[str, Any] = {
    "w": RANDOM.integers(-9, 9, (6, 4)).astype(np.int8),
    "k": RANDOM.integers(-9, 9, (3, 2, 2, 2)).astype(np.int8),
    "w_s": F(0.25),
    "w_z": np.int8(1),
    "x_s": F(1 / 32),
    "x_z": np.uint8(120),
    "y_s": F(0.5),
    "y_z": np.uint8(120),
}
W = (WEIGHTS["w"] - F(1)) / 4
K = (WEIGHTS["k"] - F(1)) / 4


def dense(x: Any) -> Any:
    return jnp.matmul(x, W, precision="highest")


def convolution(x: Any) -> Any:
    return jax.lax.conv(x, K, (1, 1), "VALID", precision="highest")


def identity(x: Any) -> Any:
    return x


ROUNDED = "q = QuantizeLinear(x, x_s, x_z)"
RANGED = "q, s, z = DynamicQuantizeLinear(x) f = Mul(s, w_s)"
# Nodes in the file, and the function that does not round.
LAYERS: dict[str, tuple[str, Any, np.ndarray]] = {
    "DynamicQuantizeMatMul": (
        "y = com.microsoft.DynamicQuantizeMatMul(x, w, w_s, w_z)", dense, X),
    "MatMulInteger": (
        f"{RANGED} i = MatMulInteger(q, w, z, w_z) c = Cast<to = 1>(i) y = Mul(c, f)",
        dense, X),
    "MatMulIntegerToFloat": (
        f"{RANGED} y = com.microsoft.MatMulIntegerToFloat(q, w, s, w_s, z, w_z)",
        dense, X),
    "DequantizeLinear": (
        f"""{ROUNDED} d = DequantizeLinear(q, x_s, x_z)
        v = DequantizeLinear(w, w_s, w_z) y = MatMul(d, v)""", dense, X),
    "QLinearMatMul": (
        f"""{ROUNDED} p = QLinearMatMul(q, x_s, x_z, w, w_s, w_z, y_s, y_z)
        y = DequantizeLinear(p, y_s, y_z)""", dense, X),
    "QLinearAdd": (
        f"""{ROUNDED} n = com.microsoft.QLinearAdd(q, x_s, x_z, q, x_s, x_z, y_s, y_z)
        p = com.microsoft.QLinearConcat<axis = 1>(y_s, y_z, q, x_s, x_z, n, y_s, y_z)
        y = DequantizeLinear(p, y_s, y_z)""",
        lambda x: jnp.concatenate([x, 2 * x], 1), X),
    "QLinearGlobalAveragePool": (
        f"""{ROUNDED} p = com.microsoft.QLinearGlobalAveragePool(q, x_s, x_z, y_s, y_z)
        y = DequantizeLinear(p, y_s, y_z)""",
        lambda x: x.mean((2, 3), keepdims=True), IMAGES),
    "ConvInteger": (
        f"{RANGED} i = ConvInteger(q, k, z, w_z) c = Cast<to = 1>(i) y = Mul(c, f)",
        convolution, IMAGES),
    "QLinearConv": (
        f"""{ROUNDED} p = QLinearConv(q, x_s, x_z, k, w_s, w_z, y_s, y_z)
        y = DequantizeLinear(p, y_s, y_z)""", convolution, IMAGES),
    "integers that are moved": (
        f"""{ROUNDED} t = Transpose<perm = [1, 0]>(q) i = Identity(t)
        fixed = Constant<value = uint8[1,3] {{120, 130, 140}}>()
        c = Concat<axis = 0>(i, i, fixed) row = Constant<value_ints = [0]>()
        u = Unsqueeze(c, row) pads = Constant<value_ints = [0, 1, 0, 0, 0, 0]>()
        p = Pad(u, pads, x_z) m = MaxPool<kernel_shape = [1]>(p) v = Squeeze(m, row)
        order = Constant<value_ints = [3, 0, 5, 13]>() g = Gather(v, order)
        h, l = Split<num_outputs = 2>(g) w_shape = Constant<value_ints = [2, 2, 3]>()
        e = Expand(h, w_shape) f = Flatten<axis = 2>(e)
        shape = Constant<value_ints = [2, 6]>() r = Reshape(f, shape)
        ends = Constant<value_ints = [2]>() s = Slice(r, row, ends, row)
        y = DequantizeLinear(s, x_s, x_z)""",
        lambda x: jnp.tile(jnp.concatenate([x[:, 2], 0 * x[:, 0]]), (2, 1)), X),
    "a branch": (
        f"""{ROUNDED} yes = Constant<value = bool {{1}}>() sum = ReduceSum(x)
        none = Constant<value_float = -1e9>() more = Greater(sum, none)
        both = And(more, yes) y = If(both) <
          then_branch = t () => (float[3,6] d) {{d = DequantizeLinear(q, x_s, x_z)}},
          else_branch = e () => (float[3,6] n) {{n = Neg(x)}}>""", identity, X),
    "scales of channels": (
        """scales = Constant<value = float[3] {0.0625, 0.03125, 0.125}>()
        zeros = Constant<value = uint8[3] {128, 120, 100}>()
        q = QuantizeLinear<axis = 0>(x, scales, zeros)
        y = DequantizeLinear<axis = 0>(q, scales, zeros)""", identity, X),
    "float8": (
        """o = Constant<value_float = 1.0>()
        q = QuantizeLinear<output_dtype = 17>(x, o) y = DequantizeLinear(q, o)""",
        identity, X),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_rounding_passes_derivatives_on(name: str) -> None:
    nodes, smooth, x = LAYERS[name]
    shape = ",".join(map(str, x.shape))
    rank = smooth(x).ndim
    text = f"float[{shape}] x => float[{','.join('abcd'[:rank])}] y {{{nodes}}}"
    source = parse(text, **WEIGHTS)
    model = onnx_backend.prepare(source)
    wanted = runtime_outputs(source, [x], is_optimized=False)
    require_close(model.run([x]), wanted, 2e-6)
    direction = np.cos(7 * x)
    cotangent = np.cos(np.arange(wanted[0].size, dtype=F)).reshape(wanted[0].shape)

    @jax.jit
    def both(x: Any) -> Any:
        """The derivatives of both modes."""
        _, slope = jax.jvp(lambda x: model.jax_fn(x)[0], (x,), (direction,))
        _, pull_back = jax.vjp(lambda x: model.jax_fn(x)[0], x)
        return slope, pull_back(cotangent)[0]

    slope, gradient = both(x)
    # The functions are linear, so that a difference is exact.
    difference = (smooth(x + direction) - smooth(x - direction)) / 2
    np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-5)
    (wanted,) = jax.vjp(smooth, x)[1](cotangent)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-5)


def test_scales_of_ranges_are_rounded_once() -> None:
    text = "float[3,6] x => uint8[3,6] y, float s, uint8 z {"
    source = parse(text + "y, s, z = DynamicQuantizeLinear(x)}")
    model = onnx_backend.prepare(source)
    for x in RANDOM.normal(0, 3, (20, 3, 6)).astype(F):
        require_same(model.run([x]), runtime_outputs(source, [x]))


def test_outside_of_the_range_derivatives_are_0() -> None:
    nodes = f"{ROUNDED} y = DequantizeLinear(q, x_s, x_z)"
    source = parse(f"float[6] x => float[6] y {{{nodes}}}", **WEIGHTS)
    # The least and the largest number are -3.75 and 4.21875.
    x = F([-np.inf, -4, -3.75, 0.01, 4.21875, 9])
    model = onnx_backend.prepare(source)
    (wanted,) = runtime_outputs(source, [x])
    for y in (model.run([x])[0], model.jax_fn(x)[0]):
        assert (
            y.tolist() == wanted.tolist() == [-3.75, -3.75, -3.75, 0, 4.21875, 4.21875]
        )
    gradient = jax.grad(lambda x: model.jax_fn(x)[0].sum())(x)
    assert gradient.tolist() == [0, 0, 1, 1, 1, 0]


def test_derivatives_for_weights_that_are_rounded() -> None:
    """As in a file of quantization-aware training, whose weights are floats."""
    nodes = """v_q = QuantizeLinear(v, w_s, w_z) v_d = DequantizeLinear(v_q, w_s, w_z)
      y = MatMul(x, v_d)"""
    weights = {**WEIGHTS, "v": W + F(0.01)}
    source = parse(f"float[3,6] x => float[3,4] y {{{nodes}}}", **weights)
    model = onnx_backend.prepare(source)
    gradient = jax.grad(lambda p: model.apply(p, X)[0].sum())({"v": weights["v"]})
    np.testing.assert_allclose(gradient["v"], X.T @ np.ones((3, 4), F), rtol=1e-5)
