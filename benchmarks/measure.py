"""Times of candidates, measured in turns.

A sample is a batch of calls that are dispatched one after the other and then waited
for, long enough to hide the clock's resolution and the cost of a dispatch. In each
round every candidate gives one sample, so that a change in the machine's speed affects
all of them. The state of the caches and of the memory depends on the candidate before.
On a CPU, the same program took up to 1.5 times as long after one candidate as after
another. So a call that is not timed precedes each batch, and every other round takes
the candidates in the opposite order. A ratio is the median over the rounds of the
ratios within a round.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

Samples = Mapping[str, Sequence[float] | np.ndarray]


class Candidate(NamedTuple):
    """A function whose calls queue the same work over and over.

    `wait` blocks until the result of a call has been computed, and `host` converts it
    to a NumPy array.
    """

    name: str
    call: Callable[[], Any]
    compile_seconds: float | None = None
    wait: Callable[[Any], Any] = jax.block_until_ready
    host: Callable[[Any], np.ndarray] = np.asarray


class Settings(NamedTuple):
    """How many rounds, and how long a batch lasts at least, in seconds.

    With an even number of rounds, each order is measured equally often.
    """

    rounds: int
    batch: float


def samples(candidates: Sequence[Candidate], settings: Settings) -> Samples:
    """Seconds of a call of each candidate, one figure for each round."""
    calls = [_calls(candidate, settings.batch) for candidate in candidates]
    found: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    turns = list(zip(candidates, calls, strict=True))
    for _ in range(settings.rounds):
        for candidate, repeats in turns:
            candidate.wait(candidate.call())
            found[candidate.name].append(_batch(candidate, repeats) / repeats)
        turns.reverse()
    return found


def seconds(candidate: Candidate, batch: float = 0.005) -> float:
    """A rough figure for one candidate."""
    repeats = _calls(candidate, batch)
    return _batch(candidate, repeats) / repeats


def summary(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """The median and the quartiles."""
    q1, median, q3 = np.quantile(values, (0.25, 0.5, 0.75))
    return dict(median=float(median), q1=float(q1), q3=float(q3))


def summaries(samples: Samples, baseline: str) -> dict[str, dict[str, Any]]:
    """For each candidate its seconds, and its ratio to the baseline in pairs."""
    base = np.asarray(samples[baseline])
    return {
        name: dict(seconds=summary(values), ratio=summary(np.asarray(values) / base))
        for name, values in samples.items()
    }


def _calls(candidate: Candidate, least: float) -> int:
    """Warms a candidate up; returns how many of its calls take `least` seconds."""
    _batch(candidate, 1)
    calls = 1
    while (spent := _batch(candidate, calls)) < least:
        calls = max(2 * calls, math.ceil(calls * least / spent))
    return calls


def _batch(candidate: Candidate, calls: int) -> float:
    call, result = candidate.call, None
    start = time.perf_counter()
    for _ in range(calls):
        result = call()
    candidate.wait(result)
    return time.perf_counter() - start


# Compilations and imports -------------------------------------------------------------


def compilations(
    functions: Mapping[str, Callable[..., Any]], arrays: tuple[Any, ...], rounds: int
) -> Samples:
    """Seconds to trace, lower and compile each function from scratch."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            jax.clear_caches()
            start = time.perf_counter()
            # A new function each time, since JAX remembers the ones it has seen.
            jax.jit(lambda *x, f=function: f(*x)).lower(*arrays).compile()
            found[name].append(time.perf_counter() - start)
    return found


_IMPORT = """
import json, time
start = time.perf_counter()
import jax
middle = time.perf_counter()
import dml_jax
print(json.dumps([middle - start, time.perf_counter() - start]))
"""


def imports(rounds: int) -> Samples:
    """Seconds to import jax, and to import dml_jax including jax."""
    found: dict[str, list[float]] = {"import jax": [], "dml_jax": []}
    for _ in range(rounds):
        printed = subprocess.run(
            [sys.executable, "-c", _IMPORT], capture_output=True, check=True, text=True
        )
        for name, value in zip(found, json.loads(printed.stdout), strict=True):
            found[name].append(value)
    return found
