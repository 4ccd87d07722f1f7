"""The `onnx` command."""

import argparse
import functools
import os
import pathlib
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from dml_jax import _array_files
from dml_jax.cli import common_options, devices, npy_files, printing

SUMMARY = "run an ONNX model"
DESCRIPTION = """\
Runs an ONNX model, and prints the dtypes and shapes of its inputs and outputs.

Inputs are .npy files without pickles; outputs are written completely or not at all, in
folders that exist. docs/onnx-operators.md lists the operators that models may have, and
docs/commands.md has an example. Needs the package onnx.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options to the command's parser."""
    parser.add_argument("model", help="the model, an .onnx file")
    kind = {"type": _assignment, "metavar": "NAME=FILE.npy"}
    add = functools.partial(parser.add_argument, action="append", default=[], **kind)
    add("--input", help="read an input from a file; may be repeated")
    add("--output", help="write an output to a file; may be repeated")
    common_options.add_device(parser)


def _assignment(text: str) -> tuple[str, pathlib.Path]:
    """NAME=FILE.npy as a name and a path."""
    name, equals, path = text.rpartition("=")
    if not (equals and name) or pathlib.Path(path).suffix.lower() != ".npy":
        raise argparse.ArgumentTypeError(f"must be NAME=FILE.npy; got {text}")
    return name, pathlib.Path(path)


def run(arguments: argparse.Namespace) -> None:
    """Runs the command."""
    if arguments.model.lower().endswith(".json"):
        raise ValueError(
            f"{arguments.model}: must be an ONNX model; DxDispatch models run with "
            f"`dml-jax dispatch {arguments.model}`"
        )
    try:
        from dml_jax import onnx_backend
        from dml_jax.onnx_backend._inputs import is_untyped
    except ImportError as error:
        raise RuntimeError(str(error)) from None
    device = devices.first(arguments.device)
    # onnx warns about keys of external data that it ignores.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        proto = onnx_backend.load_model(arguments.model)
    model = onnx_backend.prepare(proto)
    model.device = device
    _require_names(arguments, model, proto.graph.input)
    inputs = {}
    for name, path in arguments.input:
        array = inputs[name] = npy_files.read(path)
        wanted = model.dtypes[name]
        dtype = wanted if is_untyped(array.dtype, wanted) else array.dtype
        _print("Input", name, dtype, array.shape)
    outputs = dict(zip(model.output_names, model.run(inputs), strict=True))
    for name, array in outputs.items():
        _print("Output", name, array.dtype, array.shape)
    for name, path in arguments.output:
        array = outputs[name]
        is_text = array.dtype.kind == "O"  # NumPy's own strings need no pickles
        _array_files.write(path, array.astype(str) if is_text else array)


def _print(kind: str, name: str, dtype: np.dtype, shape: Iterable[int]) -> None:
    text = f"{kind} '{name}': {npy_files.describe(dtype, shape)}"
    printing.print_lines(printing.escaped(text))


def _require_names(arguments: argparse.Namespace, model: Any, values: Any) -> None:
    """Refuses names that the model does not have, and inputs that are missing."""
    given = [name for name, _ in arguments.input]
    _require_known("--output", [n for n, _ in arguments.output], model.output_names)
    _require_known("--input", given, (*model.input_names, *model.default_names))
    _require_distinct("--input", given)
    paths = [path for _, path in arguments.output]
    _require_distinct("--output", [os.path.realpath(path) for path in paths])
    missing = [name for name in model.input_names if name not in given]
    if missing:
        kinds = {value.name: _declared(value, model) for value in values}
        wanted = ", ".join(f"{name}: {kinds[name]}" for name in missing)
        words = " ".join(f"--input {name}=FILE.npy" for name in missing)
        got = ", ".join(given) or "none"
        raise ValueError(
            f"`--input` must be given for {wanted}; got {got}. Write {words}"
        )
    for path in paths:
        npy_files.require_writable(path)


def _require_known(option: str, given: list[str], names: Iterable[str]) -> None:
    unknown = [name for name in given if name not in names]
    if unknown:
        known = ", ".join(names) or "none, since the model has none"
        raise ValueError(f"`{option}` must be one of {known}; got {', '.join(unknown)}")


def _require_distinct(option: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(
                f"`{option}` must be given once for each; got {value} twice"
            )


def _declared(value: Any, model: Any) -> str:
    """The dtype and the shape that the model declares for an input."""
    sizes = value.type.tensor_type.shape.dim
    shape = [size.dim_param or max(size.dim_value, 0) or "?" for size in sizes]
    return npy_files.describe(model.dtypes.get(value.name, np.dtype(float)), shape)
