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
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer
from jax.typing import ArrayLike

from dml_jax._reverse import primitive, training
from dml_jax._shared import arguments, bitwise, calls, jax_versions, value_checks
from dml_jax._shared.arguments import Implementation


def reverse_subsequences(
    input: ArrayLike,
    sequence_lengths: ArrayLike,
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
      implementation: `"gather"`, `"scatter"` or `"standalone"`, which all give the
        same result, or None for the fastest. XLA does not fuse `"standalone"` with
        surrounding operations. Where no elementwise operation comes before or after,
        it is up to 2.2 times as fast on a GPU: for 8- and 16-bit dtypes, few columns,
        or arrays that the cache holds. None selects it outside of `jit`. XLA itself
        partitions `"gather"`.
        `"scatter"` falls back to the gather in exports, where XLA may partition the
        program, and where its indices need more than three times the memory of the
        result.

    Returns:
      An array with the shape and dtype of `input`.

    Raises:
      TypeError: an argument is not array-like, `sequence_lengths` is not integer, or
        `axis` is not a static integer.
      ValueError: `axis` is out of bounds, `input` has 2^32 elements or more along it,
        `sequence_lengths` does not fit the shape of `input`, `implementation` is
        unknown, or `input` is a 64-bit NumPy array outside of 64-bit mode.
      OverflowError: a number in a list does not fit the widest enabled dtype, or a
        length in a list does not fit 64 bits.

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
    function = "reverse_subsequences"
    x: Any = input
    lengths: Any = sequence_lengths
    extremes = None
    # First the lengths, for the error of swapped arguments.
    if not arguments.is_array(type(lengths)):
        lengths, extremes = arguments.lengths(function, "sequence_lengths", lengths)
    if not arguments.is_array(type(x)):
        x = arguments.as_array(function, "input", x)
    arrays = type(x), x.shape, type(lengths), lengths.shape, lengths.dtype
    axis, implementation = _check_options(arrays, axis, implementation)
    run: Any = _reverse_subsequences
    if extremes is not None:
        size = x.shape[axis]
        run = value_checks.reported(run, function, "sequence_lengths", extremes, size)
    return run(x, lengths, axis=axis, implementation=implementation)


def reverse_sequence(
    input: ArrayLike,
    sequence_lens: ArrayLike,
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
      input: array of any dtype and of rank 2 or more. NumPy arrays of strings or
        objects are accepted outside of tracing.
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
      implementation: `"gather"`, `"scatter"` or `"standalone"`, which all give the
        same result, or None for the fastest, as in `reverse_subsequences`.

    Returns:
      An array with the shape and dtype of `input`; a NumPy array for strings and
      objects.

    Raises:
      TypeError: an argument is not array-like, `sequence_lens` is not integer, an
        option is of the wrong kind, or strings come with traced lengths.
      ValueError: the rank is below 2, the axes are not 0 and 1, the time axis has 2^32
        elements or more, `sequence_lens` is not of shape [batch], an option is unknown,
        `lda_coeff` is a number that is not finite, or `input` is a 64-bit NumPy array
        outside of 64-bit mode.
      OverflowError: `lda_coeff`, or a number in a list, does not fit the widest enabled
        dtype, or a length in a list does not fit 64 bits.

    Derivatives: the cotangent of `input` is `lda_coeff * reverse_sequence(cotangent)`,
    computed in at least float32; `lda_coeff` and the lengths receive none. The backward
    pass is itself differentiable, and each backward pass multiplies by the coefficient
    once. Forward mode (`jax.jvp`, `jax.hessian`) raises a TypeError in training mode,
    unless `lda_coeff` is the Python number 1. Sharding: the result is sharded as
    `input`. Devices communicate only if the time axis is sharded; no device then holds
    more than a few shards.

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
    function = "reverse_sequence"
    x: Any = input
    lengths: Any = sequence_lens
    extremes = None
    on_host = False
    # First the lengths, for the error of swapped arguments.
    if not arguments.is_array(type(lengths)):
        lengths, extremes = arguments.lengths(function, "sequence_lens", lengths)
    if not arguments.is_array(type(x)):
        on_host = arguments.is_text(x)
        x = np.asarray(x) if on_host else arguments.as_array(function, "input", x)
    coefficient = arguments.scalar(function, "lda_coeff", lda_coeff)
    # The plain operator has the same derivative if the coefficient is 1.
    is_plain = type(coefficient) is float and coefficient == 1
    output_name = specified_outputs_name
    if output_name is not None:
        output_name = arguments.output_name(
            function, "specified_outputs_name", output_name
        )
    kinds = type(x), type(lengths), None if is_plain else type(coefficient)
    node = _check_node(
        (kinds, x.shape, lengths.shape, lengths.dtype),
        batch_axis,
        time_axis,
        training,
        name,
        output_name,
        implementation,
    )
    if on_host:
        return _reverse_on_host(x, lengths, node.batch_axis, node.time_axis)
    run: Any = _reverse_sequence
    if extremes is not None:
        size = x.shape[node.time_axis]
        run = value_checks.reported(run, function, "sequence_lens", extremes, size)
    return run(x, lengths, coefficient if node.training else None, node=node)


# Arguments ----------------------------------------------------------------------------


class _Node(NamedTuple):
    """The canonical attributes of a ReverseSequence node, as one static argument."""

    batch_axis: int
    time_axis: int
    training: bool
    name: str | None
    output_name: str | None
    implementation: Implementation | None


@calls.memoized
def _check_options(
    arrays: Any, axis: Any, implementation: Any
) -> tuple[int, Implementation | None]:
    """The canonical axis and implementation, for arrays of these types and shapes."""
    function = "reverse_subsequences"
    kind, shape, lengths_kind, lengths_shape, lengths_dtype = arrays
    arguments.require_integer(
        function, "sequence_lengths", lengths_dtype, lengths_shape
    )
    if not shape:
        raise arguments.error(
            ValueError, function, "input", "have rank 1 or more", "rank 0"
        )
    axis = arguments.axis(function, "axis", axis, len(shape))
    full = (*shape[:axis], 1, *shape[axis + 1 :])
    fits = len(lengths_shape) == len(full) and all(
        size in (1, wanted) for size, wanted in zip(lengths_shape, full, strict=True)
    )
    if not fits:
        advice = ""
        if not lengths_shape:
            advice = f". For one length, pass shape {(1,) * len(shape)}"
        elif lengths_shape == (*shape[:axis], *shape[axis + 1 :]):
            advice = f". Pass `jnp.expand_dims(sequence_lengths, {axis})`"
        raise ValueError(
            f"{function}: `sequence_lengths` must have shape {full}, 1 along "
            f"{axis=} and the size of `input` or 1 along every other dimension; got "
            f"{lengths_shape}{advice}"
        )
    _require_countable(function, f"{axis=}", shape[axis])
    is_traced = arguments.is_traced(kind) or arguments.is_traced(lengths_kind)
    return axis, _canonicalize_implementation(function, implementation, is_traced)


@calls.memoized
def _check_node(
    arrays: Any,
    batch_axis: Any,
    time_axis: Any,
    training: Any,
    name: Any,
    output_name: str | None,
    implementation: Any,
) -> _Node:
    """The canonical node, for arrays of these types and shapes."""
    function = "reverse_sequence"
    (kind, lengths_kind, coefficient_kind), shape, lengths_shape, lengths_dtype = arrays
    arguments.require_integer(function, "sequence_lens", lengths_dtype, lengths_shape)
    batch_axis, time_axis = _canonicalize_axes(len(shape), batch_axis, time_axis)
    if lengths_shape != (shape[batch_axis],):
        raise ValueError(
            f"{function}: `sequence_lens` must have shape ({shape[batch_axis]},), "
            f"the size of `input` along {batch_axis=}; got {lengths_shape}"
            f"{_advice(shape, lengths_shape, time_axis)}"
        )
    _require_countable(function, f"{time_axis=}", shape[time_axis])
    training = arguments.flag(function, "training", training)
    name = arguments.optional_name(function, "name", name)
    is_traced = arguments.is_traced(kind) or arguments.is_traced(lengths_kind)
    # Without tracing there is no backward pass. Passing a number to a jitted function
    # takes as long as the rest of the call.
    is_scaled = coefficient_kind is not None and (
        is_traced or arguments.is_traced(coefficient_kind)
    )
    return _Node(
        batch_axis,
        time_axis,
        training and is_scaled,
        name,
        output_name,
        _canonicalize_implementation(function, implementation, is_traced),
    )


def _canonicalize_axes(ndim: int, batch_axis: Any, time_axis: Any) -> tuple[int, int]:
    """ONNX's two axes: 0 and 1, or 1 and 0."""
    if ndim < 2:
        raise ValueError(
            f"reverse_sequence: `input` must have rank 2 or more; got rank {ndim}. "
            "`reverse_subsequences` takes any rank"
        )
    axes = []
    for name, axis in (("batch_axis", batch_axis), ("time_axis", time_axis)):
        if axis is not None:
            axis = arguments.integer("reverse_sequence", name, axis)
            if axis not in (0, 1):
                raise ValueError(
                    f"reverse_sequence: `{name}` must be 0 or 1; got "
                    f"{arguments.show(axis)}. `reverse_subsequences` takes any axis"
                )
        axes.append(axis)
    batch_axis, time_axis = axes
    if batch_axis is None:
        batch_axis = 1 if time_axis is None else 1 - time_axis
    if time_axis is None:
        time_axis = 1 - batch_axis
    if batch_axis == time_axis:
        raise ValueError(
            "reverse_sequence: `batch_axis` and `time_axis` must be 0 and 1 or 1 and "
            f"0; got {batch_axis} and {time_axis}"
        )
    return batch_axis, time_axis


def _advice(shape: Any, lengths_shape: Any, time_axis: int) -> str:
    """What the caller of `reverse_sequence` may have meant by lengths of this shape."""
    if lengths_shape == ():
        ones = (1,) * len(shape)
        return (
            f". To reverse all lines by one length, call `reverse_subsequences` with "
            f"lengths of shape {ones}"
        )
    if lengths_shape == (shape[time_axis],):
        return f". If the batch is dimension {time_axis}, pass batch_axis={time_axis}"
    return ""


def _require_countable(function: str, axis: str, size: Any) -> None:
    """Refuses lines whose size does not fit 32 bits, as DirectML's sizes do."""
    if not jax.export.is_symbolic_dim(size) and size >= 2**32:
        raise ValueError(
            f"{function}: `input` must have fewer than 2^32 elements along {axis}; got "
            f"{size}"
        )


def _canonicalize_implementation(
    function: str, implementation: Any, is_traced: bool
) -> Implementation | None:
    """The implementation; "standalone" outside of `jit`, where nothing could fuse."""
    if implementation is None and not is_traced:
        return "standalone"
    return arguments.option(
        function, "implementation", implementation, typing.get_args(Implementation)
    )


def _reverse_on_host(x: np.ndarray, lengths: Any, batch_axis: int, time_axis: int):
    """The operator in NumPy, for strings and objects."""
    if isinstance(lengths, Tracer):
        raise TypeError(
            f"reverse_sequence: `input` of dtype {x.dtype} must come with "
            "`sequence_lens` that are concrete, outside of jit, vmap and grad; got "
            f"{arguments.describe(lengths)}"
        )
    time = x.shape[time_axis]
    clamped = [[min(max(int(length), 0), time)] for length in np.asarray(lengths)]
    ends = np.array(clamped, np.int64).reshape(-1, 1)
    position = np.arange(time)
    source = np.where(position < ends, ends - 1 - position, position)
    source = source if batch_axis == 0 else source.T
    source = np.expand_dims(source, tuple(range(2, x.ndim)))
    return typing.cast(Any, np.take_along_axis(x, source, time_axis))


# Jitted cores -------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("axis", "implementation"))
def _reverse_subsequences(
    x: jax.Array,
    lengths: jax.Array,
    *,
    axis: int,
    implementation: Implementation | None,
) -> jax.Array:
    with jax.named_scope("reverse_subsequences"):
        value_checks.check_lengths(
            "reverse_subsequences", "sequence_lengths", lengths, x.shape[axis]
        )
        return _reverse(x, lengths, None, axis, implementation)


@functools.partial(jax.jit, static_argnames="node")
def _reverse_sequence(
    x: jax.Array, lengths: jax.Array, coefficient: Any, *, node: _Node
) -> jax.Array:
    with jax.named_scope(node.name or "reverse_sequence"):
        value_checks.check_lengths(
            "reverse_sequence", "sequence_lens", lengths, x.shape[node.time_axis]
        )
        lengths = lax.expand_dims(
            lengths, [d for d in range(x.ndim) if d != node.batch_axis]
        )
        if node.training and jnp.issubdtype(x.dtype, jnp.inexact):
            with bitwise.full_width(coefficient):
                coefficient = jnp.asarray(coefficient)  # a number where jit is disabled
            x = jax_versions.vary_over(x, jax_versions.varying_axes(coefficient))
        else:
            coefficient = None
        y = _reverse(x, lengths, coefficient, node.time_axis, node.implementation)
        return y if node.output_name is None else checkpoint_name(y, node.output_name)


def _reverse(
    x: jax.Array,
    lengths: jax.Array,
    coefficient: jax.Array | None,
    axis: int,
    implementation: Implementation | None,
) -> jax.Array:
    """Binds the primitive, or that of the training mode if there is a coefficient."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(x)
        lengths = lax.expand_dims(lengths, range(x.ndim, data.ndim))
        y = _reverse(data, lengths, coefficient, axis, implementation)
        return jax.random.wrap_key_data(y, impl=jax.random.key_impl(x))
    lengths = _clamp(lengths, x.shape[axis])
    # Under shard_map the lengths may vary over axes over which the input does not.
    # Without the cast, the cotangent of the input would be summed over too few devices.
    axes = jax_versions.varying_axes(x) | jax_versions.varying_axes(lengths)
    x, lengths = jax_versions.vary_over(x, axes), jax_versions.vary_over(lengths, axes)
    if coefficient is None:
        return primitive.reverse(x, lengths, axis, implementation)
    return training.reverse_for_training(x, lengths, coefficient, axis, implementation)


def _clamp(lengths: jax.Array, size: Any) -> jax.Array:
    """The lengths in [0, size], as int32, or as uint32 if the size is 2^31 or more."""
    # 64-bit lengths may be used outside of the 64-bit mode in which they were made.
    with bitwise.full_width(lengths.dtype):
        # `jet` passes a series for every argument of a jitted function, and fails at an
        # integer maximum whose operand has one. A bitwise OR drops the series, and
        # compilers remove the OR.
        lengths = lax.bitwise_or(lengths, lengths)
        if lengths.dtype.itemsize < 4:
            lengths = lengths.astype(jnp.int32)
        # One operation, since XLA on CPU divides a loop by the number of operations.
        is_small = not jax.export.is_symbolic_dim(size) and size < 2**31
        if is_small and lengths.dtype == jnp.int32:
            return lax.clamp(np.int32(0), lengths, np.int32(size))
        lengths = jnp.maximum(lengths, 0)
        if lengths.dtype == jnp.int32:
            lengths = lengths.astype(jnp.uint32)
        # Compared as unsigned or 64-bit: a uint32 of 2^31 must not turn negative.
        if jax.export.is_symbolic_dim(size):
            limit, position = jnp.asarray(size).astype(lengths.dtype), jnp.int32
        else:
            limit = lengths.dtype.type(size)
            position = jnp.int32 if size < 2**31 else jnp.uint32
        return jnp.minimum(lengths, limit).astype(position)
