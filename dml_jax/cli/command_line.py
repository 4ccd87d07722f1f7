"""The command line: its commands, errors and exit statuses.

An error is one line on the standard error, with exit status 2. `--debug` shows its
traceback.
"""

import argparse
import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import jax

from dml_jax._version import __version__
from dml_jax.cli import (
    dispatch_command,
    info,
    onnx_command,
    printing,
    run_command,
    verify,
)

# XLA raises RuntimeError, for example if a device has too little memory.
_ERRORS = (ValueError, TypeError, OverflowError, OSError, MemoryError, RuntimeError)
# The statuses that a shell gives to a program that SIGINT or SIGPIPE ends.
_INTERRUPTED, _CLOSED_PIPE = 130, 141

_NEGATIVE = re.compile(r"-(\.?\d|Infinity)")


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
        _print_error("dml_jax: interrupted")
        return _INTERRUPTED
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
        _, unknown = parser.parse_known_args(
            _with_negative_values(sys.argv[1:] if words is None else words), options
        )
        if unknown:  # the error then shows the usage of the command
            options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as end:  # argparse has printed the help or an error
        return int(end.code or 0)
    if options.run is None:
        parser.print_help(sys.stderr)
        return 2
    # What the environment turns on is for the user's own programs.
    with jax.debug_nans(False), jax.debug_infs(False), jax.transfer_guard("allow"):
        return options.run(options) or 0


def _with_negative_values(words: Sequence[str]) -> list[str]:
    """The words with --option=VALUE for values such as -1,1 and -Infinity.

    `argparse` would take them for options.
    """
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].startswith("--") and _NEGATIVE.match(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _print_error(text: str) -> None:
    if sys.stderr:
        with contextlib.suppress(OSError):  # the exit status shows the error
            printing.print_lines(text, sys.stderr)


def _one_line(error: Exception) -> str:
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
    modules = {
        "run": run_command,
        "dispatch": dispatch_command,
        "onnx": onnx_command,
        "info": info,
        "verify": verify,
    }
    for name, module in modules.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.set_defaults(run=module.run, parser=command)
        text = "show a traceback when something fails"
        command.add_argument("--debug", action="store_true", help=text)
        module.add_options(command)
    return parser
