"""Operators that ONNX defines as functions of others, expanded from its definitions.

The functions here refuse shapes that the definitions exclude, but the bodies broadcast.

The bodies of some others are not used. Where Exp overflows, those of Elu and Selu have
NaN as derivatives, and that of Softplus is infinite. Those of normalizations reshape
the input, or subtract squares that are nearly equal. Those of windows have 32 bits,
that of Celu has other results for a negative alpha, and that of AffineGrid refuses a
batch of one, and divides by zero. CastLike is a part of most bodies.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    require_axes,
    require_broadcastable,
)
from dml_jax.onnx_backend._values import Array


def _attention(node: Node, q: Array, k: Array, v: Array, *more: Any) -> None:
    mask, past_k, past_v, *_ = (*more, None, None, None)
    is_flat, kv = np.ndim(q) == 3, "batch key_heads key_steps"
    require_axes(
        Q=(q, "batch steps q_hidden" if is_flat else "batch heads steps key_size"),
        K=(k, "batch key_steps k_hidden" if is_flat else f"{kv} key_size"),
        V=(v, "batch key_steps v_hidden" if is_flat else f"{kv} value_size"),
        past_key=(past_k, "batch key_heads past key_size"),
        past_value=(past_v, "batch key_heads past value_size"),
    )
    heads = node.attributes["q_num_heads"] if is_flat else np.shape(q)[1]
    if mask is not None:  # which may have fewer key steps
        shape = (np.shape(q)[0], heads, np.shape(q)[-2], *np.shape(mask)[-1:])
        require_broadcastable("attn_mask", mask, shape)


def _rotary_embedding(
    node: Node, x: Array, cos: Array, sin: Array, positions: Any = None
) -> None:
    is_flat = np.ndim(x) == 3
    size = np.shape(x)[-1] // (node.attributes.get("num_heads", 1) if is_flat else 1)
    half = (node.attributes["rotary_embedding_dim"] or size) // 2
    rows = ("batch", "steps") if positions is None else ("rows",)
    require_axes(
        X=(x, "batch steps hidden" if is_flat else "batch heads steps size"),
        cos_cache=(cos, (*rows, half)),
        sin_cache=(sin, (*rows, half)),
        position_ids=(positions, "batch steps"),
    )


def _table(
    since: int,
    names: str,
    *static: int,
    check: Callable[..., None] = lambda *_: None,
    is_elementwise: bool = False,
) -> dict[str, Operator]:
    """Operators that are supported from the same opset on."""
    operator = Operator(None, since, static, is_elementwise=is_elementwise, check=check)
    return dict.fromkeys(names.split(), operator)


OPERATORS = {
    **_table(1, "DepthToSpace SpaceToDepth"),
    **_table(9, "Shrink", is_elementwise=True),
    **_table(10, "ThresholdedRelu", is_elementwise=True),
    **_table(12, "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
    **_table(14, "HardSwish", is_elementwise=True),
    **_table(18, "CenterCropPad", 1),
    **_table(18, "Mish", is_elementwise=True),
    **_table(23, "Attention", check=_attention),
    **_table(23, "RotaryEmbedding", check=_rotary_embedding),
    **_table(24, "Swish", is_elementwise=True),
    **_table(27, "CausalConvWithState LinearAttention"),
    **_table(28, "SwiGLU"),
}
