"""Functions that are ready to be timed: compiled, bound to their arrays.

The baselines are candidates too. The memcpy is NumPy's on a CPU, on one thread and
into memory that has been touched before, and XLA's copy of float32 on a GPU. The
memset is `ndarray.fill` on a CPU, and XLA's fastest of three constant fills on a GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import measure, programs
from benchmarks.measure import Candidate
from benchmarks.programs import Arrays
from benchmarks.workloads import Device, Workload

Function = Callable[..., Any]

_MEMSET_WORDS = 16  # XLA stores single elements of arrays of other sizes


def compiled(name: str, function: Function, arrays: tuple[Any, ...]) -> Candidate:
    start = time.perf_counter()
    executable = jax.jit(function).lower(*arrays).compile()
    seconds = time.perf_counter() - start
    return Candidate(name, functools.partial(executable, *arrays), seconds)


# Ours, and variations in plain JAX ----------------------------------------------------


def functions(workload: Workload, device: Device) -> dict[str, Function]:
    """dml_jax, the plain idioms, and upper bounds: programs that do less."""
    make = functools.partial(programs.program, workload)
    found = {
        "dml_jax": make(programs.operator(workload)),
        "jnp": make(programs.idiom(workload)),
    }
    if workload.group == "pipeline":
        found["unreversed"] = make(lambda x, _: x)
    if workload.group == "reverse" and device == "cpu":
        found["jnp_flip_slice"] = functools.partial(programs.flip_and_slice, workload)
    if workload.group == "random":
        for name in ("dml_jax", "jnp"):
            found[f"{name}_fused"] = _with_addition(found[name])
        if workload.is_reversal and device == "gpu":
            options = dict(workload.options, implementation="standalone")
            alone = dataclasses.replace(workload, options=options)
            found["standalone"] = make(programs.operator(alone))
    if workload.name.startswith("reverse/rows/"):
        found["flip_all"] = lambda x, _: jnp.flip(x, workload.axis)
        found["plus_one"] = lambda x, _: x + 1
    return found


def _with_addition(function: Function) -> Function:
    """The operator with one elementwise operation, which XLA may fuse with it."""
    return lambda *arrays: function(*arrays) + 1


def called(workload: Workload, arrays: Arrays) -> list[Candidate]:
    """The public function called eagerly."""
    if workload.group not in ("reverse", "slice", "fill", "random"):
        return []
    return [
        Candidate("called", functools.partial(programs.operator(workload), *arrays))
    ]


def small_calls(workload: Workload, arrays: Arrays) -> list[Candidate]:
    """The compiled function, and the public function called eagerly.

    Scalars are Python numbers, which JAX transfers to the device in every call.
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
