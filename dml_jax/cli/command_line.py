"""The command line: python -m dml_jax.

What goes wrong is told in one line on the standard error, with exit status 2;
`--debug` shows where in the code.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import dml_jax
from dml_jax._shared import array_files
from dml_jax.cli import devices, interrupts
from dml_jax.directml.dxdispatch import MOST_BYTES, Timing, load_model, run_model

_DISPATCH = """\
Runs a DxDispatch model: Microsoft's JSON format for DirectML operators.

The model's buffers are filled, its operators compiled for the device, and its commands
run in order: dispatch, print and writeFile. Files are read and written below the
model's folder or the current one only. docs/from-directml.md has examples.

The times printed are medians over the iterations, without the first (--warmup_samples),
from the call of an operator until its result is on the device. Iterations that take
longer than a second show a progress bar, if tqdm is installed (dml_jax[cli]).
"""

_ONNX = """\
Runs an ONNX model of ReverseSequence, Slice, Range, ConstantOfShape, Constant, Identity
and Cast nodes, and prints the dtypes and shapes of its inputs and outputs.

Inputs are .npy files without pickles; outputs are written whole or not at all.
docs/from-onnx.md has an example. Needs onnx (dml_jax[onnx]).
"""

_INFO = """\
Prints the versions of what is installed, the devices that JAX has, the operators with
what DirectML and ONNX call them, and what each feature level of DirectML brought.

Versions of ONNX's operators are told where onnx is installed (dml_jax[onnx]).
"""

_VERIFY = """\
Compares every operator with the reference in NumPy, bit for bit, on random cases of all
dtypes, 64-bit ones too; then times it, relative to the device's own copy of its result.
Fills write only, so they may take less than a copy.

Cases are numbered from --seed on, and a number says all about a case: the first one
that is wrong is printed with the options that repeat it alone. The exit status is 0 if
every case is right, 1 if any is wrong, 2 if the command line is.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: the words after the program's name; those of the process by default.

    Returns:
      The exit status: 0, 1 where `verify` finds a wrong case, 2 for what is wrong with
      the arguments or a model, 130 where the user interrupts.
    """
    options = _parser().parse_args(arguments)
    try:
        with interrupts.kept():
            return options.run(options) or 0
    except KeyboardInterrupt:
        print("dml_jax: interrupted", file=sys.stderr)
        return 130
    except _FAILURES as error:
        if options.debug:
            raise
        print(f"dml_jax: {_one_line(error)}", file=sys.stderr)
        return 2


# RuntimeError is what XLA raises, where a device has not enough memory for one.
_FAILURES = (ValueError, TypeError, OverflowError, OSError, MemoryError, RuntimeError)


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(filter(None, (error.filename, error.strerror)))
    text = str(error) or type(error).__name__
    return " ".join(text.split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dml_jax",
        description="Sequence operators of DirectML and ONNX on JAX.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_dispatch(commands)
    _add_onnx(commands)
    _add_info(commands)
    _add_verify(commands)
    return parser


def _add_command(commands, name, run, summary, description):
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    _add_debug(parser)
    return parser


def _add_dispatch(commands) -> None:
    parser = _add_command(
        commands, "dispatch", _dispatch, "run a DxDispatch model", _DISPATCH
    )
    add = parser.add_argument
    add("model", help="the model, a .json file")
    _add_device(parser, "-a", "--adapter", "--device")
    add(
        *("-i", "--dispatch_iterations"),
        type=_positive,
        default=1,
        metavar="N",
        help="samples of each dispatch (default: 1)",
    )
    add(
        *("-r", "--dispatch_repeat"),
        type=_positive,
        default=1,
        metavar="N",
        help="runs in each sample, of which it is the mean (default: 1)",
    )
    add(
        *("-t", "--milliseconds_to_run"),
        type=_milliseconds,
        metavar="MS",
        help="take samples for so long, instead of -i",
    )
    add(
        *("-I", "--dispatch_interval"),
        type=_milliseconds,
        default=0.0,
        metavar="MS",
        help="least time between the starts of two samples (default: 0)",
    )
    add(
        *("-w", "--warmup_samples"),
        type=_natural,
        default=1,
        metavar="N",
        help="first samples that do not count (default: 1)",
    )
    add(
        *("-v", "--timing_verbosity"),
        type=int,
        choices=(0, 1, 2),
        default=0,
        help="0: medians; 1: all statistics; 2: each sample, too (default: 0)",
    )
    add(
        "--max_bytes",
        type=_positive,
        default=MOST_BYTES,
        metavar="N",
        help="the most that the model's buffers may take together (default: 4 GiB)",
    )


def _add_onnx(commands) -> None:
    parser = _add_command(commands, "onnx", _onnx, "run an ONNX model", _ONNX)
    add = parser.add_argument
    add("model", help="the model, an .onnx file")
    for name, text in (("input", "an input from"), ("output", "an output to")):
        add(
            f"--{name}",
            type=_assignment,
            action="append",
            default=[],
            metavar="NAME=FILE.npy",
            help=f"{text} a file; once for each",
        )
    _add_device(parser, "--device")


def _add_info(commands) -> None:
    summary = "show versions, devices, operators and feature levels"
    _add_command(commands, "info", _info, summary, _INFO)


def _add_verify(commands) -> None:
    summary = "check the operators on this machine's devices"
    parser = _add_command(commands, "verify", _verify, summary, _VERIFY)
    add = parser.add_argument
    add(
        "--device",
        metavar="PLATFORM",
        help="where to run: cpu, gpu, cuda:1, or a part of a device's name "
        "(default: every device that JAX has)",
    )
    add(
        "--cases",
        type=_positive,
        default=300,
        metavar="N",
        help="cases of each operator on each device (default: 300)",
    )
    add(
        "--seed",
        type=_natural,
        default=0,
        metavar="S",
        help="the number of the first case (default: 0)",
    )
    add(
        "--only",
        choices=[name for name in dml_jax.__all__ if name != "checked"],
        metavar="OPERATOR",
        help="one operator, such as slice1 (default: all)",
    )


def _add_device(parser, *names) -> None:
    parser.add_argument(
        *names,
        dest="device",
        help="where to run: cpu, gpu, cuda:1, or a part of a device's name "
        "(default: JAX's default device)",
    )


def _add_debug(parser) -> None:
    text = "show a traceback when something fails"
    parser.add_argument("--debug", action="store_true", help=text)


def _assignment(text: str) -> tuple[str, pathlib.Path]:
    name, equals, path = text.rpartition("=")
    if not (equals and name) or pathlib.Path(path).suffix.lower() != ".npy":
        raise argparse.ArgumentTypeError(f"must be NAME=FILE.npy; got {text}")
    return name, pathlib.Path(path)


def _natural(text: str, least: int = 0) -> int:
    number = int(text) if text.isdecimal() and len(text) < 20 else -1
    if not least <= number <= 10**18:
        rule = f"must be an integer from {least} to 10^18"
        raise argparse.ArgumentTypeError(f"{rule}; got {text}")
    return number


def _positive(text: str) -> int:
    return _natural(text, least=1)


def _milliseconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e12:
        raise argparse.ArgumentTypeError(f"must be from 0 to 10^12; got {text}")
    return number


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
    targets = [name for name, _ in options.output]
    unknown = [name for name in targets if name not in model.output_names]
    if unknown:
        names = ", ".join(model.output_names)
        raise ValueError(f"`--output` must be one of {names}; got {', '.join(unknown)}")
    _require_different("--input", [name for name, _ in options.input])
    paths = [os.path.realpath(path) for _, path in options.output]
    _require_different("--output", paths)
    inputs = {}
    for name, path in options.input:
        inputs[name] = _read(path)
        dtype = inputs[name].dtype
        if name in model.dtypes and is_untyped(dtype, model.dtypes[name]):
            dtype = model.dtypes[name]
        print(f"Input '{name}': {_kind(dtype, inputs[name])}")
    outputs = dict(zip(model.output_names, model.run(inputs), strict=True))
    for name, array in outputs.items():
        print(f"Output '{name}': {_kind(array.dtype, array)}")
    for name, path in options.output:
        array = outputs[name]
        # Strings of any length, without pickles.
        array_files.write(path, array.astype(str) if array.dtype.kind == "O" else array)


def _info(options: argparse.Namespace) -> None:
    from dml_jax.cli import info

    print("\n".join(info.lines()))


def _verify(options: argparse.Namespace) -> int:
    from dml_jax.cli.verify import verify

    every = options.device is None
    return verify(
        devices=devices.every() if every else devices.named(options.device),
        numbers=range(options.seed, options.seed + options.cases),
        only=options.only,
        report=functools.partial(print, flush=True),
        progress=_progress,
        debug=options.debug,
    )


def _require_different(option: str, values: list) -> None:
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


def _kind(dtype: Any, array: np.ndarray) -> str:
    name = "string" if dtype.kind == "O" else dtype
    return f"{name}[{','.join(map(str, array.shape))}]"


def _progress(iterations, name):
    try:
        from tqdm import tqdm
    except ImportError:
        return iterations
    total = len(iterations) if isinstance(iterations, range) else None
    return tqdm(iterations, desc=name, total=total, delay=1, disable=None, leave=False)
