"""Arrays whose reversed or sliced axis several devices share.

What one device computes is what is expected, bit for bit. What is held and what is sent
is read off the compiled program: no device may need more than a few shards, however
many devices there are.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import numbers
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax
from dml_jax import reference

MODES = [AxisType.Auto, AxisType.Explicit]
REVERSE = functools.partial(dml_jax.reverse_subsequences, axis=1)


def make_mesh(axis_type, shape=(8,), names=("time",)):
    devices = jax.devices()[: math.prod(shape)]
    axis_types = (axis_type,) * len(names)
    return jax.make_mesh(shape, names, axis_types=axis_types, devices=devices)


def put(array, mesh, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def lengths_of(kind, shape, size):
    return {
        "none": np.zeros(shape, np.int32),
        "full": np.full(shape, size, np.int32),
        "random": np.random.default_rng(0).integers(0, size + 1, shape, np.int32),
    }[kind]


# Values -------------------------------------------------------------------------------

# Shape, axis, shape of the lengths: some have a dimension that the devices can divide.
LINES = {
    "features": ((3, 16, 8), 1, (3, 1, 1)),
    "batch": ((8, 16, 3), 1, (8, 1, 1)),
    "one-length": ((8, 16), 1, (1, 1)),
    "rows": ((3, 16), 1, (3, 1)),
    "one-line": ((16,), 0, (1,)),
    "time-major": ((16, 5), 0, (1, 5)),
    "columns": ((3, 16, 8), 1, (3, 1, 8)),
    "planes": ((2, 3, 16, 5), 2, (2, 3, 1, 1)),
    "one-step-a-device": ((3, 8), 1, (3, 1)),
}


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", LINES)
def test_reversal(name, mode, devices):
    shape, axis, lengths_shape = LINES[name]
    x, mesh = numbers(*shape), make_mesh(mode, (devices,))
    reverse = jax.jit(functools.partial(dml_jax.reverse_subsequences, axis=axis))
    for kind in ("none", "full", "random"):
        lengths = lengths_of(kind, lengths_shape, shape[axis])
        with jax.set_mesh(mesh):
            of_shards = put(x, mesh, *[None] * axis, "time")
            y = reverse(of_shards, put(lengths, mesh))
        assert y.sharding.is_equivalent_to(of_shards.sharding, x.ndim)
        assert_same_bits(y, reference.reverse_subsequences(x, lengths, axis))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "float8_e4m3fn", "float16", "bfloat16", "float32"]
)
@pytest.mark.parametrize("features", [8, 3])
def test_bits(features, dtype):
    """Of every dtype, NaN payloads and subnormals included."""
    dtype, random = jnp.dtype(dtype), np.random.default_rng(0)
    highest = 2 if dtype.name == "bool" else 256
    data = random.integers(0, highest, (3, 16, features * dtype.itemsize), np.uint8)
    x, lengths = data.view(dtype), lengths_of("random", (3, 1, 1), 16)
    mesh = make_mesh(AxisType.Auto)
    y = jax.jit(REVERSE)(put(x, mesh, None, "time"), lengths)
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))


def test_keys():
    keys, lengths = jax.random.split(jax.random.key(0), (3, 16)), [[5], [16], [0]]
    mesh = make_mesh(AxisType.Auto)
    y = jax.jit(REVERSE)(put(keys, mesh, None, "time"), jnp.asarray(lengths))
    data = np.asarray(jax.random.key_data(keys))
    expected = reference.reverse_subsequences(data, np.asarray(lengths)[..., None], 1)
    assert_same_bits(jax.random.key_data(y), expected)


# The axis is shared by two axes of the mesh, or the batch is divided as well.
SPECS = {
    "two-mesh-axes": P(None, ("a", "b")),
    "two-mesh-axes-turned": P(None, ("b", "a")),
    "batch-too": P("a", "b"),
    "features-too": P(None, "b", "a"),
}


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("features", [8, 6])
@pytest.mark.parametrize("name", SPECS)
def test_meshes_of_two_axes(name, features, mode):
    x, lengths = numbers(4, 16, features), lengths_of("random", (4, 1, 1), 16)
    mesh, spec = make_mesh(mode, (2, 4), ("a", "b")), SPECS[name]
    with jax.set_mesh(mesh):
        of_shards = put(x, mesh, *spec)
        y = jax.jit(REVERSE)(of_shards, put(lengths, mesh, spec[0]))
    assert y.sharding.is_equivalent_to(of_shards.sharding, x.ndim)
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))


@pytest.mark.parametrize("features", [8, 3])
@pytest.mark.parametrize("size", [17, 23, 5])
def test_uneven_shards(size, features):
    """XLA pads the last shards of an array that only exists inside of a program."""
    x, lengths = numbers(3, size, features), lengths_of("random", (3, 1, 1), size)
    sharding = NamedSharding(make_mesh(AxisType.Auto), P(None, "time"))

    @jax.jit
    def run(x, lengths):
        x = lax.with_sharding_constraint(x * 2, sharding)
        y = dml_jax.reverse_subsequences(x, lengths, 1)
        return lax.with_sharding_constraint(y, sharding) * 3

    assert_same_bits(
        run(x, lengths), reference.reverse_subsequences(x * 2, lengths, 1) * 3
    )


@pytest.mark.parametrize("devices", [3, 5, 6, 7])
def test_other_numbers_of_devices(devices):
    x, lengths = (
        numbers(5, 4 * devices, 6),
        lengths_of("random", (5, 1, 1), 4 * devices),
    )
    of_shards = put(x, make_mesh(AxisType.Auto, (devices,)), None, "time")
    y = jax.jit(REVERSE)(of_shards, lengths)
    assert y.sharding.is_equivalent_to(of_shards.sharding, x.ndim)
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))


def test_automatic_axes_within_an_explicit_program():
    x, lengths = numbers(3, 16, 8), lengths_of("random", (3, 1, 1), 16)
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        reverse = jax.sharding.auto_axes(REVERSE, out_sharding=P(None, "time", None))
        y = jax.jit(reverse)(put(x, mesh, None, "time"), put(lengths, mesh))
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))


@pytest.mark.parametrize("axis", [0, 1])
def test_the_partitioner_before_shardy(axis):
    x, lengths = numbers(8, 16, 8), lengths_of("random", (8, 16, 1), 8)
    lengths = np.take(lengths, [0], axis)
    of_shards = put(x, make_mesh(AxisType.Auto), None, "time")
    reverse = functools.partial(dml_jax.reverse_subsequences, axis=axis)
    is_shardy = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        y = jax.jit(reverse)(of_shards, lengths)
    finally:
        jax.config.update("jax_use_shardy_partitioner", is_shardy)
    assert y.sharding.is_equivalent_to(of_shards.sharding, x.ndim)
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, axis))


def test_programs_of_different_axes_differ():
    """Their texts do, by which a persistent cache knows them."""
    x = put(numbers(8, 8), make_mesh(AxisType.Auto), "time")
    texts = []
    for axis in (0, 1):
        reverse = functools.partial(dml_jax.reverse_subsequences, axis=axis)
        text = jax.jit(reverse).lower(x, jnp.ones((1, 1), jnp.int32)).as_text()
        texts.append(re.sub(r'backend_config = "\d+"', "", text))
        assert "CustomSPMDPartitioning" in text
    assert texts[0] != texts[1]


def test_the_gather_is_left_to_xla():
    """On more meshes than one, too."""
    x, lengths = numbers(8, 16), lengths_of("random", (8, 1), 16)
    other = make_mesh(AxisType.Auto, (2, 4), ("a", "b"))
    scale = put(np.float32(2), other)

    @jax.jit
    def run(x, lengths, scale):
        return REVERSE(x, lengths, implementation="gather") * scale

    y = run(put(x, make_mesh(AxisType.Auto), "time"), lengths, scale)
    assert_same_bits(y, 2 * reference.reverse_subsequences(x, lengths, 1))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_training(mode):
    """A bidirectional model's gradient: forwards and backwards over shared steps."""
    x, lengths = numbers(3, 16, 8), lengths_of("random", (3,), 16)

    def loss(x, lengths):
        y = dml_jax.reverse_sequence(x, lengths, batch_axis=0, time_axis=1)
        return jnp.sum(y * y * x)

    expected = jax.grad(loss)(x, lengths)
    mesh = make_mesh(mode)
    with jax.set_mesh(mesh):
        of_shards = put(x, mesh, None, "time")
        gradient = jax.jit(jax.grad(loss))(of_shards, put(lengths, mesh))
    assert gradient.sharding.is_equivalent_to(of_shards.sharding, x.ndim)
    assert_same_bits(gradient, expected)


# What is held and what is sent --------------------------------------------------------


def forward(x, lengths):
    return REVERSE(x, lengths)


def vjp(x, lengths):
    return jax.vjp(lambda x: REVERSE(x, lengths), x)[1](x)[0]


def jvp(x, lengths):
    return jax.jvp(lambda x: REVERSE(x, lengths), (x,), (x,))[1]


def vmap(x, lengths):
    return jax.vmap(lambda x, n: dml_jax.reverse_subsequences(x, n, 0))(x, lengths)


def sent(compiled, itemsize=4):
    """The bytes that collectives give to one device, by the name of the collective."""
    found = {}
    lines = re.findall(r"= \(?\w+\[([\d,]+)\].* ([a-z-]+)\(", compiled.as_text())
    for shape, name in lines:
        if name in ("collective-permute", "all-to-all") or "all-" in name:
            size = math.prod(map(int, shape.split(","))) * itemsize
            found[name] = found.get(name, 0) + size
    return found


# A transformed reversal is a reversal again, of which a device knows no more.
@pytest.mark.parametrize(
    ("transformation", "devices"),
    [(forward, 2), (forward, 4), (forward, 8), (vjp, 2), (jvp, 8), (vmap, 4)],
)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("features", [64, 63])
def test_a_device_holds_a_few_shards(features, mode, devices, transformation):
    x = numbers(3, 1024, features)
    mesh, shard = make_mesh(mode, (devices,)), x.nbytes // devices
    with jax.set_mesh(mesh):
        x = put(x, mesh, None, "time")
        lengths = put(np.full((3, 1, 1), 700, np.int32), mesh)
        compiled = jax.jit(transformation).lower(x, lengths).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 3.1 * shard
    if features % devices == 0 and devices > 2:
        assert sent(compiled).keys() == {"all-to-all"}
    else:
        steps = {2: 1, 4: 3, 8: 4}[devices]
        assert sent(compiled) == {"collective-permute": steps * shard}


def test_a_whole_axis_is_reversed_as_on_one_device():
    """By what the platform has, and not by the gather that XLA could divide."""
    mesh = make_mesh(AxisType.Auto)
    x = put(numbers(64, 4096), mesh, "time")
    lengths = put(lengths_of("random", (64, 1), 4096), mesh, "time")
    text = jax.jit(REVERSE).lower(x, lengths).compile().as_text()
    assert "CustomSPMDPartitioning" not in text
    assert "reverse(" in text or "dynamic-update-slice" in text


# Slices -------------------------------------------------------------------------------

# Offset, size and stride of a result that the devices can divide.
CUTS = {
    "shifted": (5, 1000, 1),
    "strided": (3, 336, 3),
    "aligned": (0, 512, 2),
    "backwards": (1020, 1016, -1),
    "backwards-strided": (1019, 320, -3),
}


def cut(x, first, size, step):
    window = (size - 1) * abs(step) + 1
    lowest = first if step > 0 else first - window + 1
    b, _, f = x.shape
    return dml_jax.slice1(x, [0, lowest, 0], [b, window, f], [1, step, 1])


def cut_gradient(x, first, size, step):
    return jax.vjp(lambda x: cut(x, first, size, step), x)[1](x[:, :size])[0]


@pytest.mark.parametrize("function", [cut, cut_gradient])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", CUTS)
def test_slices_exchange_their_rims(name, mode, function):
    x, options = numbers(3, 1024, 8), CUTS[name]
    expected = np.asarray(jax.jit(function, static_argnums=(1, 2, 3))(x, *options))
    mesh = make_mesh(mode)
    with jax.set_mesh(mesh):
        of_shards = put(x, mesh, None, "time")
        run = jax.jit(
            functools.partial(
                function, **dict(zip(("first", "size", "step"), options, strict=True))
            ),
            out_shardings=of_shards.sharding,
        )
        compiled = run.lower(of_shards).compile()
        y = compiled(of_shards)
    assert_same_bits(y, expected)
    shard = x.nbytes // 8
    assert sum(sent(compiled).values()) <= 3 * shard
    assert not {"all-gather", "all-reduce", "all-to-all"} & sent(compiled).keys()
    assert compiled.memory_analysis().temp_size_in_bytes <= 4 * shard


# Fills --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_fills_of_an_explicit_program_stay_in_their_shards(dtype):
    size, mesh = 2**16, make_mesh(AxisType.Explicit)
    run = functools.partial(dml_jax.fill_value_sequence, (size,), dtype)
    start, delta = np.asarray([10, 3], jnp.dtype(dtype))
    expected = np.asarray(jax.jit(run)(start, delta))
    with jax.set_mesh(mesh):
        sharded = jax.jit(run, out_shardings=NamedSharding(mesh, P("time")))
        compiled = sharded.lower(start, delta).compile()
        y = compiled(start, delta)
    assert_same_bits(y, expected)
    assert sent(compiled) == {}
    assert compiled.memory_analysis().temp_size_in_bytes < size / 8


# More elements than 32 bits can count. Each device is asked for the ends of its shard,
# so that nobody computes the rest.
LONG = {
    "one-dimension": ((2**32 + 2**14,), P("time")),
    "two-dimensions": ((2**17, 2**16), P("time")),
    "two-dimensions-the-other-sharded": ((2**16, 2**17), P(None, "time")),
}


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", LONG)
def test_long_fills(name, mode, dtype):
    (sizes, spec), mesh = LONG[name], make_mesh(mode)
    sharding = NamedSharding(mesh, spec)
    start, delta = (-2.0, 2.0**-20) if "float" in dtype else (1, 37)
    divide = lax.with_sharding_constraint
    if mode == AxisType.Explicit:
        divide = jax.sharding.reshard

    def ends(shard):
        return jnp.stack([shard[(0,) * shard.ndim], shard[(-1,) * shard.ndim]])

    @jax.jit
    def run():
        y = dml_jax.fill_value_sequence(sizes, dtype, start, delta)
        of_shards = jax.shard_map(ends, mesh=mesh, in_specs=spec, out_specs=P("time"))
        return of_shards(divide(y, sharding))

    with jax.set_mesh(mesh), jax.enable_x64(dtype == "int64"):
        found = run()
    k = np.array(positions_of_ends(sizes, sharding))
    expected = k * delta + start
    if dtype == "float16":
        expected = np.minimum(expected, 65504)
    assert_same_bits(found, expected.astype(dtype))


def positions_of_ends(sizes, sharding):
    """The row-major positions of the first and the last element of every shard."""
    strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    found = []
    for index in sharding.devices_indices_map(sizes).values():
        parts = [range(size)[part] for size, part in zip(sizes, index, strict=True)]
        for end in (0, -1):
            found.append(np.dot([part[end] for part in parts], strides))
    return found
