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
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer
from jax.typing import ArrayLike

from dml_jax._reverse import line_lengths
from dml_jax._reverse.binding import bind
from dml_jax._shared import arguments, bitwise, jax_versions, lists, value_checks
from dml_jax._shared.arguments import Implementation, LengthsLike


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
    function, name = "reverse_subsequences", "sequence_lengths"
    # First the lengths, for the error of swapped arguments.
    lengths, extremes = line_lengths.from_argument(function, name, sequence_lengths)
    x = arguments.as_array(function, "input", input)
    axis = line_lengths.canonicalize_axis(function, "input", x.ndim, axis)
    line_lengths.require_lines(x.shape, lengths.shape, axis)
    line_lengths.require_countable(function, f"{axis=}", x.shape[axis])
    arguments.require_implementation(function, implementation)
    reverse = value_checks.reported(
        _reverse_subsequences, function, name, extremes, x.shape[axis]
    )
    return reverse(x, lengths, axis=axis, implementation=implementation)


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
      implementation: `"gather"` or `"scatter"`, which both give the same result, or
        None for the fastest, as in `reverse_subsequences`.

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
    # First the lengths, for the error of swapped arguments.
    lengths, extremes = line_lengths.from_argument(
        function, "sequence_lens", sequence_lens
    )
    text = _as_text(input)
    x: Any = arguments.as_array(function, "input", input) if text is None else text
    coefficient = arguments.scalar(function, "lda_coeff", lda_coeff)
    batch_axis, time_axis = _canonicalize_axes(x.ndim, batch_axis, time_axis)
    line_lengths.require_batch(x.shape, lengths.shape, batch_axis)
    line_lengths.require_countable(function, f"{time_axis=}", x.shape[time_axis])
    training = arguments.flag(function, "training", training)
    name = arguments.optional_name(function, "name", name)
    output_name = _canonicalize_output_name(specified_outputs_name)
    arguments.require_implementation(function, implementation)
    if text is not None:
        return _reverse_on_host(text, lengths, batch_axis, time_axis)
    # The plain operator has the same derivative if the coefficient is 1. Outside of
    # tracing there is no backward pass, and any coefficient runs the plain program.
    is_plain = type(coefficient) is float and coefficient == 1
    is_traced = any(isinstance(array, Tracer) for array in (x, lengths, coefficient))
    if is_plain or not is_traced or not training:
        coefficient = None
    reverse = value_checks.reported(
        _reverse_sequence, function, "sequence_lens", extremes, x.shape[time_axis]
    )
    return reverse(
        x,
        lengths,
        coefficient,
        time_axis=time_axis,
        name=name or function,
        output_name=output_name,
        implementation=implementation,
    )


# Arguments ----------------------------------------------------------------------------


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


def _canonicalize_output_name(value: Any) -> str | None:
    """The name of the only result, from a string or a sequence of one."""
    function, name = "reverse_sequence", "specified_outputs_name"
    if value is None:
        return None
    names = value.tolist() if isinstance(value, np.ndarray) else value
    if not lists.is_list(names):
        names = [names]
    are_strings = all(isinstance(element, str) for element in names)
    if len(names) != 1 and are_strings:
        rule = "have one name, for the only result"
        raise arguments.error(ValueError, function, name, rule, len(names))
    if not are_strings:
        rule = "be a string, a sequence of one string or None"
        raise arguments.not_static(function, name, rule, value)
    if names[0] == "":
        raise arguments.error(ValueError, function, name, "not be empty", repr(value))
    return str(names[0])


def _as_text(value: object) -> np.ndarray | None:
    """Data that only NumPy can hold: strings, or an object array; None for others."""
    is_array = isinstance(value, (np.ndarray, np.generic))
    if not is_array and not isinstance(value, (str, bytes, list, tuple)):
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array if array.dtype.kind in ("OSUT" if is_array else "US") else None


def _reverse_on_host(
    x: np.ndarray, lengths: Any, batch_axis: int, time_axis: int
) -> Any:
    """The operator in NumPy, for strings and objects."""
    if isinstance(lengths, Tracer):
        raise TypeError(
            f"reverse_sequence: `input` of dtype {x.dtype} must come with "
            "`sequence_lens` that are concrete, outside of jit, vmap and grad; got "
            f"{arguments.describe(lengths)}"
        )

    def along(axis: int, numbers: Sequence[int]) -> np.ndarray:
        others = [d for d in range(x.ndim) if d != axis]
        return np.expand_dims(np.array(numbers, np.int64), tuple(others))

    time = x.shape[time_axis]
    clamped = [min(max(int(length), 0), time) for length in np.asarray(lengths)]
    ends, position = along(batch_axis, clamped), along(time_axis, range(time))
    source = np.where(position < ends, ends - 1 - position, position)
    return np.take_along_axis(x, source, time_axis)


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
        return bind(x, lengths, None, axis, implementation)


@functools.partial(
    jax.jit, static_argnames=("time_axis", "name", "output_name", "implementation")
)
def _reverse_sequence(
    x: jax.Array,
    lengths: jax.Array,
    coefficient: Any,
    *,
    time_axis: int,
    name: str,
    output_name: str | None,
    implementation: Implementation | None,
) -> jax.Array:
    with jax.named_scope(name):
        value_checks.check_lengths(
            "reverse_sequence", "sequence_lens", lengths, x.shape[time_axis]
        )
        others = [d for d in range(x.ndim) if d != 1 - time_axis]
        lengths = lax.expand_dims(lengths, others)
        if coefficient is not None and jnp.issubdtype(x.dtype, jnp.inexact):
            with bitwise.full_width(coefficient):
                coefficient = jnp.asarray(coefficient)  # a number where jit is disabled
            x = jax_versions.vary_over(x, jax_versions.varying_axes(coefficient))
        else:
            coefficient = None
        y = bind(x, lengths, coefficient, time_axis, implementation)
        return y if output_name is None else checkpoint_name(y, output_name)
