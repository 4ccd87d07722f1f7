"""Models whose results are those of ONNX Runtime's CPU provider, and those that differ.

ONNX's own tests are in `test_onnx_nodes`. What is here they do not have: older versions,
other attributes, operators of Microsoft, and chains.
"""

import itertools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import F, model_of, require_runtime, runtime_outputs
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[attr-defined]
from sampling import default_of

from dml_jax import onnx_backend

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(F)


def integers(dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max, shape, dtype, endpoint=True)


LINE, IMAGE, SIGNAL = floats(2, 3, 50), floats(2, 3, 9, 10), floats(2, 50, 1)
BYTES = integers("uint8", 2, 3, 9, 10)
BYTE = [np.array(n, np.uint8) for n in range(10)]
FRAMES = np.arange(-6, 6, dtype=F).reshape(4, 3) / 2
M = np.array([[1, 5, 5], [7, 2, 7]], F)
LARGE = np.array([1000000001, 1000000003], np.int32)
NOT_FINITE = np.array([np.inf, -np.inf, 1], F)
WINDOW = "kernel_shape = [3, 2], strides = [2, 3], pads = [0, 1, 1, 0], ceil_mode = 1"
SCALES = "s = Constant<value: tensor = float[4] {1, 1, 0.7, 2.5}>()"
LOOKUP = "d = Constant<value_floats = [5.0, 6.0, 7.0]>()"
KEPT = "c = Constant<value: tensor = bool[3] {1, 0, 1}>() y = Compress"
# Nodes and the inputs p, q, r, ...
IMAGES: dict[str, tuple[Any, ...]] = {
    **{
        f"{kind}, a last window": (f"y = {kind}<{WINDOW}>(p)", IMAGE)
        for kind in ("MaxPool", "AveragePool", "LpPool")
    },
    "AveragePool, dilations": (
        "y = AveragePool<kernel_shape = [3, 2], dilations = [2, 3]>(p)",
        IMAGE,
    ),
    "AveragePool, padding that counts": (
        f"y = AveragePool<{WINDOW}, count_include_pad = 1>(p)",
        IMAGE,
    ),
    **{
        f"{kind}, a wide window": (f"y = {kind}<kernel_shape = [20]>(p)", LINE)
        for kind in ("MaxPool", "AveragePool")
    },
    "MaxPool, the places": (
        "y, i = MaxPool<kernel_shape = [3, 2], pads = [1, 1, 1, 1], strides = [2, 2]>"
        "(p)",
        IMAGE,
    ),
    **{
        f"{kind} of opset 9": (f"@9 y = {kind}(p)", IMAGE)
        for kind in ("GlobalMaxPool", "GlobalLpPool", "GlobalAveragePool")
    },
    "Resize, cubic": (
        f'@19 {SCALES} y = Resize<mode = "cubic", exclude_outside = 1>(p, , s)',
        IMAGE,
    ),
    "Resize, smoothed": (
        f'@19 {SCALES} y = Resize<mode = "linear", antialias = 1>(p, , s)',
        IMAGE,
    ),
    **{
        f"Resize of opset 10, {mode}": (
            f'@10 {SCALES} y = Resize<mode = "{mode}">(p, s)',
            IMAGE,
        )
        for mode in ("nearest", "linear")
    },
    "Resize from one element": (
        'y = Resize<mode = "linear">(p, , q)',
        *(np.ones((1, 3), F), np.array([0.5, 2.0], F)),
    ),
    "Resize of nothing, cubic": (
        'y = Resize<mode = "cubic">(p, , q)',
        *(np.ones((3, 0), F), np.array([2.0, 1.0], F)),
    ),
    "Resize of nothing": (
        "y = Resize(p, , q)",
        *(np.ones((0, 2), F), np.array([2.0, 2.0], F)),
    ),
    "GridSample, reflected": (
        'y = GridSample<mode = "cubic", padding_mode = "reflection">(p, q)',
        *(IMAGE, 1.3 * floats(2, 4, 5, 2)),
    ),
    "ConvTranspose, groups": (
        "y = ConvTranspose<group = 3, pads = [1, 0, 2, 1], strides = [2, 1]>(p, q)",
        *(IMAGE, floats(3, 2, 3, 2)),
    ),
    "ConvTranspose, a shape": (
        "y = ConvTranspose<strides = [2, 3], output_shape = [18, 30]>(p, q)",
        *(IMAGE, floats(3, 2, 3, 2)),
    ),
    "ConvTranspose, the largest shape": (
        "y = ConvTranspose<strides = [3], output_shape = [8]>(p, q)",
        *(floats(1, 1, 2), floats(1, 2, 3)),
    ),
    "ConvTranspose of nothing": (
        "y = ConvTranspose(p, q)",
        *(floats(1, 1, 0), floats(1, 2, 3)),
    ),
    **{
        f"Conv, depthwise{options}": (
            f"y = Conv<group = 4{options}>(p, q, r)",
            *(floats(2, 4, 9, 8), floats(4, 1, 3, 2), floats(4)),
        )
        for options in (
            "",
            ", strides = [2, 3], pads = [1, 0, 2, 1]",
            ', strides = [2, 2], auto_pad = "SAME_UPPER"',
            ", dilations = [2, 3], pads = [0, 2, 0, 1]",
        )
    },
    **{
        f"Conv, {sizes}{options}": (
            f"y = Conv{options}(p, q, r)",
            *(floats(2, 4, *sizes), floats(6, 4, *kernel), floats(6)),
        )
        for sizes, kernel, options in (
            ((9, 1), (3, 1), ""),
            ((1, 9), (1, 3), "<strides = [2, 3]>"),
            ((1, 1), (1, 1), ""),
            ((9, 1), (3, 1), "<pads = [1, 1, 0, 0]>"),
            ((1, 9, 1), (1, 2, 1), "<dilations = [1, 2, 1]>"),
        )
    },
    "LpNormalization of zeros": (
        "@21 y = LpNormalization(p)",
        np.array([[0, 0, 0], [3, 0, 4]], F),
    ),
    **{
        f"STFT, onesided = {onesided}": (
            f"n = Constant<value_int = 5>() y = STFT<onesided = {onesided}>(p, n, q)",
            *(SIGNAL, floats(16)),
        )
        for onesided in (0, 1)
    },
    "DFT of a longer signal": (
        "@20 n = Constant<value_int = 12>() y = DFT(p, n)",
        floats(2, 9, 1),
    ),
    "DFT of pairs along the first axis": (
        "@17 y = DFT<axis = 0, inverse = 1>(p)",
        floats(2, 9, 2),
    ),
    "RotaryEmbedding": (
        "@23 y = RotaryEmbedding<num_heads = 3>(p, q, q)",
        *(floats(2, 5, 12), floats(2, 5, 2)),
    ),
    "Attention": (
        "@23 y = Attention<q_num_heads = 3, kv_num_heads = 3, is_causal = 1>(p, p, p)",
        floats(2, 5, 12),
    ),
    "Attention, fewer keys": (
        "@23 y = Attention<q_num_heads = 2, kv_num_heads = 1>(p, q, r)",
        *(floats(2, 3, 8), floats(2, 5, 4), floats(2, 5, 6)),
    ),
}
OTHERS: dict[str, tuple[Any, ...]] = {
    "ConvInteger": (
        "y = ConvInteger<pads = [1, 1, 1, 1]>(p, q, r, s)",
        *(BYTES, integers("uint8", 4, 3, 3, 2), np.array(120, np.uint8), BYTE[7]),
    ),
    "ConvInteger, sums of more than 24 bits": (
        "y = ConvInteger(p, q, r, r)",
        *(BYTES | 127, integers("uint8", 4, 3, 9, 10) | 200, BYTE[0]),
    ),
    "QuantizeLinear, scales of one element": (
        "@21 y = QuantizeLinear(p, q, r)",
        *(M, np.array([0.5], F), BYTE[1]),
    ),
    "MatMulInteger, zero points of columns": (
        "y = MatMulInteger(p, q, r, s)",
        *(integers("uint8", 3, 4), integers("uint8", 4, 2), BYTE[1]),
        integers("uint8", 2),
    ),
    **{
        f"{kind} used as an index": (
            f"i = {kind}<axis = 1>(p) y = GatherElements<axis = 1>(p, i)",
            M,
        )
        for kind in ("ArgMax", "ArgMin")
    },
    "the last one of equal elements": (
        "y = ArgMax<axis = 1, select_last_index = 1>(p)",
        M,
    ),
    "Hardmax": ("y = Hardmax(p)", M),
    "Hardmax of nothing": ("y = Hardmax(p)", np.zeros((2, 0), F)),
    "a table of elements": (
        f"{LOOKUP} y = GatherElements(d, p)",
        np.array([2, 0], np.int32),
    ),
    "a table of slices": (
        f"{LOOKUP} j = Cast<to = 7>(p) y = GatherND(d, j)",
        np.array([[2], [0]], np.int32),
    ),
    "columns": (f"{KEPT}<axis = 1>(p, c)", M),
    "columns from the end": (f"{KEPT}<axis = -1>(p, c)", M),
    "elements": (f"{KEPT}(p, c)", M),
    "statistics of a batch": (
        "@9 y, m, v, n, w = BatchNormalization(p, q, q, q, q)",
        *(M, np.array([1, 2, 3], F)),
    ),
    "a scale for each element": (
        "@7 y = BatchNormalization<spatial = 0>(p, q, q, q, q)",
        *(np.stack([M, -M]), M),
    ),
    "a power beyond 24 bits": (
        "y = Pow(p, q)",
        *(np.array([2**24 + 1, 2053], np.int32), np.array([1, 2], F)),
    ),
    "powers of integers": (
        "y = Pow(p, q)",
        np.array([2, 1, -1, 3, -1, -2], np.int32),
        np.array([-1, -1, -1, -2, -2, 3], np.int32),
    ),
    **{
        f"{kind} of integers beyond 24 bits": (f"y = {kind}(p)", LARGE)
        for kind in ("ReduceMean", "ReduceL2", "ReduceLogSumExp")
    },
    "a mean that is truncated": ("y = ReduceMean(p)", np.array([-3, -4], np.int32)),
    "axes of a maximum": ("y = ReduceMax(p, q)", M, np.array([0, 1])),
    "slices at indices without elements": (
        "j = Cast<to = 7>(q) y = GatherND(p, j)",
        *(M, np.zeros((2, 0), np.int32)),
    ),
    "updates at indices without elements": (
        'j = Cast<to = 7>(q) y = ScatterND<reduction = "add">(p, j, r)',
        *(M, np.zeros((2, 0), np.int32), np.stack([M, -2 * M])),
    ),
    "finite bounds": ("@9 y = Clip(p)", NOT_FINITE),
    "a finite bound": ("@9 y = Clip<min = 0.0>(p)", NOT_FINITE),
    "bounds of one element": ("y = Clip(p, q, q)", M[0], M[1, :1]),
    "axes that are scalars": ("y = Unsqueeze(p, q)", M, np.array(0)),
    "an axis in a list": ("y = CumSum(p, q)", M, np.array([0])),
    "a diagonal in a list": ("y = Trilu(p, q)", M, np.array([1])),
    "updates at the beginning": (
        "y = TensorScatter<axis = 1>(p, q)",
        *(floats(2, 4, 3), floats(2, 2, 3)),
    ),
    "updates in a circle": (
        'y = TensorScatter<axis = 1, mode = "circular">(p, q, r)',
        *(floats(2, 4, 3), floats(2, 2, 3), np.array([3, 5])),
    ),
    "attributes of a slice": (
        "@9 y = Slice<starts = [1, -2], ends = [9, -1], axes = [1, 0]>(p)",
        M,
    ),
    "attributes of a slice without axes": (
        "@7 y = Slice<starts = [1], ends = [3]>(p)",
        FRAMES,
    ),
    "moved, then converted": (
        """r = ReverseSequence(p, q)
        s = Constant<value_ints = [-1]>()
        e = Constant<value_ints = [-9]>()
        c = Slice(r, s, e, , s)
        z = Cast<to = 6>(c)
        y = Cast<to = 9>(z)""",
        *(FRAMES, np.array([0, 1, 4])),
    ),
    "a range as the start": (
        """f = Constant<value_float = 2.>()
        one = Constant<value_float = 1.>()
        k32 = Range(one, f, one)
        k = Cast<to = 7>(k32)
        c = Slice(p, k, q)
        y = Cast<to = 10>(c)""",
        *(FRAMES, np.array([3])),
    ),
}

# Of com.microsoft; the inputs after the first are initializers.
X, ROW, SCALE, BIAS = floats(2, 3, 8), floats(5, 8), np.abs(floats(8)), floats(8)
CONV = floats(2, 4, 9, 8), floats(6, 2, 3, 3)
SIZES = "K = 40, N = 6, block_size = 16"
PACKED = {bits: integers("uint8", 6, 3, 2 * bits) for bits in (2, 4, 8)}
WIDE, BLOCKS = floats(3, 40), np.abs(floats(18))
STEP, SIGNED = np.array(0.01, F), integers("int8", 8, 5)
WEIGHT = integers("uint8", 8, 5)
MICROSOFT: dict[str, tuple[Any, ...]] = {
    "FusedConv": ("FusedConv<group = 2>(p, q)", *CONV),
    "FusedConv, sum, Clip": (
        'FusedConv<group = 2, pads = [1, 1, 1, 1], activation = "Clip", '
        "activation_params = [-1.0, 2.0]>(p, q, r, s)",
        *(*CONV, floats(6), floats(2, 6, 9, 8)),
    ),
    **{
        f"FusedConv, {name}": (
            f'FusedConv<group = 2, activation = "{name}"{parameters}>(p, q)',
            *CONV,
        )
        for name, parameters in {
            "LeakyRelu": ", activation_params = [0.3]",
            "HardSigmoid": ", activation_params = [0.3, 0.4]",
            "Relu": "",
            "Sigmoid": "",
            "Tanh": "",
        }.items()
    },
    "FusedMatMul": ("FusedMatMul<alpha = 0.5>(p, q)", X, floats(8, 5)),
    "FusedMatMul, transposed": (
        "FusedMatMul<transA = 1, transB = 1>(p, q)",
        *(floats(2, 8, 3), floats(2, 5, 8)),
    ),
    "FusedMatMul, inner batches": (
        "FusedMatMul<transBatchA = 1, transBatchB = 1>(p, q)",
        *(floats(3, 2, 8), floats(8, 2, 5)),
    ),
    "FusedMatMul, inner batches, transposed": (
        "FusedMatMul<transBatchA = 1, transA = 1, transBatchB = 1, transB = 1>(p, q)",
        *(floats(8, 2, 3), floats(5, 2, 8)),
    ),
    "SkipLayerNormalization": (
        "SkipLayerNormalization<epsilon = 0.00001>(p, q, r)",
        *(X, X[::-1], SCALE),
    ),
    "SkipLayerNormalization, shift, bias": (
        "SkipLayerNormalization(p, q, r, s, t)",
        *(X, X[::-1], SCALE, BIAS, BIAS[::-1]),
    ),
    "SkipSimplifiedLayerNormalization": (
        "SkipSimplifiedLayerNormalization<epsilon = 0.00001>(p, q, r, s)",
        *(X, X[::-1], SCALE, BIAS),
    ),
    **{kind: (f"{kind}(p)", X) for kind in ("Gelu", "FastGelu", "QuickGelu")},
    "BiasGelu": ("BiasGelu(p, q)", X, BIAS),
    "FastGelu, bias": ("FastGelu(p, q)", X, BIAS),
    "QuickGelu, alpha": ("QuickGelu<alpha = 0.5>(p)", X),
    **{
        f"MatMulNBits, {bits} bits": (
            f"MatMulNBits<{SIZES}, bits = {bits}>(p, q, r)",
            *(WIDE, PACKED[bits], BLOCKS),
        )
        for bits in (4, 8)
    },
    "MatMulNBits, zero points": (
        f"MatMulNBits<{SIZES}, bits = 4>(p, q, r, s)",
        *(WIDE, PACKED[4], BLOCKS, integers("uint8", 12)),
    ),
    "MatMulNBits, bias": (
        f"MatMulNBits<{SIZES}, bits = 4>(p, q, r, , , s)",
        *(WIDE, PACKED[4], BLOCKS, floats(6)),
    ),
    "DynamicQuantizeMatMul": ("DynamicQuantizeMatMul(p, q, r)", X, SIGNED, STEP),
    "DynamicQuantizeMatMul, zero points": (
        "DynamicQuantizeMatMul(p, q, r, s, t)",
        *(X, WEIGHT, STEP.repeat(5), integers("uint8", 5), floats(5)),
    ),
    "DynamicQuantizeMatMul, positive": (
        "DynamicQuantizeMatMul(p, q, r, s)",
        *(np.abs(X), WEIGHT, STEP, BYTE[7]),
    ),
    "DynamicQuantizeMatMul, zeros": (
        "DynamicQuantizeMatMul(p, q, r, s)",
        *(np.zeros_like(X), WEIGHT, STEP, BYTE[7]),
    ),
    "MatMulIntegerToFloat": (
        "MatMulIntegerToFloat(p, q, r, s, t, u, v)",
        *(integers("uint8", 3, 8), SIGNED, STEP, STEP.repeat(5)),
        *(BYTE[9], np.arange(5, dtype=np.int8), floats(5)),
    ),
    "QuantizeLinear": ("QuantizeLinear(p, q, r)", X, STEP, np.array(3, np.uint16)),
    "DequantizeLinear": (
        "DequantizeLinear<axis = 0>(p, q, r)",
        *(integers("uint16", 3, 8), STEP.repeat(3), integers("uint16", 3)),
    ),
}


def of_microsoft(text: str, first: Any, *others: Any) -> Any:
    constants = dict(zip("qrstuvwx", others, strict=False))
    return model_of(f"y = com.microsoft.{text}", [first], **constants)


@pytest.mark.usefixtures("x32", "unoptimized")
@pytest.mark.parametrize("name", IMAGES | OTHERS)
def test_as_onnx_runtime(name: str) -> None:
    text, *inputs = (IMAGES | OTHERS)[name]
    require_runtime(model_of(text, inputs), inputs, tolerance=2e-5)


@pytest.mark.usefixtures("x32", "unoptimized")
@pytest.mark.parametrize("name", MICROSOFT)
def test_operators_of_microsoft(name: str) -> None:
    text, *inputs = MICROSOFT[name]
    require_runtime(of_microsoft(text, *inputs), inputs[:1], tolerance=1e-5)


@pytest.mark.usefixtures("x32")
def test_all_outputs_of_a_skip() -> None:
    text = "y, , , total = com.microsoft.SkipLayerNormalization(p, p, q, r)"
    source = model_of(text, [X], q=SCALE, r=BIAS)
    require_runtime(source, [X], tolerance=1e-5)


def test_weights_of_two_bits() -> None:
    """ONNX Runtime's CPU kernel has other block sizes only."""
    text = f"float[a,b] y {{y = com.microsoft.MatMulNBits<{SIZES}, bits = 2>(p, q, r)}}"
    source = model_of(text, [WIDE], q=PACKED[2], r=BLOCKS)
    numbers = PACKED[2][..., None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    weight = (numbers.reshape(18, -1) - 2.0) * BLOCKS[:, None]
    wanted = WIDE @ weight.reshape(6, -1)[:, :40].T
    (found,) = onnx_backend.prepare(source).run([WIDE])
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


WITH_DERIVATIVES = ["MaxPool, a wide window", "Resize, cubic", "STFT, onesided = 1"]


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(
    "name",
    default_of(
        [name for name in IMAGES if "nothing" not in name and "places" not in name],
        *WITH_DERIVATIVES,
    ),
)
def test_derivatives(name: str) -> None:
    """Those of both modes agree, and are not zero."""
    text, x, *others = IMAGES[name]
    source = model_of(text, [x, *others])
    for output in source.graph.output:
        output.type.tensor_type.elem_type = 1
    model = onnx_backend.prepare(source)

    def value(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(model.jax_fn(x, *others)[0] + 1))

    gradient = jax.grad(value)(x)
    _, slope = jax.jvp(value, (x,), (np.ones_like(x),))
    assert np.all(np.isfinite(gradient))
    assert np.any(gradient)
    np.testing.assert_allclose(np.sum(gradient), slope, rtol=1e-3, atol=1e-3)


INDICES = [-(2**31), -6, -5, -3, -1, 0, 1, 2, 4, 5, 6]
STRIDES = [1, 2, 7, -1, -2, -(2**31)]


@pytest.mark.parametrize("opset", default_of([10, 11, 13, 25], 25))
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_slices(opset: int, index: str) -> None:
    """Starts and ends around an axis, and most steps."""
    x = np.arange(30, dtype=np.int32).reshape(5, 3, 2)
    grid = list(itertools.product(INDICES, INDICES, (0, -2), STRIDES))[::97]
    cases = [[x, *(np.array([n], index) for n in row)] for row in grid]
    source = model_of(f"@{opset} y = Slice(p, q, r, s, t)", cases[0])
    model = onnx_backend.prepare(source)
    for inputs in cases:
        assert_same_bits(model.run(inputs)[0], runtime_outputs(source, inputs)[0])


# Differences --------------------------------------------------------------------------

ROWS = np.array([[1, np.nan, 3], [np.nan, 2, 1]], F)
NAN = float("nan")
MINUS = "m = Constant<value_ints = [-1]>()"
RNN = """one = Constant<value: tensor = float[1,1,1] {1.0}>()
  y, h = RNN<hidden_size = 1, activations = ["Affine"]>(p, one, one)"""
# Nodes, inputs, and the results of this package and of ONNX Runtime, None if refused.
DIFFERENCES: dict[str, tuple[Any, ...]] = {
    "sums are rounded again and again": (
        "y = Range(p, q, r)",
        [F(0.6), F(0.9), F(0.1)],
        [F(0.6), F(F(0.6) + np.float64(F(0.1))), F(F(0.6) + 2 * np.float64(F(0.1)))],
        [F(0.6), F(0.6) + F(0.1), F(0.6) + F(0.1) + F(0.1)],
    ),
    "elements are counted in doubles": (
        "y = Range(p, q, r)",
        [0.1, 0.4, 0.1],
        [0.1, 0.2, float(Fraction(0.1) * 3)],
        [0.1, 0.2, 0.1 + 0.1 + 0.1, 0.1 + 0.1 + 0.1 + 0.1],
    ),
    "the end beyond the axis is the beginning": (
        f"{MINUS} y = Slice(p, q, r, , m)",
        [np.arange(5, dtype=np.int32), [3], [2**63 - 1]],
        [],
        [3, 2, 1, 0],
    ),
    "NaN in ReduceMax": (
        "y = ReduceMax<axes = [1]>(p)",
        [ROWS],
        [[NAN], [NAN]],
        [[3], [NAN]],
    ),
    "NaN in ReduceMin": (
        "y = ReduceMin<axes = [1]>(p)",
        [ROWS],
        [[NAN], [NAN]],
        [[1], [NAN]],
    ),
    "NaN in ArgMax": ("y = ArgMax<axis = 1>(p)", [ROWS], [[1], [0]], [[2], [0]]),
    "NaN in ArgMin": ("y = ArgMin<axis = 1>(p)", [ROWS], [[1], [0]], [[0], [0]]),
    "NaN in MaxPool": (
        "y = MaxPool<kernel_shape = [2]>(p)",
        [ROWS[None]],
        [[[NAN, NAN], [NAN, 2]]],
        [[[1, 3], [2, 2]]],
    ),
    "the mean of nothing": (
        "y = ReduceMean<axes = [1]>(p)",
        [np.zeros((1, 0), F)],
        [[NAN]],
        [[0]],
    ),
    "Squeeze with empty axes": (
        "float[u,v] y {y = Squeeze(p, q)}",
        [np.ones((1, 2), F), np.zeros(0, int)],
        [[1, 1]],
        [1, 1],
    ),
    "Gemm with a beta of 0": (
        "y = Gemm<beta = 0.0>(p, q, r)",
        [np.ones((1, 1), F), np.ones((1, 1), F), np.full((1, 1), NAN, F)],
        [[NAN]],
        [[1]],
    ),
    "reflection beyond the axis": (
        'y = Pad<mode = "reflect">(p, q)',
        [np.arange(3, dtype=F), [0, 4]],
        [0, 1, 2, 1, 0, 1, 2],
        None,
    ),
    "the scale of zeros": (
        "z, y, i = DynamicQuantizeLinear(p)",
        [np.zeros(3, F)],
        0,
        1,
    ),
    "default parameters of Affine": (
        RNN,
        [np.array([[[0.5]], [[0.25]]], F)],
        [[[[0.5]]], [[[0.75]]]],
        np.zeros((2, 1, 1, 1)),
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences(name: str) -> None:
    text, inputs, ours, theirs = DIFFERENCES[name]
    arrays = list(map(np.asarray, inputs))
    text = f"@13 {text}" if "axes =" in text else text
    source = model_of(text, arrays)
    place = 1 if "Dynamic" in text else 0
    found = onnx_backend.prepare(source).run(arrays)[place]
    np.testing.assert_array_equal(found, ours)
    assert np.shape(found) == np.shape(ours)
    if theirs is None:
        with pytest.raises(onnxruntime_pybind11_state.InvalidArgument):
            runtime_outputs(source, arrays)
    else:
        result = np.asarray(runtime_outputs(source, arrays)[place])
        np.testing.assert_array_equal(result, theirs)
        assert result.shape == np.shape(theirs)
