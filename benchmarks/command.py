"""The command line: python -m benchmarks.

An error is one line on the standard error, with exit status 2.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import jax

from benchmarks import (
    compare,
    measure,
    networks,
    random_shapes,
    readers,
    real_models,
    recurrent,
    results,
    scaling,
    session,
    tables,
    workloads,
)

_ABOUT = """\
Measures dml_jax and its peers against the speed of memory.

  python -m benchmarks record --seconds 480     the operators of docs/performance.md
  python -m benchmarks run --group slice fill   the workloads of some groups
  python -m benchmarks run --only 'rows/*16'    those with such names
  python -m benchmarks random --seconds 300     random shapes of each layout
  python -m benchmarks recurrent --seconds 300  LSTMs, and those of other libraries
  python -m benchmarks scale                    on 1, 2, 4, ... devices
  python -m benchmarks data-parallel            a training step on 1 and 2 devices
  python -m benchmarks models FOLDER            ONNX models that packages ship
  python -m benchmarks readers FOLDER           which libraries read and train them
  python -m benchmarks networks --seconds 1500  training networks of torch
  python -m benchmarks show benchmarks/results/readers-cpu.json
  python -m benchmarks compare old.json new.json
  python -m benchmarks plot benchmarks/results/random-gpu.json
  python -m benchmarks tables                   the figures into the documents

A run prints its figures, as `show` does, and writes them to a JSON file, by default in
benchmarks/results, where the name of a run of some workloads has -part in it. A figure
is a speed in per cent of that of a baseline that is measured in turns with it.
The exit status is 1 if a workload fails, or its result differs from plain JAX's.
"""
_RECORD = """\
Measures within some time what docs/performance.md shows of the operators on a device:
random shapes for 60 % of it, and then the table of workloads as far as time allows,
fills first.
"""
_PLOT = "Draws a run of random shapes, or one over numbers of devices, with matplotlib."

_HERE = pathlib.Path(__file__).parent
RESULTS = _HERE / "results"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"benchmarks: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and gives the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 130
    except (OSError, ValueError, ImportError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        print("benchmarks:", " ".join(text.split()), file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = _Parser("python -m benchmarks", description=_ABOUT, formatter_class=plain)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, function: Any, about: str | None, *options: str) -> Any:
        added = commands.add_parser(name, description=about, formatter_class=plain)
        added.set_defaults(command=function)
        for option in options:
            added.add_argument(f"--{option}", **shared[option])
        return added.add_argument

    path = functools.partial(dict, type=pathlib.Path)
    about = "default: JAX's"
    shared: dict[str, dict[str, Any]] = dict(
        device=dict(choices=("cpu", "gpu"), type=_device, default="", help=about),
        output=path(default=RESULTS, metavar="DIR"),
        quick=dict(action="store_true", help="small arrays, few samples"),
        seconds=dict(type=float, default=300, help="default: 300"),
    )
    add("record", _record, _RECORD, "device", "output", "seconds")
    option = add("run", _run, workloads.__doc__, "device", "output", "quick")
    option("--only", metavar="PATTERN", help="workloads whose name has this; * and ?")
    groups = workloads.GROUPS
    option("--group", nargs="+", choices=groups, help=", ".join(groups))
    option("--seconds", type=float, default=math.inf, help="default: no limit")
    about = random_shapes.__doc__
    option = add("random", _random, about, "device", "output", "seconds")
    option("--seed", type=int, default=0, help="of the shapes (default: 0)")
    about = recurrent.__doc__
    option = add("recurrent", _recurrent, about, "device", "output", "seconds", "quick")
    option("--seed", type=int, default=0, help="of the shapes (default: 0)")
    add("scale", _scale, scaling.__doc__, "device", "output", "quick")
    about = recurrent.DATA_PARALLEL
    add("data-parallel", _data_parallel, about, "device", "output", "quick")
    option = add("models", _models, real_models.__doc__, "output", "quick")
    option("folder", **path(help="of the wheels"))
    about = "without JAX's asynchronous dispatch on CPUs"
    option("--synchronous", action="store_true", help=about)
    option = add("readers", _readers, readers.__doc__, "device", "output")
    option("folder", **path(help="of the wheels"))
    option("--train", action="store_true", help="measure a step of training")
    option("--only", metavar="PATTERN", help="models whose name is this; * and ?")
    about = networks.__doc__
    option = add("networks", _networks, about, "output", "seconds", "quick")
    option("--device", **dict(shared["device"], type=_device_of_torch))
    option("--only", metavar="PATTERN", help="networks whose name is this; * and ?")
    option = add("show", _show, "Prints the figures of a run.")
    option("result", **path())
    option = add("compare", _compare, compare.__doc__)
    option("old", **path())
    option("new", **path())
    option("--tolerance", type=float, default=1.15, help="default: 1.15")
    option = add("plot", _plot, _PLOT)
    option("result", **path())
    images = _HERE.parent / "docs" / "images"
    option("--output", **path(default=images, metavar="DIR"))
    option = add("tables", _tables, tables.__doc__)
    option("--check", action="store_true", help="only say whether one would change")
    return parser


# Runs ---------------------------------------------------------------------------------


def _device(text: str) -> str:
    device = text or ("cpu" if jax.default_backend() == "cpu" else "gpu")
    try:
        jax.devices(device)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"JAX has no {device} here") from None
    return device


def _device_of_torch(text: str) -> str:
    """A device that JAX shares with torch, if JAX does not compute on it yet."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return _device(text)


def _record(options: argparse.Namespace) -> int:
    end = time.monotonic() + options.seconds
    vars(options).update(seed=0, quick=False, only=None, group=None)
    options.seconds *= 0.6
    status = _random(options)
    options.seconds = end - time.monotonic()
    return status | _run(options)


def _run(options: argparse.Namespace) -> int:
    device, most = options.device, 2**20 if options.quick else None
    selected = [
        workload
        for workload in workloads.workloads(device, most)
        if workload.group in (options.group or [workload.group])
        and fnmatch.fnmatchcase(workload.name, f"*{options.only or ''}*")
    ]
    if not selected:
        raise ValueError(f"no workload of the groups is named like {options.only!r}")
    settings = measure.QUICK if options.quick else measure.SETTINGS[device]
    made = session.records(selected, device, settings, options.seconds)
    return _finish(options, "workloads", made)


def _random(options: argparse.Namespace) -> int:
    device = options.device
    shapes = random_shapes.random_workloads(options.seed, device)
    made = session.records(shapes, device, measure.QUICK, options.seconds)
    return _finish(options, "random", made)


def _recurrent(options: argparse.Namespace) -> int:
    names = "device", "seconds", "seed", "quick"
    made = recurrent.records(*(getattr(options, name) for name in names))
    return _finish(options, "recurrent", made)


def _scale(options: argparse.Namespace) -> int:
    made = scaling.records(options.device, options.quick)
    return _finish(options, "scaling", made)


def _data_parallel(options: argparse.Namespace) -> int:
    made = recurrent.data_parallel_records(options.device, options.quick)
    return _finish(options, "data-parallel", made)


def _models(options: argparse.Namespace) -> int:
    options.device = "cpu"
    folder, kind = vars(options).pop("folder"), "models"
    if options.synchronous:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        kind = "models-synchronous"
    return _finish(options, kind, real_models.records(folder, options.quick))


def _readers(options: argparse.Namespace) -> int:
    folder, only = vars(options).pop("folder"), options.only or "*"
    if options.train:
        made = readers.training_records(folder, only, options.device)
        return _finish(options, "model-training", made)
    options.device = "cpu"
    return _finish(options, "readers", readers.records(folder, only))


def _networks(options: argparse.Namespace) -> int:
    device, seconds, quick = options.device, options.seconds, options.quick
    made = networks.records(device, seconds, options.only or "*", quick)
    return _finish(options, "networks", made)


def _finish(
    options: argparse.Namespace, kind: str, records: Iterable[dict[str, Any]]
) -> int:
    """Measures, writes the file of the run and prints its figures."""
    options.output.mkdir(parents=True, exist_ok=True)
    told = vars(options) | dict(kind=kind)
    for name in ("command", "output", "seconds"):
        told.pop(name, None)
    is_part = any(told.get(name) for name in ("quick", "only", "group"))
    suffix = "-part" if is_part and options.output == RESULTS else ""
    path = options.output / f"{kind}-{options.device}{suffix}.json"
    jax.config.update("jax_enable_compilation_cache", False)
    with jax.default_device(jax.devices(options.device)[0]):
        found = results.document(told, _saved(told, records, path))
    results.save(found, path)
    print(tables.whole(found))
    return int(any(not record["candidates"] for record in found["records"]))


def _saved(
    told: dict[str, Any], records: Iterable[dict[str, Any]], path: pathlib.Path
) -> Iterator[dict[str, Any]]:
    """The records, each of which is saved: a run may be stopped."""
    found = []
    for record in records:
        found.append(record)
        results.save(results.document(told, found), path)
        yield record


# What can be read from results --------------------------------------------------------


def _show(options: argparse.Namespace) -> int:
    print(tables.whole(results.load(options.result)))
    return 0


def _compare(options: argparse.Namespace) -> int:
    old, new = results.load(options.old), results.load(options.new)
    text, slower = compare.table(old, new)
    print(text)
    return int(slower > options.tolerance)


def _plot(options: argparse.Namespace) -> int:
    found = results.load(options.result)
    from benchmarks import plot  # which needs matplotlib, and nothing else does

    print(plot.save(found, options.output))
    return 0


def _tables(options: argparse.Namespace) -> int:
    root = _HERE.parent
    for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = tables.rewritten(path, RESULTS)
        if text == path.read_text(encoding="utf-8"):
            continue
        if options.check:
            print(f"{path}: the figures are not those of the results")
            return 1
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0
