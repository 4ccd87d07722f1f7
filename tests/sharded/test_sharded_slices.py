"""Gradients of slices of arrays that several devices share.

XLA's partitioner divides `lax.pad` wrongly (docs/xla.md), so that these windows had
wrong gradients, or ended the process, before the package divided them itself.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from devices import collectives, compile_for, most_elements
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax
from dml_jax import reference

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def line_of(devices, axis_type=AUTO):
    """A mesh of one axis, "a"."""
    return jax.make_mesh(
        (devices,), ("a",), axis_types=(axis_type,), devices=jax.devices()[:devices]
    )


def windows_of(devices, count):
    """Sizes that the devices share, and the windows of a `slice1`."""
    rng = np.random.default_rng(devices)
    for _ in range(count):
        size = devices * int(rng.integers(1, 9))
        offset = int(rng.integers(size))
        window = int(rng.integers(1, size - offset + 1))
        yield size, offset, window, int(rng.choice([1, 2, 3, 4, -2, -3]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("devices", [2, 3, 4, 6, 8])
def test_gradients_of_random_windows(devices, dtype):
    """The backward pass, and the backward pass of that."""
    sharding = NamedSharding(line_of(devices), P("a"))
    for size, *window in windows_of(devices, 10):
        x = (np.arange(1, size + 1) % 13 + 1).astype(dtype)
        y = reference.slice1(x, *([part] for part in window))
        expected = reference.slice_grad(y, (size,), *([part] for part in window))
        operator = functools.partial(slice1, *window)

        def pull_back(x, y, operator=operator):
            return jax.vjp(operator, x)[1](y)[0]

        def pull_back_twice(x, y, pull_back=pull_back):
            return jax.vjp(functools.partial(pull_back, x), y)[1](x)[0]

        x_shared = jax.device_put(x, sharding)
        gradient = jax.jit(pull_back, out_shardings=sharding)(x_shared, y)
        assert_same_bits(gradient, expected)
        assert_same_bits(jax.jit(pull_back_twice)(x_shared, y), y)


def test_gradient_of_a_loss():
    """Whose cotangent XLA divides as it divides the slice: two elements on a device."""
    x = jax.device_put(np.arange(1.0, 25.0), NamedSharding(line_of(8), P("a")))
    loss = jax.grad(lambda x: jnp.sum(slice1(11, 2, 1, x) ** 2))
    expected = np.zeros(24, np.float32)
    expected[11:13] = 24, 26
    assert_same_bits(jax.jit(loss)(x.astype(jnp.float32)), expected)


def slice1(offset, window, stride, x):
    return dml_jax.slice1(x, (offset,), (window,), (stride,))


@pytest.mark.parametrize("shardy", [True, False])
@pytest.mark.parametrize("axis_type", [AUTO, EXPLICIT])
def test_under_either_partitioner(axis_type, shardy):
    g = np.arange(1, 17, dtype=np.float32).reshape(2, 8)
    arguments = (4, 24), (1, 2), (2, 22), (1, -3)
    mesh = line_of(4, axis_type)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        with jax.set_mesh(mesh):
            g_shared = jax.device_put(g, NamedSharding(mesh, P(None, "a")))
            y = jax.jit(lambda g: dml_jax.slice_grad(g, *arguments))(g_shared)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    assert_same_bits(y, reference.slice_grad(g, *arguments))


# What is sent and held ----------------------------------------------------------------

STEPS, FEATURES = 64, 16


def gradient_of(offset, window, stride):
    """The program of a gradient by 8 devices that share the steps, and its shard."""
    sharding = NamedSharding(line_of(8), P(None, "a"))
    arguments = (0, offset, 0), (4, window, FEATURES), (1, stride, 1)
    x = jnp.ones((4, STEPS, FEATURES), jnp.float32)
    loss = jax.grad(lambda x: jnp.sum(dml_jax.slice1(x, *arguments) ** 2))
    return compile_for(loss, jax.device_put(x, sharding)), x.size // 8


@pytest.mark.parametrize(
    ("offset", "stride", "rim"), [(1, 1, 1), (3, 1, 3), (0, 1, 0), (0, 2, 0)]
)
def test_only_the_rim_is_sent(offset, stride, rim):
    compiled, shard = gradient_of(offset, STEPS - offset, stride)
    sent = re.findall(
        r"= f32\[4,(\d+),16\]\S* collective-permute\(", compiled.as_text()
    )
    assert collectives(compiled) == (["collective-permute"] if rim else [])
    assert {int(steps) for steps in sent} == ({rim} if rim else set())
    assert compiled.output_shardings.shard_shape((4, STEPS, FEATURES)) == (4, 8, 16)
    # Pieces and what they are put into; XLA's slice pads its shard by a rim.
    assert most_elements(compiled) <= 2 * shard


@pytest.mark.parametrize("stride", [1, 2, -1, -3])
@pytest.mark.parametrize(("offset", "window"), [(16, 32), (1, 62), (40, 2), (0, 64)])
def test_a_few_shards_are_held(offset, window, stride):
    """However far elements have to go, none of the devices gathers them all."""
    compiled, shard = gradient_of(offset, window, stride)
    assert "all-gather" not in collectives(compiled)
    assert compiled.memory_analysis().temp_size_in_bytes <= 6 * 4 * shard


# Where XLA's partitioner does not ask -------------------------------------------------


SPECIAL = np.array([-0.0, np.nan, 1.0, -2.5, 1e-45, np.inf, -0.0, 7.0], np.float32)
SPECIAL.view(np.uint32)[1] = 0x7FA12345  # a signalling NaN


def reverse(x):
    return dml_jax.reverse_subsequences(x, np.full((len(x), 1), 5), 1)


def put(x):
    return dml_jax.slice_grad(x, (len(x), 24), (0, 2), (len(x), 22), (1, -3))


def by_reference(run, x):
    if run is reverse:
        return reference.reverse_subsequences(x, np.full((len(x), 1), 5), 1)
    return reference.slice_grad(x, (len(x), 24), (0, 2), (len(x), 22), (1, -3))


DTYPES = [np.float32, np.complex64, jnp.bfloat16, np.uint8, np.bool_, jnp.int4]


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("run", [reverse, put])
def test_exported(run, dtype):
    with np.errstate(invalid="ignore"):
        x = np.nan_to_num(np.tile(SPECIAL, (2, 1))).clip(-3, 7).astype(dtype)
    if dtype in (np.float32, np.complex64):
        x = np.tile(SPECIAL, (2, 1)).astype(dtype)
    sharding = NamedSharding(line_of(4), P(None, "a"))
    program = jax.jit(run, in_shardings=sharding, out_shardings=sharding)
    exported = jax.export.export(program)(x)
    y = jax.jit(exported.call)(jax.device_put(x, sharding))
    assert_same_bits(y, by_reference(run, x))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("run", [reverse, put])
def test_below_shard_map_over_another_axis(run):
    x = np.tile(SPECIAL, (4, 1))
    mesh = jax.make_mesh((2, 4), ("b", "a"), axis_types=(AUTO, AUTO))
    sharding = NamedSharding(mesh, P("b", "a"))
    mapped = jax.shard_map(
        run, mesh=mesh, in_specs=P("b"), out_specs=P("b"), axis_names={"b"}
    )
    program = jax.jit(mapped, in_shardings=sharding, out_shardings=sharding)
    assert_same_bits(program(x), by_reference(run, x))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("run", [reverse, put])
def test_along_an_automatic_axis_beside_an_explicit_one(run):
    x = np.tile(SPECIAL, (4, 1))
    mesh = jax.make_mesh((2, 4), ("b", "a"), axis_types=(EXPLICIT, AUTO))
    with jax.set_mesh(mesh):
        shared = jax.device_put(x, NamedSharding(mesh, P("b", "a")))
        assert_same_bits(jax.jit(run)(shared), by_reference(run, x))


@pytest.mark.usefixtures("nans_are_data")
def test_the_gather_adds_up_no_floats():
    """XLA divides it as a sum in which all devices but one have zeros."""
    x = np.tile(SPECIAL, 2)
    run = functools.partial(
        dml_jax.reverse_subsequences, axis=0, implementation="gather"
    )
    sharding = NamedSharding(line_of(8), P("a"))
    y = jax.jit(run, in_shardings=(sharding, None))(x, np.array([13]))
    assert_same_bits(y, reference.reverse_subsequences(x, np.array([13]), 0))


# Programs for devices that are not known ----------------------------------------------


@pytest.mark.parametrize("run", [reverse, put])
def test_lowered_for_an_abstract_mesh(run):
    mesh = jax.sharding.AbstractMesh((4,), ("a",))
    x = jax.ShapeDtypeStruct(
        (2, 8), jnp.float32, sharding=NamedSharding(mesh, P(None, "a"))
    )
    traced = jax.jit(run).trace(x)
    assert "sharding" in traced.lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize("run", [reverse, put])
def test_exported_with_its_derivative(run):
    sharding = NamedSharding(line_of(4), P(None, "a"))
    program = jax.jit(run, in_shardings=sharding, out_shardings=sharding)
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    exported = jax.export.export(program)(x)
    exported = jax.export.deserialize(exported.serialize(vjp_order=1))
    x_shared = jax.device_put(x, sharding)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(exported.call(x) ** 2)))(x_shared)
    assert_same_bits(gradient, 2 * x)


def test_reversed_devices():
    """A flip of a shared dimension reverses the order of the devices for XLA."""
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    sharding = NamedSharding(line_of(4), P("a"))
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        program = jax.jit(lambda x: reverse(jax.lax.rev(x, [0])))
        y = program(jax.device_put(x, sharding))
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    assert_same_bits(y, by_reference(reverse, x[::-1]))


# What the partitioner is told ---------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "spec"),
    [
        ((8,), P("a", None)),
        ((2, 4), P("b", "a")),
        ((4, 2), P(("b", "a"), None)),
        (
            (2, 4),
            P(
                ("a", "b"),
            ),
        ),
        ((2, 3), P("b", "a")),
        ((3, 2), P(None, ("b", "a"))),
        ((2, 2, 2), P("b", ("c", "a"))),
        ((2, 2, 2), P(None, "b")),
        ((2, 4), P()),
    ],
)
def test_shardings_without_their_mesh(sizes, spec):
    """The mesh that is found has the same tiles, device by device."""
    from dml_jax._shared import partitioner

    devices = math.prod(sizes)
    mesh = jax.make_mesh(
        sizes,
        ("a", "b", "c")[: len(sizes)],
        axis_types=(AUTO,) * len(sizes),
        devices=jax.devices()[:devices],
    )
    found, (of_result,) = partitioner._decode([NamedSharding(mesh, spec)], [2], devices)
    assert found.size == devices
    found = jax.sharding.Mesh(mesh.devices.reshape(found.axis_sizes), found.axis_names)
    shape = (48, 48)
    assert NamedSharding(found, of_result).devices_indices_map(shape) == NamedSharding(
        mesh, spec
    ).devices_indices_map(shape)
