"""Sequence operators of DirectML and ONNX, for JAX.

>>> import jax.numpy as jnp
>>> import dml_jax
>>> x = jnp.array([[1, 2, 3, 0], [4, 5, 0, 0]])
>>> dml_jax.reverse_sequence(x, jnp.array([3, 2]), batch_axis=0, time_axis=1)
Array([[3, 2, 1, 0],
       [5, 4, 0, 0]], dtype=int32)
"""

# Run-time checks of values
from dml_jax._checked import checked

# Fills
from dml_jax._fill import fill_value_constant, fill_value_sequence

# Reversal of the valid part of padded sequences
from dml_jax._reverse import reverse_sequence, reverse_subsequences

# Strided slices and their adjoint
from dml_jax._slice import slice, slice1, slice_grad

__version__ = "0.1.0"

__all__ = [
    "checked",
    "fill_value_constant",
    "fill_value_sequence",
    "reverse_sequence",
    "reverse_subsequences",
    "slice",
    "slice1",
    "slice_grad",
]

for _name in __all__:  # tracebacks and documentation show the public path
    globals()[_name].__module__ = __name__
