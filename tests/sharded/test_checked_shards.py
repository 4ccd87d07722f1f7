"""`checked` around programs in which each device checks its own shards."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import numbers
from devices import AUTO, EXHAUSTIVE, EXPLICIT, MODES, mesh_of, put
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax
from dml_jax import reference

X = numbers(16, 4)
GOOD = np.arange(16, dtype=np.int32) % 5
# The extremes are on different devices, and some devices have no bad length.
BAD = np.where(np.arange(16) == 3, 9, np.where(np.arange(16) == 12, -2, GOOD))
BAD = BAD.astype(np.int32)
EXPECTED = reference.reverse_sequence(X, GOOD, batch_axis=0, time_axis=1)
ERROR = r"^reverse_sequence: `sequence_lens` must be in \[0, 4\]; got -2 to 9$"

reverse = partial(dml_jax.reverse_sequence, batch_axis=0, time_axis=1)


def scan(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda y, _: (reverse(y, lengths), None), x, length=3)[0]


def vmap(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jax.vmap(lambda x, n: reverse(x[None], n[None])[0])(x, lengths)


def gradient(x: jax.Array, lengths: jax.Array) -> jax.Array:
    return jax.grad(lambda x: jnp.sum(reverse(x, lengths) * x))(x) / 2


INSIDE = {"plain": reverse, "scan": scan, "vmap": vmap}


def check(run: Callable[..., Any], mesh: jax.sharding.Mesh, *spec: Any) -> None:
    x, good, bad = (put(array, mesh, *spec) for array in (X, GOOD, BAD))
    assert_same_bits(run(x, good), EXPECTED)
    with pytest.raises(ValueError, match=ERROR):
        run(x, bad)
    assert_same_bits(run(x, good), EXPECTED)


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("manual", [("a", "b"), ("a",)], ids=["all-axes", "one-axis"])
@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "no-vma"])
@pytest.mark.parametrize("is_set", [True, False], ids=["set", "not-set"])
@pytest.mark.parametrize("mode", MODES)
@EXHAUSTIVE
def test_shard_map(
    mode: AxisType, is_set: bool, check_vma: bool, manual: tuple[str, ...], inside: str
) -> None:
    mesh = mesh_of(mode, a=4, b=2)
    function = jax.shard_map(
        INSIDE[inside],
        mesh=mesh,
        in_specs=P(manual),
        out_specs=P(manual),
        check_vma=check_vma,
        axis_names=set(manual),
    )
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        check(dml_jax.checked(function), mesh, manual)


@pytest.mark.parametrize("mode", MODES)
def test_operators_inside_and_outside_of_shard_map(mode: AxisType) -> None:
    mesh, spec = mesh_of(mode, a=4, b=2), P(("a", "b"))
    inner = jax.shard_map(reverse, mesh=mesh, in_specs=spec, out_specs=spec)

    @dml_jax.checked
    @jax.jit
    def run(x: Any, inside: Any, before: Any, after: Any) -> jax.Array:
        return reverse(inner(reverse(x, before), inside), after)

    x, good, bad = (put(array, mesh, *spec) for array in (X, GOOD, BAD))
    assert_same_bits(run(x, good, good, good), EXPECTED)
    for lengths in [(bad, good, good), (good, bad, good), (good, good, bad)]:
        with pytest.raises(ValueError, match=ERROR):
            run(x, *lengths)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inside", default_of(INSIDE, "plain"))
def test_without_shard_map(inside: str, mode: AxisType) -> None:
    check(dml_jax.checked(INSIDE[inside]), mesh_of(mode, a=4, b=2), ("a", "b"))


def test_constants_beyond_32_bits() -> None:
    lengths: Any = [2**40, -(2**35), 2]
    mesh = mesh_of(EXPLICIT, a=4, b=2)
    run = jax.shard_map(
        lambda x: reverse(x, lengths), mesh=mesh, in_specs=P(), out_specs=P()
    )
    with pytest.raises(ValueError, match=f"got {-(2**35)} to {2**40}$"):
        dml_jax.checked(run)(X[:3])


def test_gradients_of_shards() -> None:
    mesh, spec = mesh_of(EXPLICIT, a=4, b=2), P("a")
    run = jax.shard_map(gradient, mesh=mesh, in_specs=spec, out_specs=spec)
    check(dml_jax.checked(run), mesh, "a")


def test_transformed_by_jit() -> None:
    mesh = mesh_of(AUTO, a=4, b=2)
    function = jax.shard_map(reverse, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(TypeError, match=r"^checked: .* outside of transformations"):
        jax.jit(lambda: dml_jax.checked(function)(X, GOOD))()
