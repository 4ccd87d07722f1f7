"""Laws that hold for all arguments, tried on random ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_floats
from hypothesis import given
from hypothesis import strategies as st

import dml_jax
from dml_jax import reference

SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def reversals(draw: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """An input, an axis, and lengths that broadcast and may lie beyond the axis."""
    shape = draw(SHAPES)
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    random = np.random.default_rng(draw(SEEDS))
    lengths_shape = tuple(
        1 if d == axis % len(shape) else draw(st.sampled_from([1, size]))
        for d, size in enumerate(shape)
    )
    lengths = random.integers(-2, shape[axis] + 3, lengths_shape)
    return random.integers(-99, 100, shape).astype(np.float32), lengths, axis


@st.composite
def window_and_shape(draw: Any) -> tuple[Any, Any]:
    """A shape and, for each of its dimensions, a window in it with a stride."""
    shape = draw(SHAPES)
    offsets = [draw(st.integers(0, size)) for size in shape]
    sizes = [
        draw(st.integers(0, size - offset))
        for size, offset in zip(shape, offsets, strict=True)
    ]
    nonzero = st.integers(-4, 4).filter(bool)
    strides = [draw(nonzero) for _ in shape]
    return shape, (offsets, sizes, strides)


@given(reversals())
def test_reversal_equals_the_reference_and_undoes_itself(arguments: Any) -> None:
    x, lengths, axis = arguments
    once = dml_jax.reverse_subsequences(*arguments)
    assert_same_bits(once, reference.reverse_subsequences(*arguments))
    assert_same_bits(dml_jax.reverse_subsequences(once, lengths, axis), x)


@given(reversals(), SEEDS)
def test_reversal_is_its_own_adjoint(arguments: Any, seed: int) -> None:
    x, lengths, axis = arguments
    y = np.random.default_rng(seed).integers(-99, 100, x.shape).astype(np.float32)
    _, pullback = jax.vjp(
        lambda x: dml_jax.reverse_subsequences(x, lengths, axis), jnp.asarray(x)
    )
    expected = reference.reverse_subsequences(y, lengths, axis)
    assert_same_bits(pullback(y)[0], expected)


@given(reversals())
def test_vmap_equals_a_loop(arguments: Any) -> None:
    x, lengths, axis = arguments
    axis %= x.ndim
    batch = np.stack([x, x + 1])
    result = jax.vmap(dml_jax.reverse_subsequences, (0, None, None))(
        batch, lengths, axis
    )
    for actual, entry in zip(result, batch, strict=True):
        expected = reference.reverse_subsequences(entry, lengths, axis)
        assert_same_bits(actual, expected)


@given(window_and_shape(), SEEDS)
def test_slice1_and_its_adjoint_slice_grad_equal_the_reference(
    shape_and_window: Any, seed: int
) -> None:
    """<slice1(x), y> = <x, slice_grad(y)> for whole numbers, so exactly."""
    shape, window = shape_and_window
    random = np.random.default_rng(seed)
    x = random.integers(-99, 100, shape).astype(np.int32)
    sliced = dml_jax.slice1(x, *window)
    assert_same_bits(sliced, reference.slice1(x, *window))
    y = random.integers(-99, 100, sliced.shape).astype(np.int32)
    put = dml_jax.slice_grad(y, shape, *window)
    assert_same_bits(put, reference.slice_grad(y, shape, *window))
    assert np.vdot(sliced, y) == np.vdot(x, put)


@given(window_and_shape(), SEEDS)
def test_slice_is_slice1_for_positive_strides(shape_and_window: Any, seed: int) -> None:
    shape, (offsets, sizes, strides) = shape_and_window
    x = np.random.default_rng(seed).integers(-99, 100, shape).astype(np.float32)
    strides = [abs(stride) for stride in strides]
    expected = dml_jax.slice1(x, offsets, sizes, strides)
    assert_same_bits(dml_jax.slice(x, offsets, expected.shape, strides), expected)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("width", [16, 32])
@given(data=st.data())
def test_fill_equals_the_reference(width: int, data: st.DataObject) -> None:
    dtype, floats = np.dtype(f"f{width // 8}"), st.floats(width=width)
    sizes = data.draw(SHAPES)
    start, delta = (dtype.type(data.draw(floats)) for _ in range(2))
    assert_same_floats(
        dml_jax.fill_value_sequence(sizes, dtype, start, delta),
        reference.fill_value_sequence(sizes, dtype, start, delta),
    )
