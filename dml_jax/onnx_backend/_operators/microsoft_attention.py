"""Attention of com.microsoft, whose operators differ in the forms of their inputs.

Queries, keys and values become arrays with the axes batch, heads, steps and size, for
one function. What ONNX Runtime does not support on CPU is refused.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators import linear
from dml_jax.onnx_backend._operators._arrays import (
    at_least_float32,
    clamped,
    integers,
    require_broadcastable,
    require_shape,
)
from dml_jax.onnx_backend._values import Array

_matmul = linear.OPERATORS["MatMul"].evaluate


def _attend(
    node: Node, qkv: Any, added: Any, mask: Any = 0, is_seen: Any = True, sink=None
) -> jax.Array:
    """The mean of values by softmax(scale * q k + added + mask), heads side by side.

    Several heads of queries may read one head of keys. `sink` has the score of a key
    without a value, for each head.
    """
    attributes, (q, k, v) = node.attributes, qkv
    batch, heads, steps, size = q.shape
    k, v = (jnp.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = at_least_float32(_matmul(node, q, jnp.swapaxes(k, 2, 3)))
    scores *= attributes.get("scale") or 1 / math.sqrt(size)
    if cap := attributes.get("softcap"):
        scores = cap * jnp.tanh(scores / cap)
    require_broadcastable("attention_bias", added, scores.shape)
    scores += mask if added is None else added + mask
    if attributes.get("unidirectional"):
        is_seen = jnp.tri(steps, k.shape[2], k.shape[2] - steps, bool)
    scores = jnp.where(is_seen, scores, jnp.finfo(scores.dtype).min)
    if sink is not None:
        column = jnp.broadcast_to(sink, (batch, steps, heads)).swapaxes(1, 2)
        scores = jnp.concatenate([scores, column[..., None]], axis=3)
    weights = jax.nn.softmax(scores)[..., : k.shape[2]]
    result = _matmul(node, weights.astype(v.dtype), v)
    return result.swapaxes(1, 2).reshape(batch, steps, -1)


def _heads(x: Array, count: int) -> jax.Array:
    """An array of heads side by side, with the axes batch, heads, steps and size."""
    batch, steps, size = np.shape(x)
    return jnp.reshape(x, (batch, steps, count, size // count)).swapaxes(1, 2)


def _mask(node: Node, name: str, mask: Any, q: jax.Array, k: jax.Array) -> Any:
    """What is added to scores, from 0 for each masked key or from numbers of keys.

    Behind the numbers there may be those of masked keys before them.
    """
    batch, _, steps, _ = q.shape
    total, form = k.shape[2], np.shape(mask)
    if mask is None or form in ((batch, 1), (1, 1)):
        return 0
    if form in ((batch,), (2 * batch,)):
        keys = jnp.arange(total, dtype=np.int32)
        ends, *starts = mask.reshape(-1, batch, 1)
        mask = (keys < ends) & (keys >= starts[0] if starts else True)
    elif form not in ((batch, total), (batch, steps, total)):
        forms = (
            f"{(batch,)}, {(2 * batch,)}, {(batch, total)} or {(batch, steps, total)}"
        )
        raise ValueError(f"`{name}` must have shape {forms}; got {form}")
    value = np.float32(node.attributes.get("mask_filter_value", -10000))
    return jnp.where(mask.reshape(batch, 1, -1, total) > 0, 0, value)


def _attention(node: Node, x: Array, weights: Array, *more: Any) -> list[Any]:
    """Self-attention, which first multiplies its input by weights for all three."""
    bias, mask, past, added = (*more, *[None] * (4 - len(more)))
    _require_zeros(node, "do_rotary", "past_present_share_buffer")
    width = np.shape(weights)[1]
    sizes = node.attributes.get("qkv_hidden_sizes", [width // 3] * 3)
    if sum(sizes) != width:
        raise ValueError(f"`qkv_hidden_sizes` must have the sum {width}; got {sizes}")
    require_shape("bias", bias, (width,))
    product = _matmul(node, x, weights)
    product = product if bias is None else product + bias
    parts = jnp.split(product, [sizes[0], sizes[0] + sizes[1]], axis=2)
    q, k, v = (_heads(part, node.attributes["num_heads"]) for part in parts)
    if past is not None:
        k, v = (jnp.concatenate(x, axis=2) for x in zip(past, (k, v), strict=True))
    y = _attend(node, (q, k, v), added, _mask(node, "mask_index", mask, q, k))
    return [y, jnp.stack([k, v])] if node.outputs[1:] else [y]


def _multi_head_attention(
    node: Node, query: Array, key: Any = None, value: Any = None, *more: Any
) -> list[Any]:
    """Attention, whose keys and values may have an axis of heads."""
    bias, mask, added, *past = (*more, *[None] * (5 - len(more)))
    if key is None or value is None:
        raise NotImplementedError("`query` must not be packed with keys or values")
    heads, size = node.attributes["num_heads"], np.shape(query)[2]
    bias = [0] * 3 if bias is None else jnp.split(bias, [size, 2 * size])
    q, k, v = _heads(query + bias[0], heads), key, value
    if np.ndim(key) == 3:
        k, v = _heads(key + bias[1], heads), _heads(value + bias[2], heads)
    if past[0] is not None:
        k, v = (jnp.concatenate(x, axis=2) for x in zip(past, (k, v), strict=True))
    mask = _mask(node, "key_padding_mask", mask, q, k)
    return [_attend(node, (q, k, v), added, mask), k, v]


def _group_query_attention(node: Node, *inputs: Any) -> list[Any]:
    """Attention to earlier steps, whose keys and values are in buffers."""
    q, k, v, past_k, past_v, last, total, *more = inputs
    cos, sin, places, added, sink = (*more, *[None] * (5 - len(more)))
    _require_zeros(node, "qk_output", "sliding_window_cache")
    attributes = node.attributes
    heads, groups = attributes["num_heads"], attributes["kv_num_heads"]
    if k is None:
        size = np.shape(q)[2] // (heads + 2 * groups)
        q, k, v = jnp.split(q, [heads * size, (heads + groups) * size], axis=2)
    q, k, v = _heads(q, heads), _heads(k, groups), _heads(v, groups)
    steps = q.shape[2]
    (count,) = integers("total_sequence_length", np.reshape(total, -1))
    ends = jnp.reshape(last, (-1, 1)) + 1  # what is behind them is padding
    starts = ends - steps if count != steps else 0 * ends
    own, keys = starts + np.arange(steps), np.arange(count)
    if attributes.get("do_rotary"):
        places = own if places is None else places
        if count == steps:  # ONNX Runtime reads the first one only
            places = places[:1, :1] + np.arange(steps)
        angles = _angles(places, cos, sin)
        is_interleaved = attributes.get("rotary_interleaved", 0)
        q, k = (_rotated(x, *angles, is_interleaved) for x in (q, k))
    k, v = (_written(*x, starts, count) for x in ((past_k, k), (past_v, v)))
    is_seen = keys < ends[..., None]
    if attributes.get("causal", 1):
        is_seen &= keys <= own[..., None]
    if (window := attributes.get("local_window_size", -1)) > 0:
        is_seen &= keys > own[..., None] - window
    if sink is None and attributes.get("smooth_softmax") == 1:
        sink = 0.0
    qkv = q, k[:, :, :count], v[:, :, :count]
    return [_attend(node, qkv, added, 0, is_seen[:, None], sink), k, v]


def _written(past: Any, new: jax.Array, starts: jax.Array, total: Any) -> jax.Array:
    """A buffer with new steps from `starts` on, and zeros behind them."""
    batch, heads, steps, size = new.shape
    past = jnp.zeros((batch, heads, 0, size), new.dtype) if past is None else past
    missing = max(total - past.shape[2], 0)
    past = jnp.pad(past, [(0, 0), (0, 0), (0, missing), (0, 0)])
    places = (np.arange(past.shape[2]) - starts)[:, None, :, None]
    rows = jnp.take_along_axis(new, jnp.clip(places, 0, steps - 1), axis=2)
    return jnp.where(places < 0, past, jnp.where(places < steps, rows, 0))


def _rotary_embedding(
    node: Node, x: Array, places: Array, cos: Array, sin: Array
) -> jax.Array:
    """Rotates numbers of each head by the angles of its place."""
    width, is_flat = 2 * np.shape(cos)[1], np.ndim(x) == 3
    parts = jnp.asarray(x)
    if is_flat:
        is_partial = node.attributes["rotary_embedding_dim"]
        count = x.shape[2] // width
        parts = _heads(x, node.attributes["num_heads"] if is_partial else count)
    if np.ndim(places) < 2:  # the place of the first step
        places = np.reshape(places, (1, 1)) + np.arange(parts.shape[2])
    angles = _angles(places, cos, sin)
    result = _rotated(parts, *angles, node.attributes["interleaved"])
    return result.swapaxes(1, 2).reshape(x.shape) if is_flat else result


def _angles(places: Array, cos: Array, sin: Array) -> list[jax.Array]:
    """Cosines and sines of places, for all heads."""
    rows = clamped("position_ids", places, np.shape(cos)[0] - 1)
    return [jnp.asarray(table)[rows][:, None] for table in (cos, sin)]


def _rotated(
    x: jax.Array, cos: jax.Array, sin: jax.Array, is_interleaved: int
) -> jax.Array:
    """Rotates pairs of numbers, and leaves the others, which are last.

    The numbers of a pair are neighbours if `is_interleaved`, and else in two halves.
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    axis, shape = (-1, (half, 2)) if is_interleaved else (-2, (2, half))
    a, b = jnp.moveaxis(turned.reshape(*x.shape[:-1], *shape), axis, 0)
    pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis)
    return jnp.concatenate([pairs.reshape(turned.shape), rest], axis=-1)


def _require_zeros(node: Node, *names: str) -> None:
    """Refuses options that ONNX Runtime does not have on CPU."""
    for name in names:
        if node.attributes.get(name):
            raise NotImplementedError(f"`{name}` must be 0; got 1")


OPERATORS = {
    "Attention": Operator(_attention, 1),
    "MultiHeadAttention": Operator(_multi_head_attention, 1),
    "GroupQueryAttention": Operator(_group_query_attention, 1, static=(6,)),
    "RotaryEmbedding": Operator(_rotary_embedding, 1),
}
