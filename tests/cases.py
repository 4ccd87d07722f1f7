"""The named cases that tests replay under every transformation.

A case is an operator, its arrays and its static options. `Case.run` applies dml_jax,
`Case.expected` applies the NumPy reference to the same arguments.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import ArrayLike
from sampling import default_of

import dml_jax
from dml_jax import reference

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    operator: str
    name: str
    arrays: Mapping[str, np.ndarray]
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.operator}-{self.name}"

    def run(self, **arrays: Any) -> jax.Array:
        """The operator on `arrays`, and on the case's own where none are given."""
        function = getattr(dml_jax, self.operator)
        return function(**{**self.arrays, **arrays}, **self.options)

    def expected(self, **arrays: Any) -> np.ndarray:
        """The reference on the same arrays."""
        function = getattr(reference, self.operator)
        options = {k: v for k, v in self.options.items() if k != "training"}
        return function(**{**self.arrays, **arrays}, **options)

    @property
    def linear(self) -> list[str]:
        """The names of the arrays in which the operator is linear."""
        return [name for name in self.arrays if "len" not in name]

    def astype(self, dtype: np.dtype) -> Case:
        """The case with its data, but not its lengths, as `dtype`."""
        arrays = dict(self.arrays)
        for name in self.linear:
            arrays[name] = arrays[name].astype(dtype)
        options = dict(self.options)
        if "value_data_type" in options:
            options["value_data_type"] = dtype
        return dataclasses.replace(self, arrays=arrays, options=options)


def special_values(shape: Shape) -> np.ndarray:
    """Random bits as float32, among them negative zeros and NaNs with payloads."""
    bits = np.random.default_rng(0).integers(0, 2**32, shape, dtype=np.uint32)
    bits.flat[::5] = 0x80000000
    bits.flat[1::5] |= 0x7F800000
    return bits.view(np.float32)


def numbers(*shape: int) -> np.ndarray:
    """Distinct small float32 values, so that a misplaced element cannot go unseen."""
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def subsequences(name: str, shape: Shape, lengths: ArrayLike, axis: int) -> Case:
    return Case(
        "reverse_subsequences",
        name,
        {"input": numbers(*shape), "sequence_lengths": np.asarray(lengths, np.int32)},
        {"axis": axis},
    )


def sequence(name: str, shape: Shape, lens: ArrayLike, **options: Any) -> Case:
    return Case(
        "reverse_sequence",
        name,
        {"input": numbers(*shape), "sequence_lens": np.asarray(lens, np.int32)},
        options,
    )


def padded(name: str, shape: Shape, lengths: ArrayLike, **options: Any) -> Case:
    return Case(
        "reverse_padded",
        name,
        {"x": numbers(*shape), "lengths": np.asarray(lengths, np.int32)},
        options,
    )


def window(operator: str, name: str, shape: Shape, **options: Any) -> Case:
    array = "input_gradient" if operator == "slice_grad" else "input"
    return Case(operator, name, {array: numbers(*shape)}, options)


def windows(offsets: Any, sizes: Any, strides: Any, **options: Any) -> dict[str, Any]:
    """The options of slice1 and slice_grad."""
    return dict(
        input_window_offsets=offsets,
        input_window_sizes=sizes,
        input_window_strides=strides,
        **options,
    )


def fill(name: str, sizes: list[int], start: float, delta: float) -> Case:
    return Case(
        "fill_value_sequence",
        name,
        {"value_start": np.float32(start), "value_delta": np.float32(delta)},
        {"sizes": sizes, "value_data_type": np.dtype(np.float32)},
    )


def lengths_for(shape: Shape, axis: int, seed: int = 0) -> np.ndarray:
    """One length for each line, from 0 to beyond the axis."""
    line_shape = (*shape[:axis], 1, *shape[axis + 1 :])
    return np.random.default_rng(seed).integers(0, shape[axis] + 2, line_shape)


BATCH_MAJOR = {"batch_axis": 0, "time_axis": 1}

PADDED = [
    padded("rows", (3, 4), [1, 2, 4]),
    padded("features", (2, 5, 3), [4, 5]),
    padded("too-long-and-negative", (4, 5), [9, -3, 6, 5]),
    padded("one-length-for-all", (3, 5, 2), 4),
    padded("one-length-for-all-1-d", (3, 5, 2), [4]),
    padded("single-sequence", (7,), 5, axis=0),
    padded("single-sequence-features", (5, 2), 3, axis=-2),
    padded("time-major", (5, 3, 2), [5, 1, 3], axis=0),
    padded("time-major-rows", (4, 3), [4, 0, 2], axis=-2),
    padded("two-batch-axes", (2, 3, 4, 2), [[1, 2, 3], [4, 0, 9]], axis=2),
    padded("length-per-first", (2, 3, 4), [[3], [2]], axis=-1),
    padded("length-per-second", (2, 3, 4), [[3, 0, 4]], axis=-1),
    padded("empty-batch", (0, 4), []),
    padded("empty-time", (2, 0), [0, 3]),
    padded("empty-features", (2, 3, 0), [1, 2]),
]

REVERSALS = [
    *PADDED,
    subsequences("rank-1", (7,), [5], 0),
    subsequences("rows", (3, 4), [[2], [4], [3]], 1),
    subsequences("columns", (3, 4), [[2, 3, 1, 0]], 0),
    subsequences("negative-axis", (3, 4), [[2], [4], [3]], -1),
    subsequences("too-long-and-negative", (4, 5), [[9], [-3], [6], [5]], 1),
    subsequences("one-length-for-all", (3, 5, 2), [[[4]]], 1),
    subsequences("length-per-row", (3, 5, 2), [[[4]], [[0]], [[5]]], 1),
    subsequences("length-per-column", (3, 5, 2), [[[4, 3]]], 1),
    subsequences("length-per-line", (3, 5, 2), lengths_for((3, 5, 2), 1), 1),
    subsequences("axis-of-1", (3, 1, 2), lengths_for((3, 1, 2), 1), 1),
    subsequences("rank-6", (2, 1, 3, 2, 5, 2), lengths_for((2, 1, 3, 2, 5, 2), 4), 4),
    subsequences("long-odd-rows", (3, 129), [[129], [64], [1]], 1),
    subsequences("empty-axis", (3, 0), [[2], [0], [1]], 1),
    subsequences("empty-lines", (0, 3), np.zeros((0, 1)), 1),
    subsequences("empty-elsewhere", (2, 3, 0), [[[1]], [[2]]], 1),
    sequence("time-major", (4, 3), [4, 0, 2]),
    sequence("time-major-features", (5, 3, 2), [5, 1, 3]),
    sequence("batch-major", (3, 4), [1, 2, 4], **BATCH_MAJOR),
    sequence("batch-major-features", (2, 5, 3), [4, 5], **BATCH_MAJOR),
    sequence("inference", (3, 4), [4, 9, -1], **BATCH_MAJOR, training=False),
    sequence("rank-5", (2, 4, 2, 1, 3), [3, 4], **BATCH_MAJOR),
    sequence("empty-batch", (4, 0), []),
    sequence("empty-time", (0, 2), [0, 3]),
]

SLICES = [
    window("slice", "rank-1", (9,), offsets=[2], sizes=[3], strides=[3]),
    window("slice", "no-strides", (4, 4), offsets=[1, 2], sizes=[3, 2]),
    window("slice", "strided", (4, 4), offsets=[1, 0], sizes=[2, 2], strides=[2, 3]),
    window("slice", "whole", (2, 3), offsets=[0, 0], sizes=[2, 3]),
    window("slice", "one-element", (2, 3), offsets=[1, 2], sizes=[1, 1]),
    window("slice", "empty", (2, 3), offsets=[0, 3], sizes=[2, 0], strides=[1, 2]),
    window("slice", "of-empty", (0, 3), offsets=[0, 1], sizes=[0, 2]),
    window("slice", "rank-0", (), offsets=[], sizes=[]),
    window("slice1", "rank-1", (9,), **windows([1], [8], [3])),
    window("slice1", "backwards", (4, 4), **windows([0, 1], [4, 3], [-2, 2])),
    window("slice1", "inexact-window", (9, 8), **windows([1, 0], [6, 7], [-4, 5])),
    window("slice1", "all", (3, 4), **windows([0, 0], [3, 4], [1, 1])),
    window("slice1", "flip", (3, 4), **windows([0, 0], [3, 4], [-1, -1])),
    window("slice1", "stride-beyond", (3, 4), **windows([0, 0], [3, 4], [9, -9])),
    window(
        "slice1",
        "smaller-output",
        (6, 9),
        **windows([0, 1], [6, 8], [-2, 3], output_sizes=[2, 2]),
    ),
    window(
        "slice1",
        "empty-output",
        (6, 9),
        **windows([0, 1], [6, 8], [-2, 3], output_sizes=[0, 3]),
    ),
    window("slice1", "empty-window", (3, 4), **windows([3, 0], [0, 4], [-1, 2])),
    window(
        "slice_grad",
        "forwards",
        (2, 2),
        **windows([0, 0], [4, 4], [2, 2], output_gradient_sizes=[4, 4]),
    ),
    window(
        "slice_grad",
        "backwards",
        (2, 3),
        **windows([1, 0], [4, 8], [-2, -3], output_gradient_sizes=[6, 9]),
    ),
    window(
        "slice_grad",
        "smaller-input",
        (1, 2),
        **windows([0, 1], [6, 8], [-2, 3], output_gradient_sizes=[6, 9]),
    ),
    window(
        "slice_grad",
        "empty-input",
        (0, 2),
        **windows([1, 0], [2, 3], [-1, 2], output_gradient_sizes=[3, 3]),
    ),
    window(
        "slice_grad",
        "empty-output",
        (0,),
        **windows([0], [0], [1], output_gradient_sizes=[0]),
    ),
]

FILLS = [
    fill("rank-1", [3], 3, 2),
    fill("rank-4", [2, 1, 3, 4], 10, -2),
    fill("fraction", [1000], 3.2, 0.1),
    fill("cancelling", [101], -5, 0.1),
    fill("still", [2, 3], 1.5, 0),
    fill("rank-0", [], 1.25, 7),
    fill("empty", [2, 0], 1, 1),
    Case(
        "fill_value_constant",
        "rank-3",
        {"value": np.float32(1.5)},
        {"sizes": [2, 1, 3], "value_data_type": np.dtype(np.float32)},
    ),
]

# The published vectors of all operators, and their arrays.
PUBLISHED: list[dict[str, Any]] = json.loads(
    pathlib.Path(__file__).with_name("operators.json").read_text()
)


def array_of(published: dict[str, Any]) -> np.ndarray:
    return np.array(published["data"], published["dtype"]).reshape(published["shape"])


CASES = [*REVERSALS, *SLICES, *FILLS]
MOVES = [*REVERSALS, *SLICES]

# One of each operator and of each mode.
_NAMES = {
    "features", "length-per-line", "batch-major-features", "inference", "strided",
    "inexact-window", "smaller-input", "cancelling", "rank-3",
}  # fmt: skip
EXAMPLES = [case for case in CASES if case.name in _NAMES]


def sampled(cases: list[Case]) -> list[Any]:
    """The cases as parameters, of which all but EXAMPLES are exhaustive."""
    return default_of(cases, *EXAMPLES)


# 64-bit mode off, and on in exhaustive runs: parameters for the fixture `x64`.
sampled_x64 = pytest.mark.parametrize(
    "x64",
    default_of([False, True], False),
    ids=["x32", "x64"],
    indirect=True,
)
