"""An ONNX backend on this package's operators.

It runs the operators of ONNX, loops and branches among them, except those that read
strings or decode images. Functions of a model are inlined. Functions in Python can be
passed for other operators.

`prepare` returns a `Model`. Its method `run` takes and returns NumPy arrays, in 64-bit
mode whatever `jax_enable_x64` says, and compiles a program for each kind of inputs.
`jax_fn` is a pure function of the graph's inputs, which can be jitted, mapped,
differentiated and exported; under `jit`, the model is one program. `apply` is the same
function with the weights as its first argument, to train those in `params`; `to_onnx`
writes weights back into the model. Dropout in training mode, and other nodes that draw
random numbers, need a PRNG key, the argument `key` of `jax_fn` and `apply`.

Shapes that nodes compute are constant while JAX traces. They may depend on the shapes
of inputs, but not on the values of traced ones. The number of a Loop's iterations must
be constant if the Loop has scan outputs or changes the shapes of values. Integers
inside the model have ONNX's 64 bits in any mode. Other data of 64 bits has 32 bits in
`jax_fn` and `apply` outside 64-bit mode, as everywhere in JAX.

Where ONNX is not specific, or implementations differ:

- Concrete sequence lengths outside [0, time] are refused, as in ONNX Runtime, and so
  are concrete indices outside their axis. Traced ones are clamped.
- The last states of RNN, GRU and LSTM are zero for empty sequences, as in ONNX Runtime,
  also if there are initial states.
- The elements of a Range are start + i * delta, rounded once, and their number is
  exact. This satisfies both values of `stash_type`.
- The start of a Slice with a negative step is clamped to the axis, as ONNX specifies.
"""

try:
    import onnx as _onnx  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        f"dml_jax.onnx_backend: {_error}: pip install '.[onnx]' in a checkout of "
        "dml_jax",
        name="onnx",
    ) from None

from dml_jax.onnx_backend._backend import Backend, load_model
from dml_jax.onnx_backend._model import Model

is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device

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
