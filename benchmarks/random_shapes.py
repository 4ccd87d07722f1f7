"""Workloads of random shapes, measured until the time is over.

Each is measured alone in a program and between elementwise operations. The sizes are
typical of applications: windows of speech and sentences for the time, mel bands,
cepstra and embeddings for the features, and as many sequences as fill a random number
of bytes. A seed gives the same shapes on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.workloads import (
    BATCH_MAJOR,
    TIME_MAJOR,
    WIDTHS,
    Device,
    Shape,
    Workload,
    dtype_named,
    moving,
    windowed,
)

KINDS = ("rows", "features", "time-major", "flat", "columns", "slices")
# The bytes of an array, least and most. Where fewer move than the least, the dispatch
# determines the time, not the memory.
BYTES: dict[str, tuple[int, int]] = {"cpu": (2**21, 2**24), "gpu": (2**28, 2**30)}
_STEPS = (
    *(37, 50, 99, 100, 128, 200, 256, 300, 400, 500, 700, 784, 1000, 1024, 1500, 1501),
    *(2000, 3000, 3001, 4096, 16000),
)
_FEATURES = (
    *(1, 2, 3, 5, 8, 13, 16, 20, 26, 39, 40, 64, 80, 96, 100, 128, 160, 192, 200, 257),
    *(300, 384, 400, 512, 600, 768, 1000, 1024),
)
_HEADS = (1, 2, 4, 8)


def random_workloads(seed: int, device: Device) -> Iterator[Workload]:
    """Workloads without end, in the group "random".

    They come in rounds that have each kind with each dtype. A shape depends on the
    seed, its round, its kind and its dtype.
    """
    for number in itertools.count():
        for dtype, kind in itertools.product(WIDTHS, KINDS):
            key = (seed, number, WIDTHS.index(dtype), KINDS.index(kind))
            random = np.random.default_rng(key)
            yield _workload(kind, dtype, number, random, device)


def _workload(
    kind: str, dtype: str, number: int, random: np.random.Generator, device: Device
) -> Workload:
    """A workload of a kind; a quarter of them are small."""
    least, most = BYTES[device]
    if random.random() < 0.25:
        least, most = least // 64, least
    nbytes = np.exp(random.uniform(np.log(least), np.log(most)))
    elements = int(nbytes) // dtype_named(dtype).itemsize
    layout = kind
    if kind == "slices":
        layout = random.choice(("rows", "features", "columns"))
    shape = _shape(layout, elements, random)
    name = f"random/{kind}/{number}/{'x'.join(map(str, shape))}/{dtype}"
    if kind == "slices":
        return _slice(name, shape, random, device)
    if kind == "columns":
        return moving(name, "reverse_subsequences", shape, dict(axis=2))
    options = TIME_MAJOR if kind in ("time-major", "flat") else BATCH_MAJOR
    return moving(name, "reverse_sequence", shape, options)


def _shape(layout: str, elements: int, random: np.random.Generator) -> Shape:
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


def _slice(
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
    window = tuple(offsets), tuple(extents), tuple(strides)
    return windowed(name, "slice1", shape, window, device)
