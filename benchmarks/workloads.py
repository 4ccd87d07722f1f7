"""Workloads of fixed shapes: a table of operators, layouts, dtypes and sizes.

Tensors have about 1 GiB on a GPU, whatever the dtype, and tens of megabytes on a CPU.
The baseline is a memcpy of the bytes that have to move, or a memset for fills. Peers
that are not installed are left out.

`bytes_read` and `bytes_written` are the minimum for an operator. Memory is read in
whole sectors, so a strided slice reads more than it keeps. Lengths are not counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

Device = Literal["cpu", "gpu"]
Shape = tuple[int, ...]

GROUPS = ("reverse", "backward", "slice", "fill", "pipeline")


@dataclasses.dataclass(frozen=True)
class Workload:
    """An operator with its static options, on arrays of one shape and dtype.

    The name is of the form group/what/dtype. `shape` is that of the array that is read,
    or that of the result of a fill.
    """

    name: str
    operator: str
    shape: Shape
    options: Mapping[str, Any]
    bytes_read: int
    bytes_written: int

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]

    @property
    def dtype(self) -> np.dtype:
        return dtype_named(self.name)

    @property
    def baseline(self) -> str:
        """The candidate that ratios are relative to."""
        return "memcpy" if self.bytes_read else "memset"

    @property
    def description(self) -> dict[str, Any]:
        """The members of a record that do not depend on a run."""
        return dict(
            name=self.name,
            group=self.group,
            operator=self.operator,
            dtype=self.dtype.name,
            shape=list(self.shape),
            bytes_read=self.bytes_read,
            bytes_written=self.bytes_written,
            baseline=self.baseline,
        )

    @property
    def is_reversal(self) -> bool:
        return self.operator.startswith("reverse")

    @property
    def axis(self) -> int:
        """The axis that is reversed."""
        return self.options.get("time_axis", self.options.get("axis"))


BATCH_MAJOR = dict(batch_axis=0, time_axis=1)
TIME_MAJOR = dict(batch_axis=1, time_axis=0)


class Layout(NamedTuple):
    """The axes of the sequences in a tensor; one axis of -1 fills a GPU."""

    name: str
    shape: Shape
    gpu_shape: Shape
    options: Mapping[str, int] = BATCH_MAJOR


LAYOUTS = [
    Layout("rows", (1024, 4096), (16384, -1)),
    Layout("rows-of-32", (65536, 32), (-1, 32)),
    Layout("rows-of-4095", (1024, 4095), (-1, 4095)),
    Layout("features-256", (32, 512, 256), (-1, 512, 256)),
    Layout("features-4", (512, 1024, 4), (-1, 1024, 4)),
    Layout("time-major", (512, 32, 256), (512, -1, 512), TIME_MAJOR),
    Layout("flat", (4096, 1024), (4096, -1), TIME_MAJOR),
    Layout("columns", (4, 8, 256, 64), (-1, 64, 1024, 256), dict(axis=2)),
]
WIDTHS = ("float32", "bfloat16", "uint8")
FILLED = (*WIDTHS, "float16", "float64", "float8_e4m3fn", "int32")


def workloads(device: Device, most: int | None = None) -> list[Workload]:
    """All workloads of a device, with arrays of at most so many elements."""
    return [*_fills(device, most), *_reversals(device, most), *_slices(device, most)]


def _fills(device: Device, most: int | None) -> Iterator[Workload]:
    """Fills alone, and sequences that are multiplied by an array."""
    for dtype in FILLED:
        itemsize = dtype_named(dtype).itemsize
        count = 2**30 // itemsize if device == "gpu" else 2**22
        shape = _limited((count,), most)
        alone = filled(f"fill/sequence/{dtype}", "fill_value_sequence", shape)
        yield alone
        name, nbytes = f"pipeline/sequence/{dtype}", alone.bytes_written
        yield dataclasses.replace(alone, name=name, bytes_read=nbytes)
        if dtype in WIDTHS:
            yield filled(f"fill/constant/{dtype}", "fill_value_constant", shape)


def _reversals(device: Device, most: int | None) -> Iterator[Workload]:
    for layout, dtype in itertools.product(LAYOUTS, WIDTHS):
        shape = layout.shape
        if device == "gpu":
            line_bytes = -math.prod(layout.gpu_shape) * dtype_named(dtype).itemsize
            filled = 2**30 // line_bytes
            shape = [filled if n < 0 else n for n in layout.gpu_shape]
        is_general = "axis" in layout.options
        operator = "reverse_subsequences" if is_general else "reverse_sequence"
        for group in ("reverse", "backward"):
            name = f"{group}/{layout.name}/{dtype}"
            if group == "reverse" or dtype != "uint8":
                yield moving(name, operator, _limited(shape, most), layout.options)


def _slices(device: Device, most: int | None) -> Iterator[Workload]:
    width = 16384 if device == "gpu" else 4096
    square = _limited((width, width), most)
    images = _limited((64, 512, 512, 3), most)
    corner = (0, images[1] // 4, images[2] // 4, 0)
    crop = (images[0], images[1] // 2, images[2] // 2, images[3])
    rest = (square[0] - 5, square[1] - 7)
    for dtype in WIDTHS:
        for strides in ((1, 1), (1, 2), (2, 2), (1, -1), (-2, 3)):
            name, window = f"slice/{_by(strides)}/{dtype}", ((5, 7), rest, strides)
            yield windowed(name, "slice1", square, window, device)
        for strides in ((1, 1), (2, 2)):
            name, window = f"slice/grad-{_by(strides)}/{dtype}", ((5, 7), rest, strides)
            yield windowed(name, "slice_grad", square, window, device)
        for name, strides in (("crop", (1, 1, 1, 1)), ("crop-half", (1, 2, 2, 1))):
            name, window = f"slice/{name}/{dtype}", (corner, crop, strides)
            yield windowed(name, "slice1", images, window, device)


def _by(strides: Shape) -> str:
    return "x".join(map(str, strides))


# Rows of the table --------------------------------------------------------------------


def moving(
    name: str, operator: str, shape: Shape, options: Mapping[str, Any]
) -> Workload:
    """An operator that reads every element once and writes it once."""
    nbytes = math.prod(shape) * dtype_named(name).itemsize
    return Workload(name, operator, shape, options, nbytes, nbytes)


def windowed(
    name: str, operator: str, shape: Shape, window: Sequence[Shape], device: Device
) -> Workload:
    """A slice, or its gradient. The window is offsets, sizes and strides."""
    names = ("offsets", "sizes", "strides")
    options: dict[str, Any] = {
        f"input_window_{part}": values
        for part, values in zip(names, window, strict=True)
    }
    itemsize = dtype_named(name).itemsize
    slices = [slice(o, o + n, abs(s)) for o, n, s in zip(*window, strict=True)]
    sizes = tuple(len(range(n)[along]) for n, along in zip(shape, slices, strict=True))
    kept = math.prod(sizes) * itemsize
    if operator == "slice_grad":
        options["output_gradient_sizes"] = shape
        whole = math.prod(shape) * itemsize
        return Workload(name, operator, sizes, options, kept, whole)
    read = _sectors(shape, slices, itemsize, device)
    return Workload(name, operator, shape, options, read, kept)


def filled(name: str, operator: str, shape: Shape) -> Workload:
    options = dict(sizes=shape, value_data_type=dtype_named(name))
    written = math.prod(shape) * dtype_named(name).itemsize
    return Workload(name, operator, shape, options, 0, written)


# Sizes --------------------------------------------------------------------------------


def _sectors(
    shape: Shape, window: Sequence[slice], itemsize: int, device: Device
) -> int:
    """The bytes that reading a slice takes, in sectors (GPU) or cache lines (CPU).

    The first entries of the first dimension are counted, and the others are assumed to
    be alike.
    """
    sector = 32 if device == "gpu" else 64
    first, *others = window
    entries = range(shape[0])[first]
    counted = entries[: max(1, 2**20 // math.prod(shape[1:]))]
    row = np.arange(math.prod(shape[1:])).reshape(shape[1:])[tuple(others)]
    positions = math.prod(shape[1:]) * np.array(counted)[:, None] + row.ravel()
    touched = np.unique(positions * itemsize // sector).size
    return len(entries) * touched // len(counted) * sector


def _limited(shape: Sequence[int], most: int | None) -> Shape:
    """`shape`, its longest dimension halved until it has at most `most` elements."""
    sizes = list(shape)
    while most and math.prod(sizes) > most:
        sizes[sizes.index(max(sizes))] //= 2
    return tuple(sizes)


def dtype_named(name: str) -> np.dtype:
    """The dtype that the last part of a name says."""
    return np.dtype(getattr(jnp, name.rpartition("/")[2]))
