"""The option `--mesh` of the examples: over which devices a padded batch is divided.

`--mesh data=2,time=4` makes a mesh of 2 x 4 devices: a batch [batch, time, ...] is
divided in two along its batch and in four along its time, and what a model learns is
on every device. An axis that is not named has one device, and so has a plain run:
programs know one layout only, P("data", "time").

A CPU is one device, unless JAX is told before it starts to take it for several:

    export XLA_FLAGS=--xla_force_host_platform_device_count=8
"""

import argparse
import math
import re

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

AXES = ("data", "time")
FLAG = "XLA_FLAGS=--xla_force_host_platform_device_count"


def mesh_of(text: str) -> Mesh:
    pairs = [re.fullmatch(r"(\w+)=([1-9]\d{0,5})", part) for part in text.split(",")]
    sizes = {pair[1]: int(pair[2]) for pair in pairs if pair and pair[1] in AXES}
    if len(sizes) < len(pairs):
        message = f"expected data=2, time=4 or data=2,time=4, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    needed, devices = math.prod(shape), jax.devices()
    if needed > len(devices):
        message = (
            f"{text} needs {needed} devices and JAX has {len(devices)}: ask for fewer, "
            f"or have JAX take a CPU for {needed} by {FLAG}={needed}"
        )
        raise argparse.ArgumentTypeError(message)
    axis_types = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(shape, AXES, axis_types=axis_types, devices=devices[:needed])


def add_mesh_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mesh",
        type=mesh_of,
        metavar="data=D,time=T",
        help="divide batches over D devices, their time over T (default: one device)",
    )


def pad(array: np.ndarray, *multiples: int) -> np.ndarray:
    """Adds zeros behind the leading dimensions, up to multiples of these numbers."""
    width = [
        (0, -size % multiple)
        for size, multiple in zip(array.shape, multiples, strict=False)
    ]
    return np.pad(array, width + [(0, 0)] * (array.ndim - len(width)))
