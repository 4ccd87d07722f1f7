"""Gradients of the examples do not depend on what the padding holds."""

import importlib.util
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import onnx_backend

EXAMPLES = pathlib.Path(__file__).parents[2] / "docs/examples"
LENGTHS = np.array([0, 16, 29], np.int32)

pytestmark = pytest.mark.usefixtures("x32", "with_jit", "nans_are_data")


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def frames(steps: int, features: int, padding: float) -> np.ndarray:
    random = np.random.default_rng(0).normal(size=(3, steps, features))
    valid = np.arange(steps) < LENGTHS[:, None]
    return np.where(valid[:, :, None], random, padding).astype(np.float32)


def long_sequence() -> Callable[[float], Any]:
    example = module("long_sequence")
    weights = example.Parameters(jnp.full((2, 3), 2.0), jnp.ones((2, 3)))
    compiled = jax.jit(jax.grad(example.loss), static_argnums=2)

    def gradient(padding: float) -> Any:
        x = frames(32, 3, padding)
        data = example.Sequences(x, 2 * x, LENGTHS)
        return compiled(weights, data, 4)

    return gradient


def fine_tuning() -> Callable[[float], Any]:
    example = module("fine_tuning")
    model = onnx_backend.prepare(EXAMPLES / "recogniser.onnx")
    compiled = jax.jit(jax.grad(example.loss), static_argnums=3)

    def gradient(padding: float) -> Any:
        x = frames(example.LONGEST, 12, padding)
        batch = example.Utterances(x, LENGTHS, np.array([0, 4, 8], np.int32))
        return compiled(model.params, batch, 0.5, model)

    return gradient


def speaker_recognition(variant: int) -> Callable[[float], Any]:
    example = module("speaker_recognition")
    key = jax.random.key(0)
    parameters = example.initial_parameters(key, 12)
    compiled = jax.jit(jax.grad(example.loss))

    def gradient(padding: float) -> Any:
        x = jnp.asarray(frames(example.TRAINED_STEPS, 12, padding))
        batch = example.Utterances(x, jnp.asarray(LENGTHS), jnp.array([0, 4, 8]))
        return compiled(parameters, batch, key, variant)

    return gradient


CASES: dict[str, Callable[[], Callable[[float], Any]]] = {
    "long_sequence": long_sequence,
    "fine_tuning": fine_tuning,
    **{
        f"speaker_recognition, variant {i}": lambda i=i: speaker_recognition(i)
        for i in range(3)
    },
}
EXTRA = [pytest.mark.exhaustive]  # needs the extra `examples`


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "long_sequence" else EXTRA) for n in CASES],
)
def test_gradients(name: str) -> None:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        gradient = CASES[name]()
        wanted = gradient(0.0)
        for padding in (np.nan, np.inf, -np.inf):
            found = gradient(padding)
            jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(wanted))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(wanted))
