"""Sequence operators of DirectML and ONNX, for JAX.

>>> import jax.numpy as jnp
>>> import dml_jax
>>> x = jnp.array([[1, 2, 3, 0], [4, 5, 0, 0]])
>>> dml_jax.reverse_padded(x, jnp.array([3, 2]))
Array([[3, 2, 1, 0],
       [5, 4, 0, 0]], dtype=int32)
"""

# isort: off
from dml_jax import _interrupts

if _interrupts.is_command():
    _interrupts.exit_on_interrupt()

# Reversal of the valid part of padded sequences
from dml_jax._reverse.padded import reverse_padded
from dml_jax._reverse.api import reverse_sequence, reverse_subsequences

# Strided slices and their adjoint
from dml_jax._slice.api import slice, slice1, slice_grad

# Fills
from dml_jax._fill.api import fill_value_constant, fill_value_sequence

# Run-time checks of values
from dml_jax._shared.value_checks import checked

from dml_jax._version import __version__ as __version__
# isort: on

__all__ = [
    "checked",
    "fill_value_constant",
    "fill_value_sequence",
    "reverse_padded",
    "reverse_sequence",
    "reverse_subsequences",
    "slice",
    "slice1",
    "slice_grad",
]

for _name in __all__:  # tracebacks and documentation show the public path
    globals()[_name].__module__ = __name__
