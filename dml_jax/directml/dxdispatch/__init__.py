"""DxDispatch models: Microsoft's JSON format for running DirectML operators.

`python -m dml_jax dispatch model.json` runs a model; `load_model` and `run_model` do so
from Python, and leave what was computed in the model's resources.
"""

from dml_jax.directml.dxdispatch._model import Model, load_model
from dml_jax.directml.dxdispatch._run import Timing, run_model

__all__ = ["Model", "Timing", "load_model", "run_model"]

for _name in __all__:
    globals()[_name].__module__ = __name__
