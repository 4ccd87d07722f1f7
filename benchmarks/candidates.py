"""Functions that are ready to be timed: compiled, bound to their arrays.

The baselines are candidates too. On a CPU a memcpy is NumPy's, into memory that has
been touched before, on one thread; on a GPU it is XLA's copy of as many bytes of
float32. A memset is what fills are held against: `ndarray.fill`, or the fastest one of
three constant fills by XLA.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure, programs
from benchmarks.programs import Arrays
from benchmarks.workloads import Device, Workload


class Candidate(NamedTuple):
    """A function whose calls queue the same work over and over.

    `wait` blocks until what a call returned has been computed, and `host` makes a NumPy
    array of it.
    """

    name: str
    call: Callable[[], Any]
    compile_seconds: float | None = None
    wait: Callable[[Any], Any] = jax.block_until_ready
    host: Callable[[Any], np.ndarray] = np.asarray


def compiled(name: str, function: Callable, arrays: Arrays) -> Candidate:
    start = time.perf_counter()
    executable = jax.jit(function).lower(*arrays).compile()
    seconds = time.perf_counter() - start
    return Candidate(name, functools.partial(executable, *arrays), seconds)


# Ours, and variations in plain JAX ----------------------------------------------------


def functions(workload: Workload, device: Device) -> dict[str, Callable]:
    """dml_jax and the plain formulations, and ceilings that do less than they do."""
    make = functools.partial(programs.program, workload)
    found = {
        "dml_jax": make(programs.operator(workload)),
        "jnp": make(programs.idiom(workload)),
    }
    if workload.group == "pipeline":
        found["unreversed"] = make(lambda x, lengths: x)
    if workload.group == "reverse" and device == "cpu":
        found["jnp_flip_slice"] = functools.partial(programs.flip_and_slice, workload)
    if workload.name.startswith("reverse/rows/"):
        found["flip_all"] = lambda x, lengths: jnp.flip(x, workload.axis)
        found["plus_one"] = lambda x, lengths: x + 1
    return found


def called(workload: Workload, arrays: Arrays) -> list[Candidate]:
    """The public function outside of `jit`, which knows then that it stands alone."""
    if workload.group not in ("reverse", "slice", "fill"):
        return []
    return [
        Candidate("called", functools.partial(programs.operator(workload), *arrays))
    ]


def small_calls(workload: Workload, arrays: Arrays) -> list[Candidate]:
    """The function compiled with its options, and the eager call of the public one.

    Numbers are Python's, which JAX passes to a device in every call.
    """
    function = programs.operator(workload)
    plain = [array.item() if array.ndim == 0 else array for array in arrays]
    return [
        Candidate("jitted", functools.partial(jax.jit(function), *plain)),
        Candidate("dml_jax", functools.partial(function, *plain)),
    ]


# Baselines ----------------------------------------------------------------------------


def baseline(workload: Workload, device: Device) -> Candidate:
    """A memcpy of the bytes that the workload has to move, or a memset."""
    if workload.baseline == "memcpy":
        nbytes = (workload.bytes_read + workload.bytes_written) // 2
        return _memcpy(nbytes // 4, device)
    return _memset(workload.bytes_written // 4, device)


@functools.lru_cache(maxsize=1)  # the next workload often has as many bytes
def _memcpy(count, device) -> Candidate:
    if device == "gpu":
        return compiled("memcpy", jnp.copy, (jnp.ones(count, jnp.float32),))
    source, target = _aligned(count, 0), _aligned(count, 2048)

    def call():
        np.copyto(target, source)
        return target

    return Candidate("memcpy", call)


def _aligned(count, offset) -> np.ndarray:
    """Ones that start `offset` bytes behind the start of a page.

    Where a target starts a few bytes behind its source within a page, a CPU may copy at
    a tenth of its speed. Half a page apart, there is no such accident.
    """
    page, nbytes = 4096, 4 * count
    room = np.empty(nbytes + 2 * page, np.uint8)
    start = -room.ctypes.data % page + offset
    values = room[start : start + nbytes].view(np.float32)
    values.fill(1)
    return values


@functools.lru_cache(maxsize=1)
def _memset(count, device) -> Candidate:
    if device == "gpu":
        fills = (
            compiled("memset", lambda: jnp.zeros(count, jnp.float32), ()),
            compiled("memset", lambda x: jnp.full(count, x), (jnp.float32(1),)),
            compiled("memset", functools.partial(_in_quarters, count), ()),
        )
        return min(fills, key=measure.seconds)
    target = _aligned(count, 0).view(np.uint8)  # filled faster than float32

    def call():
        target.fill(1)
        return target

    return Candidate("memset", call)


def _in_quarters(count):
    """Four constants in one kernel, the fastest writes that XLA makes on an H200."""
    sizes = [count * (i + 1) // 4 - count * i // 4 for i in range(4)]
    return jnp.concatenate([jnp.full(n, i, jnp.float32) for i, n in enumerate(sizes)])
