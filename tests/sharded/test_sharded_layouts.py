"""Sharded buffers of strided tensors, and their derivatives.

Layouts, sizes, data types and meshes are random. The positions of the elements in the
buffers give the expected bits.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from descriptions import MOVES, adjoint, bound, buffer_size, copy_of, expected_of
from devices import EXPLICIT, mesh_of
from devices import put as put_on
from graphs import tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType

MESHES = {2: dict(x=2), 3: dict(x=3), 4: dict(x=2, y=2), 8: dict(x=4, y=2)}
TYPES = [data_type for data_type in DataType if data_type.bits >= 8]
WIDTHS = [DataType.UINT8, DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64]


def sharding_of(devices: int) -> NamedSharding:
    """Of a buffer, over all devices of a mesh."""
    sizes = MESHES[devices]
    return NamedSharding(mesh_of(**sizes), P(tuple(sizes)))


def rounded_up(tensor: BufferTensorDesc, devices: int) -> BufferTensorDesc:
    """The tensor in a buffer that the devices can partition."""
    unit = tensor.data_type.dtype.itemsize * devices * 4
    total = -(-tensor.total_tensor_size_in_bytes // unit) * unit
    return dataclasses.replace(tensor, total_tensor_size_in_bytes=total)


def draw_desc(data: st.DataObject, data_type: DataType, devices: int) -> Any:
    """An operator that moves elements between such buffers."""
    desc: Any = data.draw(st.sampled_from([*MOVES.values()]))([data_type])
    desc = data.draw(desc)
    members = desc.input_members[0], desc.output_member
    return dataclasses.replace(
        desc, **{name: rounded_up(getattr(desc, name), devices) for name in members}
    )


def draw_array(
    data: st.DataObject, tensor: BufferTensorDesc, *, is_lengths: bool = False
) -> np.ndarray:
    """Bits for a flat buffer of exactly the size of the tensor."""
    return np.resize(data.draw(bound(tensor, is_lengths)), buffer_size(tensor))


def program(desc: Any) -> Callable[..., Any]:
    compiled = dml.compile_operator(desc)
    return lambda x, buffer, *lengths: compiled(x, *lengths, outputs=[buffer])


def pull_back(desc: Any) -> Callable[..., Any]:
    """The cotangents of the input and of the buffer that is written to."""
    call = program(desc)

    def run(x: Any, buffer: Any, cotangent: Any, *lengths: Any) -> Any:
        _, pulled = jax.vjp(lambda x, b: call(x, b, *lengths), x, buffer)
        return pulled(cotangent)

    return run


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
        *[(DataType.FLOAT16, 8), (DataType.FLOAT32, 4)],
    ),
    ids=lambda value: getattr(value, "name", value),
)
def test_random_layouts(data_type: DataType, devices: int) -> None:
    """Any bits are moved; small numbers are moved back."""
    sharding, random = sharding_of(devices), np.random.default_rng(devices)

    @settings(max_examples=2)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        desc = draw_desc(data, data_type, devices)
        x, buffer = (draw_array(data, t) for t in (desc.inputs[0], desc.output))
        lengths = [draw_array(data, t, is_lengths=True) for t in desc.inputs[1:]]
        small = [
            random.integers(-9, 9, array.size).astype(data_type.dtype)
            for array in (x, buffer, buffer)
        ]
        is_float = np.issubdtype(data_type.dtype, np.floating)
        with jax.enable_x64(any(t.data_type.bits == 64 for t in desc.inputs)):
            move = jitted(program(desc), sharding, 2, len(lengths), 1)
            found = move(x, buffer, *lengths)
            back = jitted(pull_back(desc), sharding, 3, len(lengths), 2)
            pulled = back(*small, *lengths) if is_float else ()
        assert found.sharding.is_equivalent_to(sharding, 1)
        expected = expected_of(desc, [x, *lengths], buffer)
        assert_same_bits(found, expected.reshape(-1))
        if is_float:
            wanted = adjoint(desc, lengths, small[2])
            jax.tree.map(np.testing.assert_array_equal, pulled, wanted)

    check()


def test_neighbours_of_a_strided_operator_are_partitioned_rightly() -> None:
    """Elements are made and used on the devices that hold them."""
    desc = copy_of(
        tensor((6, 5), strides=(11, 2), total=288),
        tensor((6, 5), strides=(1, 7), total=160),
    )
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
    desc = copy_of(*(tensor((2, 3), strides=s, total=64) for s in ((5, 1), (1, 4))))
    mesh = mesh_of(EXPLICIT, x=8)
    x, operator = np.arange(16, dtype=np.float32), program(desc)
    with jax.set_mesh(mesh):
        bound = [put_on(array, mesh, "x") for array in (x, -x)]
        found = operator(*bound)
        by_x, _ = jax.vjp(operator, *bound)[1](found)
    assert_same_bits(found, expected_of(desc, [x], -x))
    expected, _ = adjoint(desc, [], np.asarray(found))
    np.testing.assert_array_equal(by_x, expected)
