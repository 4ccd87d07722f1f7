"""Models whose results are those of ONNX Runtime's CPU provider, and those that differ.

ONNX's own tests are in `test_onnx_nodes`. They have not what is here: older versions,
other attributes, operators of Microsoft, and chains.
"""

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from jax.test_util import check_grads
from onnx_models import (
    F,
    add_types,
    model_of,
    parse,
    require_error,
    require_runtime,
    rows,
    runtime_outputs,
)
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[attr-defined]
from sampling import default_of

from dml_jax import onnx_backend

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(F)


def integers(dtype: Any, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max, shape, dtype, endpoint=True)


U8, I8, I32 = np.uint8, np.int8, np.int32
LINE, IMAGE, SIGNAL = floats(2, 3, 50), floats(2, 3, 9, 10), floats(2, 50, 1)
BYTES = integers(U8, 2, 3, 9, 10)
BOXES = (
    F([[0, 0, 9, 8], [-5, -30, 50, 40], [2.3, 1.7, 4.1, 6.2], [3, 2, 3, 2]]),
    np.array([0, 1, 1, 0]),
)
DEPTHWISE = floats(2, 4, 9, 8), floats(4, 1, 3, 2), floats(4)
FRAMES = np.arange(-6, 6, dtype=F).reshape(4, 3) / 2
M = F([[1, 5, 5], [7, 2, 7]])
LARGE = I32([1000000001, 1000000003])
X, SCALE, BIAS = floats(2, 3, 8), np.abs(floats(8)), floats(8)
CONV = floats(2, 4, 9, 8), floats(6, 2, 3, 3)
PACKED = {bits: integers(U8, 6, 3, 2 * bits) for bits in (2, 4, 8)}
WIDE, BLOCKS = floats(3, 40), np.abs(floats(18))
STEP, SIGNED, WEIGHT = np.array(0.01, F), integers(I8, 8, 5), integers(U8, 8, 5)
WINDOW = "kernel_shape = [3, 2], strides = [2, 3], pads = [0, 1, 1, 0], ceil_mode = 1"
SCALES = "s = Constant<value: tensor = float[4] {1, 1, 0.7, 2.5}>()"
LOOKUP = "d = Constant<value_floats = [5.0, 6.0, 7.0]>()"
KEPT = "c = Constant<value: tensor = bool[3] {1, 0, 1}>() y = Compress"
SELF = floats(2, 3, 8), floats(8, 24), floats(24)
CROSS = floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 6)
KEYS = I32([[[1, 0, 1], [0, 1, 1], [0, 0, 1]], [[1, 1, 1], [0, 1, 0], [1, 1, 0]]])
PAST = floats(2, 2, 4, 4), floats(2, 2, 4, 4)
GROUPS = floats(2, 3, 64), floats(2, 3, 32), floats(2, 3, 32)
ONE = tuple(x[:, :1] for x in GROUPS)
PAIRS = floats(9, 2), floats(9, 2)
ANGLES = floats(9, 8), floats(9, 8)
BUFFERS = floats(2, 2, 6, 16), floats(2, 2, 6, 16)
IDS = I32([[4, 0, 2], [1, 1, 3]])
TABLES = floats(5, 8), floats(6, 8), floats(4, 8), SCALE, BIAS
POINT = STEP, U8(120)
DENSE = floats(3, 8), floats(5, 8), floats(5)
CROP = (
    "n = Constant<value_ints = [3, 4]>() "
    "w = Constant<value_floats = [0.1, 0.4, 0.8, 1.7]>()"
)
SIZES = "K = 40, N = 6, block_size = 16"
NAMES: dict[str, Any] = {
    name: value for name, value in globals().items() if not name.startswith("_")
}
# Nodes, and the inputs p, q, r, ...
IMAGES = rows(
    r"""
y = MaxPool<$window>(p) | IMAGE
y = AveragePool<$window>(p) | IMAGE
y = LpPool<$window>(p) | IMAGE
y = AveragePool<$window, count_include_pad = 1>(p) | IMAGE
y = AveragePool<kernel_shape = [3, 2], dilations = [2, 3]>(p) | IMAGE
y = MaxPool<kernel_shape = [20]>(p) | LINE
y = AveragePool<kernel_shape = [20]>(p) | LINE
@9 y = GlobalMaxPool(p) | IMAGE
@9 y = GlobalLpPool(p) | IMAGE
@9 y = GlobalAveragePool(p) | IMAGE
@19 $scales y = Resize<mode = "cubic", exclude_outside = 1>(p, , s) | IMAGE
@19 $scales y = Resize<mode = "linear", antialias = 1>(p, , s) | IMAGE
@10 $scales y = Resize<mode = "nearest">(p, s) | IMAGE
@10 $scales y = Resize<mode = "linear">(p, s) | IMAGE
y = Resize<mode = "linear">(p, , q) | M[:1], np.array([0.5, 2], F)
y = GridSample<mode = "cubic", padding_mode = "reflection">(p, q) |
  IMAGE, 1.3 * floats(2, 4, 5, 2)
y = GridSample<mode = "cubic", padding_mode = "border">(p, q) |
  IMAGE, 1.3 * floats(2, 4, 5, 2)
@21 y = RoiAlign<$bins>(p, q, r) | IMAGE, *BOXES
@21 y = RoiAlign<$bins, sampling_ratio = 2, spatial_scale = 0.7>(p, q, r) |
  IMAGE, *BOXES
@21 y = RoiAlign<$bins, coordinate_transformation_mode = "output_half_pixel">(p, q, r) |
  IMAGE, *BOXES
@10 y = RoiAlign<$bins>(p, q, r) | IMAGE, *BOXES
@16 y = RoiAlign<$bins>(p, q, r) | IMAGE, np.zeros((0, 4), F), np.zeros(0, int)
@16 y = RoiAlign<$bins, sampling_ratio = 1>(p, q, r) |
  IMAGE, np.zeros((0, 4), F), np.zeros(0, int)
@10 y = RoiAlign<$bins, mode = "max", sampling_ratio = 3>(p, q, r) | IMAGE, *BOXES
y = ConvTranspose<group = 3, pads = [1, 0, 2, 1], strides = [2, 1]>(p, q) |
  IMAGE, floats(3, 2, 3, 2)
y = ConvTranspose<strides = [2, 3], output_shape = [18, 30]>(p, q) |
  IMAGE, floats(3, 2, 3, 2)
y = ConvTranspose<strides = [3], output_shape = [8]>(p, q) |
  floats(1, 1, 2), floats(1, 2, 3)
y = Conv<group = 4>(p, q, r) | *DEPTHWISE
y = Conv<group = 4, strides = [2, 3], pads = [1, 0, 2, 1]>(p, q, r) | *DEPTHWISE
y = Conv<group = 4, strides = [2, 2], auto_pad = "SAME_UPPER">(p, q, r) | *DEPTHWISE
y = Conv<group = 4, dilations = [2, 3], pads = [0, 2, 0, 1]>(p, q, r) | *DEPTHWISE
y = Conv(p, q) | floats(2, 4, 9, 1), floats(6, 4, 3, 1)
y = Conv<strides = [2, 3]>(p, q) | floats(2, 4, 1, 9), floats(6, 4, 1, 3)
y = Conv(p, q) | floats(2, 4, 1, 1), floats(6, 4, 1, 1)
y = Conv<pads = [1, 1, 0, 0]>(p, q) | floats(2, 4, 9, 1), floats(6, 4, 3, 1)
y = Conv<dilations = [1, 2, 1]>(p, q) | floats(2, 4, 1, 9, 1), floats(6, 4, 1, 2, 1)
y = Conv(p, q, r) | floats(2, 3, 4, 5), floats(6, 3, 4, 5), floats(6)
y = Conv<pads = [1, 1, 1, 0]>(p, q) | floats(2, 3, 4, 5), floats(6, 3, 6, 3)
y = Conv<strides = [3], pads = [1, 2]>(p, q) | floats(2, 3, 8), floats(6, 3, 2)
y = Conv<strides = [4, 1], dilations = [2, 3]>(p, q) |
  floats(2, 3, 9, 8), floats(6, 3, 2, 2)
y = Conv<strides = [2, 5], dilations = [2, 4]>(p, q) |
  floats(2, 3, 4, 8), floats(6, 3, 2, 2)
y = Conv<strides = [2], pads = [0, 1]>(p, q) | floats(2, 3, 6), floats(6, 3, 1)
y = Conv<strides = [2, 6], pads = [1, 0, 2, 2]>(p, q) |
  floats(2, 3, 9, 37), floats(4, 3, 4, 18)
a = Conv(p, q) b = PRelu(a, r) c = HardSwish(b) d = Less(c, s) e = Where(d, c, t)
  f = Clip(e, , u) y = MaxPool<kernel_shape = [2, 2]>(f) | IMAGE, floats(4, 3, 2, 2),
  floats(4, 1, 1), floats(9), floats(1, 4, 1, 1), F(0.5)
@21 y = LpNormalization(p) | F([[0, 0, 0], [3, 0, 4]])
n = Constant<value_int = 5>() y = STFT<onesided = 0>(p, n, q) | SIGNAL, floats(16)
n = Constant<value_int = 5>() y = STFT(p, n, q) | SIGNAL, floats(16)
@20 n = Constant<value_int = 12>() y = DFT(p, n) | floats(2, 9, 1)
@17 y = DFT<axis = 0, inverse = 1>(p) | floats(2, 9, 2)
@23 y = RotaryEmbedding<num_heads = 3>(p, q, q) | floats(2, 5, 12), floats(2, 5, 2)
@23 y = Attention<q_num_heads = 3, kv_num_heads = 3, is_causal = 1>(p, p, p) |
  floats(2, 5, 12)
@23 y = Attention<q_num_heads = 2, kv_num_heads = 1>(p, q, r) |
  floats(2, 3, 8), floats(2, 5, 4), floats(2, 5, 6)
""",
    window=WINDOW,
    scales=SCALES,
    bins="output_height = 3, output_width = 2",
)
OTHERS = rows(
    r"""
y, i = MaxPool<kernel_shape = [3, 2], pads = [1, 1, 1, 1], strides = [2, 2]>(p) | IMAGE
n = Constant<value_ints = [-1, 2, 0, -1]>() y = Pad(p, n) | FRAMES
y = Resize<mode = "cubic">(p, , q) | floats(3, 0), F([2, 1])
y = Resize(p, , q) | floats(0, 2), F([2, 2])
y = ConvTranspose(p, q) | floats(1, 1, 0), floats(1, 2, 3)
y = ConvTranspose<strides = [2, 2], auto_pad = "SAME_UPPER">(p, q) |
  IMAGE, floats(3, 2, 3, 2)
@9 s = Constant<value: tensor = float[4] {1, 1, 2, 3}>() y = Upsample(p, s) | IMAGE
n = Constant<value_ints = [6]>()
  y = Resize<mode = "nearest", nearest_mode = "round_prefer_ceil">(p, , , n) |
  np.arange(20, dtype=F)
$crop y = Resize<mode = "nearest", $transform = "tf_crop_and_resize",
  extrapolation_value = 9.0>(p, w, , n) | M
$crop y = Resize<mode = "linear", $transform = "tf_crop_and_resize",
  extrapolation_value = 9.0>(p, w, , n) | M
n = Constant<value_ints = [1, 3]>()
  y = Resize<mode = "cubic", $transform = "pytorch_half_pixel">(p, , , n) | FRAMES
n = Constant<value_ints = [1, 1, 1, 4]>()
  y = Resize<mode = "linear", antialias = 1>(p, , , n) | BYTES[:1, :1, :1, :7]
n = Constant<value_ints = [1, 1, 1, 4]>()
  y = Resize<mode = "cubic", antialias = 1>(p, , , n) | BYTES[:1, :1, :1, :7]
@11 e = Constant<value: tensor = float[0] {}>()
  n = Constant<value: tensor = int64[1] {5}>()
  y = Resize<mode = "nearest", $transform = "tf_half_pixel_for_nn">(p, e, e, n) |
  np.arange(3, dtype=F)
float[a,b,c,d] y {n = Constant<value_int = 5>() y = STFT(p, n, q)} |
  SIGNAL[..., 0], floats(16)
a, s, z = DynamicQuantizeLinear(p) y = MatMulInteger(a, q, z) |
  floats(0, 4), integers(U8, 4, 2)
@12 y = Celu<alpha = -0.5>(p) | FRAMES
@18 y = GroupNormalization<num_groups = 2>(p, q, r) |
  floats(2, 4, 3), floats(2), floats(2)
@21 y = QuantizeLinear<axis = 0, block_size = 2>(p, q, r) |
  floats(5), SCALE[:3], U8([1, 2, 3])
@21 y = DequantizeLinear<axis = 0, block_size = 2>(p, q, r) |
  U8([1, 2, 3, 4, 5]), SCALE[:3], U8([1, 2, 3])
@14 y, m = LayerNormalization<axis = 1>(p, q, r) | X, SCALE, BIAS
@16 y, m = SimplifiedLayerNormalization<epsilon = 0.1>(p, q) | X, SCALE
y = LRN<size = 3, alpha = 0.5>(p) | IMAGE
y = DepthToSpace<blocksize = 2>(p) | floats(1, 8, 2, 3)
y = DepthToSpace<blocksize = 2, mode = "CRD">(p) | floats(1, 8, 2, 3)
y = SpaceToDepth<blocksize = 2>(p) | floats(1, 2, 4, 6)
y = Col2Im(p, q, r) | floats(1, 4, 4), [3, 3], [2, 2]
@21 y = QuantizeLinear<axis = 1>(p, q, r) | M, F([0.5, 0.25, 2]), U8([1, 2, 3])
@21 y = QuantizeLinear<axis = 1, block_size = 2>(p, q, r) |
  floats(2, 4), 0.1 + M[:, 1:], U8([[1, 2], [3, 4]])
@21 y = DequantizeLinear<axis = 0>(p, q, r) |
  BYTES[0, 0], SCALE.repeat(2)[:9], BYTES[0, 0, :, 0]
y = ConvInteger<pads = [1, 1, 1, 1]>(p, q, r, s) |
  BYTES, BYTES.ravel()[:72].reshape(4, 3, 3, 2), U8(120), U8(7)
y = ConvInteger(p, q, r, r) | BYTES // 2 + 128, BYTES[[0, 1, 0, 1]] // 4 + 192, U8(0)
@21 y = QuantizeLinear(p, q, r) | M, F([0.5]), U8(1)
y = MatMulInteger(p, q, r, s) |
  integers(U8, 3, 4), integers(U8, 4, 2), U8(1), U8([3, 9])
i = ArgMax<axis = 1>(p) y = GatherElements<axis = 1>(p, i) | M
i = ArgMin<axis = 1>(p) y = GatherElements<axis = 1>(p, i) | M
y = ArgMax<axis = 1, select_last_index = 1>(p) | M
y = Hardmax(p) | M
y = Hardmax(p) | floats(2, 0)
$lookup y = GatherElements(d, p) | I32([2, 0])
$lookup j = Cast<to = 7>(p) y = GatherND(d, j) | I32([[2], [0]])
$kept<axis = 1>(p, c) | M
$kept<axis = -1>(p, c) | M
$kept(p, c) | M
@9 float[a,b] y, float[c] m, float[d] v {y, m, v, n, w = BatchNormalization(p, q, q, q,
  q)} | M, F([1, 2, 3])
@7 y = BatchNormalization<spatial = 0>(p, q, q, q, q) | np.stack([M, -M]), M
y = Pow(p, q) | I32([2**24 + 1, 2053]), F([1, 2])
y = Pow(p, q) | I32([2, 1, -1, 3, -1, -2]), I32([-1, -1, -1, -2, -2, 3])
y = ReduceMean(p) | LARGE
y = ReduceL2(p) | LARGE
y = ReduceLogSumExp(p) | LARGE
y = ReduceMean(p) | I32([-3, -4])
y = ReduceMax(p, q) | M, np.array([0, 1])
j = Cast<to = 7>(q) y = GatherND(p, j) | M, np.zeros((2, 0), I32)
j = Cast<to = 7>(q) y = ScatterND<reduction = "add">(p, j, r) |
  M, np.zeros((2, 0), I32), np.stack([M, -2 * M])
@9 y = Clip(p) | F([np.inf, -np.inf, 1])
@9 y = Clip<min = 0.0>(p) | F([np.inf, -np.inf, 1])
y = Clip(p, q, q) | M[0], M[1, :1]
y = Unsqueeze(p, q) | M, 0
y = CumSum(p, q) | M, [0]
y = Trilu(p, q) | M, [1]
y = TensorScatter<axis = 1>(p, q) | floats(2, 4, 3), floats(2, 2, 3)
y = TensorScatter<axis = 1, mode = "circular">(p, q, r) |
  floats(2, 4, 3), floats(2, 2, 3), [3, 5]
@9 y = Slice<starts = [1, -2], ends = [9, -1], axes = [1, 0]>(p) | M
@7 y = Slice<starts = [1], ends = [3]>(p) | FRAMES
r = ReverseSequence(p, q) s = Constant<value_ints = [-1]>()
  e = Constant<value_ints = [-9]>() c = Slice(r, s, e, , s) z = Cast<to = 6>(c)
  y = Cast<to = 9>(z) | FRAMES, [0, 1, 4]
y, , , total = com.microsoft.SkipLayerNormalization(p, p, q, r) | X, SCALE, BIAS
f = Constant<value_float = 2.>() one = Constant<value_float = 1.>()
  k = Range(one, f, one) l = Cast<to = 7>(k) c = Slice(p, l, q) y = Cast<to = 10>(c) |
  FRAMES, [3]
""",
    lookup=LOOKUP,
    kept=KEPT,
    crop=CROP,
    transform="coordinate_transformation_mode",
)
# Attention of com.microsoft, and what stands in front of it.
ATTENTION = rows(
    r"""
y = $self>(p, q) | *SELF[:2]
y = $self, unidirectional = 1, scale = 0.3>(p, q, r, s) | *SELF, KEYS[:, 0]
y = $self>(p, q, r, s) | *SELF, I32([2, 3])
y = $self, mask_filter_value = -2.0>(p, q, r, s) | *SELF, I32([2, 3, 1, 0])
y = $self, unidirectional = 1>(p, q, r, s) | *SELF, KEYS
y = $self>(p, q, r, s) | *SELF, I32([[0], [1]])
y = $self>(p, q, r, s, , t) | *SELF, KEYS[:, 1], floats(1, 2, 3, 3)
y, z = $self, unidirectional = 1>(p, q, r, , s) | *SELF, floats(2, 2, 2, 4, 4)
y = $self, qkv_hidden_sizes = [4, 4, 6]>(p, q, r) |
  SELF[0], floats(8, 14), floats(14)
y = $cross>(p, q, r) | *CROSS
y = $cross, scale = 0.3>(p, q, r, s, t, u) |
  *CROSS, floats(22), I32([3, 5]), floats(2, 1, 3, 5)
y, z, h = $cross, unidirectional = 1>(p, p, p, , q, , r, s) |
  SELF[0], I32([[1, 0, 1, 1, 0, 1, 1]] * 2), *PAST
y, z, h = $cross>(p, q, r, s) | SELF[0], *PAST, floats(24)
y, z, h = $group>(p, q, r, , , s, t) | *GROUPS, I32([2, 0]), I32([3])
y, z, h = $group, softcap = 0.5, local_window_size = 2>(p, q, r, , , s, t, , , , u) |
  *GROUPS, I32([2, 2]), I32([3]), floats(1, 4, 3, 3)
y, z, h = $group, smooth_softmax = 1, scale = 0.3>(p, , , , , q, r) |
  np.concatenate(GROUPS, 2), I32([2, 2]), I32([3])
y, z, h = $group, do_rotary = 1>(p, q, r, s, t, u, v, w, x) |
  *ONE, *BUFFERS, I32([3, 6]), I32([7]), *ANGLES
y, z, h = $group, do_rotary = 1, rotary_interleaved = 1>(p, q, r, s, t, u, v, w, x) |
  *GROUPS, *BUFFERS, I32([2, 1]), I32([3]), *ANGLES
y, z, h = $group, do_rotary = 1>(p, q, r, , , s, t, u, v, w) |
  *GROUPS, I32([2, 2]), I32([3]), *ANGLES, np.array([[4, 0, 2], [1, 8, 3]])
y, z, h = $group>(p, q, r, s, t, u, v) |
  *(x[:1] for x in (*GROUPS, *BUFFERS)), I32([8]), I32([9])
y, z, h = $group, causal = 0>(p, q, r, , , s, t, , , , , u) |
  *GROUPS, I32([2, 1]), I32([3]), floats(4)
y = $rotary(p, q, r, s) | SELF[0], np.array([[5, 0, 2], [1, 8, 3]]), *PAIRS
y = $rotary<interleaved = 1>(p, q, r, s) | PAST[0], np.array([2]), *PAIRS
y = $rotary<num_heads = 1, rotary_embedding_dim = 4>(p, q, r, s) |
  SELF[0], np.array([2]), *PAIRS
""",
    self="com.microsoft.Attention<num_heads = 2",
    cross="com.microsoft.MultiHeadAttention<num_heads = 2",
    group="com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2",
    rotary="com.microsoft.RotaryEmbedding",
)
# Of com.microsoft; the inputs after the first are initializers.
MICROSOFT = rows(
    r"""
FusedConv<group = 2>(p, q) | *CONV
FusedConv<group = 2, pads = [1, 1, 1, 1], activation = "Clip",
  activation_params = [-1.0, 2.0]>(p, q, r, s) | *CONV, floats(6), floats(2, 6, 9, 8)
FusedConv<group = 2, activation = "LeakyRelu", activation_params = [0.3]>(p, q) | *CONV
FusedConv<group = 2, activation = "HardSigmoid", activation_params = [0.3, 0.4]>(p, q) |
  *CONV
FusedConv<group = 2, activation = "Relu">(p, q) | *CONV
EmbedLayerNormalization<epsilon = 0.1>(p, q, r, s, t, u, v, w) |
  IDS, IDS // 2, *TABLES, KEYS[0, :2]
EmbedLayerNormalization(p, , q, r, , s, t, , u) |
  IDS, *TABLES[:2], SCALE, BIAS, I32([[5, 0, 1]])
FusedGemm<alpha = 0.5, transB = 1, activation = "Tanh">(p, q, r) | *DENSE
FusedGemm<transB = 1, activation = "LeakyRelu", activation_alpha = 0.3>(p, q) |
  *DENSE[:2]
FusedGemm<transB = 1, activation = "Selu", activation_alpha = 2.0,
  activation_gamma = 0.5>(p, q) | *DENSE[:2]
FusedGemm<transB = 1, activation = "Elu", activation_alpha = 2.0>(p, q) | *DENSE[:2]
FusedGemm<transB = 1, activation = "Softplus">(p, q) | *DENSE[:2]
FusedGemm<transB = 1, activation = "Softsign">(p, q) | *DENSE[:2]
FusedConv<group = 2, activation = "Sigmoid">(p, q) | *CONV
FusedConv<group = 2, activation = "Tanh">(p, q) | *CONV
FusedMatMul<alpha = 0.5>(p, q) | X, floats(8, 5)
FusedMatMul<transA = 1, transB = 1>(p, q) | floats(2, 8, 3), floats(2, 5, 8)
FusedMatMul<transBatchA = 1, transBatchB = 1>(p, q) | floats(3, 2, 8), floats(8, 2, 5)
FusedMatMul<transBatchA = 1, transA = 1, transBatchB = 1, transB = 1>(p, q) |
  floats(8, 2, 3), floats(5, 2, 8)
SkipLayerNormalization<epsilon = 0.1>(p, q, r) | X, X[::-1], SCALE
SkipLayerNormalization(p, q, r, s, t) | X, X[::-1], SCALE, BIAS, BIAS[::-1]
SkipSimplifiedLayerNormalization<epsilon = 0.1>(p, q, r, s) |
  X, X[::-1], SCALE, BIAS
Gelu(p) | X
FastGelu(p) | X
QuickGelu(p) | X
BiasGelu(p, q) | X, BIAS
FastGelu(p, q) | X, BIAS
QuickGelu<alpha = 0.5>(p) | X
MatMulNBits<$sizes, bits = 4>(p, q, r) | WIDE, PACKED[4], BLOCKS
MatMulNBits<$sizes, bits = 8>(p, q, r) | WIDE, PACKED[8], BLOCKS
MatMulNBits<$sizes, bits = 4>(p, q, r, s) | WIDE, PACKED[4], BLOCKS, integers(U8, 12)
MatMulNBits<$sizes, bits = 4>(p, q, r, , , s) | WIDE, PACKED[4], BLOCKS, floats(6)
MatMulNBits<$sizes, bits = 4>(p, q, r, , s) |
  WIDE, PACKED[4], BLOCKS, I32(range(40))[::-1] // 16
DynamicQuantizeMatMul(p, q, r) | X, SIGNED, STEP
DynamicQuantizeMatMul(p, q, r, s, t) |
  X, WEIGHT, STEP.repeat(5), integers(U8, 5), floats(5)
DynamicQuantizeMatMul(p, q, r, s) | np.abs(X), WEIGHT, STEP, U8(7)
DynamicQuantizeMatMul(p, q, r, s) | 0 * X, WEIGHT, STEP, U8(7)
MatMulIntegerToFloat(p, q, r, s, t, u, v) |
  BYTES[0, 0, :3, :8], SIGNED, STEP, STEP.repeat(5), U8(9), I8(range(5)), floats(5)
QGemm<transB = 1, alpha = 0.5>(p, q, r, s, t, u) |
  BYTES[0, 0, :, :8], *POINT, SIGNED.T, F(range(1, 6)) / 700, I8(range(5))
QGemm(p, q, r, s, t, u, v, w, x) |
  BYTES[0, 0, :, :8], *POINT, SIGNED, STEP, I8(3), I32(range(5)), F(0.73), U8(99)
QLinearAdd(p, q, r, s, t, u, v, w) |
  BYTES, *POINT, BYTES[0, :1], F(0.03), U8(7), *POINT
QLinearMul(p, q, r, s, t, u, v, w) |
  BYTES, *POINT, BYTES[:1], F(0.03137), U8(7), *POINT
QLinearSigmoid(p, q, r, s, t) | SIGNED, F(0.1), I8(5), F(1 / 256), I8(-128)
QLinearLeakyRelu<alpha = 0.3>(p, q, r, s, t) | BYTES, *POINT, F(0.0137), U8(90)
QLinearConcat<axis = 1>(q, r, p, s, t, p, q, r) | BYTES, *POINT, F(0.0137), U8(90)
QLinearAveragePool<$window>(p, q, r, s, t) | BYTES, *POINT, F(0.0137), U8(90)
QLinearAveragePool<kernel_shape = [2, 1], channels_last = 1>(p, q, r, s, t) |
  BYTES, *POINT, F(0.0137), U8(90)
QLinearGlobalAveragePool(p, q, r, s, t) | BYTES, *POINT, F(0.0137), U8(90)
QLinearGlobalAveragePool<channels_last = 1>(p, q, r, s, t) |
  BYTES, *POINT, F(0.0137), U8(90)
QuantizeLinear(p, q, r) | X, STEP, np.uint16(3)
DequantizeLinear<axis = 0>(p, q, r) |
  integers(np.uint16, 3, 8), STEP.repeat(3), integers(np.uint16, 3)
""",
    sizes=SIZES,
    window=WINDOW,
)


def arrays(inputs: str) -> list[np.ndarray]:
    return list(map(np.asarray, eval(f"[{inputs}]", NAMES)))


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(("text", "inputs"), IMAGES + OTHERS + ATTENTION)
def test_as_onnx_runtime(text: str, inputs: str) -> None:
    given = arrays(inputs)
    require_runtime(model_of(text, given), given, tolerance=2e-5)


def microsoft(text: str) -> str:
    """A node; an embedding must have two outputs."""
    outputs = "y, z" if text.startswith("Embed") else "y"
    return f"{outputs} = com.microsoft.{text}"


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(("text", "inputs"), MICROSOFT)
def test_operators_of_microsoft(text: str, inputs: str) -> None:
    first, *others = arrays(inputs)
    constants = dict(zip("qrstuvwx", others, strict=False))
    source = model_of(microsoft(text), [first], **constants)
    require_runtime(source, [first], tolerance=1e-5)


# Without kinks, or with few that a difference could meet.
SMOOTH = [
    (microsoft(text), inputs)
    for text, inputs in MICROSOFT
    if text.startswith(("Bias", "Embed", "Fast", "Fused", "Gelu", "Quick", "Skip"))
    and not re.search("Conv.*(Relu|Clip|HardSigmoid)", text, re.DOTALL)
]


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(
    ("text", "inputs"), default_of(ATTENTION + SMOOTH, *(ATTENTION + SMOOTH)[1::4])
)
def test_derivatives_of_microsoft(text: str, inputs: str) -> None:
    """The slope for all floats along a direction is that of ONNX Runtime's outputs."""
    given = dict(zip("pqrstuvwx", arrays(inputs), strict=False))
    steps = {n: floats(*x.shape) for n, x in given.items() if x.dtype == F}

    def moved(size: float) -> Any:
        """The input, and the model that has the other arrays."""
        arrays = {n: x + size * steps.get(n, 0) for n, x in given.items()}
        arrays = {n: arrays[n].astype(x.dtype) for n, x in given.items()}
        x = arrays.pop("p")
        return x, model_of(text, [x], **arrays)

    def total(outputs: Any) -> Any:
        parts = [y.ravel() for y in outputs if y.dtype == F]
        return sum(y @ np.cos(np.arange(y.size)).astype(F) for y in parts)

    def difference(size: float) -> Any:
        low, high = (
            total(runtime_outputs(m, [x])) for x, m in map(moved, (-size, size))
        )
        return (high - low) / (2 * size)

    x, source = moved(0)
    add_types(source, runtime_outputs(source, [x]))
    model = onnx_backend.prepare(source)
    arrays_of = {**model.params, "p": x}
    assert steps.keys() <= arrays_of.keys()

    def value(moving: dict[str, Any]) -> Any:
        parameters = {**arrays_of, **moving}
        x = parameters.pop("p")
        return total(model.apply(parameters, x))

    gradient = jax.jit(jax.grad(value))({n: given[n] for n in steps})
    slope = sum(np.vdot(gradient[n], step) for n, step in steps.items())
    wanted = (4 * difference(0.004) - difference(0.008)) / 3  # of the fourth order
    np.testing.assert_allclose(slope, wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("x32")
def test_boxes_with_as_many_samples_as_they_need() -> None:
    """The greatest ones of RoiAlign, for boxes that are constant."""
    given = [IMAGE - 9, *BOXES]
    source = model_of(
        '@21 y = RoiAlign<mode = "max", output_height = 2>(p, q, r)', given
    )
    require_runtime(source, given, ["q"], 2e-5)
    function = jax.jit(onnx_backend.prepare(source).jax_fn)
    require_error(TypeError, "RoiAlign 'y': `rois` must be a con", function, *given)


@pytest.mark.parametrize("ratio", [0, 2])
def test_derivatives_of_boxes(ratio: int) -> None:
    """Between the places where an element, or the number of samples, changes."""
    image, boxes, places = (
        IMAGE[:1].astype(float),
        np.array([[1.1, 2.2, 6.8, 7.7]]),
        np.array([0]),
    )
    options = f"output_height = 2, output_width = 2, sampling_ratio = {ratio}"
    text = f"double[a,b,c,d] y {{y = RoiAlign<{options}>(p, q, r)}}"
    model = onnx_backend.prepare(model_of(text, [image, boxes, places]))

    @jax.jit
    def pooled(x: Any, boxes: Any) -> Any:
        return model.jax_fn(x, boxes, places)[0]

    with jax.enable_x64(True):
        check_grads(pooled, (image, boxes), 1, eps=1e-5)


@pytest.mark.parametrize("kind", ["Hamming", "Hann"])
@pytest.mark.parametrize("is_periodic", [0, 1])
def test_windows_of_64_bits(kind: str, is_periodic: int) -> None:
    options = f"output_datatype = 11, periodic = {is_periodic}"
    source = model_of(f"double[n] y {{y = {kind}Window<{options}>(p)}}", [5])
    require_runtime(source, [np.array(5)], tolerance=1e-15)


@pytest.mark.usefixtures("x32")
def test_stft_is_onesided_by_default() -> None:
    """ONNX's inference of shapes takes an omitted `onesided` for 0."""
    text = "float[b,16,1] x => float[b,3,5,2] y {y = STFT(x, step, , width)}"
    source = parse(text, step=np.array(4), width=np.array(8))
    require_runtime(source, [floats(2, 16, 1)], tolerance=2e-5)


def test_files_need_not_import_the_domain_of_microsoft() -> None:
    source = model_of("float[a,b,c] y {y = com.microsoft.Gelu(p)}", [X])
    del source.opset_import[1:]
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


WIDE_WINDOW, CUBIC, STFT = (
    next(row for row in IMAGES if part in row[0])
    for part in ("kernel_shape = [20]", 'Resize<mode = "cubic"', "STFT(")
)


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(
    ("text", "inputs"), default_of(IMAGES, WIDE_WINDOW, CUBIC, STFT)
)
def test_derivatives(text: str, inputs: str) -> None:
    """Those of both modes agree, and are zero only where there is no output."""
    x, *others = arrays(inputs)
    source = model_of(text, [x, *others])
    outputs = runtime_outputs(source, [x, *others])
    add_types(source, outputs)
    model = onnx_backend.prepare(source)

    def value(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(model.jax_fn(x, *others)[0] + 1))

    gradient = jax.jit(jax.grad(value))(x)
    # As an argument, which XLA does not fold.
    _, slope = jax.jit(lambda x, t: jax.jvp(value, (x,), (t,)))(x, np.ones_like(x))
    assert np.all(np.isfinite(gradient))
    assert np.any(gradient) == (outputs[0].size > 0)
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
TENTH = np.float64(F(0.1))
STEPS = F([[[0.5]], [[0.25]]])
NAMES |= {"ROWS": ROWS, "NAN": NAN, "TENTH": TENTH, "STEPS": STEPS}
# Why, nodes, inputs, and the results of this package and of ONNX Runtime.
DIFFERENCES = rows(r"""
sums are rounded again and again | y = Range(p, q, r) | F(0.6), F(0.9), F(0.1) |
  F([0.6, F(0.6) + TENTH, F(0.6) + 2 * TENTH]) |
  [F(0.6), F(0.6) + F(0.1), F(0.6) + F(0.1) + F(0.1)]
elements are counted in doubles | y = Range(p, q, r) | 0.1, 0.4, 0.1 |
  [0.1, 0.2, 3 * 0.1] |
  [0.1, 0.2, 0.1 + 0.1 + 0.1, 0.1 + 0.1 + 0.1 + 0.1]
the end beyond the axis is the beginning |
  m = Constant<value_ints = [-1]>() y = Slice(p, q, r, , m) |
  np.arange(5, dtype=I32), [3], [2**63 - 1] | [] | [3, 2, 1, 0]
NaN | @13 y = ReduceMax<axes = [1]>(p) | ROWS | [[NAN], [NAN]] | [[3], [NAN]]
NaN | @13 y = ReduceMin<axes = [1]>(p) | ROWS | [[NAN], [NAN]] | [[1], [NAN]]
NaN | y = ArgMax<axis = 1>(p) | ROWS | [[1], [0]] | [[2], [0]]
NaN | y = ArgMin<axis = 1>(p) | ROWS | [[1], [0]] | [[0], [0]]
NaN | y = MaxPool<kernel_shape = [2]>(p) | ROWS[None] | [[[NAN, NAN], [NAN, 2]]] |
  [[[1, 3], [2, 2]]]
the mean of nothing | @13 y = ReduceMean<axes = [1]>(p) | np.zeros((1, 0), F) |
  [[NAN]] | [[0]]
no axes | float[u,v] y {y = Squeeze(p, q)} | np.ones((1, 2), F), np.zeros(0, int) |
  [[1, 1]] | [1, 1]
a beta of 0 | y = Gemm<beta = 0.0>(p, q, r) | F([[1]]), F([[1]]), F([[NAN]]) |
  [[NAN]] | [[1]]
reflection beyond the axis | y = Pad<mode = "reflect">(p, q) | F([0, 1, 2]), [0, 4] |
  [0, 1, 2, 1, 0, 1, 2] | REFUSED
the scale of zeros | z, y, i = DynamicQuantizeLinear(p) | F([0, 0, 0]) | 0 | 1
the scale of nothing | z, y, i = DynamicQuantizeLinear(p) | F([]) | 0 | 1
default parameters of Affine | one = Constant<value: tensor = float[1,1,1] {1.0}>()
  y, h = RNN<hidden_size = 1, activations = ["Affine"]>(p, one, one) | STEPS |
  [[[[0.5]]], [[[0.75]]]] | [[[[0]]], [[[0]]]]
a threshold is reached | y, h = RNN<hidden_size = 1, activations = ["ThresholdedRelu"],
  activation_alpha = [0.5]>(p, q, r) | STEPS, F([[[1]]]), F([[[0]]]) |
  [[[[0.5]]], [[[0]]]] | [[[[0]]], [[[0]]]]
a length is a fraction | y = Resize<mode = "nearest", coordinate_transformation_mode =
  "align_corners">(p, , q) | np.arange(5, dtype=F), F([1.5]) |
  [0, 1, 1, 2, 2, 3, 4] | [0, 1, 1, 2, 3, 3, 4]
quotients of sizes are exact | n = Constant<value_ints = [1]>()
  y = Resize<mode = "nearest", nearest_mode = "floor">(p, , , n) |
  np.arange(7, dtype=F) | [3] | [2]
an axis of one element | float[a,b,c,d] y {y = AffineGrid<align_corners = 1>(p, q)} |
  F([[[1, 0, 0], [0, 1, 0]]]), [1, 1, 1, 2] | [[[[-1, -1], [1, -1]]]] |
  [[[[-1, 1], [1, 1]]]]
strides beyond the kernel | float[a,b,c] y {y = ConvTranspose<strides = [3], auto_pad =
  "SAME_UPPER">(p, q)} | F([[[1, 2]]]), F([[[1]]]) | [[[1, 0, 0, 2, 0, 0]]] |
  [[[1, 0, 0, 2]]]
the cell is clipped before its activation | z, y, c = LSTM<hidden_size = 1, clip = 0.5,
  activations = ["Sigmoid", "Tanh", "Relu"]>(p, q, q, , , , r) |
  F([[[0]]]), np.zeros((1, 4, 1), F), F([[[20]]]) | [[[0.25]]] | [[[5]]]
""")


@pytest.mark.parametrize(("reason", "text", "inputs", "ours", "theirs"), DIFFERENCES)
def test_differences(
    reason: str, text: str, inputs: str, ours: str, theirs: str
) -> None:
    given = arrays(inputs)
    source = model_of(text, given)
    place = [output.name for output in source.graph.output].index("y")
    found = onnx_backend.prepare(source).run(given)[place]
    require_same(found, eval(ours, NAMES), reason)
    if theirs == "REFUSED":
        with pytest.raises(onnxruntime_pybind11_state.InvalidArgument):
            runtime_outputs(source, given)
    else:
        result = runtime_outputs(source, given)[place]
        require_same(result, eval(theirs, NAMES), reason)


def require_same(found: Any, wanted: Any, reason: str) -> None:
    np.testing.assert_array_equal(found, wanted, reason)
    assert np.shape(found) == np.shape(wanted)
