"""The workloads: a table of operators, layouts, dtypes and sizes.

Tensors have about 1 GiB on a GPU, whatever the dtype, and tens of megabytes on a CPU
and on a TPU. A quick workload has a sixteenth of the elements, a tiny one no more than
a test needs.

`bytes_read` and `bytes_written` are the minimum for an operator. Memory is read in
whole sectors, so a strided slice reads more than it keeps, on a TPU all that lies
between its elements. Lengths are not counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from ml_dtypes import bfloat16

Device = Literal["cpu", "gpu", "tpu"]
Scale = Literal["full", "quick", "tiny"]
Shape = tuple[int, ...]

GROUPS = (
    "reverse",
    "backward",
    "slice",
    "fill",
    "pipeline",
    "latency",
    "compile",
    "scaling",
)


@dataclasses.dataclass(frozen=True)
class Workload:
    """An operator with its static options, on arrays of one shape and dtype.

    `shape` is that of the array that is read, or that of the result of a fill.
    """

    name: str
    group: str
    operator: str
    dtype: np.dtype
    shape: tuple[int, ...]
    options: Mapping[str, Any]
    bytes_read: int
    bytes_written: int

    @property
    def baseline(self) -> str:
        """The candidate that ratios are relative to."""
        if self.operator == "import":
            return "import jax"
        kind = "memcpy" if self.bytes_read else "memset"
        return {"latency": "jitted", "compile": "jnp"}.get(self.group, kind)

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
    shape: tuple[int, ...]
    gpu_shape: tuple[int, ...] | None = None
    grows: int = 0
    options: Mapping[str, int] = BATCH_MAJOR


LAYOUTS = [
    Layout("rows", (1024, 4096), gpu_shape=(16384, 16384), grows=1),
    Layout("rows-of-32", (65536, 32)),
    Layout("rows-of-4095", (1024, 4095)),
    Layout("features-256", (32, 512, 256)),
    Layout("features-512", (16, 512, 512)),
    Layout("features-128", (8, 4096, 128)),
    Layout("features-4", (512, 1024, 4)),
    Layout("channels-3", (64, 4096, 3)),
    Layout("time-major", (512, 32, 256), (512, 32, 512), grows=1, options=TIME_MAJOR),
    Layout("time-major-flat", (4096, 1024), grows=1, options=TIME_MAJOR),
    Layout("columns", (4, 8, 256, 64), (16, 64, 1024, 256), options=dict(axis=2)),
]
LAYOUT = {layout.name: layout for layout in LAYOUTS}
TYPICAL = ("rows", "features-256")

RANDOM_KINDS = (
    *("rows", "features", "time-major", "flat", "columns"),
    *("slices", "fills"),
)
RANDOM_DTYPES = ("float32", "bfloat16", "uint8")
RARE_DTYPES = ("float16", "float64")
# Of 32 bits; a GPU has as many bytes of the others.
RANDOM_ELEMENTS: dict[Device, tuple[int, int]] = {
    "cpu": (2**19, 2**22),
    "gpu": (2**26, 2**28),
    "tpu": (2**20, 2**24),
}
# Sizes of windows, mel bands, cepstra, embeddings, images and sentences.
_STEPS = (
    *(37, 50, 99, 100, 128, 200, 256, 300, 400, 500, 700, 784, 1000, 1024, 1500, 1501),
    *(2000, 3000, 3001, 4096, 16000),
)
_FEATURES = (
    *(1, 2, 3, 5, 8, 13, 16, 20, 26, 39, 40, 64, 80, 96, 100, 128, 160, 192, 200, 257),
    *(300, 384, 400, 512, 600, 768, 1000, 1024),
)
_HEADS = (1, 2, 4, 8)
STRIDES = ((1, 1), (1, 2), (2, 1), (1, 3), (2, 2))
NARROW_AND_WIDE = ("float32", "float16", "uint8")
DTYPES = (*NARROW_AND_WIDE, "bfloat16", "int32", "float64")


def workloads(device: Device, scale: Scale = "full") -> list[Workload]:
    """All workloads of a device, at one of the three sizes."""
    return [
        *_reversals(device, scale),
        *_gradients(device, scale),
        *_slices(device, scale),
        *_fills(device, scale),
        *_pipelines(device, scale),
        *_small_calls(),
        *_compilations(device, scale),
        *_sizes(device, scale),
    ]


# Groups -------------------------------------------------------------------------------


def _reversals(device: Device, scale: Scale) -> Iterator[Workload]:
    for layout in LAYOUTS:
        for dtype in ("float32", "float16", "bfloat16", "uint8"):
            yield _reversal("reverse", layout, dtype, device, scale)
    for name in TYPICAL:
        yield _reversal("reverse", LAYOUT[name], "int32", device, scale)


def _gradients(device: Device, scale: Scale) -> Iterator[Workload]:
    for layout in LAYOUTS:
        for dtype in ("float32", "float16"):
            yield _reversal("backward", layout, dtype, device, scale)
    for name in TYPICAL:
        yield _reversal("backward", LAYOUT[name], "bfloat16", device, scale)


def _slices(device: Device, scale: Scale) -> Iterator[Workload]:
    width = dict(cpu=4096, gpu=16384, tpu=2048)[device]
    shape = _scaled((width, width), scale)
    images = _scaled((64, 512, 512, 3), scale)
    corner = (0, images[1] // 4, images[2] // 4, 0)
    crop = (images[0], images[1] // 2, images[2] // 2, images[3])
    for dtype, strides in itertools.product(NARROW_AND_WIDE, STRIDES):
        name = f"slice/{_by(strides)}/{dtype}"
        yield _slice(name, "slice", shape, (5, 7), strides, device)
    for dtype in NARROW_AND_WIDE:
        name = f"slice/1x1-even-width/{dtype}"
        yield _slice(name, "slice", shape, (5, 8), (1, 1), device)
        for name, strides in (("crop", (1, 1, 1, 1)), ("crop-half", (1, 2, 2, 1))):
            name = f"slice/{name}/{dtype}"
            yield _slice(name, "slice", images, corner, strides, device, crop)
        for strides in ((1, -1), (-2, 3)):
            name = f"slice/{_by(strides)}/{dtype}"
            yield _slice(name, "slice1", shape, (5, 7), strides, device)
        for strides in ((1, 1), (1, 2), (2, 2)):
            name = f"slice/grad-{_by(strides)}/{dtype}"
            yield _slice(name, "slice_grad", shape, (5, 7), strides, device)


def _fills(device: Device, scale: Scale) -> Iterator[Workload]:
    dtypes = ["float32", "float16", "bfloat16", "int32", "uint8"]
    if jax.config.read("jax_enable_x64"):
        dtypes.append("float64")
    for kind, dtype in itertools.product(("sequence", "constant"), dtypes):
        itemsize = _dtype(dtype).itemsize
        count = 2**30 // itemsize if device == "gpu" else 2**25
        shape = _scaled((count,), scale)
        yield _fill(f"fill/{kind}/{dtype}", f"fill_value_{kind}", shape)


def _pipelines(device: Device, scale: Scale) -> Iterator[Workload]:
    yield _reversal("pipeline", LAYOUT["rows"], "float16", device, scale)
    layout = LAYOUT["features-256"]._replace(gpu_shape=(256, 2048, 512))
    yield _reversal("pipeline", layout, "float32", device, scale)


def _small_calls() -> Iterator[Workload]:
    yield from _one_of_each("latency", (3, 5, 4), "cpu")
    yield Workload("latency/import", "latency", "import", _dtype("uint8"), (), {}, 0, 0)


def _compilations(device: Device, scale: Scale) -> Iterator[Workload]:
    yield from _one_of_each("compile", _scaled((32, 512, 256), scale), device)


def _sizes(device: Device, scale: Scale) -> Iterator[Workload]:
    """Two sizes for each decade of bytes, from 10^4 on."""
    last = {"full": {"cpu": 17, "gpu": 19, "tpu": 17}[device], "quick": 15, "tiny": 8}[
        scale
    ]
    for half_decades in range(8, last + 1):
        count = int(10 ** (half_decades / 2)) // 4
        name = f"scaling/{{}}/1e{half_decades / 2:g}"
        square = _near_square(count)
        features = (*_near_square(count // 128), 128)
        for layout, shape in (("features-128", features), ("rows", square)):
            operator = "reverse_sequence"
            yield _moving(name.format(layout), operator, "float32", shape, BATCH_MAJOR)
        yield _slice(name.format("1x2"), "slice", square, (5, 7), (1, 2), device)
        yield _fill(name.format("fill"), "fill_value_sequence", (count,))


def _one_of_each(group: str, shape: Shape, device: Device) -> Iterator[Workload]:
    """Every operator once, on float32."""
    for operator, options in (
        ("reverse_subsequences", dict(axis=1)),
        ("reverse_sequence", BATCH_MAJOR),
    ):
        yield _moving(f"{group}/{operator}", operator, "float32", shape, options)
    for operator, strides in (
        ("slice", (1, 2, 3)),
        ("slice1", (2, -2, 3)),
        ("slice_grad", (2, -2, 3)),
    ):
        name = f"{group}/{operator}"
        yield _slice(name, operator, shape, (0, 1, 0), strides, device)
    for operator in ("fill_value_sequence", "fill_value_constant"):
        yield _fill(f"{group}/{operator}", operator, shape)


# Random shapes ------------------------------------------------------------------------


def random_workloads(
    seed: int, device: Device, kinds: Sequence[str] = RANDOM_KINDS
) -> Iterator[Workload]:
    """Workloads of random shapes without end, in the group "random".

    They come in rounds that have each kind with each dtype, and the rarer dtypes every
    fourth time. A shape depends on the seed, its round, its kind and its dtype.
    """
    for number in itertools.count():
        is_fourth = number % 4 == 3 and device != "tpu"
        dtypes = RANDOM_DTYPES + (RARE_DTYPES if is_fourth else ())
        for dtype, kind in itertools.product(dtypes, kinds):
            key = (seed, number, DTYPES.index(dtype), RANDOM_KINDS.index(kind))
            random = np.random.default_rng(key)
            yield _random_workload(kind, dtype, number, random, device)


def min_large_bytes(device: Device) -> int:
    """The bytes to move from which on memory determines the time, not the dispatch."""
    return 4 * RANDOM_ELEMENTS[device][0]


def _random_workload(
    kind: str, dtype: str, number: int, random: np.random.Generator, device: Device
) -> Workload:
    least, most = RANDOM_ELEMENTS[device]
    if random.random() < 0.25:
        least, most = least // 64, least
    elements = int(np.exp(random.uniform(np.log(least), np.log(most))))
    if device == "gpu":
        elements = 4 * elements // _dtype(dtype).itemsize
    layout = kind
    if kind in ("slices", "fills"):
        layout = random.choice(("rows", "features", "columns"))
    shape = _random_shape(layout, elements, random)
    name = f"random/{kind}/{number}/{_by(shape)}/{dtype}"
    if kind == "fills":
        operator = random.choice(("fill_value_sequence", "fill_value_constant"))
        return _fill(name, operator, shape)
    if kind == "slices":
        return _random_slice(name, shape, random, device)
    if kind == "columns":
        return _moving(name, "reverse_subsequences", dtype, shape, dict(axis=2))
    options = TIME_MAJOR if kind in ("time-major", "flat") else BATCH_MAJOR
    return _moving(name, "reverse_sequence", dtype, shape, options)


def _random_shape(layout: str, elements: int, random: np.random.Generator) -> Shape:
    """A shape of up to `elements` elements, which its batch fills."""

    def one_of(sizes: Sequence[int], most: int) -> int:
        return int(random.choice([size for size in sizes if size <= most]))

    steps = one_of(_STEPS, elements)
    features = one_of(_FEATURES, elements // steps)
    heads = one_of(_HEADS, elements // (steps * features))
    others = elements // steps
    batch = others // features
    return {
        "rows": (others, steps),
        "features": (batch, steps, features),
        "time-major": (steps, batch, features),
        "flat": (steps, others),
        "columns": (batch // heads, heads, steps, features),
    }[layout]


def _random_slice(
    name: str, shape: Shape, random: np.random.Generator, device: Device
) -> Workload:
    """At least one dimension is cut, and half of the others; most have stride 1."""
    offsets, extents, strides = [], [], []
    always_cut = random.integers(len(shape))
    for dimension, size in enumerate(shape):
        is_cut = dimension == always_cut or random.integers(2)
        margin = size // 4 if is_cut else 0
        offset, rest = random.integers(margin + 1, size=2)
        offsets.append(int(offset))
        extents.append(int(size - offset - rest))
        sign = random.choice((1, 1, 1, 1, -1))
        strides.append(int(sign * random.choice((1, 1, 1, 1, 1, 1, 1, 2, 3, 4))))
    window = tuple(offsets), tuple(strides), device, tuple(extents)
    return _slice(name, "slice1", shape, *window)


# Rows of the table: names are of the form group/what/dtype ----------------------------


def _reversal(
    group: str, layout: Layout, dtype: str, device: Device, scale: Scale
) -> Workload:
    shape = list(layout.shape)
    if device == "gpu":
        shape = list(layout.gpu_shape or layout.shape)
        shape[layout.grows] = 1
        line_bytes = math.prod(shape) * _dtype(dtype).itemsize
        shape[layout.grows] = 2**30 // line_bytes
    operator = (
        "reverse_subsequences" if "axis" in layout.options else "reverse_sequence"
    )
    name = f"{group}/{layout.name}/{dtype}"
    return _moving(name, operator, dtype, _scaled(shape, scale), layout.options)


def _moving(
    name: str, operator: str, dtype: str, shape: Shape, options: Mapping[str, Any]
) -> Workload:
    """An operator that reads every element once and writes it once."""
    group, item = name.partition("/")[0], _dtype(dtype)
    nbytes = math.prod(shape) * item.itemsize
    return Workload(name, group, operator, item, shape, options, nbytes, nbytes)


def _slice(
    name: str,
    operator: str,
    shape: Shape,
    offsets: Shape,
    strides: Shape,
    device: Device,
    extents: Shape | None = None,
) -> Workload:
    """A slice from `offsets` on, of `extents` or up to the end of every dimension."""
    group, dtype = name.partition("/")[0], _dtype_of(name)
    if extents is None:
        extents = tuple(n - o for n, o in zip(shape, offsets, strict=True))
    sizes = tuple(-(-n // abs(s)) for n, s in zip(extents, strides, strict=True))
    window = dict(
        input_window_offsets=offsets,
        input_window_sizes=extents,
        input_window_strides=strides,
    )
    kept = math.prod(sizes) * dtype.itemsize
    if operator == "slice_grad":
        options = dict(output_gradient_sizes=shape, **window)
        whole = math.prod(shape) * dtype.itemsize
        return Workload(name, group, operator, dtype, sizes, options, kept, whole)
    if operator == "slice":
        options = dict(offsets=offsets, sizes=sizes, strides=strides)
    else:
        options = window
    read = _sectors(shape, offsets, sizes, strides, dtype.itemsize, device)
    return Workload(name, group, operator, dtype, shape, options, read, kept)


def _fill(name: str, operator: str, shape: Shape) -> Workload:
    group, dtype = name.partition("/")[0], _dtype_of(name)
    options = dict(sizes=shape, value_data_type=dtype)
    written = math.prod(shape) * dtype.itemsize
    return Workload(name, group, operator, dtype, shape, options, 0, written)


def _by(strides: Shape) -> str:
    return "x".join(str(stride) for stride in strides)


def _dtype_of(name: str) -> np.dtype:
    """The last part of a workload's name; float32 if that is no dtype."""
    last = name.rpartition("/")[2]
    return _dtype(last if last in DTYPES else "float32")


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
    if device == "tpu":
        spans = (abs(s) * (n - 1) + 1 for s, n in zip(strides, sizes, strict=True))
        return math.prod(spans) * itemsize
    sector = 32 if device == "gpu" else 64
    counted = min(sizes[0], max(1, 2**20 // math.prod(sizes[1:])))
    position = np.zeros((), np.int64)
    windows = zip(shape, offsets, (counted, *sizes[1:]), strides, strict=True)
    for n, offset, size, stride in windows:
        along = offset + abs(stride) * np.arange(size)
        position = position[..., None] * n + along
    touched = np.unique(position * itemsize // sector).size
    return sizes[0] * touched // counted * sector


def _scaled(shape: Sequence[int], scale: Scale) -> Shape:
    """`shape`, its longest dimension halved until the scale's limit is met."""
    count = math.prod(shape)
    limit = {"full": count, "quick": count // 16, "tiny": 256}[scale]
    sizes = list(shape)
    while math.prod(sizes) > limit:
        sizes[sizes.index(max(sizes))] //= 2
    return tuple(sizes)


def _near_square(count: int) -> tuple[int, int]:
    width = 2 ** round(math.log2(count) / 2)
    return count // width, width


def _dtype(name: str) -> np.dtype:
    return np.dtype(bfloat16 if name == "bfloat16" else name)
