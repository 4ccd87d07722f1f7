"""A user's program for DirectML's descriptions, which pyright checks.

Nothing runs it: pyright accepts the arguments that the documents show, and knows the
types of the results.
"""

from typing import assert_type

import jax.numpy as jnp
import numpy as np

from dml_jax.directml import (
    BufferTensorDesc,
    DataType,
    FeatureLevel,
    FillValueConstantOperatorDesc,
    FillValueSequenceOperatorDesc,
    GraphDesc,
    InputGraphEdgeDesc,
    OperatorGraphNodeDesc,
    OutputGraphEdgeDesc,
    ReverseSubsequencesOperatorDesc,
    ScalarUnion,
    Slice1OperatorDesc,
    SliceGradOperatorDesc,
    SliceOperatorDesc,
    TensorFlags,
    calc_buffer_tensor_size,
    compile_graph,
    compile_operator,
)

# Data types by name or dtype, and sizes as lists
frames = BufferTensorDesc("float32", sizes=[2, 3])
lengths = BufferTensorDesc(np.uint32, [2, 1], strides=[1, 0])
part = BufferTensorDesc(jnp.float32, (2, 2), None, None, TensorFlags.NONE)
larger = BufferTensorDesc(np.dtype("float32"), (2, 2), total_tensor_size_in_bytes=32)

# What the fields hold
assert_type(frames.data_type, DataType)
assert_type(frames.sizes, tuple[int, ...])
assert_type(frames.total_tensor_size_in_bytes, int)
assert_type(calc_buffer_tensor_size("float32", [2, 3]), int)

# Operators
reverse = ReverseSubsequencesOperatorDesc(frames, lengths, frames, axis=1)
crop = SliceOperatorDesc(frames, part, [0, 1], [2, 2], [1, 1])
window = Slice1OperatorDesc(frames, part, [0, 0], [2, 3], [1, -2])
gradient = SliceGradOperatorDesc(part, frames, [0, 0], [2, 3], [1, -2])
zeros = FillValueConstantOperatorDesc(frames, "float32", ScalarUnion(float32=0.0))
ramp = FillValueSequenceOperatorDesc(
    frames, np.float32, ScalarUnion.of("float32", 1), ScalarUnion(float32=0.5)
)

# Compilation
for desc in (reverse, crop, window, gradient, zeros, ramp):
    desc.validate(FeatureLevel.LEVEL_5_0)
compile_operator(reverse)(np.zeros((2, 3), np.float32), np.array([[3], [2]]))
graph = GraphDesc(
    input_count=1,
    output_count=1,
    nodes=[OperatorGraphNodeDesc(crop)],
    input_edges=[InputGraphEdgeDesc(0, 0, 0)],
    output_edges=[OutputGraphEdgeDesc(0, 0, 0)],
)
compile_graph(graph, FeatureLevel.LEVEL_6_4)(jnp.zeros((2, 3)), outputs=[None])
