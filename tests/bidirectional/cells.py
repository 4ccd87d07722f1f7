"""Recurrent cells with torch's weights, and layers of them in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dml_jax import bidirectional_scan

Arrays = dict[str, Any]


def lstm(weights: Arrays, carry: Any, gates: jax.Array) -> Any:
    h, c = carry
    i, f, g, o = jnp.split(gates + h @ weights["hh"].T + weights["b_hh"], 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def gru(weights: Arrays, carry: Any, gates: jax.Array) -> Any:
    (h,) = carry
    products = jnp.split(h @ weights["hh"].T + weights["b_hh"], 3, axis=-1)
    r, z, n = jnp.split(gates, 3, axis=-1)
    r, z = jax.nn.sigmoid(r + products[0]), jax.nn.sigmoid(z + products[1])
    h = (1 - z) * jnp.tanh(n + r * products[2]) + z * h
    return (h,), h


def tanh(weights: Arrays, carry: Any, gates: jax.Array) -> Any:
    (h,) = carry
    h = jnp.tanh(gates + h @ weights["hh"].T + weights["b_hh"])
    return (h,), h


CELLS: dict[str, Callable[..., Any]] = dict(lstm=lstm, gru=gru, tanh=tanh)
STATES = dict(lstm=2, gru=1, tanh=1)


def masked(x: jax.Array, lengths: jax.Array) -> jax.Array:
    valid = jnp.arange(x.shape[1]) < lengths[:, None]
    return jnp.where(valid[..., None], x, 0)


def layer(kind: str, weights: Any, x: jax.Array, lengths: jax.Array, **options: Any):
    """The carry and the outputs of both directions, whose weights are a pair."""
    x = masked(x, lengths)
    gates = tuple(x @ w["ih"].T + w["b_ih"] for w in weights)
    zeros = jnp.zeros((x.shape[0], weights[0]["hh"].shape[1]), x.dtype)
    init = ((zeros,) * STATES[kind],) * 2
    return bidirectional_scan(CELLS[kind], weights, init, gates, lengths, **options)
