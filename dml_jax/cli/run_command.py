"""The `run` command: one operator, from files to a file.

The options of an operator are the parameters of its function, so a new operator needs
nothing here.
"""

import argparse
import contextlib
import functools
import inspect
import json
import pathlib
import re
import typing
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

import dml_jax
from dml_jax import _array_files
from dml_jax._reverse.operands import LengthsLike
from dml_jax.cli import common_options, devices, info, npy_files, printing

SUMMARY = "run one operator on .npy files"
VALUES = (
    "A VALUE is an .npy file without pickles, or a literal of JSON, such as 0 or true; "
    "a list is 3,6 or [[3], [6]]. Any other word is a string, such as float32."
)
_RAW = "An .npy file stores bfloat16, float8 and int4 as bytes without their dtype"
DESCRIPTION = """\
Runs an operator on .npy files or numbers, and prints the dtype and shape of the result.

The options are the parameters of the function in dml_jax. The output is written
completely or not at all, in a folder that exists. 64-bit arrays keep their width.
Lengths beyond the axis are an error.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds a command for each operator, with an option for each parameter."""
    operators = parser.add_subparsers(metavar="OPERATOR", required=True)
    for name in info.OPERATORS:
        function = getattr(dml_jax, name)
        text = inspect.getdoc(function) or ""
        summary, described = text.partition("\n")[0], _descriptions(text)
        command = operators.add_parser(
            name, help=summary, description=summary, epilog=VALUES, allow_abbrev=False
        )
        add = command.add_argument
        for parameter in inspect.signature(function).parameters.values():
            is_required = parameter.default is parameter.empty
            default = "" if is_required else f" (default: {parameter.default})"
            add(
                f"--{parameter.name.replace('_', '-')}",
                dest=f"parameter {parameter.name}",  # not to replace `run` or `name`
                metavar="VALUE",
                required=is_required,
                default=argparse.SUPPRESS,
                help=described.get(parameter.name, "").replace("%", "%%") + default,
            )
        text = "write the result to this file"
        add("--output", type=pathlib.Path, metavar="FILE.npy", help=text)
        common_options.add_device(command)
        text = "show a traceback when something fails"
        add("--debug", action="store_true", default=argparse.SUPPRESS, help=text)
        command.set_defaults(operator=name, parser=command)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command."""
    device = devices.first(arguments.device)
    if arguments.output is not None:
        if arguments.output.suffix.lower() != ".npy":
            raise ValueError(f"`--output` must be FILE.npy; got {arguments.output}")
        npy_files.require_writable(arguments.output)
    function = getattr(dml_jax, arguments.operator)
    kinds = typing.get_type_hints(function)
    values = {
        name: _value(vars(arguments)[f"parameter {name}"], kind)
        for name, kind in kinds.items()
        if f"parameter {name}" in arguments
    }
    arrays = {  # numbers and lists are static
        name: value
        for name, value in values.items()
        if isinstance(value, np.ndarray) and kinds[name] in (ArrayLike, LengthsLike)
    }
    others = {n: x for n, x in values.items() if n not in arrays}
    function = functools.partial(function, **others)
    with jax.enable_x64(True), jax.default_device(device):
        result = np.asarray(dml_jax.checked(function)(**arrays))
    if arguments.output is not None:
        if result.dtype.kind == "V":
            raise ValueError(f"`--output` must not hold {result.dtype}. {_RAW}")
        _array_files.write(arguments.output, result)
    printing.print_lines(f"Output: {npy_files.describe(result.dtype, result.shape)}")


def _descriptions(docstring: str) -> dict[str, str]:
    """What a docstring says of each parameter, up to the first full stop."""
    section = docstring.partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", section, re.MULTILINE)
    return {name: re.split(r"\.\s", f"{text} ")[0] for name, text in entries}


def _value(text: str, kind: Any) -> Any:
    """An array from a file, a JSON literal or list, or the word itself."""
    path = pathlib.Path(text)
    if path.suffix.lower() == ".npy":
        array = npy_files.read(path)
        if array.dtype.char not in f"?{np.typecodes['AllInteger']}efdFD":
            is_raw = array.dtype.kind == "V" and array.dtype.fields is None
            got = f"{array.dtype}. {_RAW}" if is_raw else array.dtype
            raise ValueError(f"{text}: must hold numbers of a dtype of JAX; got {got}")
        return array
    for literal in (text, f"[{text}]"):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(literal)
            is_sequence = Sequence[int] in (kind, *typing.get_args(kind))
            return [value] if is_sequence and isinstance(value, int) else value
    if path.suffix and path.is_file():
        raise ValueError(f"{text}: must be an .npy file; got the suffix of another one")
    return text
