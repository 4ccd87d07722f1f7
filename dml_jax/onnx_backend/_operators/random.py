"""Dropout, and operators that draw random numbers.

A node draws from a key of its own: the caller's, folded with the place of the node in
the model and with the iterations of the loops around it. `Model.run` has no key of a
caller. There, a node with a seed draws from the seed, and others from fresh entropy.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.onnx_backend._nodes import Node, Operator
from dml_jax.onnx_backend._operators._arrays import (
    at_least_float32,
    dtype_in,
    numpy_or_jax,
    require_rank,
    require_scalar,
    require_size,
)
from dml_jax.onnx_backend._values import Array


def _key_of(node: Node) -> jax.Array:
    """The key that a node draws from."""
    options, seed = node.scope.options, node.attributes.get("seed")
    key = options.get("key", options.get("entropy"))
    if key is None:
        raise TypeError(
            "`key` must be a PRNG key, since the node draws random numbers; got None. "
            "Pass `key=` to `apply` or `jax_fn`"
        )
    if "key" not in options and seed is not None:
        key = jax.random.key(np.float32(seed).view(np.uint32))
    else:
        key = jax.random.fold_in(key, node.place)
    if node.scope.iterations:
        # Derivatives of a loop draw again under `vmap`, where other generators differ.
        bits = jax.random.bits(key, (2,), np.uint32)
        key = jax.random.wrap_key_data(bits, impl="threefry2x32")
    return functools.reduce(jax.random.fold_in, node.scope.iterations, key)


def _dropout(node: Node, x: Array, ratio: Any = None, is_training: Any = None) -> Any:
    require_scalar("ratio", ratio)
    rate = np.asarray(0.5, np.float32) if ratio is None else ratio.reshape(())
    is_known = isinstance(rate, np.ndarray)
    if is_known and not 0 <= rate < 1:
        raise ValueError(f"`ratio` must be in [0, 1); got {rate}")
    if not np.any(is_training) or (is_known and rate == 0):
        dtype = x.dtype if node.version < 10 else np.bool_
        mask = numpy_or_jax(sizes=np.shape(x)).ones(np.shape(x), dtype)
        return [x, mask][: len(node.outputs)]
    share = 1 - at_least_float32(rate)
    mask = jax.random.bernoulli(_key_of(node), share, np.shape(x))
    return [jnp.where(mask, x / share, 0).astype(x.dtype), mask]


def _tensor(node: Node, x: Any = None) -> jax.Array:
    """Normal or uniform numbers, of the shape of an attribute or of the input."""
    attributes, shape = node.attributes, np.shape(x)
    dtype = dtype_in(node, "dtype", getattr(x, "dtype", None))
    if x is None:
        shape = require_size(node, "shape", attributes["shape"])
    if "low" in attributes:
        limits = attributes["low"], attributes["high"]
        return jax.random.uniform(_key_of(node), shape, dtype, *limits)
    wide = jnp.promote_types(dtype, jnp.float32)  # in 16 bits, the tails are missing
    drawn = jax.random.normal(_key_of(node), shape, wide)
    return (drawn * attributes["scale"] + attributes["mean"]).astype(dtype)


def _bernoulli(node: Node, x: Array) -> jax.Array:
    drawn = jax.random.bernoulli(_key_of(node), at_least_float32(x), np.shape(x))
    return drawn.astype(dtype_in(node, "dtype", x.dtype))


def _multinomial(node: Node, x: Array) -> jax.Array:
    require_rank("input", x, 2)
    sizes = node.attributes["sample_size"], np.shape(x)[0]
    shape = require_size(node, "sample_size", sizes)
    drawn = jax.random.categorical(_key_of(node), at_least_float32(x), shape=shape)
    return drawn.T.astype(dtype_in(node, "dtype"))


_operator = functools.partial(Operator, is_folded=False, is_random=True)

OPERATORS = {
    "Dropout": _operator(_dropout, 7, static=(2,)),
    "RandomNormal": _operator(_tensor, 1),
    "RandomUniform": _operator(_tensor, 1),
    "RandomNormalLike": _operator(_tensor, 1, of_shapes=True),
    "RandomUniformLike": _operator(_tensor, 1, of_shapes=True),
    "Bernoulli": _operator(_bernoulli, 15),
    "Multinomial": _operator(_multinomial, 7),
}
