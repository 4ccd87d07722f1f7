"""What a device receives and holds: a few shards, however many devices there are.

The compiled program tells. `test_random_programs.py` has bounds for every operator;
these are the exact numbers, and programs that random ones do not reach.
"""

import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits, assert_same_sequence
from cases import numbers
from devices import (
    AUTO,
    EXPLICIT,
    MODES,
    collectives,
    compile_for,
    mesh_of,
    messages,
    most_elements,
    put,
    sent_bytes,
)
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax
from dml_jax import reference
from dml_jax._reverse import xla as reverse_xla

Function = Callable[..., jax.Array]

TIME = (None, "time")
REVERSE = partial(dml_jax.reverse_subsequences, axis=1)


def tangent_of(function: Function) -> Function:
    return lambda x, n: jax.jvp(lambda x: function(x, n), (x,), (x,))[1]


# Reversals ----------------------------------------------------------------------------


def transposed(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jax.linear_transpose(lambda x: REVERSE(x, lengths), x)(x)[0]


def vmap(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jax.vmap(lambda x, n: dml_jax.reverse_subsequences(x, n, 0))(x, lengths)


VARIANTS = [(transposed, 8), (tangent_of(REVERSE), 8), (vmap, 4)]
VARIANTS += [(REVERSE, 2), (REVERSE, 4)]


@pytest.mark.parametrize("features", default_of([64, 63], 63))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("function", "devices"), default_of(VARIANTS, VARIANTS[0]))
def test_reversal_of_a_sharded_axis(
    function: Function, devices: int, mode: AxisType, features: int
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


@pytest.mark.parametrize("shape", [(4, 256, 128), (64, 1024), (64, 1022)])
def test_reversal_that_xla_partitions(shape: tuple[int, ...]) -> None:
    """As it does for TPUs: with features, without, and with padding."""
    x, lengths = numbers(*shape), np.zeros((shape[0], *[1] * (len(shape) - 1)), int)
    lengths.flat = np.resize([shape[1] - 1, 0, 77, shape[1], 1], shape[0])
    arguments = put(x, mesh_of(a=4, b=2), "a", "b"), lengths.astype(np.int32)
    rotate = partial(reverse_xla.rotate_and_flip, axis=1, max_shards=8)
    compiled = compile_for(rotate, *arguments, out_shardings=arguments[0].sharding)
    y = compiled(*arguments)
    assert_same_bits(y, reference.reverse_subsequences(x, lengths, 1))
    assert sent_bytes(compiled).keys() == {"collective-permute"}


BATCHES = [None, "data", "model", ("data", "model"), ("model", "data")]


@pytest.mark.parametrize(
    ("of_input", "of_lengths"),
    default_of(
        itertools.product(BATCHES, BATCHES),
        (("data", "model"), "model"),
        ("data", "model"),
    ),
)
def test_lengths_of_another_sharding_are_sent_alone(
    of_input: Any, of_lengths: Any
) -> None:
    """Forward and backward, and the result is sharded like the input."""

    def squares(x: jax.Array, n: jax.Array) -> jax.Array:
        return jnp.sum(REVERSE(x, n) ** 2)

    mesh = mesh_of(data=4, model=2)
    x, n = put(numbers(16, 64, 8), mesh, of_input), np.arange(16, dtype=np.int32) * 4
    lengths = put(n[:, None, None], mesh, of_lengths)
    for function in (REVERSE, jax.grad(squares)):
        compiled = compile_for(function, x, lengths)
        assert compiled.output_shardings.is_equivalent_to(x.sharding, x.ndim)
        assert all(size <= lengths.size for _, size in messages(compiled))


def test_lengths_that_are_sharded_over_the_axis_of_the_time() -> None:
    mesh = mesh_of(data=4, model=2)
    x = put(numbers(16, 64, 8), mesh, "data", "model")
    lengths = put(np.full((16, 1, 1), 37, np.int32), mesh, "model")
    compiled = compile_for(REVERSE, x, lengths)
    assert compiled.output_shardings.is_equivalent_to(x.sharding, x.ndim)
    assert max(size for _, size in messages(compiled)) == x.size // 8


def test_an_axis_that_is_not_sharded_is_reversed_as_on_one_device() -> None:
    mesh = mesh_of(time=8)
    x, lengths = np.zeros((64, 4096), np.float32), np.ones((64, 1), np.int32)
    arguments = put(x, mesh, "time"), put(lengths, mesh, "time")
    text = compile_for(REVERSE, *arguments).as_text()
    assert "CustomSPMDPartitioning" not in text
    assert "reverse(" in text or "dynamic-update-slice" in text


# Slices -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "stride", "steps"), [(1, 1, 1), (3, 1, 3), (0, 1, 0), (0, 2, 0)]
)
def test_gradient_of_a_slice_next_to_its_input(
    offset: int, stride: int, steps: int
) -> None:
    """XLA's own partitioning of `lax.pad` is wrong (docs/xla.md)."""
    shape = (4, 64, 16)
    window = (0, offset, 0), (4, 64 - offset, 16), (1, stride, 1)
    loss = jax.grad(lambda x: jnp.sum(dml_jax.slice1(x, *window) ** 2))
    x = put(np.ones(shape, np.float32), mesh_of(time=8), *TIME)
    compiled = compile_for(loss, x)
    permuted = r"= f32\[4,(\d+),16\]\S* collective-permute\("
    sent = re.findall(permuted, compiled.as_text())
    assert {int(n) for n in sent} == {steps} - {0}
    assert collectives(compiled) == ({"collective-permute"} if steps else set())
    assert compiled.output_shardings.shard_shape(shape) == (4, 8, 16)
    # The pieces and their destination; XLA's slice pads its shard.
    assert most_elements(compiled) <= 2 * x.size // 8


# Fills --------------------------------------------------------------------------------

SIZES, SPEC = (8, 4000), P("data", "model")


def sequence(start: jax.Array, delta: jax.Array) -> jax.Array:
    return dml_jax.fill_value_sequence(SIZES, start.dtype, start, delta)


def constant(start: jax.Array, _: jax.Array) -> jax.Array:
    return dml_jax.fill_value_constant(SIZES, start.dtype, start)


def by_delta(*values: jax.Array) -> jax.Array:
    zero_and_one = np.arange(2).astype(values[0].dtype)
    return jax.jvp(sequence, values, (*zero_and_one,))[1]


@pytest.mark.parametrize("dtype", default_of(["float32", "float16"], "float32"))
@pytest.mark.parametrize(
    "mesh", default_of(["auto", "explicit", "auto_axes"], "auto", "auto_axes")
)
@pytest.mark.parametrize("fill", [sequence, constant, by_delta])
def test_fills_receive_nothing(fill: Function, mesh: str, dtype: str) -> None:
    """Under `auto_axes`, too, of a mesh whose axes are explicit."""
    mode = AUTO if mesh == "auto" else EXPLICIT
    values = [np.asarray(value, dtype) for value in (-3.2, 0.1)]  # their sums round
    run, options = fill, {}
    with jax.set_mesh(mesh_of(mode, data=4, model=2)):
        if mesh == "auto_axes":
            run = jax.sharding.auto_axes(fill, out_sharding=SPEC)
        else:
            options = {"out_shardings": SPEC}
        compiled = compile_for(run, *values, **options)
        result = compiled(*values)
    expected = {
        sequence: reference.fill_value_sequence(SIZES, np.dtype(dtype), *values),
        constant: np.full(SIZES, values[0]),
        by_delta: np.arange(8 * 4000).reshape(SIZES).astype(dtype),
    }[fill]
    compare = assert_same_sequence if fill is sequence else assert_same_bits
    compare(result, expected)
    assert collectives(compiled) == set()
    assert most_elements(compiled) == result.size // 8
