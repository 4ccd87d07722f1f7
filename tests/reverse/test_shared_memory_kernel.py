"""The kernel for columns: its results, in NumPy and on a GPU, and who gets it."""

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from formulations import data, on_a_hopper, text_for_cuda
from sampling import default_of

from dml_jax import reference, reverse_subsequences
from dml_jax._reverse import gpu, shared_memory_kernel
from dml_jax._reverse.shared_memory_kernel import Layout, layout_for, reverse_strips
from dml_jax._shared import jax_versions


class Machine:
    """All threads of all blocks at once: words are arrays [blocks, threads]."""

    def __init__(self, x: np.ndarray, lengths: np.ndarray, layout: Layout):
        blocks = -(-len(x) * layout.per_row // layout.per_block)
        self.itemsize, self.layout = x.itemsize, layout
        self.block, self.thread = np.indices(
            (blocks, layout.per_block * layout.threads)
        )
        self.zero = np.zeros_like(self.block)
        self.x = x.reshape(-1).view(f"u{x.itemsize}")
        self.y, self.is_stored = np.zeros_like(self.x), np.zeros(x.size, bool)
        self.lengths = lengths.reshape(-1).astype(np.int64)
        self.shared = np.full(
            (blocks, layout.per_block * layout.size), 0xEE, self.x.dtype
        )
        count = layout.per_block * (layout.width + layout.margin)
        self.shared_lengths = np.full((blocks, count), -(2**40))
        self.is_active = np.ones_like(self.block, bool)
        self.copies: list[Callable[[], None]] = []

    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    select = staticmethod(np.where)

    def wait(self) -> None:
        for copy in self.copies:
            copy()

    def offset(self, begin: Any, count: Any, stride: int) -> Any:
        return begin + count * stride

    def load_word(self, at: Any, count: int) -> Any:
        first = np.where(self.is_active, at, 0) // count * count
        assert np.all((first >= 0) & (first < self.x.size))
        # A word may end beyond the array.
        return np.pad(self.x, (0, count))[first[..., None] + np.arange(count)]

    def copy_to_shared(self, address: Any, at: Any) -> None:
        count = 16 // self.itemsize
        assert np.all(at[self.is_active] % count == 0)
        value, is_active = self.load_word(at, count), self.is_active

        def copy() -> None:
            self.is_active = is_active
            self.store_shared(address, value, count)

        self.copies.append(copy)

    def join_words(self, low: Any, high: Any, at: Any) -> Any:
        both = np.concatenate([low, high], axis=-1)
        count = low.shape[-1]
        first = at % count
        return np.take_along_axis(both, first[..., None] + np.arange(count), axis=-1)

    def store(self, at: Any, elements: Sequence[Any], is_stored: Any) -> None:
        assert np.all(at[self.is_active] % len(elements) == 0)
        if not self.layout.is_table:
            word = (
                self.thread % self.layout.threads % (self.layout.width // len(elements))
            )
            begins_row = self.is_active & (word == 0)
            assert np.all(at[begins_row] % self.layout.granule == 0)
        for i, element in enumerate(elements):
            mask = self.is_active
            if is_stored is not None:
                mask = mask & is_stored[i]
            offsets = (at + i)[mask]
            assert np.all((offsets >= 0) & (offsets < self.y.size))
            is_same = self.y[offsets] == element[mask]
            assert np.all(is_same | ~self.is_stored[offsets])
            self.y[offsets], self.is_stored[offsets] = element[mask], True

    def load_length(self, index: Any) -> Any:
        return self.lengths[index]

    def shared_address(self, offset: Any) -> Any:
        return offset * self.itemsize

    def store_shared(self, address: Any, value: Any, count: int) -> None:
        offset = address // self.itemsize
        assert np.all(offset % count == 0)
        for i in range(count):
            at = self.block[self.is_active], (offset + i)[self.is_active]
            self.shared[at] = value[..., i][self.is_active]

    def load_shared(self, address: Any, index: int) -> Any:
        offset = address // self.itemsize + index
        slot = self.thread // self.layout.threads
        is_inside = offset // self.layout.size == slot
        assert np.all(is_inside | ~self.is_active)
        return self.shared[self.block, np.where(is_inside, offset, 0)]

    def store_shared_length(self, offset: Any, length: Any) -> None:
        self.shared_lengths[self.block, offset] = length

    def load_shared_length(self, offset: Any) -> Any:
        assert np.all(offset >= 0)
        length = self.shared_lengths[self.block, offset]
        assert np.all(length >= 0)
        return length

    def is_between(self, low: Any, word: Any, high: Any) -> Any:
        return (low <= word) & (word < high)

    def for_rows(self, first: Any, end: Any, step: int, unroll: int, move: Any) -> None:
        while np.any(first < end):
            self.is_active = first < end
            rows = [first + step * k for k in range(unroll)]
            move([np.where(k < end, k, first) for k in rows])
            first = first + step * unroll


def reverse_in_numpy(x: Any, lengths: Any, step: int, layout: Layout) -> np.ndarray:
    x = np.asarray(x)
    machine = Machine(x, np.asarray(lengths), layout)
    reverse_strips(machine, shape=x.shape, step=step, layout=layout)
    assert np.all(machine.is_stored)
    return machine.y.view(x.dtype).reshape(x.shape)


@pytest.fixture(params=["numpy", pytest.param("gpu", marks=on_a_hopper)])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """`jax.jit`, or what makes a function of the kernel one of NumPy."""
    monkeypatch.setattr(gpu, "_MIN_BYTES", 0)
    monkeypatch.setattr(gpu, "_TINY_TABLE", 0)
    monkeypatch.setattr(gpu, "_is_faster_gathered", lambda *_: False)
    if request.param == "gpu":
        return jax.jit
    monkeypatch.setattr(shared_memory_kernel, "reverse", reverse_in_numpy)
    return lambda function: function


# Shape, axis, and the shape of the lengths.
LINES = {
    "columns": ((9, 128), 0, (1, 128)),
    "columns-of-planes": ((2, 3, 7, 64), 2, (2, 3, 1, 64)),
    "shared-lengths": ((5, 7, 64), 1, (1, 1, 64)),
    "one-length-for-all-tables": ((5, 7, 3), 1, (1, 1, 3)),
    "more-lengths-than-tables": ((1, 7, 5), 1, (4, 1, 5)),
    "three-features": ((300, 64, 3), 0, (1, 64, 1)),
    "odd-features": ((31, 5, 3), 0, (1, 5, 1)),
    "odd-columns": ((31, 145), 0, (1, 145)),
    "odd-tables": ((3, 17, 41), 1, (3, 1, 41)),
    "tiny-tables": ((70, 3, 2), 1, (70, 1, 2)),
    "tables-of-many-threads": ((3, 301, 39), 1, (3, 1, 39)),
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
    "two-strips": ((2, 3001, 27), 1, (2, 1, 27)),
    "half-sectors": ((4001, 130), 0, (1, 130)),
    "quarters-of-sectors": ((5001, 131), 0, (1, 131)),
    "chunks-of-quarters": ((5001, 132), 0, (1, 132)),
    "one-step": ((1, 128), 0, (1, 128)),
}


def lines(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray, int]:
    shape, axis, lengths_shape = LINES[name]
    random = np.random.default_rng(0)
    lengths = random.integers(0, shape[axis] + 1, lengths_shape).astype(np.int32)
    lengths.flat[:2] = 0, shape[axis]
    return data(shape, dtype), lengths, axis


def check(x: np.ndarray, lengths: np.ndarray, axis: int, compiled: Callable[..., Any]):
    with jax.enable_x64(x.itemsize == 8):
        y = compiled(functools.partial(gpu.strips, axis=axis))(
            jnp.asarray(x), jnp.asarray(lengths)
        )
    shape = np.broadcast_shapes(x.shape, lengths.shape)
    expected = reference.reverse_subsequences(np.broadcast_to(x, shape), lengths, axis)
    assert_same_bits(y, expected)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    "dtype",
    default_of(["uint8", "int16", "float32", "int64", "float64"], "uint8", "float32"),
)
@pytest.mark.parametrize("name", LINES)
def test_results(name: str, dtype: str, compiled: Callable[..., Any]):
    check(*lines(name, dtype), compiled)


@pytest.mark.parametrize("seed", default_of(range(8), 0))
def test_random_shapes(seed: int, compiled: Callable[..., Any]):
    random = np.random.default_rng(seed)
    for _ in range(6):
        batch = int(random.integers(1, 4))
        time, columns = (2 ** random.uniform(1, 8, 2)).astype(int)
        lengths = random.integers(0, time + 1, (batch, 1, columns)).astype(np.int32)
        dtype = str(random.choice(["uint8", "uint16", "float32"]))
        x = random.integers(0, 2**8, (batch, time, columns)).astype(dtype)
        check(x, lengths, 1, compiled)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_words_of_many_rows(columns: int):
    time = 1025
    x = data((2, time, columns), "uint8")
    lengths = np.full((2, columns), time)
    layout = layout_for(time, columns, 1)
    assert layout is not None
    assert layout.word == 4
    y = reverse_in_numpy(x, lengths, 1, layout)
    assert_same_bits(y, x[:, ::-1])


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_blocks_are_within_the_limits(itemsize: int):
    for time in (1, 37, 200, 432, 433, 700, 1001, 1500, 2400, 3001, 4096, 5000, 6912):
        for columns in (7, 100, 4096, 65537, 65540, 65544):
            layout = layout_for(time, columns, itemsize)
            assert layout is not None
            assert layout.per_block * layout.threads <= 1024
            elements, lengths = layout.size, layout.width + layout.margin
            nbytes = layout.per_block * (elements * itemsize + lengths * 4)
            assert nbytes <= 227 * 2**10


# The itemsize and the time; and the bytes of the granules, where rows begin anywhere.
GRANULES = {
    "bytes": ((1, 1000), 4),
    "long-bytes": ((1, 1500), 32),
    "16-bit": ((2, 200), 4),
    "long-16-bit": ((2, 700), 32),
    "32-bit": ((4, 200), 32),
    "64-bit": ((8, 200), 32),
    "rows-of-80-bytes": ((2, 2500), 16),
    "rows-of-48-bytes": ((4, 4096), 16),
    "rows-of-40-bytes": ((1, 5000), 8),
    "rows-of-32-bytes": ((2, 6000), 4),
}


@pytest.mark.parametrize("name", GRANULES)
def test_strips_store_granules(name: str):
    (itemsize, time), expected = GRANULES[name]
    layout = layout_for(time, 65537, itemsize)
    assert layout is not None
    assert layout.granule * itemsize == expected


# The itemsize, the time and the columns; and the bytes of the rows of strips.
ROWS = {
    "two-blocks-at-once": ((4, 376, 65537), 256),
    "one-block": ((4, 400, 65537), 384),
    "beside-a-large-cache": ((4, 784, 65537), 192),
    "whole-chunks": ((4, 784, 65540), 256),
    "narrow-rows": ((4, 2049, 65537), 96),
    "two-strips-of-words": ((2, 3001, 39), 48),
    "strips-of-sectors": ((2, 3001, 65), 64),
    "16-bit-of-8-phases": ((2, 48, 65538), 128),
    "too-few-rows-of-16-bit": ((2, 47, 65538), 256),
    "16-bit-of-16-phases": ((2, 300, 65537), 256),
    "bytes-of-8-phases": ((1, 96, 65540), 128),
    "too-few-rows-of-bytes": ((1, 95, 65540), 256),
    "many-rows-of-bytes": ((1, 768, 65540), 128),
    "too-many-rows-of-bytes": ((1, 769, 65540), 192),
    "whole-sectors-of-bytes": ((1, 96, 65536), 256),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_strips(name: str):
    (itemsize, time, columns), expected = ROWS[name]
    layout = layout_for(time, columns, itemsize)
    assert layout is not None
    assert layout.pitch * itemsize == expected


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "time", [123, 124, 149, 188, 200, 256, 376, 400, 512, 784, 1000, 1500, 2000]
)
def test_strips_leave_the_cache(time: int, itemsize: int):
    """No more blocks run at once than leave 60 KiB to the first-level cache."""
    layout = layout_for(time, 65537, itemsize)
    assert layout is not None
    block = layout.block_bytes + 4 * (layout.width + layout.margin) + 2**10
    blocks = 228 * 2**10 // block
    assert blocks * block <= 196 * 2**10


# The itemsize, the time and the columns of a table.
CHUNKS = {
    "sectors-of-bytes": ((1, 901, 512), True),
    "half-sectors-of-bytes": ((1, 901, 528), False),
    "sectors-of-16-bit": ((2, 50, 608), True),
    "half-sectors-of-16-bit": ((2, 50, 600), False),
    "half-sectors-of-32-bit": ((4, 784, 100), True),
    "odd-columns-of-32-bit": ((4, 784, 101), False),
    "rows-of-40-bytes": ((4, 5001, 132), False),
    "tables": ((4, 100, 40), True),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_who_copies_chunks(name: str):
    (itemsize, time, columns), expected = CHUNKS[name]
    layout = layout_for(time, columns, itemsize)
    assert layout is not None
    is_in_chunks = shared_memory_kernel._is_in_chunks(columns, layout, itemsize)
    assert is_in_chunks == expected


@on_a_hopper
def test_transformations():
    random, axis = np.random.default_rng(0), 0
    x = random.normal(size=(576, 8192)).astype(np.float32)
    lengths = random.integers(0, 577, (1, 8192))

    reverse = jax.jit(
        lambda x: reverse_subsequences(x, lengths, axis, implementation="standalone")
    )
    assert "mosaic_gpu" in reverse.lower(x).as_text()
    expected = reference.reverse_subsequences(x, lengths, axis)
    assert_same_bits(jax.vmap(reverse)(np.stack([x + 1, x]))[1], expected)
    _, tangent = jax.jvp(reverse, (x + 1,), (x,))
    assert_same_bits(tangent, expected)
    _, pullback = jax.vjp(reverse, x)
    assert_same_bits(pullback(expected)[0], x)


# Which programs get it ----------------------------------------------------------------

MANY = 2**17
CHOSEN = {
    "columns": (((64, MANY), "float32"), "standalone", True),
    "columns-by-default": (((64, 2 * MANY), "float32"), None, True),
    "odd-columns": (((99, MANY + 1), "uint8"), "standalone", True),
    "float64": (((64, MANY), "float64"), "standalone", True),
    "what-the-cache-holds": (((64, 3 * 2**16 - 1), "float32"), None, False),
    "more-than-the-cache-holds": (((64, 3 * 2**16), "float32"), None, True),
    "bytes-that-the-cache-holds": (((64, 3 * 2**17 - 1), "uint8"), None, False),
    "more-bytes": (((64, 3 * 2**17), "uint8"), None, True),
    "16-bits-that-the-cache-holds": (((64, 3 * 2**16 - 1), "int16"), None, False),
    "more-16-bits": (((64, 3 * 2**16), "int16"), None, True),
    "too-small": (((64, 2**8), "float32"), "standalone", False),
    "too-long": (((10000, 1000), "float32"), "standalone", False),
    "long-and-narrow": (((300_000, 5), "float32"), "standalone", False),
    "large-tables": (((1024, 2**21), "uint8"), "standalone", True),
    "few-columns": (((2**16, 1024, 24), "int16"), None, False),
    "more-columns": (((2**16, 1024, 25), "int16"), None, True),
    "few-columns-of-bytes": (((2**16, 1024, 16), "uint8"), None, False),
    "small-tables-of-bytes": (((2**20, 128, 64), "uint8"), None, False),
    "larger-tables-of-bytes": (((2**20, 128, 65), "uint8"), None, True),
    "small-tables-of-16-bits": (((2**20, 64, 64), "int16"), None, False),
    "larger-tables-of-16-bits": (((2**20, 64, 65), "int16"), None, True),
    "small-tables": (((2**20, 64, 128), "float32"), None, False),
    "larger-tables": (((2**20, 64, 129), "float32"), None, True),
    "small-tables-of-64-bits": (((16, 1024, 1024), "float64"), None, False),
    "larger-tables-of-64-bits": (((16, 1024, 1025), "float64"), None, True),
    "words-of-long-columns": (((2**10, 2049, 101), "float32"), None, False),
    "words-of-shorter-columns": (((2**10, 2048, 101), "float32"), None, True),
    "words-of-long-columns-in-sectors": (((2**10, 2049, 104), "float32"), None, True),
    "words-of-large-tables": (((2, 4096, 2049), "float32"), None, True),
    "few-columns-of-long-time": (((999, 3001, 20), "float32"), "standalone", False),
    "few-columns-in-sectors": (((999, 3001, 24), "float32"), "standalone", True),
    "few-columns-of-tables": (((999, 2001, 20), "float32"), "standalone", True),
    "longest-columns-of-calls": (((999, 3456, 25), "float32"), "standalone", True),
    "longer-columns-of-calls": (((999, 3457, 25), "float32"), "standalone", False),
    "longer-columns-of-bytes": (((999, 3457, 101), "uint8"), "standalone", True),
    "longer-columns-of-large-tables": (
        ((2, 4096, 2049), "float32"),
        "standalone",
        True,
    ),
    "16-bits-of-long-columns": (((2**10, 2049, 101), "int16"), None, True),
    "tables-of-a-few-words": (((2**16, 16, 16), "uint8"), "standalone", True),
    "tiny-tables": (((2**16, 16, 15), "uint8"), "standalone", False),
    "booleans": (((64, MANY), "bool"), "standalone", False),
}


@pytest.mark.parametrize(("features", "is_chosen"), [(31, True), (33, False)])
def test_programs_gather_steps_of_a_sector(features: int, is_chosen: bool):
    reverse = functools.partial(reverse_subsequences, axis=0)
    x = jax.ShapeDtypeStruct((99, 2**16, features), np.uint8)
    lengths = jax.ShapeDtypeStruct((1, 2**16, 1), np.int32)
    is_chosen = is_chosen and jax_versions._SUPPORTS_MOSAIC
    assert ("mosaic_gpu" in text_for_cuda(reverse, x, lengths)) == is_chosen


@pytest.mark.parametrize(
    ("time", "batch", "is_chosen"),
    [(2048, 2**14 + 1, True), (2049, 2**14 + 1, False), (2049, 2**14, True)],
)
def test_programs_gather_steps_of_long_columns(time: int, batch: int, is_chosen: bool):
    """Steps of 20 bytes, unless the rows are whole sectors."""
    reverse = functools.partial(reverse_subsequences, axis=0)
    x = jax.ShapeDtypeStruct((time, batch, 20), np.uint8)
    lengths = jax.ShapeDtypeStruct((1, batch, 1), np.int32)
    is_chosen = is_chosen and jax_versions._SUPPORTS_MOSAIC
    assert ("mosaic_gpu" in text_for_cuda(reverse, x, lengths)) == is_chosen


@pytest.mark.parametrize("are_hoppers", [True, False])
@pytest.mark.parametrize("name", CHOSEN)
def test_who_gets_the_kernel(name: str, are_hoppers: bool):
    (shape, dtype), implementation, is_chosen = CHOSEN[name]
    reverse = functools.partial(
        reverse_subsequences, axis=-2, implementation=implementation
    )
    with jax.enable_x64(dtype == "float64"):
        x = jax.ShapeDtypeStruct(shape, dtype)
        lengths = jax.ShapeDtypeStruct((*shape[:-2], 1, shape[-1]), np.int32)
        text = text_for_cuda(reverse, x, lengths, are_hoppers=are_hoppers)
    is_chosen = is_chosen and are_hoppers and jax_versions._SUPPORTS_MOSAIC
    assert ("mosaic_gpu" in text) == is_chosen


# Tables, time, batch and features; and the formulation for such steps.
STEPS = {
    "whole-sectors": ((1000, 1001, 8), "float32", "copied_chunks"),
    "252-bytes-in-rows-of-sectors": ((1536, 1024, 63), "float32", "strips"),
    "260-bytes-in-rows-of-sectors": ((1536, 1024, 65), "float32", "copied_chunks"),
    "124-bytes-in-rows-of-sectors": ((1537, 1024, 31), "float32", "strips"),
    "132-bytes-in-rows-of-sectors": ((1537, 1024, 33), "float32", "copied_chunks"),
    "60-bytes-in-rows-of-sectors": ((6912, 1024, 15), "float32", "strips"),
    "68-bytes-in-rows-of-sectors": ((3457, 1024, 17), "float32", "copied_chunks"),
    "20-bytes-of-long-time": ((6913, 1024, 5), "float32", "copied_chunks"),
    "124-bytes": ((1536, 1001, 31), "float32", "strips"),
    "132-bytes": ((1536, 1001, 33), "float32", "copied_chunks"),
    "60-bytes": ((2048, 1001, 15), "float32", "strips"),
    "68-bytes": ((1537, 1001, 17), "float32", "copied_chunks"),
    "28-bytes": ((3456, 1001, 7), "float32", "strips"),
    "36-bytes": ((2049, 1001, 9), "float32", "copied_chunks"),
    "12-bytes": ((6912, 1001, 3), "float32", "strips"),
    "20-bytes": ((3457, 1001, 5), "float32", "copied_chunks"),
    "62-bytes-in-parts-of-words": ((100, 1001, 31), "int16", "strips"),
    "66-bytes-in-parts-of-words": ((100, 1001, 33), "int16", "copied_chunks"),
    "66-bytes-in-words": ((100, 1002, 33), "int16", "strips"),
    "36-bytes-in-small-tables": ((64, 1024, 7, 9), "float32", "copied_chunks"),
    "36-bytes-in-larger-tables": ((64, 1024, 8, 9), "float32", "strips"),
    "28-bytes-in-small-tables": ((64, 1024, 7, 7), "float32", "strips"),
}


@pytest.mark.parametrize("name", STEPS)
def test_kernels_of_steps(name: str, monkeypatch: pytest.MonkeyPatch):
    (*tables, time, batch, features), dtype, expected = STEPS[name]
    axis = len(tables)
    made = []
    monkeypatch.setattr(
        gpu.packed_copy_kernel,
        "reverse",
        lambda x, _: made.append("copied_chunks") or x,
    )
    monkeypatch.setattr(
        gpu.shared_memory_kernel, "reverse", lambda x, *_: made.append("strips") or x
    )
    operands = (
        jax.ShapeDtypeStruct((*tables, time, batch, features), dtype),
        jax.ShapeDtypeStruct((*tables, 1, batch, 1), np.int32),
    )
    for formulation in (gpu.copied_chunks, gpu.strips):
        jax.eval_shape(functools.partial(formulation, axis=axis), *operands)
    assert made == [expected]


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
        require_to_fit(layout, columns, itemsize)


def require_to_fit(layout: Layout, columns: int, itemsize: int):
    block_bytes = layout.block_bytes
    assert layout.per_block * layout.size * itemsize <= block_bytes
    assert block_bytes <= shared_memory_kernel._MAX_BLOCK_BYTES
    lengths_bytes = layout.per_block * (layout.width + layout.margin) * 4
    assert block_bytes + lengths_bytes <= 227 * 2**10
    threads = layout.per_block * layout.threads
    assert threads % 128 == 0
    assert threads <= 1024
    assert (layout.width + layout.margin) // layout.word <= layout.threads
    assert layout.width % layout.granule == layout.pitch % layout.word == 0
    assert layout.width * layout.per_row >= columns + max(layout.margin - 1, 0)
