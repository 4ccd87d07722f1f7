"""A recurrence over padded sequences in both directions, in one loop with one mask."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dml_jax._reverse.padded import reverse_padded
from dml_jax._shared import arguments, scans

_NAME = "bidirectional_scan"


def bidirectional_scan(
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    weights: Any,
    init: Any,
    xs: Any,
    lengths: ArrayLike,
    axis: int = 1,
    *,
    unroll: int | bool | None = None,
) -> tuple[Any, Any]:
    """Scans padded sequences forwards and backwards, both directions in one loop.

    The backward direction reads from the last valid step to the first. An empty
    sequence keeps its initial carry. Padding has no influence, also if it is NaN: the
    step gets zeros there, where its derivative must be finite. If `xs` are products of
    data and weights, mask the data too, or NaNs reach the gradient of these weights.

    Args:
      step: function (weights, carry, x) -> (carry, y) of one direction, like that of
        `lax.scan`. The arrays of `carry`, `x` and `y` are [batch, ...].
      weights: a tuple of two pytrees of arrays (forward, backward), which the step
        reads. Or stacked: any pytree but a tuple, of arrays [2, ...]. May be None.
      init: the initial carry of arrays [batch, ...], as a tuple of two or stacked. Of
        an LSTM, ((h, c), (h, c)).
      xs: arrays [batch, time, ...], as a tuple of two or stacked; (x, x) for the same.
      lengths: integers of shape [batch], or of another shape as in `reverse_padded`.
      axis: the dimension of time in the arrays of one direction; may be negative.
      unroll: the steps in one iteration of the loop, as in `lax.scan`; None for 8 on a
        GPU and 1 elsewhere.

    Returns:
      (carry, ys), both tuples (forward, backward): the carry of each sequence after its
      last step, and the outputs in the order of `xs`, with zeros at the padding.

    Raises:
      ValueError: an argument is neither a tuple of two nor stacked, the two differ in
        shapes, or `init` lacks the batch. Others as by `reverse_padded` and `lax.scan`.

    Derivatives: those of `lax.scan`; 0 for padding. Sharding: the batch may be sharded,
    without communication, and `init` need not be. The time axis may not be.

    Example:
      >>> import jax.numpy as jnp
      >>> from dml_jax import bidirectional_scan
      >>> def step(weight, total, x):
      ...     total = weight * total + x
      ...     return total, total
      >>> x = jnp.array([[1.0, 2.0, 3.0, 0.0], [4.0, 5.0, 0.0, 0.0]])
      >>> weights, zeros, lengths = (1.0, 10.0), jnp.zeros(2), jnp.array([3, 2])
      >>> init, xs = (zeros, zeros), (x, x)
      >>> carry, ys = bidirectional_scan(step, weights, init, xs, lengths)
      >>> ys[1]
      Array([[321.,  32.,   3.,   0.],
             [ 54.,   5.,   0.,   0.]], dtype=float32)
      >>> carry
      (Array([6., 9.], dtype=float32), Array([321.,  54.], dtype=float32))

    Source: the bidirectional RNN, GRU and LSTM of ONNX, for any step.
    """
    weights, init = (
        jax.tree.map(lambda *pair: jnp.stack(pair), *_directions(name, value))
        for name, value in (("weights", weights), ("init", init))
    )
    forward, backward = _directions("xs", xs)
    lengths = jnp.asarray(lengths)
    backward = jax.tree.map(lambda x: reverse_padded(x, lengths, axis), backward)
    first, *_ = jax.tree.leaves(backward)
    axis = axis % first.ndim
    dtype = lengths.dtype if lengths.dtype.itemsize > 2 else jnp.int32
    time = jnp.arange(first.shape[axis], dtype=dtype).reshape(-1, *[1] * lengths.ndim)
    valid = time < lengths[None].astype(dtype)  # [time, batch]

    def rows_of(*pair: ArrayLike) -> jax.Array:  # [time, 2, batch, ...]
        rows = jnp.stack([jnp.moveaxis(x, axis, 0) for x in pair], 1)
        return _select(valid[:, None], rows)

    def masked_step(weights: Any, carry: Any, x: Any, valid: jax.Array) -> Any:
        new, y = step(weights, carry, x)
        select = functools.partial(_select, valid)
        return jax.tree.map(select, new, carry), jax.tree.map(select, y)

    def both_steps(carry: Any, row: Any) -> Any:
        return jax.vmap(masked_step, (0, 0, 0, None))(weights, carry, *row)

    rows = jax.tree.map(rows_of, forward, backward)
    _require_batch(init, jax.tree.leaves(rows)[0].shape[2:][: lengths.ndim])
    carry, ys = scans.scan(both_steps, init, (rows, valid), unroll)
    ys = jax.tree.map(lambda y: jnp.moveaxis(y, 0, axis + 1), ys)
    forward, backward = _unstacked(ys)
    backward = jax.tree.map(lambda y: reverse_padded(y, lengths, axis), backward)
    return _unstacked(carry), (forward, backward)


def _select(valid: jax.Array, x: jax.Array, other: Any = None) -> jax.Array:
    """`x` where a step is valid, and `other` or zeros at the padding."""
    valid = jnp.expand_dims(valid, tuple(range(valid.ndim, x.ndim)))
    return jnp.where(valid, x, jnp.zeros_like(x) if other is None else other)


def _unstacked(tree: Any) -> Any:
    return tuple(jax.tree.map(lambda x, d=d: x[d], tree) for d in range(2))


def _directions(name: str, value: Any) -> Any:
    is_pair, shapes = type(value) is tuple, jax.tree.map(np.shape, value)
    if not is_pair and all(np.shape(x)[:1] == (2,) for x in jax.tree.leaves(value)):
        return _unstacked(value)
    forms = [jax.tree.flatten(shape) for shape in shapes] if is_pair else []
    if len(forms) == 2 and forms[0] == forms[1]:
        return value
    rule = "be a tuple (forward, backward) with equal shapes, or stacked [2, ...]"
    raise arguments.error(ValueError, _NAME, name, rule, f"the shapes {shapes}")


def _require_batch(init: Any, batch: tuple[int, ...]) -> None:
    for x in jax.tree.leaves(init):
        if x.shape[1:][: len(batch)] != batch:
            rule = f"have arrays [{', '.join(map(str, batch))}, ...] in each direction"
            raise arguments.error(ValueError, _NAME, "init", rule, f"{x.shape[1:]}")
