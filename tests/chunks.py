"""The kernels that store chunks, in NumPy and on a GPU."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formulations import on_a_hopper

from dml_jax import reference
from dml_jax._shared import chunk_kernel

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
BLOCK = 128  # threads
_MASK = 2**32 - 1


def bits_of(word: Any) -> np.ndarray:
    """The bits of a word or an integer, as unsigned integers of 64 bits."""
    value = word.value if isinstance(word, Word) else np.asarray(word)
    return value.astype(np.int64).astype(np.uint64) & np.uint64(_MASK)


def signed(word: Any) -> Any:
    return bits_of(word).astype(np.uint32).view(np.int32)


def _on(operation: Callable[..., Any], convert: Callable[..., Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        with np.errstate(over="ignore"):
            return Word(operation(convert(self), convert(other)))

    return method


class Word:
    """A word of 32 bits of each thread, or a condition. The arithmetic wraps."""

    def __init__(self, value: Any):
        value = np.asarray(value)
        is_condition = value.dtype == bool
        self.value = value if is_condition else value.astype(np.uint32).view(np.int32)

    def __rsub__(self, other: int) -> Any:
        return Word(other) - self

    __add__ = _on(operator.add, bits_of)
    __sub__ = _on(operator.sub, bits_of)
    __mul__ = _on(operator.mul, bits_of)
    __floordiv__ = _on(operator.floordiv, bits_of)
    __mod__ = _on(operator.mod, bits_of)
    __rshift__ = _on(operator.rshift, signed)
    __lt__ = _on(operator.lt, signed)
    __gt__ = _on(operator.gt, signed)

    def __and__(self, other: Any) -> Any:
        if self.value.dtype == bool:
            return Word(self.value & other.value)
        return Word(bits_of(self) & bits_of(other))


class Machine:
    """All threads at once. `vectors` has the 16 aligned bytes at an index as words."""

    def __init__(self, itemsize: int, nbytes: int, vectors: Any, lengths: Any):
        self.itemsize = itemsize
        self.per_chunk = 16 // itemsize
        self.last_vector = (nbytes - 1) // 16
        self.zero = Word(np.uint32(0))
        self.vectors, self.lengths = vectors, lengths

    def load_length(self, row: Any) -> Any:
        index = signed(row)
        assert np.all((index >= 0) & (index < len(self.lengths)))
        return Word(self.lengths[index].astype(np.int64))

    def load_vector(self, index: Any) -> list[Any]:
        index = signed(index)
        assert np.all((index >= 0) & (index <= self.last_vector))
        return [Word(word) for word in self.vectors(index.astype(np.int64)).T]

    def load_scalar(self, index: int) -> Any:
        return Word(self.vectors(np.array([index // 2]))[0, 2 * (index % 2)])

    def load_float64(self, index: int) -> Any:
        words = self.vectors(np.array([index // 2]))[0]
        return words.astype("<u4").view(np.float64)[index % 2]

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return Word(np.minimum(signed(a), signed(b)))

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return Word(np.maximum(signed(a), signed(b)))

    @staticmethod
    def select(condition: Any, a: Any, b: Any) -> Any:
        return Word(np.where(condition.value, bits_of(a), bits_of(b)))

    def cond(
        self, condition: Any, words: Callable[[], Any], otherwise: Any
    ) -> list[Any]:
        pairs = zip(words(), otherwise, strict=True)
        return [self.select(condition, *pair) for pair in pairs]

    @staticmethod
    def funnel_shift(low: Any, high: Any, bits: Any) -> Any:
        pair = bits_of(high) << np.uint64(32) | bits_of(low)
        return Word((pair >> (bits_of(bits) & np.uint64(31))) & np.uint64(_MASK))

    @staticmethod
    def permute_bytes(low: Any, high: Any, selector: Any) -> Any:
        pair = bits_of(high) << np.uint64(32) | bits_of(low)
        word = np.uint64(0)
        for i in range(4):
            index = bits_of(selector) >> np.uint64(4 * i) & np.uint64(15)
            assert np.all(index < 8)
            byte = pair >> index * np.uint64(8) & np.uint64(255)
            word = word | byte << np.uint64(8 * i)
        return Word(word)

    @staticmethod
    def blend_bits(before: Any, after: Any, count: Any) -> Any:
        assert np.all(bits_of(count) <= 32)
        kept = (np.uint64(1) << bits_of(count)) - np.uint64(1)
        return Word(bits_of(before) & kept | bits_of(after) & ~kept)

    @staticmethod
    def to_float64(word: Any) -> Any:
        return bits_of(word).astype(np.float64)

    @staticmethod
    def multiply_add(x: Any, y: Any, z: Any) -> Any:
        with np.errstate(invalid="ignore", over="ignore"):
            return x * y + z  # the products are exact

    @staticmethod
    def round(x: Any, dtype: np.dtype) -> Any:
        return Word(rounded_once(x, dtype).view(f"<u{dtype.itemsize}"))


def rounded_once(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`x` in a dtype; NumPy would round to bfloat16 by way of float32."""
    if dtype != jnp.bfloat16:
        with np.errstate(over="ignore"):
            return x.astype(dtype)
    values = [reference.nearest(value, dtype) for value in x.reshape(-1).tolist()]
    return np.array(values, dtype).reshape(x.shape)


def end_of_last_block(size: int, itemsize: int, chunks: int) -> int:
    """The position after those of all threads, some of which have no elements."""
    per_block = chunks * BLOCK * 16 // itemsize
    return -(-size // per_block) * per_block


def elements_of(chunk: Any, machine: Machine, positions: np.ndarray) -> np.ndarray:
    """The bytes of the chunks at some positions, a row for each element."""
    words = [bits_of(word) for word in chunk(machine, Word(positions))()]
    y = np.stack([np.broadcast_to(word, positions.shape) for word in words], -1)
    return y.astype("<u4").view(np.uint8).reshape(-1, machine.itemsize)


def in_numpy(
    chunk: Any, result: Any, *operands: Any, chunks: int, at_once: int
) -> np.ndarray:
    """What `chunk_kernel.launch` computes, by NumPy."""
    assert chunks % at_once == 0
    x, *lengths = map(np.asarray, operands)
    memory = np.full(-(-x.nbytes // 16) * 16, 0xEE, np.uint8)
    memory[: x.nbytes] = x.reshape(-1).view(np.uint8)
    vectors = memory.view("<u4").reshape(-1, 4)
    machine = Machine(
        result.dtype.itemsize, x.nbytes, vectors.__getitem__, *lengths or [None]
    )
    size = int(np.prod(result.shape))
    end = end_of_last_block(size, machine.itemsize, chunks)
    y = elements_of(chunk, machine, np.arange(0, end, machine.per_chunk))
    return y.reshape(-1).view(result.dtype)[:size].reshape(result.shape)


WAYS = ["numpy", pytest.param("gpu", marks=on_a_hopper)]


def compiler(way: str, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """`jax.jit`, or what makes a function of a kernel one of NumPy."""
    if way == "gpu":
        return jax.jit
    monkeypatch.setattr(chunk_kernel, "launch", in_numpy)
    return lambda function: function
