"""Random calls of every function: layouts, options and values.

A layout is everything that a program is compiled for but the dtype: shapes, axes,
windows, options. Values are random bits, and lengths are inside of the axis, at its
ends and beyond.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import ml_dtypes
import numpy as np

import dml_jax
from dml_jax import reference

Random: TypeAlias = np.random.Generator
Shape: TypeAlias = tuple[int, ...]

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
_SEED = 4  # with which some of the first layouts are empty, but not the very first
_LAYOUTS = 12  # through which the cases of `verify` cycle: each has to be compiled
_RANKS = [1, 2, 2, 3, 3, 4, 6]
_SIZES = np.array([1, 2, 2, 3, 4, 5, 8, 9, 33, 129])
_MOST_ELEMENTS = 1000


@dataclasses.dataclass(frozen=True)
class Case:
    """A call: the name of the function, its arrays, and its static options."""

    function: str
    arrays: Mapping[str, Any]
    options: Mapping[str, Any]

    def run(self, **arrays: Any) -> jax.Array:
        """The function on `arrays`, and on the case's own where none are given."""
        function = getattr(dml_jax, self.function)
        return function(**{**self.arrays, **arrays}, **self.options)

    def expected(self, **arrays: Any) -> np.ndarray:
        """The reference on the same arrays."""
        unknown = ("training", "lda_coeff", "implementation")
        options = {k: v for k, v in self.options.items() if k not in unknown}
        function = getattr(reference, self.function)
        return function(**{**self.arrays, **arrays}, **options)


class Row(NamedTuple):
    """An operator in the table.

    Attributes:
      function: its name in `dml_jax` and in `reference`.
      draw: draws a layout.
      make: makes a case from a random generator, a dtype and a layout.
      large: makes the layout to time from a number of rows of 4096 elements.
      dtypes: the dtypes, through which cases cycle.
      is_gradient: whether to test the gradient of the function.
    """

    function: str
    draw: Callable[[Random], Any]
    make: Callable[[Random, np.dtype, Any], Case]
    large: Callable[[int], Any]
    dtypes: Sequence[np.dtype] = _DTYPES
    is_gradient: bool = False

    @property
    def name(self) -> str:
        """The name of the function, or of its gradient, in the table."""
        return f"{self.function}{' gradient' if self.is_gradient else ''}"

    def case(self, number: int, dtypes: Sequence[np.dtype]) -> tuple[Case, np.dtype]:
        """The case of a number, and its dtype."""
        dtype, layout = dtypes[number % len(dtypes)], number // len(dtypes) % _LAYOUTS
        return self.random_case(dtype, layout, number), dtype

    def random_case(self, dtype: np.dtype, layout: int, values: int) -> Case:
        """The case of two seeds."""
        drawn = self.draw(np.random.default_rng([layout, _SEED]))
        return self.make(np.random.default_rng(values), dtype, drawn)

    def actual(self, case: Case, device: Any) -> Callable[[], jax.Array]:
        """The call, with the arrays on a device."""
        arrays = jax.device_put(dict(case.arrays), device)
        if self.is_gradient:
            return functools.partial(_gradient, **arrays, **case.options)
        return functools.partial(case.run, **arrays)

    def expected(self, case: Case) -> np.ndarray:
        """The result of the reference."""
        if self.is_gradient:
            return _expected_gradient(**case.arrays, **case.options)
        return case.expected()


# Layouts ------------------------------------------------------------------------------


def _shape(random: Random, least_rank: int = 1) -> Shape:
    """A shape of few elements, and now and then of none."""
    sizes: list[int] = []
    for _ in range(max(least_rank, random.choice(_RANKS))):
        room = _MOST_ELEMENTS // math.prod(sizes)
        sizes.append(int(random.choice(_SIZES[room >= _SIZES])))
    if random.random() < 0.15:
        sizes[-1] = 0
    return tuple(random.permutation(sizes).tolist())


def _some(random: Random, shape: Sequence[int]) -> list[int]:
    """The shape with 1 in place of some sizes."""
    return [int(random.choice([size, size, 1])) for size in shape]


def _draw_axis(random: Random) -> tuple[Shape, Shape, int, str | None]:
    """Shapes of the input and the lengths, the axis, and the implementation."""
    shape = _shape(random)
    axis = int(random.integers(-len(shape), len(shape)))
    lengths = _some(random, shape)
    lengths[axis] = 1
    implementation = random.choice(["gather", "scatter", ""])
    return shape, tuple(lengths), axis, str(implementation) or None


def _draw_padded(random: Random) -> tuple[Shape, Shape, int]:
    """Shapes of the input and the lengths, and the axis."""
    shape = _shape(random)
    axis = int(random.integers(len(shape)))
    lengths = tuple(_some(random, shape[:axis] or shape[1:2]))
    axis -= int(random.choice([0, len(shape)]))
    return shape, lengths if random.random() < 0.7 else (), axis


def _draw_sequence(random: Random) -> tuple[Shape, int, bool]:
    """The shape, the axis of the time, and whether it is the training mode."""
    return _shape(random, 2), int(random.integers(2)), bool(random.integers(2))


def _draw_window(random: Random) -> tuple[Shape, Shape, Shape, Shape, Shape | None]:
    """The shape, offsets, sizes and strides of a window, and sizes of a part of it."""
    shape = _shape(random)
    least = int(
        0 not in shape and random.random() < 0.9
    )  # 0: windows and parts of them may be empty
    begins = [int(random.choice([0, random.integers(n + 1 - least)])) for n in shape]
    rooms = [n - begin for n, begin in zip(shape, begins, strict=True)]
    sizes = [int(random.choice([n, random.integers(least, n + 1)])) for n in rooms]
    strides = [int(random.choice([1, 1, 2, -1, -2, 3, -9])) for _ in shape]
    counts = [-(-n // abs(s)) for n, s in zip(sizes, strides, strict=True)]
    part = [int(random.integers(least, n + 1)) for n in counts]
    smaller = tuple(part) if random.random() < 0.3 else None
    return shape, tuple(begins), tuple(sizes), tuple(strides), smaller


def _draw_sizes(random: Random) -> Shape:
    return () if random.random() < 0.15 else _shape(random)


# Values -------------------------------------------------------------------------------


def random_bits(random: Random, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """Any bits; of floats also zeros, infinities, NaNs and subnormals of both signs."""
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.kind == "c":
        parts = np.dtype(f"float{4 * dtype.itemsize}")
        return random_bits(random, parts, (*shape, 2)).view(dtype)[..., 0]
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    bits = random.integers(0, 2 ** (8 * dtype.itemsize), shape, unsigned)
    if dtype in _INTEGERS:
        return bits.view(dtype)
    if dtype.kind == "V" and dtype.name.startswith(("int", "uint")):
        # Stored as a byte, with the bits that a conversion gives.
        return bits.view(np.int8).astype(dtype)
    info = ml_dtypes.finfo(dtype)
    sign = unsigned.type(1 << (info.bits - 1))
    exponent = unsigned.type((2**info.nexp - 1) << info.nmant)
    bits &= sign | (sign - unsigned.type(1))
    zeros, infinities = bits & sign, bits & sign | exponent
    kinds = [bits, bits, bits, zeros, infinities, bits | exponent, bits & ~exponent]
    return np.choose(random.integers(len(kinds), size=shape), kinds).view(dtype)


def random_lengths(random: Random, shape: Sequence[int], size: int) -> np.ndarray:
    """Lengths for an axis of `size` elements, half of them at an end or beyond."""
    ends = random.choice([-1, 0, 1, size, size + 1, 2**31 - 1], shape)
    inside = random.integers(0, size + 1, shape)
    return np.where(random.random(shape) < 0.5, ends, inside).astype(np.int32)


def _subsequences(random: Random, dtype: np.dtype, layout: Any) -> Case:
    shape, lengths_shape, axis, implementation = layout
    lengths = random_lengths(random, lengths_shape, shape[axis])
    arrays = {"input": random_bits(random, dtype, shape), "sequence_lengths": lengths}
    options = {"axis": axis, "implementation": implementation}
    return Case("reverse_subsequences", arrays, options)


def _padded(random: Random, dtype: np.dtype, layout: Any) -> Case:
    shape, lengths_shape, axis = layout
    lengths = random_lengths(random, lengths_shape, shape[axis])
    arrays = {"x": random_bits(random, dtype, shape), "lengths": lengths}
    return Case("reverse_padded", arrays, {"axis": axis})


def _sequence(random: Random, dtype: np.dtype, layout: Any) -> Case:
    shape, time_axis, training = layout
    lengths = random_lengths(
        random, shape[1 - time_axis : 2 - time_axis], shape[time_axis]
    )
    arrays = {"input": random_bits(random, dtype, shape), "sequence_lens": lengths}
    axes = {"batch_axis": 1 - time_axis, "time_axis": time_axis}
    return Case("reverse_sequence", arrays, {**axes, "training": training})


def _cotangent(random: Random, dtype: np.dtype, layout: Any) -> Case:
    """Random bits, or in training mode numbers whose halves are exact."""
    case = _sequence(random, dtype, layout)
    if not case.options["training"]:
        return case
    numbers = random.integers(-8, 9, layout[0]).astype(dtype)
    return dataclasses.replace(case, arrays={**case.arrays, "input": numbers})


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
    shape, offsets, sizes, strides, part = layout
    counts = tuple(-(-n // abs(s)) for n, s in zip(sizes, strides, strict=True))
    window: dict[str, Any] = {
        "input_window_offsets": offsets,
        "input_window_sizes": sizes,
        "input_window_strides": strides,
    }
    if function == "slice_grad":
        gradient = random_bits(random, dtype, counts if part is None else part)
        window["output_gradient_sizes"] = shape
        return Case(function, {"input_gradient": gradient}, window)
    if function == "slice":
        strides = tuple(abs(stride) for stride in strides)
        window = {"offsets": offsets, "sizes": counts, "strides": strides}
    elif part is not None:
        window["output_sizes"] = part
    return Case(function, {"input": random_bits(random, dtype, shape)}, window)


def _constant(random: Random, dtype: np.dtype, layout: Any) -> Case:
    options = {"sizes": layout, "value_data_type": dtype}
    value = random_bits(random, dtype, (1,))[0]
    return Case("fill_value_constant", {"value": value}, options)


def _terms(random: Random, dtype: np.dtype, layout: Any) -> Case:
    """A start and a delta of random bits, or floats whose sums often cancel."""
    start, delta = random_bits(random, dtype, (2,))
    if dtype in _FLOATS and random.integers(2):
        delta = dtype.type(random.normal())
        start = dtype.type(-float(delta) * random.integers(math.prod(layout) + 1))
    options = {"sizes": layout, "value_data_type": dtype}
    terms = {"value_start": start, "value_delta": delta}
    return Case("fill_value_sequence", terms, options)


ROWS = [
    Row("reverse_padded", _draw_padded, _padded, lambda n: ((n, 4096), (n,), 1)),
    Row(
        "reverse_subsequences",
        _draw_axis,
        _subsequences,
        lambda rows: ((rows, 4096), (rows, 1), 1, None),
    ),
    Row(
        "reverse_sequence",
        _draw_sequence,
        _sequence,
        lambda rows: ((rows, 4096), 1, True),
    ),
    Row(
        "reverse_sequence",
        _draw_sequence,
        _cotangent,
        lambda rows: ((rows, 4096), 1, False),
        _FLOATS,
        is_gradient=True,
    ),
    *(
        Row(
            name,
            _draw_window,
            functools.partial(_window, name),
            lambda rows: ((rows, 4096), (0, 1), (rows, 4095), (1, -1), None),
        )
        for name in ("slice", "slice1", "slice_grad")
    ),
    Row(
        "fill_value_sequence", _draw_sizes, _terms, lambda rows: (rows, 4096), _NUMBERS
    ),
    Row("fill_value_constant", _draw_sizes, _constant, lambda rows: (rows, 4096)),
]
