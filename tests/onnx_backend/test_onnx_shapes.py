"""Shapes that NumPy would broadcast, and ONNX excludes."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import parse, require_error, rows, runtime_session
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[attr-defined]

from dml_jax import onnx_backend


def f(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def b(*shape: int) -> np.ndarray:
    return np.ones(shape, np.uint8)


NAMES = {"float32": "float", "int64": "int64", "uint8": "uint8"}
OF_SCALARS = {"f": f, "b": b, "n": np.array, "F": np.float32}


def model_and_inputs(text: str, inputs: str) -> tuple[onnx.ModelProto, list[Any]]:
    """A model whose inputs p, q, r, ... have the types and ranks of the arrays."""
    arrays = list(eval(f"[{inputs}]", dict(OF_SCALARS)))
    opset, _, text = text.rpartition("/")
    infos = []
    for name, array in zip("pqrstuvwx", arrays, strict=False):
        dims = ",".join(f"{name}{i}" for i in range(array.ndim))
        infos.append(f"{NAMES[array.dtype.name]}{f'[{dims}]' if dims else ''} {name}")
    return parse(f"{', '.join(infos)} => {text}", int(opset or 25)), arrays


# Graphs after the inputs, "21/" in front for another opset, and the inputs.
REFUSED = rows(
    r"""
float[a] y {y = Squeeze(p, q)} | f(1, 3), n(0) |
  `axes` must have one dimension; got 0$$
float[a,b] y, int64[a,b] i {y, i = TopK(p, q)} | f(2, 3), n(1) |
  `K` must have shape \(1,\); got \(\)$$
float[a,b] y, int64[a,b] i {y, i = TopK(p, q)} | f(2, 3), n([[1]]) |
  `K` must have shape \(1,\); got \(1, 1\)$$
float[a] y {y = CumSum(p, q)} | f(3), n([[0]]) |
  `axis` must be a scalar; got shape \(1, 1\)$$
26/float[a] y {y = CumProd(p, q)} | f(3), n([[0]]) | `axis` must be a scalar
float[a,b] y {y = Trilu(p, q)} | f(2, 3), n([[0]]) | `k` must be a scalar
float[a] y {y = Clip(p, q)} | f(3), f(1, 1) |
  `min` must be a scalar; got shape \(1, 1\)$$
float[a] y {y = Clip(p, , q)} | f(3), f(1, 1) | `max` must be a scalar
int32[a,b,c] y {y = ConvInteger(p, q, r)} | b(1, 1, 3), b(1, 1, 2), b(1, 1) |
  `x_zero_point` must be a scalar; got shape \(1, 1\)$$
int32[a,b] y {y = MatMulInteger(p, q, r)} | b(1, 4), b(4, 2), b(3) |
  `a_zero_point` must broadcast to shape \(1, 1\); got \(3, 1\)$$
int32[a,b] y {y = MatMulInteger(p, q, r, s)} | b(3, 4), b(4, 1), b(), b(2) |
  `b_zero_point` must broadcast to shape \(1, 1\); got \(2,\)$$
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | $conv_inputs, f(2), b(), f(),
  b() | `w_scale` must be a scalar; got shape \(2,\)$$
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | $conv_inputs, f(), b(0), f(),
  b() | `w_zero_point` must be a scalar; got shape \(0,\)$$
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | $conv_inputs, f(), b(),
  f(1, 1), b() | `y_scale` must be a scalar
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | $conv_inputs, f(), b(), f(),
  b(1, 1) | `y_zero_point` must be a scalar
21/uint8[a,b] y {y = QLinearMatMul(p, q, r, s, t, u, v, w)} | b(2, 4), f(), b(),
  b(4, 3), f(), b(), f(1, 1), b() | `y_scale` must be a scalar; got shape \(1, 1\)$$
21/uint8[a,b] y {y = QuantizeLinear(p, q, r)} | f(2, 3), f(1), b(3) |
  `zero_point` must be a scalar; got shape \(3,\)$$
21/float[a,b] y {y = DequantizeLinear(p, q, r)} | b(2, 3), f(3), b(1) |
  `zero_point` must have shape \(3,\); got \(1,\)$$
float[a,b,c] y {y = ConvTranspose<kernel_shape = [3]>(p, q)} | f(1, 1, 3), f(1, 2, 2) |
  `kernel_shape` must be \(2,\), as of `W`; got \(3,\)$$
float[a,b,c] y {y = ConvTranspose(p, q)} | f(1, 2, 3), f(1, 2, 2) |
  `W` must have 2 elements on its first axis
float[a,b,c] y {y = ConvTranspose(p, q, r)} | f(1, 1, 3), f(1, 2, 2), f(1) |
  `B` must have shape \(2,\); got \(1,\)$$
float[a,b,c] y {y = ConvTranspose<strides = [3], output_shape = [10]>(p, q)} |
  f(1, 1, 2), f(1, 2, 3) | `output_shape` must be below 9 for an axis .*; got 10$$
20/float[a,b,c] y {y = DFT(p, , q)} | f(1, 4, 3), n(1) |
  `input` must have 1 or 2 elements on its last axis; got shape \(1, 4, 3\)$$
20/float[a,b,c] y {y = DFT<inverse = 1, onesided = 1>(p, , q)} | f(1, 4, 1), n(1) |
  `input` must have 2 elements on its last axis
17/float[a,b,c,d] y {y = STFT(p, q, r)} | f(1, 8, 1, 1), n(2), f(4) |
  `signal` must have rank 3; got shape \(1, 8, 1, 1\)$$
float[a,b,c,d] y {y = GridSample(p, q)} | f(1, 1, 4, 4), f(1, 2, 2, 3) |
  `grid` must have shape \(1, 2, 2, 2\); got \(1, 2, 2, 3\)$$
float[a,b,c,d] y {y = GridSample(p, q)} | f(1, 1, 4, 4), f(1, 2, 2, 1) | `grid` must
float[a,b,c] y {y = InstanceNormalization(p, q, r)} | f(1, 2, 3), f(1), f(2) |
  `scale` must have shape \(2,\); got \(1,\)$$
float[a,b,c] y {y = InstanceNormalization(p, q, r)} | f(1, 2, 3), f(2, 1), f(2) |
  `scale` must have shape \(2,\); got \(2, 1\)$$
float[a,b,c] y {y = InstanceNormalization(p, q, r)} | f(1, 2, 3), f(2), f(1) | `B` must
int64[a,b] y {y = NonMaxSuppression(p, q, r)} | f(2, 3, 4), f(1, 1, 3), n(1) |
  `scores` must have shape \(2, classes, 3\); got \(1, 1, 3\)$$
int64[a,b] y {y = NonMaxSuppression(p, q, r)} | f(1, 3, 4), f(1, 1, 2), n(1) |
  `scores` must have shape \(1, classes, 3\); got \(1, 1, 2\)$$
float[a,b,c] y {y = TensorScatter<axis = 1>(p, q, r)} | f(2, 4, 3), f(2, 2, 1),
  n([0, 0]) | `update` must have shape \(2, 2, 3\); got \(2, 2, 1\)$$
float[a,b,c] y {y = TensorScatter<axis = 1>(p, q, r)} | f(2, 4, 3), f(1, 2, 3),
  n([0, 0]) | `update` must have shape \(2, 2, 3\); got \(1, 2, 3\)$$
float[a,b,c] y {y = TensorScatter<axis = 1>(p, q, r)} | f(2, 4, 3), f(2, 2, 3), n([0]) |
  `write_indices` must have shape \(2,\); got \(1,\)$$
23/float[a,b,c,d] y {y = RotaryEmbedding(p, q, r)} | f(2, 1, 3, 4), f(2, 3, 1),
  f(2, 3, 2) | `cos_cache` must have shape \(2, 3, 2\); got \(2, 3, 1\)$$
23/float[a,b,c,d] y {y = RotaryEmbedding(p, q, r, s)} | f(2, 1, 3, 4), f(5, 2), f(4, 2),
  n([[0, 0, 0]] * 2) | `sin_cache` must have shape \(5, 2\); got \(4, 2\)$$
23/float[a,b,c,d] y {y = RotaryEmbedding(p, q, r, s)} | f(2, 1, 3, 4), f(5, 2), f(5, 2),
  n([[0, 0, 0]]) | `position_ids` must have shape \(2, 3\); got \(1, 3\)$$
23/float[a,b,c,d] y {y = Attention(p, q, r)} | f(2, 1, 3, 4), f(1, 1, 5, 4),
  f(2, 1, 5, 4) | `K` must have shape \(2, key_heads, key_steps, 4\); got \(1, 1, 5, 4\)
23/float[a,b,c,d] y {y = Attention(p, q, r)} | f(2, 1, 3, 4), f(2, 1, 5, 1),
  f(2, 1, 5, 4) | `K` must have shape
23/float[a,b,c,d] y {y = Attention(p, q, r)} | f(2, 1, 3, 4), f(2, 1, 5, 4),
  f(2, 1, 1, 4) | `V` must have shape \(2, 1, 5, value_size\); got \(2, 1, 1, 4\)$$
23/float[a,b,c,d] y {y = Attention(p, q, r, s)} | f(2, 1, 1, 4), f(2, 1, 5, 4),
  f(2, 1, 5, 4), f(3, 5) | `attn_mask` must broadcast to shape \(2, 1, 1, 5\); got
  \(3, 5\)$$
20/float[a,b,c,d] y {y = AffineGrid(p, q)} | f(3, 2, 3), n([2, 1, 4, 4]) |
  `theta` must have shape \(2, 2, 3\); got \(3, 2, 3\)$$
float[a,b,c] y {y = TensorScatter<axis = 1>(p, q, r)} | f(2, 4, 3), f(2, 2, 3),
  n([0, 3]) | `write_indices` must be in \[0, 2\]; got 3$$
float[a,b,c] y {y = TensorScatter<axis = 1, mode = "circular">(p, q, r)} | f(2, 4, 3),
  f(2, 2, 3), n([0, -1]) | `write_indices` must be in .*; got -1$$
float[a,b,c] y {y = AveragePool<kernel_shape = [2]>(p)} | f(1, 0, 3) |
  `X` must have elements on all axes but the first one; got shape \(1, 0, 3\)$$
float[a,b,c] y {y = MaxPool<kernel_shape = [2], pads = [1, 1]>(p)} | f(1, 2, 0) |
  `X` must have elements on all axes but the first one
float[a,b,c] y {y = GlobalAveragePool(p)} | f(1, 2, 0) |
  `X` must have elements on all axes but the first one
float[a,b] y {y = Reshape(p, q)} | f(2, 3), n([-1, -1]) |
  `shape` must have -1 at most once; got \[-1, -1\]$$
float[a,b] y {y = Gemm(p, q)} | f(2, 3), f(4, 5) |
  $fit Gemm; got `A` \(2, 3\), `B` \(4, 5\): dot_general requires contracting
float[a,b] y {y = MatMul(p, q)} | f(2, 3), f(4, 5) |
  $fit MatMul; got `A` \(2, 3\), `B` \(4, 5\): dot_general requires contracting
float[a,b] y {y = PRelu(p, q)} | f(2, 3), f(2) |
  $fit PRelu; got `X` \(2, 3\), `slope` \(2,\):
float[a,b,c,d] y {y = DepthToSpace<blocksize = 2>(p)} | f(1, 3, 2, 2) |
  $fit DepthToSpace; got `input` \(1, 3, 2, 2\): cannot reshape
float[a,b,c,d] y {y = SpaceToDepth<blocksize = 2>(p)} | f(1, 1, 3, 2) |
  $fit SpaceToDepth; got `input` \(1, 1, 3, 2\):
float[a,b,c,d] y {y = Col2Im(p, q, r)} | f(1, 5, 4), n([3, 3]), n([2, 2]) |
  $fit Col2Im; got `input` \(1, 5, 4\), `image_shape` \(2,\), `block_shape` \(2,\):
float[a,b,c] y {y = GroupNormalization<num_groups = 2>(p, q, r)} | f(1, 4, 2), f(3),
  f(3) | $fit GroupNormalization; got `X` \(1, 4, 2\), `scale` \(3,\), `bias` \(3,\):
  \w+ '.*': (?!.*$fit)
float[a] y {y = Sum(p, q, r)} | f(3), f(1), f(2) |
  $fit Sum; got `data_0` \(3,\), `data_0` \(1,\), `data_0` \(2,\):
float[a,b] y {y = Concat<axis = 0>(p, q)} | f(2, 3), f(2, 4) |
  $fit Concat; got `inputs` \(2, 3\), `inputs` \(2, 4\):
float[a] y {s = SequenceConstruct(p, q) y = ConcatFromSequence<axis = 0>(s)} | f(2),
  f(1, 2) | $fit ConcatFromSequence; got `input_sequence` \[\(2,\), \(1, 2\)\]:
float[a] y {y = Clip(p, , q) z = Add(y, r)} | f(3), f(), f(2) |
  $fit Add; got `A` \(3,\), `B` \(2,\):
uint8[a,b,c] y {y = QLinearConv(p, q, r, s, t, u, v, w)} | b(1, 2, 3), f(), b(),
  b(1, 1, 2), f(), b(), f(), b() | $fit QLinearConv; got `x` \(1, 2, 3\),
23/float[a,b,c] y {y = Attention<q_num_heads = 2, kv_num_heads = 2>(p, q, q, , r, r)} |
  f(1, 2, 8), f(1, 2, 6), f(1, 2, 1, 3) | $fit Attention; got `Q` \(1, 2, 8\),
  `K` \(1, 2, 6\), `V` \(1, 2, 6\), `past_key` \(1, 2, 1, 3\), `past_value` [^`]*$$
13/float y {y = NegativeLogLikelihoodLoss(p, q)} | f(3, 4), n([0, 9, 1]) |
  $fit NegativeLogLikelihoodLoss; got `input` \(3, 4\), `target` \(3,\): [^`]*: indices
  must be in \[-4, 4\); got 9$$
""".replace("$fit", "the inputs must fit").replace(
        "$conv_inputs", "b(1, 1, 3), f(), b(), b(1, 1, 2)"
    )
)
REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
REFUSED += [
    (
        f"float[a,b] y {{y = Reduce{name}(p, q)}}",
        "f(2, 3), n(1)",
        "`axes` must have one dimension; got 0$",
    )
    for name in REDUCTIONS.split()
]


@pytest.mark.parametrize(("text", "inputs", "message"), REFUSED)
def test_refused(text: str, inputs: str, message: str) -> None:
    model, arrays = model_and_inputs(text, inputs)
    node = model.graph.node[-1]
    place = f"{node.op_type} '{', '.join(node.output)}': "
    run = onnx_backend.prepare(model).run
    require_error(ValueError, place + message, run, arrays)


@pytest.mark.parametrize(("text", "inputs", "message"), REFUSED)
def test_onnx_runtime_refuses_them_too(text: str, inputs: str, message: str) -> None:
    del message
    model, arrays = model_and_inputs(text, inputs)
    kinds = "Fail InvalidArgument InvalidGraph RuntimeException"
    errors = tuple(getattr(onnxruntime_pybind11_state, kind) for kind in kinds.split())

    def run() -> None:
        feeds = dict(zip("pqrstuvwx", arrays, strict=False))
        runtime_session(model).run(None, feeds)

    with pytest.raises(errors):
        run()


# What ONNX, or at least ONNX Runtime, permits.
PERMITTED = rows(r"""
float[a,b] y {y = Unsqueeze(p, q)} | f(3), n(0)
float[a] y {y = CumSum(p, q)} | f(3), n([0])
float[a,b] y {y = Trilu(p, q)} | f(2, 3), n([1])
float[a] y {y = Clip(p, q, r)} | f(3), f(1), f(1)
float[a,b] y {y = ReduceMax(p, q)} | f(2, 3), n([0, 1])
int32[a,b] y {y = MatMulInteger(p, q, r, s)} | b(3, 4), b(4, 2), b(), b(2)
21/uint8[a,b] y {y = QuantizeLinear(p, q, r)} | f(2, 3), f(1), b()
float[a,b,c] y {y = ConvTranspose<strides = [3], output_shape = [8]>(p, q)} |
  f(1, 1, 2), f(1, 2, 3)
float[a,b,c] y {y = TensorScatter<axis = 1>(p, q)} | f(2, 4, 3), f(2, 2, 3)
float[a,b] y {y = Resize<mode = "linear">(p, , q)} | f(1, 3), n([0.5, 2.0], F)
float[a,b] y {y = Resize<mode = "cubic">(p, , q)} | f(3, 0), n([2.0, 1.0], F)
float[a,b] y {y = Resize(p, , q)} | f(0, 2), n([2.0, 2.0], F)
float[a,b,c] y {y = TensorScatter<axis = 1, mode = "circular">(p, q, r)} |
  f(2, 4, 3), f(2, 2, 3), n([3, 5])
float[a,b,c] y {y = ConvTranspose(p, q)} | f(1, 1, 0), f(1, 2, 3)
23/float[a,b,c] y {y = Attention<q_num_heads = 2, kv_num_heads = 1>(p, q, r)} |
  f(2, 3, 8), f(2, 5, 4), f(2, 5, 6)
""")


@pytest.mark.parametrize(("text", "inputs"), PERMITTED)
def test_permitted(text: str, inputs: str) -> None:
    model, arrays = model_and_inputs(text, inputs)
    feeds = dict(zip("pqrstuvwx", arrays, strict=False))
    wanted: Any = runtime_session(model).run(None, feeds)
    for actual, array in zip(
        onnx_backend.prepare(model).run(arrays), wanted, strict=True
    ):
        assert actual.shape == array.shape
        np.testing.assert_allclose(actual, array, 1e-6)
