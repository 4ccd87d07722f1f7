"""Whether the operators are right on the devices at hand, and how fast they are.

A case is an operator on random data, and its number says which: the dtype, the layout
and the seed of the data follow from it. Dtypes and layouts take turns, so that a few
hundred cases meet all of them and need few programs. The cases of a run are numbered
from its seed on; case n alone is a run of one case with the seed n.

Every bit is compared with `reference`. Only fills make NaNs, of which arithmetic
defines no payload: all NaNs of a fill are alike.

The ratio is the time of a call that gives 16 MiB of float32, 64 MiB where the device is
no CPU, over that of the device's own copy of the result.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.cli.devices import name_of
from dml_jax.cli.verify_cases import ROWS

_TIMED = np.dtype("float32")


def verify(
    devices: Sequence[Any],
    numbers: range,
    only: str | None,
    report: Callable[[str], Any],
    progress: Callable[[range, str], Iterable[int]],
    debug: bool,
) -> int:
    """Compares and times the operators on devices, and prints the table.

    Args:
      devices: the devices.
      numbers: the numbers of the cases.
      only: the name of a function, or None for all.
      report: prints a line.
      progress: goes through the numbers, and shows how far it is under a name.
      debug: whether what an operator raises is raised on, or counts as a wrong case.

    Returns:
      The exit status: 0 where all cases are right, 1 otherwise.
    """
    outcomes = []
    report(_line("device", "operator", "cases", "wrong", "ratio to a copy"))
    for device in devices:
        for row in ROWS:
            if only not in (None, row.function):
                continue
            with jax.debug_nans(False):  # which are among the data
                outcome = _compare(row, device, progress(numbers, row.name), debug)
                ratio = "-" if outcome.wrong else f"{_ratio(row, device):.2f}"
            words = row.name, str(outcome.cases), str(outcome.wrong), ratio
            report(_line(name_of(device), *words))
            outcomes.append(outcome)
    total, wrong = (sum(outcome[i] for outcome in outcomes) for i in (0, 1))
    if not wrong:
        report(f"Right: all {total} cases have every bit of the reference.")
        return 0
    first = next(outcome.first for outcome in outcomes if outcome.wrong)
    report(f"Wrong: {wrong} of {total} cases; the first is {first}")
    return 1


def _line(device, operator, cases, wrong, ratio) -> str:
    return f"{device:<8}  {operator:<26}  {cases:>6}  {wrong:>6}  {ratio:>15}"


# Comparison ---------------------------------------------------------------------------


class _Outcome(NamedTuple):
    """How many cases of how many were wrong, and what to say about the first."""

    cases: int
    wrong: int
    first: str


def _compare(row, device, numbers, debug) -> _Outcome:
    cases, wrong, first = 0, 0, ""
    for number in numbers:
        dtype = row.dtypes[number % len(row.dtypes)]
        layout = row.layouts[number // len(row.dtypes) % len(row.layouts)]
        case = row.make(np.random.default_rng(number), dtype, layout)
        problem = _problem(row, case, dtype, device, debug)
        cases += 1
        if problem:
            wrong += 1
            first = first or (
                f"{row.name} of {dtype} on {name_of(device)}, {_described(case)}: "
                f"{problem}; again with --device {name_of(device)} "
                f"--only {row.function} --cases 1 --seed {number}"
            )
    return _Outcome(cases, wrong, first)


def _problem(row, case, dtype, device, debug) -> str:
    """What is wrong with a case; empty if nothing is."""
    with jax.enable_x64(dtype.itemsize == 8), np.errstate(all="ignore"):
        expected = row.expected(case)
        try:
            actual = np.asarray(row.actual(case, device)())
        except Exception as error:  # whatever it is, the operator did not work
            if debug:
                raise
            return " ".join(f"{type(error).__name__}: {error}".split())
        return _difference(actual, expected, row.function.startswith("fill"))


def _difference(actual, expected, nans_are_alike) -> str:
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        kinds = (f"{a.dtype} of shape {a.shape}" for a in (actual, expected))
        return " instead of ".join(kinds)
    different = _bits(actual) != _bits(expected)
    if nans_are_alike:
        different &= ~((actual != actual) & (expected != expected)).reshape(-1, 1)
    count = np.count_nonzero(different.any(axis=1))
    return f"{count} of {actual.size} elements differ" if count else ""


def _bits(array) -> np.ndarray:
    """The bytes of every element."""
    array = np.ascontiguousarray(array).reshape(-1, 1)
    return array.view(np.uint8)


def _described(case) -> str:
    """A case's shapes, and what of it is small enough to be told."""
    words = [
        f"{name} of shape {np.shape(array)}" if np.ndim(array) else f"{name}={array}"
        for name, array in case.arrays.items()
    ]
    words += [f"{name}={value}" for name, value in case.options.items()]
    return ", ".join(words)


# Time ---------------------------------------------------------------------------------


def _ratio(row, device) -> float:
    """The median over rounds in which the operator and a copy take turns."""
    rows = 1024 if device.platform == "cpu" else 4096
    random = np.random.default_rng(0)
    call = row.actual(row.make(random, _TIMED, row.large(rows)), device)
    copy = functools.partial(jax.jit(jnp.copy), call())
    _seconds(copy, 1)
    calls = 1 + int(0.01 / _seconds(copy, 1))
    rounds = [_seconds(call, calls) / _seconds(copy, calls) for _ in range(9)]
    return statistics.median(rounds)


def _seconds(call, calls) -> float:
    """The time of calls that are queued one after the other."""
    start = time.perf_counter()
    result = None
    for _ in range(calls):
        result = call()
    jax.block_until_ready(result)
    return time.perf_counter() - start
