"""The cases that `verify` compares: operators, layouts, dtypes and random data.

Every layout must be compiled, so there are few. They include empty arrays and single
elements. Data are random bits, and lengths are inside the axis, at its ends and beyond.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import ml_dtypes
import numpy as np

import dml_jax
from dml_jax import reference

_INTEGERS = [
    np.dtype(f"{kind}{width}") for kind in ("int", "uint") for width in (8, 16, 32, 64)
]
_FLOATS = [
    np.dtype("float16"),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype("float32"),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype("float64"),
]
_NUMBERS = [*_INTEGERS, *_FLOATS]
_DTYPES = [np.dtype(bool), *_NUMBERS]

Random: TypeAlias = np.random.Generator


class Case(NamedTuple):
    """The arrays and the static options of a call."""

    arrays: Mapping[str, Any]
    options: Mapping[str, Any]


class Row(NamedTuple):
    """An operator in the table.

    Attributes:
      function: its name in `dml_jax` and in `reference`.
      make: makes a case from a random generator, a dtype and a layout.
      layouts: small layouts, through which cases cycle.
      large: makes the layout to time from a number of rows of 4096 elements.
      dtypes: the dtypes, through which cases cycle.
      is_gradient: whether to test the gradient of the function.
    """

    function: str
    make: Callable[[Random, np.dtype, Any], Case]
    layouts: Sequence[Any]
    large: Callable[[int], Any]
    dtypes: Sequence[np.dtype] = _DTYPES
    is_gradient: bool = False

    @property
    def name(self) -> str:
        """The name of the function, or of its gradient, in the table."""
        return f"{self.function}{' gradient' if self.is_gradient else ''}"

    def actual(self, case: Case, device: Any) -> Callable[[], jax.Array]:
        """The call, with the arrays on a device."""
        function = _gradient if self.is_gradient else getattr(dml_jax, self.function)
        arrays = jax.device_put(dict(case.arrays), device)
        return functools.partial(function, **arrays, **case.options)

    def expected(self, case: Case) -> np.ndarray:
        """The result of the reference."""
        function = getattr(reference, self.function)
        if self.is_gradient:
            function = _expected_gradient
        return function(**case.arrays, **case.options)


def _array(random: Random, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """Random bits, including NaNs of all kinds, subnormals and zeros."""
    data = random.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        data %= 2
    return data.view(dtype).reshape(shape)


def _lengths(random: Random, shape: int | Sequence[int], size: int) -> np.ndarray:
    """Lengths for an axis of `size` elements, half of them at an end or beyond."""
    ends = random.choice([-1, 0, 1, size, size + 1, 2**31 - 1], shape)
    inside = random.integers(0, size + 1, shape)
    return np.where(random.random(shape) < 0.5, ends, inside).astype(np.int32)


def _subsequences(random: Random, dtype: np.dtype, layout: Any) -> Case:
    shape, lengths_shape, axis = layout
    lengths = _lengths(random, lengths_shape, shape[axis])
    input = _array(random, dtype, shape)
    return Case({"input": input, "sequence_lengths": lengths}, {"axis": axis})


def _padded(random: Random, dtype: np.dtype, layout: Any) -> Case:
    shape, axis = layout
    lengths = _lengths(random, shape[:axis] or shape[1:2], shape[axis])
    return Case({"x": _array(random, dtype, shape), "lengths": lengths}, {"axis": axis})


def _sequence(random: Random, dtype: np.dtype, layout: Any) -> Case:
    shape, time_axis = layout
    lengths = _lengths(random, shape[1 - time_axis], shape[time_axis])
    return Case(
        {"input": _array(random, dtype, shape), "sequence_lens": lengths},
        {"batch_axis": 1 - time_axis, "time_axis": time_axis},
    )


def _cotangent(random: Random, dtype: np.dtype, layout: Any) -> Case:
    """Random bits, or in training mode numbers whose halves are exact."""
    arrays, options = _sequence(random, dtype, layout)
    training = bool(random.integers(2))
    if training:
        arrays = {**arrays, "input": random.integers(-8, 9, layout[0]).astype(dtype)}
    return Case(arrays, {**options, "training": training})


@functools.partial(jax.jit, static_argnames=("batch_axis", "time_axis", "training"))
def _gradient(
    input: jax.Array,
    sequence_lens: jax.Array,
    batch_axis: int,
    time_axis: int,
    training: bool,
) -> jax.Array:
    """The gradient for the cotangent `input`; the operator is linear."""
    operator = functools.partial(
        dml_jax.reverse_sequence,
        sequence_lens=sequence_lens,
        batch_axis=batch_axis,
        time_axis=time_axis,
        training=training,
        lda_coeff=0.5,
    )
    return jax.vjp(operator, input)[1](input)[0]


def _expected_gradient(
    input: np.ndarray, sequence_lens: np.ndarray, training: bool, **axes: int
) -> np.ndarray:
    gradient = reference.reverse_sequence(input, sequence_lens, **axes)
    return gradient * input.dtype.type(0.5) if training else gradient


def _window(function: str, random: Random, dtype: np.dtype, layout: Any) -> Case:
    """A window of an array, as each of the three slices takes it."""
    shape, offsets, sizes, strides = layout
    counts = [-(-n // abs(s)) for n, s in zip(sizes, strides, strict=True)]
    window: dict[str, Any] = {
        "input_window_offsets": offsets,
        "input_window_sizes": sizes,
        "input_window_strides": strides,
    }
    if function == "slice_grad":
        window["output_gradient_sizes"] = shape
        return Case({"input_gradient": _array(random, dtype, counts)}, window)
    if function == "slice":
        strides = [abs(stride) for stride in strides]
        window = {"offsets": offsets, "sizes": counts, "strides": strides}
    return Case({"input": _array(random, dtype, shape)}, window)


def _constant(random: Random, dtype: np.dtype, layout: Any) -> Case:
    value = _array(random, dtype, (1,))[0]
    return Case({"value": value}, {"sizes": layout, "value_data_type": dtype})


def _terms(random: Random, dtype: np.dtype, layout: Any) -> Case:
    """A start and a delta of random bits, or floats whose sums often cancel."""
    start, delta = _array(random, dtype, (2,))
    if dtype in _FLOATS and random.integers(2):
        delta = dtype.type(random.normal())
        start = dtype.type(-float(delta) * random.integers(math.prod(layout) + 1))
    terms = {"value_start": start, "value_delta": delta}
    return Case(terms, {"sizes": layout, "value_data_type": dtype})


_SUBSEQUENCES = [  # shape, shape of the lengths, axis
    ((7,), (1,), 0),
    ((3, 5, 2), (3, 1, 2), 1),
    ((2, 129), (2, 1), -1),
    ((33, 4), (1, 4), 0),
    ((2, 1, 3), (1, 1, 3), 1),
    ((3, 0), (3, 1), 1),
    ((0, 3), (0, 1), 1),
]
_SEQUENCES = [  # shape, axis of time
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

ROWS = [
    Row("reverse_padded", _padded, _SEQUENCES, lambda rows: ((rows, 4096), 1)),
    Row(
        "reverse_subsequences",
        _subsequences,
        _SUBSEQUENCES,
        lambda rows: ((rows, 4096), (rows, 1), 1),
    ),
    Row("reverse_sequence", _sequence, _SEQUENCES, lambda rows: ((rows, 4096), 1)),
    Row(
        "reverse_sequence",
        _cotangent,
        _SEQUENCES,
        lambda rows: ((rows, 4096), 1),
        _FLOATS,
        is_gradient=True,
    ),
    *(
        Row(
            name,
            functools.partial(_window, name),
            _WINDOWS,
            lambda rows: ((rows, 4096), (0, 1), (rows, 4095), (1, -1)),
        )
        for name in ("slice", "slice1", "slice_grad")
    ),
    Row("fill_value_sequence", _terms, _SIZES, lambda rows: (rows, 4096), _NUMBERS),
    Row("fill_value_constant", _constant, _SIZES, lambda rows: (rows, 4096)),
]
