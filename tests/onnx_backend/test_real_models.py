"""Models that Python packages ship: outputs, gradients and new weights.

The packages are in the folder that DML_JAX_MODELS names. ONNX Runtime is the oracle.
"""

import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.real_models import MODELS, RealModel, difference, inputs, session
from dml_jax import onnx_backend

FOLDER = os.environ.get("DML_JAX_MODELS", "")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.usefixtures("x32", "with_caches", "nans_are_data"),
    pytest.mark.skipif(not FOLDER, reason="needs DML_JAX_MODELS, as .ci/run sets it"),
]
over_models = pytest.mark.parametrize("real", MODELS, ids=lambda real: real.name)


def read(real: RealModel) -> bytes:
    return real.read(pathlib.Path(FOLDER))


@over_models
def test_outputs(real: RealModel) -> None:
    """Of two batch sizes or lengths, each of which is one compiled program."""
    data = read(real)
    model, theirs = onnx_backend.prepare(data), session(data)
    for sizes in (real.usual, real.other):
        feeds = inputs(sizes)
        found, wanted = model.run(feeds), theirs.run(None, feeds)
        assert [x.shape for x in found] == [x.shape for x in wanted]
        assert difference(found, wanted) < real.tolerance
        with jax.enable_x64(True):  # as in `run`
            assert model._programs.run(feeds) is not None


@over_models
def test_gradients_and_new_weights(real: RealModel) -> None:
    """Gradients are finite, and ONNX Runtime computes the same with other weights."""
    model, feeds = onnx_backend.prepare(read(real)), inputs(real.other)
    given = {n: x for n, x in feeds.items() if x.dtype == np.float32}
    fixed = {name: x for name, x in feeds.items() if name not in given}

    def total(params: Any, given: Any) -> Any:
        outputs = model.apply(params, **given, **fixed)
        return sum(jnp.sum(y) for y in outputs), outputs

    # In NumPy, since JAX compiles each operation for each of the shapes.
    params = {
        name: np.float32(1.01) * np.asarray(x) for name, x in model.params.items()
    }
    differentiate = jax.value_and_grad(total, (0, 1), has_aux=True)
    # A program that runs once need not be optimized.
    options = {"xla_backend_optimization_level": 0}
    differentiated = jax.jit(differentiate, compiler_options=options)
    (_, found), gradients = differentiated(params, given)
    for gradient in jax.tree.leaves(gradients):
        assert np.isfinite(gradient).all()
    wanted = session(model.to_onnx(params).SerializeToString()).run(None, feeds)
    assert difference(found, wanted) < real.tolerance
