"""Arrays, meshes and contexts that random programs do not have."""

import contextlib
import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, lengths_for, moved_back, numbers, special_values
from descriptions import copy_of
from devices import AUTO, EXPLICIT, MODES, mesh_of, put
from dtypes import dtype_of
from graphs import graph, tensor
from jax import lax
from jax.experimental import serialize_executable
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax
from dml_jax import directml, reference
from dml_jax.cli.verify_cases import random_bits

TIME = (None, "time")
SHAPE = (8, 16)
X, LENGTHS = numbers(*SHAPE), lengths_for(SHAPE, 1).astype(np.int32)
REVERSED = reference.reverse_subsequences(X, LENGTHS, 1)
reverse = partial(dml_jax.reverse_subsequences, axis=1)


# Arrays -------------------------------------------------------------------------------


def test_keys() -> None:
    keys = jax.random.split(jax.random.key(0), SHAPE)
    y = jax.jit(reverse)(put(keys, mesh_of(time=8), *TIME), LENGTHS)
    data = np.asarray(jax.random.key_data(keys))
    expected = reference.reverse_subsequences(data, LENGTHS[..., None], 1)
    assert_same_bits(jax.random.key_data(y), expected)


# More elements than 32 bits can count. Each device returns the ends of its shard, so
# that nothing else is computed.
LONG = {
    "one-dimension": ((2**32 + 2**14,), P("time")),
    "two-dimensions": ((2**17, 2**16), P("time")),
    "minor-dimension-sharded": ((2**16, 2**17), P(None, "time")),
}


@pytest.mark.parametrize(
    "dtype", default_of(["uint8", "float16", "float32", "int64"], "uint8")
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LONG)
def test_long_fills(name: str, mode: AxisType, dtype: str) -> None:
    (sizes, spec), mesh = LONG[name], mesh_of(mode, time=8)
    sharding = NamedSharding(mesh, spec)
    start, delta = (-2.0, 2.0**-20) if "float" in dtype else (1, 37)
    shard = lax.with_sharding_constraint if mode == AUTO else jax.sharding.reshard

    def ends(shard: jax.Array) -> jax.Array:
        return jnp.stack([shard[(0,) * shard.ndim], shard[(-1,) * shard.ndim]])

    @jax.jit
    def run() -> jax.Array:
        y = dml_jax.fill_value_sequence(sizes, dtype, start, delta)
        of_shards = jax.shard_map(ends, mesh=mesh, in_specs=spec, out_specs=P("time"))
        return of_shards(shard(y, sharding))

    with jax.set_mesh(mesh), jax.enable_x64(dtype == "int64"):
        found = run()
    corners = [
        [range(size)[part][end] for size, part in zip(sizes, index, strict=True)]
        for index in sharding.devices_indices_map(sizes).values()
        for end in (0, -1)
    ]
    expected = np.ravel_multi_index(np.transpose(corners), sizes) * delta + start
    if dtype == "float16":
        expected = np.minimum(expected, 65504)
    assert_same_bits(found, expected.astype(dtype))


# Meshes -------------------------------------------------------------------------------


def test_automatic_axes_within_an_explicit_program() -> None:
    mesh = mesh_of(EXPLICIT, time=8)
    with jax.set_mesh(mesh):
        run = jax.sharding.auto_axes(reverse, out_sharding=P(*TIME))
        y = jax.jit(run)(put(X, mesh, *TIME), put(LENGTHS, mesh))
    assert_same_bits(y, REVERSED)


@pytest.mark.parametrize("function", ["fill_value_sequence", "fill_value_constant"])
def test_a_fill_has_the_mesh_of_other_new_arrays(function: str) -> None:
    """So that one operation can have both as operands."""
    fill = partial(getattr(dml_jax, function), (8,), "float32")
    scalars = np.float32([-3.2, 0.1])[: 1 + function.endswith("sequence")]

    @jax.jit
    def run(*scalars: jax.Array) -> jax.Array:
        y, new = fill(*scalars), jnp.full((8,), 0, jnp.float32)
        assert jax.typeof(y).sharding == jax.typeof(new).sharding
        return lax.dynamic_update_slice(new, y, (0,))

    with jax.set_mesh(mesh_of(EXPLICIT, data=4, model=2)):
        y = run(*scalars)
    assert_same_bits(y, np.asarray(fill(*scalars)))


# Contexts -----------------------------------------------------------------------------


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("function", "lengths"),
    default_of(
        [("reverse_subsequences", LENGTHS), ("reverse_padded", LENGTHS[:, 0])],
        ("reverse_subsequences", LENGTHS),
    ),
    ids=["reverse_subsequences", "reverse_padded"],
)
def test_without_jit(function: str, lengths: np.ndarray, mode: AxisType) -> None:
    """Along the sharded axis too, where XLA partitions a gather as a sum of floats."""
    x, mesh = special_values(SHAPE), mesh_of(mode, time=8)
    spec, of_lengths = (TIME, ()) if mode == AUTO else (("time",), ("time",))
    run = partial(getattr(dml_jax, function), axis=1)
    with jax.set_mesh(mesh), jax.disable_jit():
        y = run(put(x, mesh, *spec), put(lengths, mesh, *of_lengths))
    assert_same_bits(y, reference.reverse_subsequences(x, LENGTHS, 1))


def test_programs_of_different_axes_differ() -> None:
    """The persistent cache identifies a program by its text."""
    x, texts = put(numbers(8, 8), mesh_of(time=8), "time"), set()
    for axis in (0, 1):
        run = jax.jit(partial(dml_jax.reverse_subsequences, axis=axis))
        text = run.lower(x, jnp.ones((1, 1), jnp.int32)).as_text()
        assert "CustomSPMDPartitioning" in text
        texts.add(re.sub(r'backend_config = "\d+"', "", text))
    assert len(texts) == 2


@pytest.mark.parametrize("mode", [AUTO, EXPLICIT], ids=["auto", "explicit"])
def test_without_callbacks_of_the_partitioner(
    mode: AxisType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JAX that lacks `custom_partitioning`: XLA partitions the operator itself."""

    def raises(*_: Any, **__: Any) -> Any:
        raise AttributeError("it is gone")

    def pull_back(x: jax.Array) -> jax.Array:
        run = partial(dml_jax.reverse_sequence, lda_coeff=0.5, **BATCH_MAJOR)
        y, pull_back = jax.vjp(lambda x: run(x, LENGTHS[:, 0]), x)
        return pull_back(y)[0]

    monkeypatch.setattr("dml_jax._shared.partitioner.custom_partitioning", raises)
    monkeypatch.setattr("dml_jax._shared.jax_versions.missing", {})
    mesh = mesh_of(mode, a=4, b=2)
    with jax.set_mesh(mesh), pytest.warns(RuntimeWarning, match="it is gone"):
        y = jax.jit(pull_back)(put(X, mesh, "a", "b"))
    assert_same_bits(y, X / 2)


def test_constants_of_a_directml_graph() -> None:
    """The mesh of the first call is not that of the next one."""
    nodes = [X.tobytes(), copy_of(tensor(SHAPE))]
    desc = graph(nodes, [], [(1, 0)], [(0, 1, 0)])
    sizes = [(AUTO, 4), (EXPLICIT, 4), (EXPLICIT, 2)]
    meshes = [None, *(mesh_of(mode, a=size) for mode, size in sizes)]
    for pair in itertools.permutations(meshes, 2):
        run = directml.compile_graph(desc)
        for mesh in pair:
            with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
                assert_same_bits(run(), X)


def shifted(x: Any, module: Any = dml_jax) -> Any:
    return module.slice_grad(x, (len(x), 24), (0, 2), (len(x), 22), (1, -3))


def turned(x: Any, module: Any = dml_jax) -> Any:
    return module.reverse_subsequences(x, np.full((len(x), 1), 5), 1)


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize(
    "dtype",
    default_of(
        ["float32", "complex64", "bfloat16", "uint8", "bool", "int4"], "float32"
    ),
)
@pytest.mark.parametrize("run", [turned, shifted])
def test_exported(run: Callable[..., Any], dtype: str) -> None:
    """XLA does not ask the package how to partition it, or its derivative."""
    x = special_values((4, 8))
    if dtype not in ("float32", "complex64"):
        x = np.nan_to_num(x).clip(-3, 7)
    with np.errstate(invalid="ignore"):
        x = x.astype(jnp.dtype(dtype))
    sharding = NamedSharding(mesh_of(a=4), P(None, "a"))
    program = jax.jit(run, in_shardings=sharding, out_shardings=sharding)
    exported = jax.export.export(program)(x)
    on_devices = jax.device_put(x, sharding)
    assert_same_bits(jax.jit(exported.call)(on_devices), run(x, reference))
    if dtype == "float32":
        exported = jax.export.deserialize(exported.serialize(vjp_order=1))
        _, pull_back = jax.vjp(exported.call, on_devices)
        y = run(x, reference)
        expected = moved_back(lambda x: run(x, reference), x.shape, y)
        assert_same_bits(pull_back(jax.device_put(y, sharding))[0], expected)


def gradient_of_a_slice(x: Any) -> Any:
    window = (0, 1), (4, 7), (1, -2)
    return jax.grad(lambda x: jnp.sum(dml_jax.slice1(x, *window) ** 2))(x)


@pytest.mark.parametrize("run", [turned, shifted, gradient_of_a_slice])
def test_compiled_programs_can_be_stored(run: Callable[..., Any]) -> None:
    x = put(numbers(4, 8), mesh_of(a=8), None, "a")
    compiled = jax.jit(run).lower(x).compile()
    stored = serialize_executable.serialize(compiled)
    loaded = serialize_executable.deserialize_and_load(*stored)
    assert_same_bits(loaded(x), np.asarray(compiled(x)))


# Two-bit integers ---------------------------------------------------------------------

SLICES = {
    "strided": lambda x, module: module.slice1(x, (1, 0), (7, 999), (-2, 1)),
    "slice_grad": lambda x, module: module.slice_grad(
        x, (16, 999), (1, 0), (15, 999), (-2, 1)
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SLICES)
def test_slices_of_two_bit_integers(name: str, mode: AxisType) -> None:
    x = random_bits(np.random.default_rng(0), dtype_of("int2"), (8, 999))
    mesh = mesh_of(mode, a=4)
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: SLICES[name](x, dml_jax))(put(x, mesh, "a"))
    assert_same_bits(y, SLICES[name](x, reference))


# Shards -------------------------------------------------------------------------------


def shard_map(function: Callable[..., Any], ins: Any, out: P) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=mesh_of(a=8), in_specs=ins, out_specs=out)


def test_coefficients_vary_where_the_input_is_replicated() -> None:
    """The cotangent of the input is the sum over the devices."""
    coefficients = np.arange(1, 9, dtype=np.float32)

    def loss(x: jax.Array, coefficient: jax.Array) -> jax.Array:
        y = dml_jax.reverse_sequence(
            x, LENGTHS[:, 0], lda_coeff=coefficient[0], **BATCH_MAJOR
        )
        return lax.psum(jnp.sum(y * y), "a")

    run = shard_map(jax.grad(loss), (P(), P("a")), P())
    assert_same_bits(jax.jit(run)(X, coefficients), 2 * X * coefficients.sum())


def test_the_sum_over_devices_is_rounded_once() -> None:
    """The cotangent of a replicated bfloat16: 256 and seven ones are 263, not 256."""
    x, lengths = jnp.ones(1, jnp.bfloat16), np.arange(8)
    run = shard_map(
        lambda x, n: dml_jax.reverse_subsequences(x, n, 0), (P(), P("a")), P("a")
    )
    _, pull_back = jax.vjp(jax.jit(lambda x: run(x, lengths)), x)
    cotangent = jnp.asarray([256] + [1] * 7, jnp.bfloat16)
    assert_same_bits(pull_back(cotangent)[0], np.asarray([263], jnp.bfloat16))


@pytest.mark.parametrize("mode", MODES)
def test_checked_operators_inside_and_outside_of_shard_map(mode: AxisType) -> None:
    mesh = mesh_of(mode, a=8)
    # The extremes are on different devices, and some devices have no wrong length.
    bad = np.array([3, 99, 0, 5, -2, 16, 1, 1], np.int32)[:, None]
    inner = jax.shard_map(reverse, mesh=mesh, in_specs=P("a"), out_specs=P("a"))

    @dml_jax.checked
    @jax.jit
    def run(x: Any, before: Any, inside: Any, after: Any) -> jax.Array:
        return reverse(inner(reverse(x, before), inside), after)

    good = np.minimum(LENGTHS, 16)
    x, good, bad = (put(array, mesh, "a") for array in (X, good, bad))
    assert_same_bits(run(x, good, good, good), REVERSED)
    for lengths in [(bad, good, good), (good, bad, good), (good, good, bad)]:
        with pytest.raises(ValueError, match=r"in \[0, 16\]; got -2 to 99$"):
            run(x, *lengths)


def test_checked_constants_beyond_32_bits() -> None:
    lengths = np.array([[2**40], [-(2**35)], [2]])
    run = shard_map(lambda x: reverse(x, lengths), P(), P())
    with pytest.raises(ValueError, match=f"got {-(2**35)} to {2**40}$"):
        dml_jax.checked(run)(X[:3])
    with pytest.raises(TypeError, match=r"^checked: .* outside transformations"):
        jax.jit(lambda: dml_jax.checked(run)(X[:3]))()
