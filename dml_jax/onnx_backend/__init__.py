"""An ONNX backend on this package's operators.

It runs ReverseSequence, Slice, Range and ConstantOfShape at every version, with
Constant, Identity and Cast between them; functions of a model are inlined. `prepare`
returns an object with two methods. `run` takes and returns NumPy arrays, in 64-bit mode
whatever `jax_enable_x64` says. `jax_fn` is a pure function of the graph's inputs, which
can be jitted, mapped, differentiated and exported.

Where ONNX is not specific, or implementations differ:

- Concrete sequence lengths outside [0, time] are refused, as in ONNX Runtime. Traced
  ones are clamped.
- The elements of a Range are start + i * delta, rounded once, and their number is
  exact. This satisfies both values of `stash_type`.
- The start of a Slice with a negative step is clamped to the axis, as ONNX specifies.
"""

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
