"""The packed copy kernel: its results, in NumPy and on a GPU, and who gets it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from chunks import (
    WAYS,
    Compile,
    Machine,
    compiler,
    elements_of,
    end_of_last_block,
)
from formulations import data, text_for_cuda

from dml_jax import reference, reverse_subsequences, slice1, slice_grad
from dml_jax._reverse import gpu, xla
from dml_jax._shared import chunk_kernel, jax_versions
from dml_jax._shared import packed_copy_kernel as kernel
from dml_jax._slice import primitive as primitives
from dml_jax._slice.api import _window_of_slice1


@pytest.fixture(params=WAYS)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    return compiler(request.param, monkeypatch)


ROWS = [(5, 16), (5, 17), (3, 33), (40, 31), (2, 255), (1, 64), (7, 48), (300, 1003)]
STEPS = [(5, 16, 3), (7, 11, 5), (40, 3, 6), (9, 5, 7), (6, 4, 4), (300, 333, 3)]
# Of 16 bytes and more, which are moved as they are.
LONG_STEPS = [(5, 7, 16), (6, 3, 39), (4, 9, 33), (3, 5, 64), (60, 37, 257)]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(s, marks=pytest.mark.exhaustive if s[0] == 60 else (), id=str(s))
        for s in [(*rows, 1) for rows in ROWS] + STEPS + LONG_STEPS
    ],
)
def test_rows(shape: tuple[int, ...], dtype: str, compiled: Compile):
    x, random = data(shape, dtype), np.random.default_rng(1)
    for lengths in (
        random.integers(0, shape[1] + 1, (shape[0], 1, 1)),
        np.zeros((shape[0], 1, 1), int),
        np.full((shape[0], 1, 1), shape[1]),
    ):
        x, lengths = x.reshape(*shape[:2], 1, shape[2]), lengths[..., None]
        y = compiled(kernel.reverse)(x, lengths.reshape(-1).astype(np.int32))
        assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
@pytest.mark.parametrize(
    "shape", [(1, 7, 5, 16), (3, 5, 2, 33), (1, 9, 4, 19), (2, 3, 1, 64)], ids=str
)
def test_interleaved_lines(shape: tuple[int, ...], dtype: str, compiled: Compile):
    x, random = data(shape, dtype), np.random.default_rng(1)
    lengths = random.integers(0, shape[1] + 1, (shape[0], 1, shape[2], 1))
    y = compiled(kernel.reverse)(x, lengths.reshape(-1).astype(np.uint8))
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))


# Shape, axis, shape of the lengths, and whether the kernel is made for these lines.
LINES = {
    "one-length": ((8, 64), 1, (1, 1), True),
    "more-lengths-than-lines": ((1, 40), 1, (4, 1), True),
    "more-lengths-along-a-dimension": ((1, 3, 20), 2, (5, 1, 1), True),
    "planes": ((2, 3, 20), 2, (2, 1, 1), True),
    "rank-1": ((40,), 0, (1,), True),
    "last-dimension-of-1": ((4, 20, 1), 1, (4, 1, 1), True),
    "features": ((4, 20, 4), 1, (4, 1, 1), True),
    "two-dimensions-of-features": ((4, 300, 2, 3), 1, (4, 1, 1, 1), True),
    "many-features": ((4, 20, 16), 1, (4, 1, 1), True),
    "time-major": ((20, 5, 64), 0, (1, 5, 1), True),
    "time-major-planes": ((2, 20, 5, 3, 70), 1, (2, 1, 5, 3, 1), True),
    "time-major-of-few-features": ((20, 5, 3), 0, (1, 5, 1), False),
    "no-features": ((4, 20, 0), 1, (4, 1, 1), False),
    "rows-of-255": ((3, 255), 1, (3, 1), True),
    "rows-of-256": ((3, 256), 1, (3, 1), True),
    "columns": ((20, 64), 0, (1, 64), False),
    "features-by-the-lengths": ((4, 20, 1), 1, (4, 1, 3), False),
}


@pytest.mark.parametrize("name", LINES)
def test_lines(name: str, compiled: Compile, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "_MIN_BYTES", 0)
    shape, axis, lengths_shape, is_made_for = LINES[name]
    x, random = data(shape, "uint8"), np.random.default_rng(1)
    lengths = random.integers(0, shape[axis] + 1, lengths_shape).astype(np.int32)
    lengths.flat[0] = shape[axis]
    copy = compiled(functools.partial(gpu.copied_chunks, axis=axis))
    y = copy(jnp.asarray(x), jnp.asarray(lengths))
    assert (y is not None) == is_made_for
    if is_made_for:
        full = np.broadcast_to(x, xla.broadcast_shape(shape, lengths.shape, axis))
        assert_same_bits(y, reference.reverse_subsequences(full, lengths, axis))


# Shape, offsets, windows, strides.
WINDOWS = {
    "odd": ((33, 45), (5, 7), (27, 37), (1, 1)),
    "strided": ((9, 70), (1, 3), (8, 66), (2, 2)),
    "three": ((9, 170), (1, 3), (8, 160), (2, 3)),
    "four": ((9, 171), (1, 3), (8, 161), (3, 4)),
    "backwards": ((9, 70), (1, 3), (8, 66), (-2, -1)),
    "backwards-strided": ((9, 170), (1, 3), (8, 160), (-3, -3)),
    "crop": ((5, 16, 12, 3), (1, 2, 3, 0), (3, 8, 8, 3), (2, 1, 1, 1)),
    "crop-half": ((5, 16, 40, 17), (1, 2, 3, 0), (3, 8, 30, 17), (1, 2, -2, 1)),
    "rank-1": ((133,), (5,), (127,), (1,)),
    "rank-1-backwards": ((133,), (5,), (127,), (-2,)),
    "whole": ((4, 18), (0, 0), (4, 18), (1, 1)),
    "one-row": ((4, 18), (2, 1), (1, 17), (-1, -1)),
    "eight-bytes": ((9, 400), (1, 3), (8, 390), (2, -8)),
    "many-blocks": ((500, 1003), (5, 7), (490, 990), (-2, -3)),
}


def window_of(arguments: Any) -> Any:
    return _window_of_slice1("slice1", *arguments, sizes=None)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32"])
@pytest.mark.parametrize("name", WINDOWS)
def test_slices(name: str, dtype: str, compiled: Compile):
    shape, *arguments = WINDOWS[name]
    x, window = data(shape, dtype), window_of(WINDOWS[name])
    y = compiled(functools.partial(kernel.strided_slice, window=window))(x)
    gradient = data(window.sizes, dtype)
    pad = functools.partial(kernel.strided_slice_transpose, shape=shape, window=window)
    padded = compiled(pad)(gradient)
    *_, stride = arguments[-1]
    is_dense = abs(stride) * x.itemsize <= 8
    assert (y is not None) == is_dense
    assert (padded is not None) == (is_dense and x.itemsize <= 2)
    if y is not None:
        assert_same_bits(y, reference.slice1(x, *arguments))
    if padded is not None:
        assert_same_bits(padded, reference.slice_grad(gradient, shape, *arguments))


# Rows, steps, lines and elements of a step, of 2^31 - 2^16 bytes or a little less.
LARGEST = {
    "one-row": (1, 2**31 - 2**16, 1, 1),
    "odd-rows": (3, (2**31 - 2**16) // 3, 1, 1),
    "short-steps": (7, (2**31 - 2**16) // 77, 1, 11),
    "long-steps": (5, 2**22, 3, 34),
}


@pytest.mark.parametrize("itemsize", [1, 4])
@pytest.mark.parametrize("name", LARGEST)
def test_positions_in_the_largest_arrays(
    name: str, itemsize: int, monkeypatch: pytest.MonkeyPatch
):
    """Sums and products of positions fit 32 bits, also in the last block."""
    rows, time, count, step = LARGEST[name]
    shape, random = (rows, time // itemsize, count, step), np.random.default_rng(2)
    lengths = random.integers(0, shape[1] + 1, rows * count)
    lengths[::2] = shape[1]
    size, dtype = int(np.prod(shape)), np.dtype(f"uint{8 * itemsize}")
    assert 0.95 * chunk_kernel.MAX_BYTES < size * itemsize <= chunk_kernel.MAX_BYTES

    def byte_at(offset: Any) -> np.ndarray:
        return (offset.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> 56

    def vectors(index: Any) -> np.ndarray:
        offsets = index.reshape(-1, 1) * 16 + np.arange(16)
        return byte_at(offsets).astype(np.uint8).view("<u4")

    def launch(chunk: Any, *_: Any, chunks: int, **__: Any) -> None:
        machine = Machine(itemsize, size * itemsize, vectors, lengths)
        end = end_of_last_block(size, itemsize, chunks)
        last = end // machine.per_chunk - 1
        ends_of_rows = np.arange(1, rows) * (size // rows) // machine.per_chunk
        numbers = [random.integers(0, last, 3000), last - np.arange(999), ends_of_rows]
        numbers = np.concatenate(numbers)
        positions = numbers * machine.per_chunk
        actual = elements_of(chunk, machine, positions)
        position = (positions[:, None] + np.arange(machine.per_chunk)).reshape(-1)
        is_element = position < size
        row, k, line, c = np.unravel_index(position[is_element], shape)
        length = lengths[row * count + line]
        k = np.where(k < length, length - 1 - k, k)
        source = np.ravel_multi_index((row, k, line, c), shape)
        expected = byte_at(source[:, None] * itemsize + np.arange(itemsize))
        np.testing.assert_array_equal(actual[is_element], expected)

    monkeypatch.setattr(chunk_kernel, "launch", launch)
    kernel.reverse(jax.ShapeDtypeStruct(shape, dtype), lengths)


# Which programs get it ----------------------------------------------------------------


def reverse(x: Any) -> jax.Array:
    lengths = np.full((x.shape[0], 1), 3)
    return reverse_subsequences(x, lengths, 1, implementation="standalone")


def reverse_in_a_program(x: Any) -> jax.Array:
    lengths = np.full((x.shape[0], 1), 3)
    return reverse_subsequences(x, lengths, 1)


def cut_window(x: Any, step: int = -1) -> tuple[Any, ...]:
    return x.shape, (0, 1), (x.shape[0], x.shape[1] - 1), (1, step)


def pad_window(x: Any) -> tuple[Any, ...]:
    return (x.shape[0], x.shape[1] + 9), (0, 1), x.shape, (1, 1)


def cut(x: Any, step: int = -1) -> jax.Array:
    """What a call of `slice1` makes of an array, of which a trace is another."""
    window = window_of(cut_window(x, step))
    return primitives.strided_slice(x, window, standalone=True)


def cut_far_apart(x: Any) -> jax.Array:
    return cut(x, 9)


def cut_every_other(x: Any) -> jax.Array:
    return cut(x, 2)


def pad(x: Any) -> jax.Array:
    shape, *_ = arguments = pad_window(x)
    window = window_of(arguments)
    return primitives.strided_slice_transpose(x, shape, window, standalone=True)


MANY = 2**12
CHOSEN = {
    "rows": (reverse, (MANY, 1025), "float16", True),
    "bytes-in-a-program": (reverse_in_a_program, (2**16, 1024), "uint8", False),
    "odd-in-a-program": (reverse_in_a_program, (2**16 + 1, 1025), "float32", False),
    "rows-of-255": (reverse, (2**15, 255), "uint8", True),
    "rows-of-words": (reverse, (MANY, 1025), "float32", True),
    "rows-of-two-words": (reverse, (MANY, 1025), "complex64", False),
    "rows-of-booleans": (reverse, (MANY, 1025), "bool", False),
    "short-rows": (reverse, (2**18, 15), "uint8", False),
    "few-rows": (reverse, (3, 1025), "uint8", False),
    "slice": (cut, (MANY + 1, 1025), "bfloat16", True),
    "slice-of-what-is-far-apart": (cut_far_apart, (MANY + 1, 1025), "uint8", False),
    "slice-of-2-gigabytes": (cut, (2**16 + 1, 2**15), "uint8", False),
    "slice-of-words": (cut, (MANY + 1, 1025), "int32", False),
    "odd-slice-of-words": (cut, (MANY + 1, 1024), "float32", True),
    "strided-slice-of-words": (cut_every_other, (MANY, 2050), "float32", False),
    "slice-of-doubles": (cut, (MANY, 1024), "complex64", False),
    "even-slice": (cut, (MANY, 2**14 + 1), "uint8", True),
    "even-slice-in-the-cache": (cut, (MANY, 1025), "uint8", False),
    "small-slice": (cut, (3, 1025), "uint8", False),
    "slice-grad": (pad, (MANY, 1025), "float8_e4m3fn", True),
    "slice-grad-of-words": (pad, (MANY, 1025), "float32", False),
    "small-slice-grad": (pad, (3, 1025), "uint8", False),
}


@pytest.mark.parametrize("are_hoppers", [True, False])
@pytest.mark.parametrize("name", CHOSEN)
def test_who_gets_the_kernel(name: str, are_hoppers: bool):
    function, shape, dtype, is_chosen = CHOSEN[name]
    x = jax.ShapeDtypeStruct(shape, dtype)
    text = text_for_cuda(function, x, are_hoppers=are_hoppers)
    is_chosen = is_chosen and are_hoppers and jax_versions._SUPPORTS_MOSAIC
    assert ("mosaic_gpu" in text) == is_chosen


def test_slices_inside_of_programs_fuse():
    x = jax.ShapeDtypeStruct((MANY + 1, 1025), np.uint8)
    _, *window = cut_window(x)
    for function in (
        lambda x: slice1(x, *window),
        lambda x: slice_grad(x, *pad_window(x)),
    ):
        assert "mosaic_gpu" not in text_for_cuda(function, x)


def test_calls():
    x = data((MANY + 1, 1025), "uint8")
    lengths = np.full((MANY + 1, 1), 3)
    expected = reference.reverse_subsequences(x, lengths, 1)
    assert_same_bits(reverse_subsequences(x, lengths, 1), expected)
    y = slice1(x, *cut_window(x)[1:])
    assert_same_bits(y, x[:, :0:-1])
    assert_same_bits(slice_grad(y, *pad_window(y)), np.pad(y, [(0, 0), (1, 8)]))
