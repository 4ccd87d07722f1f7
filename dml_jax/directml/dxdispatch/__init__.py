"""DxDispatch models: Microsoft's JSON format for running DirectML operators.

`python -m dml_jax dispatch model.json` runs a model. So do `load_model` and `run_model`
from Python, which leave the results in the resources of the model.
"""

from dml_jax.directml.dxdispatch._model import MOST_BYTES, Model, load_model
from dml_jax.directml.dxdispatch._resources import Resource
from dml_jax.directml.dxdispatch._run import Timing, run_model

__all__ = ["MOST_BYTES", "Model", "Resource", "Timing", "load_model", "run_model"]

for _name in ("load_model", "run_model"):
    globals()[_name].__module__ = __name__
