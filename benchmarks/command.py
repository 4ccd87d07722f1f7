"""The command line: python -m benchmarks.

An error is one line on the standard error, with exit status 2.
"""

from __future__ import annotations

import argparse
import fnmatch
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax

from benchmarks import (
    compare,
    onnx_models,
    predictions,
    results,
    scaling,
    session,
    sweep,
    tables,
    tpu_compiler,
    training,
)
from benchmarks.tpu_compiler import GENERATIONS
from benchmarks.workloads import GROUPS, RANDOM_KINDS, Device, Workload, workloads

Command = Callable[[argparse.Namespace], int]

_ABOUT = """\
Measures dml_jax and its peers against the speed of memory.

  python -m benchmarks run --quick              a few minutes, small arrays
  python -m benchmarks run --group slice fill   some of the groups, at full size
  python -m benchmarks run --only 'rows/*16'    the workloads with such names
  python -m benchmarks sweep --seconds 600      random shapes of each kind
  python -m benchmarks scale                    on 1, 2, 4, ... devices
  python -m benchmarks train                    steps of bidirectional networks
  python -m benchmarks onnx                     recurrent models, and ONNX Runtime
  python -m benchmarks tpu                      predicted by TPU's compiler
  python -m benchmarks compare old.json new.json
  python -m benchmarks plot new.json
  python -m benchmarks tables                   its figures into the documents
"""

_RUN = """\
Runs workloads, prints a table of ratios and writes a JSON file.

A figure is a multiple of the time of a baseline that is measured in turns with it: a
memcpy of the bytes that have to move, a memset for fills, the compiled function for
latency, the plain idiom for compile times. Peers that are not installed are left out.

A quick run has a sixteenth of the elements and fewer samples, and checks dml_jax
against the reference first.
"""

_SWEEP = """\
Measures random shapes until the time is over, prints the least, the 5th percentile and
the median of the share of a memcpy's speed, or a memset's, for each kind and dtype, and
writes a JSON file with every shape. The kinds are

  rows, features, time-major   [B, T], [B, T, F] and [T, B, F]
  flat                         [T, B]: a length for each column
  columns                      [B, H, T, F] with lengths [B, H, 1, F]
  slices, fills                of two to four dimensions

Half of the fills with floats have values with fractions. A seed gives the same shapes
on every machine, and --kinds does not change them. The exit status is 1 if a shape
fails or its result differs from plain JAX's. The results of fills are not compared.
"""

_SCALE = """\
Reverses sharded arrays on 1, 2, 4, ... devices, along an axis that is sharded or not.
Prints a table of ratios and writes a JSON file, like `run`.

1 is linear scaling where the axis is not sharded. Where it is, 1 is the time in which
each device sends its shard to the next one; xla is the plain idiom, partitioned by XLA.

A quick run has a 64th of the elements and fewer samples.
"""

_TRAIN = """\
Trains bidirectional networks for a step, with the reversals of dml_jax, of flax and of
plain JAX: a GRU and two layers of LSTMs, 37 sequences of 777 frames of 80 bands in
bfloat16. Prints a table of ratios and the share of the time in reversals, and writes a
JSON file, like `run`.

1 is the time of the same network without reversals. The share is that of the kernels
that reverse, in a profile; a kernel may do something else, too.

A quick run has 20 steps and a state of 16.
"""

_ONNX = """\
Runs recurrent ONNX models with the operators of torch's exports: 200 steps of 16
sequences, 64 features, two bidirectional layers with a state of 128; and an acoustic
model of a convolution and one layer. Prints a table of ratios and writes a JSON file,
like `run`.

1 is the time of ONNX Runtime on the CPU of the same machine, also for a GPU. Results
that differ from its by more than rounding are an error. Needs onnx and onnxruntime.

A quick run has 20 steps and a state of 16.
"""

_TPU = """\
Compiles the workloads for each generation of TPUs, on a machine without one, and reads
their cost from the compiler's schedules. Prints a table of ratios and writes a JSON
file, like `run`. Nothing runs. Needs the package libtpu, which `pip install 'jax[tpu]'`
installs.

The limit is the time to read and write the bytes that have to move. A ratio is marked
as a lower bound if a loop has as many trips as the data say, if work is done by a
SparseCore, or if the clock of a generation is not published (TPU7x): then only the
bytes are known. The cycles are printed in any case.

--random 60 adds 60 random shapes of each kind: rows, features, time-major, flat (time
and batch), columns (a length for each column), slices and fills.
"""

_COMPARE = """\
Compares dml_jax's multiples of the baseline in two runs. A change is marked where the
quartiles of the two runs do not overlap.

The exit status is 1 if any workload is so marked and slower by more than the tolerance.
"""

_PLOT = """\
Draws a PNG for each group of a run, or scaling.png for a run of `scale`. Needs
matplotlib.
"""

_TABLES = """\
Puts the figures of benchmarks/results into Markdown documents, between the two lines

  <!-- figures: gpu reverse float32 uint8; dml_jax jnp -->
  <!-- end of figures -->

of which the first one selects the table:

  gpu reverse float32 uint8; dml_jax jnp  rows of layouts and dtypes
  gpu fill; dml_jax called torch          rows of workloads, a column for each candidate
  gpu cpu latency; dml_jax                rows of functions, a column for each device
  tpu reverse v5e v6e; dml_jax jnp        rows of workloads, columns for each TPU
  tpu random v5e v6e; dml_jax             rows of kinds: the median and the least
  gpu random; called jnp                  rows of kinds and dtypes: a sweep's shares
  gpu training; unreversed jnp dml_jax    rows of networks: the time of a step
  gpu cpu tpu gains v5e v6e; dml_jax      rows of kinds: how many times plain JAX
  gpu machine                             a sentence: the machine, versions and the day

A figure is a speed in per cent of the baseline's. If a marker is not understood, no
document is written.

With --check nothing is written, and the exit status is 1 if a document would change.
"""

_HERE = pathlib.Path(__file__).parent
_RESULTS = _HERE / "results"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"benchmarks: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and gives the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("benchmarks: interrupted, nothing is written", file=sys.stderr)
        return 130
    except (OSError, ValueError, ImportError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        print("benchmarks:", " ".join(text.split()), file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    def add(name: str, function: Command, about: str, summary: str) -> Any:
        parser = commands.add_parser(
            name, help=summary, description=about, formatter_class=plain
        )
        parser.set_defaults(command=function)
        return parser.add_argument

    plain = argparse.RawDescriptionHelpFormatter
    parser = _Parser("python -m benchmarks", description=_ABOUT, formatter_class=plain)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    option = add("run", _run, _RUN, "measure")
    option("--device", choices=("cpu", "gpu"), help="by default what JAX finds")
    option("--quick", action="store_true", help="small arrays, few samples, a check")
    option("--only", metavar="PATTERN", help="workloads whose name has this; * and ?")
    option("--group", nargs="+", choices=GROUPS, metavar="NAME", help=", ".join(GROUPS))
    option(
        *("--output", "-o"),
        type=pathlib.Path,
        metavar="FILE",
        help="the JSON file; by default benchmarks/results/<device>.json, with -quick "
        "or -part in its name for runs that are not whole",
    )
    option = add("sweep", _sweep, _SWEEP, "measure random shapes")
    option("--device", choices=("cpu", "gpu"), help="by default what JAX finds")
    option("--seed", type=int, default=0, help="of the shapes; 0 unless told")
    option("--seconds", "-s", type=float, default=600, help="600 unless told")
    option("--kinds", nargs="+", choices=RANDOM_KINDS, default=RANDOM_KINDS)
    option(
        *("--output", "-o"),
        type=pathlib.Path,
        metavar="FILE",
        help="the JSON file; by default benchmarks/results/sweep-<device>.json",
    )
    option = add("scale", _scale, _SCALE, "measure on several devices")
    option("--device", choices=("cpu", "gpu"), help="by default what JAX finds")
    option("--quick", action="store_true", help="small arrays, few samples")
    option(
        *("--output", "-o"),
        type=pathlib.Path,
        metavar="FILE",
        help="the JSON file; by default benchmarks/results/scaling-<device>.json, with "
        "-quick in its name for quick runs",
    )
    option = add("train", _train, _TRAIN, "measure training steps")
    option("--device", choices=("cpu", "gpu"), help="by default what JAX finds")
    option("--quick", action="store_true", help="small arrays, few samples")
    option(
        *("--output", "-o"),
        type=pathlib.Path,
        metavar="FILE",
        help="the JSON file; by default benchmarks/results/training-<device>.json, "
        "with -quick in its name for quick runs",
    )
    option = add("onnx", _onnx, _ONNX, "measure recurrent ONNX models")
    option("--device", choices=("cpu", "gpu"), help="by default what JAX finds")
    option("--quick", action="store_true", help="small arrays, few samples")
    option(
        *("--output", "-o"),
        type=pathlib.Path,
        metavar="FILE",
        help="the JSON file; by default benchmarks/results/onnx-<device>.json, with "
        "-quick in its name for quick runs",
    )
    option = add("tpu", _tpu, _TPU, "predict for TPUs")
    generations, groups = list(GENERATIONS), predictions.GROUPS
    option("--generation", nargs="+", choices=generations, default=generations)
    option("--only", metavar="PATTERN", help="workloads whose name has this; * and ?")
    option("--group", nargs="+", choices=groups, help=", ".join(groups))
    option("--random", type=int, default=0, metavar="COUNT", help="of random shapes")
    option("--seed", type=int, default=0, help="of the random shapes; 0 unless told")
    option(
        *("--seconds", "-s"),
        type=float,
        default=30,
        help="to compile a program of plain JAX, which otherwise has no figure; 30 "
        "unless told",
    )
    option(
        *("--output", "-o"),
        type=pathlib.Path,
        metavar="FILE",
        help="the JSON file; by default benchmarks/results/tpu.json, with -part in its "
        "name for runs that are not whole",
    )
    option = add("compare", _compare, _COMPARE, "find what became slower")
    option("old", type=pathlib.Path)
    option("new", type=pathlib.Path)
    option("--tolerance", type=float, default=1.15, help="1.15 unless told")
    option = add("plot", _plot, _PLOT, "draw a run")
    option("result", type=pathlib.Path)
    option("--output", "-o", type=pathlib.Path, metavar="DIR", help="beside the result")
    option = add("tables", _tables, _TABLES, "put figures into documents")
    option(
        "documents",
        nargs="*",
        type=pathlib.Path,
        default=[_HERE.parent / "docs" / "performance.md", _HERE.parent / "README.md"],
        metavar="DOCUMENT",
        help="docs/performance.md and README.md unless told",
    )
    option("--check", action="store_true", help="only say whether one would change")
    return parser


# Commands -----------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    device = _device(options)
    table = workloads(device, "quick" if options.quick else "full")
    selected = _selected(table, options)
    path = options.output or _default_path(device, options)
    _require_no_folder(path)
    told = dict(
        device=device, quick=options.quick, only=options.only, groups=options.group
    )
    found = results.document(told, session.records(selected, device, options.quick))
    results.save(found, path)
    print(results.table(found))
    return 0


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


def _device(options: argparse.Namespace) -> Device:
    device = options.device or ("cpu" if jax.default_backend() == "cpu" else "gpu")
    try:
        jax.devices(device)
    except RuntimeError:
        raise ValueError(f"JAX has no {device} here") from None
    return device


def _require_no_folder(path: pathlib.Path) -> None:
    if path.is_dir():
        raise ValueError(f"{path}: is a folder, not a file to write")


def _default_path(device: str, options: argparse.Namespace) -> pathlib.Path:
    part = "-part" if options.only or options.group else ""
    name = f"{device}{'-quick' if options.quick else ''}{part}.json"
    return _RESULTS / name


def _sweep(options: argparse.Namespace) -> int:
    device = _device(options)
    path = options.output or _RESULTS / f"sweep-{device}.json"
    _require_no_folder(path)
    seed, seconds, kinds = options.seed, options.seconds, options.kinds
    made = list(sweep.records(device, seed, seconds, kinds))
    failed = [record["name"] for record in made if not record["candidates"]]
    told = dict(device=device, quick=False, seed=seed, seconds=seconds, failed=failed)
    records = (record for record in made if record["candidates"])
    found = results.document(told, records)
    results.save(found, path)
    print(sweep.table(found))
    return 1 if failed else 0


def _scale(options: argparse.Namespace) -> int:
    device = _device(options)
    name = f"scaling-{device}{'-quick' if options.quick else ''}.json"
    path = options.output or _RESULTS / name
    _require_no_folder(path)
    count = len(jax.devices(device))
    told = dict(device=device, quick=options.quick, kind="scaling", device_count=count)
    found = results.document(told, scaling.records(device, options.quick))
    results.save(found, path)
    print(scaling.table(found))
    return 0


def _train(options: argparse.Namespace) -> int:
    device = _device(options)
    name = f"training-{device}{'-quick' if options.quick else ''}.json"
    path = options.output or _RESULTS / name
    _require_no_folder(path)
    told = dict(device=device, quick=options.quick, kind="training")
    found = results.document(told, training.records(device, options.quick))
    results.save(found, path)
    print(training.table(found))
    return 0


def _onnx(options: argparse.Namespace) -> int:
    device = _device(options)
    name = f"onnx-{device}{'-quick' if options.quick else ''}.json"
    path = options.output or _RESULTS / name
    _require_no_folder(path)
    told = dict(device=device, quick=options.quick, kind="onnx")
    found = results.document(told, onnx_models.records(device, options.quick))
    results.save(found, path)
    print(results.table(found))
    return 0


def _tpu(options: argparse.Namespace) -> int:
    if not tpu_compiler.is_installed():
        raise ValueError("needs the package libtpu: pip install 'jax[tpu]'")
    random = predictions.RandomShapes(options.random, options.seed)
    selected = _selected(predictions.table_of_workloads(random), options)
    is_part = len(options.generation) < len(GENERATIONS) or not options.random
    is_part = is_part or options.only or options.group
    path = options.output or _RESULTS / f"tpu{'-part' if is_part else ''}.json"
    _require_no_folder(path)
    told = dict(device="tpu", quick=False, only=options.only, groups=options.group)
    told |= random._asdict()
    made = predictions.records(selected, options.generation, random, options.seconds)
    found = results.document(told, made)
    results.save(found, path)
    print(predictions.table(found))
    return 0


def _compare(options: argparse.Namespace) -> int:
    found = compare.changes(results.load(options.old), results.load(options.new))
    print(compare.table(found))
    return 1 if compare.regressions(found, options.tolerance) else 0


def _plot(options: argparse.Namespace) -> int:
    found = results.load(options.result)
    from benchmarks import plot  # which needs matplotlib, and nothing else does

    for path in plot.save(found, options.output or options.result.parent):
        print(path)
    return 0


def _tables(options: argparse.Namespace) -> int:
    texts = {path: tables.rewritten(path, _RESULTS) for path in options.documents}
    for path, text in texts.items():
        if text == path.read_text(encoding="utf-8"):
            continue
        if options.check:
            print(f"{path}: the figures are not those of the results")
            return 1
        tables.save(text, path)
        print(path)
    return 0
