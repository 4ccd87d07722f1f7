"""The `run` command: one operator, from files to a file.

The options of an operator are the parameters of its function, so a new operator needs
nothing here.
"""

from __future__ import annotations

import argparse
import inspect
import json
import pathlib
from typing import Any

import jax
import numpy as np

import dml_jax
from dml_jax import _array_files
from dml_jax.cli import common_options, devices, info, npy_files, printing

SUMMARY = "run one operator on .npy files"
DESCRIPTION = """\
Runs an operator on .npy files or numbers, and prints the dtype and shape of the result.

The options are the parameters of the function in dml_jax. A value is an .npy file
without pickles, or a literal of JSON, such as 0, [1, 2] or true; any other word is a
string, such as float32. The output is written completely or not at all, in a folder
that exists. 64-bit arrays keep their width.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds a command for each operator, with an option for each parameter."""
    operators = parser.add_subparsers(metavar="OPERATOR", required=True)
    for name in info.OPERATORS:
        function = getattr(dml_jax, name)
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        command = operators.add_parser(
            name, help=summary, description=summary, allow_abbrev=False
        )
        for parameter in inspect.signature(function).parameters.values():
            is_required = parameter.default is parameter.empty
            default = "" if is_required else f" (default: {parameter.default})"
            command.add_argument(
                f"--{parameter.name.replace('_', '-')}",
                dest=f"parameter {parameter.name}",  # apart from `run` and `name`
                metavar="VALUE",
                required=is_required,
                default=argparse.SUPPRESS,
                help=f"FILE.npy, a JSON literal or a word{default}",
            )
        text = "write the result to this file"
        command.add_argument(
            "--output", type=pathlib.Path, metavar="FILE.npy", help=text
        )
        common_options.add_device(command, "JAX's default device")
        text = "show a traceback when something fails"
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=text
        )
        command.set_defaults(operator=name, parser=command)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command."""
    device = devices.first(arguments.device)
    if arguments.output is not None:
        if arguments.output.suffix.lower() != ".npy":
            raise ValueError(f"`--output` must be FILE.npy; got {arguments.output}")
        npy_files.require_writable(arguments.output)
    values = {
        name.partition(" ")[2]: _value(text)
        for name, text in vars(arguments).items()
        if name.startswith("parameter ")
    }
    with jax.enable_x64(True), jax.default_device(device):
        result = np.asarray(getattr(dml_jax, arguments.operator)(**values))
    printing.print_line(f"Output: {npy_files.describe(result.dtype, result.shape)}")
    if arguments.output is not None:
        _array_files.write(arguments.output, result)


def _value(text: str) -> Any:
    """An array from a file, a JSON literal, or the word itself."""
    if text.lower().endswith(".npy"):
        return npy_files.read(pathlib.Path(text))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
