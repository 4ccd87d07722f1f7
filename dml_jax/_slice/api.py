"""Strided slices of an array, and the adjoint that puts a slice back.

With c the coordinates in the result, and everything per dimension:

    slice         y[c] = x[offset + stride * c]                    stride >= 1
    slice1        y[c] = x[first + stride * c]                     stride != 0
    slice_grad    y[first + stride * c] = g[c], 0 everywhere else  stride != 0

where first = offset for a positive stride and offset + window - 1 for a negative one.

DirectML's SLICE takes the sizes of the result. SLICE1 and SLICE_GRAD take the size of
the window that is read, of which 1 + (window - 1) // |stride| elements are copied; the
page of SLICE1 prints this count without the absolute value, its example needs it. A
stride of 0 is refused by one page and left open by another; it is refused here. ONNX's
Slice is a slice1 whose window follows from starts, ends and steps.

Each operator is one `lax.slice` or `lax.pad` (and a `lax.rev`); each is the other's
transpose, never a scatter. How a GPU computes them, `gpu` says.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from dml_jax._shared import arguments, bitwise, calls
from dml_jax._slice.window import StridedWindow


def slice(
    input: ArrayLike,
    offsets: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
) -> jax.Array:
    """Copies every `strides`-th element from `offsets` on, `sizes` elements of them.

    Every read must lie inside the input: nothing is clamped. A size of 0 reads nothing
    and gives an empty result. Every bit is kept.

    Args:
      input: array of any dtype and rank.
      offsets: for each dimension the index of the first element that is read.
      sizes: for each dimension the number of elements of the result.
      strides: for each dimension the distance between two elements that are read, 1 or
        more; None for 1 everywhere.

    Returns:
      An array of shape `sizes` with the dtype of `input`.

    Raises:
      TypeError: `input` is not array-like, or the other arguments are not sequences of
        static integers.
      ValueError: a sequence does not have one element for each dimension, a size or an
        offset is negative, a stride is below 1, a read would lie outside of `input`, or
        `input` is a 64-bit NumPy array outside of 64-bit mode.
      OverflowError: a number in a list is beyond the widest dtype that is enabled.

    Derivatives: linear, both modes and every order; the transpose is `slice_grad`.
    Sharding: dimensions that are taken whole stay sharded, without communication; of
    others, devices send their neighbours what those need, if they divide the result.

    Example:
      >>> import jax.numpy as jnp
      >>> import dml_jax
      >>> x = jnp.arange(1, 17).reshape(4, 4)
      >>> dml_jax.slice(x, offsets=(1, 0), sizes=(2, 2), strides=(2, 3))
      Array([[ 5,  8],
             [13, 16]], dtype=int32)

    Source: DirectML, DML_SLICE_OPERATOR_DESC.
    """
    x: Any = input
    if not arguments.is_array(type(x)):
        x = arguments.as_array("slice", "input", x)
    return _slice_program((type(x), x.shape), offsets, sizes, strides)(x)


def slice1(
    input: ArrayLike,
    input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int],
    input_window_strides: Sequence[int],
    output_sizes: Sequence[int] | None = None,
) -> jax.Array:
    """Copies every `|stride|`-th element of a window, from its end for stride < 0.

    A window of n elements gives `1 + (n - 1) // |stride|` of them. The window must lie
    inside the input. A window of size 0 gives an empty result. Every bit is kept.

    Args:
      input: array of any dtype and rank.
      input_window_offsets: for each dimension the index at which the window starts.
      input_window_sizes: for each dimension the number of elements of the window.
      input_window_strides: for each dimension the distance between two elements that
        are copied; negative strides start from the last element of the window.
      output_sizes: for each dimension the number of elements of the result, where fewer
        are wanted than the window gives; None for all of them.

    Returns:
      An array of shape `output_sizes`, or of the sizes the windows give, with the dtype
      of `input`.

    Raises:
      TypeError: `input` is not array-like, or the other arguments are not sequences of
        static integers.
      ValueError: a sequence does not have one element for each dimension, a window does
        not lie inside of `input`, a stride is 0, an output size is negative or larger
        than what the window gives, or `input` is a 64-bit NumPy array outside of 64-bit
        mode.
      OverflowError: a number in a list is beyond the widest dtype that is enabled.

    Derivatives: linear, both modes and every order; the transpose is `slice_grad`.
    Sharding: dimensions that are taken whole stay sharded, without communication; of
    others, devices send their neighbours what those need, if they divide the result.

    Example:
      >>> import jax.numpy as jnp
      >>> from dml_jax import slice1
      >>> x = jnp.arange(1, 17).reshape(4, 4)
      >>> slice1(x, (0, 1), (4, 3), (-2, 2))
      Array([[14, 16],
             [ 6,  8]], dtype=int32)

    Source: DirectML, DML_SLICE1_OPERATOR_DESC.
    """
    x: Any = input
    if not arguments.is_array(type(x)):
        x = arguments.as_array("slice1", "input", x)
    program = _slice1_program(
        (type(x), x.shape),
        input_window_offsets,
        input_window_sizes,
        input_window_strides,
        output_sizes,
    )
    return program(x)


def slice_grad(
    input_gradient: ArrayLike,
    output_gradient_sizes: Sequence[int],
    input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int],
    input_window_strides: Sequence[int],
) -> jax.Array:
    """Puts the elements of a `slice1` back where they were read, among zeros.

    It is the adjoint of `slice1`: the gradient of a loss by the input of `slice1`,
    given its gradient by the output. Strides are not 0, so that no two elements meet
    and nothing is summed. Every bit is kept.

    Args:
      input_gradient: array of any dtype and rank that has a zero; its sizes are at most
        those which `slice1` gives for this window.
      output_gradient_sizes: the shape of the result, which is that of the input of
        `slice1`.
      input_window_offsets: for each dimension the index at which the window starts.
      input_window_sizes: for each dimension the number of elements of the window.
      input_window_strides: for each dimension the distance between two elements.

    Returns:
      An array of shape `output_gradient_sizes` with the dtype of `input_gradient`.

    Raises:
      TypeError: `input_gradient` is not array-like or its dtype has no zero (PRNG
        keys, float8_e8m0fnu), or the other arguments are not sequences of static
        integers.
      ValueError: a sequence does not have one element for each dimension, a window does
        not lie inside of `output_gradient_sizes`, a stride is 0, `input_gradient` has
        more elements than the window gives, or it is a 64-bit NumPy array outside of
        64-bit mode.
      OverflowError: a number in a list is beyond the widest dtype that is enabled.

    Derivatives: linear, both modes and every order; the transpose is `slice1`.
    Sharding: dimensions that are filled whole stay sharded, without communication; of
    others, devices send their neighbours what those need, if they divide the result.

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
    gradient: Any = input_gradient
    if not arguments.is_array(type(gradient)):
        gradient = arguments.as_array("slice_grad", "input_gradient", gradient)
    program = _gradient_program(
        (type(gradient), gradient.dtype, gradient.shape),
        output_gradient_sizes,
        input_window_offsets,
        input_window_sizes,
        input_window_strides,
    )
    return program(gradient)


# Arguments ----------------------------------------------------------------------------


@calls.memoized
def _slice_program(array, offsets, sizes, strides):
    """The program of `slice` for an array of this kind and shape."""
    kind, shape = array
    return _program(kind, _take, _window_of_slice(shape, offsets, sizes, strides))


@calls.memoized
def _slice1_program(array, offsets, windows, strides, sizes):
    """The program of `slice1` for an array of this kind and shape."""
    kind, shape = array
    lattice = _window_of_slice1("slice1", shape, offsets, windows, strides, sizes)
    return _program(kind, _take, lattice)


@calls.memoized
def _gradient_program(gradient, shape, offsets, windows, strides):
    """The program of `slice_grad` for a gradient of this kind, dtype and shape."""
    kind, dtype, sizes = gradient
    if not arguments.has_zero(dtype):
        raise TypeError(
            f"slice_grad: `input_gradient` must have a dtype with a zero; got {dtype}"
        )
    shape = arguments.sizes("slice_grad", "output_gradient_sizes", shape, len(sizes))
    lattice = _window_of_slice1("slice_grad", shape, offsets, windows, strides, sizes)
    return _program(kind, _put, lattice, shape=shape)


def _program(kind, core, lattice, **params):
    """The program for arrays of a kind."""
    if arguments.is_traced(kind):
        return functools.partial(core, lattice=lattice, **params)
    return _Program(core, lattice, params)


class _Program:
    """The program for one lattice.

    The first calls use a program that takes the offsets as an argument, which is
    compiled once for all offsets. One such call takes up to several times as long as a
    call of the program for these offsets alone, which later calls use; the first calls
    together take less time than that program takes to compile.
    """

    def __init__(self, core, lattice, params):
        is_counted = max(lattice.starts, default=2**31) < 2**31
        self._calls_anywhere = _OFTEN if is_counted else 0
        self._lowest = lattice.starts
        anywhere = lattice._replace(starts=(0,) * len(lattice.starts))
        self._anywhere = functools.partial(core, lattice=anywhere, **params)
        self._here = functools.partial(core, lattice=lattice, standalone=True, **params)

    def __call__(self, x):
        if self._calls_anywhere > 0:
            self._calls_anywhere -= 1
            if not isinstance(x, jax.Array) or len(x.devices()) == 1:
                return self._anywhere(x, np.asarray(self._lowest, np.int32))
            self._calls_anywhere = 0
        return self._here(x)


_OFTEN = 16  # calls


def _window_of_slice(shape, offsets, sizes, strides):
    """Where `slice` reads, all of it inside `shape`."""
    rank = len(shape)
    offsets = arguments.integers("slice", "offsets", offsets, rank)
    sizes = arguments.integers("slice", "sizes", sizes, rank)
    if strides is None:
        strides = (1,) * rank
    strides = arguments.integers("slice", "strides", strides, rank)
    for d, (extent, offset, size, stride) in enumerate(
        zip(shape, offsets, sizes, strides, strict=True)
    ):
        if offset < 0:
            raise arguments.too_small("slice", "offsets", d, offset, 0)
        if size < 0:
            raise arguments.too_small("slice", "sizes", d, size, 0)
        if stride < 1:
            raise ValueError(
                f"slice: `strides[{d}]` must be at least 1; got {stride}. `slice1` "
                "takes negative strides"
            )
        end = offset + stride * (size - 1) + 1
        _require_inside("slice", "offsets", d, extent, offset, size, end)
    return _lattice("slice", offsets, sizes, strides, sizes)


def _window_of_slice1(operator, shape, offsets, windows, strides, sizes):
    """Where `sizes` elements of a window inside `shape` are, by default all it has."""
    rank = len(shape)
    offsets = arguments.integers(operator, "input_window_offsets", offsets, rank)
    windows = arguments.integers(operator, "input_window_sizes", windows, rank)
    strides = arguments.integers(operator, "input_window_strides", strides, rank)
    if sizes is not None:
        sizes = arguments.integers(operator, "output_sizes", sizes, rank)
    name = "input_window_offsets"
    for d, (extent, offset, size, stride) in enumerate(
        zip(shape, offsets, windows, strides, strict=True)
    ):
        if offset < 0:
            raise arguments.too_small(operator, name, d, offset, 0)
        if size < 0:
            raise arguments.too_small(operator, "input_window_sizes", d, size, 0)
        if stride == 0:
            raise ValueError(
                f"{operator}: `input_window_strides[{d}]` must not be 0; got 0"
            )
        _require_inside(operator, name, d, extent, offset, size, offset + size)
    most = tuple(
        (size - 1) // abs(stride) + 1
        for size, stride in zip(windows, strides, strict=True)
    )
    if sizes is None:
        sizes = most
    _require_copied(operator, sizes, most)
    return _lattice(operator, offsets, windows, strides, sizes)


def _require_inside(function, name, dimension, extent, offset, size, end):
    """Refuses reads from `offset` up to `end` that leave `extent`; of nothing, too."""
    if size == 0 and offset > extent:
        raise ValueError(
            f"{function}: `{name}[{dimension}]` must be at most {extent}, the size of "
            f"dimension {dimension}; got {offset}"
        )
    if size != 0 and end > extent:
        raise ValueError(
            f"{function}: reads of dimension {dimension} must stay inside its {extent} "
            f"elements; the last index read is {end - 1}"
        )


def _require_copied(function, sizes, most):
    """Refuses more elements than the window gives."""
    name = "output_sizes" if function == "slice1" else "input_gradient"
    for d, (size, limit) in enumerate(zip(sizes, most, strict=True)):
        if not 0 <= size <= limit:
            raise ValueError(
                f"{function}: `{name}` must have size 0 to {limit}, what the window "
                f"gives, along dimension {d}; got {size}"
            )


def _lattice(operator, offsets, windows, strides, sizes):
    """The lattice of a window, whose last element comes first if the stride is < 0."""
    lowest = tuple(
        offset if stride > 0 or size == 0 else offset + window - 1 + stride * (size - 1)
        for offset, window, stride, size in zip(
            offsets, windows, strides, sizes, strict=True
        )
    )
    # A lone element has no step; what was given may be beyond what XLA can count.
    steps = tuple(
        1 if isinstance(size, int) and size <= 1 else abs(stride)
        for stride, size in zip(strides, sizes, strict=True)
    )
    downwards = tuple(d for d, stride in enumerate(strides) if stride < 0)
    return StridedWindow(operator, lowest, sizes, steps, downwards)


# Jitted cores -------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("lattice", "standalone"))
def _take(x, lowest=None, *, lattice, standalone=False):
    from dml_jax._slice.primitive import (
        strided_slice,
    )  # brings pallas, as the reversal does

    with jax.named_scope(lattice.operator):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return _take_keys(x, lowest, lattice, standalone)
        if lowest is not None:
            x = _window(x, lowest, lattice)
        return strided_slice(x, lattice, standalone)


def _take_keys(x, lowest, lattice, standalone):
    data = jax.random.key_data(x)
    whole = data.shape[x.ndim :]
    zeros, ones = (0,) * len(whole), (1,) * len(whole)
    lattice = lattice._replace(
        starts=lattice.starts + zeros,
        sizes=lattice.sizes + whole,
        strides=lattice.strides + ones,
    )
    if lowest is not None:
        lowest = jnp.append(lowest, np.zeros(len(whole), np.int32))
    y = _take(data, lowest, lattice=lattice, standalone=standalone)
    return jax.random.wrap_key_data(y, impl=jax.random.key_impl(x))


@functools.partial(jax.jit, static_argnames=("shape", "lattice", "standalone"))
def _put(gradient, lowest=None, *, shape, lattice, standalone=False):
    from dml_jax._slice.primitive import strided_slice_transpose
    from dml_jax._slice.xla import put_by_positions

    with jax.named_scope(lattice.operator):
        if lowest is None:
            return strided_slice_transpose(gradient, shape, lattice, standalone)
        return put_by_positions(gradient, shape, lattice._replace(starts=lowest))


def _window(x, lowest, lattice):
    """What a lattice that begins at 0 reads, from `lowest` on."""
    with bitwise.full_width(x):
        bits = lax.dynamic_slice(bitwise.to_bits(x), lowest, lattice.extents)
        return bitwise.from_bits(bits, x.dtype)
