"""The kernel for runs of elements: what a thread does, by NumPy and on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits

from dml_jax import reference, reverse_subsequences, slice1, slice_grad
from dml_jax._reverse import gpu, xla
from dml_jax._shared import jax_versions
from dml_jax._shared import packed_copy_kernel as kernel
from dml_jax._slice import primitive as primitives
from dml_jax._slice.api import _window_of_slice1


class Positions(np.ndarray):
    """Integers that are divided as by a GPU: without a sign."""

    def __floordiv__(self, other):
        return (self.view(np.ndarray) % 2**32 // other).view(Positions)

    def __mod__(self, other):
        return (self.view(np.ndarray) % 2**32 % other).view(Positions)


class Machine:
    """All threads at once: words are arrays of uint64, positions of int64."""

    def __init__(self, x, lengths):
        self.itemsize = x.itemsize
        self.elements = 16 // x.itemsize
        self.last = (x.nbytes - 1) // 16
        self.zero = np.uint64(0)
        memory = np.full(16 * (self.last + 1), 0xEE, np.uint8)
        memory[: x.nbytes] = x.reshape(-1).view(np.uint8)
        self.vectors = memory.view("<u4").reshape(-1, 4).astype(np.uint64)
        self.lengths = None if lengths is None else np.asarray(lengths, np.int64)

    def length(self, row):
        return self.lengths[row]

    def load(self, vector):
        assert np.all((vector >= 0) & (vector <= self.last))
        return list(self.vectors[vector].T)

    least = staticmethod(np.minimum)
    most = staticmethod(np.maximum)
    select = staticmethod(np.where)

    @staticmethod
    def where(condition, words, otherwise):
        both = zip(words(), otherwise, strict=True)
        return [np.where(condition, *word) for word in both]

    @staticmethod
    def funnel(low, high, bits):
        both = high << np.uint64(32) | low
        return both >> np.asarray(bits).astype(np.uint64) & np.uint64(0xFFFFFFFF)

    @staticmethod
    def permute(low, high, digits):
        both, word = high << np.uint64(32) | low, np.uint64(0)
        for i, digit in enumerate(digits):
            byte = both >> np.uint64(8 * digit) & np.uint64(255)
            word = word | byte << np.uint64(8 * i)
        return word

    @staticmethod
    def blend(before, after, count):
        kept = (np.uint64(1) << np.uint64(8) * count.astype(np.uint64)) - np.uint64(1)
        return before & kept | after & ~kept


@pytest.fixture(params=["numpy", "gpu"])
def compiled(request, monkeypatch):
    """`jax.jit`, or what makes a function of the kernel one of NumPy."""
    if request.param == "gpu":
        if not jax_versions.runs_mosaic():
            pytest.skip("takes Hopper GPUs, and a jax that lowers kernels for them")
        return jax.jit

    def launch(line, run, shape, chunks, x, lengths=None):
        assert chunks * 16 * 128 <= 2**31 - kernel._MOST_BYTES
        size, x = int(np.prod(shape)), np.asarray(x)
        machine = Machine(x, lengths)
        position = np.arange(0, size, machine.elements).view(Positions)
        words = kernel._chunk(machine, line, run, position)
        y = np.stack([np.broadcast_to(word, position.shape) for word in words], -1)
        y = y.astype("<u4").reshape(-1).view(x.dtype)
        return y[:size].reshape(shape)

    monkeypatch.setattr(kernel, "_launch", launch)
    return lambda function: function


def elements(shape, dtype):
    size = np.dtype(dtype).itemsize
    values = np.random.default_rng(0).integers(0, 256, (*shape, size), np.uint8)
    return values.view(dtype)[..., 0]


ROWS = [(5, 16), (5, 17), (3, 33), (40, 31), (2, 255), (1, 64), (7, 48), (300, 1003)]
STEPS = [(5, 16, 3), (7, 11, 5), (40, 3, 6), (9, 5, 7), (6, 4, 4), (300, 333, 3)]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
@pytest.mark.parametrize("shape", [(*rows, 1) for rows in ROWS] + STEPS, ids=str)
def test_rows(shape, dtype, compiled):
    x, random = elements(shape, dtype), np.random.default_rng(1)
    for lengths in (
        random.integers(0, shape[1] + 1, (shape[0], 1, 1)),
        np.zeros((shape[0], 1, 1), int),
        np.full((shape[0], 1, 1), shape[1]),
    ):
        y = compiled(kernel.reverse_rows)(x, lengths[:, 0, 0].astype(np.int32))
        if shape[2] * x.itemsize > 15:
            assert y is None  # XLA moves vectors of such steps
            return
        assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))


# Shape, axis, shape of the lengths, and whether they are rows of which it is made.
LINES = {
    "one-length": ((8, 64), 1, (1, 1), True),
    "more-lengths-than-lines": ((1, 40), 1, (4, 1), True),
    "more-lengths-along-a-dimension": ((1, 3, 20), 2, (5, 1, 1), True),
    "planes": ((2, 3, 20), 2, (2, 1, 1), True),
    "rank-1": ((40,), 0, (1,), True),
    "last-dimension-of-1": ((4, 20, 1), 1, (4, 1, 1), True),
    "features": ((4, 20, 4), 1, (4, 1, 1), True),
    "two-dimensions-of-features": ((4, 300, 2, 3), 1, (4, 1, 1, 1), True),
    "many-features": ((4, 20, 16), 1, (4, 1, 1), False),
    "no-features": ((4, 20, 0), 1, (4, 1, 1), False),
    "rows-of-255": ((3, 255), 1, (3, 1), True),
    "rows-of-256": ((3, 256), 1, (3, 1), True),
    "columns": ((20, 64), 0, (1, 64), False),
    "features-by-the-lengths": ((4, 20, 1), 1, (4, 1, 3), False),
}


@pytest.mark.parametrize("name", LINES)
def test_lines(name, compiled, monkeypatch):
    monkeypatch.setattr(gpu, "_WORTHWHILE", 0)
    shape, axis, lengths_shape, is_made_for = LINES[name]
    x, random = jnp.asarray(elements(shape, "uint8")), np.random.default_rng(1)
    lengths = random.integers(0, shape[axis] + 1, lengths_shape).astype(np.int32)
    lengths.flat[0] = shape[axis]
    lengths = jnp.asarray(lengths)
    y = compiled(functools.partial(gpu.packed_copy, axis=axis))(x, lengths)
    assert (y is not None) == is_made_for
    if is_made_for:
        full = xla.broadcast_shape(shape, lengths.shape, axis)
        expected = reference.reverse_subsequences(
            np.broadcast_to(x, full), np.asarray(lengths), axis
        )
        assert_same_bits(y, expected)


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


def lattice_of(window):
    return _window_of_slice1("slice1", *window, None)


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
@pytest.mark.parametrize("name", WINDOWS)
def test_slices(name, dtype, compiled):
    shape, *window = WINDOWS[name]
    x, lattice = elements(shape, dtype), lattice_of(WINDOWS[name])
    y = compiled(functools.partial(kernel.take_runs, lattice=lattice))(x)
    if name == "eight-bytes" and dtype == "int16":
        assert y is None  # sixteen of them
        return
    assert_same_bits(y, reference.slice1(x, *window))


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients_of_slices(name, dtype, compiled):
    shape, *window = WINDOWS[name]
    lattice = lattice_of(WINDOWS[name])
    x = elements(lattice.sizes, dtype)
    y = compiled(functools.partial(kernel.put_runs, shape=shape, lattice=lattice))(x)
    if name == "eight-bytes" and dtype == "int16":
        assert y is None  # sixteen of them
        return
    assert_same_bits(y, reference.slice_grad(x, shape, *window))


# Who gets the kernel ------------------------------------------------------------------


def reverse(x):
    lengths = np.full((x.shape[0], 1), 3)
    return reverse_subsequences(x, lengths, 1, implementation="standalone")


def cut_window(x, step=-1):
    return x.shape, (0, 1), (x.shape[0], x.shape[1] - 1), (1, step)


def put_window(x):
    return (x.shape[0], x.shape[1] + 9), (0, 1), x.shape, (1, 1)


def cut(x):
    """What a call of `slice1` makes of an array, of which a trace is another."""
    return primitives.strided_slice(x, lattice_of(cut_window(x)), standalone=True)


def cut_far_apart(x):
    return primitives.strided_slice(x, lattice_of(cut_window(x, 9)), standalone=True)


def put(x):
    shape, *_ = window = put_window(x)
    return primitives.strided_slice_transpose(
        x, shape, lattice_of(window), standalone=True
    )


MANY = 2**12
CHOSEN = {
    "rows": (reverse, (MANY, 1025), "float16", True),
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
    "even-slice": (cut, (MANY, 2**14 + 1), "uint8", True),
    "even-slice-in-the-cache": (cut, (MANY, 1025), "uint8", False),
    "small-slice": (cut, (3, 1025), "uint8", False),
    "slice-grad": (put, (MANY, 1025), "float8_e4m3fn", True),
    "slice-grad-of-words": (put, (MANY, 1025), "float32", False),
    "small-slice-grad": (put, (3, 1025), "uint8", False),
}


def text_for_cuda(function, x):
    with jax.checking_leaks():
        traced = jax.jit(function).trace(x)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.fixture
def _a_gpu_for_it(monkeypatch):
    monkeypatch.setattr(
        jax_versions, "runs_mosaic", lambda: jax_versions._SPEAKS_MOSAIC
    )


@pytest.mark.usefixtures("_a_gpu_for_it")
@pytest.mark.parametrize("name", CHOSEN)
def test_who_gets_the_kernel(name):
    function, shape, dtype, is_chosen = CHOSEN[name]
    text = text_for_cuda(function, jax.ShapeDtypeStruct(shape, dtype))
    assert ("mosaic_gpu" in text) == (is_chosen and jax_versions._SPEAKS_MOSAIC)


@pytest.mark.usefixtures("_a_gpu_for_it")
def test_slices_inside_of_programs_fuse():
    x = jax.ShapeDtypeStruct((MANY + 1, 1025), np.uint8)
    _, *window = cut_window(x)
    text = text_for_cuda(lambda x: slice1(x, *window), x)
    assert "mosaic_gpu" not in text
    text = text_for_cuda(lambda x: slice_grad(x, *put_window(x)), x)
    assert "mosaic_gpu" not in text


@pytest.mark.parametrize("function", [reverse, cut, put])
def test_other_gpus_get_what_xla_makes(function, monkeypatch):
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: False)
    x = jax.ShapeDtypeStruct((MANY, 1025), np.uint8)
    assert "mosaic_gpu" not in text_for_cuda(function, x)


def test_calls():
    x = elements((MANY + 1, 1025), "uint8")
    lengths = np.full((MANY + 1, 1), 3)
    expected = reference.reverse_subsequences(x, lengths, 1)
    assert_same_bits(reverse_subsequences(x, lengths, 1), expected)
    y = slice1(x, *cut_window(x)[1:])
    assert_same_bits(y, x[:, :0:-1])
    assert_same_bits(slice_grad(y, *put_window(y)), np.pad(y, [(0, 0), (1, 8)]))
