"""Reversal of padded sequences, in the form that JAX's own functions have.

The operators of DirectML and ONNX keep the names, the order and the axes of their
specifications. `reverse_padded` has no options beside the axis, and takes lengths in
the shape that a batch has. Two rules are choices:

- Lengths have one dimension for each batch dimension, or none. A missing dimension is
  an error, since broadcasting would take lengths of shape [batch] for [heads] in an
  array [batch, heads, ...] if both sizes are equal.
- With the time in dimension 0, the batch is dimension 1, as in time-major data.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dml_jax._reverse import operands
from dml_jax._reverse.binding import bind
from dml_jax._reverse.operands import LengthsLike
from dml_jax._shared import arguments, value_checks
from dml_jax._shared.arguments import Shape


def reverse_padded(x: ArrayLike, lengths: LengthsLike, axis: int = 1) -> jax.Array:
    """Reverses the first elements of every padded sequence, and keeps the padding.

    Lengths 0 and 1 change nothing; a length beyond the axis acts as the axis size, a
    negative one as 0 (`checked` reports both). Every bit is kept, NaN payloads and the
    sign of zero included. Empty arrays are legal.

    Args:
      x: array of any dtype and of rank 1 or more, such as [batch, time, features].
      lengths: integers, of any integer dtype: one for all sequences, or an array with
        the dimensions of `x` before `axis`, each of the size of `x` or 1. If `axis` is
        0, an array has the size of dimension 1, or 1: data of shape
        [time, batch, features] has lengths of shape [batch].
      axis: the dimension of time, along which the elements are reversed; may be
        negative. A single sequence of shape [time, features] has axis 0.

    Returns:
      An array with the shape and dtype of `x`.

    Raises:
      TypeError: an argument is not array-like, `lengths` is not integer, or `axis` is
        not a static integer.
      ValueError: `axis` is out of bounds, `x` has 2^32 elements or more along it, or
        `lengths` does not fit the shape of `x`.

    Derivatives: linear in `x`. A derivative of any order, in forward or reverse mode,
    costs as much as the operator. Sharding: the result is sharded as `x`. Devices
    communicate only if `axis` is sharded; no device then holds more than a few shards.

    Example:
      >>> import jax.numpy as jnp
      >>> from dml_jax import reverse_padded
      >>> x = jnp.array([[1, 2, 3, 0], [4, 5, 0, 0]])
      >>> reverse_padded(x, jnp.array([3, 2]))
      Array([[3, 2, 1, 0],
             [5, 4, 0, 0]], dtype=int32)
      >>> reverse_padded(x.T, jnp.array([3, 2]), axis=0)
      Array([[3, 5],
             [2, 4],
             [1, 0],
             [0, 0]], dtype=int32)
      >>> reverse_padded(x[0], 3, axis=0)
      Array([3, 2, 1, 0], dtype=int32)

    Source: the operator is DirectML's, DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC, with
    lengths that do not vary along the dimensions after `axis`.
    """
    # First the lengths, for the error of swapped arguments.
    lengths = operands.as_lengths("lengths", lengths)
    x = jnp.asarray(x)
    axis = operands.canonicalize_axis("x", x.shape, axis)
    require_batch("x", x.shape, lengths.shape, axis)
    value_checks.check_lengths("reverse_padded", "lengths", lengths, x.shape[axis])
    return _reverse_padded(x, lengths, axis=axis)


def require_batch(name: str, shape: Shape, lengths_shape: Shape, axis: int) -> None:
    """Refuses lengths of another shape than sequences in the array `name` have."""
    batch = shape[:axis] or shape[1:2]
    if operands.fits(lengths_shape, batch) or not lengths_shape:
        return
    rule = "be a scalar"
    if batch:
        where = f"before {axis=}" if axis else f"in dimension 1, with {axis=}"
        rule += f" or have shape {batch}, the sizes of `{name}` {where}"
        rule += ", or 1 for any of them"
    got = f"{lengths_shape}{_advice(shape, lengths_shape, batch, axis)}"
    raise arguments.error(ValueError, "lengths", rule, got)


def _advice(shape: Shape, lengths_shape: Shape, batch: Shape, axis: int) -> str:
    """How to pass lengths that `reverse_padded` refuses."""
    expansion = operands.expansion("lengths", lengths_shape, batch)
    if expansion:
        return expansion
    if [n for n in lengths_shape if n != 1] == [n for n in batch if n != 1]:
        return f". Pass `jnp.reshape(lengths, {batch})`"
    if axis < 2 <= len(shape) and lengths_shape == (shape[axis],):
        return f". If the time is dimension {1 - axis}, pass axis={1 - axis}"
    if lengths_shape == (*shape[:axis], *shape[axis + 1 :]):
        return (
            ". For one length for each line, call `reverse_subsequences` with "
            f"`jnp.expand_dims(lengths, {axis})`"
        )
    return ""


@functools.partial(jax.jit, static_argnames="axis")
def _reverse_padded(x: jax.Array, lengths: jax.Array, *, axis: int) -> jax.Array:
    with jax.named_scope("reverse_padded"):
        missing = [axis] if lengths.ndim else range(axis + 1)
        return bind(x, lax.expand_dims(lengths, missing), axis)
