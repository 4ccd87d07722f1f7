"""The kernel for columns: its results, in NumPy and on a GPU, and who gets it."""

import functools
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from formulations import lines, on_a_hopper, require_reversed, text_for_cuda
from sampling import default_of

from dml_jax import reference, reverse_subsequences
from dml_jax._reverse import primitive, strip_kernel
from dml_jax._reverse.strip_kernel import Layout, layout_for, reverse_strip
from dml_jax._shared import jax_versions


class NumpyBuilder:
    """All threads of all blocks at once: integers are arrays [blocks, threads]."""

    def __init__(self, x: np.ndarray, lengths: np.ndarray, layout: Layout):
        self.itemsize, self.layout = x.itemsize, layout
        blocks = len(x) * layout.strips
        self.block, self.thread = np.indices((blocks, layout.threads))
        self.x = x.reshape(-1).view(f"u{x.itemsize}")
        self.y, self.is_stored = np.zeros_like(self.x), np.zeros(x.size, bool)
        self.lengths = lengths.reshape(-1).astype(np.int64)
        size = x.shape[1] * layout.pitch
        self.shared = np.full((blocks, size), 0xEE, self.x.dtype)
        self.is_active = np.ones_like(self.block, bool)
        self.copies: list[Callable[[], None]] = []

    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    select = staticmethod(np.where)

    def offset(self, begin: Any, count: Any, stride: int) -> Any:
        return begin + count * stride

    def load_length(self, index: Any) -> Any:
        return self.lengths[index]

    def load_word(self, at: Any, count: int) -> Any:
        first = np.where(self.is_active, at, 0) // count * count
        assert np.all((first >= 0) & (first < self.x.size))
        # A word may end beyond the array.
        return np.pad(self.x, (0, count))[first[..., None] + np.arange(count)]

    def join_words(self, low: Any, high: Any, at: Any) -> Any:
        both = np.concatenate([low, high], axis=-1)
        count = low.shape[-1]
        first = at % count
        return np.take_along_axis(both, first[..., None] + np.arange(count), axis=-1)

    def store(self, at: Any, word: Sequence[Any], are_stored: Any) -> None:
        layout, count = self.layout, len(word)
        assert count == layout.word
        assert np.all(at[self.is_active] % count == 0)
        begins_row = self.is_active & (self.thread % (layout.width // count) == 0)
        assert np.all(at[begins_row] % layout.granule == 0)
        for i, element in enumerate(word):
            mask = self.is_active
            if are_stored is not None:
                mask = mask & are_stored[i]
            offsets = (at + i)[mask]
            assert np.all((offsets >= 0) & (offsets < self.y.size))
            is_same = self.y[offsets] == element[mask]
            assert np.all(is_same | ~self.is_stored[offsets])
            self.y[offsets], self.is_stored[offsets] = element[mask], True

    def shared_address(self, offset: Any) -> Any:
        return offset * self.itemsize

    def copy_to_shared(self, address: Any, at: Any, count: int) -> None:
        assert count * self.itemsize in (4, 8, 16)
        assert np.all(at[self.is_active] % count == 0)
        word, is_active = self.load_word(at, count), self.is_active

        def copy() -> None:
            self.is_active = is_active
            self.store_shared(address, word, count)

        self.copies.append(copy)

    def store_shared(self, address: Any, word: Any, count: int) -> None:
        offset = address // self.itemsize
        assert np.all(offset[self.is_active] % count == 0)
        for i in range(count):
            at = self.block[self.is_active], (offset + i)[self.is_active]
            self.shared[at] = word[..., i][self.is_active]

    def load_shared(self, address: Any, index: int) -> Any:
        offset = address // self.itemsize + index
        is_inside = (offset >= 0) & (offset < self.shared.shape[1])
        assert np.all(is_inside | ~self.is_active)
        return self.shared[self.block, np.where(is_inside, offset, 0)]

    def wait(self) -> None:
        for copy in self.copies:
            copy()

    def for_rows(self, first: Any, end: Any, step: int, unroll: int, move: Any) -> None:
        while np.any(first < end):
            self.is_active = first < end
            rows = [first + step * k for k in range(unroll)]
            move([np.where(k < end, k, first) for k in rows])
            first = first + step * unroll
        self.is_active = np.ones_like(self.block, bool)


def reverse_in_numpy(x: Any, lengths: Any, step: int, layout: Layout) -> np.ndarray:
    x = np.asarray(x)
    builder = NumpyBuilder(x, np.asarray(lengths), layout)
    reverse_strip(builder, shape=x.shape, step=step, layout=layout)
    assert np.all(builder.is_stored)
    return builder.y.view(x.dtype).reshape(x.shape)


@pytest.fixture(params=["numpy", pytest.param("gpu", marks=on_a_hopper)])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """`jax.jit`, or what makes a function of the kernel one of NumPy."""
    if request.param == "gpu":
        return jax.jit
    monkeypatch.setattr(strip_kernel, "_launch", reverse_in_numpy)
    return lambda function: function


# Shape, axis, and the shape of the lengths: what random shapes do not have.
LINES = {
    "columns-of-planes": ((2, 3, 7, 64), 2, (2, 3, 1, 64)),
    "shared-lengths": ((5, 7, 64), 1, (1, 1, 64)),
    "one-length-for-all-tables": ((5, 7, 3), 1, (1, 1, 3)),
    "more-lengths-than-tables": ((1, 7, 5), 1, (4, 1, 5)),
    "three-features": ((300, 64, 3), 0, (1, 64, 1)),
    "odd-features": ((31, 5, 3), 0, (1, 5, 1)),
    "tables-of-wide-rows": ((2, 57, 509), 1, (2, 1, 509)),
    "strips-of-tables": ((2, 701, 150), 1, (2, 1, 150)),
    "wide": ((40, 1031), 0, (1, 1031)),
    "wide-and-even": ((40, 1030), 0, (1, 1030)),
    "wide-rows-of-one-block": ((500, 1031), 0, (1, 1031)),
    "whole-sectors": ((901, 512), 0, (1, 512)),
    "whole-chunks": ((901, 508), 0, (1, 508)),
    "half-sectors-of-bytes": ((901, 464), 0, (1, 464)),
    "long": ((2001, 261), 0, (1, 261)),
    "longer": ((2401, 261), 0, (1, 261)),
    "one-strip-of-wide-rows": ((50, 131), 0, (1, 131)),
    "two-strips": ((2, 3001, 27), 1, (2, 1, 27)),
    "half-sectors": ((4001, 130), 0, (1, 130)),
    "quarters-of-sectors": ((5001, 131), 0, (1, 131)),
    "chunks-of-quarters": ((5001, 132), 0, (1, 132)),
    "words-of-four-rows": ((2, 1025, 1), 1, (2, 1, 1)),
    "words-of-two-rows": ((2, 1025, 2), 1, (2, 1, 2)),
    "words-within-two-rows": ((2, 1025, 3), 1, (2, 1, 3)),
}


REVERSE = primitive._Formulation(strip_kernel.reverse).apply


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    ("name", "dtype"),
    default_of(
        itertools.product(LINES, ["uint8", "int16", "float32", "int64", "float64"]),
        *itertools.product(LINES, ["uint8"]),
        *itertools.product([*LINES][::3], ["float32"]),
    ),
)
def test_results(name: str, dtype: str, compiled: Callable[..., Any]):
    require_reversed(REVERSE, *lines(*LINES[name], dtype), compiled)


@pytest.mark.parametrize("seed", default_of(range(8), 0))
def test_random_shapes(seed: int, compiled: Callable[..., Any]):
    random = np.random.default_rng(seed)
    for _ in range(6):
        batch = int(random.choice([1, 2, 3, 70]))
        most = 9 if batch < 70 else 3  # bits of a size
        time, columns = (2 ** random.uniform(0, most, 2)).astype(int)
        lengths = random.integers(0, time + 1, (batch, 1, columns)).astype(np.int32)
        dtype = str(random.choice(["uint8", "uint16", "float32"]))
        x = random.integers(0, 2**8, (batch, time, columns)).astype(dtype)
        require_reversed(REVERSE, x, lengths, 1, compiled)


# The itemsize, the time and the columns; and in bytes the granules that strips store,
# their rows, and what a thread copies at once.
LAYOUTS = {
    "bytes-at-any-place": ((1, 200, 65537), dict(granule=4)),
    "bytes-at-eight-places": ((1, 200, 65540), dict(granule=32)),
    "long-bytes": ((1, 1500, 65537), dict(granule=32)),
    "16-bit-at-any-place": ((2, 200, 65537), dict(granule=4)),
    "long-16-bit": ((2, 1000, 65537), dict(granule=32)),
    "32-bit": ((4, 200, 65537), dict(granule=32)),
    "64-bit": ((8, 200, 65537), dict(granule=32)),
    "rows-of-48-bytes": ((4, 4096, 65537), dict(granule=16)),
    "rows-of-40-bytes": ((1, 4900, 65537), dict(granule=8)),
    "rows-of-32-bytes": ((2, 6000, 65537), dict(granule=4)),
    "two-strips": ((4, 200, 127), dict(granule=4)),
    "several-strips": ((4, 376, 65537), dict(pitch=256)),
    "one-strip": ((2, 200, 240), dict(pitch=512)),
    "one-strip-that-does-not-fit": ((2, 400, 240), dict(pitch=256)),
    "narrow-rows": ((4, 2049, 65537), dict(pitch=64)),
    "narrow-tables": ((2, 100, 50), dict(pitch=128)),
    "longest": ((1, 6144, 65537), dict(pitch=32)),
    "chunks": ((1, 901, 512), dict(copied=16)),
    "half-chunks": ((1, 901, 520), dict(copied=8)),
    "words": ((2, 50, 602), dict(copied=4)),
    "within-words": ((2, 50, 601), dict(copied=0)),
    "odd-columns-of-32-bit": ((4, 784, 101), dict(copied=4)),
    "odd-columns-of-64-bit": ((8, 100, 101), dict(copied=8)),
    "columns-within-a-word": ((1, 1025, 1), dict(word=4)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_how_strips_are_laid_out(name: str):
    (itemsize, time, columns), expected = LAYOUTS[name]
    layout = layout_for(time, columns, itemsize)
    assert layout is not None
    found = dict(
        granule=layout.granule,
        pitch=layout.pitch,
        word=layout.word,
        copied=strip_kernel._copied_at_once(columns, layout, itemsize),
    )
    assert expected.items() <= {k: n * itemsize for k, n in found.items()}.items()


@on_a_hopper
def test_transformations():
    random, axis = np.random.default_rng(0), 0
    x = random.normal(size=(576, 16384)).astype(np.float32)
    lengths = random.integers(0, 577, (1, 16384))

    reverse = jax.jit(lambda x: reverse_subsequences(x, lengths, axis))
    assert "mosaic_gpu" in reverse.lower(x).as_text()
    expected = reference.reverse_subsequences(x, lengths, axis)
    assert_same_bits(jax.vmap(reverse)(np.stack([x + 1, x]))[1], expected)
    _, tangent = jax.jvp(reverse, (x + 1,), (x,))
    assert_same_bits(tangent, expected)
    _, pullback = jax.vjp(reverse, x)
    assert_same_bits(pullback(expected)[0], x)


# Which programs get it ----------------------------------------------------------------

MANY = 2**17
# Shape, axis, dtype, and whether the kernel reverses it.
CHOSEN = {
    "columns": ((64, MANY), -2, "float32", True),
    "odd-columns": ((300, MANY + 1), -2, "uint8", True),
    "float64": ((64, MANY), -2, "float64", True),
    "large-tables": ((1024, 2**21), -2, "uint8", True),
    "what-the-cache-holds": ((64, 3 * 2**15), -2, "float32", False),
    "more-than-the-cache-holds": ((64, 3 * 2**15 + 1), -2, "float32", True),
    "bytes-that-the-cache-holds": ((64, 3 * 2**17), -2, "uint8", False),
    "more-bytes": ((64, 3 * 2**17 + 1), -2, "uint8", True),
    "tables-that-the-cache-holds": ((9, 1024, 6 * 1024), -2, "float32", False),
    "larger-tables": ((9, 1024, 6 * 1024 + 1), -2, "float32", True),
    "tables-that-the-first-cache-holds": ((2**12, 128, 256), -2, "uint8", False),
    "larger-tables-of-bytes": ((2**12, 128, 257), -2, "uint8", True),
    "larger-tables-of-16-bits": ((2**12, 128, 129), -2, "int16", True),
    "few-columns": ((2**12, 1024, 48), -2, "int16", False),
    "more-columns": ((2**12, 1024, 49), -2, "int16", True),
    "longest": ((6144, 2**13), -2, "float32", True),
    "too-long": ((6145, 2**13), -2, "float32", False),
    "booleans": ((64, 16 * MANY), -2, "bool", False),
    "steps-of-3-bytes": ((99, 2**18, 3), 0, "uint8", True),
    "steps-of-4-bytes": ((99, 2**18, 4), 0, "uint8", False),
    "steps-of-6-bytes": ((99, 2**18, 3), 0, "int16", True),
    "steps-of-2-words": ((99, 2**18, 2), 0, "float32", True),
    "steps-of-3-words": ((99, 2**18, 3), 0, "float32", False),
    "complex": ((64, MANY), -2, "complex64", False),
}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes that the kernel gets, which takes seconds to lower and is left out."""
    shapes: list[Any] = []

    def launch(x: Any, *_: Any) -> Any:
        shapes.append(x.shape)
        return x

    monkeypatch.setattr(strip_kernel, "_launch", launch)
    return shapes


def program_of(name: str) -> tuple[Callable[..., Any], Any, Any]:
    """The program, and the types of its operands: lengths for columns or for steps."""
    shape, axis, dtype, _ = CHOSEN[name]
    of_lengths = [*shape]
    of_lengths[axis] = 1
    if axis == 0:
        of_lengths[-1] = 1
    x = jax.ShapeDtypeStruct(shape, dtype)
    lengths = jax.ShapeDtypeStruct(tuple(of_lengths), np.int32)
    return functools.partial(reverse_subsequences, axis=axis), x, lengths


@pytest.mark.parametrize(
    ("name", "are_hoppers"), [*((name, True) for name in CHOSEN), ("columns", False)]
)
def test_who_gets_the_kernel(name: str, are_hoppers: bool, launched: list[Any]):
    *_, dtype, is_chosen = CHOSEN[name]
    with jax.enable_x64(dtype == "float64"):
        text_for_cuda(*program_of(name), are_hoppers=are_hoppers)
    is_chosen = is_chosen and are_hoppers and jax_versions._SUPPORTS_MOSAIC
    assert bool(launched) == is_chosen


@pytest.mark.skipif(not jax_versions._SUPPORTS_MOSAIC, reason="it has no kernels")
@pytest.mark.parametrize("name", ["columns", "odd-columns"])
def test_the_kernel_is_lowered(name: str):
    assert "mosaic_gpu" in text_for_cuda(*program_of(name))


@pytest.mark.parametrize("capabilities", ["9.0", "9.0 9.0", "8.0", "9.0 8.0"])
def test_which_gpus_take_it(capabilities: str, monkeypatch: pytest.MonkeyPatch):
    devices = [
        types.SimpleNamespace(compute_capability=text) for text in capabilities.split()
    ]
    monkeypatch.setattr(jax, "devices", lambda _: devices)
    are_hoppers = set(capabilities.split()) == {"9.0"}
    assert jax_versions.runs_mosaic() == (are_hoppers and jax_versions._SUPPORTS_MOSAIC)


def test_exported_programs_are_for_any_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax_versions, "runs_mosaic", lambda: True)
    x, lengths = (jax.ShapeDtypeStruct((n, MANY), "int32") for n in (200, 1))
    reverse = jax.jit(functools.partial(reverse_subsequences, axis=0))
    exported = jax.export.export(reverse, platforms=["cuda"])(x, lengths)
    assert "mosaic_gpu" not in exported.mlir_module()


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "time", [1, 2, 37, 300, 500, 700, 1001, 1500, 2001, 3000, 6000]
)
def test_layouts(time: int, itemsize: int):
    for columns in (1, 2, 3, 31, 32, 257, 1000, 4096, 99999):
        layout = layout_for(time, columns, itemsize)
        assert layout is not None
        require_to_fit(layout, time, columns, itemsize)


def require_to_fit(layout: Layout, time: int, columns: int, itemsize: int):
    assert time * layout.pitch * itemsize <= strip_kernel._STRIP_BYTES
    assert layout.threads % 128 == 0
    assert layout.threads <= 1024
    assert layout.width + layout.margin <= layout.pitch
    assert (layout.width + layout.margin) // layout.word <= layout.threads
    assert layout.width % layout.granule == layout.pitch % layout.word == 0
    assert layout.width * layout.strips >= columns + max(layout.margin - 1, 0)
