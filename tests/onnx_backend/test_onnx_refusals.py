"""Nodes that refuse their inputs, most of which ONNX Runtime refuses, too."""

import jax
import numpy as np
import pytest
from onnx_models import LENGTHS, F, X, model_of, require_error, rows, runtime_outputs
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[attr-defined]

from dml_jax import onnx_backend

KINDS = "Fail InvalidArgument InvalidGraph NotImplemented RuntimeException"
ERRORS = tuple(getattr(onnxruntime_pybind11_state, kind) for kind in KINDS.split())


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def b(*shape: int) -> np.ndarray:
    return np.ones(shape, np.uint8)


ROWS = np.array([[0, 1], [1, 0]])
CONV = b(1, 1, 3), f(), b(), b(1, 1, 2)
STEPS = f(5, 3, 2)
SELF = f(2, 3, 8), f(8, 24), f(24)
NAMES = {"np": np, "n": np.array, "f": f, "b": b, "F": F, "X": X, "ROWS": ROWS}
NAMES |= {"LENGTHS": LENGTHS, "CONV": CONV, "STEPS": STEPS, "SELF": SELF}
SELF_ATTENTION = "com.microsoft.Attention<num_heads = 2"
# Nodes, the inputs p, q, r, ... and what follows the name of the last node.
REFUSED = r"""
y = ReverseSequence(p, q) | X, LENGTHS + 1 | `sequence_lens` must be in \[0, 3\]; got
  4$$
y = ReverseSequence(p, q) | X, -LENGTHS | `sequence_lens` must be in \[0, 3\]; got -1
y = ReverseSequence(p, q) | X, LENGTHS[1:] | reverse_sequence: `sequence_lens` must have
  shape \(4,\)
y = ReverseSequence<batch_axis = 0>(p, q) | X, LENGTHS | reverse_sequence: `batch_axis`
y = ReverseSequence<batch_axis = 2, time_axis = 1>(p, q) | X, LENGTHS |
  reverse_sequence: `batch_axis`
y = ReverseSequence<batch_axis = 0, time_axis = 2>(p, q) | X, LENGTHS |
  reverse_sequence: `time_axis`
y = Slice(p, q, q, q) | X, [0, 0] | `axes` must be unique; got \[0, 0\]$$
y = Slice(p, q, r, s, t) | X, [0, 0], [0, 0], [-1, 1], [1, 1] | `axes` must be unique;
  got \[1, 1\]$$
y = Slice(p, q, r, s, t) | X, [0], [0], [2], [1] | `axes` must be in \[-2, 2\); got 2$$
@9 y = Slice<starts = [0], ends = [1], axes = [4]>(p) | X, [0] | `axes` must be in
y = Slice(p, q, r, s, t) | X, [0], [0], [0], [0] | `steps` must be nonzero; got \[0\]$$
y = Slice(p, q, r, s, t) | X, [0, 0], [0], [0], [1] | `starts`, `ends`, `axes` and
  `steps` must have the same length; got lengths \(2, 1, 1, 1\)$$
y = Slice(p, q, q) | X, 0 | `starts` must have one dimension; got 0$$
y = Range(p, q, r) | F(1), F(5), F(0) | `delta` must be nonzero; got 0$$
y = Range(p, q, r) | F("nan"), F(5), F(1) | `start` must be finite; got nan$$
y = Range(p, q, r) | F(0), F("-inf"), F(1) | `limit` must be finite
y = Range(p, q, r) | F(0), F(2**60), F(1) | fill_value_sequence: `sizes`
y = Range(p, q, p) | F(1), X[0] | `limit` must be a scalar; got shape \(4,\)$$
float[m] y {y = ConstantOfShape(p)} | [-1] | fill_value_constant: `sizes\[0\]`
float[m] y {y = ConstantOfShape(p)} | [2**60] | fill_value_constant: `sizes`
float[m] y {y = ConstantOfShape<value: tensor = float[2] {1, 2}>(p)} | [0] | `value`
  must have one element; got 2
@1 float[3] y {y = Cast<to = "FLOTE">(p)} | X[:, 0] | .*FLOTE
@1 float[3] y {y = Cast<to = "UNDEFINED">(p)} | X[:, 0] | `to` must be a data type; got
  0$$
y = GatherElements(p, q) | X, ROWS[:, [0] * 5] | `indices` must have rank 2, and at most
  the sizes \(3, 4\) of `data` on axes other than 0; got shape \(2, 5\)$$
y = GatherElements<axis = 1>(p, q) | X, ROWS[[0] * 4] | `indices` must have rank 2, and
y = GatherElements(p, q) | X, LENGTHS | `indices` must have rank 2, .* got shape
  \(4,\)$$
float[k] y {y = GatherND<batch_dims = 1>(p, q)} | X, ROWS[:, :1] | `indices` must have
  the sizes \(3,\) of `data` on its first axes, and at most 1 on its last axis; got
  shape \(2, 1\)$$
float[k] y {y = GatherND(p, q)} | X, ROWS[:, [0] * 3] | `indices` must have the sizes
  \(\) of `data` on its first axes, and at most 2 on its last axis; got shape \(2, 3\)$$
y = ScatterElements(p, q, r) | X, ROWS, X[:1, :2] | `updates` must have shape \(2, 2\);
  got \(1, 2\)$$
y = ScatterElements<axis = 1>(p, q, r) | X[:1], ROWS, X[:2, :2] | `indices` must have
  rank 2, and at most the sizes \(1, 4\) of `data` on axes other than 1
y = ScatterND(p, q, r) | X, ROWS, X[:1, 0] | `updates` must have shape \(2,\); got
y = ScatterND(p, q, r) | X, ROWS[:, :1], X[0] | `updates` must have shape \(2, 4\); got
y = OneHot(p, q, r) | LENGTHS, 4, X[0, :3] | `values` must have shape \(2,\); got
  \(3,\)$$
y = Gemm(p, q, r) | X[:1], X.T, X[:, :3] | `C` must broadcast to shape \(1, 3\); got
  \(3, 3\)$$
y = Einsum<equation = "ii->i">(p) | X[:1, :3] | .*
float[b,d,l] y {y = Conv(p, q)} | X[None, :, :2], X[None, :, :3] | `X` must have at
  least 3 elements with padding on each axis of the kernel; got 2$$
float[b,d,l] y {y = Conv<dilations = [2]>(p, q)} | X[None], X[None, :, :3] | `X` must
  have at least 5
float[b,d,l] y {y = Conv<strides = [2]>(p, q)} | X[None], X[None, :2, :2] | $fit Conv;
  got `X` \(1, 3, 4\), `W` \(1, 2, 2\): 3 channels for a kernel of 2$$
float[b,d,l] y {y = Conv(p, q, r)} | X[None], X[None, [0, 1, 2] * 2].reshape(2, 3, 4),
  X[0, :1] | `B` must have shape \(2,\); got \(1,\)$$
@15 y = BatchNormalization(p, q, q, q, q) | X[:, :1], X[0], X[0] | `scale` must have
  shape \(1,\); got
@15 y = BatchNormalization(p, q, q, q, r) | X, X[0], X[0, :1] | `input_var` must have
  shape \(4,\)
@17 y = LayerNormalization(p, q, q) | X[:, :1], X[0], X[0] | `Scale` must broadcast to
  shape \(3, 1\); got \(4,\)$$
@17 y = LayerNormalization(p, r, q) | X[:, :1], X[0], X[0, :1] | `B` must broadcast to
  shape \(3, 1\)
@23 y = RMSNormalization(p, q) | X[:, :1], X[0] | `scale` must broadcast to shape \(3,
  1\); got \(4,\)$$
@13 y, i = Split<axis = 0>(p) | X | `input` must have equal parts on the axis; got \[2,
  1\]$$
@18 y, i, z = Split<num_outputs = 3>(p) | X[:1] | `split` must be sizes whose sum is 1;
  got \[1, 1, -1\]$$
float[b,d,l] y {y = Conv<auto_pad = "SAME">(p, q)} | X[None], X[None, :, :3] |
  `auto_pad` must be one of NOTSET, VALID, SAME_UPPER, SAME_LOWER; got 'SAME'$$
y = Gelu<approximate = "erf">(p) | X[:, 0] | `approximate` must be one of none, tanh
y = BitShift<direction = "UP">(p, p) | np.uint8([1]) | `direction` must be one of
y = Pad<mode = "symmetric">(p, q) | X, [1, 0, 0, 0] | `mode` must be one of constant,
  reflect, edge, wrap; got 'symmetric'
float[k,l] y {y = ReduceSum(p, q)} | X, [[1]] | `axes` must have one dimension; got 2$$
float[n] y {s = SequenceEmpty() y = ConcatFromSequence<axis = 0>(s)} | X[:, 0] |
  `input_sequence` must have an array; got an empty sequence$$
s = SequenceConstruct(p, p) y = SequenceAt(s, q) | X[:, 0], 2 | `position` must be in
  \[-2, 2\); got 2$$
s = SequenceConstruct(p, p) y = SequenceAt(s, q) | X[:, 0], -3 | `position` must be in
  \[-2, 2\); got -3$$
float[a] y {y = Squeeze(p, q)} | f(1, 3), n(0) | `axes` must have one dimension; got 0$$
y, i = TopK(p, q) | f(2, 3), n([[1]]) | `K` must have shape \(1,\); got \(1, 1\)$$
y = CumSum(p, q) | f(3), n([[0]]) | `axis` must be a scalar; got shape \(1, 1\)$$
@26 y = CumProd(p, q) | f(3), n([[0]]) | `axis` must be a scalar
y = Trilu(p, q) | f(2, 3), n([[0]]) | `k` must be a scalar
y = Clip(p, q) | f(3), f(1, 1) | `min` must be a scalar; got shape \(1, 1\)$$
y = Clip(p, , q) | f(3), f(1, 1) | `max` must be a scalar
int32[a,b,c] y {y = ConvInteger(p, q, r)} | b(1, 1, 3), b(1, 1, 2), b(1, 1) |
  `x_zero_point` must be a scalar; got shape \(1, 1\)$$
y = MatMulInteger(p, q, r) | b(1, 4), b(4, 2), b(3) | `a_zero_point` must broadcast to
  shape \(1, 1\); got \(3, 1\)$$
y = MatMulInteger(p, q, r, s) | b(3, 4), b(4, 1), b(), b(2) | `b_zero_point` must
  broadcast to shape \(1, 1\); got \(2,\)$$
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | *CONV, f(2), b(), f(), b() |
  `w_scale` must be a scalar; got shape \(2,\)$$
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | *CONV, f(), b(0), f(), b() |
  `w_zero_point` must be a scalar; got shape \(0,\)$$
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | *CONV, f(), b(), f(1, 1), b()
  | `y_scale` must be a scalar
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | *CONV, f(), b(), f(), b(1, 1)
  | `y_zero_point` must be a scalar
@21 y = QLinearMatMul(p, q, r, s, t, u, v, w) | b(2, 4), f(), b(), b(4, 3), f(), b(),
  f(1, 1), b() | `y_scale` must be a scalar; got shape \(1, 1\)$$
@21 y = QuantizeLinear(p, q, r) | f(2, 3), f(1), b(3) | `zero_point` must be a scalar;
  got shape \(3,\)$$
@21 y = DequantizeLinear(p, q, r) | b(2, 3), f(3), b(1) | `zero_point` must have shape
  \(3,\); got \(1,\)$$
y = ConvTranspose<kernel_shape = [3]>(p, q) | f(1, 1, 3), f(1, 2, 2) | `kernel_shape`
  must be \(2,\), as of `W`; got \(3,\)$$
float[a,b,c] y {y = ConvTranspose(p, q)} | f(1, 2, 3), f(1, 2, 2) | `W` must have 2
  elements on its first axis
float[a,b,c] y {y = ConvTranspose(p, q, r)} | f(1, 1, 3), f(1, 2, 2), f(1) | `B` must
  have shape \(2,\); got \(1,\)$$
float[a,b,c] y {y = ConvTranspose<strides = [3], output_shape = [9]>(p, q)} | f(1, 1,
  2), f(1, 2, 3) | `output_shape` must be below 9 for an axis .*; got 9$$
@20 y = DFT(p, , q) | f(1, 4, 3), n(1) | `input` must have 1 or 2 elements on its last
  axis; got shape \(1, 4, 3\)$$
@20 y = DFT(p, , q) | f(1, 4, 2), n(2) | `axis` must not be the last one; got 2$$
@20 y = DFT<inverse = 1, onesided = 1>(p, , q) | f(1, 4, 1), n(1) | `input` must have 2
  elements on its last axis
@17 float[a,b,c,d] y {y = STFT(p, q, r)} | f(1, 8, 1, 1), n(2), f(4) | `signal` must
  have rank 3; got shape \(1, 8, 1, 1\)$$
y = GridSample(p, q) | f(1, 1, 4, 4), f(1, 2, 2, 3) | `grid` must have shape \(1, 2, 2,
  2\); got \(1, 2, 2, 3\)$$
y = InstanceNormalization(p, q, r) | f(1, 2, 3), f(1), f(2) | `scale` must have shape
  \(2,\); got \(1,\)$$
y = InstanceNormalization(p, q, r) | f(1, 2, 3), f(2), f(1) | `B` must
y = NonMaxSuppression(p, q, r) | f(2, 3, 4), f(1, 1, 3), n(1) | `scores` must have shape
  \(2, classes, 3\); got \(1, 1, 3\)$$
y = TensorScatter<axis = 1>(p, q, r) | f(2, 4, 3), f(2, 2, 1), n([0, 0]) | `update` must
  have shape \(2, 2, 3\); got \(2, 2, 1\)$$
y = TensorScatter<axis = 1>(p, q, r) | f(2, 4, 3), f(2, 2, 3), n([0]) | `write_indices`
  must have shape \(2,\); got \(1,\)$$
@23 y = RotaryEmbedding(p, q, r) | f(2, 1, 3, 4), f(2, 3, 1), f(2, 3, 2) | `cos_cache`
  must have shape \(2, 3, 2\); got \(2, 3, 1\)$$
@23 y = RotaryEmbedding(p, q, r, s) | f(2, 1, 3, 4), f(5, 2), f(4, 2), n([[0, 0, 0]] *
  2) | `sin_cache` must have shape \(5, 2\); got \(4, 2\)$$
@23 y = RotaryEmbedding(p, q, r, s) | f(2, 1, 3, 4), f(5, 2), f(5, 2), n([[0, 0, 0]]) |
  `position_ids` must have shape \(2, 3\); got \(1, 3\)$$
@23 y = Attention(p, q, r) | f(2, 1, 3, 4), f(1, 1, 5, 4), f(2, 1, 5, 4) | `K` must have
  shape \(2, key_heads, key_steps, 4\); got \(1, 1, 5, 4\)
@23 y = Attention(p, q, r) | f(2, 1, 3, 4), f(2, 1, 5, 4), f(2, 1, 1, 4) | `V` must have
  shape \(2, 1, 5, value_size\); got \(2, 1, 1, 4\)$$
@23 y = Attention(p, q, r, s) | f(2, 1, 1, 4), f(2, 1, 5, 4), f(2, 1, 5, 4), f(3, 5) |
  `attn_mask` must broadcast to shape \(2, 1, 1, 5\); got \(3, 5\)$$
@20 float[a,b,c,d] y {y = AffineGrid(p, q)} | f(3, 2, 3), n([2, 1, 4, 4]) | `theta` must
  have shape \(2, 2, 3\); got \(3, 2, 3\)$$
y = TensorScatter<axis = 1>(p, q, r) | f(2, 4, 3), f(2, 2, 3), n([0, 3]) |
  `write_indices` must be in \[0, 2\]; got 3$$
y = TensorScatter<axis = 1, mode = "circular">(p, q, r) | f(2, 4, 3), f(2, 2, 3), n([0,
  -1]) | `write_indices` must be in .*; got -1$$
y = AveragePool<kernel_shape = [2]>(p) | f(1, 0, 3) | `X` must have elements on all axes
  but the first one; got shape \(1, 0, 3\)$$
y = MaxPool<kernel_shape = [2], pads = [1, 1]>(p) | f(1, 2, 0) | `X` must have elements
  on all axes but the first one
y = GlobalAveragePool(p) | f(1, 2, 0) | `X` must have elements on all axes but the first
  one
float[a,b] y {y = Reshape(p, q)} | f(2, 3), n([-1, -1]) | `shape` must have -1 at most
  once; got \[-1, -1\]$$
y = Gemm(p, q) | f(2, 3), f(4, 5) | $fit Gemm; got `A` \(2, 3\), `B` \(4, 5\):
  dot_general requires contracting
y = PRelu(p, q) | f(2, 3), f(2) | $fit PRelu; got `X` \(2, 3\), `slope` \(2,\):
float[a,b,c] y {y = GroupNormalization<num_groups = 2>(p, q, r)} | f(1, 4, 2), f(3),
  f(3) | `scale` must have shape \(4,\); got \(3,\)$$
y = Sum(p, q, r) | f(3), f(1), f(2) | $fit Sum; got `data_0` \(3,\), `data_0` \(1,\),
  `data_0` \(2,\):
float[a] y {s = SequenceConstruct(p, q) y = ConcatFromSequence<axis = 0>(s)} | f(2),
  f(1, 2) | $fit ConcatFromSequence; got `input_sequence` \[\(2,\), \(1, 2\)\]:
y = Clip(p, , q) z = Add(y, r) | f(3), f(), f(2) | $fit Add; got `A` \(3,\), `B` \(2,\):
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | b(1, 2, 3), f(), b(), b(1, 1,
  2), f(), b(), f(), b() | $fit QLinearConv; got `x` \(1, 2, 3\),
@23 y = Attention<q_num_heads = 2, kv_num_heads = 2>(p, q, q, , r, r) | f(1, 2, 8), f(1,
  2, 6), f(1, 2, 1, 3) | $fit Attention; got `Q` \(1, 2, 8\), `K` \(1, 2, 6\), `V` \(1,
  2, 6\), `past_key` \(1, 2, 1, 3\), `past_value` [^`]*$$
@13 y = NegativeLogLikelihoodLoss(p, q) | f(3, 4), n([0, 9, 1]) | $fit
  NegativeLogLikelihoodLoss; got `input` \(3, 4\), `target` \(3,\): [^`]*: indices must
  be in \[-4, 3\]; got 9$$
float[a,b,c] y {y = ReduceMax(p, q)} | f(2, 3), n(1) | `axes` must have one dimension;
  got 0$$
float[a,b,c,d] y {y = com.microsoft.FusedConv(p, q, r, s)} | f(2, 4, 9, 8), f(6, 4, 3,
  3), f(6), f(6, 7, 6) | `Z` must have shape \(2, 6, 7, 6\)
float[a,b,c] y {y = com.microsoft.SkipLayerNormalization(p, q, r)} | f(2, 3, 8), f(2, 1,
  8), f(8) | `skip` must have shape \(2, 3, 8\); got \(2, 1, 8\)
float[a,b,c] y {y = com.microsoft.SkipLayerNormalization(p, p, q)} | f(2, 3, 8), f(1) |
  `gamma` must have shape \(8,\); got \(1,\)
float[a,b,c] y {y = com.microsoft.SkipLayerNormalization(p, p, q, r)} | f(2, 3, 8),
  f(8), f(1, 8) | `beta` must have shape \(8,\)
float[a,b,c] y {y = com.microsoft.SkipLayerNormalization(p, p, q, q, r)} | f(2, 3, 8),
  f(8), f(1) | `bias` must have shape \(8,\)
float[a,b,c] y {y = com.microsoft.FusedMatMul(p, q)} | f(2, 3, 8), f(7, 5) | $fit
  FusedMatMul; got `p` \(2, 3, 8\), `q` \(7, 5\):
float[a,b] y {y = com.microsoft.BiasGelu(p, q)} | f(3, 8), f(1) | `bias` must have shape
  \(8,\); got \(1,\)
float[a,b] y {y = com.microsoft.FastGelu(p, q)} | f(3, 8), f(1, 8) | `bias` must have
  shape \(8,\); got \(1, 8\)
float[a,b] y {y = com.microsoft.DynamicQuantizeMatMul(p, q, r, s, t)} | f(3, 8), b(8,
  5), f(), b(), f(1) | `bias` must have shape \(5,\)
float[a,b] y {y = com.microsoft.MatMulIntegerToFloat(p, q, r, s, t, u, v)} | b(3, 8),
  b(8, 5), f(), f(), b(), b(), f(1) | `bias` must have shape \(5,\)
float[a,b] y {y = com.microsoft.DequantizeLinear<axis = 0>(p, q, r)} | b(3, 8), f(1),
  b(3) | `zero_point` must be a scalar; got shape \(3,\)
float[a,b,c] y {y = $self>(p, q, r, s)} | *SELF, ROWS.astype(np.int32) | `mask_index`
  must have one of the shapes \(\(2,\), \(4,\), \(2, 3\), \(2, 3, 3\)\); got \(2, 2\)
float[a,b,c] y {y = $self>(p, q, r)} | *SELF[:2], f(8) | `bias` must have shape \(24,\)
float[a,b,c] y {y = $self, qkv_hidden_sizes = [8, 8, 4]>(p, q, r)} | *SELF |
  `qkv_hidden_sizes` must have the sum 24; got \[8, 8, 4\]
float[a,b,c] y {y = $self>(p, q, r, , , s)} | *SELF, f(2, 2, 1, 2) | `attention_bias`
  must broadcast to shape \(2, 2, 3, 3\); got \(2, 2, 1, 2\)
float[a,b,c] y {y = com.microsoft.RotaryEmbedding(p, q, r, r)} | SELF[0], ROWS[:, [0, 1,
  1]] + 1, f(2, 4) | `position_ids` must be in \[0, 1\]; got 2
y, h = GRU<hidden_size = 4, direction = "up">(p, q, r) | STEPS, f(1, 12, 2), f(1, 12, 4)
  | `direction` must be one of forward, reverse, bidirectional
y, h = GRU<hidden_size = 4, activations = ["Tanh"]>(p, q, r) | STEPS, f(1, 12, 2), f(1,
  12, 4) | `activations` must have 2 names; got 1$$
y, h = GRU<hidden_size = 4, activations = ["Tanh", "Sine"]>(p, q, r) | STEPS, f(1, 12,
  2), f(1, 12, 4) | `activations` must be known; got 'Sine'$$
y, h = GRU<hidden_size = 4>(p, q, r) | STEPS, f(1, 11, 2), f(1, 12, 4) | `W` must have
  shape \(1, 12, 2\); got \(1, 11, 2\)$$
y, h, c = LSTM<hidden_size = 4, direction = "bidirectional">(p, q, r) | STEPS, f(2, 16,
  2), f(1, 16, 4) | `R` must have shape \(2, 16, 4\); got \(1, 16, 4\)$$
y, h = RNN<hidden_size = 4>(p, q, r, s) | STEPS, f(1, 4, 2), f(1, 4, 4), f(1, 4) | `B`
  must have shape \(1, 8\); got \(1, 4\)$$
y, h, c = LSTM<hidden_size = 4>(p, q, r, , , , , s) | STEPS, f(1, 16, 2), f(1, 16, 4),
  f(1, 4) | `P` must have shape \(1, 12\); got \(1, 4\)$$
y, h, c = LSTM<hidden_size = 4>(p, q, r, , , , s) | STEPS, f(1, 16, 2), f(1, 16, 4),
  f(1, 1, 4) | `initial_c` must have shape \(1, 3, 4\); got \(1, 1, 4\)$$
y, h = GRU<hidden_size = 4, layout = 1>(p, q, r, , , s) | f(3, 5, 2), f(1, 12, 2), f(1,
  12, 4), f(1, 3, 4) | `initial_h` must have shape \(3, 1, 4\); got \(1, 3, 4\)$$
y, h = GRU<hidden_size = 4>(p, q, r, , s) | STEPS, f(1, 12, 2), f(1, 12, 4),
  np.int32([6, 0, 3]) | `sequence_lens` must be in \[0, 5\]; got 6$$
"""
# ONNX Runtime does not have these, or takes them: negative axes, an infinite delta; and
# no device can hold some sizes.
ONLY_HERE = r"""
float[u,v] y {y = Expand(p, q)} | X[:, 0], [2**60, 3] | `shape` must have at
  most 2\^48 elements; got 3458764513820540928$$
float[u,v] y {y = Expand(p, q)} | X[:, 0], [-1, 3] | `shape\[0\]` must be at
  least 0; got -1$$
y = Tile(p, q) | X[:, 0], [2**60] | `repeats` must have at most 2\^48 elements
y = Pad(p, q) | X[:, 0], [2**60, 0] | `pads` must have at most 2\^48 elements
y = Pad(p, q) | X[:, 0], [-4, 0] | `pads\[0\]` must be at least 0; got -1$$
y = OneHot(p, q, r) | [0, 1, 2], 2**60, X[0, :2] | `depth` must have at most
  2\^48 elements
y = Gather(p, q) | X[:, 0], [3] | `indices` must be in \[-3, 2\]; got 3$$
y = Compress<axis = 1>(p, q) | X, np.ones(5, bool) | `condition` must have one dimension
  of at most 4 elements; got shape \(5,\)$$
y = MaxPool<kernel_shape = [5]>(p) | X[None] | `X` must have at least 5 elements with
  padding on each axis of the kernel; got 4$$
float[b,d,l] y {y = Conv<pads = [1, 1, 1]>(p, q)} | X[None], X[None] | `pads` must have
  2 elements; got
y, i = TopK(p, q) | X, [5] | `K` must be in \[0, 4\]; got 5$$
float[u,v] y {y = ReduceSum(p, q)} | X, [2] | `axes` must be in \[-2, 2\); got 2$$
y = ReverseSequence<batch_axis = 0, time_axis = -1>(p, q) | X, LENGTHS |
  reverse_sequence: `time_axis`
y = ReverseSequence<batch_axis = -1, time_axis = 0>(p, q) | X, LENGTHS |
  reverse_sequence: `batch_axis`
y = Range(p, q, r) | F(0), F(1), F("inf") | `delta` must be finite
@28 y = Range<stash_type = 7>(p, q, r) | F(1), F(1), F(1) | `stash_type` must be 1
  \(FLOAT\) or 11 \(DOUBLE\); got 7$$
"""
TABLE = [
    (*row, is_shared)
    for table, is_shared in ((REFUSED, True), (ONLY_HERE, False))
    for row in rows(table, fit="the inputs must fit", self=SELF_ATTENTION)
]


@pytest.mark.parametrize(("text", "inputs", "message", "is_shared"), TABLE)
def test_refused(text: str, inputs: str, message: str, is_shared: bool) -> None:
    arrays = list(map(np.asarray, eval(f"[{inputs}]", NAMES)))
    model = model_of(text, arrays)
    node = model.graph.node[-1]
    kind = f"{node.domain}.{node.op_type}".lstrip(".")
    place = f"{kind} '{', '.join(node.output)}': "
    run = onnx_backend.prepare(model).run
    require_error(ValueError, place + message, run, arrays)
    if is_shared:
        with pytest.raises(ERRORS):
            runtime_outputs(model, arrays)


def test_messages_have_the_shapes_of_inputs() -> None:
    """Operators on images, whose channels are last while JAX traces."""
    arrays = np.zeros((1, 3, 5, 5), np.float32), np.zeros((4, 3, 2, 2), np.float32)
    bound = np.zeros(4, np.float32)
    text = "float[a,b,c,d] y {a = Conv(p, q) y = Clip(a, r)}"
    model = onnx_backend.prepare(model_of(text, [*arrays, bound]))
    message = r"Clip 'y': `min` must be a scalar; got shape \(4,\)$"
    require_error(ValueError, message, jax.jit(model.jax_fn), *arrays, bound)
