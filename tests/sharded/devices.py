"""Meshes of up to eight CPU devices, and what compiled programs hold and send."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
# Both kinds of axes; those of the default run are automatic.
MODES = [
    pytest.param(AUTO, id="auto"),
    pytest.param(EXPLICIT, id="explicit", marks=pytest.mark.exhaustive),
]


def mesh_of(axis_type: AxisType = AUTO, /, **sizes: int) -> Mesh:
    """A mesh over the first devices: `mesh_of(AUTO, data=4, model=2)`."""
    return jax.make_mesh(
        tuple(sizes.values()),
        tuple(sizes),
        axis_types=(axis_type,) * len(sizes),
        devices=jax.devices()[: math.prod(sizes.values())],
    )


def put(array: Any, mesh: Mesh, *spec: Any) -> jax.Array:
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


FLAG = "jax_use_shardy_partitioner"
HAS_GSPMD = hasattr(jax.config, FLAG)


@contextlib.contextmanager
def partitioner(*, shardy: bool) -> Iterator[None]:
    """Selects Shardy or GSPMD, where this JAX has both."""
    if not HAS_GSPMD:
        yield
        return
    before = getattr(jax.config, FLAG)
    jax.config.update(FLAG, shardy)
    try:
        yield
    finally:
        jax.config.update(FLAG, before)


def compile_for(function: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    return jax.jit(function, **options).lower(*arrays).compile()


COLLECTIVE = r"all-gather|all-reduce|all-to-all|collective-\w+|reduce-scatter"


def collectives(compiled: Any) -> set[str]:
    return set(re.findall(COLLECTIVE, compiled.as_text()))


def messages(compiled: Any) -> list[tuple[str, int]]:
    """The collectives, and how many elements a device receives by each."""
    operations = rf"= \(?\w+\[([\d,]+)\].* ({COLLECTIVE})\("
    return [
        (name, math.prod(map(int, shape.split(","))))
        for shape, name in re.findall(operations, compiled.as_text())
    ]


def sent_bytes(compiled: Any, itemsize: int = 4) -> dict[str, int]:
    """The bytes that one device receives, by collective."""
    found: dict[str, int] = {}
    for name, size in messages(compiled):
        found[name] = found.get(name, 0) + size * itemsize
    return found


def most_elements(compiled: Any) -> int:
    """The size of the largest array on one device, intermediate ones too."""
    shapes = re.findall(r"\b[a-z]+\d*\w*\[([\d,]*)\]", compiled.as_text())
    return max(math.prod(map(int, filter(None, s.split(",")))) for s in shapes)
