"""Random calls of every function.

One generator draws the layout: the shapes, axes and windows for which a program is
compiled. Another one draws the values: random bits, and lengths inside the axis, at its
ends and beyond.
"""

import dataclasses
import functools
import inspect
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

_INTEGERS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
_FLOATS = [
    np.dtype(name)
    for name in ("float16", "bfloat16", "float32", "float8_e4m3fn", "float64")
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
    """A call of a function or its gradient: its arrays, and its static options."""

    function: str
    arrays: Mapping[str, Any]
    options: Mapping[str, Any]
    is_gradient: bool = False

    def run(self, **arrays: Any) -> jax.Array:
        """The function on `arrays`, and on the case's own where none are given."""
        function = _gradient if self.is_gradient else getattr(dml_jax, self.function)
        return function(**{**self.arrays, **arrays}, **self.options)

    def expected(self, **arrays: Any) -> np.ndarray:
        """The reference on the same arrays."""
        unknown = ("training", "lda_coeff", "implementation")
        options = {k: v for k, v in self.options.items() if k not in unknown}
        function = getattr(reference, self.function)
        result = function(**{**self.arrays, **arrays}, **options)
        is_halved = self.is_gradient and self.options["training"]
        return result * result.dtype.type(0.5) if is_halved else result


class Row(NamedTuple):
    """An operator in the table.

    Attributes:
      function: its name in `dml_jax` and in `reference`.
      make: makes a case from the generators of its layout and values, and a dtype.
      dtypes: the dtypes, through which cases cycle.
      is_gradient: whether to test the gradient of the function.
    """

    function: str
    make: Callable[[Random, Random, np.dtype], Case]
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
        """The case whose layout and values follow from two seeds."""
        of_layout = np.random.default_rng([layout, _SEED])
        return self.make(of_layout, np.random.default_rng(values), dtype)


@functools.partial(jax.jit, static_argnames=("batch_axis", "time_axis", "training"))
def _gradient(input: jax.Array, sequence_lens: jax.Array, **options: Any) -> jax.Array:
    """The gradient for the cotangent `input`; the operator is linear."""

    def operator(x: jax.Array) -> jax.Array:
        return dml_jax.reverse_sequence(x, sequence_lens, lda_coeff=0.5, **options)

    return jax.vjp(operator, input)[1](input)[0]


# Parts of layouts ---------------------------------------------------------------------


def _shape(random: Random, least_rank: int = 1) -> Shape:
    """A shape of few elements, sometimes of none."""
    sizes: list[int] = []
    for _ in range(max(least_rank, random.choice(_RANKS))):
        room = _MOST_ELEMENTS // math.prod(sizes)
        sizes.append(int(random.choice(_SIZES[room >= _SIZES])))
    if random.random() < 0.15:
        sizes[-1] = 0
    return tuple(random.permutation(sizes).tolist())


def _some(random: Random, shape: Sequence[int]) -> list[int]:
    """The shape, with some sizes replaced by 1."""
    return [int(random.choice([size, size, 1])) for size in shape]


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


# Cases --------------------------------------------------------------------------------


def _subsequences(layout: Random, values: Random, dtype: np.dtype) -> Case:
    shape = _shape(layout)
    axis = int(layout.integers(-len(shape), len(shape)))
    lengths_shape = _some(layout, shape)
    lengths_shape[axis] = 1
    implementation = str(layout.choice(["gather", "scatter", ""])) or None
    lengths = random_lengths(values, lengths_shape, shape[axis])
    arrays = {"input": random_bits(values, dtype, shape), "sequence_lengths": lengths}
    options = {"axis": axis, "implementation": implementation}
    return Case("reverse_subsequences", arrays, options)


def _padded(layout: Random, values: Random, dtype: np.dtype) -> Case:
    shape = _shape(layout)
    axis = int(layout.integers(len(shape)))
    lengths_shape = _some(layout, shape[:axis] or shape[1:2])
    axis -= int(layout.choice([0, len(shape)]))
    if layout.random() >= 0.7:
        lengths_shape = []
    lengths = random_lengths(values, lengths_shape, shape[axis])
    arrays = {"x": random_bits(values, dtype, shape), "lengths": lengths}
    return Case("reverse_padded", arrays, {"axis": axis})


def _sequence(layout: Random, values: Random, dtype: np.dtype) -> Case:
    shape, time_axis = _shape(layout, 2), int(layout.integers(2))
    batch_axis, training = 1 - time_axis, bool(layout.integers(2))
    lengths = random_lengths(
        values, shape[batch_axis : batch_axis + 1], shape[time_axis]
    )
    arrays = {"input": random_bits(values, dtype, shape), "sequence_lens": lengths}
    axes = {"batch_axis": batch_axis, "time_axis": time_axis}
    return Case("reverse_sequence", arrays, {**axes, "training": training})


def _cotangent(layout: Random, values: Random, dtype: np.dtype) -> Case:
    """Random bits, or in training mode numbers whose halves are exact."""
    case = _sequence(layout, values, dtype)
    arrays = dict(case.arrays)
    if case.options["training"]:
        arrays["input"] = values.integers(-8, 9, arrays["input"].shape).astype(dtype)
    return dataclasses.replace(case, arrays=arrays, is_gradient=True)


def _window(function: str, layout: Random, values: Random, dtype: np.dtype) -> Case:
    """A window of an array, as each of the three slices takes it."""
    shape = _shape(layout)
    # With 0, windows and parts of them may be empty.
    least = int(0 not in shape and layout.random() < 0.9)
    offsets = [int(layout.choice([0, layout.integers(n + 1 - least)])) for n in shape]
    rooms = [n - offset for n, offset in zip(shape, offsets, strict=True)]
    sizes = [int(layout.choice([n, layout.integers(least, n + 1)])) for n in rooms]
    strides = [int(layout.choice([1, 1, 2, -1, -2, 3, -9])) for _ in shape]
    counts = [-(-n // abs(s)) for n, s in zip(sizes, strides, strict=True)]
    part = [int(layout.integers(least, n + 1)) for n in counts]
    if layout.random() >= 0.3:
        part = None
    window = {
        "input_window_offsets": tuple(offsets),
        "input_window_sizes": tuple(sizes),
        "input_window_strides": tuple(strides),
    }
    if function == "slice_grad":
        gradient = random_bits(values, dtype, part or counts)
        window["output_gradient_sizes"] = shape
        return Case(function, {"input_gradient": gradient}, window)
    if function == "slice":
        steps = tuple(map(abs, strides))
        window = {"offsets": tuple(offsets), "sizes": tuple(counts), "strides": steps}
    elif part:
        window["output_sizes"] = tuple(part)
    return Case(function, {"input": random_bits(values, dtype, shape)}, window)


def _sizes(layout: Random) -> Shape:
    return () if layout.random() < 0.15 else _shape(layout)


def _constant(layout: Random, values: Random, dtype: np.dtype) -> Case:
    options = {"sizes": _sizes(layout), "value_data_type": dtype}
    value = random_bits(values, dtype, (1,))[0]
    return Case("fill_value_constant", {"value": value}, options)


def _terms(layout: Random, values: Random, dtype: np.dtype) -> Case:
    """A start and a delta of random bits, or floats: from 0, or with a sum of 0."""
    sizes = _sizes(layout)
    start, delta = random_bits(values, dtype, (2,))
    if dtype in _FLOATS and values.integers(2):
        delta = dtype.type(values.normal())
        position = values.choice([0, values.integers(math.prod(sizes) + 1)])
        start = dtype.type(-float(delta) * position)
    options = {"sizes": sizes, "value_data_type": dtype}
    terms = {"value_start": start, "value_delta": delta}
    return Case("fill_value_sequence", terms, options)


ROWS = [
    Row("reverse_padded", _padded),
    Row("reverse_subsequences", _subsequences),
    Row("reverse_sequence", _sequence),
    Row("reverse_sequence", _cotangent, _FLOATS, is_gradient=True),
    Row("slice", functools.partial(_window, "slice")),
    Row("slice1", functools.partial(_window, "slice1")),
    Row("slice_grad", functools.partial(_window, "slice_grad")),
    Row("fill_value_sequence", _terms, _NUMBERS),
    Row("fill_value_constant", _constant),
]


def large_case(row: Row, rows: int) -> Case:
    """A call of an operator on rows of 4096 float32 elements, to be timed."""
    random = np.random.default_rng(0)
    x = random_bits(random, np.dtype("float32"), (rows, 4096))
    lengths = random_lengths(random, (rows,), 4096)
    arrays = dict(x=x, input=x, input_gradient=x[:, 1:], value=x[0, 0])
    arrays |= dict(value_start=x[0, 0], value_delta=x[0, 1], lengths=lengths)
    arrays |= dict(sequence_lens=lengths, sequence_lengths=lengths[:, None])
    offsets, sizes = (0, 1), (rows, 4095)
    options = dict(axis=1, batch_axis=0, time_axis=1, value_data_type="float32")
    options |= dict(offsets=offsets, sizes=sizes, strides=(1, 1))
    options |= dict(input_window_offsets=offsets, input_window_sizes=sizes)
    options |= dict(input_window_strides=(1, -1), output_gradient_sizes=x.shape)
    taken = inspect.signature(getattr(dml_jax, row.function)).parameters
    return Case(
        row.function,
        {name: array for name, array in arrays.items() if name in taken},
        {name: value for name, value in options.items() if name in taken},
        row.is_gradient,
    )
