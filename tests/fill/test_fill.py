"""Fills: order, special values, modular integers, derivatives and size."""

import functools
import itertools
import math
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_sequence
from cases import numbers
from dtypes import FLOATS, SEQUENCE_FLOATS, dtype_of, needs_x64
from sampling import default_of

import dml_jax
from dml_jax import fill_value_constant, fill_value_sequence, reference

pytestmark = pytest.mark.usefixtures("optimized")


@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("kind", [bool, int, float, complex])
def test_python_types_are_the_dtypes_that_they_are_in_jax_numpy(kind: type, x64: bool):
    with jax.enable_x64(x64):
        result = fill_value_constant((2,), kind, kind(1))
        assert_same_bits(result, np.asarray(jnp.full((2,), 1, kind)))
        if kind is int and x64:
            assert fill_value_constant((), int, 2**40) == 2**40
        if kind is not bool:
            result = fill_value_sequence((3,), kind, -1, 1)
            assert_same_bits(result, np.arange(-1, 2).astype(jnp.zeros(0, kind).dtype))


# Values -------------------------------------------------------------------------------


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("name", FLOATS)
def test_known_constants_keep_every_bit(name: str):
    """XLA folds them, and may change signalling NaNs and subnormals."""
    dtype = dtype_of(name)
    info = ml_dtypes.finfo(dtype)
    sign, infinity = 2 ** (info.bits - 1), 2 ** (info.bits - 1) - 2**info.nmant
    codes = [1, 2**info.nmant - 1, infinity, infinity + 1, sign, sign + infinity + 1]
    values = np.array(codes, np.uint64).astype(f"uint{8 * dtype.itemsize}").view(dtype)
    with jax.enable_x64(needs_x64(dtype)):
        fill = functools.partial(fill_value_constant, (3, 3, 7), dtype)
        for value, result in zip(
            values, jax.jit(lambda: [*map(fill, values)])(), strict=True
        ):
            assert_same_bits(result, np.full((3, 3, 7), value))


@pytest.mark.parametrize(
    "name", default_of([*SEQUENCE_FLOATS, "complex64"], "float16", "float32")
)
def test_zeros_of_known_sequences_keep_their_sign(name: str):
    """XLA simplifies sums with a literal 0."""
    dtype = dtype_of(name)
    terms = itertools.product(np.array([0.0, -0.0, 0.5, -0.5], dtype), repeat=2)
    pairs, fill = list(terms), functools.partial(fill_value_sequence, (3,), dtype)
    with jax.enable_x64(needs_x64(dtype)):
        results = jax.jit(lambda: [fill(*pair) for pair in pairs])()
        results += [jax.jit(functools.partial(fill, s))(d) for s, d in pairs]
    for pair, result in zip(pairs * 2, results, strict=True):
        assert_same_bits(result, reference.fill_value_sequence((3,), dtype, *pair))


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("name", [*FLOATS, "complex64"])
def test_python_numbers_are_cast_as_jax_casts_them(name: str):
    dtype = dtype_of(name)
    numbers = [0.1, -1 / 3, 1, 2, 5.75, 1e-9, -1e-9]
    with jax.enable_x64(needs_x64(dtype)):
        for number in [*numbers, *[complex(1, -0.0)] * (dtype.kind == "c")]:
            expected = np.asarray(jnp.asarray(number, dtype))
            for module in (dml_jax, reference):
                actual = module.fill_value_constant((), dtype, number)
                assert_same_bits(actual, expected)


def test_integers_of_no_width_of_numpy():
    for dtype in ("bfloat16", "float32", "complex64"):
        assert fill_value_constant((), dtype, 2**65) == 2.0**65


# Derivatives --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", default_of(["float32", "bfloat16", "float16"], "bfloat16")
)
def test_derivatives_are_exact(name: str):
    dtype = dtype_of(name)
    one = jnp.ones((), dtype)
    call = functools.partial(fill_value_sequence, (50, 2), dtype)
    _, by_start = jax.jvp(lambda s: call(s, one), (one,), (one,))
    _, by_delta = jax.jvp(lambda d: call(one, d), (one,), (one,))
    assert_same_bits(by_start, jnp.ones((50, 2), dtype))
    assert_same_bits(by_delta, call(0, 1))
    k = np.arange(100)
    start, delta = jax.vjp(call, one, one)[1](jnp.asarray(k.reshape(50, 2) % 5, dtype))
    assert start == np.sum(k % 5).astype(dtype)
    assert delta == np.sum(k * (k % 5)).astype(dtype)


def test_complex_derivatives():
    def loss(start: Any, delta: Any):
        return jnp.sum(fill_value_sequence((4,), "complex64", start, delta) ** 2)

    start, delta = jnp.complex64(1 + 2j), jnp.complex64(0.5 - 1j)
    k = jnp.arange(4, dtype=jnp.complex64)
    by_start, by_delta = jax.grad(loss, (0, 1), holomorphic=True)(start, delta)
    assert by_start == jnp.sum(2 * (start + k * delta))
    assert by_delta == jnp.sum(2 * k * (start + k * delta))


AXES = [[(0, None)], [(None, 0)], [(0, 0)], [(0, None), (None, 0)]]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_cotangents_of_mapped_scalars(axes: list[tuple[int | None, ...]]) -> None:
    """The axes of each `vmap`, from the outer one on."""
    fill = functools.partial(fill_value_sequence, (3,), "float32")
    for pair in reversed(axes):
        fill = jax.vmap(fill, pair)
    cotangent = numbers(*(2, 4)[: len(axes)], 3)
    terms = cotangent, cotangent * np.arange(3, dtype=np.float32)
    sums = [
        term.sum((*(d for d, pair in enumerate(axes) if pair[i] is None), -1))
        for i, term in enumerate(terms)
    ]
    _, pull_back = jax.vjp(fill, *map(np.ones_like, sums))
    jax.tree.map(assert_same_bits, pull_back(cotangent), (*sums,))


NARROW = [(jnp.bfloat16, 50_000), (jnp.float16, 4097), (jnp.float8_e5m2, 1000)]


@pytest.mark.parametrize(("dtype", "count"), default_of(NARROW, NARROW[0]))
def test_cotangents_are_summed_widely(dtype: Any, count: int) -> None:
    """A running sum in a narrow dtype stops growing long before."""
    total = np.asarray(count, np.float32).astype(dtype)
    constant = functools.partial(fill_value_constant, (count,), dtype)
    ones = jnp.ones((count,), dtype)
    (cotangent,) = jax.vjp(constant, jnp.ones((), dtype))[1](ones)
    assert_same_bits(cotangent, total)
    _, pullback = jax.vjp(jax.vmap(constant), jnp.ones(2, dtype))
    (cotangents,) = pullback(jnp.stack([ones, ones]))
    assert_same_bits(cotangents, np.stack([total] * 2))
    sequence = functools.partial(fill_value_sequence, (count,), dtype)
    zero = jnp.zeros((), dtype)
    by_start, _ = jax.vjp(sequence, zero, zero)[1](ones)
    assert_same_bits(by_start, total)


# Size ---------------------------------------------------------------------------------


def test_a_fill_is_computed_in_the_loop_of_its_neighbour():
    def scaled(start: Any, delta: Any, x: Any):
        return x * fill_value_sequence((512, 1024), "float32", start, delta)

    x = jax.ShapeDtypeStruct((512, 1024), np.float32)
    text = jax.jit(scaled).lower(1.0, 2.0, x).compile().as_text() or ""
    entry = text[text.index("ENTRY") :]
    assert entry.count("= f32[512,1024]") == 2  # x and the result
    assert "f64[512,1024]" not in entry


@pytest.mark.usefixtures("with_jit")
@pytest.mark.parametrize("sizes", [(2**16, 2**17), (2**33 + 5,)], ids=["2d", "1d"])
def test_more_than_2_to_the_32_elements(sizes: tuple[int, ...]):
    """Only a few elements are computed: XLA fuses the slice into the fill."""
    total = math.prod(sizes)
    start, delta = np.float32(-1e9), np.float32(0.1)

    @jax.jit
    def tail(start: Any, delta: Any):
        integers = fill_value_sequence(sizes, "uint32", 5, 3).reshape(-1)
        floats = fill_value_sequence(sizes, "float32", start, delta).reshape(-1)
        return integers[-7:], floats[-7:]

    integers, floats = tail(start, delta)
    positions = range(total - 7, total)
    expected = [(5 + 3 * k) % 2**32 for k in positions]
    assert_same_bits(integers, np.array(expected, np.uint32))
    expected = [float(start) + k * float(delta) for k in positions]
    assert_same_sequence(floats, np.float32(expected))


def test_the_largest_size_is_accepted():
    sizes = 2**24, 2**24
    fill = functools.partial(fill_value_constant, sizes, "int8", 1)
    assert jax.eval_shape(fill).shape == sizes


@pytest.mark.usefixtures("with_jit")
@pytest.mark.parametrize("dtype", ["float32", "uint32"])
def test_more_than_2_to_the_32_elements_of_symbolic_sizes(dtype: str):
    """The stride of the first dimension is beyond 32 bits, too."""
    sizes = jax.export.symbolic_shape("a, b, c")

    def last(a: Any, b: Any, c: Any, start: Any):
        shape = (2, *a.shape, *b.shape, *c.shape)
        return fill_value_sequence(shape, dtype, start, 1)[-1, -1, -1, -1]

    vectors = [jax.ShapeDtypeStruct((size,), np.int8) for size in sizes]
    scalar = jax.ShapeDtypeStruct((), dtype)
    exported = jax.export.export(jax.jit(last))(*vectors, scalar)
    shape = 2**11, 2**11, 2**10 + 3
    arrays = [np.zeros(size, np.int8) for size in shape]
    expected = np.array(2 * math.prod(shape) + 4)
    assert exported.call(*arrays, np.array(5, dtype)) == expected.astype(dtype)


def test_nans_are_results_where_jax_checks_for_them_while_it_traces():
    option = "jax_error_checking_behavior_nan"
    previous = jax.config.jax_error_checking_behavior_nan
    jax.config.update(option, "raise")
    try:
        for dtype in ("float32", "bfloat16"):
            y = jax.jit(lambda x: fill_value_sequence((3,), x.dtype, x, x))
            assert y(jnp.ones((), dtype)).tolist() == [1, 2, 3]
    finally:
        jax.config.update(option, previous)
