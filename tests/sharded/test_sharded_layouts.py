"""Buffers of strided tensors that several devices share, and their derivatives.

Layouts, sizes, data types and meshes are random. What one device would compute is what
is expected, bit for bit: the places where elements lie say it.
"""

import dataclasses

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import buffer_size, expected_of
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType

TYPES = [data_type for data_type in DataType if data_type.bits >= 8]
FLOATS = [DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64]
MESHES = {2: (2,), 3: (3,), 4: (2, 2), 8: (4, 2)}  # by the number of devices


def sharding_of(devices):
    """A buffer that all devices of a mesh share."""
    names = ("x", "y")[: len(MESHES[devices])]
    mesh = jax.make_mesh(
        MESHES[devices],
        names,
        axis_types=(AxisType.Auto,) * len(names),
        devices=jax.devices()[:devices],
    )
    return NamedSharding(mesh, P(names))


def random_strides(random, sizes, is_output):
    """None, nested ones with gaps in any order; of inputs also others and zeros."""
    kind = random.integers(4)
    if kind == 0:
        return None
    if kind == 3 and not is_output:
        return tuple(map(int, random.integers(0, 5, len(sizes))))
    strides, reach = [0] * len(sizes), 1
    for d in random.permutation(len(sizes)):
        strides[d] = int(reach + random.choice([0, 0, 1, 2, 5]))
        reach += (sizes[d] - 1) * strides[d]
    if kind == 2 and not is_output:
        strides = [stride * int(random.integers(3) > 0) for stride in strides]
    return tuple(strides)


def random_tensor(random, data_type, sizes, devices, is_output=False):
    """A tensor whose buffer the devices can divide."""
    strides = random_strides(random, sizes, is_output)
    needed = BufferTensorDesc(data_type, sizes, strides).total_tensor_size_in_bytes
    unit = data_type.dtype.itemsize * devices * 4
    total = (-(-needed // unit) + int(random.integers(2))) * unit
    return BufferTensorDesc(data_type, sizes, strides, total)


def random_desc(random, data_type, devices):
    """A copy, or a reversal by lengths that each device has."""
    sizes = tuple(map(int, random.integers(1, 7, random.integers(1, 4))))
    source = random_tensor(random, data_type, sizes, devices)
    output = random_tensor(random, data_type, sizes, devices, is_output=True)
    if random.integers(2):
        zeros, ones = (0,) * len(sizes), (1,) * len(sizes)
        return dml.SliceOperatorDesc(source, output, zeros, sizes, ones)
    axis = int(random.integers(len(sizes)))
    counts = tuple(1 if d == axis else size for d, size in enumerate(sizes))
    strides = (0,) * len(sizes) if random.integers(2) else None
    lengths = BufferTensorDesc(DataType.UINT32, counts, strides)
    return dml.ReverseSubsequencesOperatorDesc(source, lengths, output, axis)


def random_bits(random, tensor):
    """NaNs with payloads and zeros of both signs among them."""
    dtype = tensor.data_type.dtype
    content = random.integers(0, 256, buffer_size(tensor) * dtype.itemsize, np.uint8)
    return (
        np.where(random.integers(4, size=content.size) > 0, content, 0x80)
        .astype(np.uint8)
        .view(dtype)
    )


def lengths_of(desc, random):
    return [
        random.integers(0, 8, buffer_size(tensor)).astype(np.uint32)
        for tensor in desc.inputs[1:]
    ]


def program(desc):
    compiled = dml.compile_operator(desc)
    return lambda x, buffer, *lengths: compiled(x, *lengths, outputs=[buffer])


def compiled_for(function, sharding, inputs, lengths, outputs):
    replicated = [NamedSharding(sharding.mesh, P())] * len(lengths)
    return jax.jit(
        function,
        in_shardings=(*[sharding] * inputs, *replicated),
        out_shardings=sharding if outputs == 1 else (sharding,) * outputs,
    )


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("devices", MESHES)
@pytest.mark.parametrize("data_type", TYPES, ids=lambda t: t.name)
def test_random_layouts(data_type, devices):
    random = np.random.default_rng([data_type, devices])
    sharding = sharding_of(devices)
    for _ in range(3):
        desc = random_desc(random, data_type, devices)
        x, buffer = (random_bits(random, t) for t in (desc.inputs[0], desc.output))
        lengths = lengths_of(desc, random)
        with jax.enable_x64(data_type.bits == 64):
            call = compiled_for(program(desc), sharding, 2, lengths, 1)
            found = call(x, buffer, *lengths)
        assert found.sharding.is_equivalent_to(sharding, 1)
        assert_same_bits(found, expected_of(desc, [x, *lengths], buffer))


def places_of(desc, lengths):
    """For every place of the output its source: above 0 the input, below the buffer."""

    def counted(tensor):
        size = buffer_size(tensor) * 8
        return dataclasses.replace(
            tensor, data_type=DataType.INT64, total_tensor_size_in_bytes=size
        )

    members = (desc.input_members[0], desc.output_member)
    wide = dataclasses.replace(desc, **{m: counted(getattr(desc, m)) for m in members})
    places, before = (
        1 + np.arange(buffer_size(t), dtype=np.int64)
        for t in (desc.inputs[0], desc.output)
    )
    return expected_of(wide, [places, *lengths], -before)


def pullback_of(desc):
    call = program(desc)

    def pullback(x, buffer, cotangent, *lengths):
        _, transposed = jax.vjp(lambda x, b: call(x, b, *lengths), x, buffer)
        return transposed(cotangent)

    return pullback


@pytest.mark.parametrize("devices", MESHES)
@pytest.mark.parametrize("data_type", FLOATS, ids=lambda t: t.name)
def test_gradients_of_random_layouts(data_type, devices):
    random = np.random.default_rng([data_type, devices, 1])
    sharding, dtype = sharding_of(devices), data_type.dtype
    for _ in range(5):
        desc = random_desc(random, data_type, devices)
        lengths = lengths_of(desc, random)
        x, buffer, cotangent = (
            random.integers(-9, 9, buffer_size(t)).astype(dtype)
            for t in (desc.inputs[0], desc.output, desc.output)
        )

        with jax.enable_x64(data_type.bits == 64):
            call = compiled_for(pullback_of(desc), sharding, 3, lengths, 2)
            by_input, by_buffer = call(x, buffer, cotangent, *lengths)
        expected = np.zeros_like(x), np.zeros_like(buffer)
        places = places_of(desc, lengths)
        np.add.at(expected[0], places[places > 0] - 1, cotangent[places > 0])
        np.add.at(expected[1], -places[places < 0] - 1, cotangent[places < 0])
        np.testing.assert_array_equal(by_input, expected[0])
        np.testing.assert_array_equal(by_buffer, expected[1])


def test_neighbours_of_a_strided_operator_are_divided_rightly():
    """Elements that are made and used on the devices which share them."""
    sizes, devices = (6, 5), 8
    source = BufferTensorDesc(DataType.FLOAT32, sizes, (11, 2), 4 * 72)
    output = BufferTensorDesc(DataType.FLOAT32, sizes, (1, 7), 4 * 40)
    desc = dml.SliceOperatorDesc(source, output, (0, 0), sizes, (1, 1))
    sharding = sharding_of(devices)
    random = np.random.default_rng(0)
    x, buffer = (random.integers(-9, 9, n).astype(np.float32) for n in (72, 40))
    operator = program(desc)

    def loss(x, buffer):
        return (operator(x * 2, buffer + 1) ** 2).sum()

    found = compiled_for(jax.grad(loss, (0, 1)), sharding, 2, [], 2)(x, buffer)
    y = expected_of(desc, [2 * x], buffer + 1)
    places = places_of(desc, [])
    expected = np.zeros_like(x), np.zeros_like(buffer)
    np.add.at(expected[0], places[places > 0] - 1, 4 * y[places > 0])
    np.add.at(expected[1], -places[places < 0] - 1, 2 * y[places < 0])
    for gradient, wanted in zip(found, expected, strict=True):
        assert gradient.sharding.is_equivalent_to(sharding, 1)
        np.testing.assert_array_equal(gradient, wanted)


def test_buffers_of_an_explicit_mesh_are_gathered():
    """What is read, or kept between elements, is the same on every device."""
    sizes = (2, 3)
    source = BufferTensorDesc(DataType.FLOAT32, sizes, (5, 1), 4 * 16)
    output = BufferTensorDesc(DataType.FLOAT32, sizes, (1, 4), 4 * 16)
    desc = dml.SliceOperatorDesc(source, output, (0, 0), sizes, (1, 1))
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    x = np.arange(16, dtype=np.float32)
    with jax.set_mesh(mesh):
        bound = [jax.device_put(a, NamedSharding(mesh, P("x"))) for a in (x, -x)]
        operator = program(desc)
        found = operator(*bound)
        (by_x, _) = jax.vjp(operator, *bound)[1](found)
    assert_same_bits(found, expected_of(desc, [x], -x))
    places = places_of(desc, [])
    expected = np.zeros_like(x)
    np.add.at(expected, places[places > 0] - 1, np.asarray(found)[places > 0])
    np.testing.assert_array_equal(by_x, expected)
