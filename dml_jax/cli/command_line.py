"""The command line: its commands, errors and exit statuses.

An error is one line on the standard error, with exit status 2. `--debug` shows its
traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from dml_jax import _interrupts
from dml_jax._version import __version__
from dml_jax.cli import (
    common_options,
    devices,
    dispatch_command,
    info,
    onnx_command,
    printing,
    run_command,
    verify,
)
from dml_jax.cli.progress import progress

_INFO = """\
Prints the versions of the installed packages, the devices of JAX, the operators with
their names in DirectML and ONNX, and the additions of each feature level of DirectML.

The versions of the ONNX operators are shown if onnx is installed.
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
_CLOSED_PIPE = 141  # that of a program which SIGPIPE ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: the words after the name of the program; by default those of the
        process.

    Returns:
      The exit status: 0, 1 if `verify` finds a wrong case, 2 for an error in the
      arguments or a model, 130 for an interrupt, 141 if the reader of the output has
      closed it.
    """
    options = argparse.Namespace(debug=False)
    try:
        status = _run(arguments, options)
        if sys.stdout:  # None if the shell has closed it
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        _print_error(_interrupts.MESSAGE)
        return _interrupts.STATUS
    except BrokenPipeError:
        return _CLOSED_PIPE
    except Exception as error:
        is_expected = isinstance(error, _ERRORS) and not options.debug
        line = printing.escaped(f"dml_jax: {_one_line(error)}")
        _print_error(line if is_expected else traceback.format_exc().rstrip())
        return 2


def _run(words: Sequence[str] | None, options: argparse.Namespace) -> int:
    parser = _parser()
    try:
        _, unknown = parser.parse_known_args(words, options)
        if unknown:  # the usage of the command is more useful than that of all
            options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as end:  # argparse has printed the help or an error
        return int(end.code or 0)
    if options.run is None:
        parser.print_help(sys.stderr)
        return 2
    return options.run(options) or 0


def _print_error(text: str) -> None:
    if sys.stderr:
        with contextlib.suppress(OSError):  # the status tells
            printing.print_lines(text, sys.stderr)


def _one_line(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return f"the current folder: {error.strerror}"  # which has been deleted
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(filter(None, (error.filename, error.strerror)))
    return " ".join((str(error) or type(error).__name__).split())


class _Parser(argparse.ArgumentParser):
    """A parser whose errors quote arguments, which may come from names of files."""

    def error(self, message: str) -> NoReturn:
        super().error(printing.escaped(message))


def _parser() -> argparse.ArgumentParser:
    is_script = os.path.basename(sys.argv[0]).startswith("dml-jax")
    parser = _Parser(
        prog="dml-jax" if is_script else "python -m dml_jax",
        description="Sequence operators of DirectML and ONNX on JAX.",
        epilog="COMMAND --help lists the options of a command.",
    )
    text = "show the version of dml_jax"
    version = f"dml_jax {__version__}"
    parser.add_argument("--version", action="version", version=version, help=text)
    parser.set_defaults(run=None, parser=parser)
    commands = parser.add_subparsers(metavar="COMMAND")

    def command(
        name: str,
        run: Callable[[argparse.Namespace], int | None],
        summary: str,
        description: str,
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(run=run, parser=command)
        text = "show a traceback when something fails"
        command.add_argument("--debug", action="store_true", help=text)
        return command

    modules = {"run": run_command, "dispatch": dispatch_command, "onnx": onnx_command}
    for name, module in modules.items():
        module.add_options(
            command(name, module.run, module.SUMMARY, module.DESCRIPTION)
        )
    summary = "show versions, devices, operators and feature levels"
    command("info", _info, summary, _INFO)
    summary = "check the operators on this machine's devices"
    _add_verify_options(command("verify", _verify, summary, _VERIFY))
    return parser


def _add_verify_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    common_options.add_device(parser, "all devices of JAX", metavar="PLATFORM")
    text = "cases of each operator on each device (default: 300)"
    add("--cases", type=common_options.positive, default=300, metavar="N", help=text)
    text = "the number of the first case (default: 0)"
    add("--seed", type=common_options.natural, default=0, metavar="S", help=text)
    text = "one operator, such as slice1 (default: all)"
    add("--only", choices=info.OPERATORS, metavar="OPERATOR", help=text)


def _info(_: argparse.Namespace) -> None:
    printing.print_lines(info.report())


def _verify(arguments: argparse.Namespace) -> int:
    text = arguments.device
    return verify.verify(
        devices=devices.every() if text is None else devices.named(text),
        numbers=range(arguments.seed, arguments.seed + arguments.cases),
        only=arguments.only,
        report=printing.print_lines,
        progress=progress,
        debug=arguments.debug,
    )
