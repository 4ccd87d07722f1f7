"""Elementwise operators on images, which compute with the channels last.

Convolutions and pools do so, too. XLA cancels a transpose and its inverse if they are
adjacent, but does not move a transpose past an operation.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dml_jax.onnx_backend._nodes import Node, Operator


def with_channels_last(operator: Operator) -> Operator:
    """An elementwise operator that computes with the channels last while JAX traces."""

    def evaluate(node: Node, *inputs: Any) -> Any:
        rank = max(map(np.ndim, inputs))
        if rank < 3 or not any(isinstance(x, Tracer) for x in inputs):
            return operator.evaluate(node, *inputs)
        try:
            outputs = operator.evaluate(node, *(_moved(x, rank) for x in inputs))
        except (TypeError, ValueError):  # an error must have the shapes of the inputs
            return operator.evaluate(node, *inputs)
        return jax.tree.map(lambda y: jnp.moveaxis(y, -1, 1), outputs)

    return operator._replace(evaluate=evaluate)


def _moved(x: Any, rank: int) -> Any:
    """`x` with `rank` axes, the second one last. None and scalars are unchanged."""
    if np.shape(x) in ((), (1,)):
        return x
    x = x.reshape(*[1] * (rank - x.ndim), *x.shape)
    return x.transpose(0, *range(2, rank), 1)
