"""What random programs do not show of sharded arrays: collectives, sums over devices.

An operation names the dimensions of its arrays, and a layout says which axis of the
mesh shards which of them. The expected bits are those of one device.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from assertions import assert_same_bits
from cases import BATCH_MAJOR, lengths_for, numbers, special_values
from devices import AUTO, EXHAUSTIVE, EXPLICIT, MODES, collectives, compile_for, modes
from devices import mesh_of as mesh_of_axes
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sampling import default_of

import dml_jax

DATA, MODEL, ALL = 4, 2, ("data", "model")


def mesh_of(mode: AxisType) -> Mesh:
    return mesh_of_axes(mode, data=DATA, model=MODEL)


Layout = Mapping[str, Any]
Specs = tuple[P, ...]
Transformation = Callable[..., jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """A function of whole arrays or of their shards, with arguments to test it.

    `dims` has a letter for each dimension of each array: "b" for batch, "t" for time,
    "f" for features, "-" for a dimension of size 1. Elements move along the time, and
    the result has the dimensions of the first array.
    """

    name: str
    run: Callable[..., jax.Array]
    arrays: tuple[np.ndarray, ...]
    dims: tuple[str, ...] = ("btf",)
    has_jvp: bool = True

    def __str__(self) -> str:
        return self.name

    def specs(self, *layouts: Layout) -> Specs:
        return tuple(
            P(*map(layout.get, dims))
            for dims, layout in zip(self.dims, layouts, strict=False)
        )


def slice_time(x: jax.Array) -> jax.Array:
    b, _, f = x.shape
    return dml_jax.slice(x, [0, 1, 0], [b, 3, f], [1, 2, 1])


def slice1_time(x: jax.Array) -> jax.Array:
    b, _, f = x.shape
    return dml_jax.slice1(x, [0, 1, 0], [b, 7, f], [1, -3, 1])


def slice_grad_time(x: jax.Array) -> jax.Array:
    b, _, f = x.shape
    return dml_jax.slice_grad(x, [b, 8, f], [0, 1, 0], [b, 7, f], [1, -3, 1])


SHAPE = (8, 8, 4)
X, SHORT = numbers(*SHAPE), numbers(8, 3, 4)
PER_LINE = lengths_for(SHAPE, 1).astype(np.int32)
PER_ENTRY = PER_LINE[:, :, :1]
REVERSE_LINES = partial(dml_jax.reverse_subsequences, axis=1)
TRAINING = partial(dml_jax.reverse_sequence, **BATCH_MAJOR, lda_coeff=0.5)
INFERENCE = partial(dml_jax.reverse_sequence, training=False)

REVERSALS = [
    Operation("reverse_subsequences", REVERSE_LINES, (X, PER_LINE), ("btf", "b-f")),
    Operation(
        "reverse_padded",
        dml_jax.reverse_padded,
        (X, PER_ENTRY[..., 0][:, 0]),
        ("btf", "b"),
    ),
    Operation("training", TRAINING, (X, PER_ENTRY.ravel()), ("btf", "b"), False),
    Operation("inference", INFERENCE, (X, PER_ENTRY.ravel()), ("tbf", "b")),
]
OTHERS = [
    Operation("slice", slice_time, (X,)),
    Operation("slice1", slice1_time, (X,)),
    Operation("slice_grad", slice_grad_time, (SHORT,)),
]
OPERATIONS = [*REVERSALS, *OTHERS]


# Transformations ----------------------------------------------------------------------


def forward(run: Transformation, *arrays: Any) -> Any:
    return run(*arrays)


def vjp(run: Transformation, x: Any, *lengths: Any) -> Any:
    y, pull_back = jax.vjp(lambda x: run(x, *lengths), x)
    return pull_back(y * y)[0]


def jvp(run: Transformation, x: Any, *lengths: Any) -> Any:
    return jax.jvp(lambda x: run(x, *lengths), (x,), (x * x,))[1]


def vmap(run: Transformation, *arrays: Any) -> Any:
    """Maps over the last array alone: the lengths, where there are any."""
    *others, last = arrays
    in_axes = (*[None] * len(others), 0)
    return jax.vmap(run, in_axes)(*others, jnp.stack([last, last + 1]))[1]


@cache
def on_one_device(operation: Operation, transformation: Transformation) -> np.ndarray:
    run = jax.jit(partial(transformation, operation.run))
    return np.asarray(run(*operation.arrays))


# Layouts ------------------------------------------------------------------------------

BY_BATCH = {"b": "data"}
BY_FEATURES = {"f": "model"}
BY_BOTH = BY_BATCH | BY_FEATURES

# Pairs: the layout of the input and that of the lengths.
BOTH = {"both": (BY_BOTH, BY_BOTH)}
ALIKE = {"batch": (BY_BATCH, BY_BATCH), "features": (BY_FEATURES, BY_FEATURES)}
REPLICATED = {"lengths-replicated": (BY_BATCH, {})}
BY_TIME = {"time": ({"t": "data"}, {})}


def scenarios(
    operations: Sequence[Operation],
    layouts: Mapping[str, tuple[Layout, Layout]],
    *default: Transformation,
    of: Sequence[Transformation] = (forward, vjp, jvp, vmap),
) -> list[Any]:
    """Parameters (operation, transformation, specs); all but `default` exhaustive."""
    return [
        pytest.param(
            operation,
            transformation,
            operation.specs(*layouts[name]),
            id=f"{operation}-{name}-{transformation.__name__}",
            marks=() if transformation in default else EXHAUSTIVE,
        )
        for operation in operations
        for name in layouts
        for transformation in of
        if operation.has_jvp or transformation is not jvp
    ]


over_scenarios = partial(
    pytest.mark.parametrize, ("operation", "transformation", "specs")
)


def put(arrays: Sequence[Any], mesh: Mesh, specs: Specs) -> list[jax.Array]:
    return [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip(arrays, specs, strict=True)
    ]


@pytest.mark.parametrize("mode", modes(AUTO))
@over_scenarios(
    [
        *scenarios(OPERATIONS, BOTH, vjp, of=[vjp, vmap]),
        *scenarios(OPERATIONS, ALIKE, of=[vjp]),  # which runs forward, too
        *scenarios(REVERSALS, REPLICATED, vjp, of=[vjp, vmap]),
    ]
)
def test_without_collectives(
    mode: AxisType, operation: Operation, transformation: Transformation, specs: Specs
) -> None:
    mesh, run = mesh_of(mode), partial(transformation, operation.run)
    with jax.set_mesh(mesh) if mode == EXPLICIT else contextlib.nullcontext():
        arrays = put(operation.arrays, mesh, specs)
        compiled = compile_for(run, *arrays)
        result = compiled(*arrays)
        if mode == EXPLICIT:
            traced = jax.eval_shape(run, *arrays)
            assert traced.sharding.spec == jax.typeof(result).sharding.spec == specs[0]
    assert_same_bits(result, on_one_device(operation, transformation))
    assert result.sharding.is_equivalent_to(arrays[0].sharding, result.ndim)
    assert collectives(compiled) == set()


@pytest.mark.usefixtures("nans_are_data")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", default_of(REVERSALS, REVERSALS[0]), ids=str)
def test_without_jit(operation: Operation, mode: AxisType) -> None:
    """Along the sharded axis too, where XLA partitions a gather as a sum of floats."""
    arrays = special_values(SHAPE), *operation.arrays[1:]
    operation = dataclasses.replace(operation, arrays=arrays)
    mesh, layout = mesh_of(mode), BY_TIME["time"] if mode == AUTO else ALIKE["batch"]
    with jax.set_mesh(mesh), jax.disable_jit():
        result = operation.run(*put(arrays, mesh, operation.specs(*layout)))
    assert_same_bits(result, on_one_device(operation, forward))


# shard_map ----------------------------------------------------------------------------


def shard_map(function: Transformation, ins: Specs, out: P) -> Transformation:
    mesh = mesh_of(AUTO)
    return jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=out)


def test_coefficients_vary_where_the_input_is_replicated() -> None:
    """The cotangent of the input is the sum over the devices."""
    x, lengths = REVERSALS[1].arrays
    coefficients = np.arange(1, 1 + DATA, dtype=np.float32)

    def loss(x: jax.Array, coefficient: jax.Array) -> jax.Array:
        y = dml_jax.reverse_sequence(
            x, lengths, lda_coeff=coefficient[0], batch_axis=0, time_axis=1
        )
        return lax.psum(jnp.sum(y * y), "data")

    run = shard_map(jax.grad(loss), (P(), P("data")), P())
    assert_same_bits(jax.jit(run)(x, coefficients), 2 * x * coefficients.sum())


# Each device has its own length, and several devices have the same input. The cotangent
# of that input is the sum over those devices.
LENGTHS_VARY = {
    "input-replicated": ({}, {"b": ALL}),
    "input-by-batch": (BY_BATCH, {"b": ALL}),
}


@pytest.mark.parametrize("transformed", ["inside", "outside"])
@over_scenarios(scenarios(REVERSALS, LENGTHS_VARY))
def test_lengths_vary(
    operation: Operation, transformation: Transformation, specs: Specs, transformed: str
) -> None:
    x, lengths = operation.arrays
    batch = operation.dims[0].index("b")
    shards = 1 if specs[0][batch] is None else DATA
    x = lax.slice_in_dim(x, 0, shards, axis=batch)

    def whole(x: jax.Array, lengths: jax.Array) -> jax.Array:
        return operation.run(jnp.repeat(x, DATA * MODEL // shards, batch), lengths)

    expected = np.asarray(jax.jit(partial(transformation, whole))(x, lengths))
    (result_spec,) = operation.specs({"b": ALL})
    if transformed == "inside":
        spec = specs[0] if transformation is vjp else result_spec
        run = shard_map(partial(transformation, operation.run), specs, spec)
    else:
        run = partial(transformation, shard_map(operation.run, specs, result_spec))
    assert_same_bits(jax.jit(run)(x, lengths), expected)


def test_the_sum_over_devices_is_rounded_once() -> None:
    """The cotangent of a replicated bfloat16: 256 and seven ones are 263, not 256."""
    x, lengths = jnp.ones(1, jnp.bfloat16), np.arange(8)
    reverse = shard_map(
        lambda x, n: dml_jax.reverse_subsequences(x, n, 0), (P(), P(ALL)), P(ALL)
    )
    _, pull_back = jax.vjp(jax.jit(lambda x: reverse(x, lengths)), x)
    cotangent = jnp.asarray([256] + [1] * 7, jnp.bfloat16)
    assert_same_bits(pull_back(cotangent)[0], np.asarray([263], jnp.bfloat16))
