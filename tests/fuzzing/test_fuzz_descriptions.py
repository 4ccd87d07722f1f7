"""Descriptions with members of any kind: the operator is right, or it is refused."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_sequence
from calls import near_values
from descriptions import (
    DESCS,
    FLOATS,
    MOVES,
    adjoint,
    bound,
    buffer_size,
    elements,
    expected_of,
    with_buffer,
)
from hypothesis import strategies as st
from outcomes import Refusal, outcome_of

import dml_jax.directml as dml
from dml_jax.directml import BufferTensorDesc, DataType


def near_members(draw: Any, name: str, value: Any) -> Any:
    """Something of the right kind that may be refused."""
    if isinstance(value, BufferTensorDesc):
        field = draw(st.sampled_from(dataclasses.fields(value))).name
        near = near_members(draw, field, getattr(value, field))
        return dataclasses.replace(value, **{field: near})
    if isinstance(value, DataType):
        return draw(st.sampled_from(list(DataType)))
    if isinstance(value, (int, tuple)):
        plain = value if isinstance(value, tuple) else int(value)
        return near_values(lambda v: draw(st.sampled_from(v)), name, plain)
    return value


@pytest.mark.parametrize("operator", DESCS)
def test_descriptions(operator: str, fuzz: Any) -> None:
    """One that is right, and one in which a member is near to right."""

    @fuzz
    def check(data: st.DataObject) -> None:
        desc = data.draw(DESCS[operator])
        require_reference(data.draw, dml.compile_operator(desc))
        field = data.draw(st.sampled_from(dataclasses.fields(desc))).name

        def changed() -> Any:
            value = near_members(data.draw, field, getattr(desc, field))
            return dml.compile_operator(dataclasses.replace(desc, **{field: value}))

        heads = f"{type(desc).__name__}: ", "BufferTensorDesc: ", f"{desc.struct}: "
        result = outcome_of(changed, *heads)
        if not isinstance(result, Refusal):
            require_reference(data.draw, result)


def require_reference(draw: Any, operator: Any) -> None:
    """The operator gives what NumPy gives, on random bits, in either mode."""
    desc = operator.steps[0].operator
    tensors = [*desc.inputs, desc.output]
    if any(tensor.total_tensor_size_in_bytes > 2**16 for tensor in tensors):
        return
    inputs = bound_inputs(draw, desc)
    previous = draw(st.none() | bound(desc.output))
    is_wide = any(tensor.data_type.bits == 64 for tensor in tensors)
    # Outside 64-bit mode, what has 64 bits are arrays of JAX.
    is_foreign = is_wide and previous is not None and draw(st.booleans())
    with jax.enable_x64(not is_foreign and (is_wide or draw(st.booleans()))):
        given = [*inputs, previous]
        *arrays, output = made(given) if is_foreign else given
        result = np.array(operator(*arrays, outputs=[output]))
    expected = expected_of(desc, inputs, previous)
    if isinstance(desc, dml.FillValueSequenceOperatorDesc):
        views = elements(desc.output, result), elements(desc.output, expected)
        assert_same_sequence(*views)
        views[0][...] = views[1]  # the rest of the buffer is compared bit for bit
    assert_same_bits(result, expected)


def bound_inputs(draw: Any, desc: Any) -> list[np.ndarray]:
    return [
        draw(bound(tensor, member == "sequence_lengths_tensor"))
        for member, tensor in zip(desc.input_members, desc.inputs, strict=True)
    ]


def made(arrays: list[np.ndarray]) -> list[jax.Array]:
    """Arrays of JAX that keep their width."""
    with jax.enable_x64(True):
        return [jnp.asarray(array) for array in arrays]


# Transformations ----------------------------------------------------------------------

every_move = pytest.mark.parametrize("operator", MOVES)


@every_move
def test_vmap_equals_a_loop(operator: str, fuzz: Any) -> None:
    @fuzz
    def check(data: st.DataObject) -> None:
        desc = data.draw(DESCS[operator])
        arrays = [*bound_inputs(data.draw, desc), data.draw(bound(desc.output))]
        shifts = np.arange(3)
        batches = [
            np.stack([np.roll(array, shift) for shift in shifts]) for array in arrays
        ]
        axes = [data.draw(st.sampled_from([0, 0, None])) for _ in arrays]
        axes[data.draw(st.integers(0, len(axes) - 1))] = 0
        pairs = list(zip(arrays, batches, axes, strict=True))
        given = [array if axis is None else batch for array, batch, axis in pairs]
        with jax.enable_x64(data.draw(st.booleans())):
            found = jax.vmap(with_buffer(desc), axes)(*made(given))
        for entry, actual in zip(shifts, found, strict=True):
            *inputs, previous = (
                array if axis is None else batch[entry] for array, batch, axis in pairs
            )
            assert_same_bits(np.asarray(actual), expected_of(desc, inputs, previous))


@every_move
def test_derivatives_are_moves(operator: str, fuzz: Any) -> None:
    """In both modes, in or outside the 64-bit mode of the forward pass."""

    @fuzz
    def check(data: st.DataObject) -> None:
        desc = data.draw(MOVES[operator](FLOATS))
        modes = data.draw(st.tuples(st.booleans(), st.booleans()))
        random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        lengths = bound_inputs(data.draw, desc)[1:]

        def numbers(tensor: BufferTensorDesc) -> np.ndarray:
            """Whole ones, whose sums are exact."""
            drawn = random.integers(-9, 9, buffer_size(tensor))
            return drawn.astype(tensor.data_type.dtype)

        source, output = desc.inputs[0], desc.output
        arrays = [numbers(t) for t in (source, output, source, output, output)]
        x, buffer, *tangents, cotangent = made(arrays)
        wide_lengths = made(lengths)

        def call(x: Any, buffer: Any) -> Any:
            return with_buffer(desc)(x, *wide_lengths, buffer)

        with jax.enable_x64(modes[0]):
            before = jax.vjp(call, x, buffer)[1]
        with jax.enable_x64(modes[1]):
            _, tangent = jax.jvp(call, (x, buffer), tuple(tangents))
            pull_back = jax.vjp(call, x, buffer)[1]
            found = [pull_back(cotangent), jax.jit(before)(cotangent)]
        moved = expected_of(desc, [arrays[2], *lengths], arrays[3])
        assert_same_bits(np.asarray(tangent), np.reshape(moved, tangent.shape))
        for cotangents in found:
            for actual, wanted in zip(
                cotangents, adjoint(desc, lengths, arrays[4]), strict=True
            ):
                assert_same_bits(np.asarray(actual), wanted)
