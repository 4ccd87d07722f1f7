"""What a device receives and holds: a few shards, however many devices there are.

The compiled program tells. Random programs have the values; their shards are too small
to be held apart.
"""

import itertools
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
from cases import BATCH_MAJOR, numbers
from devices import (
    AUTO,
    EXPLICIT,
    MODES,
    collectives,
    compile_for,
    mesh_of,
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


# Every operator -----------------------------------------------------------------------

SIDE = 64
WHOLE = (0, 0), (SIDE, SIDE)
OPERATORS: dict[str, Function] = {
    "rows": REVERSE,
    "columns": lambda x, n: dml_jax.reverse_subsequences(x, n.T, 0),
    "training": lambda x, n: dml_jax.reverse_sequence(
        x, n[:, 0], **BATCH_MAJOR, lda_coeff=0.5
    ),
    "slice": lambda x, _: dml_jax.slice(x, (0, 0), (SIDE, SIDE // 2), (1, 2)),
    "slice1": lambda x, _: dml_jax.slice1(x, *WHOLE, (-1, 1)),
    "slice_grad-rows": lambda x, _: dml_jax.slice_grad(
        x, (2 * SIDE, SIDE), (0, 0), (2 * SIDE, SIDE), (2, 1)
    ),
    "slice_grad-columns": lambda x, _: dml_jax.slice_grad(
        x, (SIDE, 2 * SIDE), (0, 0), (SIDE, 2 * SIDE), (1, 2)
    ),
}
KINDS = {"auto": (AUTO, AUTO), "explicit": (EXPLICIT, EXPLICIT)}
KINDS |= {"auto_explicit": (AUTO, EXPLICIT), "explicit_auto": (EXPLICIT, AUTO)}
# JAX's own operations gather an array whose dimension is sharded over an automatic axis
# first and an explicit one second.
SPECS = [P("a"), P("a", "b"), P("b", "a"), P(None, "a"), P(None, "b")]


def forward(function: Function) -> Function:
    return function


def tangent_of(function: Function) -> Function:
    return lambda x, n: jax.jvp(lambda x: function(x, n), (x,), (x,))[1]


def cotangent_of(function: Function) -> Function:
    def pulled(x: jax.Array, n: jax.Array) -> jax.Array:
        y, pull_back = jax.vjp(lambda x: function(x, n), x)
        return pull_back(y)[0]

    return pulled


PROGRAMS = [
    program
    for program in itertools.product(
        OPERATORS, [forward, tangent_of, cotangent_of], KINDS, SPECS
    )
    if program[:2] != ("training", tangent_of)
][::3]


@pytest.mark.parametrize(
    ("operator", "derivative", "kind", "spec"), default_of(PROGRAMS, *PROGRAMS[::11])
)
def test_largest_array(operator: str, derivative: Any, kind: str, spec: P) -> None:
    function = derivative(OPERATORS[operator])
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=KINDS[kind])
    x, lengths = numbers(SIDE, SIDE), np.arange(SIDE, dtype=np.int32)[:, None]
    with jax.set_mesh(mesh):
        arguments = put(x, mesh, *spec), put(lengths, mesh)
        compiled = compile_for(function, *arguments)
    y = jax.eval_shape(function, x, lengths)
    shards = math.prod(mesh.shape[name] for name in spec if name)
    assert most_elements(compiled) <= 4 * max(x.size, y.size) // shards


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


def test_an_axis_that_is_not_sharded_is_reversed_as_on_one_device() -> None:
    mesh = mesh_of(time=8)
    x, lengths = np.zeros((64, 4096), np.float32), np.ones((64, 1), np.int32)
    arguments = put(x, mesh, "time"), put(lengths, mesh, "time")
    text = compile_for(REVERSE, *arguments).as_text()
    assert "CustomSPMDPartitioning" not in text
    assert "reverse(" in text or "dynamic-update-slice" in text


# Slices -------------------------------------------------------------------------------

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
@pytest.mark.parametrize("name", default_of(WINDOWS, "reversed-strided", "few"))
def test_slices_receive_what_they_lack(
    name: str, mode: AxisType, function: Function
) -> None:
    x, run = numbers(3, 1024, 8), partial(function, *WINDOWS[name])
    mesh, shard = mesh_of(mode, time=8), x.nbytes // 8
    with jax.set_mesh(mesh):
        sharded = put(x, mesh, *TIME)
        compiled = compile_for(run, sharded, out_shardings=sharded.sharding)
    sent = sent_bytes(compiled)
    assert sum(sent.values()) <= 3 * shard
    assert not {"all-gather", "all-reduce", "all-to-all"} & sent.keys()
    assert compiled.memory_analysis().temp_size_in_bytes <= 4 * shard


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
    assert_same_bits(result, expected)
    assert collectives(compiled) == set()
    assert most_elements(compiled) == result.size // 8
