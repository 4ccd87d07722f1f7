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

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

Samples = Mapping[str, Sequence[float] | np.ndarray]


class Candidate(NamedTuple):
    """A function whose calls queue the same work over and over.

    `wait` blocks until the result of a call has been computed.
    """

    name: str
    call: Callable[[], Any]
    wait: Callable[[Any], Any] = jax.block_until_ready


class Settings(NamedTuple):
    """How many rounds, and how long a batch lasts at least, in seconds.

    With an even number of rounds, each order is measured equally often. `pause` is the
    time that the threads of one candidate get to fall asleep before the next begins.
    """

    rounds: int
    batch: float
    pause: float = 0.0


SETTINGS = {"cpu": Settings(8, 0.020), "gpu": Settings(8, 0.005)}
QUICK = Settings(6, 0.005)


def compiled(
    functions: Mapping[str, Callable[..., Any]], arrays: tuple[Any, ...], **options: Any
) -> list[Candidate]:
    """Functions of the same arrays, compiled in threads: that takes the most time."""
    lowered = [jax.jit(f, **options).lower(*arrays) for f in functions.values()]
    with ThreadPoolExecutor() as pool:
        executables = pool.map(lambda program: program.compile(), lowered)
    return [
        Candidate(name, functools.partial(executable, *arrays))
        for name, executable in zip(functions, executables, strict=True)
    ]


def samples(candidates: Sequence[Candidate], settings: Settings) -> Samples:
    """Seconds of a call of each candidate, one figure for each round."""
    calls = [_calls(candidate, settings.batch) for candidate in candidates]
    found: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    turns = list(zip(candidates, calls, strict=True))
    for _ in range(settings.rounds):
        for candidate, repeats in turns:
            time.sleep(settings.pause)
            candidate.wait(candidate.call())
            found[candidate.name].append(_batch(candidate, repeats) / repeats)
        turns.reverse()
    return found


def summaries(samples: Samples, baseline: str) -> dict[str, dict[str, Any]]:
    """For each candidate its seconds, and its ratio to the baseline in pairs."""
    base = np.asarray(samples[baseline])
    return {
        name: dict(seconds=_summary(values), ratio=_summary(np.asarray(values) / base))
        for name, values in samples.items()
    }


def _summary(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """The median and the quartiles."""
    q1, median, q3 = np.quantile(values, (0.25, 0.5, 0.75))
    return dict(median=float(median), q1=float(q1), q3=float(q3))


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


@contextlib.contextmanager
def left_out_if_it_fails(*names: str) -> Iterator[None]:
    """As where CUDA lacks a library, torch a dtype, or the device memory."""
    try:
        yield
    except Exception as error:
        reason = str(error).partition("\n")[0]
        print(f"without {', '.join(names)}: {reason}", file=sys.stderr)
