"""Strided slices, and the adjoint that puts the elements of a slice back.

For an index c of the result, along each dimension:

    slice         y[c] = x[offset + stride * c]                    stride >= 1
    slice1        y[c] = x[first + stride * c]                     stride != 0
    slice_grad    y[first + stride * c] = g[c], 0 everywhere else  stride != 0

where first = offset for a positive stride and offset + window - 1 for a negative one.

DirectML's SLICE takes the sizes of the result. SLICE1 and SLICE_GRAD take the sizes of
the input window, of which 1 + (window - 1) // |stride| elements are copied. DirectML's
page on SLICE1 prints this count without the absolute value, which its example needs.
One page forbids a stride of 0, and another does not mention it. Here it is an error.
ONNX's Slice is a slice1 whose window follows from starts, ends and steps.

An operator is a `lax.slice` or a `lax.pad`, and a `lax.rev` for negative strides. The
slices and `slice_grad` are transposes of each other, so no derivative is a scatter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dml_jax._shared import arguments, bitwise
from dml_jax._shared.arguments import Shape, Size
from dml_jax._slice import primitive
from dml_jax._slice.window import Window, WindowDimension


def slice(
    input: ArrayLike,
    offsets: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
) -> jax.Array:
    """Copies `sizes` elements from `offsets` on, `strides` apart.

    Every read must be inside the input: nothing is clamped. A size of 0 reads nothing
    and gives an empty result. Every bit is kept.

    Args:
      input: array of any dtype and rank.
      offsets: the index of the first element, for each dimension.
      sizes: the size of the result, for each dimension.
      strides: the distance between elements, 1 or more, for each dimension; None means
        1 for all.

    Returns:
      An array of shape `sizes` with the dtype of `input`.

    Raises:
      TypeError: `input` is not array-like, or the other arguments are not sequences of
        static integers.
      ValueError: a sequence does not have one element for each dimension, a size or an
        offset is negative, a stride is below 1, or a read is outside `input`.

    Derivatives: linear, both modes and every order; the transpose is `slice_grad`.
    Sharding: a dimension that is copied as a whole stays sharded without communication.
    If the result is sharded along another one, devices send elements to neighbours.

    Example:
      >>> import jax.numpy as jnp
      >>> import dml_jax
      >>> x = jnp.arange(1, 17).reshape(4, 4)
      >>> dml_jax.slice(x, offsets=(1, 0), sizes=(2, 2), strides=(2, 3))
      Array([[ 5,  8],
             [13, 16]], dtype=int32)

    Source: DirectML, DML_SLICE_OPERATOR_DESC.
    """
    x = jnp.asarray(input)
    window = _window_of_slice(x.shape, offsets, sizes, strides)
    return _strided_slice(x, operator="slice", window=window)


def slice1(
    input: ArrayLike,
    input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int],
    input_window_strides: Sequence[int],
    output_sizes: Sequence[int] | None = None,
) -> jax.Array:
    """Copies every `|stride|`-th element of a window, from its end if stride < 0.

    A window of n elements gives `1 + (n - 1) // |stride|` of them. The window must be
    inside the input. A window of size 0 gives an empty result. Every bit is kept.

    Args:
      input: array of any dtype and rank.
      input_window_offsets: the index at which the window starts, for each dimension.
      input_window_sizes: the size of the window, for each dimension.
      input_window_strides: the distance between elements, for each dimension. A
        negative stride starts from the last element of the window.
      output_sizes: the size of the result, for each dimension, which may be smaller
        than what the window gives; None means all of it.

    Returns:
      An array of shape `output_sizes`, or of the shape that the window gives, with the
      dtype of `input`.

    Raises:
      TypeError: `input` is not array-like, or the other arguments are not sequences of
        static integers.
      ValueError: a sequence does not have one element for each dimension, a window is
        not inside `input`, a stride is 0, or an output size is negative or larger than
        what the window gives.

    Derivatives: linear, both modes and every order; the transpose is `slice_grad`.
    Sharding: a dimension that is copied as a whole stays sharded without communication.
    If the result is sharded along another one, devices send elements to neighbours.

    Example:
      >>> import jax.numpy as jnp
      >>> from dml_jax import slice1
      >>> x = jnp.arange(1, 17).reshape(4, 4)
      >>> slice1(x, (0, 1), (4, 3), (-2, 2))
      Array([[14, 16],
             [ 6,  8]], dtype=int32)

    Source: DirectML, DML_SLICE1_OPERATOR_DESC.
    """
    x = jnp.asarray(input)
    lists = (input_window_offsets, input_window_sizes, input_window_strides)
    window = _window_of_slice1("slice1", x.shape, lists, output_sizes)
    return _strided_slice(x, operator="slice1", window=window)


def slice_grad(
    input_gradient: ArrayLike,
    output_gradient_sizes: Sequence[int],
    input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int],
    input_window_strides: Sequence[int],
) -> jax.Array:
    """Puts the elements of a `slice1` back where they were read, among zeros.

    It is the adjoint of `slice1`: it turns the gradient of a loss with respect to the
    output of `slice1` into the gradient with respect to its input. Strides are not 0,
    so no two elements have the same index and nothing is summed. Every bit is kept.

    Args:
      input_gradient: array of any rank and any dtype that has a zero. Its sizes are at
        most those that `slice1` gives for this window.
      output_gradient_sizes: the shape of the result, that of the input of `slice1`.
      input_window_offsets: the index at which the window starts, for each dimension.
      input_window_sizes: the size of the window, for each dimension.
      input_window_strides: the distance between elements, for each dimension.

    Returns:
      An array of shape `output_gradient_sizes` with the dtype of `input_gradient`.

    Raises:
      TypeError: `input_gradient` is not array-like or its dtype has no zero (PRNG
        keys, float8_e8m0fnu), or the other arguments are not sequences of static
        integers.
      ValueError: a sequence does not have one element for each dimension, a window is
        not inside `output_gradient_sizes`, a stride is 0, or `input_gradient` has more
        elements than the window gives.

    Derivatives: linear, both modes and every order; the transpose is `slice1`.
    Sharding: a dimension that is filled as a whole stays sharded without communication.
    If the result is sharded along another one, devices send elements to neighbours.

    Example:
      >>> import jax.numpy as jnp
      >>> from dml_jax import slice_grad
      >>> slice_grad(jnp.array([[1, 2], [3, 4]]), (4, 4), (0, 0), (3, 4), (2, -2))
      Array([[0, 2, 0, 1],
             [0, 0, 0, 0],
             [0, 4, 0, 3],
             [0, 0, 0, 0]], dtype=int32)

    Source: DirectML, DML_SLICE_GRAD_OPERATOR_DESC.
    """
    gradient = jnp.asarray(input_gradient)
    if not arguments.has_zero(gradient.dtype):
        rule = "have a dtype of numbers or booleans with a zero, unlike PRNG keys and "
        rule += "float8_e8m0fnu"
        raise arguments.error(TypeError, "input_gradient", rule, gradient.dtype)
    name = "output_gradient_sizes"
    shape = arguments.sizes(name, output_gradient_sizes, gradient.ndim)
    lists = (input_window_offsets, input_window_sizes, input_window_strides)
    window = _window_of_slice1("slice_grad", shape, lists, gradient.shape)
    return _strided_slice_transpose(gradient, shape=shape, window=window)


# Arguments ----------------------------------------------------------------------------


def _window_of_slice(shape: Shape, offsets: Any, sizes: Any, strides: Any) -> Window:
    """The window that `slice` reads, which must be inside `shape`."""
    names = ("offsets", "sizes", "strides")
    strides = (1,) * len(shape) if strides is None else strides
    lists = _integers(len(shape), names, (offsets, sizes, strides))
    window = []
    for d, (offset, size, stride) in enumerate(zip(*lists, strict=True)):
        if stride < 1:
            got = f"{stride}. `slice1` takes negative strides"
            raise arguments.error(ValueError, f"strides[{d}]", "be at least 1", got)
        _require_inside("slice", d, shape[d], offset, size, stride)
        window.append(_part(offset, size, stride, size))
    return tuple(window)


def _window_of_slice1(
    operator: str, shape: Shape, lists: Sequence[Any], sizes: Any
) -> Window:
    """The window that `slice1` reads and `slice_grad` writes, inside `shape`."""
    names = ("input_window_offsets", "input_window_sizes", "input_window_strides")
    lists = _integers(len(shape), names, lists)
    if sizes is not None:
        sizes = arguments.integers("output_sizes", sizes, len(shape))
    for d, (offset, size, stride) in enumerate(zip(*lists, strict=True)):
        if stride == 0:
            raise arguments.error(ValueError, f"{names[2]}[{d}]", "be nonzero", 0)
        _require_inside(operator, d, shape[d], offset, size)
    window = []
    for d, (offset, extent, stride) in enumerate(zip(*lists, strict=True)):
        limit = (extent - 1) // abs(stride) + 1
        size = limit if sizes is None else sizes[d]
        if not 0 <= size <= limit:
            name = "output_sizes" if operator == "slice1" else "input_gradient.shape"
            rule = f"be 0 to {limit}, the window's size over the stride, rounded up"
            raise arguments.error(ValueError, f"{name}[{d}]", rule, size)
        window.append(_part(offset, extent, stride, size))
    return tuple(window)


def _integers(rank: int, names: Sequence[str], lists: Sequence[Any]) -> list[Shape]:
    """Offsets, sizes and strides; offsets and sizes must not be negative."""
    checks = arguments.naturals, arguments.naturals, arguments.integers
    triples = zip(checks, names, lists, strict=True)
    return [check(name, list_, rank) for check, name, list_ in triples]


def _require_inside(
    operator: str, d: int, extent: Size, offset: Size, size: Size, stride: Size = 1
) -> None:
    """Refuses a read of dimension `d`, or an empty window, outside `extent`."""
    name, last = "input_window_offsets", offset + stride * (size - 1)
    formula = f"{name}[{d}] + input_window_sizes[{d}] - 1"
    if operator == "slice":
        name, formula = "offsets", f"offsets[{d}] + strides[{d}] * (sizes[{d}] - 1)"
        formula += ". Sizes are those of the result, not ends"
    if size == 0 and offset > extent:
        rule = f"be at most {extent}, the size of dimension {d}"
        raise arguments.error(ValueError, f"{name}[{d}]", rule, offset)
    if size == 0 or last + 1 <= extent:
        return
    if operator == "slice_grad":
        advice = ". The sizes are the second argument" if extent == 0 else ""
        rule = f"be at least {last + 1}: the window reaches index {last}, {formula}"
        name, got = f"output_gradient_sizes[{d}]", f"{extent}{advice}"
        raise arguments.error(ValueError, name, rule, got)
    message = f"reads of dimension {d} must stay inside its {extent} elements; the last"
    message = f"{message} index read is {last}, {formula}"
    raise ValueError(arguments.Message(message))


def _part(offset: Size, window: Size, stride: int, size: Size) -> WindowDimension:
    """One dimension with a positive stride, which starts at the lowest index."""
    is_reversed = stride < 0
    if is_reversed and size != 0:
        offset += window - 1 + stride * (size - 1)
    # The stride has no effect on a single element, and may be too large for XLA.
    is_single = isinstance(size, int) and size <= 1
    return WindowDimension(offset, size, 1 if is_single else abs(stride), is_reversed)


# Jitted cores -------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("operator", "window"))
def _strided_slice(x: jax.Array, *, operator: str, window: Window) -> jax.Array:
    def read(data: jax.Array) -> jax.Array:
        of_keys = (WindowDimension(0, size) for size in data.shape[x.ndim :])
        return primitive.strided_slice(data, (*window, *of_keys))

    with jax.named_scope(operator):
        return bitwise.by_key_data(read, x)


@functools.partial(jax.jit, static_argnames=("shape", "window"))
def _strided_slice_transpose(
    gradient: jax.Array, *, shape: Shape, window: Window
) -> jax.Array:
    with jax.named_scope("slice_grad"):
        return primitive.strided_slice_transpose(gradient, shape, window)
