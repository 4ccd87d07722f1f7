"""Operators that ONNX defines as functions of others, expanded from its definitions."""

from __future__ import annotations

from typing import Any

from dml_jax.onnx_backend._evaluation import Node, Operator


def schema_function(node: Node, *inputs: Any) -> Any:
    """Stands for the body of an operator, which nodes get when they are converted."""
    raise NotImplementedError(f"{node.kind} must be expanded")


def _table(versions: str, names: str, *static: int) -> dict[str, Operator]:
    """The operators that have the same versions and the same static inputs."""
    numbers = frozenset(map(int, versions.split()))
    return {name: Operator(schema_function, numbers, static) for name in names.split()}


OPERATORS = {
    **_table("9", "Shrink"),
    **_table("9 13", "MeanVarianceNormalization"),
    **_table("11", "DynamicQuantizeLinear"),
    **_table("12 13", "SoftmaxCrossEntropyLoss"),
    **_table("12 13 22", "NegativeLogLikelihoodLoss"),
    **_table("17", "BlackmanWindow HammingWindow HannWindow", 0),
    **_table("18", "CenterCropPad", 1),
    **_table("18 21", "GroupNormalization"),
    **_table("20", "AffineGrid", 1),
    **_table("23", "RotaryEmbedding"),
    **_table("23 24 25", "Attention"),
    **_table("27", "CausalConvWithState LinearAttention"),
    **_table("28", "SwiGLU"),
}
