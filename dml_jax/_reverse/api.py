"""Reversal of the first elements of every line of an array.

With n the line's length clamped to [0, axis size], and k running along the axis:

    y[k] = x[n - 1 - k]  if k < n
    y[k] = x[k]          otherwise

DirectML's REVERSE_SUBSEQUENCES has one length for every line: the lengths have the
input's rank and size 1 along the axis. ONNX's ReverseSequence has one length for every
batch entry, and only axes 0 and 1. With reshaped lengths it is DirectML's operator, so
both bind one primitive. The specifications leave two things open:

- Lengths out of range. DirectML clamps a length beyond the axis; ONNX does not define
  the result, and ONNX Runtime raises an error. A program on an accelerator cannot
  raise, so lengths are clamped here, and `checked` reports them. A negative length,
  which DirectML's dtypes exclude, acts as 0.
- Training. The training mode of `reverse_sequence` is in neither specification. It
  comes from graph environments that train ONNX models.

`reverse_padded` is the same operator in the form that JAX's own functions have. Its
lengths have the shape of a batch, and two rules are choices:

- Lengths have one dimension for each batch dimension, or none. A missing dimension is
  an error, since broadcasting would take lengths of shape [batch] for [heads] in an
  array [batch, heads, ...] if both sizes are equal.
- With the time in dimension 0, the batch is dimension 1, as in time-major data.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike

from dml_jax._reverse import operands
from dml_jax._reverse.binding import bind
from dml_jax._reverse.operands import LengthsLike
from dml_jax._shared import arguments, scalars
from dml_jax._shared.arguments import Implementation, Shape
from dml_jax._shared.value_checks import check_lengths


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
    require_sequences("x", x.shape, lengths.shape, axis)
    name = "reverse_padded"
    check_lengths(name, "lengths", lengths, x.shape[axis])
    missing = (axis,) if lengths.ndim else tuple(range(axis + 1))
    return _reverse(x, lengths, axis=axis, missing=missing, name=name)


def reverse_subsequences(
    input: ArrayLike,
    sequence_lengths: LengthsLike,
    axis: int,
    *,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Reverses the first elements of every line along `axis`, one length for each line.

    The rest of a line is copied. Lengths 0 and 1 change nothing; a length beyond the
    axis acts as the axis size, a negative one as 0 (`checked` reports both). Every bit
    is kept, NaN payloads and the sign of zero included. Empty arrays are legal.

    Args:
      input: array of any dtype and of rank 1 or more.
      sequence_lengths: integer array of the rank of `input`: size 1 along `axis`, and
        along each other dimension the size of `input` or 1, which stands for all lines.
      axis: the dimension along which the elements are reversed; may be negative.
      implementation: `"gather"` or `"scatter"`, which both give the same result, or
        None for the fastest. XLA itself partitions `"gather"`. `"scatter"` falls back
        to the gather in exports, where XLA may partition the program, and where its
        indices need more than three times the memory of the result. Inside a
        `shard_map` over some axes of a mesh, neither has an effect.

    Returns:
      An array with the shape and dtype of `input`.

    Raises:
      TypeError: an argument is not array-like, `sequence_lengths` is not integer, or
        `axis` is not a static integer.
      ValueError: `axis` is out of bounds, `input` has 2^32 elements or more along it,
        `sequence_lengths` does not fit the shape of `input`, or `implementation` is
        unknown.

    Derivatives: linear in `input`. A derivative of any order, in forward or reverse
    mode, costs as much as the operator. Sharding: the result is sharded as `input`.
    Devices communicate only if `axis` is sharded; no device then holds more than a few
    shards.

    Example:
      >>> import jax.numpy as jnp
      >>> from dml_jax import reverse_subsequences
      >>> x = jnp.arange(1, 13).reshape(3, 4)
      >>> reverse_subsequences(x, jnp.array([[2], [4], [3]]), axis=1)
      Array([[ 2,  1,  3,  4],
             [ 8,  7,  6,  5],
             [11, 10,  9, 12]], dtype=int32)
      >>> reverse_subsequences(x, jnp.array([[2, 3, 1, 0]]), axis=0)
      Array([[ 5, 10,  3,  4],
             [ 1,  6,  7,  8],
             [ 9,  2, 11, 12]], dtype=int32)

    Source: DirectML, DML_REVERSE_SUBSEQUENCES_OPERATOR_DESC.
    """
    # First the lengths, for the error of swapped arguments.
    lengths = operands.as_lengths("sequence_lengths", sequence_lengths)
    x = jnp.asarray(input)
    axis = operands.canonicalize_axis("input", x.shape, axis)
    _require_lines(x.shape, lengths.shape, axis)
    arguments.require_implementation(implementation)
    name = "reverse_subsequences"
    check_lengths(name, "sequence_lengths", lengths, x.shape[axis])
    return _reverse(x, lengths, axis=axis, name=name, implementation=implementation)


def reverse_sequence(
    input: ArrayLike,
    sequence_lens: LengthsLike,
    *,
    batch_axis: int | None = None,
    time_axis: int | None = None,
    training: bool = True,
    lda_coeff: ArrayLike = 1.0,
    name: str | None = None,
    specified_outputs_name: str | Sequence[str] | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Reverses the first elements of every sequence of a batch, copying the rest.

    Lengths 0 and 1 change nothing; a length beyond the time axis acts as its size, a
    negative one as 0 (`checked` reports both). Every bit is kept, NaN payloads and the
    sign of zero included. Empty arrays are legal. `training` and `lda_coeff` change
    the backward pass only, never the result.

    Args:
      input: array of any dtype and of rank 2 or more.
      sequence_lens: integer array of shape [batch].
      batch_axis: the dimension of the batch, 0 or 1; None for the one that is not
        `time_axis`, and for 1, as in ONNX, if both are None. If both dimensions have
        the same size, no error shows that the axes are the wrong ones: with data of
        shape [batch, time, ...], always pass `batch_axis=0`.
      time_axis: the dimension that is reversed, 1 or 0; None for the other one.
      training: True for a backward pass that multiplies by `lda_coeff` and saves only
        the lengths. False for the plain linear operator, in which `lda_coeff` has no
        effect.
      lda_coeff: real scalar, a Python number or traced. In training mode it multiplies
        the cotangent of `input`: 0 stops the gradient, values above 1 amplify it. The
        Python number 1 gives the plain operator. Another value does not trigger
        recompilation.
      name: a name for the operator in HLO and in profiles.
      specified_outputs_name: a name for the result, or a sequence of one name, which
        a `jax.checkpoint` policy such as `save_only_these_names` can refer to.
      implementation: `"gather"` or `"scatter"`, which both give the same result, or
        None for the fastest, as in `reverse_subsequences`.

    Returns:
      An array with the shape and dtype of `input`.

    Raises:
      TypeError: an argument is not array-like, `sequence_lens` is not integer, or an
        option is of the wrong kind.
      ValueError: the rank is below 2, the axes are not 0 and 1, the time axis has 2^32
        elements or more, `sequence_lens` is not of shape [batch], an option is unknown,
        or `lda_coeff` is a number that is not finite.

    Derivatives: the cotangent of `input` is `lda_coeff * reverse_sequence(cotangent)`,
    computed in at least float32; `lda_coeff` and the lengths receive none. The backward
    pass is itself differentiable, and each backward pass multiplies by the coefficient
    once. Forward mode (`jax.jvp`, `jax.hessian`) needs `training=False`, or the Python
    number 1 as `lda_coeff`: JAX has no forward mode for functions with a `custom_vjp`.
    Sharding: the result is sharded as `input`. Devices communicate only if the time
    axis is sharded; no device then holds more than a few shards.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from dml_jax import reverse_sequence
      >>> x = jnp.arange(8.0).reshape(2, 4)
      >>> lengths = jnp.array([3, 2])
      >>> reverse_sequence(x, lengths, batch_axis=0, time_axis=1)
      Array([[2., 1., 0., 3.],
             [5., 4., 6., 7.]], dtype=float32)
      >>> def loss(x):
      ...     y = reverse_sequence(
      ...         x, lengths, batch_axis=0, time_axis=1, lda_coeff=0.5
      ...     )
      ...     return jnp.sum(y * jnp.arange(8.0).reshape(2, 4))
      >>> jax.grad(loss)(x)
      Array([[1. , 0.5, 0. , 1.5],
             [2.5, 2. , 3. , 3.5]], dtype=float32)

    Source: ONNX, ReverseSequence-10 and -28; the training mode and `lda_coeff` from the
    ReverseSequence node of HAIBAL, Graiphic's deep-learning toolkit for LabVIEW.
    """
    # First the lengths, for the error of swapped arguments.
    lengths = operands.as_lengths("sequence_lens", sequence_lens)
    x = jnp.asarray(input)
    coefficient = scalars.real("lda_coeff", lda_coeff)
    batch_axis, time_axis = _canonicalize_axes(x.ndim, batch_axis, time_axis)
    _require_batch(x.shape, lengths.shape, batch_axis)
    operands.require_32_bits("input", f"{time_axis=}", x.shape[time_axis])
    training = arguments.flag("training", training)
    output_name = _only_name(specified_outputs_name)
    arguments.require_implementation(implementation)
    check_lengths("reverse_sequence", "sequence_lens", lengths, x.shape[time_axis])
    # Where the coefficient is the number 1, the plain operator has the same derivative.
    is_plain = not training or (type(coefficient) is float and coefficient == 1)
    y = _reverse(
        x,
        lengths,
        None if is_plain else coefficient,
        axis=time_axis,
        missing=tuple(d for d in range(x.ndim) if d != batch_axis),
        name=arguments.optional_name("name", name) or "reverse_sequence",
        implementation=implementation,
    )
    return y if output_name is None else checkpoint_name(y, output_name)


# Arguments ----------------------------------------------------------------------------


def require_sequences(name: str, shape: Shape, lengths_shape: Shape, axis: int) -> None:
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


def _canonicalize_axes(ndim: int, batch_axis: Any, time_axis: Any) -> tuple[int, int]:
    """ONNX's two axes: 0 and 1, or 1 and 0."""
    if ndim < 2:
        got = f"rank {ndim}. `reverse_subsequences` takes any rank"
        raise arguments.error(ValueError, "input", "have rank 2 or more", got)
    axes = []
    for name, axis in (("batch_axis", batch_axis), ("time_axis", time_axis)):
        if axis is not None:
            axis = arguments.integer(name, axis)
            if axis not in (0, 1):
                got = f"{arguments.show(axis)}. `reverse_subsequences` takes any axis"
                raise arguments.error(ValueError, name, "be 0 or 1", got)
        axes.append(axis)
    batch_axis, time_axis = axes
    if batch_axis is None:
        batch_axis = 1 if time_axis is None else 1 - time_axis
    if time_axis is None:
        time_axis = 1 - batch_axis
    if batch_axis == time_axis:
        both, got = "batch_axis` and `time_axis", f"{batch_axis} and {time_axis}"
        raise arguments.error(ValueError, both, "be 0 and 1 or 1 and 0", got)
    return batch_axis, time_axis


def _only_name(names: Any) -> str | None:
    """The name of the only result, or the only one in a sequence."""
    argument = "specified_outputs_name"
    names = names if isinstance(names, (list, tuple, np.ndarray)) else [names]
    if len(names) != 1:
        raise arguments.error(ValueError, argument, "have one name", len(names))
    return arguments.optional_name(argument, names[0])


def _require_lines(shape: Shape, lengths_shape: Shape, axis: int) -> None:
    """Refuses lengths of another shape than `reverse_subsequences` takes."""
    full = (*shape[:axis], 1, *shape[axis + 1 :])
    if operands.fits(lengths_shape, full):
        return
    advice = operands.expansion("sequence_lengths", lengths_shape, full)
    if not lengths_shape:
        advice = f". For one length, pass shape {(1,) * len(shape)}"
    rule = f"have shape {full}, 1 along {axis=} and the size of `input` or 1 along "
    rule, got = rule + "every other dimension", f"{lengths_shape}{advice}"
    raise arguments.error(ValueError, "sequence_lengths", rule, got)


def _require_batch(shape: Shape, lengths_shape: Shape, batch_axis: int) -> None:
    """Refuses lengths of another shape than `reverse_sequence` takes."""
    if lengths_shape == (shape[batch_axis],):
        return
    time_axis, advice = 1 - batch_axis, ""
    if not lengths_shape:
        advice = (
            ". To reverse all lines by one length, call `reverse_subsequences` with "
            f"lengths of shape {(1,) * len(shape)}"
        )
    elif lengths_shape == (shape[time_axis],):
        advice = f". If the batch is dimension {time_axis}, pass batch_axis={time_axis}"
    elif (
        shape[batch_axis] in lengths_shape
        and lengths_shape.count(1) >= len(lengths_shape) - 1
    ):
        advice = ". Pass `jnp.ravel(sequence_lens)`"
    rule = f"have shape ({shape[batch_axis]},), the size of `input` along {batch_axis=}"
    raise arguments.error(ValueError, "sequence_lens", rule, f"{lengths_shape}{advice}")


# Jitted core --------------------------------------------------------------------------


@functools.partial(
    jax.jit, static_argnames=("axis", "missing", "name", "implementation")
)
def _reverse(
    x: jax.Array,
    lengths: jax.Array,
    coefficient: Any = None,
    *,
    axis: int,
    missing: Sequence[int] = (),
    name: str,
    implementation: Implementation | None = None,
) -> jax.Array:
    """The reversal by lengths that lack the dimensions `missing`."""
    with jax.named_scope(name):
        lengths = lax.expand_dims(lengths, missing)
        if coefficient is not None and jnp.issubdtype(x.dtype, jnp.inexact):
            coefficient = lax.stop_gradient(jnp.asarray(coefficient))
        else:
            coefficient = None
        return bind(x, lengths, axis, implementation, coefficient)
