"""The command line: python -m dml_jax.

An error is one line on the standard error, with exit status 2. `--debug` shows its
traceback.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from dml_jax._shared import array_files
from dml_jax.cli import devices, info, verify
from dml_jax.directml.dxdispatch import MOST_BYTES, Timing, load_model, run_model

_DISPATCH = """\
Runs a DxDispatch model: Microsoft's JSON format for DirectML operators.

The buffers of the model are initialized, its operators are compiled for the device, and
its commands run in order: dispatch, print and writeFile. Files are read and written
only inside the model's folder or the current one. docs/from-directml.md has examples.

The times printed are medians over the iterations without the first (--warmup_samples),
from the call of an operator until its result is on the device. Iterations that take
longer than a second show a progress bar if tqdm is installed (dml_jax[cli]).
"""

_ONNX = """\
Runs an ONNX model of ReverseSequence, Slice, Range, ConstantOfShape, Constant, Identity
and Cast nodes, and prints the dtypes and shapes of its inputs and outputs.

Inputs are .npy files without pickles; outputs are written completely or not at all.
docs/from-onnx.md has an example. Needs onnx (dml_jax[onnx]).
"""

_INFO = """\
Prints the versions of the installed packages, the devices of JAX, the operators with
their names in DirectML and ONNX, and the additions of each feature level of DirectML.

The versions of the ONNX operators are shown if onnx is installed (dml_jax[onnx]).
"""

_VERIFY = """\
Compares every operator with the NumPy reference, bit for bit, on random cases of all
dtypes, including 64-bit ones. Then measures the time of the operator, relative to a
copy of its result on the device. Fills only write, so they may be faster than a copy.

Cases are numbered from --seed on, and the number determines a case: the first wrong one
is printed with the options that repeat it. The exit status is 0 if every case is right,
1 if any is wrong, and 2 for an error in the command line.
"""

# XLA raises RuntimeError, for example if a device has too little memory.
_ERRORS = (ValueError, TypeError, OverflowError, OSError, MemoryError, RuntimeError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: the words after the name of the program; by default those of the
        process.

    Returns:
      The exit status: 0, 1 if `verify` finds a wrong case, 2 for an error in the
      arguments or a model, 130 for an interrupt.
    """
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except KeyboardInterrupt:
        print("dml_jax: interrupted", file=sys.stderr)
        return 130
    except _ERRORS as error:
        if options.debug:
            raise
        print(f"dml_jax: {_one_line(error)}", file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(filter(None, (error.filename, error.strerror)))
    return " ".join((str(error) or type(error).__name__).split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dml_jax",
        description="Sequence operators of DirectML and ONNX on JAX.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        run: Callable[[argparse.Namespace], int | None], summary: str, description: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            run.__name__.removeprefix("_"),
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(run=run)
        text = "show a traceback when something fails"
        command.add_argument("--debug", action="store_true", help=text)
        return command

    _add_dispatch_options(command(_dispatch, "run a DxDispatch model", _DISPATCH))
    _add_onnx_options(command(_onnx, "run an ONNX model", _ONNX))
    command(_info, "show versions, devices, operators and feature levels", _INFO)
    summary = "check the operators on this machine's devices"
    _add_verify_options(command(_verify, summary, _VERIFY))
    return parser


def _add_dispatch_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help="the model, a .json file")
    _add_device(parser, "JAX's default device", "-a", "--adapter")
    count = functools.partial(add, default=1, metavar="N")
    time = functools.partial(add, type=_milliseconds, metavar="MS")
    text = "samples of each dispatch (default: 1)"
    count("-i", "--dispatch_iterations", type=_positive, help=text)
    text = "runs in each sample, whose time is their mean (default: 1)"
    count("-r", "--dispatch_repeat", type=_positive, help=text)
    text = "take samples for this time, in place of -i"
    time("-t", "--milliseconds_to_run", help=text)
    text = "minimum time between the starts of two samples (default: 0)"
    time("-I", "--dispatch_interval", default=0.0, help=text)
    text = "first samples, which do not count (default: 1)"
    count("-w", "--warmup_samples", type=_natural, help=text)
    text = "0: medians; 1: all statistics; 2: each sample as well (default: 0)"
    add("-v", "--timing_verbosity", type=int, choices=(0, 1, 2), default=0, help=text)
    text = "maximum size of the model's buffers together (default: 4 GiB)"
    add("--max_bytes", type=_positive, default=MOST_BYTES, metavar="N", help=text)


def _add_onnx_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the model, an .onnx file")
    for name, text in (
        ("input", "read an input from"),
        ("output", "write an output to"),
    ):
        parser.add_argument(
            f"--{name}",
            type=_assignment,
            action="append",
            default=[],
            metavar="NAME=FILE.npy",
            help=f"{text} a file; may be repeated",
        )
    _add_device(parser, "JAX's default device")


def _add_verify_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_device(parser, "all devices of JAX", metavar="PLATFORM")
    text = "cases of each operator on each device (default: 300)"
    add("--cases", type=_positive, default=300, metavar="N", help=text)
    text = "the number of the first case (default: 0)"
    add("--seed", type=_natural, default=0, metavar="S", help=text)
    text = "one operator, such as slice1 (default: all)"
    add("--only", choices=info.OPERATORS, metavar="OPERATOR", help=text)


def _add_device(
    parser: argparse.ArgumentParser,
    default: str,
    *names: str,
    metavar: str | None = None,
) -> None:
    text = "where to run: cpu, gpu, cuda:1, or part of a device's name"
    text += f" (default: {default})"
    names = (*names, "--device")
    parser.add_argument(*names, dest="device", metavar=metavar, help=text)


def _assignment(text: str) -> tuple[str, pathlib.Path]:
    name, equals, path = text.rpartition("=")
    if not (equals and name) or pathlib.Path(path).suffix.lower() != ".npy":
        raise argparse.ArgumentTypeError(f"must be NAME=FILE.npy; got {text}")
    return name, pathlib.Path(path)


def _number(text: str, kind: type, minimum: int, maximum: str) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = -1
    if not minimum <= number <= float(maximum):
        word = "an integer " if kind is int else ""
        rule = f"must be {word}from {minimum} to {maximum}"
        raise argparse.ArgumentTypeError(f"{rule}; got {text}")
    return number


_natural = functools.partial(_number, kind=int, minimum=0, maximum="1e18")
_positive = functools.partial(_number, kind=int, minimum=1, maximum="1e18")
_milliseconds = functools.partial(_number, kind=float, minimum=0, maximum="1e12")


def _dispatch(options: argparse.Namespace) -> None:
    model = load_model(options.model, options.max_bytes)
    device = devices.first(options.device)
    report = functools.partial(print, flush=True)
    report(f"Running on '{device.device_kind}'")
    timing = Timing(
        iterations=options.dispatch_iterations,
        repeat=options.dispatch_repeat,
        milliseconds=options.milliseconds_to_run,
        interval=options.dispatch_interval,
        warmup_samples=options.warmup_samples,
        verbosity=options.timing_verbosity,
    )
    with jax.default_device(device):
        run_model(model, timing, report, _progress)


def _onnx(options: argparse.Namespace) -> None:
    try:
        from dml_jax import onnx_backend
        from dml_jax.onnx_backend._model import is_untyped
    except ImportError as error:
        raise RuntimeError(f"{error}: install dml_jax[onnx]") from None
    device = devices.first(options.device)
    model = onnx_backend.prepare(onnx_backend.load_model(options.model))
    model.device = device
    unknown = [name for name, _ in options.output if name not in model.output_names]
    if unknown:
        names = ", ".join(model.output_names)
        raise ValueError(f"`--output` must be one of {names}; got {', '.join(unknown)}")
    _require_distinct("--input", [name for name, _ in options.input])
    _require_distinct(
        "--output", [os.path.realpath(path) for _, path in options.output]
    )
    inputs = {}
    for name, path in options.input:
        inputs[name] = _read(path)
        dtype = inputs[name].dtype
        if name in model.dtypes and is_untyped(dtype, model.dtypes[name]):
            dtype = model.dtypes[name]
        print(f"Input '{name}': {_kind(dtype, inputs[name].shape)}")
    outputs = dict(zip(model.output_names, model.run(inputs), strict=True))
    for name, array in outputs.items():
        print(f"Output '{name}': {_kind(array.dtype, array.shape)}")
    for name, path in options.output:
        array = outputs[name]
        # NumPy's own strings need no pickles.
        array_files.write(path, array.astype(str) if array.dtype.kind == "O" else array)


def _info(_: argparse.Namespace) -> None:
    print(info.report())


def _verify(options: argparse.Namespace) -> int:
    text = options.device
    return verify.verify(
        devices=devices.every() if text is None else devices.named(text),
        numbers=range(options.seed, options.seed + options.cases),
        only=options.only,
        report=functools.partial(print, flush=True),
        progress=_progress,
        debug=options.debug,
    )


def _require_distinct(option: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(
                f"`{option}` must be given once for each; got {value} twice"
            )


def _read(path: pathlib.Path) -> np.ndarray:
    try:
        return np.asarray(array_files.read(path))
    except ValueError as error:
        raise ValueError(f"{path}: must be .npy without pickles ({error})") from None


def _kind(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    name = "string" if dtype.kind == "O" else dtype
    return f"{name}[{','.join(map(str, shape))}]"


def _progress(iterations: Iterable[int], name: str) -> Iterable[int]:
    """The iterations with a progress bar, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return iterations
    total = len(iterations) if isinstance(iterations, range) else None
    return tqdm(iterations, desc=name, total=total, delay=1, disable=None, leave=False)
