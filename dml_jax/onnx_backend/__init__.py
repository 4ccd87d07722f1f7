"""An ONNX backend on this package's operators."""

from dml_jax.onnx_backend._backend import (
    Backend,
    is_compatible,
    load_model,
    prepare,
    run_model,
    run_node,
    supports_device,
)
from dml_jax.onnx_backend._model import Model

__all__ = [
    "Backend",
    "Model",
    "is_compatible",
    "load_model",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
