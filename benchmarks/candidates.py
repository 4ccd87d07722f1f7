"""Functions that are ready to be timed: compiled, bound to their arrays.

The baselines are candidates too. The memcpy is NumPy's on a CPU, on one thread and
into memory that has been touched before, and XLA's copy of float32 on a GPU. The
memset is `ndarray.fill` on a CPU, and XLA's fastest of three constant fills on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure
from benchmarks.measure import Candidate
from benchmarks.workloads import Device, Workload

Function = Callable[..., Any]

_MEMSET_WORDS = 16  # XLA stores single elements of arrays of other sizes


def compiled(name: str, function: Function, arrays: tuple[Any, ...]) -> Candidate:
    executable = jax.jit(function).lower(*arrays).compile()
    return Candidate(name, functools.partial(executable, *arrays))


def all_compiled(
    functions: Mapping[str, Function], arrays: tuple[Any, ...]
) -> list[Candidate]:
    """The functions, compiled in threads: that takes most of the time of a run."""
    lowered = [jax.jit(function).lower(*arrays) for function in functions.values()]
    with ThreadPoolExecutor() as pool:
        executables = pool.map(lambda program: program.compile(), lowered)
    return [
        Candidate(name, functools.partial(executable, *arrays))
        for name, executable in zip(functions, executables, strict=True)
    ]


# Baselines ----------------------------------------------------------------------------


def baseline(workload: Workload, device: Device) -> Candidate:
    """A memcpy of the bytes that the workload has to move, or a memset."""
    if workload.baseline == "memcpy":
        nbytes = (workload.bytes_read + workload.bytes_written) // 2
        return _memcpy(max(1, nbytes // 4), device)
    words = workload.bytes_written // 4
    return _memset(-(-words // _MEMSET_WORDS) * _MEMSET_WORDS, device)


@functools.lru_cache(maxsize=1)  # the next workload often has as many bytes
def _memcpy(count: int, device: Device) -> Candidate:
    if device == "gpu":
        return compiled("memcpy", jnp.copy, (jnp.ones(count, jnp.float32),))
    source, target = _aligned(count, 0), _aligned(count, 2048)

    def call() -> np.ndarray:
        np.copyto(target, source)
        return target

    return Candidate("memcpy", call)


def _aligned(count: int, offset: int) -> np.ndarray:
    """Ones that start `offset` bytes after the start of a page.

    A CPU may copy at a tenth of its speed if the target starts a few bytes after the
    source within a page. Half a page apart, it does not.
    """
    page, nbytes = 4096, 4 * count
    memory = np.empty(nbytes + 2 * page, np.uint8)
    start = -memory.ctypes.data % page + offset
    values = memory[start : start + nbytes].view(np.float32)
    values.fill(1)
    return values


@functools.lru_cache(maxsize=1)
def _memset(count: int, device: Device) -> Candidate:
    if device == "gpu":
        fills = (
            compiled("memset", lambda: jnp.zeros(count, jnp.float32), ()),
            compiled("memset", lambda x: jnp.full(count, x), (jnp.float32(1),)),
            compiled("memset", functools.partial(_in_quarters, count), ()),
        )
        return min(fills, key=measure.seconds)
    target = _aligned(count, 0).view(np.uint8)  # filled faster than float32

    def call() -> np.ndarray:
        target.fill(1)
        return target

    return Candidate("memset", call)


def _in_quarters(count: int) -> jax.Array:
    """Four constants in one kernel, the fastest stores of XLA on an H200."""
    sizes = [count * (i + 1) // 4 - count * i // 4 for i in range(4)]
    return jnp.concatenate([jnp.full(n, i, jnp.float32) for i, n in enumerate(sizes)])
