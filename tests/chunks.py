"""The kernels that store chunks, in NumPy and on a GPU."""

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


class Positions(np.ndarray):
    """Integers that are divided as by a GPU: without a sign."""

    def __floordiv__(self, other: Any) -> Any:
        return (self.view(np.ndarray) % 2**32 // other).view(Positions)

    def __mod__(self, other: Any) -> Any:
        return (self.view(np.ndarray) % 2**32 % other).view(Positions)


class Machine:
    """All threads at once: words are arrays of uint64, positions of int64."""

    def __init__(self, itemsize: int, x: np.ndarray, lengths: Any):
        self.itemsize = itemsize
        self.per_chunk = 16 // itemsize
        self.last_vector = (x.nbytes - 1) // 16
        self.zero = np.uint64(0)
        memory = np.full(16 * (self.last_vector + 1), 0xEE, np.uint8)
        memory[: x.nbytes] = x.reshape(-1).view(np.uint8)
        self.vectors = memory.view("<u4").reshape(-1, 4).astype(np.uint64)
        self.lengths = None if lengths is None else np.asarray(lengths, np.int64)

    def load_length(self, row: Any) -> Any:
        assert self.lengths is not None
        return self.lengths[row]

    def load_vector(self, index: Any) -> list[Any]:
        assert np.all((index >= 0) & (index <= self.last_vector))
        return list(self.vectors[index].T)

    def load_scalar(self, index: int) -> Any:
        return self.vectors.reshape(-1)[2 * index].astype(np.int64)

    def load_float64(self, index: int) -> Any:
        words = self.vectors.reshape(-1)[2 * index :][:2]
        return words.astype("<u4").view(np.float64)[0]

    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    select = staticmethod(np.where)

    @staticmethod
    def cond(condition: Any, words: Callable[[], Any], otherwise: Any) -> list[Any]:
        pairs = zip(words(), otherwise, strict=True)
        return [np.where(condition, *pair) for pair in pairs]

    @staticmethod
    def funnel_shift(low: Any, high: Any, bits: Any) -> Any:
        pair = high << np.uint64(32) | low
        return pair >> np.asarray(bits).astype(np.uint64) & np.uint64(0xFFFFFFFF)

    @staticmethod
    def permute_bytes(low: Any, high: Any, selector: Any) -> Any:
        low, high = (
            np.asarray(word).astype("<u4").astype(np.uint64) for word in (low, high)
        )
        pair, word = high << np.uint64(32) | low, np.uint64(0)
        for i in range(4):
            index = np.asarray(selector).astype(np.uint64) >> np.uint64(4 * i)
            byte = pair >> (index & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            word = word | byte << np.uint64(8 * i)
        return word

    @staticmethod
    def blend_bits(before: Any, after: Any, count: Any) -> Any:
        kept = (np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)
        return before & kept | after & ~kept

    @staticmethod
    def to_float64(word: Any) -> Any:
        return np.asarray(word).astype(np.float64)

    @staticmethod
    def multiply_add(x: Any, y: Any, z: Any) -> Any:
        with np.errstate(invalid="ignore", over="ignore"):
            return x * y + z  # the products are exact

    @staticmethod
    def round(x: Any, dtype: np.dtype) -> Any:
        return rounded_once(x, dtype).view(f"<u{dtype.itemsize}").astype(np.uint64)


def rounded_once(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`x` in a dtype; NumPy would round to bfloat16 by way of float32."""
    if dtype != jnp.bfloat16:
        with np.errstate(over="ignore"):
            return x.astype(dtype)
    values = [reference.nearest(value, dtype) for value in x.reshape(-1).tolist()]
    return np.array(values, dtype).reshape(x.shape)


def in_numpy(
    chunk: Any, result: Any, *operands: Any, chunks: int, at_once: int
) -> np.ndarray:
    """What `chunk_kernel.launch` computes, by NumPy."""
    assert chunks * 16 * 128 <= 2**31 - chunk_kernel.MAX_BYTES
    assert chunks % at_once == 0
    x, *lengths = map(np.asarray, operands)
    machine = Machine(result.dtype.itemsize, x, lengths[0] if lengths else None)
    # The last block has threads without elements.
    size, per_block = int(np.prod(result.shape)), chunks * machine.per_chunk * 128
    end = -(-size // per_block) * per_block
    position = np.arange(0, end, machine.per_chunk).view(Positions)
    words = chunk(machine, position)()
    y = np.stack([np.broadcast_to(word, position.shape) for word in words], -1)
    y = y.astype("<u4").reshape(-1).view(result.dtype)
    return y[:size].reshape(result.shape)


WAYS = ["numpy", pytest.param("gpu", marks=on_a_hopper)]


def compiler(way: str, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """`jax.jit`, or what makes a function of a kernel one of NumPy."""
    if way == "gpu":
        return jax.jit
    monkeypatch.setattr(chunk_kernel, "launch", in_numpy)
    return lambda function: function
