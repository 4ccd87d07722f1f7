"""Arrays whose reversed, sliced or filled axis is sharded.

The expected bits are those of one device. The compiled program tells what a device
holds and receives: a few shards, however many devices there are.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import numbers
from devices import (
    AUTO,
    EXPLICIT,
    MODES,
    compile_for,
    mesh_of,
    put,
    sent_bytes,
)
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax
from dml_jax import reference

REVERSE = partial(dml_jax.reverse_subsequences, axis=1)
EXPECTED = partial(reference.reverse_subsequences, axis=1)


def lengths_of(shape: tuple[int, ...], size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, size + 1, shape, np.int32)


# Values -------------------------------------------------------------------------------

TIME = (None, "time")


def test_keys() -> None:
    keys, lengths = jax.random.split(jax.random.key(0), (3, 16)), [[5], [16], [0]]
    y = jax.jit(REVERSE)(put(keys, mesh_of(time=8), *TIME), jnp.asarray(lengths))
    data = np.asarray(jax.random.key_data(keys))
    expected = EXPECTED(data, np.asarray(lengths)[..., None])
    assert_same_bits(jax.random.key_data(y), expected)


def test_automatic_axes_within_an_explicit_program() -> None:
    x, lengths = numbers(3, 16, 8), lengths_of((3, 1, 1), 16)
    mesh = mesh_of(EXPLICIT, time=8)
    with jax.set_mesh(mesh):
        reverse = jax.sharding.auto_axes(REVERSE, out_sharding=P(*TIME, None))
        y = jax.jit(reverse)(put(x, mesh, *TIME), put(lengths, mesh))
    assert_same_bits(y, EXPECTED(x, lengths))


def test_programs_of_different_axes_differ() -> None:
    """The persistent cache identifies a program by its text."""
    x = put(numbers(8, 8), mesh_of(time=8), "time")
    texts = set()
    for axis in (0, 1):
        reverse = jax.jit(partial(dml_jax.reverse_subsequences, axis=axis))
        text = reverse.lower(x, jnp.ones((1, 1), jnp.int32)).as_text()
        assert "CustomSPMDPartitioning" in text
        texts.add(re.sub(r'backend_config = "\d+"', "", text))
    assert len(texts) == 2


def test_the_gather_on_two_meshes() -> None:
    """XLA partitions it, for arguments on different meshes too."""
    x, lengths = numbers(8, 16), lengths_of((8, 1), 16)
    scale = put(np.float32(2), mesh_of(a=2, b=4))

    @jax.jit
    def run(x: jax.Array, lengths: jax.Array, scale: jax.Array) -> jax.Array:
        return REVERSE(x, lengths, implementation="gather") * scale

    y = run(put(x, mesh_of(time=8), "time"), lengths, scale)
    assert_same_bits(y, 2 * EXPECTED(x, lengths))


# What is held and sent ----------------------------------------------------------------


def vjp(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jax.vjp(lambda x: REVERSE(x, lengths), x)[1](x)[0]


def jvp(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jax.jvp(lambda x: REVERSE(x, lengths), (x,), (x,))[1]


def vmap(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jax.vmap(lambda x, n: dml_jax.reverse_subsequences(x, n, 0))(x, lengths)


@pytest.mark.parametrize("features", default_of([64, 63], 63))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("function", "devices"),
    default_of([(vjp, 8), (REVERSE, 2), (REVERSE, 4), (jvp, 8), (vmap, 4)], (vjp, 8)),
)
def test_a_device_holds_a_few_shards(
    function: Callable[..., Any], devices: int, mode: AxisType, features: int
) -> None:
    x, mesh = numbers(3, 1024, features), mesh_of(mode, time=devices)
    shard = x.nbytes // devices
    with jax.set_mesh(mesh):
        lengths = put(np.full((3, 1, 1), 700, np.int32), mesh)
        compiled = compile_for(function, put(x, mesh, *TIME), lengths)
    assert compiled.memory_analysis().temp_size_in_bytes <= 3.1 * shard
    if features % devices == 0 and devices > 2:
        assert sent_bytes(compiled).keys() == {"all-to-all"}
    else:
        steps = {2: 1, 4: 3, 8: 4}[devices]
        assert sent_bytes(compiled) == {"collective-permute": steps * shard}


def test_an_axis_that_is_not_sharded_is_reversed_as_on_one_device() -> None:
    mesh = mesh_of(time=8)
    x = put(numbers(64, 4096), mesh, "time")
    lengths = put(lengths_of((64, 1), 4096), mesh, "time")
    text = compile_for(REVERSE, x, lengths).as_text()
    assert "CustomSPMDPartitioning" not in text
    assert "reverse(" in text or "dynamic-update-slice" in text


# First position, size and stride of slices whose results the devices can partition.
WINDOWS = {
    "shifted": (5, 1000, 1),
    "strided": (3, 336, 3),
    "aligned": (0, 512, 2),
    "reversed": (1020, 1016, -1),
    "reversed-strided": (1019, 320, -3),
    "few": (640, 8, 1),
}


def slice_steps(first: int, size: int, stride: int, x: jax.Array) -> jax.Array:
    window = (size - 1) * abs(stride) + 1
    lowest = first if stride > 0 else first - window + 1
    b, _, f = x.shape
    return dml_jax.slice1(x, [0, lowest, 0], [b, window, f], [1, stride, 1])


def slice_gradient(first: int, size: int, stride: int, x: jax.Array) -> jax.Array:
    run = partial(slice_steps, first, size, stride)
    return jax.vjp(run, x)[1](x[:, :size])[0]


@pytest.mark.parametrize("function", [slice_steps, slice_gradient])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name",
    default_of(WINDOWS, "reversed-strided", "few"),
)
def test_slices_send_what_neighbours_lack(
    name: str, mode: AxisType, function: Callable[..., Any]
) -> None:
    x, run = numbers(3, 1024, 8), partial(function, *WINDOWS[name])
    expected = np.asarray(jax.jit(run)(x))
    mesh, shard = mesh_of(mode, time=8), x.nbytes // 8
    with jax.set_mesh(mesh):
        sharded = put(x, mesh, *TIME)
        compiled = compile_for(run, sharded, out_shardings=sharded.sharding)
        y = compiled(sharded)
    assert_same_bits(y, expected)
    sent = sent_bytes(compiled)
    assert sum(sent.values()) <= 3 * shard
    assert not {"all-gather", "all-reduce", "all-to-all"} & sent.keys()
    assert compiled.memory_analysis().temp_size_in_bytes <= 4 * shard


# More elements than 32 bits can count. Each device returns the ends of its shard, so
# that nothing else is computed.
LONG = {
    "one-dimension": ((2**32 + 2**14,), P("time")),
    "two-dimensions": ((2**17, 2**16), P("time")),
    "minor-dimension-sharded": ((2**16, 2**17), P(None, "time")),
}


@pytest.mark.parametrize(
    "dtype",
    default_of(["uint8", "float16", "float32", "int64"], "uint8"),
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LONG)
def test_long_fills(name: str, mode: AxisType, dtype: str) -> None:
    (sizes, spec), mesh = LONG[name], mesh_of(mode, time=8)
    sharding = NamedSharding(mesh, spec)
    start, delta = (-2.0, 2.0**-20) if "float" in dtype else (1, 37)
    shard = lax.with_sharding_constraint if mode == AUTO else jax.sharding.reshard

    def ends(shard: jax.Array) -> jax.Array:
        return jnp.stack([shard[(0,) * shard.ndim], shard[(-1,) * shard.ndim]])

    @jax.jit
    def run() -> jax.Array:
        y = dml_jax.fill_value_sequence(sizes, dtype, start, delta)
        of_shards = jax.shard_map(ends, mesh=mesh, in_specs=spec, out_specs=P("time"))
        return of_shards(shard(y, sharding))

    with jax.set_mesh(mesh), jax.enable_x64(dtype == "int64"):
        found = run()
    expected = np.array(positions_of_ends(sizes, sharding)) * delta + start
    if dtype == "float16":
        expected = np.minimum(expected, 65504)
    assert_same_bits(found, expected.astype(dtype))


def positions_of_ends(sizes: tuple[int, ...], sharding: NamedSharding) -> list[int]:
    """The row-major positions of the first and the last element of every shard."""
    strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    found = []
    for index in sharding.devices_indices_map(sizes).values():
        parts = [range(size)[part] for size, part in zip(sizes, index, strict=True)]
        for end in (0, -1):
            found.append(np.dot([part[end] for part in parts], strides))
    return found
