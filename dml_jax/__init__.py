"""Sequence operators of DirectML and ONNX, for JAX.

>>> import jax.numpy as jnp
>>> import dml_jax
>>> x = jnp.array([[1, 2, 3, 0], [4, 5, 0, 0]])
>>> dml_jax.reverse_padded(x, jnp.array([3, 2]))
Array([[3, 2, 1, 0],
       [5, 4, 0, 0]], dtype=int32)
"""

# isort: off
import typing as _typing

from dml_jax._shared.arguments import named as _named

# Reversal of the valid part of padded sequences
from dml_jax._reverse.api import reverse_padded, reverse_sequence, reverse_subsequences

# Recurrences over padded or packed sequences
from dml_jax._reverse.padded_scan import bidirectional_scan, padded_scan

# Strided slices and their adjoint
from dml_jax._slice.api import slice, slice1, slice_grad

# Fills
from dml_jax._fill.api import fill_value_constant, fill_value_sequence

# Run-time checks of values
from dml_jax._shared.value_checks import checked

from dml_jax._version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from dml_jax import directml as directml
    from dml_jax import onnx_backend as onnx_backend
# isort: on

__all__ = [
    "bidirectional_scan",
    "checked",
    "fill_value_constant",
    "fill_value_sequence",
    "padded_scan",
    "reverse_padded",
    "reverse_sequence",
    "reverse_subsequences",
    "slice",
    "slice1",
    "slice_grad",
]

for _name in __all__:  # tracebacks and documentation show the public path
    globals()[_name].__module__ = __name__
    globals()[_name] = _named(_name)(globals()[_name])


def __getattr__(name: str) -> object:
    """Imports `dml_jax.directml` or `dml_jax.onnx_backend` when it is used."""
    from importlib import import_module

    if name not in ("directml", "onnx_backend"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """The names of the module, without `onnx_backend` if onnx is not installed."""
    from importlib.util import find_spec

    backend = ["onnx_backend"] if find_spec("onnx") else []
    return sorted({*globals(), "directml", *backend})
