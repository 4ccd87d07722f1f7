"""DxDispatch models: Microsoft's JSON format for running DirectML operators.

`python -m dml_jax dispatch model.json` runs a model from the command line. In Python,
`load_model` reads a model, and `run_model` runs it and leaves the results in its
resources.
"""

from dml_jax.directml.dxdispatch._model import MOST_BYTES, Model, load_model
from dml_jax.directml.dxdispatch._resources import Resource
from dml_jax.directml.dxdispatch._run import Timing, run_model

__all__ = ["MOST_BYTES", "Model", "Resource", "Timing", "load_model", "run_model"]

for _function in (load_model, run_model):
    _function.__module__ = __name__  # for tracebacks and documentation
