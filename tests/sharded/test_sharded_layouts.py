"""Sharded buffers of strided tensors, and their derivatives.

Layouts, sizes, data types and meshes are random. The positions of the elements in the
buffers give the expected bits.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import adjoint, buffer_size, copy_of, expected_of
from devices import EXPLICIT, mesh_of
from devices import put as put_on
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType

MESHES = {2: dict(x=2), 3: dict(x=3), 4: dict(x=2, y=2), 8: dict(x=4, y=2)}
TYPES = [data_type for data_type in DataType if data_type.bits >= 8]
WIDTHS = [DataType.UINT8, DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64]
FLOATS = [DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64]


def sharding_of(devices: int) -> NamedSharding:
    """Of a buffer, over all devices of a mesh."""
    sizes = MESHES[devices]
    return NamedSharding(mesh_of(**sizes), P(tuple(sizes)))


def random_strides(
    random: np.random.Generator, sizes: tuple[int, ...], is_output: bool
) -> tuple[int, ...] | None:
    """None, or nested ones with gaps in any order; any others for inputs."""
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


def random_desc(random: np.random.Generator, data_type: DataType, devices: int) -> Any:
    """A copy or a reversal, between buffers that the devices can partition."""
    sizes = tuple(map(int, random.integers(1, 7, random.integers(1, 4))))

    def random_tensor(is_output: bool) -> BufferTensorDesc:
        strides = random_strides(random, sizes, is_output)
        needed = BufferTensorDesc(data_type, sizes, strides).total_tensor_size_in_bytes
        unit = data_type.dtype.itemsize * devices * 4
        total = (-(-needed // unit) + int(random.integers(2))) * unit
        return BufferTensorDesc(data_type, sizes, strides, total)

    source, output = random_tensor(False), random_tensor(True)
    if random.integers(2):
        return copy_of(source, output)
    axis = int(random.integers(len(sizes)))
    counts = tuple(1 if d == axis else size for d, size in enumerate(sizes))
    strides = (0,) * len(sizes) if random.integers(2) else None
    lengths = BufferTensorDesc(DataType.UINT32, counts, strides)
    return dml.ReverseSubsequencesOperatorDesc(source, lengths, output, axis)


def tensor(
    sizes: tuple[int, ...], strides: tuple[int, ...], count: int
) -> BufferTensorDesc:
    """Of float32, in a buffer of `count` elements."""
    return BufferTensorDesc(DataType.FLOAT32, sizes, strides, 4 * count)


def random_lengths(random: np.random.Generator, desc: Any) -> list[np.ndarray]:
    return [
        random.integers(0, 8, buffer_size(tensor)).astype(np.uint32)
        for tensor in desc.inputs[1:]
    ]


def program(desc: Any) -> Callable[..., Any]:
    compiled = dml.compile_operator(desc)
    return lambda x, buffer, *lengths: compiled(x, *lengths, outputs=[buffer])


def jitted(
    function: Callable[..., Any],
    sharding: NamedSharding,
    ins: int,
    lengths: int,
    out: int,
) -> Callable[..., Any]:
    """With this many sharded inputs, replicated lengths and sharded outputs."""
    replicated = NamedSharding(sharding.mesh, P())
    return jax.jit(
        function,
        in_shardings=(*[sharding] * ins, *[replicated] * lengths),
        out_shardings=sharding if out == 1 else (sharding,) * out,
    )


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    ("data_type", "devices"),
    default_of(
        # Every type on one mesh, and a type of each width on every mesh.
        [
            (t, devices)
            for t in TYPES
            for devices in MESHES
            if t in WIDTHS or devices == 8
        ],
        (DataType.FLOAT16, 8),
    ),
    ids=lambda value: getattr(value, "name", value),
)
def test_random_layouts(data_type: DataType, devices: int) -> None:
    random = np.random.default_rng([data_type, devices])
    sharding, dtype = sharding_of(devices), data_type.dtype
    for _ in range(2):
        desc = random_desc(random, data_type, devices)
        x, buffer = (  # NaNs with payloads and zeros of both signs among them
            random.choice(np.r_[:256, [0x80] * 85].astype(np.uint8), size).view(dtype)
            for size in (
                buffer_size(tensor) * dtype.itemsize
                for tensor in (desc.inputs[0], desc.output)
            )
        )
        lengths = random_lengths(random, desc)
        with jax.enable_x64(data_type.bits == 64):
            call = jitted(program(desc), sharding, 2, len(lengths), 1)
            found = call(x, buffer, *lengths)
        assert found.sharding.is_equivalent_to(sharding, 1)
        assert_same_bits(found, expected_of(desc, [x, *lengths], buffer))


@pytest.mark.parametrize("devices", default_of(MESHES, 4))
@pytest.mark.parametrize(
    "data_type", default_of(FLOATS, DataType.FLOAT32), ids=lambda t: t.name
)
def test_gradients_of_random_layouts(data_type: DataType, devices: int) -> None:
    random = np.random.default_rng([data_type, devices, 1])
    sharding = sharding_of(devices)
    for _ in range(2):
        desc = random_desc(random, data_type, devices)
        lengths, call = random_lengths(random, desc), program(desc)
        x, buffer, cotangent = (
            random.integers(-9, 9, buffer_size(t)).astype(data_type.dtype)
            for t in (desc.inputs[0], desc.output, desc.output)
        )

        def pull_back(x: Any, b: Any, ct: Any, *n: Any, call: Any = call) -> Any:
            return jax.vjp(lambda x, b: call(x, b, *n), x, b)[1](ct)

        with jax.enable_x64(data_type.bits == 64):
            run = jitted(pull_back, sharding, 3, len(lengths), 2)
            found = run(x, buffer, cotangent, *lengths)
        expected = adjoint(desc, lengths, cotangent)
        for actual, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)


def test_neighbours_of_a_strided_operator_are_partitioned_rightly() -> None:
    """Elements are made and used on the devices that hold them."""
    desc = copy_of(tensor((6, 5), (11, 2), 72), tensor((6, 5), (1, 7), 40))
    sharding = sharding_of(8)
    operator, random = program(desc), np.random.default_rng(0)
    x, buffer = (random.integers(-9, 9, n).astype(np.float32) for n in (72, 40))

    def loss(x: jax.Array, buffer: jax.Array) -> jax.Array:
        return (operator(x * 2, buffer + 1) ** 2).sum()

    found = jitted(jax.grad(loss, (0, 1)), sharding, 2, 0, 2)(x, buffer)
    y = expected_of(desc, [2 * x], buffer + 1)
    by_x, by_buffer = adjoint(desc, [], 2 * y)
    for gradient, wanted in zip(found, (2 * by_x, by_buffer), strict=True):
        assert gradient.sharding.is_equivalent_to(sharding, 1)
        np.testing.assert_array_equal(gradient, wanted)


def test_buffers_of_an_explicit_mesh_are_gathered() -> None:
    """The operator reads and keeps elements that are the same on every device."""
    desc = copy_of(tensor((2, 3), (5, 1), 16), tensor((2, 3), (1, 4), 16))
    mesh = mesh_of(EXPLICIT, x=8)
    x, operator = np.arange(16, dtype=np.float32), program(desc)
    with jax.set_mesh(mesh):
        bound = [put_on(array, mesh, "x") for array in (x, -x)]
        found = operator(*bound)
        by_x, _ = jax.vjp(operator, *bound)[1](found)
    assert_same_bits(found, expected_of(desc, [x], -x))
    expected, _ = adjoint(desc, [], np.asarray(found))
    np.testing.assert_array_equal(by_x, expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("strides", [(2**31, 1, 1), (2**31, 3, 2), (2**31, 4, 1)])
def test_positions_beyond_an_int32(strides: tuple[int, ...]) -> None:
    """Outside of 64-bit mode: overlapping, woven and nested bytes, of 2 GiB."""
    sizes, size, data_type = (2, 2, 3), 2**31 + 32, DataType.UINT8
    large = BufferTensorDesc(data_type, sizes, strides, size)
    packed = BufferTensorDesc(data_type, sizes)
    x, sharding = np.zeros(size, np.uint8), sharding_of(2)
    x[:16], x[2**31 : 2**31 + 16] = np.arange(1, 17), np.arange(101, 117)
    with jax.enable_x64(False):
        operator = dml.compile_operator(copy_of(large, packed))
        bound = jax.device_put(x, sharding)
        found = operator(bound)
        assert_same_bits(found, expected_of(copy_of(large, packed), [x]))
        if strides[1:] != (1, 1):
            written = program(copy_of(packed, large))(found + np.uint8(1), bound)
            again = operator(written)
            assert_same_bits(again, found + np.uint8(1))
