"""DirectML descriptions of the operators, compiled by JAX.

>>> import jax.numpy as jnp
>>> from dml_jax import directml as dml
>>> image = dml.BufferTensorDesc("float32", sizes=(1, 1, 4, 4))
>>> crop = dml.BufferTensorDesc("float32", sizes=(1, 1, 2, 2))
>>> slice = dml.compile_operator(dml.SliceOperatorDesc(
...     image, crop, offsets=(0, 0, 1, 0), sizes=(1, 1, 2, 2), strides=(1, 1, 2, 3)))
>>> slice(jnp.arange(1.0, 17.0).reshape(1, 1, 4, 4))
Array([[[[ 5.,  8.],
         [13., 16.]]]], dtype=float32)
"""

from dml_jax._shared import arguments as _arguments

# Compilation
from dml_jax.directml._compile import CompiledOperator, compile_operator

# Graphs
from dml_jax.directml._graph import compile_graph
from dml_jax.directml._graph_descs import (
    ConstantDataGraphNodeDesc,
    FunctionGraphNodeDesc,
    GraphDesc,
    InputGraphEdgeDesc,
    IntermediateGraphEdgeDesc,
    OperatorGraphNodeDesc,
    OutputGraphEdgeDesc,
)

# Operators, and what a feature level supports
from dml_jax.directml._operators import (
    FillValueConstantOperatorDesc,
    FillValueSequenceOperatorDesc,
    OperatorDesc,
    ReverseSubsequencesOperatorDesc,
    Slice1OperatorDesc,
    SliceGradOperatorDesc,
    SliceOperatorDesc,
    supported,
)
from dml_jax.directml._rules import Support

# Tensors
from dml_jax.directml._tensor import BufferTensorDesc, calc_buffer_tensor_size

# Enumerations, constants and scalars
from dml_jax.directml._types import (
    MINIMUM_BUFFER_TENSOR_ALIGNMENT,
    TENSOR_DIMENSION_COUNT_MAX1,
    DataType,
    ExecutionFlags,
    FeatureLevel,
    OperatorType,
    ScalarUnion,
    TensorFlags,
    TensorType,
)

__all__ = [
    "MINIMUM_BUFFER_TENSOR_ALIGNMENT",
    "TENSOR_DIMENSION_COUNT_MAX1",
    "BufferTensorDesc",
    "CompiledOperator",
    "ConstantDataGraphNodeDesc",
    "DataType",
    "ExecutionFlags",
    "FeatureLevel",
    "FillValueConstantOperatorDesc",
    "FillValueSequenceOperatorDesc",
    "FunctionGraphNodeDesc",
    "GraphDesc",
    "InputGraphEdgeDesc",
    "IntermediateGraphEdgeDesc",
    "OperatorDesc",
    "OperatorGraphNodeDesc",
    "OperatorType",
    "OutputGraphEdgeDesc",
    "ReverseSubsequencesOperatorDesc",
    "ScalarUnion",
    "Slice1OperatorDesc",
    "SliceGradOperatorDesc",
    "SliceOperatorDesc",
    "Support",
    "TensorFlags",
    "TensorType",
    "calc_buffer_tensor_size",
    "compile_graph",
    "compile_operator",
    "supported",
]

for _function in (calc_buffer_tensor_size, compile_graph, compile_operator, supported):
    _function.__module__ = __name__  # for tracebacks and documentation
    globals()[_function.__name__] = _arguments.named(_function.__name__)(_function)
