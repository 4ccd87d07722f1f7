"""The `dispatch` command, with the options of DxDispatch."""

import argparse
import dataclasses
import functools
import pathlib

import jax

from dml_jax.cli import common_options, devices, printing
from dml_jax.directml import FeatureLevel
from dml_jax.directml._types import LATEST
from dml_jax.directml.dxdispatch import MOST_BYTES, Timing, load_model, run_model

SUMMARY = "run a DxDispatch model"
DESCRIPTION = """\
Runs a DxDispatch model: Microsoft's JSON format for DirectML operators.

The buffers of the model are initialized, its operators are compiled for the device, and
its commands run in order: dispatch, print and writeFile. Files are read and written
only inside the model's folder, the current one, and those of --input_path and
--output_path. docs/from-directml.md has examples.

The times printed are medians over the iterations without the first (--warmup_samples),
from the call of an operator until its result is on the device. Iterations that take
longer than a second show a progress bar if tqdm is installed.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of DxDispatch to the command's parser."""
    add = parser.add_argument
    model = parser.add_mutually_exclusive_group(required=True)
    text = "the model, a .json file"
    # If the argument is absent, any other default would replace the option's value.
    model.add_argument("model", nargs="?", default=argparse.SUPPRESS, help=text)
    model.add_argument("-m", "--model", metavar="MODEL", help="the same as an option")
    folder = functools.partial(add, type=pathlib.Path, metavar="FOLDER")
    text = "where the model's input files are (default: the model's folder)"
    folder("--input_path", help=text)
    text = "where the model's output files are written (default: the current folder)"
    folder("--output_path", help=text)
    text = "print each command as JSON before it runs, and a line when it is done"
    add("--print_commands", action="store_true", help=text)
    text = "validate operators at this feature level, such as 5.0 (default: the latest)"
    level = functools.partial(add, type=_level, default=LATEST, metavar="LEVEL")
    level("--dml_feature_level", help=text)
    common_options.add_device(parser, "-a", "--adapter")
    _add_timing(parser)
    text = "maximum size of the model's buffers together (default: 4 GiB)"
    size = functools.partial(add, type=common_options.positive, metavar="N")
    size("--max_bytes", default=MOST_BYTES, help=text)


def _add_timing(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each field of `Timing`."""
    parser.set_defaults(**dataclasses.asdict(Timing()))
    positive, natural = common_options.positive, common_options.natural
    add = parser.add_argument
    count = functools.partial(add, metavar="N")
    time = functools.partial(add, type=common_options.milliseconds, metavar="MS")
    text = "samples of each dispatch (default: 1)"
    count("-i", "--dispatch_iterations", dest="iterations", type=positive, help=text)
    text = "runs in each sample, whose time is their mean (default: 1)"
    count("-r", "--dispatch_repeat", dest="repeat", type=positive, help=text)
    text = "take samples for this time, instead of -i"
    time("-t", "--milliseconds_to_run", dest="milliseconds", help=text)
    text = "minimum time between the starts of two samples (default: 0)"
    time("-I", "--dispatch_interval", dest="interval", help=text)
    text = "first samples, which do not count (default: 1)"
    count("-w", "--warmup_samples", type=natural, help=text)
    text = "0: medians; 1: all statistics; 2: each sample as well (default: 0)"
    name, levels = "--timing_verbosity", (0, 1, 2)
    add("-v", name, dest="verbosity", type=int, choices=levels, help=text)


def _level(text: str) -> FeatureLevel:
    name = "LEVEL_" + text.replace(".", "_")
    if name not in FeatureLevel.__members__:
        labels = ", ".join(level.label.replace("_", ".") for level in FeatureLevel)
        raise argparse.ArgumentTypeError(f"must be one of {labels}; got {text}")
    return FeatureLevel[name]


def run(arguments: argparse.Namespace) -> None:
    """Runs the command."""
    if arguments.model.lower().endswith(".onnx"):
        raise ValueError(
            f"{arguments.model}: must be a DxDispatch model; ONNX models run with "
            f"`dml-jax onnx {arguments.model}`"
        )
    device = devices.first(arguments.device)
    names = [field.name for field in dataclasses.fields(Timing)]
    timing = Timing(**{name: getattr(arguments, name) for name in names})
    report = printing.print_lines
    with jax.default_device(device):  # some initial values are computed there
        model = load_model(
            arguments.model,
            arguments.max_bytes,
            input_path=arguments.input_path,
            output_path=arguments.output_path,
            feature_level=arguments.dml_feature_level,
        )
        report(f"Running on '{device.device_kind}'")
        run_model(model, timing, report, printing.progress, arguments.print_commands)
