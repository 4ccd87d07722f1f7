"""A run over random shapes, the kinds and dtypes in turn, until the time is over.

A share of the limit is the speed of a candidate in per cent of that of the baseline.
The figures of a kind are those of its large arrays. The others show from which size on
that speed is reached.

    called           the public function, called eagerly
    dml_jax          in a program of its own
    standalone       the same with implementation="standalone", on a GPU
    jnp              the plain idiom in a program of its own
    *_fused          in a program with one elementwise operation after it
    *_known          in a program that contains start and delta
    *_known_fused    in that program with one elementwise operation after it
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import candidates, measure, programs
from benchmarks.measure import Candidate, Settings
from benchmarks.programs import Arrays
from benchmarks.results import Document
from benchmarks.workloads import (
    RANDOM_KINDS,
    Device,
    Workload,
    min_large_bytes,
    random_workloads,
)

_SETTINGS = Settings(rounds=6, batch=0.005)
_UNFUSED = ("called", "dml_jax", "standalone", "jnp")
_FORMS = (*_UNFUSED, "dml_jax_fused", "jnp_fused")

Record = Mapping[str, Any]


def records(
    device: Device, seed: int, seconds: float, kinds: Sequence[str]
) -> Iterator[Record]:
    """Measures random workloads for some time, and at least one of each kind.

    A workload that fails, or whose result is not that of the plain idiom, gives a line
    on the standard error and a record without candidates. The idiom of a sequence
    rounds differently, so sequences are not compared.
    """
    end = time.monotonic() + seconds
    jax.config.update("jax_enable_compilation_cache", False)
    for count, workload in enumerate(random_workloads(seed, device, kinds)):
        if time.monotonic() > end and count >= len(kinds):
            return
        with (
            jax.default_device(jax.devices(device)[0]),
            jax.enable_x64(workload.dtype.itemsize == 8),
        ):
            try:
                found = _figures(workload, device)
            except Exception as error:  # one shape of hundreds
                reason = str(error).partition("\n")[0]
                print(f"{workload.name}: {reason}", file=sys.stderr)
                found = {}
        options = {k: v for k, v in workload.options.items() if k != "value_data_type"}
        yield workload.description | dict(options=options, candidates=found)


def _figures(workload: Workload, device: Device) -> dict[str, Any]:
    arrays = programs.arrays(workload)
    functions = candidates.functions(workload, device)
    found = [candidates.baseline(workload, device)]
    found += candidates.called(workload, arrays)
    found += _compiled(functions, arrays)
    if workload.operator == "fill_value_sequence":
        found += _known(functions, arrays)
    else:
        _check(found)
    return measure.summaries(measure.samples(found, _SETTINGS), workload.baseline)


def _compiled(
    functions: Mapping[str, Callable[..., Any]], arrays: Arrays
) -> list[Candidate]:
    """The functions, compiled in threads: that takes most of the time of a sweep."""
    lowered = [jax.jit(function).lower(*arrays) for function in functions.values()]
    with ThreadPoolExecutor() as pool:
        executables = pool.map(lambda program: program.compile(), lowered)
    return [
        Candidate(name, functools.partial(executable, *arrays))
        for name, executable in zip(functions, executables, strict=True)
    ]


def _known(
    functions: Mapping[str, Callable[..., Any]], arrays: Arrays
) -> list[Candidate]:
    """Programs that contain the scalars of a sequence of floats.

    Integers are left out: XLA on CPU did not compile plain JAX's sequence of 32000
    bytes with three dimensions, whose numbers it knows, in 20 seconds.
    """
    if not jnp.issubdtype(arrays[0].dtype, jnp.floating):
        return []
    # JAX arrays would not count as known.
    scalars = [np.asarray(array)[()] for array in arrays]
    known = {
        f"{name}_known{suffix}": functools.partial(functions[name + suffix], *scalars)
        for name in ("dml_jax", "jnp")
        for suffix in ("", "_fused")
    }
    return _compiled(known, ())


def _check(found: Sequence[Candidate]) -> None:
    made = {c.name: c.call() for c in found if c.name in _UNFUSED}
    expected = made.pop("jnp")
    for name, result in made.items():
        if not _are_equal(result, expected):
            raise ValueError(f"{name} differs from plain JAX")


@jax.jit
def _are_equal(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.all(x == y)


# As text ------------------------------------------------------------------------------


def table(found: Document) -> str:
    """The shares of each kind and dtype, and how often plain JAX is faster."""
    lines = [
        "per cent of the speed of a memcpy or memset: least, 5th percentile, median",
        "of large arrays; and all arrays for which plain JAX is faster by over 10 %",
        "",
        f"{'':21}{'n':>4}" + "".join(f"{name:>16}" for name in _FORMS),
    ]
    lines[-1] += "".join(f"{title:>22}" for title in ("jnp faster", "jnp_fused faster"))
    of_large = groups(found, is_large=True)
    for (kind, dtype), group in groups(found).items():
        large = of_large.get((kind, dtype), [])
        line = f"{kind:11}{dtype:10}{len(large):4}"
        for name in _FORMS:
            shown = shares(large, name)
            line += f"{' '.join(f'{x:.0f}' for x in shown) if shown else '':>16}"
        for suffix in ("", "_fused"):
            ratios = ratios_to_plain_jax(group, suffix)
            behind = sum(ratio > 1.1 for ratio in ratios)
            line += f"{f'{behind} of {len(ratios)}, worst {max(ratios):.1f}':>22}"
        lines.append(line)
    return "\n".join(lines)


def groups(
    found: Document, *, is_large: bool = False
) -> dict[tuple[str, str], list[Record]]:
    """The records by kind and dtype, of large arrays or of all."""
    least = min_large_bytes(found["options"]["device"]) if is_large else 0
    named: dict[tuple[str, str], list[Record]] = {}
    for record in found["records"]:
        if record["bytes_read"] + record["bytes_written"] >= least:
            kind = record["name"].split("/")[1]
            named.setdefault((kind, record["dtype"]), []).append(record)
    order = list(RANDOM_KINDS)
    return dict(sorted(named.items(), key=lambda item: order.index(item[0][0])))


class Shares(NamedTuple):
    """The distribution of a candidate's shares of the limit, in per cent."""

    least: float
    fifth_percentile: float
    median: float


def shares(records: Sequence[Record], candidate: str) -> Shares | None:
    """The shares of a candidate; None if it was not measured."""
    figures = [record["candidates"].get(candidate) for record in records]
    values = [100 / found["ratio"]["median"] for found in figures if found]
    if not values:
        return None
    return Shares(*map(float, np.quantile(values, (0, 0.05, 0.5))))


def ratios_to_plain_jax(records: Sequence[Record], suffix: str) -> list[float]:
    """The time of each program of dml_jax, as a multiple of plain JAX's."""
    return [
        record["candidates"][f"dml_jax{suffix}"]["seconds"]["median"]
        / record["candidates"][f"jnp{suffix}"]["seconds"]["median"]
        for record in records
    ]
