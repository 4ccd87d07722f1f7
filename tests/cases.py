"""Calls of every function: random ones, as `dml-jax verify` has them, and examples."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from dml_jax.cli.verify_cases import ROWS, Case

Shape = tuple[int, ...]

_ROWS = {row.function: row for row in ROWS if not row.is_gradient}
FUNCTIONS = [*_ROWS]
MOVES = [function for function in FUNCTIONS if not function.startswith("fill")]
REVERSALS = [function for function in MOVES if function.startswith("reverse")]
FLOAT32 = np.dtype("float32")


def random_case(
    function: str, seed: int, dtype: np.dtype = FLOAT32, values: int | None = None
) -> Case:
    """The case of a seed, or with the values of another one."""
    return _ROWS[function].random_case(dtype, seed, seed if values is None else values)


def linear(case: Case) -> list[str]:
    """The names of the arrays in which the function is linear."""
    return [name for name in case.arrays if "len" not in name]


def lengths_of(case: Case) -> Any:
    """The lengths of a reversal, otherwise None."""
    return next((x for name, x in case.arrays.items() if "len" in name), None)


def with_lengths(case: Case, name: str, seed: int) -> Case:
    """The reversal with lengths of another dtype, a third of them at its ends."""
    info, random = jnp.iinfo(name), np.random.default_rng(seed)
    ends = [info.min, info.max, 2**31, -(2**32) + 1, 2**32 + 2, 2**63 + 1]
    lengths = lengths_of(case).astype(object)
    far = np.array(ends, object)[random.integers(len(ends), size=lengths.shape)]
    lengths = np.where(random.random(lengths.shape) < 1 / 3, far, lengths)
    lengths = np.asarray(np.clip(lengths, info.min, info.max), object)
    lengths = lengths.astype(getattr(jnp, name))
    arrays = {n: lengths if "len" in n else x for n, x in case.arrays.items()}
    return dataclasses.replace(case, arrays=arrays)


def with_dtype(case: Case, dtype: np.dtype) -> Case:
    """The case with its data, but not its lengths, as `dtype`."""
    data = {name: np.asarray(case.arrays[name]).astype(dtype) for name in linear(case)}
    options = dict(case.options)
    if "value_data_type" in options:
        options["value_data_type"] = dtype
    arrays = {**case.arrays, **data}
    return dataclasses.replace(case, arrays=arrays, options=options)


def with_options(case: Case, **options: Any) -> Case:
    return dataclasses.replace(case, options={**case.options, **options})


def adjoint(case: Case, cotangent: np.ndarray) -> np.ndarray:
    """What the reference moves, moved back."""
    (name,) = linear(case)
    shape = case.arrays[name].shape
    return moved_back(lambda x: case.expected(**{name: x}), shape, cotangent)


def moved_back(
    move: Callable[[np.ndarray], np.ndarray], shape: Shape, cotangent: np.ndarray
) -> np.ndarray:
    """The cotangent of an input of this shape: each element where it came from, else 0.

    The input counts from 1, so that the result gives the positions; 0 stands for none.
    """
    positions = 1 + np.arange(np.prod(shape, dtype=int)).reshape(shape)
    found = np.zeros(1 + positions.size, cotangent.dtype)
    found[move(positions)] = cotangent
    found[0] = 0
    return found[1:].reshape(shape)


# Arrays -------------------------------------------------------------------------------


def special_values(shape: Shape) -> np.ndarray:
    """Random bits as float32, among them negative zeros and NaNs with payloads."""
    bits = np.random.default_rng(0).integers(0, 2**32, shape, dtype=np.uint32)
    bits.flat[::5] = 0x80000000
    bits.flat[1::5] |= 0x7F800000
    return bits.view(np.float32)


def numbers(*shape: int) -> np.ndarray:
    """Distinct small float32 values, so that a misplaced element cannot go unseen."""
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def lengths_for(shape: Shape, axis: int, seed: int = 0) -> np.ndarray:
    """One length for each line, from 0 to beyond the axis."""
    line_shape = (*shape[:axis], 1, *shape[axis + 1 :])
    return np.random.default_rng(seed).integers(0, shape[axis] + 2, line_shape)


# Named cases --------------------------------------------------------------------------


def subsequences(shape: Shape, lengths: ArrayLike, axis: int) -> Case:
    lengths = np.asarray(lengths, np.int32)
    arrays = {"input": numbers(*shape), "sequence_lengths": lengths}
    return Case("reverse_subsequences", arrays, {"axis": axis})


def sequence(shape: Shape, lens: ArrayLike, **options: Any) -> Case:
    arrays = {"input": numbers(*shape), "sequence_lens": np.asarray(lens, np.int32)}
    return Case("reverse_sequence", arrays, options)


def padded(shape: Shape, lengths: ArrayLike, **options: Any) -> Case:
    arrays = {"x": numbers(*shape), "lengths": np.asarray(lengths, np.int32)}
    return Case("reverse_padded", arrays, options)


def window(function: str, shape: Shape, **options: Any) -> Case:
    array = "input_gradient" if function == "slice_grad" else "input"
    return Case(function, {array: numbers(*shape)}, options)


def windows(
    offsets: Iterable[int], sizes: Iterable[int], strides: Iterable[int], **options: Any
) -> dict[str, Any]:
    """The options of slice1 and slice_grad."""
    return dict(
        input_window_offsets=offsets,
        input_window_sizes=sizes,
        input_window_strides=strides,
        **options,
    )


def fill(sizes: Iterable[int], **values: float) -> Case:
    arrays = {name: np.float32(value) for name, value in values.items()}
    function = "fill_value_constant" if "value" in arrays else "fill_value_sequence"
    return Case(function, arrays, {"sizes": sizes, "value_data_type": FLOAT32})


BATCH_MAJOR = {"batch_axis": 0, "time_axis": 1}
PART = windows([0, 1], [6, 8], [-2, 3])
# One of each function and of each mode.
EXAMPLES = {
    "reverse_padded": padded((2, 5, 3), [4, 5]),
    "reverse_subsequences": subsequences((3, 5, 2), lengths_for((3, 5, 2), 1), 1),
    "reverse_sequence": sequence((2, 5, 3), [4, 5], **BATCH_MAJOR),
    "inference": sequence((3, 4), [4, 9, -1], **BATCH_MAJOR, training=False),
    "slice": window("slice", (4, 4), offsets=[1, 0], sizes=[2, 2], strides=[2, 3]),
    "slice1": window("slice1", (9, 8), **windows([1, 0], [6, 7], [-4, 5])),
    "slice_grad": window("slice_grad", (1, 2), **PART, output_gradient_sizes=[6, 9]),
    "fill_value_sequence": fill([101], value_start=-5, value_delta=0.1),
    "fill_value_constant": fill([2, 1, 3], value=1.5),
}

# The published vectors of all operators, and their arrays.
PUBLISHED: list[dict[str, Any]] = json.loads(
    pathlib.Path(__file__).with_name("operators.json").read_text()
)


def array_of(published: dict[str, Any]) -> np.ndarray:
    return np.array(published["data"], published["dtype"]).reshape(published["shape"])
