"""The cases that `_verify` compares: operators, layouts, dtypes and random data.

Layouts are few, since each is a program to be compiled, and among them are empty ones
and those of a single element. Data are random bits, and lengths lie in the axis, at its
ends and beyond.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

import dml_jax
from dml_jax import reference

_INTEGERS = [
    np.dtype(f"{kind}{width}") for kind in ("int", "uint") for width in (8, 16, 32, 64)
]
_FLOATS = [
    np.dtype(dtype)
    for dtype in ("float16", ml_dtypes.bfloat16, "float32", ml_dtypes.float8_e4m3fn,
                  "float64")
]  # fmt: skip
_NUMBERS = [*_INTEGERS, *_FLOATS]
_DTYPES = [np.dtype(bool), *_NUMBERS]


class Case(NamedTuple):
    """The arrays and the static options of a call."""

    arrays: Mapping[str, Any]
    options: Mapping[str, Any]


class Row(NamedTuple):
    """An operator in the table.

    Attributes:
      function: its name in `dml_jax` and in `reference`.
      make: a case from a random generator, a dtype and a layout.
      layouts: the small ones, which cases have in turn.
      large: the one to be timed, from a number of rows of 4096 elements.
      dtypes: those which cases have in turn.
      is_gradient: whether the operator or its gradient is meant.
    """

    function: str
    make: Callable[..., Case]
    layouts: Sequence[Any]
    large: Callable[[int], Any]
    dtypes: Sequence[np.dtype] = _DTYPES
    is_gradient: bool = False

    @property
    def name(self) -> str:
        """The function, and whether it is its gradient that is meant."""
        return f"{self.function}{' gradient' if self.is_gradient else ''}"

    def actual(self, case: Case, device: Any) -> Callable[[], jax.Array]:
        """The call on a device, which has the arrays."""
        function = _gradient if self.is_gradient else getattr(dml_jax, self.function)
        arrays = jax.device_put(dict(case.arrays), device)
        return functools.partial(function, **arrays, **case.options)

    def expected(self, case: Case) -> np.ndarray:
        """What the reference gives for a case."""
        function = getattr(reference, self.function)
        if self.is_gradient:
            return _expected_gradient(**case.arrays, **case.options)
        return function(**case.arrays, **case.options)


# Cases --------------------------------------------------------------------------------


def _array(random, dtype, shape) -> np.ndarray:
    """Random bits, which make NaNs of all kinds, subnormals and zeros too."""
    stored = random.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        stored %= 2
    return stored.view(dtype).reshape(shape)


def _lengths(random, shape, size) -> np.ndarray:
    """Lengths of lines of `size` elements, every other one at or beyond an end."""
    ends = random.choice([-1, 0, 1, size, size + 1, 2**31 - 1], shape)
    inside = random.integers(0, size + 1, shape)
    return np.where(random.random(shape) < 0.5, ends, inside).astype(np.int32)


def _subsequences(random, dtype, layout) -> Case:
    shape, lengths_shape, axis = layout
    lengths = _lengths(random, lengths_shape, shape[axis])
    arrays = dict(input=_array(random, dtype, shape), sequence_lengths=lengths)
    return Case(arrays, dict(axis=axis))


def _sequence(random, dtype, layout) -> Case:
    shape, time_axis = layout
    lengths = _lengths(random, shape[1 - time_axis], shape[time_axis])
    arrays = dict(input=_array(random, dtype, shape), sequence_lens=lengths)
    return Case(arrays, dict(batch_axis=1 - time_axis, time_axis=time_axis))


def _cotangent(random, dtype, layout) -> Case:
    """Any bits for the plain operator, numbers that halve for the training mode."""
    case = _sequence(random, dtype, layout)
    training = bool(random.integers(2))
    arrays = dict(case.arrays)
    if training:
        arrays["input"] = random.integers(-8, 9, layout[0]).astype(dtype)
    return Case(arrays, dict(case.options, training=training))


def _gradient(input, sequence_lens, **options):
    return _pull(tuple(options.items()))(input, sequence_lens)


@functools.cache
def _pull(options):
    """The program that pulls a cotangent back: a linear map does so alike anywhere."""

    def pull(cotangent, sequence_lens):
        def operator(x):
            return dml_jax.reverse_sequence(
                x, sequence_lens, lda_coeff=0.5, **dict(options)
            )

        return jax.vjp(operator, cotangent)[1](cotangent)[0]

    return jax.jit(pull)


def _expected_gradient(input, sequence_lens, training, **axes) -> np.ndarray:
    gradient = reference.reverse_sequence(input, sequence_lens, **axes)
    return gradient * input.dtype.type(0.5) if training else gradient


def _window(kind, random, dtype, layout) -> Case:
    """What a window of an array means to one of the three operators on windows."""
    shape, offsets, windows, strides = layout
    counts = [-(-w // abs(s)) for w, s in zip(windows, strides, strict=True)]
    if kind == "slice":
        options = dict(offsets=offsets, sizes=counts, strides=[*map(abs, strides)])
        return Case(dict(input=_array(random, dtype, shape)), options)
    options = dict(
        input_window_offsets=offsets,
        input_window_sizes=windows,
        input_window_strides=strides,
    )
    if kind == "slice1":
        return Case(dict(input=_array(random, dtype, shape)), options)
    gradient = _array(random, dtype, counts)
    return Case(
        dict(input_gradient=gradient), dict(options, output_gradient_sizes=shape)
    )


def _constant(random, dtype, sizes) -> Case:
    value = _array(random, dtype, (1,))[0]
    return Case(dict(value=value), dict(sizes=sizes, value_data_type=dtype))


def _terms(random, dtype, sizes) -> Case:
    """A start and a delta of any bits, or floats of which many sums cancel."""
    start, delta = _array(random, dtype, (2,))
    if dtype in _FLOATS and random.integers(2):
        delta = dtype.type(random.normal())
        start = dtype.type(-float(delta) * random.integers(math.prod(sizes) + 1))
    arrays = dict(value_start=start, value_delta=delta)
    return Case(arrays, dict(sizes=sizes, value_data_type=dtype))


_LINES = [
    ((7,), (1,), 0),
    ((3, 5, 2), (3, 1, 2), 1),
    ((2, 129), (2, 1), -1),
    ((33, 4), (1, 4), 0),
    ((2, 1, 3), (1, 1, 3), 1),
    ((3, 0), (3, 1), 1),
    ((0, 3), (0, 1), 1),
]
_BATCHES = [
    ((5, 3), 0),
    ((3, 129), 1),
    ((2, 6, 3), 1),
    ((1, 1), 0),
    ((4, 0), 0),
    ((0, 2), 0),
]
_WINDOWS = [  # shape, offsets, sizes, strides
    ((9,), (1,), (8,), (3,)),
    ((9, 65), (1, 2), (6, 61), (-4, 5)),
    ((3, 4), (0, 0), (3, 4), (1, -9)),
    ((2, 3, 4), (1, 0, 1), (1, 3, 2), (1, 2, -1)),
    ((1, 1), (0, 0), (1, 1), (-1, 1)),
    ((3, 4), (3, 0), (0, 4), (-1, 2)),
    ((0, 3), (0, 0), (0, 3), (1, 1)),
]
_SIZES = [(300,), (2, 1, 3, 4), (1,), (), (2, 0)]


def _all_but_a_column(rows):
    return (rows, 4096), (0, 1), (rows, 4095), (1, -1)


ROWS = [
    Row("reverse_subsequences", _subsequences, _LINES,
         lambda rows: ((rows, 4096), (rows, 1), 1)),
    Row("reverse_sequence", _sequence, _BATCHES, lambda rows: ((rows, 4096), 1)),
    Row("reverse_sequence", _cotangent, _BATCHES, lambda rows: ((rows, 4096), 1),
         _FLOATS, is_gradient=True),
    *(
        Row(kind, functools.partial(_window, kind), _WINDOWS, _all_but_a_column)
        for kind in ("slice", "slice1", "slice_grad")
    ),
    Row("fill_value_sequence", _terms, _SIZES, lambda rows: (rows, 4096), _NUMBERS),
    Row("fill_value_constant", _constant, _SIZES, lambda rows: (rows, 4096)),
]  # fmt: skip
