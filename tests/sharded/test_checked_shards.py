"""`checked` around programs in which devices see shards of their own."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import numbers
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import dml_jax
from dml_jax import reference

X = numbers(16, 4)
GOOD = np.arange(16, dtype=np.int32) % 5
# The extremes lie on different devices, and on others nothing is wrong.
BAD = np.where(np.arange(16) == 3, 9, np.where(np.arange(16) == 12, -2, GOOD))
BAD = BAD.astype(np.int32)
ERROR = r"^reverse_sequence: `sequence_lens` must be in \[0, 4\]; got -2 to 9$"
SPECS = {"all": P(("a", "b")), "some": P("a")}


def reverse(x, lengths):
    return dml_jax.reverse_sequence(x, lengths, batch_axis=0, time_axis=1)


def scanned(x, lengths):
    return jax.lax.scan(lambda y, _: (reverse(y, lengths), None), x, length=3)[0]


def gradient(x, lengths):
    return jax.grad(lambda x: jnp.sum(reverse(x, lengths) * x))(x) / 2


def mapped(x, lengths):
    return jax.vmap(lambda x, n: reverse(x[None], n[None])[0])(x, lengths)


INSIDE = {"plain": reverse, "scan": scanned, "vmap": mapped}


def make_mesh(kind):
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind, kind))


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("manual", SPECS)
@pytest.mark.parametrize("check_vma", [True, False], ids=["vma", "no-vma"])
@pytest.mark.parametrize("is_set", [True, False], ids=["set", "not-set"])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_shard_map(kind, is_set, check_vma, manual, inside):
    mesh, spec = make_mesh(kind), SPECS[manual]
    function = jax.shard_map(
        INSIDE[inside],
        mesh=mesh,
        in_specs=(spec, spec),
        out_specs=spec,
        check_vma=check_vma,
        axis_names={"a", "b"} if manual == "all" else {"a"},
    )
    put = functools.partial(jax.device_put, device=NamedSharding(mesh, spec))
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        run = dml_jax.checked(function)
        result = run(put(X), put(GOOD))
        expected = reference.reverse_sequence(X, GOOD, batch_axis=0, time_axis=1)
        assert_same_bits(result, expected)
        with pytest.raises(ValueError, match=ERROR):
            run(put(X), put(BAD))
        assert_same_bits(run(put(X), put(GOOD)), expected)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_operators_inside_and_outside(kind):
    mesh, spec = make_mesh(kind), SPECS["all"]
    inner = jax.shard_map(reverse, mesh=mesh, in_specs=spec, out_specs=spec)
    put = functools.partial(jax.device_put, device=NamedSharding(mesh, spec))

    @dml_jax.checked
    @jax.jit
    def run(x, inside, before, after):
        return reverse(inner(reverse(x, before), inside), after)

    x, good, bad = map(put, (X, GOOD, BAD))
    assert_same_bits(
        run(x, good, good, good),
        reference.reverse_sequence(X, GOOD, batch_axis=0, time_axis=1),
    )
    for lengths in [(bad, good, good), (good, bad, good), (good, good, bad)]:
        with pytest.raises(ValueError, match=ERROR):
            run(x, *lengths)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("inside", INSIDE)
def test_without_shard_map(inside, kind):
    mesh = make_mesh(kind)
    put = functools.partial(jax.device_put, device=NamedSharding(mesh, SPECS["all"]))
    run = dml_jax.checked(INSIDE[inside])
    expected = reference.reverse_sequence(X, GOOD, batch_axis=0, time_axis=1)
    assert_same_bits(run(put(X), put(GOOD)), expected)
    with pytest.raises(ValueError, match=ERROR):
        run(put(X), put(BAD))


def test_constants_beyond_32_bits():
    mesh, spec = make_mesh(AxisType.Explicit), P()
    lengths = [2**40, -(2**35), 2]

    def run(x):
        return reverse(x, lengths)

    function = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(ValueError, match=f"got {-(2**35)} to {2**40}$"):
        dml_jax.checked(function)(X[:3])


def test_gradients_of_shards():
    mesh, spec = make_mesh(AxisType.Explicit), SPECS["some"]
    function = jax.shard_map(gradient, mesh=mesh, in_specs=spec, out_specs=spec)
    put = functools.partial(jax.device_put, device=NamedSharding(mesh, spec))
    expected = reference.reverse_sequence(X, GOOD, batch_axis=0, time_axis=1)
    assert_same_bits(dml_jax.checked(function)(put(X), put(GOOD)), expected)
    with pytest.raises(ValueError, match=ERROR):
        dml_jax.checked(function)(put(X), put(BAD))


def test_transformed_by_jit():
    mesh = make_mesh(AxisType.Auto)
    function = jax.shard_map(reverse, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(TypeError, match=r"^checked: .* outside of transformations"):
        jax.jit(lambda: dml_jax.checked(function)(X, GOOD))()
