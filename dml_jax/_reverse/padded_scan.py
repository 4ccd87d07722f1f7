"""Recurrences over padded or packed sequences, in one direction or in both.

Each step has an id: 0 at the padding, and one number within a sequence. Lengths and
masks are ids of 0 and 1. Padding keeps the carry, so that a scan backwards in time
needs no reversal by lengths. The carry starts from `init` again where the id differs
from that of the last step that is not padding.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from dml_jax._reverse import operands
from dml_jax._reverse.api import require_sequences
from dml_jax._reverse.binding import clamp
from dml_jax._shared import arguments, scans, value_checks

PyTree: TypeAlias = Any
Step: TypeAlias = Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]


def padded_scan(
    step: Step,
    weights: PyTree,
    init: PyTree,
    xs: PyTree,
    lengths: operands.LengthsLike | None = None,
    axis: int = 1,
    *,
    segment_ids: ArrayLike | None = None,
    reverse: bool = False,
    unroll: int | bool | None = None,
) -> tuple[PyTree, PyTree]:
    """Scans padded or packed sequences, with derivatives for all steps at once.

    Padding keeps the carry and has no influence, even if it is NaN: the step gets zeros
    there. Its derivative at zeros must be finite. An empty sequence keeps `init`.

    Args:
      step: function (weights, carry, x) -> (carry, y), like that of `lax.scan`. The
        arrays of `carry`, `x` and `y` are [batch, ...]. It may close over arrays; they
        have gradients, too. It must not change its weights.
      weights: pytree of arrays that the step reads; may be None.
      init: the initial carry, a pytree of arrays [batch, ...] of any dtypes. If there
        are no lengths and no ids, they may have any shapes.
      xs: pytree of arrays [batch, time, ...], at least one.
      lengths: integers of shape [batch], or of another shape as in `reverse_padded`.
        Without lengths and `segment_ids`, all steps are read.
      axis: the dimension of time in `xs`; may be negative if their ranks are equal.
      segment_ids: integers or booleans [batch, time], with the time at `axis` as in
        `xs`: 0 for padding, which may be anywhere, and equal numbers within a sequence.
        The carry starts from `init` again at each new number.
      reverse: whether to read from the last step to the first.
      unroll: the steps in one iteration of the loop, as in `lax.scan`; by default 8 on
        a GPU, and 1 elsewhere.

    Returns:
      (carry, ys): the carry after the last step that was read of each row, and the
      outputs in the order of `xs`, with zeros at the padding (but for PRNG keys).

    Raises:
      TypeError: `lengths` or `segment_ids` have another dtype, or the step returns no
        pair (carry, y), or a carry of another structure, shape or dtype than `init`.
      ValueError: both `lengths` and `segment_ids` are given, `xs` has no arrays or they
        differ in time, a shape does not fit, or the step changes its weights.

    Derivatives: forward and reverse mode of any order; 0 for padding. Only the carry
    goes through a loop, and gradients of 16-bit weights are summed in float32. The
    derivative computes the step twice more, for all times at once. Sharding: the batch
    may be sharded on automatic, explicit or manual axes. Devices exchange the gradients
    of the weights once. The time axis may not be sharded on explicit or manual axes.

    Example:
      >>> import jax.numpy as jnp
      >>> from dml_jax import padded_scan
      >>> def step(weight, total, x):
      ...     total = weight * total + x
      ...     return total, total
      >>> x = jnp.array([[1.0, 2.0, 3.0, 0.0], [4.0, 5.0, 6.0, 7.0]])
      >>> padded_scan(step, 10.0, jnp.zeros(2), x, jnp.array([3, 4]))[1]
      Array([[1.000e+00, 1.200e+01, 1.230e+02, 0.000e+00],
             [4.000e+00, 4.500e+01, 4.560e+02, 4.567e+03]], dtype=float32)
      >>> ids = jnp.array([[1, 1, 1, 0], [1, 1, 2, 2]])
      >>> padded_scan(step, 10.0, jnp.zeros(2), x, segment_ids=ids)[1]
      Array([[  1.,  12., 123.,   0.],
             [  4.,  45.,   6.,  67.]], dtype=float32)

    Source: the scan is `lax.scan`; ids are those of packed attention.
    """
    xs, init = _arrays(xs), _arrays(init)
    ids, axis = _ids("padded_scan", xs, lengths, segment_ids, axis)
    _require_batch(init, xs, ids, axis, "")
    reverse = arguments.flag("reverse", reverse)
    options = _Options(step, axis, unroll, reverse)
    return _one_direction(options, weights, init, xs, ids)


def bidirectional_scan(
    step: Step,
    weights: PyTree,
    init: PyTree,
    xs: PyTree,
    lengths: operands.LengthsLike | None = None,
    axis: int = 1,
    *,
    segment_ids: ArrayLike | None = None,
    unroll: int | bool | None = None,
) -> tuple[PyTree, PyTree]:
    """Scans padded sequences forwards and backwards, both directions in one loop.

    The backward direction reads from the last valid step to the first. Everything else
    is as in `padded_scan`, for each direction.

    Args:
      step: function (weights, carry, x) -> (carry, y) of one direction, like that of
        `lax.scan`. The arrays of `carry`, `x` and `y` are [batch, ...].
      weights: a tuple of two pytrees of arrays (forward, backward), which the step
        reads. Or stacked: any pytree but a tuple, of arrays [2, ...]. May be None.
      init: the initial carry of arrays [batch, ...], as a tuple of two or stacked. Of
        an LSTM, ((h, c), (h, c)).
      xs: arrays [batch, time, ...], as a tuple of two or stacked; (x, x) for the same.
      lengths: integers of shape [batch], as in `padded_scan`.
      axis: the dimension of time in the arrays of one direction.
      segment_ids: integers or booleans [batch, time], as in `padded_scan`.
      unroll: the steps in one iteration of the loop, as in `padded_scan`.

    Returns:
      (carry, ys), both tuples (forward, backward): the carry of each row after its last
      step, and the outputs in the order of `xs`, with zeros at the padding.

    Raises:
      ValueError: an argument is neither a tuple of two nor stacked, or the two differ
        in shapes. Others as by `padded_scan`.

    Derivatives: those of `padded_scan`. Sharding: as there.

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
    weights, init, xs = (
        _directions(*pair)
        for pair in (("weights", weights), ("init", init), ("xs", xs))
    )
    ids, axis = _ids("bidirectional_scan", xs, lengths, segment_ids, axis)
    _require_batch(init, xs, ids, axis, " in each direction")
    options = _Options(step, axis, unroll, reverse=False)
    return _both_directions(options, weights, init, xs, ids)


# Arguments ----------------------------------------------------------------------------


def _arrays(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.asarray, tree)


def _directions(argument: str, value: PyTree) -> tuple[PyTree, PyTree]:
    is_stacked = type(value) not in (tuple, list) and all(
        np.shape(x)[:1] == (2,) for x in jax.tree.leaves(value)
    )
    if is_stacked:
        return _unstacked(value)
    if type(value) is tuple and len(value) == 2:
        is_mixed = type(value[0]) is not type(value[1])
        if is_mixed and not jax.tree_util.all_leaves(value):
            kinds = " and ".join(type(v).__name__ for v in value)
            rule = "have two pytrees of one kind"
            raise arguments.error(TypeError, argument, rule, kinds)
        first, second = map(_arrays, value)
        if _forms(first) == _forms(second):
            return first, second
    rule = "be a tuple (forward, backward) with equal shapes, or stacked [2, ...]"
    raise arguments.error(ValueError, argument, rule, _shapes(value))


def _shapes(tree: PyTree) -> str:
    return f"the shapes {arguments.show(jax.tree.map(np.shape, tree))}"


def _ids(
    name: str, xs: PyTree, lengths: Any, segment_ids: Any, axis: Any
) -> tuple[jax.Array | None, int]:
    """The ids [time, batch], None if all steps are valid, and the axis of time."""
    shapes = [x.shape for x in jax.tree.leaves(xs)]
    if not shapes:
        raise arguments.error(ValueError, "xs", "have arrays", "none")
    given, axis = axis, operands.canonicalize_axis("xs", shapes[0], axis)
    if given != axis and len({*map(len, shapes)}) > 1:
        rule = "not be negative for arrays of different ranks"
        raise arguments.error(ValueError, "axis", rule, given)
    time = shapes[0][axis]
    for shape in shapes:
        if shape[: axis + 1] != shapes[0][: axis + 1]:
            rule = f"have arrays of one batch and {time} steps in dimension {axis}"
            raise arguments.error(ValueError, "xs", rule, f"the shape {shape}")
    if segment_ids is not None:
        if lengths is not None:
            rule = "be None if `segment_ids` are given"
            raise arguments.error(ValueError, "lengths", rule, "both")
        ids = _segment_ids(jnp.asarray(segment_ids), shapes, axis)
        return jnp.moveaxis(ids, axis, 0), axis
    if lengths is None:
        return None, axis
    if axis and np.shape(lengths) == shapes[0][: axis + 1]:
        rule, got = "have no time", f"the shape {np.shape(lengths)} of a mask"
        got += ". Pass it as `segment_ids`"
        raise arguments.error(ValueError, "lengths", rule, got)
    lengths = operands.as_lengths("lengths", lengths)
    for shape in shapes:
        require_sequences("xs", shape, lengths.shape, axis)
    value_checks.check_lengths(name, "lengths", lengths, time)
    lengths = clamp(lengths, time)
    steps = lax.broadcasted_iota(lengths.dtype, (time, *[1] * lengths.ndim), 0)
    return steps < lengths[None], axis


def _segment_ids(ids: jax.Array, shapes: Any, axis: int) -> jax.Array:
    if not (ids.dtype == jnp.bool_ or jnp.issubdtype(ids.dtype, jnp.integer)):
        rule = "have an integer dtype or booleans"
        raise arguments.error(TypeError, "segment_ids", rule, ids.dtype)
    ranks = (axis + 1,) if axis else (1, 2)
    for shape in shapes:
        if ids.ndim not in ranks or shape[: ids.ndim] != ids.shape:
            rule = f"have the shape {shape[: ranks[-1]]}, the first sizes of `xs`"
            raise arguments.error(ValueError, "segment_ids", rule, ids.shape)
    return ids


def _require_batch(init: PyTree, xs: PyTree, ids: Any, axis: int, where: str) -> None:
    shape = jax.tree.leaves(xs)[0].shape
    batch = (shape[:axis] or shape[1:2])[: 0 if ids is None else ids.ndim - 1]
    for x in jax.tree.leaves(init):
        if x.shape[: len(batch)] != batch:
            rule = f"have arrays [{', '.join(map(str, batch))}, ...]{where}"
            raise arguments.error(ValueError, "init", rule, f"{x.shape}")


class _Options(NamedTuple):
    """A part of the key of `jit`, by the identity of the step: it may have no hash."""

    step: Step
    axis: int
    unroll: int | bool | None
    reverse: bool

    def __eq__(self, other: Any) -> bool:
        return self.step is other.step and self[1:] == other[1:]

    def __hash__(self) -> int:
        return hash((id(self.step), *self[1:]))


# Scans --------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def _one_direction(
    options: _Options, weights: PyTree, init: PyTree, xs: PyTree, ids: Any
) -> tuple[PyTree, PyTree]:
    axis = options.axis
    rows = jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), xs)
    carry, ys = _scan(options, weights, init, rows, ids)
    return carry, jax.tree.map(lambda y: jnp.moveaxis(y, 0, axis), ys)


@functools.partial(jax.jit, static_argnums=0)
def _both_directions(
    options: _Options, weights: PyTree, init: PyTree, xs: PyTree, ids: Any
) -> tuple[PyTree, PyTree]:
    """One scan of both directions, which are dimension 1 of rows [time, 2, batch]."""

    def rows_of(forward: jax.Array, backward: jax.Array) -> jax.Array:
        return jnp.stack([forward, jnp.flip(backward, 0)], 1)

    axis = options.axis
    weights, init = (
        jax.tree.map(lambda *pair: jnp.stack(pair), *pair) for pair in (weights, init)
    )
    xs = jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), xs)
    rows = jax.tree.map(rows_of, *xs)
    ids = None if ids is None else rows_of(ids, ids)
    carry, ys = _scan(options, weights, init, rows, ids, directions=1)
    forward, backward = (jax.tree.map(lambda y, d=d: y[:, d], ys) for d in range(2))
    backward = jax.tree.map(lambda y: jnp.flip(y, 0), backward)
    ys = jax.tree.map(lambda y: jnp.moveaxis(y, 0, axis), (forward, backward))
    return _unstacked(carry), ys


def _unstacked(tree: PyTree) -> tuple[PyTree, PyTree]:
    first, second = (jax.tree.map(lambda x, d=d: x[d], tree) for d in range(2))
    return first, second


def _scan(
    options: _Options,
    weights: PyTree,
    init: PyTree,
    rows: PyTree,
    ids: Any,
    directions: int = 0,
) -> tuple[PyTree, PyTree]:
    """A scan of rows [time, batch, ...]; [time, 2, batch, ...] if `directions` is 1."""
    step, axis, unroll, reverse = options
    first = 1 + directions
    rank = axis if ids is None else max(axis, ids.ndim - first)
    masked = functools.partial(_masked, step, directions, rank)
    place = _placement((init, rows, ids), first, rank)
    init, rows, ids = place(init, first - 1), place(rows, first), place(ids, first)
    if ids is not None:
        rows = _select(ids.astype(bool), rows)
    last = None if ids is None or ids.dtype == jnp.bool_ else jnp.zeros_like(ids[0])
    (carry, _), ys = scans.scan(
        jax.vmap(masked) if directions else masked,
        (weights, init),
        (init, last),
        (rows, ids),
        unroll,
        reverse,
    )
    return carry, ys if ids is None else _select(ids.astype(bool), place(ys, first))


def _masked(
    step: Step, directions: int, rank: int, weights: PyTree, carry: PyTree, row: PyTree
) -> tuple[PyTree, PyTree]:
    """A step that keeps the carry at the padding, and begins again at a new id."""
    (weights, init), (carry, last), (x, id_) = weights, carry, row
    if last is not None:
        carry = _select((id_ != 0) & (last != 0) & (last != id_), init, carry)
        last = jnp.where(id_ != 0, id_, last)
    batch = jax.tree.leaves(x)[0].shape[:rank]
    new, y = _checked_results(step, directions, batch, weights, carry, x)
    if id_ is not None:
        new = _select(id_.astype(bool), new, carry)
    return (new, last), y


def _select(condition: jax.Array, tree: PyTree, other: PyTree = None) -> PyTree:
    """`tree` where the condition holds, else `other`, or zeros."""

    def select(x: jax.Array, other: Any = None) -> jax.Array:
        if other is None:
            if not arguments.has_zero(x.dtype):
                return x
            other = jnp.zeros_like(x)
        dims = range(condition.ndim, x.ndim)
        return jnp.where(jnp.expand_dims(condition, tuple(dims)), x, other)

    return jax.tree.map(select, tree, *(() if other is None else (other,)))


def _checked_results(
    step: Step, directions: int, batch: Any, weights: PyTree, carry: PyTree, x: PyTree
) -> tuple[PyTree, PyTree]:
    hint = ""
    if directions and jax.tree.structure(carry).num_nodes == 1:
        hint = ". The states of an LSTM in both directions are ((h, c), (h, c))"
    before = jax.tree.leaves(weights)
    try:
        found = step(weights, carry, x)
    except (TypeError, ValueError) as error:
        if hint:
            note = f"bidirectional_scan: the step got one array of `init`{hint}"
            error.add_note(note)
        raise
    after = jax.tree.leaves(weights)
    if len(after) != len(before) or any(map(operator.is_not, before, after)):
        rule = "not change its weights, as dropout does; pass masks in `xs`"
        raise arguments.error(ValueError, "step", rule, "other weights")
    if type(found) is not tuple or len(found) != 2:
        rule = "return a pair (carry, y)"
        raise arguments.error(TypeError, "step", rule, _shapes(found))
    new, y = map(_arrays, found)
    if _forms(new) != _forms(carry):
        rule = f"return a carry like the one that it gets, {_described(carry)}"
        same = jax.tree.structure(new) == jax.tree.structure(carry)
        got = _described(new) + (hint if not same else "")
        raise arguments.error(TypeError, "step", rule, got)
    for array in jax.tree.leaves(y):
        if array.shape[: len(batch)] != batch:
            rule = f"return outputs [{', '.join(map(str, batch))}, ...]"
            raise arguments.error(ValueError, "step", rule, array.shape)
    return new, y


def _forms(tree: PyTree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(x.shape, x.dtype) for x in leaves]


def _described(tree: PyTree) -> str:
    """The dtypes and shapes, such as (float32[3, 4], float32[3, 4])."""
    return arguments.show(jax.tree.map(lambda x: jax.typeof(x).str_short(), tree))


def _placement(arrays: Any, first: int, rank: int) -> Callable[[PyTree, int], PyTree]:
    """A function that shards the batch of arrays alike, on explicit axes.

    Without it, `jnp.where` would refuse a mask and a carry with other shardings.
    """
    mesh = jax.sharding.get_abstract_mesh()
    init, *rows = arrays
    specs = [
        jax.typeof(x).sharding.spec[start : start + rank]
        for tree, start in ((rows, first), (init, first - 1))
        for x in jax.tree.leaves(tree)
    ]
    batch = next((spec for spec in specs if any(spec)), None)
    if not mesh.explicit_axes or batch is None:
        return lambda tree, _: tree

    def place(start: int, x: jax.Array) -> jax.Array:
        spec = [*jax.typeof(x).sharding.spec]
        sizes = x.shape[start : start + rank]
        spec[start : start + rank] = [
            name if size != 1 else None
            for name, size in zip(batch, sizes, strict=False)
        ]
        return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))

    return lambda tree, start: jax.tree.map(functools.partial(place, start), tree)
