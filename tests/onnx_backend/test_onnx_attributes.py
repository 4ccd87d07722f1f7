"""Attributes that a node omits."""

import numpy as np
from onnx import helper

from dml_jax import onnx_backend


def test_defaults_have_32_bits() -> None:
    """As attributes in files have, also where an operator computes in 64 bits."""
    node = helper.make_node("LeakyRelu", ["x"], ["y"])
    (y,) = onnx_backend.run_node(node, [np.array([-3.0])])
    assert y.item() == -3 * np.float32(0.01).item()


def test_attributes_of_later_versions() -> None:
    """Their defaults mean what an operator did before; here, it takes the first."""
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=0)
    (y,) = onnx_backend.run_node(node, [np.array([2.0, 3.0, 3.0])], opset_version=11)
    assert y.tolist() == [1]
