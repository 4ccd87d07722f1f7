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
    """The axes of the sequences in a tensor; `grows` is the axis that fills a GPU."""

    name: str
    shape: Shape
    gpu_shape: Shape | None = None
    grows: int = 0
    options: Mapping[str, int] = BATCH_MAJOR


LAYOUTS = [
    Layout("rows", (1024, 4096), gpu_shape=(16384, 16384), grows=1),
    Layout("rows-of-32", (65536, 32)),
    Layout("rows-of-4095", (1024, 4095)),
    Layout("features-256", (32, 512, 256)),
    Layout("features-4", (512, 1024, 4)),
    Layout("time-major", (512, 32, 256), (512, 32, 512), grows=1, options=TIME_MAJOR),
    Layout("flat", (4096, 1024), grows=1, options=TIME_MAJOR),
    Layout("columns", (4, 8, 256, 64), (16, 64, 1024, 256), options=dict(axis=2)),
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
        shape = list(layout.shape)
        if device == "gpu":
            shape = list(layout.gpu_shape or layout.shape)
            shape[layout.grows] = 1
            line_bytes = math.prod(shape) * dtype_named(dtype).itemsize
            shape[layout.grows] = 2**30 // line_bytes
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
    for dtype in WIDTHS:
        for strides in ((1, 1), (1, 2), (2, 2), (1, -1), (-2, 3)):
            name = f"slice/{_by(strides)}/{dtype}"
            yield windowed(name, "slice1", square, (5, 7), strides, device)
        for strides in ((1, 1), (2, 2)):
            name = f"slice/grad-{_by(strides)}/{dtype}"
            yield windowed(name, "slice_grad", square, (5, 7), strides, device)
        for name, strides in (("crop", (1, 1, 1, 1)), ("crop-half", (1, 2, 2, 1))):
            name = f"slice/{name}/{dtype}"
            yield windowed(name, "slice1", images, corner, strides, device, crop)


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
    name: str,
    operator: str,
    shape: Shape,
    offsets: Shape,
    strides: Shape,
    device: Device,
    extents: Shape | None = None,
) -> Workload:
    """A slice from `offsets` on, of `extents` or up to the end of every dimension."""
    itemsize = dtype_named(name).itemsize
    if extents is None:
        extents = tuple(n - o for n, o in zip(shape, offsets, strict=True))
    sizes = tuple(-(-n // abs(s)) for n, s in zip(extents, strides, strict=True))
    window = dict(
        input_window_offsets=offsets,
        input_window_sizes=extents,
        input_window_strides=strides,
    )
    kept = math.prod(sizes) * itemsize
    if operator == "slice_grad":
        options = dict(output_gradient_sizes=shape, **window)
        whole = math.prod(shape) * itemsize
        return Workload(name, operator, sizes, options, kept, whole)
    read = _sectors(shape, offsets, sizes, strides, itemsize, device)
    return Workload(name, operator, shape, window, read, kept)


def filled(name: str, operator: str, shape: Shape) -> Workload:
    options = dict(sizes=shape, value_data_type=dtype_named(name))
    written = math.prod(shape) * dtype_named(name).itemsize
    return Workload(name, operator, shape, options, 0, written)


# Sizes --------------------------------------------------------------------------------


def _sectors(
    shape: Shape,
    offsets: Shape,
    sizes: Shape,
    strides: Shape,
    itemsize: int,
    device: Device,
) -> int:
    """The bytes that reading a slice takes, in sectors (GPU) or cache lines (CPU).

    The first entries of the first dimension are counted, and the others are assumed to
    be alike.
    """
    sector = 32 if device == "gpu" else 64
    counted = min(sizes[0], max(1, 2**20 // math.prod(sizes[1:])))
    position = np.zeros((), np.int64)
    windows = zip(shape, offsets, (counted, *sizes[1:]), strides, strict=True)
    for n, offset, size, stride in windows:
        along = offset + abs(stride) * np.arange(size)
        position = position[..., None] * n + along
    touched = np.unique(position * itemsize // sector).size
    return sizes[0] * touched // counted * sector


def _limited(shape: Sequence[int], most: int | None) -> Shape:
    """`shape`, its longest dimension halved until it has at most `most` elements."""
    sizes = list(shape)
    while most and math.prod(sizes) > most:
        sizes[sizes.index(max(sizes))] //= 2
    return tuple(sizes)


def dtype_named(name: str) -> np.dtype:
    """The dtype that the last part of a name says."""
    return np.dtype(getattr(jnp, name.rpartition("/")[2]))
