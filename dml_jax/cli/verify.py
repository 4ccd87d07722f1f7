"""The `verify` command: compares the operators on devices with the reference.

A case is one call on random data. Its number determines the dtype, the layout and the
seed of the data. Cases cycle through dtypes and layouts, so a few hundred cover all of
them with few compilations.
"""

import argparse
import functools
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dml_jax.cli import common_options, devices, info, printing
from dml_jax.cli.verify_cases import ROWS, Case, Row, large_case

SUMMARY = "check the operators on this machine's devices"
DESCRIPTION = """\
Compares every operator with the NumPy reference on random cases of all dtypes,
including 64-bit ones: bit for bit, but for sequences of floats, which may differ by one
unit in the last place. Then measures the time of the operator, relative to a
copy of its result on the device. Fills only write, so they may be faster than a copy.

Cases are numbered from --seed on, and the number determines a case: the first wrong one
is printed with the options that repeat it. The exit status is 0 if every case is right,
1 if any is wrong, and 2 for an error in the command line.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options to the command's parser."""
    add = parser.add_argument
    common_options.add_device(parser, default="all devices of JAX")
    text = "cases of each operator on each device (default: 300)"
    add("--cases", type=common_options.positive, default=300, metavar="N", help=text)
    text = "the number of the first case (default: 0)"
    add("--seed", type=common_options.natural, default=0, metavar="S", help=text)
    text = "one operator, such as slice1 (default: all)"
    add("--only", choices=info.OPERATORS, metavar="OPERATOR", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Compares and times the operators, and prints a table: 1 if any case is wrong."""
    numbers = range(arguments.seed, arguments.seed + arguments.cases)
    name = arguments.device
    found_devices = devices.every() if name is None else devices.named(name)
    rows = [row for row in ROWS if arguments.only in (None, row.function)]
    report, problems = printing.print_lines, []
    report(_line("device", "operator", "cases", "wrong", "ratio to a copy"))
    for device in found_devices:
        for row in rows:
            found = [
                problem
                for number in printing.progress(numbers, row.name)
                if (problem := _problem(row, number, device, arguments.debug))
            ]
            ratio = "-" if found else f"{_ratio(row, device):.2f}"
            counts = str(len(numbers)), str(len(found))
            report(_line(devices.name_of(device), row.name, *counts, ratio))
            problems += found
    total = len(found_devices) * len(rows) * len(numbers)
    if problems:
        report(f"Wrong: {len(problems)} of {total} cases; the first is {problems[0]}")
        return 1
    report(f"Right: all {total} cases equal the reference.")
    return 0


def _line(device: str, operator: str, cases: str, wrong: str, ratio: str) -> str:
    return f"{device:<8}  {operator:<26}  {cases:>6}  {wrong:>6}  {ratio:>15}"


def _problem(row: Row, number: int, device: Any, debug: bool) -> str:
    """What is wrong with a case and how to repeat it; empty if it is right."""
    dtypes = row.dtypes
    if device.platform == "tpu":  # which has no float64 that keeps every bit
        dtypes = [dtype for dtype in dtypes if dtype != np.float64]
    case, dtype = row.case(number, dtypes)
    with jax.enable_x64(dtype.itemsize == 8), np.errstate(all="ignore"):
        expected = case.expected()
        try:
            call = _call(case, device)
            if number % 5 == 0:  # a program in which the arrays are literals
                call = jax.jit(call)
            with jax.default_device(device):
                problem = _difference(np.asarray(call()), expected, row.function)
        except Exception as error:
            if debug:
                traceback.print_exc()
            problem = " ".join(f"{type(error).__name__}: {error}".split())
    if not problem:
        return ""
    name = devices.name_of(device)
    return (
        f"{row.name} of {dtype} on {name}, {_described(case)}: {problem}; repeat it "
        f"with --device {name} --only {row.function} --cases 1 --seed {number}"
    )


def _difference(actual: np.ndarray, expected: np.ndarray, function: str) -> str:
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        kinds = (f"{a.dtype} of shape {a.shape}" for a in (actual, expected))
        return " instead of ".join(kinds)
    if function == "fill_value_sequence" and actual.dtype.kind not in "iu":
        different = ~within_a_unit(actual, expected)
    else:
        different = (_bytes(actual) != _bytes(expected)).any(axis=1)
    count = np.count_nonzero(different)
    return f"{count} of {actual.size} elements differ" if count else ""


def within_a_unit(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Which floats of a sequence differ by at most one unit in the last place.

    NaNs are equal, and zeros have a sign. In float64, products are rounded, too, or
    overflow, so the unit is that of the largest element, and an infinity may be a NaN.
    Some platforms flush subnormal numbers to zero: a start, a result, or a delta, which
    the position of an element multiplies.
    """
    info = ml_dtypes.finfo(expected.dtype)
    with np.errstate(invalid="ignore"):  # by signalling NaNs and differences of inf
        x, y = actual.astype(np.float64), expected.astype(np.float64)
        error = np.abs(x - y)
    are_alike = (x == y) | (np.isnan(x) & np.isnan(y))
    size = np.abs(y)
    if expected.dtype == np.float64:
        are_alike |= ~np.isfinite(x) & ~np.isfinite(y)
        size = np.full_like(y, size.max(initial=0, where=np.isfinite(y)))
    exponents = np.maximum(np.frexp(size)[1] - 1, int(info.minexp))
    tolerance = np.ldexp(1.0, exponents - int(info.nmant))
    if info.minexp <= np.finfo(np.float32).minexp:
        tolerance = np.maximum(tolerance, y.size * float(info.smallest_normal))
    has_sign = (x != 0) | (y != 0) | (np.signbit(x) == np.signbit(y))
    return has_sign & (are_alike | (error <= tolerance))


def _bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of each element, as a row."""
    return np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)


def _call(case: Case, device: Any) -> Callable[[], jax.Array]:
    """The call of a case, with the arrays on a device."""
    return functools.partial(case.run, **jax.device_put(dict(case.arrays), device))


def _described(case: Case) -> str:
    """The shapes of the arrays, and the other arguments."""
    words = [
        f"{name} of shape {np.shape(array)}" if np.ndim(array) else f"{name}={array}"
        for name, array in case.arrays.items()
    ]
    return ", ".join(
        words + [f"{name}={value}" for name, value in case.options.items()]
    )


def _ratio(row: Row, device: Any) -> float:
    """The time of an operator divided by that of a copy of its result.

    The result is 16 MiB of float32 on a CPU, 64 MiB elsewhere. The operator and the
    copy are timed alternately, and the ratio is the median over the rounds.
    """
    rows = 1024 if device.platform == "cpu" else 4096
    call = _call(large_case(row, rows), device)
    copy = functools.partial(jax.jit(jnp.copy), call())
    _seconds(copy, 1)
    calls = 1 + int(0.01 / _seconds(copy, 1))
    rounds = [_seconds(call, calls) / _seconds(copy, calls) for _ in range(9)]
    return statistics.median(rounds)


def _seconds(call: Callable[[], jax.Array], calls: int) -> float:
    """The time of calls that are dispatched without waiting for the results."""
    start = time.perf_counter()
    result = None
    for _ in range(calls):
        result = call()
    jax.block_until_ready(result)
    return time.perf_counter() - start
