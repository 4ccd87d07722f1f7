"""Attention of com.microsoft, whose operators differ in the forms of their inputs.

Queries, keys and values become arrays with the axes batch, heads, steps and size, for
one function. What ONNX Runtime does not support on CPU is refused.
"""

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
# Options that ONNX Runtime does not have on CPU.
_UNSUPPORTED = {"past_present_share_buffer", "qk_output", "sliding_window_cache"}


def _attend(
    node: Node, qkv: Any, added: Any, mask: Any = 0, seen: Any = True, sink: Any = None
) -> jax.Array:
    """The mean of values by softmax(scale * q k + added + mask), heads side by side.

    Several heads of queries may read one head of keys. `sink` is the score of one more
    key, which has no value.
    """
    attributes, (q, k, v) = node.attributes, qkv
    for name in _UNSUPPORTED & attributes.keys():
        if attributes[name]:
            raise NotImplementedError(f"`{name}` must be 0; got {attributes[name]}")
    (batch, heads, steps, size), total = q.shape, k.shape[2]
    k, v = (jnp.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scores = at_least_float32(_matmul(node, q, jnp.swapaxes(k, 2, 3)))
    scores *= attributes.get("scale") or 1 / math.sqrt(size)
    if cap := attributes.get("softcap"):
        scores = cap * jnp.tanh(scores / cap)
    require_broadcastable("attention_bias", added, scores.shape)
    scores += mask if added is None else added + mask
    if attributes.get("unidirectional"):
        seen = jnp.arange(total) <= total - steps + jnp.arange(steps)[:, None]
    scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores)
    if sink is not None:
        sums = jax.nn.logsumexp(scores, axis=3, keepdims=True)
        weights *= jax.nn.sigmoid(sums - jnp.reshape(sink, (-1, 1, 1)))
    result = _matmul(node, weights.astype(v.dtype), v)
    return result.swapaxes(1, 2).reshape(batch, steps, -1)


def _heads(x: Array, count: int) -> jax.Array:
    """An array of heads side by side, with the axes batch, heads, steps and size."""
    batch, steps, size = np.shape(x)
    return jnp.reshape(x, (batch, steps, count, size // count)).swapaxes(1, 2)


def _mask(node: Node, mask: Any, q: jax.Array, k: jax.Array) -> Any:
    """What is added to scores, from 0 for each masked key or from numbers of keys.

    Behind the numbers there may be those of masked keys before them.
    """
    batch, _, steps, _ = q.shape
    total, form = k.shape[2], np.shape(mask)
    if mask is None or form in ((batch, 1), (1, 1)):
        return 0
    forms = (batch,), (2 * batch,), (batch, total), (batch, steps, total)
    if form not in forms:
        name = "mask_index" if node.kind == "Attention" else "key_padding_mask"
        raise ValueError(f"`{name}` must have one of the shapes {forms}; got {form}")
    if len(form) == 1:
        ends, *starts = mask.reshape(-1, batch, 1)
        keys = jnp.arange(total)
        mask = (keys < ends) & (keys >= starts[0] if starts else True)
    value = np.float32(node.attributes.get("mask_filter_value", -10000))
    return jnp.where(mask.reshape(batch, 1, -1, total) > 0, 0, value)


def _attention(node: Node, x: Array, weights: Array, *more: Any) -> list[Any]:
    """Self-attention, which first multiplies its input by weights for all three."""
    bias, mask, past, added = (*more, *[None] * (4 - len(more)))
    if node.attributes.get("do_rotary"):
        raise NotImplementedError("`do_rotary` must be 0; got 1")
    width = np.shape(weights)[1]
    sizes = node.attributes.get("qkv_hidden_sizes", [width // 3] * 3)
    if sum(sizes) != width:
        raise ValueError(f"`qkv_hidden_sizes` must have the sum {width}; got {sizes}")
    require_shape("bias", bias, (width,))
    product = _matmul(node, x, weights)
    product = product if bias is None else product + bias
    parts = jnp.split(product, [sizes[0], sizes[0] + sizes[1]], axis=2)
    pasts = [] if past is None else past
    y, k, v = _multi_head_attention(node, *parts, None, mask, added, *pasts)
    return [y, jnp.stack([k, v])] if node.outputs[1:] else [y]


def _multi_head_attention(node: Node, query: Array, *more: Any) -> list[Any]:
    """Attention, whose keys and values may have an axis of heads."""
    given: Any = (*more, *[None] * (7 - len(more)))
    key, value, bias, mask, added, *past = given
    if key is None or value is None:
        raise NotImplementedError("`query` must not be packed with keys or values")
    heads, size = node.attributes["num_heads"], np.shape(query)[2]
    bias = [0] * 3 if bias is None else jnp.split(bias, [size, 2 * size])
    q, k, v = _heads(query + bias[0], heads), key, value
    if np.ndim(key) == 3:
        k, v = _heads(key + bias[1], heads), _heads(value + bias[2], heads)
    if past[0] is not None:
        k, v = (jnp.concatenate(x, axis=2) for x in zip(past, (k, v), strict=True))
    return [_attend(node, (q, k, v), added, _mask(node, mask, q, k)), k, v]


def _group_query_attention(node: Node, *inputs: Any) -> list[Any]:
    """Attention to earlier steps, whose keys and values are in buffers."""
    q, k, v, past_k, past_v, last, total, *more = inputs
    cos, sin, places, added, sink = (*more, *[None] * (5 - len(more)))
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
    own, keys = starts + jnp.arange(steps), jnp.arange(count)
    if attributes.get("do_rotary"):
        places = own if places is None else places
        if count == steps:  # ONNX Runtime reads the first one only
            places = places[:1, :1] + jnp.arange(steps)
        is_interleaved = attributes.get("rotary_interleaved")
        q, k = (_rotated(x, places, cos, sin, is_interleaved) for x in (q, k))
    k, v = (_written(*x, starts, count) for x in ((past_k, k), (past_v, v)))
    seen = keys < ends[..., None]
    if attributes.get("causal", 1):
        seen &= keys <= own[..., None]
    if (window := attributes.get("local_window_size", -1)) > 0:
        seen &= keys > own[..., None] - window
    sink = 0.0 if sink is None and attributes.get("smooth_softmax") == 1 else sink
    qkv = q, k[:, :, :count], v[:, :, :count]
    return [_attend(node, qkv, added, 0, seen[:, None], sink), k, v]


def _written(past: Any, new: jax.Array, starts: jax.Array, total: Any) -> jax.Array:
    """A buffer with new steps from `starts` on, and zeros behind them."""
    batch, heads, steps, size = new.shape
    past = jnp.zeros((batch, heads, 0, size), new.dtype) if past is None else past
    missing = max(total - past.shape[2], 0)
    past = jnp.pad(past, [(0, 0), (0, 0), (0, missing), (0, 0)])
    places = (jnp.arange(past.shape[2]) - starts)[:, None, :, None]
    rows = jnp.take_along_axis(new, jnp.clip(places, 0, steps - 1), axis=2)
    return jnp.where(places < 0, past, jnp.where(places < steps, rows, 0))


def _rotary_embedding(node: Node, x: Array, places: Any, cos: Any, sin: Any) -> Any:
    is_flat = np.ndim(x) == 3
    heads = node.attributes.get("num_heads") or x.shape[2] // (2 * cos.shape[1])
    parts = _heads(x, heads) if is_flat else jnp.asarray(x)
    if np.ndim(places) < 2:  # the place of the first step
        places = jnp.reshape(places, (1, 1)) + jnp.arange(parts.shape[2])
    result = _rotated(parts, places, cos, sin, node.attributes["interleaved"])
    return result.swapaxes(1, 2).reshape(x.shape) if is_flat else result


def _rotated(x: Any, places: Any, cos: Any, sin: Any, is_interleaved: Any) -> Any:
    """Rotates pairs of numbers by the angles of their place, and leaves the others.

    The two are neighbours if `is_interleaved`, and else in two halves.
    """
    places, half = clamped("position_ids", places, len(cos) - 1), cos.shape[1]
    cos, sin = (jnp.asarray(table)[places][:, None] for table in (cos, sin))
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    axis, shape = (-1, (half, 2)) if is_interleaved else (-2, (2, half))
    a, b = jnp.moveaxis(turned.reshape(*x.shape[:-1], *shape), axis, 0)
    pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis)
    return jnp.concatenate([pairs.reshape(turned.shape), rest], axis=-1)


OPERATORS = {
    "Attention": Operator(_attention, 1),
    "MultiHeadAttention": Operator(_multi_head_attention, 1),
    "GroupQueryAttention": Operator(_group_query_attention, 1, static=(6,)),
    "RotaryEmbedding": Operator(_rotary_embedding, 1),
}
